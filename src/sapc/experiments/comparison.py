"""Comparison: methods side by side on one task, a study of its own with tables as text.

    plan = Comparison("heat", methods=("sapc", "ffm", "eci"), preset="small", out="runs/compare")
    result = plan.compare()             # check, train, evaluate, write; what is done already is used
    for table in tables(result):
        print(table.markdown())

All methods get the same data, network, number of training steps, test sets and source draws. The exception are methods whose batch is one
problem (D-Flow, with 21 times the evaluations and their gradients): they may get fewer samples, and every number of samples its own floor.
A method that fails does not keep the others from being compared; the result says why it did. Without `methods` it is all of the paper's.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._files import replacing, write_json
from ..errors import SapcError
from ..evaluation import metrics
from ..methods import get_method, method_names
from ..models.scores import Scores, SetScores
from ..tasks import get_task
from ..training.distributed import find_device
from ..training.run_folder import load_tensors
from .cell import Cell, cells
from .comparison_tables import markdown, notes, tables
from .engines import Engine, Inline
from .report.format import Table
from .run import run_study
from .status import Status
from .study import Study, open_study
from .worker import BUSY, Tell, ignore

__all__ = ["Comparison", "Table", "markdown", "notes", "tables"]

FORMAT = "sapc-comparison-1"
JOINT = 32  # samples, unless given, of a method whose batch is one problem: the published batch
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

    @property
    def cells(self) -> list[Cell]:
        """One cell per method, in the order of the tables."""
        if isinstance(self.methods, str):
            raise SapcError(f"give methods as a list, as [{self.methods!r}], got {self.methods!r}")
        names = list(dict.fromkeys(self.methods)) or method_names()
        return [cell for name in names for cell in self._cells(name)]

    def _cells(self, method: str) -> list[Cell]:
        made = cells(
            [self.task], [method], [self.seed], self.preset, sets=self.sets, samples=self.count(method),
            dflow_samples=None, reference=self.reference, sampling_steps=self.steps,
            floor_repeats=self.floor_repeats, frd=self.frd,
        )  # fmt: skip
        return [replace(cell, run_folder=f"{self.task}-{cell.run.method}") for cell in made]

    def count(self, method: str) -> int:
        """Return the number of fields to sample per test set."""
        usual = self.samples
        if usual is None:
            usual = 256 if len(get_task(self.task).grid.shape) == 2 else 32
        if not get_method(method).joint:
            return usual
        return min(usual, JOINT) if self.dflow_samples is None else self.dflow_samples

    @property
    def study(self) -> Study:
        """The study of these methods and of what was compared in the same folder before."""
        own = self.cells
        runs = {cell.folder: cell.run for cell in own}
        try:
            before = open_study(self.out).cells
        except SapcError:  # there is none, or it is damaged and written anew
            before = ()
        names = {cell.name for cell in own}
        others = [c for c in before if c.name not in names and runs.get(c.folder, c.run) == c.run]
        return Study(f"{self.task}-comparison", (*own, *others), Path(self.out))

    @property
    def files(self) -> tuple[Path, Path]:
        """Where the result goes: JSON and Markdown."""
        stem = Path(self.out) / f"{self.task}-comparison"
        return stem.with_suffix(".json"), stem.with_suffix(".md")

    def check(self) -> None:
        """Refuse before the work what would fail after it; nothing is created."""
        find_device(self.device)
        study = self.study
        study.check()
        for cell in self.cells:
            folder = study.folder(cell)
            if folder.path.exists() and not folder.path.is_dir():
                raise SapcError(f"{folder.path} is not a folder, but a run goes there; choose another --out")
            folder.check(cell.run)
        for path in self.files:
            if path.is_dir():
                raise SapcError(f"{path} is a folder, but the result goes there; choose another --out")

    def compare(self, engine: Engine | None = None, tell: Tell = ignore) -> dict[str, Any]:
        """Do all of it, in this process unless there is another engine; return the result, as JSON can hold it."""
        engine = engine or Inline(self.device)
        self.check()
        study, poseidon = self.study, None if self.poseidon is None else os.fspath(self.poseidon)
        found = run_study(study, engine, self.cells, poseidon=poseidon, tell=tell, is_shared=True)
        failed = {s.cell.method: s.error or BUSY for s in found if s.state != "done"}
        if len(failed) == len(found):
            raise SapcError(next(iter(failed.values())))
        result = self._result(study, found, failed)
        as_json, as_markdown = self.files
        write_json(as_json, result)
        with replacing(as_markdown) as partial:
            partial.write_text(markdown(result))
        return result

    def _result(self, study: Study, found: Sequence[Status], failed: Mapping[str, str]) -> dict[str, Any]:
        scored = {s.cell.method: s.scores for s in found if s.scores is not None}
        run = found[0].cell.run
        settings = next(iter(scored.values())).settings
        further = [
            name for name, is_wanted in (("fpd", self.poseidon is not None), ("frd", self.frd)) if is_wanted
        ]
        names = (*metrics.DISTRIBUTION, *further)
        ffm = [scored["ffm"].mean.metrics[k] for k in ERRORS] if "ffm" in scored else []
        return {
            "format": FORMAT,
            "task": self.task,
            "title": run.make_task().title,
            "preset": self.preset,
            "grid": list(run.grid),
            "training_steps": run.steps,
            "sets": list(dict.fromkeys(self.sets)),
            "samples": max(scores.settings.samples for scores in scored.values()),
            "reference": self.reference,
            "steps": self.steps,
            "seed": self.seed,
            "floor_repeats": self.floor_repeats,
            "metrics": list(names),
            **{f"{name}_weights": settings.more[f"{name}_weights"] for name in further},
            "floors": _floors(scored, names),
            "methods": {
                s.cell.method: _about(study, s.cell, scored[s.cell.method], names, ffm)
                for s in found
                if s.scores
            },
            "failed": dict(failed),
            "files": [str(path) for path in self.files],
        }


def _about(
    study: Study, cell: Cell, scores: Scores, names: Collection[str], ffm: Sequence[float]
) -> dict[str, Any]:
    """One method of the result; `ffm` are FFM's constraint errors."""
    folder, method, names = study.folder(cell), get_method(cell.method), (*names, *ERRORS)
    mean, settings = scores.mean, scores.settings
    errors = [mean.metrics[name] for name in ERRORS]
    return {
        "title": method.title,
        "weights": method.weights,
        "folder": str(folder.path),
        "samples": settings.samples,
        "steps": settings.steps,
        "metrics": _select(mean.metrics, names),
        "ce": metrics.ce(*errors, *ffm) if ffm and min(ffm) > 0 else None,
        **{
            name: getattr(mean, name)
            for name in ("worst_residual", "evaluations", "seconds_per_sample", "peak_memory")
        },
        "training_seconds": load_tensors(folder.weights)[1]["seconds"] if method.trains else None,
        "sets": {name: _select_metrics(scores.sets[name], names) for name in cell.sets},
        "device": settings.device,
        "environment": scores.environment,
    }


def _select(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Select entries by name."""
    return {name: value for name, value in values.items() if name in names}


def _select_metrics(scores: SetScores, names: Collection[str]) -> dict[str, Any]:
    """Return the scores of a test set without metrics that are not asked for."""
    more = {
        k: v for k, v in scores.more.items() if not k.endswith("_each") or k.removesuffix("_each") in names
    }
    metrics, floor = _select(scores.metrics, names), _select(scores.floor, names)
    return replace(scores, metrics=metrics, floor=floor, more=more).to_dict()


def _floors(scored: Mapping[str, Scores], names: Collection[str]) -> list[dict[str, Any]]:
    """Return the floor for every number of samples, the largest number first."""
    floors = []
    for number in sorted({s.settings.samples for s in scored.values()}, reverse=True):
        such = [s for s in scored.values() if s.settings.samples == number]
        scores = next((s for s in such if s.mean.floor), such[0])
        why, floor = scores.floor_left_out, _select(scores.mean.floor, names)
        floors.append({"samples": number, "metrics": floor, "left_out": why[0] if why else ""})
    return floors
