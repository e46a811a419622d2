"""One cell of a study: a training, a method that samples with its weights, and how the samples are scored.

Several cells may share a training: ECI, PCFM, D-Flow, S1 and S3 sample with FFM's weights, in FFM's run
folder. A cell is done when its scores exist: with these settings and metrics, of these very weights (the
scores hold their SHA-256).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from .._files import sha256
from .._old_names import deprecate, rename_arguments, rename_method
from ..errors import SapcError
from ..evaluation import metrics
from ..evaluation.config import OWN_DATA_SETS, EvaluationConfig
from ..evaluation.evaluate import Progress, evaluate
from ..evaluation.frechet.distance import Distance
from ..evaluation.moments import EnsembleStatistics
from ..evaluation.scores import write_scores
from ..flow import EULER
from ..methods import get_method, method_names
from ..models.model import Model
from ..models.scores import Scores, part_path, scores_path
from ..tasks import TEST_SETS, get_task, task_names
from ..training import config
from ..training.config import TrainingConfig
from ..training.run_folder import RunFolder

COUPLED_SAMPLES = 64
# A label is part of file names.
LABEL = re.compile(r"[A-Za-z0-9._+-]{0,64}")
SETTINGS = {
    "samples": "samples",
    "reference": "reference",
    "sampling_steps": "steps",
    "floor_repeats": "floor_repeats",
    "watch": "trajectory_samples",
    "frd": "frd",
}
"""Settings of an evaluation by their names in a study and its file: those in `EvaluationConfig`."""
SKILL = ("conditions", "members")
"""Settings of skill per condition, which a study's file names only where they are given."""


