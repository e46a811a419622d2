"""Can FRD stand in for FPD? Both on the same ensembles of known and of realistic faults, and how alike they order them.

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

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from .._files import read_json, write_json
from ..errors import SapcError, whole
from ..evaluation.evaluate import TEST_SETS, Progress, solutions
from ..evaluation.frechet import distance as fpd
from ..evaluation.frechet.distance import Distance
from ..models.model import Model
from ..training.run_folder import environment

FORMAT = "sapc-calibration-1"
NOISE, SPREAD, SHIFT = (0.1, 0.3, 1.0), (0.5, 0.8, 1.25), (0.1, 0.3, 1.0)
STEPS = (1, 2, 5, 10, 25)


def calibrate(
    model: Model,
    both: Sequence[Distance],
    splits: Sequence[str] = TEST_SETS,
    samples: int = 1225,
    reference: int = 1225,
    steps: int | None = None,
    seed: int = 0,
    *,
    method: str | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """FPD and FRD of every ensemble on every test set, and their agreement, as JSON can hold it; `both` are the two, in this order."""
    if [d.name for d in both] != ["fpd", "frd"]:
        raise SapcError(f"calibrate FRD against FPD, got {' and '.join(d.name for d in both)}")
    for split in splits:
        if split not in TEST_SETS:
            raise SapcError(f"unknown test set {split!r}; choose from {', '.join(TEST_SETS)}")
    sampler = model.sampler(method)
    work = _Work(
        model, sampler.name, whole(samples, "number of samples", 2), whole(reference, "reference size", 2),
        whole(sampler.steps if steps is None else steps, "number of sampling steps", 1), whole(seed, "seed", 0), batch,
        progress or (lambda what, done, total: None),
    )  # fmt: skip
    sets = {split: work.compare(split, both) for split in splits}
    mean = {name: fmean([s["agreement"][name] for s in sets.values()]) for name in ("kendall", "spearman")}
    return {
        "format": FORMAT,
        "run": {
            "task": model.run.task,
            "method": model.run.method,
            "seed": model.run.seed,
            "trained": model.step,
        },
        "settings": work.settings() | {f"{d.name}_weights": d.about() for d in both},
        "environment": environment(),
        "sets": sets,
        "mean": mean,
    }


def write_calibration(folder: str | os.PathLike[str], found: dict[str, Any]) -> Path:
    """Write a calibration into its run folder, as `calibration.json`, with the sampler's name if that is another; return the path.

    One of more samples or other sets is not replaced: this one goes beside it, into `calibration-part.json`.
    """
    own = found["settings"]["method"] == found["run"]["method"]
    path = Path(folder) / ("calibration.json" if own else f"calibration-{found['settings']['method']}.json")
    try:
        there = read_json(path) if path.exists() else None
        fuller = there is not None and (
            not set(there["sets"]) <= set(found["sets"])
            or there["settings"]["samples"] > found["settings"]["samples"]
        )
    except (SapcError, KeyError, TypeError):  # not a calibration: nothing is lost
        fuller = False
    path = path.with_name(f"{path.stem}-part.json") if fuller else path
    write_json(path, found)
    return path


@dataclass(frozen=True)
class _Work:
    """What is done with every test set."""

    model: Model
    method: str
    samples: int
    reference: int
    steps: int
    seed: int
    batch: int | None
    progress: Progress

    def settings(self) -> dict[str, Any]:
        names = ("method", "samples", "reference", "steps", "seed")
        return {name: getattr(self, name) for name in names} | {"device": str(self.model.device)}

    def compare(self, split: str, both: Sequence[Distance]) -> dict[str, Any]:
        """Both distances of every ensemble, and how alike they order them."""
        truth, other = (
            solutions(self.model, split, size, seed, lambda i, n: self.progress(f"{split}: solving", i, n))
            for size, seed in ((self.reference, 0), (self.samples, 1))
        )
        rows: dict[str, dict[str, float]] = {}
        for name, fields in self._ensembles(truth[:1], other):
            rows[name] = {
                d.name: self._score(d, fields, truth, f"{split}, {name}", fields is other) for d in both
            }
        order = fpd.agreement(*([row[d.name] for row in rows.values()] for d in both))
        return {"ensembles": rows, "agreement": order}

    def _score(self, distance: Distance, fields: Tensor, truth: Tensor, label: str, keep: bool) -> float:
        show = lambda done, total: self.progress(f"{label}: {distance.name}", done, total)
        return fmean(distance.each(fields, truth, show, keep=(keep, True)))

    def _ensembles(self, condition: Tensor, other: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Every ensemble with its name."""
        noise = torch.randn(other.shape, generator=torch.Generator().manual_seed(self.seed)).to(other)
        mean, spread = other.mean(0), other.std(0).mean()
        yield "solutions", other
        for a in NOISE:
            yield f"noise {a:g}", other + a * spread * noise
        for c in SPREAD:
            yield f"spread {c:g}", mean + c * (other - mean)
        for b in SHIFT:
            yield f"shift {b:g}", other + b * spread
        for k in (*(k for k in STEPS if k < self.steps), self.steps):
            fields = self.model.sample(
                self.samples,
                condition=condition,
                steps=k,
                seed=self.seed,
                method=self.method,
                batch=self.batch,
            )
            yield f"{k} steps", fields
