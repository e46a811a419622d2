"""Compute golden numbers: samples of every shipped model, losses, weights and samples of every method on every task.

    OMP_NUM_THREADS=1 python tests/golden/bits.py --check     compare the bits with bits.json, on the machine that wrote it
    OMP_NUM_THREADS=1 python tests/golden/bits.py --write     write bits.json anew

A change of code that is not meant to change a number keeps every digest. Rounding differs between processors, so the test in CI compares
the stored values within a tolerance instead. The digests are those of whole products, `transform="dft"`: a few lines of the grid at a time,
as samples are made by default, the same products are summed in another order.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

import sapc

FILE = Path(__file__).with_name("bits.json")
TASKS = ("heat", "reaction_diffusion", "stokes_ic", "stokes_bc", "burgers", "navier_stokes")
SHIPPED = tuple(f"{task}-{method}" for task in TASKS for method in ("sapc", "ffm"))
METHODS = (
    "ffm", "sapc", "sapc_s1", "sapc_s2", "sapc_s3", "cond_ffm", "eci", "eci_stokes_ic", "eci_stokes_bc",
    "pcfm", "pcfm_pins_first", "pcfm_relaxed", "cafm", "pbfm", "dflow",
)  # fmt: skip
VALUES = 24


def digest(*tensors: Tensor) -> str:
    """Hash the bytes of tensors."""
    joint = hashlib.sha256()
    for tensor in tensors:
        joint.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return joint.hexdigest()[:16]


def record(fields: Tensor) -> dict[str, Any]:
    """Describe fields: a digest, and some values spread over them."""
    flat = fields.double().flatten()
    return {"digest": digest(fields), "values": flat[:: max(1, len(flat) // VALUES)][:VALUES].tolist()}


def shipped(name: str, transform: str = "auto") -> dict[str, Any]:
    """Sample a shipped model."""
    model = sapc.load(name, device="cpu")
    model.network.transform = transform
    return record(model.sample(n=2, condition=condition(model), steps=4, seed=0, sampler="euler"))


def condition(model: Any) -> Tensor:
    """Return the first solution of the second test set."""
    return model.task.dataset("test1", size=1, cache=False).fields


def trained(task: str, folder: Path, transform: str = "auto") -> Iterator[tuple[str, dict[str, Any]]]:
    """Train every method on a task for ten steps, and sample with all that use its weights."""
    for method in METHODS:
        weights = sapc.get_method(method).weights
        run = folder / f"{task}-{weights}"
        if weights == method:
            sapc.training.loop.train(
                sapc.training_config(task, method, "tiny", steps=10, validation_interval=1), run, device="cpu"
            )
            lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
            losses = [line["loss"] for line in lines if "loss" in line]
            validations = [line["validation"] for line in lines if "validation" in line]
            model = sapc.load(run, device="cpu")
            weights_digest = digest(*model.network.state_dict().values())
            yield f"{task}/{method}/losses", {"digest": weights_digest, "values": losses + validations}
        model = sapc.load(run, device="cpu")
        # Twenty steps of L-BFGS make a thousandth of a rounding error.
        model.network.transform = "dft" if method == "dflow" else transform
        with warnings.catch_warnings():
            # Samples of a network that has learned nothing may miss a curved law.
            warnings.simplefilter("ignore", sapc.SapcWarning)
            fields = model.sample(
                n=2, condition=condition(model), steps=3, seed=0, method=method, sampler="euler"
            )
        yield f"{task}/{method}/sample", record(fields)


def compute() -> Iterator[tuple[str, dict[str, Any]]]:
    """Compute every golden number, one after the other."""
    for name in SHIPPED:
        yield name, shipped(name, "dft")
    with tempfile.TemporaryDirectory() as folder:
        for task in TASKS:
            yield from trained(task, Path(folder), "dft")


def main() -> None:
    """Write or check the golden numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true")
    mode.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    found = dict(compute())
    if chosen.write:
        FILE.write_text(json.dumps(found, indent=1) + "\n")
        return
    golden = json.loads(FILE.read_text())
    other = [name for name in golden if name not in found or found[name]["digest"] != golden[name]["digest"]]
    for name in other:
        print(f"differs: {name}")
    print(f"{len(golden) - len(other)} of {len(golden)} golden records have the same bits")
    sys.exit(1 if other else 0)


if __name__ == "__main__":
    main()
