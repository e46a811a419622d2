"""What is compared and how: the work, and its result as JSON can hold it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..._files import replacing, write_json
from ...errors import SapcError, whole
from ...evaluation import metrics
from ...evaluation.evaluate import Progress
from ...evaluation.frechet import distance as fpd
from ...evaluation.frechet.distance import Distance
from ...methods import get_method, method_names
from ...models.model import Model, load
from ...tasks import get_task
from ...training import loop as training
from ...training.config import Run, preset
from ...training.distributed import find_device
from ...training.run_folder import Folder, load_tensors
from ...training.step import Solving
from ..cell import Cell, Scores, check_sets, there
from .kept import check_writable, floors_of, only, only_metrics
from .tables import markdown

FORMAT = "sapc-comparison-1"
JOINT = 32  # samples, unless told, of a method whose batch is one problem: the published batch

ERRORS = ("ce_local", "ce_global")


@dataclass(frozen=True)
class Comparison:
    """What is compared, how and where.

    methods         their names, all of the paper's and the user's own unless given
    samples         fields per test set and method, unless given 256 with two axes and 32 with three
    dflow_samples   the same of methods whose samples depend on each other, at most 32 unless given
    steps           of the samplers, each method's own number unless given
    seed            of data, weights and noise
    poseidon        where the weights of Poseidon-B are, for FPD; without them there is none
    frd             also FRD, by random features
    """

    task: str = "heat"
    methods: Sequence[str] = ()
    preset: str = "small"
    out: str | os.PathLike[str] = Path("runs/compare")
    sets: Sequence[str] = ("test1",)
    samples: int | None = None
    dflow_samples: int | None = None
    reference: int = 1225
    steps: int | None = None
    seed: int = 0
    floor_repeats: int = 3
    device: str = "auto"
    poseidon: str | os.PathLike[str] | None = None
    frd: bool = False
    _held: dict[str, Model] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def distances(self) -> tuple[Distance, ...]:
        """The metrics beyond the usual ones."""
        return fpd.distances(self.poseidon, self.frd, find_device(self.device))

    # -- what and where --

    @property
    def names(self) -> list[str]:
        """The methods, in the order of the tables."""
        return list(dict.fromkeys(self.methods)) or method_names()

    @property
    def trainings(self) -> list[str]:
        """The methods whose weights are needed."""
        return list(dict.fromkeys(get_method(name).weights for name in self.names))

    def users(self, weights: str) -> list[str]:
        """The methods that sample with these weights."""
        return [name for name in self.names if get_method(name).weights == weights]

    def run(self, method: str) -> Run:
        """The training of the weights that a method samples with."""
        return preset(self.preset, self.task, get_method(method).weights, seed=self.seed)

    def folder(self, method: str) -> Folder:
        """Where that is."""
        return Folder(Path(self.out) / f"{self.task}-{get_method(method).weights}")

    def count(self, method: str) -> int:
        """Fields to sample per test set."""
        usual = self.samples
        if usual is None:
            usual = 256 if len(get_task(self.task).grid.shape) == 2 else 32
        if not get_method(method).joint:
            return usual
        return min(usual, JOINT) if self.dflow_samples is None else self.dflow_samples

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is compared of the distributions."""
        return (*metrics.DISTRIBUTION, *(d.name for d in self.distances))

    @property
    def files(self) -> tuple[Path, Path]:
        """Where the result goes: JSON and Markdown."""
        stem = Path(self.out) / f"{self.task}-comparison"
        return stem.with_suffix(".json"), stem.with_suffix(".md")

    # -- the work --

    def check(self) -> None:
        """Refuse before the work what would fail after it; nothing is created."""
        find_device(self.device)
        for what, given in (("methods", self.methods), ("test sets", self.sets)):
            if isinstance(given, str):
                raise SapcError(f"give {what} as a list, as [{given!r}], got {given!r}")
        self._check_numbers()
        _ = self.distances  # weights that cannot be used are refused now
        check_sets(self.sets)
        most = max(self.reference, *(self.count(name) for name in self.names))
        check_writable(Path(self.out))
        for name in self.trainings:
            self._check_training(name, most)
        for path in self.files:
            if path.is_dir():
                raise SapcError(f"{path} is a folder, but the result goes there; choose another --out")

    def _check_training(self, method: str, most: int) -> None:
        run, folder = self.run(method), self.folder(method)
        run.network_shapes()
        task = run.make_task()
        task.check("train", run.train, run.seed)
        task.check("validation", run.validation, run.seed)
        for split in self.sets:
            task.check(split, most)
        if folder.path.exists() and not folder.path.is_dir():
            raise SapcError(f"{folder.path} is not a folder, but a run goes there; choose another --out")
        folder.check(run)

    def _check_numbers(self) -> None:
        for name in self.names:
            get_method(name)
        for value, what in ((self.samples, "samples"), (self.dflow_samples, "samples of D-Flow")):
            if value is not None:
                whole(value, f"number of {what}", 2)
        whole(self.reference, "reference size", 2)
        whole(self.floor_repeats, "number of floor repeats", 0)
        whole(self.seed, "seed", 0)
        if self.steps is not None:
            whole(self.steps, "number of sampling steps", 1)

    def train(
        self, method: str, progress: training.Progress | None = None, solving: Solving | None = None
    ) -> None:
        """Train the weights that a method samples with, from the start or from where it was left."""
        training.train(
            self.run(method), self.folder(method).path, device=self.device, progress=progress, solving=solving
        )

    def cell(self, method: str) -> Cell:
        """A method as a cell of a study: its training and how it is scored."""
        return Cell(
            self.run(method), method, tuple(self.sets), self.count(method), self.reference, self.steps,
            self.floor_repeats,
        )  # fmt: skip

    def evaluate(self, method: str, progress: Progress | None = None) -> Scores:
        """Sample and score a method, unless that is done, and write its scores."""
        if kept := self.scored(method):
            return kept
        others = (scores for name in self.names for scores in there(self.folder(name), name))
        return self.cell(method).evaluate(
            self._model(method), self.folder(method), others, self.distances, _labelled(progress, method)
        )

    def compare(
        self,
        train: Callable[[str], object] | None = None,
        evaluate: Callable[[str], object] | None = None,
    ) -> dict[str, Any]:
        """All of it; the result, as JSON can hold it. A caller may put functions around `self.train` and `self.evaluate` in their place."""
        self.check()
        failed: dict[str, str] = {}
        for weights in self.trainings:
            _attempt(train or self.train, weights, self.users(weights), failed)
        try:
            for name in (n for weights in self.trainings for n in self.users(weights) if n not in failed):
                _attempt(evaluate or self.evaluate, name, [name], failed)
        finally:
            self._held.clear()
        if len(failed) == len(self.names):
            raise SapcError(next(iter(failed.values())))
        result = self.result(failed)
        self.write(result)
        return result

    def write(self, result: dict[str, Any]) -> None:
        """Write the result as JSON and as Markdown."""
        as_json, as_markdown = self.files
        write_json(as_json, result)
        with replacing(as_markdown) as partial:
            partial.write_text(markdown(result))

    def _model(self, method: str) -> Model:
        """The model of a method's weights; the last one is held, and compiled once, since the next method may use it too."""
        weights = get_method(method).weights
        if weights not in self._held:
            self._held.clear()
            self._held[weights] = load(self.folder(method).path, self.device)
        return self._held[weights]

    # -- what is scored --

    def scored(self, method: str) -> Scores | None:
        """The scores of a method that are there already: these settings, these weights."""
        return self.cell(method).scored(self.folder(method), self.distances)

    # -- the result --

    def result(self, failed: Mapping[str, str] | None = None) -> dict[str, Any]:
        """What is scored, as JSON can hold it; of methods that have `failed`, why."""
        found = {name: scores for name in self.names if (scores := self.scored(name))}
        if not found:
            raise SapcError(f"nothing is scored in {self.out} with these settings; call compare()")
        run = self.run(self.names[0])
        errors = [found["ffm"]["mean"]["metrics"][k] for k in ERRORS] if "ffm" in found else []
        methods = {name: self._about(name, scores, errors) for name, scores in found.items()}
        return {
            "format": FORMAT,
            "task": self.task,
            "title": run.make_task().title,
            "preset": self.preset,
            "grid": list(run.grid),
            "training_steps": run.steps,
            "sets": list(dict.fromkeys(self.sets)),
            "samples": max(about["samples"] for about in methods.values()),
            "reference": self.reference,
            "steps": self.steps,
            "seed": self.seed,
            "floor_repeats": self.floor_repeats,
            "metrics": list(self.metrics),
            **{f"{d.name}_weights": d.about() for d in self.distances},
            "floors": floors_of(found, self.metrics),
            "methods": methods,
            "failed": dict(failed or {}),
            "files": [str(path) for path in self.files],
        }

    def _about(self, method: str, scores: Scores, ffm: list[float]) -> dict[str, Any]:
        mean, folder, record = scores["mean"], self.folder(method), get_method(method)
        errors = [mean["metrics"][name] for name in ERRORS]
        names = (*self.metrics, *ERRORS)  # scores may hold more, by other weights for instance
        return {
            "title": record.title,
            "weights": record.weights,
            "folder": str(folder.path),
            "samples": scores["settings"]["samples"],
            "steps": scores["settings"]["steps"],
            "metrics": only(mean["metrics"], names),
            "ce": metrics.ce(*errors, *ffm) if ffm and min(ffm) > 0 else None,
            "worst_residual": mean["worst_residual"],
            "evaluations": mean["evaluations"],
            "seconds_per_sample": mean["seconds_per_sample"],
            "peak_memory": mean["peak_memory"],
            "training_seconds": load_tensors(folder.weights)[1]["seconds"] if record.trains else None,
            "sets": {name: only_metrics(scores["sets"][name], names) for name in dict.fromkeys(self.sets)},
            "device": scores["settings"]["device"],
            "environment": scores["environment"],
        }


def _attempt(work: Callable[[str], object], name: str, users: list[str], failed: dict[str, str]) -> None:
    """Do it, or note for the methods that need it why it could not be done."""
    try:
        work(name)
    except SapcError as error:
        failed |= dict.fromkeys(users, str(error))


def _labelled(progress: Progress | None, label: str) -> Progress | None:
    if progress is None:
        return None
    return lambda what, done, total: progress(f"{label}, {what}", done, total)
