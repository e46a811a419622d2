"""The report as one HTML page: everything is in the file, it runs no script and asks no server for anything.

Its policy forbids the browser to load anything but the images inside it. A figure opens large by its own address (`#figure`), which style
sheets can see, so the page needs no script and holds every image once.
"""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from ... import __version__
from ..._files import folder_for, replacing
from ...errors import SapcError
from ...methods import paper
from ...tasks import get_task, task_names
from ..results import Collected
from . import facts
from .drawing import Figure
from .format import Table
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


@dataclass(frozen=True)
class Titled:
    """A table on the page, in parts that fit a narrow screen: the rows of one task each."""

    name: str
    title: str
    notes: Sequence[str]
    parts: list[Table]


@dataclass(frozen=True)
class Section:
    """A task on the page: its name in addresses, what it is called, what it is about, its figures, and what is not there."""

    name: str
    title: str
    about: Sequence[tuple[str, str]] = ()
    figures: list[Figure] = field(default_factory=list)
    notes: Sequence[str] = ()


def write_page(
    collected: Collected,
    tables: Sequence[ReportTable],
    figures: Sequence[Figure],
    out: str | os.PathLike[str],
    title: str = "",
    notes: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Write `out/index.html` and return its path; `notes` say per task which figures are not there, and why."""
    text = page(collected, tables, figures, title, notes or {})
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
    """The text of the page."""
    shared = facts.shared_notes(tables)
    shown = [_titled(table, shared) for table in tables]
    text: str = template().render(
        title=title or "Results" + (f" of {', '.join(collected.studies)}" if collected.studies else ""),
        version=__version__,
        paper=paper.SOURCE,
        mark=MARK,
        facts=facts.facts(collected),
        warnings=facts.warnings(tables),
        presets=facts.presets(collected),
        shared=shared,
        references=facts.references(collected),
        problems=_problems(collected),
        few=FEW,
        tables=[table for table in shown if table.name != "cost"],
        cost=[table for table in shown if table.name == "cost"],
        overview=[figure for figure in figures if figure.name.endswith("-tradeoff")],
        sections=_sections(figures, notes or {}),
    )
    return text


def is_page(path: Path) -> bool:
    """Whether a file is a page of this kind."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return MARK in file.read(4096)
    except OSError:
        return False


def template() -> Any:
    """The page without its content; complains where what it needs is missing."""
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
    """The image itself, as an address."""
    kind = {"svg": "svg+xml", "png": "png"}[figure.kind]
    return f"data:image/{kind};base64,{base64.b64encode(figure.data).decode()}"


def _problems(collected: Collected) -> dict[str, Any]:
    """How many of which kind, and one line for each, the gravest first."""
    order = list(KINDS)
    found = sorted(collected.problems, key=lambda p: (order.index(p.kind), p.task, p.method, p.seed or 0))
    counts: Counter[str] = Counter(p.kind for p in found)
    return {
        "summary": ", ".join(f"{counts[kind]} {word}" for kind, word in KINDS.items() if counts[kind]),
        "rows": [
            {
                "kind": KINDS[p.kind],
                "of": " ".join(filter(None, (p.task, p.method, "" if p.seed is None else f"seed {p.seed}"))),
                "path": str(p.path),
                "why": p.why,
            }
            for p in found
        ],
    }


def _titled(table: ReportTable, shared: Sequence[str]) -> Titled:
    """A table without notes that are said elsewhere; where task, metric and whose say what a row is, one column is enough in a part."""
    notes = [note for note in table.notes if note not in shared]
    if table.heads != 3:
        return Titled(table.name, table.title, notes, [replace(table, notes=())])
    parts = []
    for task in dict.fromkeys(row[0] for row in table.rows):
        place = {i: k for k, i in enumerate(i for i, row in enumerate(table.rows) if row[0] == task)}
        bold, underlined = (
            frozenset((place[i], j - 2) for i, j in marks if i in place)
            for marks in (table.bold, table.underlined)
        )
        rows = [(_row_head(*table.rows[i][1:3]), *table.rows[i][3:]) for i in place]
        parts.append(Table(task, ("metric", *table.columns[3:]), rows, bold, underlined))
    return Titled(table.name, table.title, notes, parts)


def _row_head(metric: str, whose: str) -> str:
    return metric if whose == "ours" else f"{metric} ({whose})"


def _sections(figures: Sequence[Figure], notes: Mapping[str, Sequence[str]]) -> list[Section]:
    """The figures task by task; that of fidelity against constraints stands in the overview."""
    known = list(task_names())
    names = dict.fromkeys([*(figure.task for figure in figures), *notes])
    order = sorted(names, key=lambda name: (known.index(name) if name in known else len(known), name))
    return [
        Section(
            name,
            paper.TASK_LABELS.get(name, name),
            _about(name),
            [f for f in figures if f.task == name and not f.name.endswith("-tradeoff")],
            notes.get(name, ()),
        )
        for name in order
    ]


def _about(name: str) -> list[tuple[str, str]]:
    if name not in task_names():
        return []
    task = get_task(name)
    return [("Equation", task.equation), ("Pinned", task.pinned), ("Law", task.law)]
