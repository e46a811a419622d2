"""The tables of a report: ours beside the paper's, task by task and metric by metric.

    generation   MMSE, SMSE, FPD and CE of SAPC and the methods it is compared with
    supplement   W2, CE_L and CE_G of the same
    ablation     all seven of SAPC, its parts, FFM and condFFM
    skill        where it was measured: fair scores per held-out condition, beside climatology and persistence
    cost         network evaluations, time, memory and training

Every metric has a line of ours and a line of the paper's. Within a line the lowest number is bold and the
next one underlined; numbers that read alike are ranked alike, and so are constraint errors that are rounding.
Not ranked are numbers that the paper does not rank (condFFM, which is conditioned; the time of FFM, which
measures the others), methods of this package that go beyond the paper, and numbers that do not compare with
the rest of the line: fewer samples have a higher floor, other test sets are other problems. Where a study
says which methods it asks for, the others have no column.

Costs are medians over seeds x test sets, of one device per task; time relative to FFM is the ratio of
medians. The time of a test set is that of one sample times the published number of samples, so that methods
with fewer samples stand in the same line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from itertools import product
from pathlib import Path

from ..._files import atomic_write, ensure_folder
from ...methods import is_extension, paper
from . import notes
from .data import ReportData, method_label, order_methods, task_label
from .format import NO_FFM, NOT_RECORDED, NOTHING, Table, compact, short_number, write_csv

CONSTRAINTS = ("ce", "ce_local", "ce_global")
# Constraint errors below it are no merit of a method.
ROUNDING = 1e-12
FILE = re.compile(r"(generation|supplement|ablation|skill|cost)\.(csv|tex)")
SKILL = {
    "crps": "CRPS",
    "energy_score": "energy score",
    "rmse": "RMSE of the mean",
    "skill_score": "skill by CRPS",
    "spread_skill": "spread / skill",
    "coverage_50": "in the 50 % interval",
    "coverage_90": "in the 90 % interval",
    "pde_residual": "PDE residual",
    "truth_pde_residual": "PDE residual of the truth",
}
"""Numbers of skill per condition, and their labels."""
# condFFM is conditioned, and the paper does not rank it either.
OUT_OF_RANKING = {"ablation": ("cond_ffm",)}
COSTS = {
    "nfe": ("NFE", "evaluations", 1.0),
    "ms_per_sample": ("ms per sample", "seconds_per_sample", 1e-3),
    "times_ffm": ("× FFM", "seconds_per_sample", 1.0),
    "total_s": ("s per test set", "seconds_per_sample", 1.0),
    "peak_memory": ("peak memory, GiB", "peak_memory", 2.0**30),
    "training": ("training, min", "training_seconds", 60.0),
}
"""Of each cost its label, the metric it is made of, and the unit in that metric's."""
RANKED_COSTS = ("ms_per_sample", "total_s")


@dataclass(frozen=True)
class Record:
    """One cell of a table for a machine.

    Attributes:
        table: Name of the table.
        task: Name of the task.
        metric: Name of the metric or cost.
        method: Name of the method.
        mean: Mean, or of costs the median.
        error: Standard error.
        n: Number of values.
        floor: Sampling floor.
        paper_mean: The paper's number.
        paper_error: The paper's standard error.
        rank: Rank within the line, 1 for the best.
        statistic: Whether `mean` is a mean or a median.
    """

    table: str
    task: str
    metric: str
    method: str
    mean: float | None = None
    error: float | None = None
    n: int = 0
    floor: float | None = None
    paper_mean: float | None = None
    paper_error: float | None = None
    rank: int | None = None
    statistic: str = "mean"


@dataclass(frozen=True)
class ReportTable(Table):
    """A table with a name for its files, and its numbers."""

    name: str = ""
    records: tuple[Record, ...] = ()


@dataclass
class TableBuilder:
    """Lines of a table, with their ranks and numbers.

    Attributes:
        methods: Methods, one per column.
        rows: Cells of the lines.
        marks: Rank by place (row, column); 0 for none.
        records: Numbers of the cells.
    """

    methods: Sequence[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    marks: dict[tuple[int, int], int] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)

    def add(self, heads: Sequence[str], cells: Iterable[str], order: Mapping[str, int], *end: str) -> None:
        """Add a line; `order` holds the ranks of methods that have one."""
        for j, method in enumerate(self.methods):
            self.marks[len(self.rows), len(heads) + j] = order.get(method, 0)
        self.rows.append((*heads, *cells, *end))

    def build(self, name: str, title: str, notes: Sequence[str], *end: str) -> ReportTable:
        """Return the finished table; `end` are the columns after the methods."""
        columns = ("task", "metric", "whose", *map(method_label, self.methods), *end)
        best, second = (frozenset(place for place, rank in self.marks.items() if rank == n) for n in (1, 2))
        records = tuple(self.records)
        return ReportTable(title, columns, self.rows, best, second, 3, tuple(notes), name, records)


