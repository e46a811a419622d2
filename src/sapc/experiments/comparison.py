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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._files import atomic_write, write_json
from ..errors import SapcError
from ..evaluation import metrics
from ..evaluation.frechet import distance as fpd
from ..methods import get_method, method_names
from ..models.scores import Scores, select_metrics
from ..tasks import get_task
from ..training.distributed import find_device
from ..training.run_folder import load_tensors
from .cell import Cell, cells
from .engines import Engine, Inline
from .report.format import Table
from .run import run_study
from .status import Status
from .study import Study, open_study
from .worker import BUSY, OnChange, ignore

__all__ = ["Comparison", "Table", "markdown", "notes", "tables"]

FORMAT = "sapc-comparison-1"
JOINT = 32  # samples, unless given, of a method whose batch is one problem: the published batch
ERRORS = ("ce_local", "ce_global")
RANKED = 4  # methods from which an order says something


@dataclass(frozen=True)
class Comparison:
    """What is compared, how and where.

    methods         their names, all of the paper's and the user's own unless given
    samples         fields per test set and method, unless given 256 with two axes and 32 with three
    coupled_samples   the same of methods whose samples depend on each other, at most 32 unless given
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
    coupled_samples: int | None = None
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
        made = cells(
            [self.task], self.methods or method_names(), [self.seed], self.preset, sets=self.sets,
            coupled_samples=None, reference=self.reference, sampling_steps=self.steps,
            floor_repeats=self.floor_repeats, frd=self.frd,
        )  # fmt: skip
        # A method that is named twice is compared once.
        return [
            Cell(
                cell.run,
                name,
                cell.evaluation,
                "",
                f"{self.task}-{cell.run.method}",
                samples=self.count(name),
            )
            for name, cell in {cell.method: cell for cell in made}.items()
        ]

    def count(self, method: str) -> int:
        """Return the number of fields to sample per test set."""
        usual = self.samples
        if usual is None:
            usual = 256 if len(get_task(self.task).grid.shape) == 2 else 32
        if not get_method(method).couples_batch:
            return usual
        return min(usual, JOINT) if self.coupled_samples is None else self.coupled_samples

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

    def compare(self, engine: Engine | None = None, on_change: OnChange = ignore) -> dict[str, Any]:
        """Do all of it, in this process unless there is another engine; return the result, as JSON can hold it."""
        engine = engine or Inline(self.device)
        self.check()
        study, poseidon = self.study, None if self.poseidon is None else os.fspath(self.poseidon)
        found = run_study(study, engine, self.cells, poseidon=poseidon, on_change=on_change, is_shared=True)
        failed = {s.cell.method: s.error or BUSY for s in found if s.state != "done"}
        if len(failed) == len(found):
            raise SapcError(next(iter(failed.values())))
        result = self._result(study, found, failed)
        as_json, as_markdown = self.files
        write_json(as_json, result)
        with atomic_write(as_markdown) as partial:
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
            "preset": run.preset,
            "grid": list(run.grid),
            "training_steps": run.steps,
            "sets": list(dict.fromkeys(self.sets)),
            "samples": max(scores.settings.samples for scores in scored.values()),
            **{name: getattr(self, name) for name in ("reference", "steps", "seed", "floor_repeats")},
            "metrics": list(names),
            **{f"{name}_weights": settings.more[f"{name}_weights"] for name in further},
            "floors": _floors(scored, names),
            "methods": {
                s.cell.method: _about(study, s.cell, s.scores, names, ffm) for s in found if s.scores
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
        "metrics": select_metrics(mean, names).metrics,
        "ce": metrics.ce(*errors, *ffm) if ffm and min(ffm) > 0 else None,
        **{
            name: getattr(mean, name)
            for name in ("worst_residual", "evaluations", "seconds_per_sample", "peak_memory")
        },
        "training_seconds": load_tensors(folder.weights)[1]["seconds"] if method.trains else None,
        "sets": {name: select_metrics(scores.sets[name], names).to_dict() for name in cell.sets},
        "device": settings.device,
        "environment": scores.environment,
    }


def _floors(scored: Mapping[str, Scores], names: Collection[str]) -> list[dict[str, Any]]:
    """Return the floor for every number of samples, the largest number first."""
    floors = []
    for number in sorted({s.settings.samples for s in scored.values()}, reverse=True):
        such = [s for s in scored.values() if s.settings.samples == number]
        scores = next((s for s in such if s.mean.floor), such[0])
        why, floor = scores.floor_left_out, select_metrics(scores.mean, names).floor
        floors.append({"samples": number, "metrics": floor, "left_out": why[0] if why else ""})
    return floors


# -- as text: tables that fit 80 columns, and what has to be known to read them --


def tables(result: Mapping[str, Any]) -> tuple[Table, ...]:
    """The distribution beside its floor, by Fréchet distances too where there are any, then constraints and cost."""
    usual = [name for name in result["metrics"] if name in metrics.DISTRIBUTION]
    others = [name for name in result["metrics"] if name not in usual]
    sizes = f"{result['samples']} samples beside {result['reference']} solutions"
    beyond = (_scores(result, "Fréchet distances", others),) if others else ()
    return (_scores(result, f"Distribution: {sizes}", usual), *beyond, _constraints(result))


def _scores(result: Mapping[str, Any], title: str, names: Sequence[str]) -> Table:
    most, methods = result["samples"], result["methods"]
    floors = [f for f in result["floors"] if f["metrics"]]
    rows = [(_label("floor", f["samples"], most), *(f["metrics"].get(k) for k in names)) for f in floors]
    first = len(rows)
    rows += [
        (_label(name, about["samples"], most), *(about["metrics"][k] for k in names))
        for name, about in methods.items()
    ]
    # Scores of fewer samples scatter more: they are no match.
    rivals = [first + i for i, about in enumerate(methods.values()) if about["samples"] == most]
    best = {j: min(rows[i][j] for i in rivals) for j in range(1, 1 + len(names))}
    bold = frozenset((i, j) for i in rivals for j in best if rows[i][j] == best[j])
    return Table(title, ("method", *names), [(row[0], *map(_short, row[1:])) for row in rows], bold)


def _constraints(result: Mapping[str, Any]) -> Table:
    rows = [
        (
            name,
            _short(about["metrics"]["ce_local"]),
            _short(about["metrics"]["ce_global"]),
            _short(about["ce"]),
            str(about["evaluations"]),
            _seconds(about["seconds_per_sample"]),
            f"of {about['weights']}" if name != about["weights"] else _seconds(about["training_seconds"]),
        )
        for name, about in result["methods"].items()
    ]
    columns = ("method", "ce_local", "ce_global", "ce", "NFE", "s/sample", "training")
    return Table("Constraints and cost; times in seconds", columns, rows)


def notes(result: Mapping[str, Any]) -> list[str]:
    """Return what has to be known to read the tables."""
    grid, most, methods = " x ".join(map(str, result["grid"])), result["samples"], result["methods"]
    steps = str(result["steps"]) if result["steps"] else "each method's own number"
    said = [
        f"{result['task']}, preset {result['preset']}: {grid} points, {result['training_steps']} training steps, "
        f"seed {result['seed']} of data, weights and noise",
        f"{'mean of ' if len(result['sets']) > 1 else ''}{', '.join(result['sets'])}; sampling steps: {steps}",
    ]
    for number in sorted({about["samples"] for about in methods.values()} - {most}):
        fewer = ", ".join(name for name, about in methods.items() if about["samples"] == number)
        said += [f"({number}): {fewer} with {number} samples, so with a higher floor, and not among the best"]
    said += ["sampled with " + "; ".join(dict.fromkeys(map(_means, methods.values())))]
    said += sorted({f"no sampling floor: {f['left_out']}" for f in result["floors"] if f["left_out"]})
    said += _about_distances(result)
    if all(about["ce"] is None for about in methods.values()):
        said += ["no ce: it divides by ffm's errors, and ffm is not among the methods or its errors are zero"]
    return said + [f"failed: {name}: {why}" for name, why in result["failed"].items()]


def _about_distances(result: Mapping[str, Any]) -> list[str]:
    """Return what FPD and FRD are here, and how alike they order the methods."""
    said = [f"fpd by {w['file']}, sha256 {w['sha256']}" for w in result.get("fpd_weights", ())]
    said = said or ["no fpd: it needs the weights of Poseidon-B, by --poseidon or SAPC_POSEIDON"]
    if "frd" in result["metrics"]:
        said += ["frd: Fréchet distance by random features, mean of three; it is not FPD"]
    rivals = [a["metrics"] for a in result["methods"].values() if a["samples"] == result["samples"]]
    if {"fpd", "frd"} <= {*result["metrics"]} and len(rivals) >= RANKED:
        order = fpd.agreement(*([values[name] for values in rivals] for name in ("fpd", "frd")))
        both = f"Kendall's tau {order['kendall']:.2f}, Spearman's rho {order['spearman']:.2f}"
        said += [f"agreement of frd with fpd in the order of these {len(rivals)}: {both}"]
    return said


def markdown(result: Mapping[str, Any]) -> str:
    """The tables and the notes as a page."""
    parts = [f"# {result['title']}: methods compared\n"]
    for table in tables(result):
        parts += [f"## {table.title}\n", table.markdown()]
    parts.append("\n".join(f"- {note}" for note in notes(result)) + "\n")
    return "\n".join(parts)


def _means(about: Mapping[str, Any]) -> str:
    """Versions and hardware of an evaluation."""
    where = about["environment"]
    device = where["device"] if about["device"].startswith("cuda") else f"{where['cpus']} CPU cores"
    return f"sapc {where['sapc']} and torch {where['torch']} on {device}"


def _label(name: str, number: int, most: int) -> str:
    return name if number == most else f"{name} ({number})"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2e}" if value else "0"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"
