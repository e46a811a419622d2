"""Evaluate a model: generate every test set, score it, time it.

A test set is one condition with many solutions. As many fields are generated on its manifold and compared
with the solutions. Beside every distribution metric stands its sampling floor, the same metric between two
independent
draws of the solutions: no sampler can be expected to fall below it. Generated fields stay in float64, so the
constraint errors of an exact method show rounding and nothing else.

Data of your own have no test sets: there each sample of the validation split gives one condition, and the
ensemble of the fields generated for them is compared with the split as a whole. There is no floor, since
there are no further draws. How well samples foretell each condition is their skill (`held_out`), which is
measured for data of your own, and for other tasks if `conditions` are asked for.

The result is a `sapc.models.scores.Scores`, whose file is plain JSON.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from .._old_names import rename_arguments
from ..errors import SapcError, explain_misuse
from ..methods import Method
from ..models.model import DEFAULT_SAMPLER, Model, load
from ..models.sampling import worst_residuals as worst_residuals
from ..models.scores import RunDescription, Scores, ScoreSettings, SetScores
from ..tasks import TEST_SETS as TEST_SETS
from ..tasks import Task
from ..training.run_folder import environment
from . import metrics
from .config import EvaluationConfig
from .frechet import distance as frechet
from .frechet.distance import Distance
from .held_out import is_costly as is_costly
from .held_out import measure_skill
from .moments import EnsembleStatistics
from .scores import write_scores as write_scores
from .trajectory import TrajectoryRecorder

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, parts done, parts in all."""


@rename_arguments(keep="statistics")
@explain_misuse
def evaluate(
    model: Model | str | os.PathLike[str],
    config: EvaluationConfig | Sequence[str] | None = None,
    *values: Any,
    device: str = "auto",
    distances: Sequence[Distance] = (),
    progress: Progress | None = None,
    on_fields: Callable[[str, Tensor], None] | None = None,
    statistics: EnsembleStatistics | None = None,
    **settings: Any,
) -> Scores:
    """Score a model on test sets.

    Args:
        model: A model, its run folder, or the name of a shipped model.
        config: Settings of the evaluation. A list of test sets stands for a config with these.
        values: Settings by position, after the sets: samples, reference, steps, seed, floor_repeats.
        device: Device of a model that is loaded here.
        distances: Further metrics, FPD and FRD, as `sapc.evaluation.frechet.distance.distances` makes them.
        progress: Called with the name of a stage, parts done, parts in all.
        on_fields: Called with the name of every set and the fields generated for it.
        statistics: Takes up mean, deviation and one field of samples and solutions, for pictures.
        settings: Settings by name, instead of those in `config`: the fields of `EvaluationConfig`.

    Returns:
        The scores: `scores.mean.metrics["w2"]` is an average over test sets, `scores.sets["test0"]` has the
            metrics, sampling floor, residuals and cost of one set, `scores.skill` the skill per condition if
            conditions are asked for or the data are your own. They are also the dictionary that
            `write_scores` writes. Settings that are not possible, unknown test sets, and samples that are not
            finite are a `SapcError`.
    """
    model = model if isinstance(model, Model) else load(model, device)
    config = EvaluationConfig.from_settings(config, *values, **settings)
    config.check()
    method, task = model.sampling_method(config.method), model.task
    if config.sampler is None and method.accepts_sampler and _is_quick(model):
        config = replace(config, sampler=DEFAULT_SAMPLER)
    config = config.resolve(method, len(task.grid.shape), None if task.can_draw else task.sizes["validation"])
    # Refuses what the method does not accept.
    model.discretize(method, config.sampler, config.steps)
    distances = tuple(distances) or frechet.distances(None, config.frd, model.device)
    ignore: Progress = lambda stage, done, total: None
    evaluation = _Evaluation(model, method, config, distances, progress or ignore, on_fields, statistics)
    return evaluation.score()


