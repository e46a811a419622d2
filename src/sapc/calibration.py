"""Can FRD stand in for FPD? Both on the same ensembles of known and of realistic faults, and how alike they order them.

Per test set the ensembles are

    solutions            an independent draw, the best there can be
    noise a              solutions plus white noise of standard deviation a times the solutions' own spread
    spread c             solutions drawn together towards their mean, or apart, by the factor c
    shift b              solutions all moved by b times their spread
    k steps              what the model gives in that many sampling steps, down from its own number

A perfect stand-in orders them as FPD does; the size of its values need not be the same. The order is compared within a test set, because
between sets the distances differ by more than the faults do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from . import fpd
from .errors import SapcError
from .fpd import Distance
from .model import Model

FORMAT = "sapc-calibration-1"
NOISE, SPREAD, SHIFT = (0.1, 0.3, 1.0), (0.5, 0.8, 1.25), (0.1, 0.3, 1.0)
STEPS = (1, 2, 5, 10, 25)

Progress = Callable[[str, int, int], None]


def calibrate(
    model: Model,
    both: Sequence[Distance],
    splits: Sequence[str],
    samples: int,
    reference: int = 1225,
    steps: int | None = None,
    seed: int = 0,
    *,
    method: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Both distances of every ensemble on every test set, and their agreement; `both` are FPD and FRD."""
    if [d.name for d in both] != ["fpd", "frd"]:
        raise SapcError(f"calibrate FRD against FPD, got {' and '.join(d.name for d in both)}")
    report = progress or (lambda what, done, total: None)
    sets: dict[str, dict[str, Any]] = {}
    for split in splits:
        truth, other = (
            model.task.dataset(split, size=size, seed=k, device=model.device).fields.to(model.device)
            for k, size in enumerate((reference, samples))
        )
        rows = {
            name: {d.name: _score(d, fields, truth, f"{split}, {name}", report) for d in both}
            for name, fields in _ensembles(model, other, truth[:1], steps, seed, method)
        }
        order = fpd.agreement(*([row[d.name] for row in rows.values()] for d in both))
        sets[split] = {"ensembles": rows, "agreement": order}
    names = ("kendall", "spearman")
    mean = {name: fpd.mean([s["agreement"][name] for s in sets.values()]) for name in names}
    settings = {
        "samples": samples,
        "reference": reference,
        "seed": seed,
        "method": method or model.run.method,
    }
    weights = {f"{d.name}_weights": d.about() for d in both}
    return {"format": FORMAT, "settings": settings | weights, "sets": sets, "mean": mean}


def _score(distance: Distance, fields: Tensor, truth: Tensor, label: str, report: Progress) -> float:
    show = lambda done, total: report(f"{label}: {distance.name}", done, total)
    return fpd.mean(distance.each(fields, truth, show))


def _ensembles(
    model: Model, other: Tensor, condition: Tensor, steps: int | None, seed: int, method: str | None
) -> Iterator[tuple[str, Tensor]]:
    """Every ensemble with its name."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(other.shape, generator=generator).to(other)
    mean, spread = other.mean(0), other.std(0).mean()
    yield "solutions", other
    for a in NOISE:
        yield f"noise {a:g}", other + a * spread * noise
    for c in SPREAD:
        yield f"spread {c:g}", mean + c * (other - mean)
    for b in SHIFT:
        yield f"shift {b:g}", other + b * spread
    full = model.sampler(method).steps if steps is None else steps
    for k in (*(k for k in STEPS if k < full), full):
        fields = model.sample(len(other), condition=condition, steps=k, seed=seed, method=method)
        yield f"{k} steps", fields.to(model.device)