def report_tables(data: ReportData) -> list[ReportTable]:
    """Make generation, supplement, ablation (each where a method of its own is asked for) and cost."""
    names = dict.fromkeys((*data.methods, *data.collection.study_methods))
    others = order_methods(m for m in names if m not in (*paper.METHODS, *paper.ABLATION_METHODS))
    methods = data.select_requested((*paper.METHODS, *others))
    ablation = data.select_requested(paper.ABLATION_METHODS)
    others = order_methods(m for m in names if m not in paper.METHODS)
    all_methods = data.select_requested((*paper.METHODS, *others))
    tables = []
    if methods:
        tables.append(_means(data, "generation", "Generation", paper.GENERATION, methods))
        tables.append(_means(data, "supplement", "Generation, further metrics", paper.SUPPLEMENT, methods))
    # Without any of the ablations it would say the same again.
    if set(ablation) - set(paper.METHODS):
        tables.append(_means(data, "ablation", "Ablation of SAPC", paper.ABLATION, ablation))
    if any(file.scores.skill for file in data.collection.files):
        tables.append(_skill(data, [m for m in all_methods if m in data.methods]))
    return [*tables, _costs(data, all_methods)]


def write_tables(tables: Sequence[ReportTable], folder: str | os.PathLike[str]) -> list[Path]:
    """Write `tables.md`, and of every table `<name>.csv` and `<name>.tex`; remove those of earlier tables.

    Args:
        tables: The tables.
        folder: Where the files go.

    Returns:
        The paths of the files.
    """
    texts = {"tables.md": "# Tables\n\n" + "\n".join(table.section() for table in tables)}
    columns = tuple(column.name for column in fields(Record))
    for table in tables:
        texts[f"{table.name}.tex"] = table.latex()
        texts[f"{table.name}.csv"] = write_csv((columns, *map(astuple, table.records)))
    return write_files({name: text.encode() for name, text in texts.items()}, Path(folder), FILE)


