"""The tables of a report: ours beside the paper's, task by task and metric by metric.

    generation   MMSE, SMSE, FPD and CE of SAPC and the methods it is compared with
    supplement   W2, CE_L and CE_G of the same
    ablation     all seven of SAPC, its parts, FFM and condFFM
    cost         network evaluations, time, memory and training

Every metric has a line of ours and a line of the paper's. Within a line the lowest number is bold and the next one underlined, alike those
that read alike; constraint errors that are rounding are alike. Not ranked are what the paper does not rank (condFFM, which is conditioned;
the time of FFM, the measure of the others) and what cannot be compared with the rest of the line: fewer samples have a higher floor, other
test sets are other problems. Where a study says which methods it asks for, the others have no column.

Costs are medians over seeds x test sets, of one device per task; time relative to FFM is the ratio of medians. The time of a test set is
that of one sample times the published number of samples, so that methods that were given fewer stand in the same line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from itertools import product
from pathlib import Path

from ..._files import atomic_write, ensure_folder
from ...methods import paper
from . import notes
from .data import ReportData, method_label, order_methods, task_label
from .format import NO_FFM, NOT_RECORDED, NOTHING, Table, compact, write_csv

CONSTRAINTS = ("ce", "ce_local", "ce_global")
ROUNDING = 1e-12  # constraint errors below it are no merit of a method
FILE = re.compile(r"(generation|supplement|ablation|cost)\.(csv|tex)")
UNRANKED = {"ablation": ("cond_ffm",)}  # it is conditioned, and the paper does not rank it either
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
    """One cell for a machine; `statistic` says whether `mean` is a mean or, of costs, a median; rank 1 is best."""

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
    """Rows under way, with their marks and numbers."""

    methods: Sequence[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    marks: dict[tuple[int, int], int] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)

    def add(self, heads: Sequence[str], cells: Sequence[str], order: Mapping[str, int], *end: str) -> None:
        """Add a line; `order` holds the ranks of methods that have one."""
        for j, method in enumerate(self.methods):
            self.marks[len(self.rows), len(heads) + j] = order.get(method, 0)
        self.rows.append((*heads, *cells, *end))

    def table(self, name: str, title: str, notes: Sequence[str], *end: str) -> ReportTable:
        """Return the finished table; `end` are the columns after the methods."""
        columns = ("task", "metric", "whose", *map(method_label, self.methods), *end)
        best, second = (frozenset(place for place, rank in self.marks.items() if rank == n) for n in (1, 2))
        about = tuple(notes), name, tuple(self.records)
        return ReportTable(title, columns, self.rows, best, second, 3, *about)


def report_tables(data: ReportData) -> list[ReportTable]:
    """Make generation, supplement, ablation (each where a method of its own is asked for) and cost."""
    found = list(dict.fromkeys((*data.methods, *data.collection.study_methods)))
    others = order_methods(m for m in found if m not in (*paper.METHODS, *paper.ABLATION_METHODS))
    compared, ablated = (
        data.select_requested((*paper.METHODS, *others)),
        data.select_requested(paper.ABLATION_METHODS),
    )
    every = data.select_requested(
        (*paper.METHODS, *order_methods(m for m in found if m not in paper.METHODS))
    )
    made = []
    if compared:
        made.append(_means(data, "generation", "Generation", paper.GENERATION, compared))
        made.append(_means(data, "supplement", "Generation, further metrics", paper.SUPPLEMENT, compared))
    # Without any of the ablations it would say the same again.
    if set(ablated) - set(paper.METHODS):
        made.append(_means(data, "ablation", "Ablation of SAPC", paper.ABLATION, ablated))
    return [*made, _costs(data, every)]


def write_tables(tables: Sequence[ReportTable], folder: str | os.PathLike[str]) -> list[Path]:
    """Write `tables.md`, and of every table `<name>.csv` with its numbers and `<name>.tex`; return their paths.

    Files of a table that is not there any more are removed.
    """
    texts = {"tables.md": "# Tables\n\n" + "\n".join(table.section() for table in tables)}
    columns = tuple(one.name for one in fields(Record))
    for table in tables:
        texts[f"{table.name}.tex"] = table.latex()
        texts[f"{table.name}.csv"] = write_csv((columns, *map(astuple, table.records)))
    return write_files({name: text.encode() for name, text in texts.items()}, Path(folder), FILE)


def write_files(files: Mapping[str, bytes], folder: Path, ours: re.Pattern[str]) -> list[Path]:
    """Write every file whole or not at all; others whose names are `ours`, of an earlier report, are removed."""
    with ensure_folder(folder):
        for name, data in files.items():
            with atomic_write(folder / name) as partial:
                partial.write_bytes(data)
        for path in folder.iterdir():
            if ours.fullmatch(path.name) and path.name not in files:
                path.unlink()
    return [folder / name for name in files]


def ranks(values: Mapping[str, float], metric: str = "") -> dict[str, int]:
    """Return 1 for the lowest, 2 for the next one, those alike that read alike; a single number has no rank."""
    # A cell has two digits, and constraint errors that are rounding are alike.
    is_rounding = {name: metric in CONSTRAINTS and value < ROUNDING for name, value in values.items()}
    shown = {name: 0.0 if is_rounding[name] else float(f"{value:.1e}") for name, value in values.items()}
    order = sorted(set(shown.values()))
    return {name: 1 + order.index(value) for name, value in shown.items()} if len(values) > 1 else {}


# -- means --


def _means(
    data: ReportData, name: str, title: str, metrics: Sequence[str], methods: Sequence[str]
) -> ReportTable:
    lines = TableBuilder(methods)
    source = "ablation" if name == "ablation" else "generation"
    ranked = [m for m in methods if m not in UNRANKED.get(name, ())]
    for task, metric in product(data.tasks or paper.TASKS, metrics):
        heads = (task_label(task), paper.METRIC_LABELS[metric])
        order = ranks(data.comparable(task, ranked, metric), metric)
        cells = [_cell(data, task, m, metric, methods) for m in methods]
        lines.add((*heads, "ours"), cells, order, data.floor_text(task, metric, methods))
        printed = {m: p for m in methods if (p := paper.printed_mean(source, task, metric, m))}
        cells = [compact(printed[m].mean, printed[m].error) if m in printed else NOTHING for m in methods]
        theirs = ranks({m: p.mean for m, p in printed.items() if m in ranked})
        lines.add((*heads, "paper"), cells, theirs, NOTHING)
        for m in methods:
            own, other = data.means.get((task, m, metric)), printed.get(m)
            floor = data.floors.get((task, metric, data.samples(task, m)))
            lines.records.append(
                Record(
                    name, task, metric, m, own.mean if own else None, own.error if own else None, own.n if own else 0,
                    floor.mean if floor else None, other.mean if other else None, other.error if other else None,
                    order.get(m),
                )
            )  # fmt: skip
    return lines.table(name, title, notes.notes_of_means(data, name, methods), "floor")


def _cell(data: ReportData, task: str, method: str, metric: str, methods: Sequence[str]) -> str:
    found = data.means.get((task, method, metric))
    if found is None:
        return data.absence(task, method, metric)
    number, most = data.samples(task, method), max(data.samples(task, m) for m in methods)
    return compact(found.mean, found.error) + (f" (n={number})" if number < most else "")


# -- cost --


def _costs(data: ReportData, methods: Sequence[str]) -> ReportTable:
    lines = TableBuilder(methods)
    for task in data.tasks or paper.TASKS:
        values = _cost_values(data, task, methods)
        for name, (label, metric, _) in COSTS.items():
            heads, own = (task_label(task), label), values[name]
            printed = {m: v for m in methods if (v := _printed_cost(task, m, name)) is not None}
            # FFM is what the others are measured by.
            ranked = [m for m in methods if m != "ffm" and name in RANKED_COSTS]
            order, theirs = (ranks({m: some[m] for m in ranked if m in some}) for some in (own, printed))
            cells = [_short(own[m]) if m in own else _cost_absence(data, task, m, name) for m in methods]
            lines.add((*heads, "ours"), cells, order)
            if name != "peak_memory":
                cells = [_printed_cell(task, m, name, printed.get(m)) for m in methods]
                lines.add((*heads, "paper"), cells, theirs)
            for m in methods:
                n = found.n if (found := data.means.get((task, m, metric))) else 0
                about = (own.get(m), None, n, None, printed.get(m), None, order.get(m), "median")
                lines.records.append(Record("cost", task, name, m, *about))
    return lines.table("cost", "Inference cost", notes.notes_of_cost(data, methods))


def _cost_values(data: ReportData, task: str, methods: Sequence[str]) -> dict[str, dict[str, float]]:
    found = {
        name: {m: s.median / unit for m in methods if (s := data.means.get((task, m, metric)))}
        for name, (_, metric, unit) in COSTS.items()
    }
    number = paper.protocol().samples.get(task)
    found["total_s"] = {m: v * (number or data.samples(task, m)) for m, v in found["total_s"].items()}
    times = found["ms_per_sample"]
    others = {m: v for m, v in times.items() if m != "ffm" and times.get("ffm")}
    found["times_ffm"] = {m: v / times["ffm"] for m, v in others.items()}
    return found


def _cost_absence(data: ReportData, task: str, method: str, name: str) -> str:
    """Return what stands in place of a number: nothing to compare FFM with, the training of another method, or what is missing."""
    scored = data.collection.of(task, method)
    if not scored:
        return data.absence(task, method, name)
    weights = scored[0].scores.run.method
    if name == "training" and weights != method:
        return f"of {method_label(weights)}"
    if name == "times_ffm" and method == "ffm":
        return NOTHING
    if name == "times_ffm" and (task, "ffm", "seconds_per_sample") not in data.means:
        return NO_FFM
    return NOT_RECORDED


def _printed_cost(task: str, method: str, name: str) -> float | None:
    """Return one number; a range of minutes is none."""
    if name == "training":
        minutes = set(paper.training_minutes(task, method) or ())
        return minutes.pop() if len(minutes) == 1 else None
    value = getattr(paper.printed_cost(task, method), name, None)
    return None if value is None else float(value)


def _printed_cell(task: str, method: str, name: str, value: float | None) -> str:
    if name == "training" and (minutes := paper.training_minutes(task, method)):
        return "–".join(f"{m:g}" for m in dict.fromkeys(minutes))
    return NOTHING if value is None else f"{value:g}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
