"""The tables of a report: ours beside the paper's, task by task and metric by metric.

    generation   MMSE, SMSE, FPD and CE of SAPC and the methods it is compared with
    supplement   W2, CE_L and CE_G of the same
    ablation     all seven of SAPC, its parts, FFM and condFFM
    cost         network evaluations, time, memory and training

Every metric has a line of ours and a line of the paper's. Within a line the lowest number is bold and the next one underlined, alike those
that read alike; constraint errors that are rounding are alike. Not ranked are what the paper does not rank (condFFM, which is conditioned;
the time of FFM, the measure of the others) and what cannot be compared with the rest of the line: fewer samples have a higher floor, other
test sets are other problems. Where a study says which methods it asks for, the others have no column.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

from ..._files import folder_for, replacing
from ...methods import paper
from .. import results
from . import table_notes
from .drawing import in_order
from .format import NOTHING, compact
from .table_cost import cost_table
from .table_parts import Lines, Ours, Record, ReportTable, ranks, task_label

__all__ = ["Record", "ReportTable", "report_tables", "write_tables"]

NAMES = frozenset(("generation", "supplement", "ablation", "cost"))
UNRANKED = {"ablation": ("cond_ffm",)}  # it is conditioned, and the paper does not rank it either


def report_tables(collected: results.Collected) -> list[ReportTable]:
    """Generation, supplement, ablation (each where a method of its own is asked for) and cost."""
    ours = Ours(collected)
    found = list(dict.fromkeys((*ours.methods, *collected.asked)))
    others = in_order(m for m in found if m not in (*paper.METHODS, *paper.ABLATION_METHODS))
    compared, ablated = ours.wanted((*paper.METHODS, *others)), ours.wanted(paper.ABLATION_METHODS)
    every = ours.wanted((*paper.METHODS, *in_order(m for m in found if m not in paper.METHODS)))
    made = []
    if compared:
        made.append(_means(ours, "generation", "Generation", paper.GENERATION, compared))
        made.append(_means(ours, "supplement", "Generation, further metrics", paper.SUPPLEMENT, compared))
    if set(ablated) - set(paper.METHODS):  # without any of the ablations it would say the same again
        made.append(_means(ours, "ablation", "Ablation of SAPC", paper.ABLATION, ablated))
    return [*made, cost_table(ours, every)]


def write_tables(tables: Sequence[ReportTable], folder: str | os.PathLike[str]) -> list[Path]:
    """Write `tables.md`, and of every table `<name>.csv` with its numbers and `<name>.tex`; returns their paths.

    Files of a table that is not there any more are removed.
    """
    written = []
    with folder_for(folder) as place:
        for name in NAMES - {table.name for table in tables}:  # of an earlier report
            for kind in ("csv", "tex"):
                (place / f"{name}.{kind}").unlink(missing_ok=True)
        texts = {"tables.md": "# Tables\n\n" + "\n".join(table.section() for table in tables)}
        texts |= {f"{table.name}.tex": table.latex() for table in tables}
        for name, text in texts.items():
            with replacing(place / name) as partial:
                partial.write_text(text, encoding="utf-8")
            written.append(place / name)
        for table in tables:
            path = place / f"{table.name}.csv"
            with replacing(path) as partial, open(partial, "w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(f.name for f in fields(Record))
                writer.writerows(map(astuple, table.records))
            written.append(path)
    return written


def _means(ours: Ours, name: str, title: str, metrics: Sequence[str], methods: Sequence[str]) -> ReportTable:
    lines, records = Lines(methods), []
    source = "ablation" if name == "ablation" else "generation"
    ranked = [m for m in methods if m not in UNRANKED.get(name, ())]
    for task in ours.tasks:
        most = max(ours.samples(task, m) for m in methods)
        for metric in metrics:
            heads = (task_label(task), paper.METRIC_LABELS[metric])
            order = ranks(ours.rivals(task, ranked, metric), metric)
            cells = [_cell(ours, task, m, metric, most) for m in methods]
            lines.add((*heads, "ours"), cells, (ours.floor_text(task, metric, methods),), order)
            printed = {m: p for m in methods if (p := paper.printed(source, task, metric, m))}
            cells = [compact(printed[m].mean, printed[m].error) if m in printed else NOTHING for m in methods]
            theirs = ranks({m: p.mean for m, p in printed.items() if m in ranked})
            lines.add((*heads, "paper"), cells, (NOTHING,), theirs)
            records += [_record(ours, name, task, metric, m, printed.get(m), order.get(m)) for m in methods]
    return lines.table(name, title, ("floor",), table_notes.of_means(ours, name, methods), records)


def _cell(ours: Ours, task: str, method: str, metric: str, most: int) -> str:
    found = ours.summaries.get((task, method, metric))
    if found is None:
        return ours.absent(task, method, metric)
    number = ours.samples(task, method)
    return compact(found.mean, found.error) + (f" (n={number})" if number < most else "")


def _record(
    ours: Ours,
    name: str,
    task: str,
    metric: str,
    method: str,
    printed: paper.Printed | None,
    rank: int | None,
) -> Record:
    found = ours.summaries.get((task, method, metric))
    floor = ours.floors.get((task, metric, ours.samples(task, method)))
    return Record(
        name, task, metric, method,
        found.mean if found else None, found.error if found else None, found.n if found else 0,
        floor.mean if floor else None,
        printed.mean if printed else None, printed.error if printed else None,
        rank,
    )  # fmt: skip