def write_files(files: Mapping[str, bytes], folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """Write files whole or not at all; remove others of an earlier report, whose names match `pattern`."""
    with ensure_folder(folder):
        for name, data in files.items():
            with atomic_write(folder / name) as partial:
                partial.write_bytes(data)
        for path in folder.iterdir():
            if pattern.fullmatch(path.name) and path.name not in files:
                path.unlink()
    return [folder / name for name in files]


def ranks(values: Mapping[str, float], metric: str = "") -> dict[str, int]:
    """Rank numbers from 1 for the lowest; what reads alike is ranked alike, a single number has no rank."""
    # A cell has two digits, and constraint errors that are rounding are alike.
    is_rounding = {name: metric in CONSTRAINTS and value < ROUNDING for name, value in values.items()}
    digits = {name: 0.0 if is_rounding[name] else float(f"{value:.1e}") for name, value in values.items()}
    order = sorted(set(digits.values()))
    return {name: 1 + order.index(value) for name, value in digits.items()} if len(values) > 1 else {}


# -- means --


def _means(
    data: ReportData, name: str, title: str, metrics: Sequence[str], methods: Sequence[str]
) -> ReportTable:
    lines = TableBuilder(methods)
    source = "ablation" if name == "ablation" else "generation"
    ranked = [m for m in methods if m not in OUT_OF_RANKING.get(name, ()) and not is_extension(m)]
    for task, metric in product(data.tasks or paper.TASKS, metrics):
        heads = (task_label(task), paper.METRIC_LABELS[metric])
        order = ranks(data.comparable_means(task, ranked, metric), metric)
        cells = [_cell(data, task, m, metric, methods) for m in methods]
        lines.add((*heads, "ours"), cells, order, data.floor_text(task, metric, methods))
        printed = {m: p for m in methods if (p := paper.printed_mean(source, task, metric, m))}
        cells = [compact(printed[m].mean, printed[m].error) if m in printed else NOTHING for m in methods]
        lines.add(
            (*heads, "paper"), cells, ranks({m: printed[m].mean for m in ranked if m in printed}), NOTHING
        )
        for m in methods:
            ours, theirs = data.means.get((task, m, metric)), printed.get(m)
            floor = data.floors.get((task, metric, data.sample_count(task, m)))
            mean, error, n = (ours.mean, ours.error, ours.n) if ours else (None, None, 0)
            paper_mean, paper_error = (theirs.mean, theirs.error) if theirs else (None, None)
            numbers = (mean, error, n, floor.mean if floor else None, paper_mean, paper_error)
            lines.records.append(Record(name, task, metric, m, *numbers, order.get(m)))
    return lines.build(name, title, notes.notes_of_means(data, name, methods), "floor")


def _cell(data: ReportData, task: str, method: str, metric: str, methods: Sequence[str]) -> str:
    mean = data.means.get((task, method, metric))
    if mean is None:
        return data.absence(task, method, metric)
    number = data.sample_count(task, method)
    is_small = number < max(data.sample_count(task, m) for m in methods)
    return compact(mean.mean, mean.error) + (f" (n={number})" if is_small else "")


# -- skill per condition --


def _skill(data: ReportData, methods: Sequence[str]) -> ReportTable:
    """Make a line per score; of a single training the error is that over conditions."""
    lines = TableBuilder(methods)
    for task, (name, label) in product(data.tasks, SKILL.items()):
        means = {m: s for m in methods if (s := data.means.get((task, m, f"skill_{name}")))}
        if not means:
            continue
        errors = {
            m: s.error if s.n > 1 else _error_over_conditions(data, task, m, name) for m, s in means.items()
        }
        sign = -1 if name == "skill_score" else 1
        is_ranked = name in ("crps", "energy_score", "rmse", "skill_score")
        order = ranks({m: sign * s.mean for m, s in means.items()}) if is_ranked else {}
        cells = [compact(means[m].mean, errors[m]) if m in means else NOT_RECORDED for m in methods]
        rivals = [
            _rival(data, task, methods, f"skill_{rival}_{name}") for rival in ("climatology", "persistence")
        ]
        lines.add((task_label(task), label, "ours"), cells, order, *rivals)
        for m, s in means.items():
            numbers = (s.mean, errors[m], s.n, None, None, None, order.get(m))
            lines.records.append(Record("skill", task, name, m, *numbers))
    texts = notes.notes_of_skill(data, methods)
    return lines.build("skill", "Skill per condition", texts, "climatology", "persistence")


def _error_over_conditions(data: ReportData, task: str, method: str, name: str) -> float | None:
    skills = (file.scores.skill for file in data.collection.of(task, method))
    return next((skill.errors.get(name) for skill in skills if skill), None)


def _rival(data: ReportData, task: str, methods: Sequence[str], metric: str) -> str:
    """Return a score of a simpler forecast, which all methods share."""
    found = (data.means.get((task, m, metric)) for m in methods)
    return next((compact(s.mean) for s in found if s), NOTHING)


# -- cost --


def _costs(data: ReportData, methods: Sequence[str]) -> ReportTable:
    lines = TableBuilder(methods)
    for task in data.tasks or paper.TASKS:
        values = _cost_values(data, task, methods)
        for name, (label, metric, _) in COSTS.items():
            heads, ours = (task_label(task), label), values[name]
            theirs = {m: v for m in methods if (v := _printed_cost(task, m, name)) is not None}
            # FFM is what the others are measured by.
            ranked = [m for m in methods if m != "ffm" and not is_extension(m) and name in RANKED_COSTS]
            order, paper_order = (ranks({m: v[m] for m in ranked if m in v}) for v in (ours, theirs))
            cells = [
                short_number(ours[m]) if m in ours else _cost_absence(data, task, m, name) for m in methods
            ]
            lines.add((*heads, "ours"), cells, order)
            if name != "peak_memory":
                cells = [_printed_cell(task, m, name, theirs.get(m)) for m in methods]
                lines.add((*heads, "paper"), cells, paper_order)
            for m in methods:
                n = summary.n if (summary := data.means.get((task, m, metric))) else 0
                numbers = (ours.get(m), None, n, None, theirs.get(m), None, order.get(m), "median")
                lines.records.append(Record("cost", task, name, m, *numbers))
    return lines.build("cost", "Inference cost", notes.notes_of_cost(data, methods))


def _cost_values(data: ReportData, task: str, methods: Sequence[str]) -> dict[str, dict[str, float]]:
    values = {
        name: {m: s.median / unit for m in methods if (s := data.means.get((task, m, metric)))}
        for name, (_, metric, unit) in COSTS.items()
    }
    number = paper.protocol().samples.get(task)
    values["total_s"] = {m: v * (number or data.sample_count(task, m)) for m, v in values["total_s"].items()}
    times = values["ms_per_sample"]
    others = {m: v for m, v in times.items() if m != "ffm" and times.get("ffm")}
    values["times_ffm"] = {m: v / times["ffm"] for m, v in others.items()}
    return values


def _cost_absence(data: ReportData, task: str, method: str, name: str) -> str:
    """Return the text in place of a number, which says why there is none."""
    files = data.collection.of(task, method)
    if not files:
        return data.absence(task, method, name)
    weights = files[0].scores.run.method
    if name == "training" and weights != method:
        return f"of {method_label(weights)}"
    if name == "times_ffm" and method == "ffm":
        return NOTHING
    if name == "times_ffm" and (task, "ffm", "seconds_per_sample") not in data.means:
        return NO_FFM
    return NOT_RECORDED


def _printed_cost(task: str, method: str, name: str) -> float | None:
    """Return the paper's number; a range of minutes is none."""
    if name == "training":
        minutes = set(paper.training_minutes(task, method) or ())
        return minutes.pop() if len(minutes) == 1 else None
    value = getattr(paper.printed_cost(task, method), name, None)
    return None if value is None else float(value)


def _printed_cell(task: str, method: str, name: str, value: float | None) -> str:
    if name == "training" and (minutes := paper.training_minutes(task, method)):
        return "–".join(f"{m:g}" for m in dict.fromkeys(minutes))
    return NOTHING if value is None else f"{value:g}"