@dataclass(frozen=True)
class _Evaluation:
    """One evaluation: a model, its settings, and who takes up the results of every test set."""

    model: Model
    method: Method
    config: EvaluationConfig
    distances: tuple[Distance, ...]
    progress: Progress
    on_fields: Callable[[str, Tensor], None] | None
    statistics: EnsembleStatistics | None

    @property
    def task(self) -> Task:
        """Task of the model."""
        return self.model.task

    @property
    def samples(self) -> int:
        """Fields per test set."""
        return self.config.samples or 0

    @property
    def steps(self) -> int:
        """Sampling steps."""
        return self.config.steps or 0

    @property
    def evaluations(self) -> int:
        """Network evaluations per field."""
        sampler, steps = self.model.discretize(self.method, self.config.sampler, self.steps)
        return self.method.evaluations(steps, sampler)

    @property
    def batch(self) -> int:
        """Fields at a time."""
        return self.model.batch_size(self.samples, self.task, self.config.batch, self.method)

    def score(self) -> Scores:
        """Score all test sets."""
        names = self.config.sets or ()
        self.config.check_sets(self.task.test_sets)
        for split in names:
            self.task.check(split, max(self.config.reference, self.samples))
        self.model.compile_for(len(names) * math.ceil(self.samples / self.batch) * self.evaluations)
        sets = {split: self._score_set(split) for split in names}
        if self.config.trajectory_samples:
            sets[names[0]] = replace(sets[names[0]], trajectory=self._trajectory(names[0]))
        skill = measure_skill(self.model, self.config, self.progress) if self.config.conditions else None
        return Scores.from_sets(
            _describe(self.model),
            self._settings(),
            environment(self.model.run),
            sets,
            skill,
        )

    def _settings(self) -> ScoreSettings:
        """Return the settings that the scores record."""
        return ScoreSettings(
            method=self.method.name,
            samples=self.samples,
            reference=self.config.reference,
            steps=self.steps,
            sampler=self.config.sampler,
            seed=self.config.seed,
            floor_repeats=self.config.floor_repeats,
            batch=self.batch,
            device=str(self.model.device),
            more={"bounds": list(self.model.clip_range(self.method) or ()) or None}
            | {f"{d.name}_weights": d.describe() for d in self.distances},
        )

    def _score_set(self, split: str) -> SetScores:
        """Generate the fields of a test set and score them."""
        truth = self._solve(split, self.config.reference, seed=0, stage=f"{split}: solving")
        condition = truth[: self.task.condition_count(split)][: self.samples]
        recorder = TrajectoryRecorder() if self.config.trajectory else None
        generated, seconds, memory = self._generate(split, condition, recorder)
        if self.on_fields is not None:
            self.on_fields(split, generated)
        if self.statistics is not None:
            self.statistics.add(split, generated, truth)
        self.progress(f"{split}: scoring", 0, 1)
        generated, H = generated.to(self.model.device), self.model.manifold(condition)
        values = {name: metric(generated, truth) for name, metric in metrics.DISTRIBUTION.items()}
        by_encoder = {
            d.name: d.per_encoder(generated, truth, self._feature_progress(split, d)) for d in self.distances
        }
        values |= {name: fmean(numbers) for name, numbers in by_encoder.items()}
        values |= {"ce_local": metrics.ce_local(H, generated), "ce_global": metrics.ce_global(H, generated)}
        self.progress(f"{split}: scoring", 1, 1)
        floor, reason = self._floor(split)
        return SetScores(
            metrics=_check_finite(values, split),
            floor=floor,
            floor_left_out=reason or None,
            worst_residual=worst_residuals(H, generated),
            evaluations=self.evaluations,
            seconds_per_sample=seconds,
            peak_memory=memory,
            more={f"{name}_each": numbers for name, numbers in by_encoder.items() if len(numbers) > 1},
            trajectory=recorder.result().to_dict() if recorder else None,
        )

    def _trajectory(self, split: str) -> dict[str, Any]:
        """Sample a few fields again and record their way: the time of the others stays that of sampling."""
        condition = solutions(self.model, split, size=self.config.reference, seed=0)[:1]
        recorder = TrajectoryRecorder()
        self.model.sample(
            self.config.trajectory_samples,
            condition,
            steps=self.steps,
            seed=self.config.seed,
            sampler=self.config.sampler,
            method=self.method.name,
            callback=recorder,
        )
        return recorder.result().to_dict()

    def _feature_progress(self, stage: str, distance: Distance) -> Callable[[int, int], None]:
        return lambda done, total: self.progress(f"{stage}: features for {distance.name}", done, total)

    def _solve(self, split: str, size: int, *, seed: int, stage: str) -> Tensor:
        report = lambda done, total: self.progress(stage, done, total)
        return solutions(self.model, split, size=size, seed=seed, progress=report)

    def _generate(
        self, split: str, condition: Tensor, recorder: TrajectoryRecorder | None
    ) -> tuple[Tensor, float, int]:
        """Return the fields, the seconds per sample and the peak memory."""
        model, cuda, batch = self.model, self.model.device.type == "cuda", self.batch
        sample = partial(
            model.sample,
            condition=condition,
            seed=self.config.seed,
            sampler=self.config.sampler,
            method=self.method.name,
        )
        if cuda:
            self._warm_up(sample, condition, batch)
            torch.cuda.reset_peak_memory_stats(model.device)
        report = lambda done, total: self.progress(f"{split}: sampling", done, total)
        start = time.perf_counter()
        fields = sample(self.samples, steps=self.steps, batch=batch, progress=report, callback=recorder)
        # The fields have arrived on the CPU: nothing is under way.
        seconds = time.perf_counter() - start - (recorder.seconds if recorder else 0.0)
        # The encoders of distances are in memory too, but have no part in sampling.
        encoders = sum(d.bytes for d in self.distances)
        peak = torch.cuda.max_memory_allocated(model.device) - encoders if cuda else _peak_memory()
        return fields, seconds / self.samples, peak

    def _warm_up(self, sample: Callable[..., Tensor], condition: Tensor, batch: int) -> None:
        """Sample once before the time is taken: kernels are loaded and the network compiled only once."""
        sample(batch, condition=condition[:1], steps=1, batch=batch)
        last_batch = self.samples % batch
        # The last batch of a method that couples its samples has a size of its own.
        if self.method.couples_batch and last_batch:
            sample(last_batch, condition=condition[:1], steps=1, batch=batch)

    def _floor(self, split: str) -> tuple[dict[str, list[float]], str]:
        """Return metrics between independent solutions, one value per repeat, or why there are none."""
        reference, repeats = self.config.reference, self.config.floor_repeats
        if not repeats:
            return {}, "not asked for"
        if not self.task.can_draw:
            return {}, "data of your own have no further draws"
        if is_costly(self.task, self.model.device, self.samples + reference):
            return {}, "solving further draws would take minutes on a CPU; evaluate on a GPU"
        names = (*metrics.DISTRIBUTION, *(d.name for d in self.distances))
        floors: dict[str, list[float]] = {name: [] for name in names}
        for k in range(repeats):
            stage = f"{split}: sampling floor {k + 1}/{repeats}"
            # Seed 0 is the reference itself.
            draw = lambda seed, size, k=k, stage=stage: self._solve(
                split, size, seed=1 + 2 * k + seed, stage=stage
            ).to(self.model.device)
            scores = metrics.DISTRIBUTION | {
                d.name: partial(d.between_solutions, progress=self._feature_progress(stage, d))
                for d in self.distances
            }
            floor = metrics.sampling_floor(draw, self.samples, reference, scores)
            for name, value in floor.items():
                floors[name].append(value)
        return floors, ""


