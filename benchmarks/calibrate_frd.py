"""Can FRD stand in for FPD? Both on the same ensembles of known and of realistic faults, and how alike they order them.

    python benchmarks/calibrate_frd.py runs/heat-sapc --poseidon Poseidon-B [--set test1] [--samples 1225] [--json calibration.json]

Per test set the ensembles are

    solutions            an independent draw, the best there can be
    noise a              solutions plus white noise of standard deviation a times the solutions' own spread
    spread c             solutions drawn together towards their mean, or apart, by the factor c
    shift b              solutions all moved by b times their spread
    k steps              what the model gives in that many sampling steps, down from its own number

A perfect stand-in orders them as FPD does; the size of its values need not be the same. The order is compared within a test set, because
between sets the distances differ by more than the faults do. Ensembles that neither distance can tell from solutions, those near the first
row, are ordered by chance; with few samples these are many.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import torch
from _measure import Row, announce, show
from torch import Tensor

import sapc
from sapc._files import write_json
from sapc.evaluation.evaluate import TEST_SETS, solutions
from sapc.evaluation.frechet import distance as fpd
from sapc.evaluation.frechet.distance import Distance
from sapc.training.run_folder import environment

FORMAT = "sapc-calibration-1"
NOISE, SPREAD, SHIFT = (0.1, 0.3, 1.0), (0.5, 0.8, 1.25), (0.1, 0.3, 1.0)
STEPS = (1, 2, 5, 10, 25)


def calibrate(model: sapc.Model, both: Sequence[Distance], options: argparse.Namespace) -> Row:
    """FPD and FRD of every ensemble on every test set, and their agreement, as JSON can hold it; `both` are the two, in this order."""
    sets = {split: compare(model, both, split, options) for split in options.set}
    run = {"task": model.run.task, "method": model.run.method, "seed": model.run.seed, "trained": model.step}
    names = ("method", "samples", "reference", "steps", "seed")
    settings = {name: getattr(options, name) for name in names} | {"device": str(model.device)}
    return {
        "format": FORMAT,
        "run": run,
        "settings": settings | {f"{d.name}_weights": d.describe() for d in both},
        "environment": environment(),
        "sets": sets,
        "mean": {
            name: fmean(s["agreement"][name] for s in sets.values()) for name in ("kendall", "spearman")
        },
    }


def compare(model: sapc.Model, both: Sequence[Distance], split: str, options: argparse.Namespace) -> Row:
    """Both distances of every ensemble, and how alike they order them."""
    truth, other = (
        solutions(model, split, size, seed, lambda done, total: None)
        for size, seed in ((options.reference, 0), (options.samples, 1))
    )
    rows: dict[str, dict[str, float]] = {}
    for name, fields in ensembles(model, truth[:1], other, options):
        announce(f"{split}, {name}")
        keep = (fields is other, True)
        rows[name] = {
            d.name: fmean(d.per_encoder(fields, truth, lambda done, total: None, use_cache=keep))
            for d in both
        }
    order = fpd.agreement(*([row[d.name] for row in rows.values()] for d in both))
    return {"ensembles": rows, "agreement": order}


def ensembles(
    model: sapc.Model, condition: Tensor, other: Tensor, options: argparse.Namespace
) -> Iterator[tuple[str, Tensor]]:
    """Every ensemble with its name."""
    noise = torch.randn(other.shape, generator=torch.Generator().manual_seed(options.seed)).to(other)
    mean, spread = other.mean(0), other.std(0).mean()
    yield "solutions", other
    for a in NOISE:
        yield f"noise {a:g}", other + a * spread * noise
    for c in SPREAD:
        yield f"spread {c:g}", mean + c * (other - mean)
    for b in SHIFT:
        yield f"shift {b:g}", other + b * spread
    for k in (*(k for k in STEPS if k < options.steps), options.steps):
        fields = model.sample(
            options.samples,
            condition=condition,
            steps=k,
            seed=options.seed,
            method=options.method,
            batch=options.batch,
        )
        yield f"{k} steps", fields


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="a run folder, or the name of a model")
    parser.add_argument(
        "--poseidon", required=True, help="weights of Poseidon-B: a folder, a file or a Hugging Face cache"
    )
    parser.add_argument("--set", action="append", choices=TEST_SETS, help="may be repeated; all unless given")
    parser.add_argument("--samples", type=int, default=1225)
    parser.add_argument("--reference", type=int, default=1225, help="solutions to compare with")
    parser.add_argument("--steps", type=int, help="sampling steps; the method's own unless given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", help="another method that samples with these weights")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", help="write the figures here as well")
    options = parser.parse_args()
    model = sapc.load(options.run, options.device)
    sampler = model.sampler(options.method)
    options.method, options.set = sampler.name, options.set or list(TEST_SETS)
    options.steps = options.steps or sampler.steps
    found = calibrate(model, fpd.distances(options.poseidon, True, model.device), options)
    for name, about in found["sets"].items():
        rows = [{"ensemble": ensemble, **row} for ensemble, row in about["ensembles"].items()]
        show(f"{name}: {about['agreement']}", sorted(rows, key=lambda row: row["fpd"]))
    print(f"agreement of FRD with FPD in the order: {found['mean']}")
    if options.json:
        write_json(Path(options.json), found)


if __name__ == "__main__":
    main()
