"""What sampling and training cost: medians over seeds x test sets, of one device per task.

Time relative to FFM is the ratio of medians. The time of a test set is that of one sample times the published number of samples, so that
methods that were given fewer stand in the same line.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...methods import paper
from . import table_notes
from .format import NO_FFM, NOT_RECORDED, NOTHING
from .table_parts import Lines, Ours, Record, ReportTable, method_label, ranks, task_label

COSTS = {
    "nfe": "NFE",
    "ms_per_sample": "ms per sample",
    "times_ffm": "× FFM",
    "total_s": "s per test set",
    "peak_memory": "peak memory, GiB",
    "training": "training, min",
}
OF = {"nfe": "evaluations", "peak_memory": "peak_memory", "training": "training_seconds"}
UNIT = {"nfe": 1.0, "ms_per_sample": 1e-3, "total_s": 1.0, "peak_memory": 2.0**30, "training": 60.0}
RANKED = ("ms_per_sample", "total_s")
Values = dict[str, dict[str, float]]


def cost_table(ours: Ours, methods: Sequence[str]) -> ReportTable:
    """The table."""
    lines, records = Lines(methods), []
    for task in ours.tasks:
        values = _values(ours, task, methods)
        for name, label in COSTS.items():
            heads, own = (task_label(task), label), values[name]
            # FFM is what the others are measured by.
            order = ranks({m: v for m, v in own.items() if m != "ffm"}) if name in RANKED else {}
            cells = [_short(own[m]) if m in own else _absent(ours, task, m, name) for m in methods]
            lines.add((*heads, "ours"), cells, (), order)
            printed = {m: v for m in methods if (v := _printed(task, m, name)) is not None}
            if name != "peak_memory":
                theirs = {m: v for m, v in printed.items() if m != "ffm"} if name in RANKED else {}
                cells = [_paper_cell(task, m, name, printed.get(m)) for m in methods]
                lines.add((*heads, "paper"), cells, (), ranks(theirs))
            records += [
                Record(
                    "cost", task, name, m, own.get(m), n=_count(ours, task, m, name), paper_mean=printed.get(m),
                    rank=order.get(m), statistic="median",
                )
                for m in methods
            ]  # fmt: skip
    return lines.table("cost", "Inference cost", (), table_notes.of_cost(ours, methods), records)


def _values(ours: Ours, task: str, methods: Sequence[str]) -> Values:
    found: Values = {name: {} for name in COSTS}
    for m in methods:
        for name in COSTS:
            summary = ours.summaries.get((task, m, OF.get(name, "seconds_per_sample")))
            if summary is not None and name != "times_ffm":
                found[name][m] = summary.median / UNIT[name]
    number = paper.protocol().samples.get(task)
    found["total_s"] = {m: v * (number or ours.samples(task, m)) for m, v in found["total_s"].items()}
    times = found["ms_per_sample"]
    if times.get("ffm"):
        found["times_ffm"] = {m: v / times["ffm"] for m, v in times.items() if m != "ffm"}
    return found


def _count(ours: Ours, task: str, method: str, name: str) -> int:
    found = ours.summaries.get((task, method, OF.get(name, "seconds_per_sample")))
    return found.n if found else 0


def _absent(ours: Ours, task: str, method: str, name: str) -> str:
    """What stands in place of a number: nothing to compare FFM with, the training of another method, or what is missing."""
    scored = ours.collected.of(task, method)
    if not scored:
        return ours.absent(task, method, name)
    weights = scored[0].scores["run"]["method"]
    if name == "training" and weights != method:
        return f"of {method_label(weights)}"
    if name == "times_ffm" and (method == "ffm" or (task, "ffm", "seconds_per_sample") not in ours.summaries):
        return NOTHING if method == "ffm" else NO_FFM
    return NOT_RECORDED


def _printed(task: str, method: str, name: str) -> float | None:
    """One number; a range of minutes is none."""
    if name == "training":
        minutes = set(paper.training_minutes(task, method) or ())
        return minutes.pop() if len(minutes) == 1 else None
    cost = paper.printed_cost(task, method)
    value = getattr(cost, name, None) if cost else None
    return None if value is None else float(value)


def _paper_cell(task: str, method: str, name: str, value: float | None) -> str:
    if name == "training" and (minutes := paper.training_minutes(task, method)):
        return "–".join(f"{m:g}" for m in dict.fromkeys(minutes))
    return NOTHING if value is None else f"{value:g}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
