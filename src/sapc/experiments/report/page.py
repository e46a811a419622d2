"""The report as one HTML page: everything is in the file, it runs no script and asks no server for anything.

Its policy forbids the browser to load anything but the images inside it. A figure opens large by its own address (`#figure`), which style
sheets can see, so the page needs no script and holds every image once.
"""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from ... import __version__
from ..._files import folder_for, replacing
from ...errors import SapcError
from ...methods import paper
from ...tasks import get_task, task_names
from ..results import Collected
from . import notes as words
from .figures import Figure
from .format import Table
from .labels import order_tasks, task_label
from .tables import ReportTable

MARK = '<meta name="generator" content="sapc report">'
FEW = 6  # problems that are listed openly
KINDS = {
    "failed": "failed",
    "missing": "missing",
    "unfinished": "unfinished",
    "corrupt": "damaged",
    "left_out": "left out",
}


def write_page(
    collected: Collected,
    tables: Sequence[ReportTable],
    figures: Sequence[Figure],
    out: str | os.PathLike[str],
    title: str = "",
    notes: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Write `out/index.html` and return its path; `notes` say per task which figures are not there, and why."""
    text = page(collected, tables, figures, title, notes)
    with folder_for(out) as folder, replacing(folder / "index.html") as partial:
        partial.write_text(text, encoding="utf-8")
    return Path(out) / "index.html"


def page(
    collected: Collected,
    tables: Sequence[ReportTable],
    figures: Sequence[Figure],
    title: str = "",
    notes: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return the text of the page."""
    shared = words.shared_notes(tables)
    cards = {table.name: _describe_table(table, shared) for table in tables}
    cost = cards.pop("cost", None)
    text: str = template().render(
        title=title or "Results" + (f" of {', '.join(collected.studies)}" if collected.studies else ""),
        version=__version__,
        paper=paper.SOURCE,
        mark=MARK,
        facts=words.facts(collected),
        warnings=words.warnings(tables),
        presets=words.presets(collected),
        shared=shared,
        references=words.references(collected),
        problems=_describe_problems(collected),
        few=FEW,
        tables=list(cards.values()),
        cost=[cost] if cost else [],
        overview=[figure for figure in figures if figure.name.endswith("-tradeoff")],
        sections=_sections(figures, notes or {}),
    )
    return text


def is_page(path: Path) -> bool:
    """Tell whether a file is a page of this kind."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return MARK in file.read(4096)
    except OSError:
        return False


def template() -> Any:
    """Return the page without its content; an error says what it needs where that is missing."""
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError as error:
        raise SapcError("the page needs jinja2; install it with: pip install 'sapc[report]'") from error
    ours = files("sapc.experiments.report")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.globals["style"] = Markup(ours.joinpath("page.css").read_text(encoding="utf-8"))
    environment.filters["table"] = lambda table: Markup(table.html())
    environment.filters["address"] = _address
    environment.filters["raw"] = Markup
    return environment.from_string(ours.joinpath("page.html").read_text(encoding="utf-8"))


def _address(figure: Figure) -> str:
    """Return the image itself, as an address."""
    kind = {"svg": "svg+xml", "png": "png"}[figure.kind]
    return f"data:image/{kind};base64,{base64.b64encode(figure.data).decode()}"


def _describe_problems(collected: Collected) -> dict[str, Any]:
    """Return how many there are of which kind, and one line for each, the gravest first."""
    order = list(KINDS)
    found = sorted(collected.problems, key=lambda p: (order.index(p.kind), p.task, p.method, p.seed or 0))
    counts: Counter[str] = Counter(p.kind for p in found)
    rows = []
    for p in found:
        of = " ".join(filter(None, (p.task, p.method, "" if p.seed is None else f"seed {p.seed}")))
        rows.append({"kind": KINDS[p.kind], "of": of, "path": str(p.path), "why": p.why})
    return {
        "summary": ", ".join(f"{counts[kind]} {KINDS[kind]}" for kind in order if counts[kind]),
        "rows": rows,
    }


def _describe_table(table: ReportTable, shared: Sequence[str]) -> dict[str, Any]:
    """Split a table by tasks, so that it fits a narrow screen, and leave out notes that are said elsewhere."""
    notes = [note for note in table.notes if note not in shared]
    about = {"name": table.name, "title": table.title, "notes": notes}
    if table.heads != 3:
        return about | {"parts": [replace(table, notes=())]}
    parts = []
    for task in dict.fromkeys(row[0] for row in table.rows):
        place = {i: k for k, i in enumerate(i for i, row in enumerate(table.rows) if row[0] == task)}
        bold, underlined = (
            frozenset((place[i], j - 2) for i, j in marks if i in place)
            for marks in (table.bold, table.underlined)
        )
        # Of task, metric and whose, one column is enough in a part.
        rows = [(_row_head(*table.rows[i][1:3]), *table.rows[i][3:]) for i in place]
        parts.append(Table(task, ("metric", *table.columns[3:]), rows, bold, underlined))
    return about | {"parts": parts}


def _row_head(metric: str, whose: str) -> str:
    return metric if whose == "ours" else f"{metric} ({whose})"


def _sections(figures: Sequence[Figure], notes: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Return the figures task by task; that of fidelity against constraints stands in the overview."""
    sections = []
    for name in order_tasks(sorted({*(figure.task for figure in figures), *notes})):
        task = get_task(name) if name in task_names() else None
        sections.append({
            "name": name,
            "title": task_label(name),
            "about": [("Equation", task.equation), ("Pinned", task.pinned), ("Law", task.law)] if task else [],
            "figures": [f for f in figures if f.task == name and not f.name.endswith("-tradeoff")],
            "notes": notes.get(name, ()),
        })  # fmt: skip
    return sections
