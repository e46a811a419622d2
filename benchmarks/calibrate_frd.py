"""Can FRD stand in for FPD? Both order the same ensembles, with known and with realistic faults.

    python benchmarks/calibrate_frd.py runs/heat-sapc --poseidon Poseidon-B [--set test1] [--samples 1225] \\
        [--json calibration.json]

Per test set the ensembles are

    solutions            an independent draw, the best there can be
    noise a              solutions plus white noise of standard deviation a times the solutions' own spread
    spread c             distances of solutions from their mean times c
    shift b              solutions all moved by b times their spread
    k steps              what the model gives in that many sampling steps, down from its own number

A perfect stand-in orders them as FPD does; the size of its values need not be the same. The order is compared
within a test set, because between sets the distances differ by more than the faults do. Ensembles that
neither distance can tell from solutions, those near the first row, are ordered by chance; with few samples
these are many.
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


def calibrate(model: sapc.Model, pair: Sequence[Distance], options: argparse.Namespace) -> Row:
    """Compute FPD and FRD of every ensemble on every test set, and their agreement, as JSON can hold it."""
    sets = {split: compare(model, pair, split, options) for split in options.set}
    run = {"task": model.run.task, "method": model.run.method, "seed": model.run.seed, "trained": model.step}
    names = ("method", "samples", "reference", "steps", "seed")
    settings = {name: getattr(options, name) for name in names} | {"device": str(model.device)}
    return {
        "format": FORMAT,
        "run": run,
        "settings": settings | {f"{d.name}_weights": d.describe() for d in pair},
        "environment": environment(),
        "sets": sets,
        "mean": {
            name: fmean(s["agreement"][name] for s in sets.values()) for name in ("kendall", "spearman")
        },
    }


def compare(model: sapc.Model, pair: Sequence[Distance], split: str, options: argparse.Namespace) -> Row:
    """Compute both distances of every ensemble, and the agreement of the two orders."""
    truth, draw = (
        solutions(model, split, size=size, seed=seed, progress=lambda done, total: None)
        for size, seed in ((options.reference, 0), (options.samples, 1))
    )
    rows: dict[str, dict[str, float]] = {}
    for name, fields in ensembles(model, truth[:1], draw, options):
        announce(f"{split}, {name}")
        use_cache = (fields is draw, True)
        rows[name] = {
            d.name: fmean(d.per_encoder(fields, truth, lambda done, total: None, use_cache=use_cache))
            for d in pair
        }
    order = fpd.agreement(*([row[d.name] for row in rows.values()] for d in pair))
    return {"ensembles": rows, "agreement": order}


def ensembles(
    model: sapc.Model, condition: Tensor, draw: Tensor, options: argparse.Namespace
) -> Iterator[tuple[str, Tensor]]:
    """Yield every ensemble with its name."""
    noise = torch.randn(draw.shape, generator=torch.Generator().manual_seed(options.seed)).to(draw)
    mean, spread = draw.mean(0), draw.std(0).mean()
    yield "solutions", draw
    for a in NOISE:
        yield f"noise {a:g}", draw + a * spread * noise
    for c in SPREAD:
        yield f"spread {c:g}", mean + c * (draw - mean)
    for b in SHIFT:
        yield f"shift {b:g}", draw + b * spread
    for k in (*(k for k in STEPS if k < options.steps), options.steps):
        fields = model.sample(
            options.samples,
            condition=condition,
            steps=k,
            sampler="euler",
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
    sampler = model.sampling_method(options.method)
    options.method, options.set = sampler.name, options.set or list(TEST_SETS)
    options.steps = options.steps or sampler.steps
    result = calibrate(model, fpd.distances(options.poseidon, True, model.device), options)
    for name, scores in result["sets"].items():
        rows = [{"ensemble": ensemble, **row} for ensemble, row in scores["ensembles"].items()]
        show(f"{name}: {scores['agreement']}", sorted(rows, key=lambda row: row["fpd"]))
    print(f"agreement of FRD with FPD in the order: {result['mean']}")
    if options.json:
        write_json(Path(options.json), result)


if __name__ == "__main__":
    main()
