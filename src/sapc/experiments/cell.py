"""One cell of a study: a method on a task from a seed, as a training and the way its samples are scored.

Several cells may share a training: ECI, PCFM, D-Flow, S1 and S3 sample with FFM's weights, in FFM's run folder. A cell is done when its
scores are there: these settings, these metrics, of these very weights (their SHA-256 stands in the scores).
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
from .._old_names import rename_method
from ..errors import SapcError
from ..evaluation import metrics
from ..evaluation.config import OWN_DATA_SETS, EvaluationConfig
from ..evaluation.evaluate import Progress, evaluate
from ..evaluation.frechet.distance import Distance
from ..evaluation.moments import EnsembleStatistics
from ..evaluation.scores import write_scores
from ..methods import get_method, method_names
from ..models.model import Model
from ..models.scores import Scores, part_path, scores_path
from ..tasks import TEST_SETS, get_task, task_names
from ..training import config
from ..training.config import TrainingConfig
from ..training.run_folder import RunFolder

DFLOW_SAMPLES = 64
LABEL = re.compile(r"[A-Za-z0-9._+-]{0,64}")  # it is part of file names
SETTINGS = {
    "samples": "samples",
    "reference": "reference",
    "sampling_steps": "steps",
    "floor_repeats": "floor_repeats",
    "watch": "trajectory_samples",
    "frd": "frd",
}
"""Settings of an evaluation that a study may choose: their names in its file, and in `EvaluationConfig`."""


@dataclass(frozen=True, init=False)
class Cell:
    """What is trained, who samples, and how that is scored.

    Args:
        run: the training of the weights.
        method: who samples with them.
        evaluation: how that is scored; its seed is that of the run. A list of test sets stands for a config with these.
        label: tells runs apart that differ in nothing else of the name.
        run_folder: name of the run folder; made of task, method, label and seed unless given.
        settings: settings of `evaluation` by name.
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
        chosen = EvaluationConfig.from_settings(evaluation, **settings, seed=run.seed, method=method)
        chosen = replace(chosen, sets=chosen.sets or TEST_SETS)
        if not run.description.can_draw:
            # What cannot be drawn again is evaluated on what was held out, without a floor.
            most = run.description.sizes["validation"]
            chosen = replace(
                chosen,
                sets=OWN_DATA_SETS,
                samples=min(chosen.samples or 100, most),
                reference=min(chosen.reference, most),
                floor_repeats=0,
            )
        for one, value in zip(fields(self), (run, method, chosen, label, run_folder), strict=True):
            object.__setattr__(self, one.name, value)
        for name in (label, run_folder):
            if not isinstance(name, str) or not LABEL.fullmatch(name) or name in (".", ".."):
                raise SapcError(
                    f"a label is part of file names: at most 64 letters, digits and . _ + -, got {name!r:.80}"
                )
        if get_method(method).weights != run.method:
            raise SapcError(
                f"{method} samples with the weights of {get_method(method).weights}, not of {run.method}"
            )

    # -- names --

    @cached_property
    def name(self) -> str:
        """Name of this cell, unique within its study."""
        return self._named(self.method)

    @cached_property
    def folder(self) -> str:
        """Name of the run folder, which it may share with other cells."""
        return self.run_folder or self._named(self.run.method)

    def _named(self, method: str) -> str:
        return "-".join(
            (self.run.task, method, *([self.label] if self.label else ()), f"seed{self.run.seed}")
        )

    # -- numbers --

    @cached_property
    def settings(self) -> EvaluationConfig:
        """How it is scored, with every number filled in."""
        return self.evaluation.resolve(get_method(self.method), len(self.run.grid))

    @property
    def sets(self) -> Sequence[str]:
        """Test sets."""
        return self.evaluation.sets or ()

    def check(self) -> None:
        """Refuse before the work what would fail after it."""
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
        """Return the scores that are there already."""
        if not folder.is_trained or not self._is_in(folder):
            return None
        for scores in iter_scores(folder, self.method):
            is_wanted = self.fits(scores, distances, ("steps", "seed")) and self._is_watched(scores)
            if is_wanted and scores.weights == _digest(folder.weights):
                return scores
        return None

    scored = rename_method("Cell.scored", "Cell.find_scores")

    def _is_in(self, folder: RunFolder) -> bool:
        """Whether a folder is that of this very run."""
        try:
            folder.check(self.run)
        except SapcError:
            return False
        return True

    def fits(self, scores: Scores, distances: Sequence[Distance], more: Sequence[str] = ()) -> bool:
        """Return whether scores are of these sets, numbers of fields and further settings, and hold every metric of today."""
        wanted, names = self.settings, ("samples", "reference", "floor_repeats", *more)
        is_same = all(getattr(scores.settings, name) == getattr(wanted, name) for name in names)
        is_same &= all(d.matches(scores.settings.more) for d in distances)
        values = {*metrics.DISTRIBUTION, *(d.name for d in distances)}
        return is_same and set(scores.sets) == set(self.sets) and scores.mean.metrics.keys() >= values

    def _is_watched(self, scores: Scores) -> bool:
        wanted = self.settings.trajectory_samples
        seen = scores.sets[self.sets[0]].trajectory or {}
        return not wanted or seen.get("samples", 0) >= wanted

    def evaluate(
        self,
        model: Model,
        folder: RunFolder,
        others: Iterable[Scores] = (),
        distances: Sequence[Distance] = (),
        progress: Progress | None = None,
    ) -> Scores:
        """Sample, score and write it. If `others` hold the sampling floor, which depends on solutions alone, it is taken from there."""
        floor = next((s for s in others if s.mean.floor and self._has_same_solutions(s, distances)), None)
        chosen = self.evaluation if floor is None else replace(self.evaluation, floor_repeats=0)
        statistics = EnsembleStatistics()
        scores = evaluate(model, chosen, distances=distances, progress=progress, statistics=statistics)
        if floor is not None:
            scores = scores.with_floor_of(floor)
        write_scores(folder.path, scores, statistics)
        return replace(scores, weights=sha256(folder.weights))

    def _has_same_solutions(self, scores: Scores, distances: Sequence[Distance]) -> bool:
        run, own = scores.run, self.run
        options = json.loads(json.dumps(dict(own.options)))
        is_same = (run.task, run.grid, run.options) == (own.task, list(own.grid), options)
        return is_same and self.fits(scores, distances)

    # -- files --

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it, names first."""
        return {
            "name": self.name,
            "task": self.run.task,
            "method": self.method,
            "seed": self.run.seed,
            "folder": self.folder,
            "sets": list(self.sets),
            **{name: getattr(self.evaluation, own) for name, own in SETTINGS.items()},
            "label": self.label,
            "run": self.run.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cell:
        """Back from `to_dict`."""
        try:
            chosen = {own: data[name] for name, own in SETTINGS.items()}
            cell = cls(
                TrainingConfig.from_dict(data["run"]), data["method"], data["sets"], data["label"], **chosen
            )
            return cell if data["folder"] == cell.folder else replace(cell, run_folder=data["folder"])
        except (KeyError, TypeError) as error:
            raise SapcError(f"a study's list of cells cannot be read: {error!r}") from error


def cells(
    tasks: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    preset: str = "published",
    evaluation: EvaluationConfig | None = None,
    *,
    coupled_samples: int | None = DFLOW_SAMPLES,
    label: str = "",
    **changes: Any,
) -> list[Cell]:
    """Cells for every seed, task and method, in this order.

    Args:
        tasks: all of the paper's unless given.
        methods: all of the paper's unless given.
        seeds: of the trainings.
        preset: of the trainings.
        evaluation: how they are scored.
        coupled_samples: bounds the samples of methods whose batch is one problem.
        label: see `Cell`.
        changes: settings of `evaluation` by name (sets, samples, reference, sampling_steps, floor_repeats, watch, frd), and settings in
            which the runs differ from the preset's.
    """
    sets = changes.get("sets", ())
    for what, given in (("tasks", tasks), ("methods", methods), ("sets", sets), ("seeds", seeds)):
        if isinstance(given, str | int):
            raise SapcError(f"give {what} as a list, as [{given!r}], got {given!r}")
    chosen = EvaluationConfig.from_settings(
        evaluation, **{name: changes.pop(name) for name in ("sets", *SETTINGS) if name in changes}
    )
    found = []
    for seed in seeds:
        for task in tasks or task_names():
            get_task(task)
            for method in map(get_method, methods or method_names(user_defined=False)):
                run = config.training_config(task, method.weights, preset, seed=seed, **changes)
                cell = Cell(run, method.name, chosen, label)
                if method.couples_batch and coupled_samples is not None:
                    few = min(coupled_samples, cell.settings.samples or coupled_samples)
                    cell = Cell(run, method.name, chosen, label, samples=few)
                found.append(cell)
    return found


def iter_scores(folder: RunFolder, method: str) -> Iterator[Scores]:
    """Yield the readable scores of a method, from the files that `write_scores` chooses from."""
    own = scores_file(folder, method)
    for path in (own, part_path(own)):
        try:
            yield Scores.read(path)
        except SapcError:  # damaged: as if it were not there
            continue


def scores_file(folder: RunFolder, method: str) -> Path:
    """Return where a method's scores are, if they are whole."""
    return scores_path(folder.path, method, get_method(method).weights)


def _digest(path: Path) -> str:
    """Of weights, computed once for all the cells that sample with them."""
    about = os.stat(path)
    return _digest_of(path, about.st_ino, about.st_size, about.st_mtime_ns)


@cache
def _digest_of(path: Path, *version: int) -> str:
    return sha256(path)
