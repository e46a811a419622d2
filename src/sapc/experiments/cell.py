"""One cell of a study: a method on a task from a seed, as a training and the way its samples are scored.

Several cells may share a training: ECI, PCFM, D-Flow, S1 and S3 sample with FFM's weights, in FFM's run folder. A cell is done when its
scores are there: these settings, these metrics, of these very weights (their SHA-256 stands in the scores).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from .._files import sha256
from ..errors import SapcError, whole
from ..evaluation import metrics
from ..evaluation.evaluate import TEST_SETS, Progress, evaluate, solutions
from ..evaluation.frechet.distance import Distance
from ..evaluation.moments import Kept
from ..evaluation.scores import write_scores
from ..evaluation.trajectory import Watch
from ..methods import get_method, method_names
from ..models.model import Model
from ..tasks import get_task, task_names
from ..training import presets
from ..training.config import Run
from ..training.run_folder import Folder
from .results.reading import read_scores

DFLOW_SAMPLES = 64
LABEL = re.compile(r"[A-Za-z0-9._+-]{0,64}")  # it is part of file names
Scores = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """What is trained, who samples, and how that is scored.

    run             the training of the weights
    method          who samples with them
    sets            test sets
    samples         fields per set, as many as published unless given: 1225, in three dimensions 100
    reference       solutions to compare with
    sampling_steps  of the sampler, the method's own number unless given
    floor_repeats   pairs of draws for the sampling floor
    watch           samples of the first set whose way is watched, for the trajectory analysis; not of methods with joint batches
    frd             also FRD, by random features
    label           tells runs apart that differ in nothing else of the name
    run_folder      name of the run folder; made of task, method, label and seed unless given
    """

    run: Run
    method: str
    sets: tuple[str, ...] = TEST_SETS
    samples: int | None = None
    reference: int = 1225
    sampling_steps: int | None = None
    floor_repeats: int = 3
    watch: int = 0
    frd: bool = False
    label: str = ""
    run_folder: str = ""

    def __post_init__(self) -> None:
        for name in (self.label, self.run_folder):
            if not isinstance(name, str) or not LABEL.fullmatch(name) or name in (".", ".."):
                raise SapcError(
                    f"a label is part of file names: at most 64 letters, digits and . _ + -, got {name!r:.80}"
                )
        if get_method(self.method).weights != self.run.method:
            raise SapcError(
                f"{self.method} samples with the weights of {get_method(self.method).weights}, not of {self.run.method}"
            )
        data = self.run.description
        # What cannot be drawn again is evaluated on what was held out, without a floor.
        if not data.can_draw:
            most = data.sizes["validation"]
            few = {"sets": ("validation",), "reference": min(self.reference, most), "floor_repeats": 0}
            for name, value in {**few, "samples": min(self.samples or 100, most)}.items():
                object.__setattr__(self, name, value)

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

    @property
    def count(self) -> int:
        """Fields per test set."""
        return (1225 if len(self.run.grid) == 2 else 100) if self.samples is None else self.samples

    @property
    def steps(self) -> int:
        """Of the sampler."""
        return get_method(self.method).steps if self.sampling_steps is None else self.sampling_steps

    @property
    def watched(self) -> int:
        """How many samples are watched."""
        return 0 if get_method(self.method).joint else min(self.watch, self.count)

    def check(self) -> None:
        """Refuse before the work what would fail after it."""
        whole(self.count, "number of samples", 2)
        whole(self.reference, "reference size", 2)
        whole(self.floor_repeats, "number of floor repeats", 0)
        whole(self.watch, "number of samples to watch", 0)
        whole(self.steps, "number of sampling steps", 1)
        if self.run.description.can_draw:
            check_sets(self.sets)
        self.run.network_shapes()
        task = self.run.make_task()
        task.check("train", self.run.train, self.run.seed)
        task.check("validation", self.run.validation, self.run.seed)
        for split in self.sets:
            task.check(split, max(self.reference, self.count))

    # -- scores --

    def scored(self, folder: Folder, distances: Sequence[Distance] = ()) -> Scores | None:
        """The scores that are there already."""
        wanted = {"steps": self.steps, "seed": self.run.seed}
        if not folder.trained or not self._is_in(folder):
            return None
        for scores in there(folder, self.method):
            fine = self.fits(scores, distances, wanted) and self._is_watched(scores)
            if fine and scores.get("weights") == _digest(folder.weights):
                return scores
        return None

    def _is_in(self, folder: Folder) -> bool:
        """Whether a folder is that of this very run."""
        try:
            folder.check(self.run)
        except SapcError:
            return False
        return True

    def fits(self, scores: Scores, distances: Sequence[Distance], more: Mapping[str, Any]) -> bool:
        """Whether scores are of these sets and numbers of fields, hold every metric of today, and have some more settings."""
        settings, found = scores["settings"], set(scores["mean"]["metrics"])
        wanted = {"samples": self.count, "reference": self.reference, "floor_repeats": self.floor_repeats}
        same = all(settings.get(name) == value for name, value in (wanted | dict(more)).items())
        same &= all(d.made(settings) for d in distances)
        names = {*metrics.DISTRIBUTION, *(d.name for d in distances)}
        return same and set(scores["sets"]) == set(self.sets) and found >= names

    def _is_watched(self, scores: Scores) -> bool:
        seen = scores["sets"][self.sets[0]].get("trajectory") if self.watched else None
        return not self.watched or (isinstance(seen, dict) and seen.get("samples", 0) >= self.watched)

    def evaluate(
        self,
        model: Model,
        folder: Folder,
        others: Iterable[Scores] = (),
        distances: Sequence[Distance] = (),
        progress: Progress | None = None,
    ) -> Scores:
        """Sample, score and write it. If `others` hold the sampling floor, which depends on solutions alone, it is taken from there."""
        floor = next((s for s in others if s["mean"]["floor"] and self._same_solutions(s, distances)), None)
        kept = Kept()
        scores = evaluate(
            model, self.sets, self.count, self.reference, self.steps, self.run.seed,
            0 if floor else self.floor_repeats, method=self.method, distances=distances, progress=progress, keep=kept,
        )  # fmt: skip
        if floor:
            take_floor(scores, floor)
        if self.watched:
            self._watch(model, scores)
        write_scores(folder.path, scores, kept)
        return {**scores, "weights": sha256(folder.weights)}

    def _same_solutions(self, scores: Scores, distances: Sequence[Distance]) -> bool:
        run = scores["run"]
        mine = {"task": self.run.task, "grid": list(self.run.grid), "options": _plain(self.run.options)}
        return all(_plain(run[name]) == value for name, value in mine.items()) and self.fits(
            scores, distances, {}
        )

    def _watch(self, model: Model, scores: Scores) -> None:
        """Sample a few fields again with someone looking on, so that the time of the others stays that of sampling."""
        split, watch = self.sets[0], Watch()
        condition = solutions(model, split, self.reference, 0)[:1]
        model.sample(self.watched, condition, self.steps, self.run.seed, method=self.method, watch=watch)
        scores["sets"][split]["trajectory"] = watch.result().to_dict()

    # -- files --

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it, names first."""
        settings = ("samples", "reference", "sampling_steps", "floor_repeats", "watch", "frd", "label")
        return {
            "name": self.name,
            "task": self.run.task,
            "method": self.method,
            "seed": self.run.seed,
            "folder": self.folder,
            "sets": list(self.sets),
            **{name: getattr(self, name) for name in settings},
            "run": self.run.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cell:
        """Back from `to_dict`."""
        settings = ("samples", "reference", "sampling_steps", "floor_repeats", "watch", "frd", "label")
        try:
            chosen = {name: data[name] for name in settings}
            cell = cls(Run.from_dict(data["run"]), data["method"], tuple(data["sets"]), **chosen)
            return cell if data["folder"] == cell.folder else replace(cell, run_folder=data["folder"])
        except (KeyError, TypeError) as error:
            raise SapcError(f"a study's list of cells cannot be read: {error!r}") from error


def cells(
    tasks: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    preset: str = "paper",
    *,
    sets: Sequence[str] = TEST_SETS,
    samples: int | None = None,
    dflow_samples: int | None = DFLOW_SAMPLES,
    reference: int = 1225,
    sampling_steps: int | None = None,
    floor_repeats: int = 3,
    watch: int = 0,
    frd: bool = False,
    label: str = "",
    **changes: Any,
) -> list[Cell]:
    """Cells for every seed, task and method, in this order; of tasks and methods all of the paper's unless given.

    `dflow_samples` bounds the samples of methods whose batch is one problem; `changes` are settings in which the runs differ from the
    preset's.
    """
    for what, given in (("tasks", tasks), ("methods", methods), ("sets", sets), ("seeds", seeds)):
        if isinstance(given, str | int):
            raise SapcError(f"give {what} as a list, as [{given!r}], got {given!r}")
    found = []
    for seed in seeds:
        for task in tasks or task_names():
            get_task(task)
            for method in map(get_method, methods or method_names(own=False)):
                run = presets.preset(preset, task, method.weights, seed=seed, **changes)
                few = dflow_samples if method.joint else None
                usual = Cell(run, method.name, samples=samples).count
                found.append(
                    Cell(
                        run, method.name, tuple(sets), samples if few is None else min(few, usual), reference, sampling_steps,
                        floor_repeats, watch, frd, label,
                    )
                )  # fmt: skip
    return found


def check_sets(sets: Sequence[str]) -> None:
    """Refuse what are no test sets."""
    if not sets:
        raise SapcError(f"give at least one test set of {', '.join(TEST_SETS)}")
    if wrong := [split for split in sets if split not in TEST_SETS]:
        raise SapcError(f"unknown test set {wrong[0]!r}; choose from {', '.join(TEST_SETS)}")


def there(folder: Folder, method: str) -> Iterator[Scores]:
    """Readable scores of a method, in the files that `write_scores` chooses from."""
    own = scores_file(folder, method)
    for path in (own, own.with_name(f"{own.stem}-part.json")):
        try:
            scores = read_scores(path)
        except SapcError:  # damaged: as if it were not there
            continue
        mean = scores.get("mean")
        if isinstance(mean, dict) and all(isinstance(mean.get(part), dict) for part in ("metrics", "floor")):
            yield scores


def scores_file(folder: Folder, method: str) -> Path:
    """Where a method's scores are, if they are whole."""
    own = get_method(method).trains
    return folder.scores if own else folder.scores.with_name(f"scores-{method}.json")


def take_floor(scores: Scores, other: Scores) -> None:
    """Put the floor that other scores hold into these: it is the same."""
    for name, own in scores["sets"].items():
        own.pop("floor_left_out", None)
        own |= {k: v for k, v in other["sets"][name].items() if k == "floor_left_out"}
        own["floor"] = {k: v for k, v in other["sets"][name]["floor"].items() if k in own["metrics"]}
    floor = other["mean"]["floor"]
    scores["mean"]["floor"] = {k: v for k, v in floor.items() if k in scores["mean"]["metrics"]}
    scores["settings"]["floor_repeats"] = other["settings"]["floor_repeats"]


def _digest(path: Path) -> str:
    """Of weights, computed once for all the cells that sample with them."""
    about = os.stat(path)
    return _digest_of(path, about.st_ino, about.st_size, about.st_mtime_ns)


@cache
def _digest_of(path: Path, *version: int) -> str:
    return sha256(path)


def _plain(value: Any) -> Any:
    """Tuples as JSON has them."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
