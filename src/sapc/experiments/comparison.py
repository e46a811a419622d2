"""Comparison: methods side by side on one task, a study with tables as text.

    comparison = Comparison("heat", methods=("sapc", "ffm", "eci"), preset="small", out="runs/compare")
    result = comparison.compare()       # check, train, evaluate, write; what is done already is used
    for table in tables(result):
        print(table.markdown())

All methods get the same data, network, number of training steps, test sets and source draws. The exception
are methods whose batch is one problem (D-Flow, with 21 times the evaluations and their gradients): they may
get fewer samples, and every number of samples has its own floor. A method that fails does not keep the others
from being compared; the result holds the reason. Without `methods` all of the paper's are compared.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from .._files import atomic_write, write_json
from .._old_names import rename_arguments
from ..errors import SapcError
from ..evaluation import metrics
from ..evaluation.config import EvaluationConfig
from ..evaluation.frechet import distance as fpd
from ..flow import EULER
from ..methods import get_method, method_names
from ..models.scores import Scores, select_metrics
from ..tasks import get_task
from ..training.distributed import find_device
from ..training.run_folder import load_tensors
from .cell import Cell, cells, old_setting
from .engines import Engine, Inline
from .report.format import Table, describe_origin, short_number
from .run import run_study
from .skill import skill_notes, skill_tables
from .status import Status
from .study import Study, open_study
from .worker import BUSY, StateCallback, ignore

__all__ = ["Comparison", "Table", "markdown", "notes", "tables"]

FORMAT = "sapc-comparison-1"
SETS = ("test1",)
# The published batch of methods whose batch is one problem, and how many samples they get unless given.
COUPLED_SAMPLES = 32
ERRORS = ("ce_local", "ce_global")
# With so many methods an order means something.
RANKED_METHODS = 4
SETTINGS = ("sets", "samples", "reference", "steps", "seed", "floor_repeats", "frd")


@rename_arguments(dflow_samples="coupled_samples")
@dataclass(frozen=True, init=False)
class Comparison:
    """What is compared, how and where.

    Args:
        task: Name of the task.
        methods: Names of methods; all of the paper's and the user's own unless given.
        preset: Preset of the trainings.
        out: Folder of runs and results.
        evaluation: How the samples are scored, or a list of test sets. Unless given: test1, and 256 samples
            with two axes, 32 with three. Its seed is also that of data and weights.
        coupled_samples: Number of samples of methods whose batch is one problem, at most 32 unless given.
        device: Where to train and sample.
        poseidon: Folder with the weights of Poseidon-B, for FPD; without them there is none.
        settings: Settings of `evaluation` by name: sets, samples, reference, steps, seed, floor_repeats, frd.
    """

    task: str
    methods: Sequence[str]
    preset: str
    out: str | os.PathLike[str]
    evaluation: EvaluationConfig
    coupled_samples: int | None
    device: str
    poseidon: str | os.PathLike[str] | None

    def __init__(
        self,
        task: str = "heat",
        methods: Sequence[str] = (),
        preset: str = "small",
        out: str | os.PathLike[str] = Path("runs/compare"),
        evaluation: EvaluationConfig | Sequence[str] | None = None,
        *,
        coupled_samples: int | None = None,
        device: str = "auto",
        poseidon: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> None:
        config = EvaluationConfig.from_settings(evaluation, **settings)
        config = replace(config, sets=config.sets or SETS)
        values = (task, methods, preset, out, config, coupled_samples, device, poseidon)
        for field, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, field.name, value)

    @property
    def cells(self) -> list[Cell]:
        """One cell per method, in the order of the tables."""
        methods, seed = self.methods or method_names(extensions=False), self.evaluation.seed
        table = cells([self.task], methods, [seed], self.preset, self.evaluation, coupled_samples=None)
        is_asked = self.evaluation.conditions is not None
        # A method that is named twice is compared once.
        return [
            Cell(
                cell.run,
                name,
                cell.evaluation,
                "",
                f"{self.task}-{cell.run.method}",
                samples=self.count(name),
                # One problem for each of many conditions takes hours.
                conditions=0 if is_asked and get_method(name).couples_batch else self.evaluation.conditions,
            )
            for name, cell in {cell.method: cell for cell in table}.items()
        ]

    def count(self, method: str) -> int:
        """Return the number of fields to sample per test set."""
        number = self.evaluation.samples
        if number is None:
            number = 256 if len(get_task(self.task).grid.shape) == 2 else 32
        if not get_method(method).couples_batch:
            return number
        return min(number, COUPLED_SAMPLES) if self.coupled_samples is None else self.coupled_samples

    @property
    def study(self) -> Study:
        """The study of these methods and of what was compared in the same folder before."""
        cells = self.cells
        runs = {cell.folder: cell.run for cell in cells}
        try:
            earlier_cells = open_study(self.out).cells
        except SapcError:
            # There is none, or it is damaged and written anew.
            earlier_cells = ()
        names = {cell.name for cell in cells}
        others = [c for c in earlier_cells if c.name not in names and runs.get(c.folder, c.run) == c.run]
        return Study(f"{self.task}-comparison", (*cells, *others), Path(self.out))

    @property
    def files(self) -> tuple[Path, Path]:
        """The files of the result, JSON and Markdown."""
        stem = Path(self.out) / f"{self.task}-comparison"
        return stem.with_suffix(".json"), stem.with_suffix(".md")

    def check(self) -> None:
        """Check, before the work, all that can be checked; create nothing."""
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

    def compare(self, engine: Engine | None = None, on_change: StateCallback = ignore) -> dict[str, Any]:
        """Train, sample and score what is missing, and write the result.

        Args:
            engine: Where to do the work; in this process unless given.
            on_change: Called with every new state of a cell.

        Returns:
            The result, as JSON can hold it.

        Raises:
            SapcError: No method could be compared.
        """
        engine = engine or Inline(self.device)
        self.check()
        study, poseidon = self.study, None if self.poseidon is None else os.fspath(self.poseidon)
        statuses = run_study(
            study, engine, self.cells, poseidon=poseidon, on_change=on_change, is_shared=True
        )
        errors = {s.cell.method: s.error or BUSY for s in statuses if s.state != "done"}
        if len(errors) == len(statuses):
            raise SapcError(next(iter(errors.values())))
        result = self._make_result(study, statuses, errors)
        as_json, as_markdown = self.files
        write_json(as_json, result)
        with atomic_write(as_markdown) as partial:
            partial.write_text(markdown(result))
        return result

    def _make_result(
        self, study: Study, statuses: Sequence[Status], errors: Mapping[str, str]
    ) -> dict[str, Any]:
        scores = {s.cell.method: s.scores for s in statuses if s.scores is not None}
        run = statuses[0].cell.run
        settings = next(iter(scores.values())).settings
        further = [
            name
            for name, is_wanted in (("fpd", self.poseidon is not None), ("frd", self.evaluation.frd))
            if is_wanted
        ]
        names = (*metrics.DISTRIBUTION, *further)
        ffm = [scores["ffm"].mean.metrics[k] for k in ERRORS] if "ffm" in scores else []
        return {
            "format": FORMAT,
            "task": self.task,
            "title": run.make_task().title,
            "preset": run.preset,
            "grid": list(run.grid),
            "training_steps": run.steps,
            "sets": list(statuses[0].cell.sets),
            "samples": max(s.settings.samples for s in scores.values()),
            "reference": settings.reference,
            **{key: getattr(self.evaluation, key) for key in ("steps", "seed", "floor_repeats")},
            "metrics": list(names),
            **{f"{name}_weights": settings.more[f"{name}_weights"] for name in further},
            "floors": _make_floors(scores, names),
            "methods": {
                s.cell.method: _describe_method(study, s.cell, s.scores, names, ffm)
                for s in statuses
                if s.scores
            },
            "failed": dict(errors),
            "files": [str(path) for path in self.files],
        }


for _name in SETTINGS:
    setattr(Comparison, _name, old_setting("Comparison", _name, _name))


def _describe_method(
    study: Study, cell: Cell, scores: Scores, names: Collection[str], ffm: Sequence[float]
) -> dict[str, Any]:
    """Return one method of the result; `ffm` are FFM's constraint errors."""
    folder, method, names = study.folder(cell), get_method(cell.method), (*names, *ERRORS)
    mean, settings = scores.mean, scores.settings
    errors = [mean.metrics[name] for name in ERRORS]
    return {
        "title": method.title,
        "weights": method.weights,
        "folder": str(folder.path),
        "samples": settings.samples,
        "steps": settings.steps,
        "sampler": settings.sampler_name,
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
        **({} if scores.skill is None else {"skill": scores.skill.to_dict()}),
    }


