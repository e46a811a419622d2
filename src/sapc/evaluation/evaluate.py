"""Evaluation: generate every test set, score it, time it.

A test set is one condition with many solutions. As many fields are generated on its manifold and compared with the solutions; beside every
distribution metric stands its sampling floor, the same metric between two independent draws of the solutions, below which nothing can be
expected. What is generated stays in float64, so the constraint errors show rounding and nothing else where a method is exact.

Data of one's own have no test sets: there each sample of the validation split gives one condition, and the ensemble of the fields generated
for them is compared with the split as a whole. No floor can be told, since there are no further draws.

The result is plain JSON:

    run        task, method, seed and steps of the training        settings   how it was evaluated
    sets       per test set: metrics, floor (one value per repeat), worst residual, evaluations, seconds per sample, peak memory;
               on request what happened along the sampling runs (`sapc.trajectory`)
               with `frd` its value by each encoder (`frd_each`)
    mean       the same, averaged over the sets (the worst of residuals and memory)
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ..constraints import Manifold
from ..errors import SapcError, explain_misuse, whole
from ..methods import Method
from ..models.model import Model, load
from ..models.score_record import FORMAT
from ..tasks import TEST_SETS as TEST_SETS
from ..tasks import Task
from ..training.run_folder import environment
from . import metrics
from .frechet.distance import Distance
from .moments import Kept
from .scores import mean_of_sets
from .scores import write_scores as write_scores
from .trajectory import Watch

CHUNK = 2**22  # grid points whose residuals are looked at together
COSTLY = 2**25  # grid points per draw from which solving in three dimensions takes minutes on a CPU

Progress = Callable[[str, int, int], None]
"""Called with what is being done, (parts done, parts in all)."""


@explain_misuse
def evaluate(
    model: Model | str | os.PathLike[str],
    splits: Sequence[str] | None = None,
    samples: int | None = None,
    reference: int = 1225,
    steps: int | None = None,
    seed: int = 0,
    floor_repeats: int = 3,
    *,
    method: str | None = None,
    device: str = "auto",
    batch: int | None = None,
    trajectory: bool = False,
    distances: Sequence[Distance] = (),
    progress: Progress | None = None,
    on_fields: Callable[[str, Tensor], None] | None = None,
    keep: Kept | None = None,
) -> dict[str, Any]:
    """Score a model, or the one in a run folder, on test sets.

    samples        fields generated per set, as many as published unless given: 1225, in three dimensions 100
    reference      solutions to compare with
    steps          of the sampler, the method's own number unless given
    floor_repeats  pairs of independent draws for the sampling floor; 0 for none
    method         another method that samples with these weights
    trajectory     also watch the sampling runs; the samples are the same, see `sapc.trajectory` for what it measures and holds in memory
    distances      further metrics: `fpd`, `frd`, as `sapc.fpd.distances` makes them
    on_fields      called with every set's name and the fields generated for it
    keep           gets what pictures need: moments of samples and solutions
    """
    model = model if isinstance(model, Model) else load(model, device)
    task = model.task
    splits = task.test_sets if splits is None else splits
    reference = task.clip_size(task.test_sets[0], reference)
    samples = task.default_samples if samples is None else samples
    ignore = lambda what, done, total: None
    sampler, report = model.sampler(method), progress or ignore
    steps = sampler.steps if steps is None else steps
    wanted = _Wanted(
        model, sampler, samples, reference, steps, seed, floor_repeats, batch, trajectory, tuple(distances), report,
        on_fields, keep,
    )  # fmt: skip
    wanted.check(splits)
    names = list(dict.fromkeys(splits))
    size = model.batch_size(samples, model.task, batch, sampler)
    model.compile_for(len(names) * math.ceil(samples / size) * sampler.evaluations(steps))
    sets = {split: wanted.score(split) for split in names}
    return {
        "format": FORMAT,
        "run": _about_run(model),
        "settings": wanted.settings(),
        "environment": environment(),
        "sets": sets,
        "mean": mean_of_sets(list(sets.values())),
    }


def _about_run(model: Model) -> dict[str, Any]:
    run = model.run
    return {
        "task": run.task,
        "options": dict(run.options),
        "grid": list(run.grid),
        "method": run.method,
        "preset": run.preset,
        "seed": run.seed,
        "steps": run.steps,
        "trained": model.step,
        "parameters": model.parameters,
    }


@dataclass(frozen=True)
class _Wanted:
    """One evaluation: the settings, and what is done with every test set."""

    model: Model
    method: Method
    samples: int
    reference: int
    steps: int
    seed: int
    repeats: int
    batch: int | None
    trajectory: bool
    distances: tuple[Distance, ...]
    progress: Progress
    on_fields: Callable[[str, Tensor], None] | None
    keep: Kept | None

    @property
    def task(self) -> Task:
        """Whose test sets they are."""
        return self.model.task

    def settings(self) -> dict[str, Any]:
        """As the result holds them."""
        return {
            "method": self.method.name,
            "samples": self.samples,
            "reference": self.reference,
            "steps": self.steps,
            "seed": self.seed,
            "floor_repeats": self.repeats,
            "batch": self.model.batch_size(self.samples, self.task, self.batch, self.method),
            "device": str(self.model.device),
            "bounds": list(self.model.bounds(self.method) or ()) or None,
            **{f"{d.name}_weights": d.about() for d in self.distances},
        }

    def check(self, splits: Sequence[str]) -> None:
        """Refuse before the work what cannot be done."""
        whole(self.samples, "number of samples", 2)
        whole(self.reference, "reference size", 2)
        whole(self.steps, "number of sampling steps", 1)
        whole(self.seed, "seed", 0)
        whole(self.repeats, "number of floor repeats", 0)
        if isinstance(splits, str) or not splits:
            raise SapcError(f"give test sets as a list, as ['test0'], got {splits!r}")
        known = self.task.test_sets
        for split in splits:
            if split not in known:
                raise SapcError(f"unknown test set {split!r}; choose from {', '.join(known)}")
            self.task.check(split, max(self.reference, self.samples))

    def score(self, split: str) -> dict[str, Any]:
        """All about one test set."""
        truth = self._solutions(split, self.reference, 0, f"{split}: solving")
        condition = truth[: self.task.condition_count(split)][: self.samples]
        watch = Watch() if self.trajectory else None
        generated, cost = self._generate(split, condition, watch)
        if self.on_fields is not None:
            self.on_fields(split, generated)
        if self.keep is not None:
            self.keep.add(split, generated, truth)
        self.progress(f"{split}: scoring", 0, 1)
        generated, H = generated.to(self.model.device), self.model.manifold(condition)
        values = {name: metric(generated, truth) for name, metric in metrics.DISTRIBUTION.items()}
        by_encoder = {d.name: d.each(generated, truth, self._looking(split, d)) for d in self.distances}
        values |= {name: fmean(each) for name, each in by_encoder.items()}
        values |= {"ce_local": metrics.ce_local(H, generated), "ce_global": metrics.ce_global(H, generated)}
        self.progress(f"{split}: scoring", 1, 1)
        floor, why = self._floor(split)
        return {
            "metrics": _finite(values, split),
            "floor": floor,
            **({"floor_left_out": why} if why else {}),
            "worst_residual": worst_residuals(H, generated),
            "evaluations": self.method.evaluations(self.steps),
            **cost,
            **{f"{name}_each": each for name, each in by_encoder.items() if len(each) > 1},
            **({"trajectory": watch.result().to_dict()} if watch else {}),
        }

    def _looking(self, label: str, distance: Distance) -> Callable[[int, int], None]:
        return lambda done, total: self.progress(f"{label}: features for {distance.name}", done, total)

    def _solutions(self, split: str, size: int, seed: int, label: str) -> Tensor:
        return solutions(self.model, split, size, seed, lambda done, total: self.progress(label, done, total))

    def _generate(
        self, split: str, condition: Tensor, watch: Watch | None
    ) -> tuple[Tensor, dict[str, float]]:
        """The fields, and what they cost."""
        model, cuda = self.model, self.model.device.type == "cuda"
        sample = partial(model.sample, condition=condition, seed=self.seed, method=self.method.name)
        size = model.batch_size(self.samples, self.task, self.batch, self.method)
        if cuda:  # what happens once only is not part of the time: kernels are loaded, the network compiled
            partial(sample, condition=condition[:1])(size, steps=1, batch=size)
            if self.method.joint and (rest := self.samples % size):  # a last batch of its own size
                partial(sample, condition=condition[:1])(rest, steps=1, batch=size)
            torch.cuda.reset_peak_memory_stats(model.device)
        report = lambda done, total: self.progress(f"{split}: sampling", done, total)
        start = time.perf_counter()
        fields = sample(self.samples, steps=self.steps, batch=size, progress=report, watch=watch)
        seconds = time.perf_counter() - start  # the fields have arrived on the CPU: nothing is under way
        seconds -= watch.seconds if watch else 0.0
        # The encoders of distances are there too, but have no part in sampling.
        others = sum(d.bytes for d in self.distances)
        peak = torch.cuda.max_memory_allocated(model.device) - others if cuda else _peak_memory()
        return fields, {"seconds_per_sample": seconds / self.samples, "peak_memory": peak}

    def _floor(self, split: str) -> tuple[dict[str, list[float]], str]:
        """Every distribution metric between independent solutions, one value per repeat, or why there is none."""
        if not self.repeats:
            return {}, "not asked for"
        if not self.task.can_draw:
            return {}, "data of your own have no further draws"
        if is_costly(self.task, self.model.device, self.samples + self.reference):
            return {}, "solving further draws would take minutes on a CPU; evaluate on a GPU"
        names = (*metrics.DISTRIBUTION, *(d.name for d in self.distances))
        found: dict[str, list[float]] = {name: [] for name in names}
        for k in range(self.repeats):
            label = f"{split}: sampling floor {k + 1}/{self.repeats}"
            # Seed 0 is the reference itself.
            draw = lambda seed, size, k=k, label=label: self._solutions(
                split, size, 1 + 2 * k + seed, label
            ).to(self.model.device)
            scores = metrics.DISTRIBUTION | {
                d.name: partial(d.between_solutions, progress=self._looking(label, d)) for d in self.distances
            }
            floor = metrics.sampling_floor(draw, self.samples, self.reference, scores)
            for name, value in floor.items():
                found[name].append(value)
        return found, ""


def solutions(
    model: Model, split: str, size: int, seed: int, progress: Callable[[int, int], None] | None = None
) -> Tensor:
    """Solutions of a test set, solved on the model's device where that pays."""
    device = model.device if model.task.integrates else "cpu"
    return model.task.dataset(split, size=size, seed=seed, device=device, progress=progress).fields


def is_costly(task: Task, device: torch.device, solutions: int) -> bool:
    """Whether solving takes minutes."""
    points = solutions * math.prod(task.grid.shape)
    return task.integrates and len(task.grid.shape) == 3 and device.type == "cpu" and points > COSTLY


def worst_residuals(H: Manifold, fields: Tensor) -> dict[str, float]:
    """The largest deviation from a pinned value and from the balance law, over all samples."""
    size = max(1, CHUNK // fields[0].numel())
    worst = {"local": 0.0, "balance": 0.0}
    for first in range(0, len(fields), size):
        part = fields[first : first + size].to(H.fields.device)
        own = H if len(H) == 1 else H[first : first + size]
        for name, rows in (("local", own.local(part)), ("balance", own.balance(part))):
            worst[name] = max(worst[name], float(rows.abs().max()) if rows.numel() else 0.0)
    return worst


def _finite(values: dict[str, float], split: str) -> dict[str, float]:
    for name, value in values.items():
        if not math.isfinite(value):
            raise SapcError(
                f"{name} of {split} is {value}: the samples are too large to be scored; train longer"
            )
    return values


def _peak_memory() -> int:
    """The most memory this process has held, in bytes; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