@dataclass(frozen=True, init=False)
class Cell:
    """A training, a method that samples with its weights, and how the samples are scored.

    Args:
        run: The training.
        method: Name of the method that samples.
        evaluation: How the samples are scored, or a list of test sets; its seed is that of the training.
        label: Distinguishes runs that have task, method and seed in common.
        run_folder: Name of the run folder; made of task, method, label and seed unless given.
        settings: Settings of `evaluation` by name.

    Raises:
        SapcError: A name is not safe in file names, or the method samples with other weights.
    """

    run: TrainingConfig
    method: str
    evaluation: EvaluationConfig
    label: str
    run_folder: str

    def __init__(
        self,
        run: TrainingConfig,
        method: str,
        evaluation: EvaluationConfig | Sequence[str] | None = None,
        label: str = "",
        run_folder: str = "",
        **settings: Any,
    ) -> None:
        config = EvaluationConfig.from_settings(evaluation, **settings, seed=run.seed, method=method)
        # Beside the paper's scores stand those of its sampler.
        sampler = config.sampler if get_method(method).accepts_sampler else None
        config = replace(config, sets=config.sets or TEST_SETS, sampler=sampler or EULER.name)
        if not run.description.can_draw:
            # A user's data cannot be drawn again: they are scored on the validation split, without a floor.
            limit = run.description.sizes["validation"]
            samples, reference = min(config.samples or 100, limit), min(config.reference, limit)
            config = replace(
                config, sets=OWN_DATA_SETS, samples=samples, reference=reference, floor_repeats=0
            )
        for field, value in zip(fields(self), (run, method, config, label, run_folder), strict=True):
            object.__setattr__(self, field.name, value)
        for name in (label, run_folder):
            if not isinstance(name, str) or not LABEL.fullmatch(name) or name in (".", ".."):
                rule = "a label is part of file names: at most 64 letters, digits and . _ + -"
                raise SapcError(f"{rule}, got {name!r:.80}")
        if (weights := get_method(method).weights) != run.method:
            raise SapcError(f"{method} samples with the weights of {weights}, not of {run.method}")

    # -- names --

    @cached_property
    def name(self) -> str:
        """Name of this cell, unique within its study."""
        return self._make_name(self.method)

    @cached_property
    def folder(self) -> str:
        """Name of the run folder, which it may share with other cells."""
        return self.run_folder or self._make_name(self.run.method)

    def _make_name(self, method: str) -> str:
        return "-".join(
            (self.run.task, method, *([self.label] if self.label else ()), f"seed{self.run.seed}")
        )

    # -- numbers --

    @cached_property
    def settings(self) -> EvaluationConfig:
        """The evaluation, with every number filled in."""
        return self.evaluation.resolve(get_method(self.method), len(self.run.grid))

    @property
    def sets(self) -> Sequence[str]:
        """Test sets."""
        return self.evaluation.sets or ()

    def check(self) -> None:
        """Check, before the work, all that can be checked."""
        self.evaluation.check()
        settings = self.settings
        settings.check()
        settings.check_sets(TEST_SETS if self.run.description.can_draw else OWN_DATA_SETS)
        self.run.network_shapes()
        task = self.run.make_task()
        task.check("train", self.run.train, self.run.seed)
        task.check("validation", self.run.validation, self.run.seed)
        for split in self.sets:
            task.check(split, max(settings.reference, settings.samples or 0))

    # -- scores --

    def find_scores(self, folder: RunFolder, distances: Sequence[Distance] = ()) -> Scores | None:
        """Find the scores of this cell.

        Args:
            folder: The run folder.
            distances: Metrics beyond the usual ones that the scores must hold.

        Returns:
            The scores, or None if there are none of these weights, settings and metrics.
        """
        if not folder.is_trained or not self._is_run_of(folder):
            return None
        for scores in iter_scores(folder, self.method):
            is_fine = self.can_use(
                scores, distances, ("steps", "sampler_name", "seed")
            ) and self._has_trajectory(scores)
            if is_fine and self._has_skill(scores) and scores.weights == _digest(folder.weights):
                return scores
        return None

    scored = rename_method("Cell.scored", "Cell.find_scores")

    def _is_run_of(self, folder: RunFolder) -> bool:
        """Return whether a folder is that of this very run."""
        try:
            folder.check(self.run)
        except SapcError:
            return False
        return True

    def can_use(self, scores: Scores, distances: Sequence[Distance], names: Sequence[str] = ()) -> bool:
        """Return whether scores have the sets, numbers, settings `names` and all metrics of this cell."""
        settings = self.settings
        names = ("samples", "reference", "floor_repeats", *names)
        is_same = all(getattr(scores.settings, name) == getattr(settings, name) for name in names)
        is_same &= all(d.matches(scores.settings.more) for d in distances)
        required = {*metrics.DISTRIBUTION, *(d.name for d in distances)}
        return is_same and set(scores.sets) == set(self.sets) and scores.mean.metrics.keys() >= required

    def _has_skill(self, scores: Scores) -> bool:
        """Return whether scores have the skill that is asked for, of so many conditions and members."""
        names = [name for name in SKILL if getattr(self.evaluation, name) is not None]
        validation_size = self.run.description.sizes.get("validation")
        settings = self.evaluation.resolve(get_method(self.method), len(self.run.grid), validation_size)
        if not names or not settings.conditions:
            return True
        return all(getattr(scores.skill, name, None) == getattr(settings, name) for name in names)

    def _has_trajectory(self, scores: Scores) -> bool:
        number = self.settings.trajectory_samples
        trajectory = scores.sets[self.sets[0]].trajectory or {}
        return not number or trajectory.get("samples", 0) >= number

    def evaluate(
        self,
        model: Model,
        folder: RunFolder,
        others: Iterable[Scores] = (),
        distances: Sequence[Distance] = (),
        progress: Progress | None = None,
    ) -> Scores:
        """Sample, score and write the scores.

        Args:
            model: The model with the weights.
            folder: The run folder.
            others: Scores of the same task. If they hold the sampling floor, which depends on solutions
                alone, it is not computed again.
            distances: Metrics beyond the usual ones.
            progress: Called with (stage, done, total).

        Returns:
            The scores.
        """
        floor = next((s for s in others if s.mean.floor and self._has_same_solutions(s, distances)), None)
        config = self.evaluation if floor is None else replace(self.evaluation, floor_repeats=0)
        statistics = EnsembleStatistics()
        scores = evaluate(model, config, distances=distances, progress=progress, statistics=statistics)
        if floor is not None:
            scores = scores.with_floor_of(floor)
        write_scores(folder.path, scores, statistics)
        return replace(scores, weights=sha256(folder.weights))

    def _has_same_solutions(self, scores: Scores, distances: Sequence[Distance]) -> bool:
        theirs, ours = scores.run, self.run
        options = json.loads(json.dumps(dict(ours.options)))
        is_same = (theirs.task, theirs.grid, theirs.options) == (ours.task, list(ours.grid), options)
        return is_same and self.can_use(scores, distances)

    # -- files --

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of a study's file, names first."""
        return {
            "name": self.name,
            "task": self.run.task,
            "method": self.method,
            "seed": self.run.seed,
            "folder": self.folder,
            "sets": list(self.sets),
            **{name: getattr(self.evaluation, field) for name, field in SETTINGS.items()},
            **({} if self.evaluation.sampler == EULER.name else {"sampler": self.evaluation.sampler}),
            **{name: value for name in SKILL if (value := getattr(self.evaluation, name)) is not None},
            "label": self.label,
            "run": self.run.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cell:
        """Return the cell of an entry that `to_dict` made.

        Args:
            data: The entry.

        Returns:
            The cell.

        Raises:
            SapcError: Something is missing.
        """
        try:
            settings = {field: data[name] for name, field in SETTINGS.items()}
            settings |= {name: data.get(name) for name in ("sampler", *SKILL)}
            cell = cls(
                TrainingConfig.from_dict(data["run"]), data["method"], data["sets"], data["label"], **settings
            )
            return cell if data["folder"] == cell.folder else replace(cell, run_folder=data["folder"])
        except (KeyError, TypeError) as error:
            raise SapcError(f"a study's list of cells cannot be read: {error!r}") from error


def old_setting(owner: str, old: str, name: str) -> Any:
    """Return a property for a setting that version 0.1.0 had as a field of its own."""
    return property(
        deprecate(lambda self: getattr(self.evaluation, name), f"{owner}.{old}", f"{owner}.evaluation.{name}")
    )


for _old, _name in SETTINGS.items():
    setattr(Cell, _old, old_setting("Cell", _old, _name))


@rename_arguments(dflow_samples="coupled_samples")
def cells(
    tasks: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    preset: str = "published",
    evaluation: EvaluationConfig | None = None,
    *,
    coupled_samples: int | None = COUPLED_SAMPLES,
    label: str = "",
    **changes: Any,
) -> list[Cell]:
    """Make a cell for every seed, task and method, in this order.

    Args:
        tasks: Names of tasks; all of the paper's unless given.
        methods: Names of methods; all of the paper's unless given.
        seeds: Seeds of the trainings.
        preset: Preset of the trainings.
        evaluation: How the samples are scored.
        coupled_samples: Largest number of samples of methods whose batch is one problem.
        label: Distinguishes runs that have task, method and seed in common.
        changes: Settings of `evaluation` (sets, samples, reference, sampling_steps, floor_repeats, watch,
            frd, conditions, members), and settings in which the trainings differ from the preset's.

    Returns:
        The cells.

    Raises:
        SapcError: A list is a single value, or a setting is not known.
    """
    sets = changes.get("sets", ())
    for name, values in (("tasks", tasks), ("methods", methods), ("sets", sets), ("seeds", seeds)):
        if isinstance(values, str | int):
            raise SapcError(f"give {name} as a list, as [{values!r}], got {values!r}")
    evaluation = EvaluationConfig.from_settings(
        evaluation, **{name: changes.pop(name) for name in ("sets", *SETTINGS, *SKILL) if name in changes}
    )
    table = []
    for seed in seeds:
        for task in tasks or task_names():
            get_task(task)
            for method in map(get_method, methods or method_names(user_defined=False, extensions=False)):
                run = config.training_config(task, method.weights, preset, seed=seed, **changes)
                cell = Cell(run, method.name, evaluation, label)
                if method.couples_batch and coupled_samples is not None:
                    number = min(coupled_samples, cell.settings.samples or coupled_samples)
                    cell = Cell(run, method.name, evaluation, label, samples=number)
                table.append(cell)
    return table


def iter_scores(folder: RunFolder, method: str) -> Iterator[Scores]:
    """Yield the readable scores of a method, from the files that `write_scores` chooses from."""
    file = scores_file(folder, method)
    for path in (file, part_path(file)):
        try:
            yield Scores.read(path)
        except SapcError:
            # Damaged files do not count.
            continue


def scores_file(folder: RunFolder, method: str) -> Path:
    """Return the file of a method's complete scores."""
    return scores_path(folder.path, method, get_method(method).weights)


def _digest(path: Path) -> str:
    """Return the SHA-256 of weights, computed once for all the cells that sample with them."""
    status = os.stat(path)
    return _digest_of(path, status.st_ino, status.st_size, status.st_mtime_ns)


@cache
def _digest_of(path: Path, *version: int) -> str:
    return sha256(path)