def _is_quick(model: Model) -> bool:
    """Tell whether scores are of a user's own problem or for a CPU, and stand beside none of the paper's."""
    return not model.task.can_draw or model.run.preset in ("small", "tiny")


def _describe(model: Model) -> RunDescription:
    run = model.run
    return RunDescription(
        task=run.task,
        options=dict(run.options),
        grid=list(run.grid),
        method=run.method,
        preset=run.preset,
        seed=run.seed,
        steps=run.steps,
        trained=model.step,
        parameters=model.parameters,
        symmetries=list(run.symmetries) or None,
    )


def solutions(
    model: Model, split: str, *, size: int, seed: int, progress: Callable[[int, int], None] | None = None
) -> Tensor:
    """Solve a test set, on the model's device where that pays.

    Args:
        model: The model.
        split: Name of the test set.
        size: Number of solutions.
        seed: Seed of the draw.
        progress: Called with solutions done, solutions in all.

    Returns:
        Solutions `(size, *grid)`.
    """
    device = model.device if model.task.integrates else "cpu"
    return model.task.dataset(split, size=size, seed=seed, device=device, progress=progress).fields


def _check_finite(values: dict[str, float], split: str) -> dict[str, float]:
    for name, value in values.items():
        if not math.isfinite(value):
            raise SapcError(
                f"{name} of {split} is {value}: the samples are too large to be scored; train longer"
            )
    return values


def _peak_memory() -> int:
    """Return the largest memory of this process so far, in bytes; 0 where the system does not say."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