def _make_floors(all_scores: Mapping[str, Scores], names: Collection[str]) -> list[dict[str, Any]]:
    """Return the floor for every number of samples, the largest number first."""
    floors = []
    for number in sorted({s.settings.samples for s in all_scores.values()}, reverse=True):
        group = [s for s in all_scores.values() if s.settings.samples == number]
        scores = next((s for s in group if s.mean.floor), group[0])
        reasons, floor = scores.floor_left_out, select_metrics(scores.mean, names).floor
        floors.append({"samples": number, "metrics": floor, "left_out": reasons[0] if reasons else ""})
    return floors


# -- as text: tables that fit 80 columns, and what has to be known to read them --


def tables(result: Mapping[str, Any]) -> tuple[Table, ...]:
    """Make the tables of a result, 80 columns wide at most.

    Args:
        result: What `Comparison.compare` returned.

    Returns:
        The distribution beside its floor, Fréchet distances and skill if there are any, constraints and cost.
    """
    names = [name for name in result["metrics"] if name in metrics.DISTRIBUTION]
    distances = [name for name in result["metrics"] if name not in names]
    sizes = f"{result['samples']} samples beside {result['reference']} solutions"
    frechet = (_metrics_table(result, "Fréchet distances", distances),) if distances else ()
    tables = (_metrics_table(result, f"Distribution: {sizes}", names), *frechet)
    return (*tables, *skill_tables(result["methods"]), _constraints_table(result))


def _metrics_table(result: Mapping[str, Any], title: str, names: Sequence[str]) -> Table:
    number, methods = result["samples"], result["methods"]
    floors = [f for f in result["floors"] if f["metrics"]]
    rows = [(_label("floor", f["samples"], number), *(f["metrics"].get(k) for k in names)) for f in floors]
    first = len(rows)
    rows += [
        (_label(name, entry["samples"], number), *(entry["metrics"][k] for k in names))
        for name, entry in methods.items()
    ]
    # Scores of fewer samples scatter more: they do not compare.
    rivals = [first + i for i, entry in enumerate(methods.values()) if entry["samples"] == number]
    best = {j: min(rows[i][j] for i in rivals) for j in range(1, 1 + len(names))}
    places = frozenset((i, j) for i in rivals for j in best if rows[i][j] == best[j])
    return Table(title, ("method", *names), [(row[0], *map(_short, row[1:])) for row in rows], places)


def _constraints_table(result: Mapping[str, Any]) -> Table:
    rows = [
        (
            name,
            _short(entry["metrics"]["ce_local"]),
            _short(entry["metrics"]["ce_global"]),
            _short(entry["ce"]),
            str(entry["evaluations"]),
            _seconds(entry["seconds_per_sample"]),
            f"of {entry['weights']}" if name != entry["weights"] else _seconds(entry["training_seconds"]),
        )
        for name, entry in result["methods"].items()
    ]
    columns = ("method", "ce_local", "ce_global", "ce", "NFE", "s/sample", "training")
    return Table("Constraints and cost; times in seconds", columns, rows)


def notes(result: Mapping[str, Any]) -> list[str]:
    """Return what a reader of the tables has to know.

    Args:
        result: What `Comparison.compare` returned.

    Returns:
        One sentence each.
    """
    grid, samples, methods = " x ".join(map(str, result["grid"])), result["samples"], result["methods"]
    steps = str(result["steps"]) if result["steps"] else "each method's own number"
    prefix = "mean of " if len(result["sets"]) > 1 else ""
    texts = [
        f"{result['task']}, preset {result['preset']}: {grid} points, "
        f"{result['training_steps']} training steps, seed {result['seed']} of data, weights and noise",
        f"{prefix}{', '.join(result['sets'])}; sampling steps: {steps} ({_describe_samplers(methods)})",
    ]
    for number in sorted({entry["samples"] for entry in methods.values()} - {samples}):
        names = ", ".join(name for name, entry in methods.items() if entry["samples"] == number)
        texts += [
            f"({number}): {names} with {number} samples, so with a higher floor, and not among the best"
        ]
    texts += ["sampled with " + "; ".join(dict.fromkeys(map(describe_origin, methods.values())))]
    texts += sorted({f"no sampling floor: {f['left_out']}" for f in result["floors"] if f["left_out"]})
    texts += _notes_on_distances(result) + skill_notes(result["methods"])
    if all(entry["ce"] is None for entry in methods.values()):
        texts += [
            "no ce: it divides by ffm's errors, and ffm is not among the methods or its errors are zero"
        ]
    return texts + [f"failed: {name}: {error}" for name, error in result["failed"].items()]


def _describe_samplers(methods: Mapping[str, Any]) -> str:
    """Name the sampler of most methods, and that of each other; results of version 0.1.0 are all of Euler's."""
    names = {name: entry.get("sampler", EULER.name) for name, entry in methods.items()}
    usual = max(dict.fromkeys(names.values()), key=[*names.values()].count)
    return "; ".join([usual, *(f"{name}: {other}" for name, other in names.items() if other != usual)])


def _notes_on_distances(result: Mapping[str, Any]) -> list[str]:
    """Say what FPD and FRD are here, and how far they agree in the order of the methods."""
    texts = [f"fpd by {w['file']}, sha256 {w['sha256']}" for w in result.get("fpd_weights", ())]
    texts = texts or ["no fpd: it needs the weights of Poseidon-B, by --poseidon or SAPC_POSEIDON"]
    if "frd" in result["metrics"]:
        texts += ["frd: Fréchet distance by random features, mean of three; it is not FPD"]
    rivals = [
        entry["metrics"] for entry in result["methods"].values() if entry["samples"] == result["samples"]
    ]
    if {"fpd", "frd"} <= {*result["metrics"]} and len(rivals) >= RANKED_METHODS:
        order = fpd.agreement(*([values[name] for values in rivals] for name in ("fpd", "frd")))
        correlations = f"Kendall's tau {order['kendall']:.2f}, Spearman's rho {order['spearman']:.2f}"
        texts += [f"agreement of frd with fpd in the order of these {len(rivals)}: {correlations}"]
    return texts


def markdown(result: Mapping[str, Any]) -> str:
    """Write tables and notes as a page.

    Args:
        result: What `Comparison.compare` returned.

    Returns:
        The page in Markdown.
    """
    parts = [f"# {result['title']}: methods compared\n"]
    for table in tables(result):
        parts += [f"## {table.title}\n", table.markdown()]
    parts.append("\n".join(f"- {note}" for note in notes(result)) + "\n")
    return "\n".join(parts)


def _label(name: str, number: int, usual: int) -> str:
    return name if number == usual else f"{name} ({number})"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2e}" if value else "0"


def _seconds(value: float | None) -> str:
    return "-" if value is None else short_number(value)
