"""From run folders to a report: collect, tabulate, draw, and write every file whole or not at all.

    index.html                    all of it on one page
    tables.md, *.csv, *.tex       the tables
    results.csv                   every number that counts, one per row
    figures/*.svg, figures/*.png  the figures of the page, to the byte

A report in the same folder is replaced; files that are not of a report are left alone.

Everything of the page is in its file, it runs no script and asks no server for anything: its policy forbids the browser to load anything
but the images inside it. A figure opens large by its own address (`#figure`), which style sheets can see, so the page needs no script and
holds every image once.
"""

from __future__ import annotations

import base64
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from ... import __version__
from ..._files import atomic_write, ensure_folder, first_line, read_json
from ...errors import SapcError
from ...tasks import get_task, task_names
from ..results import Collection, Problem, collect, write_rows
from . import notes as words
from .data import ReportData, order_tasks, task_label
from .figures import Figure, FigureData, pyplot, task_figures
from .format import Table
from .tables import ReportTable, report_tables, write_files, write_tables

Progress = Callable[[str, int, int], None]
"""Called with what is being done, (parts done, parts in all)."""
FIGURE_FILE = re.compile(r"[a-z0-9_]+-(tradeoff|ensembles|trajectories|examples)\.(svg|png)")
MARK = '<meta name="generator" content="sapc report">'
OPEN_PROBLEMS = 6  # problems that are listed openly
KINDS = {
    "failed": "failed",
    "missing": "missing",
    "unfinished": "unfinished",
    "corrupt": "damaged",
    "left_out": "left out",
}
"""Kinds of problems as the page calls them, the gravest first."""


@dataclass(frozen=True)
class Report:
    """What was written, what did not count, and per task which figures are not there and why."""

    folder: Path
    files: list[Path] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)

    @property
    def page(self) -> Path:
        """The file to open."""
        return self.folder / "index.html"


def make_report(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    title: str = "",
    progress: Progress | None = None,
) -> Report:
    """Make a report about all scores in and below these folders or files."""
    tell = progress or (lambda what, done, total: None)
    out = Path(out)
    check_out(out)
    # Fail early if matplotlib or jinja2 is missing.
    pyplot()
    template()
    tell("collecting", 0, 1)
    collection = collect(paths)
    if not collection.files:
        raise SapcError(_describe_nothing(paths, collection))
    data = ReportData(collection)
    tables = report_tables(data)
    figures, notes = draw_all(data, tell)
    tell("writing", 0, 1)
    with ensure_folder(out):
        written = [*write_tables(tables, out), out / "results.csv"]
        written += write_files({figure.file: figure.data for figure in figures}, out / "figures", FIGURE_FILE)
        write_rows(data.rows, out / "results.csv")
        # The page comes last: it tells of the rest.
        written.append(write_page(collection, tables, figures, out, title, notes))
    return Report(out, sorted(written), collection.problems, notes)


def draw_all(data: ReportData, progress: Progress) -> tuple[list[Figure], dict[str, list[str]]]:
    """Draw the figures of all tasks; return them, and per task what is not there. One that fails is a note."""
    figures: list[Figure] = []
    notes: dict[str, list[str]] = {}
    for done, task in enumerate(data.tasks):
        progress(f"drawing {task}", done, len(data.tasks))
        try:
            made, missing = task_figures(FigureData(data, task))
        except Exception as error:  # the other tasks are no worse for it
            made, missing = [], [f"no figures: {first_line(error)}"]
        figures += made
        if missing:
            notes[task] = missing
    return figures, notes


def check_out(out: Path) -> None:
    """Refuse before the work a place that a report does not belong in; nothing is created."""
    nearest = next(path for path in (out.absolute(), *out.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise SapcError(f"{nearest} is not a folder; --out takes a folder for the report")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise SapcError(f"cannot write to {out}: {nearest} cannot be written to; choose another --out")
    for folder in (nearest, *nearest.parents):
        if _is_run(folder):
            raise SapcError(f"{folder} is the folder of a run; choose an --out outside of it")
    page, figures = out / "index.html", out / "figures"
    if page.exists() and not is_page(page):
        raise SapcError(f"{page} is there and is not the page of a report; choose another --out")
    if figures.exists() and not figures.is_dir():
        raise SapcError(f"{figures} is not a folder, but figures go there; choose another --out")


def _is_run(folder: Path) -> bool:
    config = folder / "config.json"
    try:
        return config.is_file() and str(read_json(config).get("format")).startswith("sapc-run-")
    except SapcError:
        return False


def _describe_nothing(paths: Sequence[str | os.PathLike[str]], collection: Collection) -> str:
    where = ", ".join(str(path) for path in paths) or "no folder at all"
    if not collection.problems:
        return f"there are no scores in {where}; run `sapc evaluate` on trained runs first"
    first, number = collection.problems[0], len(collection.problems)
    return f"there are no scores that count in {where}; {number} problems, the first one: {first}"


# -- the page --


def write_page(
    collection: Collection,
    tables: Sequence[ReportTable],
    figures: Sequence[Figure],
    out: str | os.PathLike[str],
    title: str = "",
    notes: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Write `out/index.html` and return its path; `notes` say per task which figures are not there, and why."""
    text = render_page(collection, tables, figures, title, notes)
    with ensure_folder(out) as folder, atomic_write(folder / "index.html") as partial:
        partial.write_text(text, encoding="utf-8")
    return Path(out) / "index.html"


def render_page(
    collection: Collection,
    tables: Sequence[ReportTable],
    figures: Sequence[Figure],
    title: str = "",
    notes: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return the text of the page."""
    notes = notes or {}
    facts, shared = words.facts(collection), words.shared_notes(tables)
    cards = {table.name: _describe_table(table, shared) for table in tables}
    cost = cards.pop("cost", None)
    order = list(KINDS)
    counts: Counter[str] = Counter(p.kind for p in collection.problems)
    sections = order_tasks(sorted({*(figure.task for figure in figures), *notes}))
    text: str = template().render(
        title=title or "Results" + (f" of {', '.join(collection.studies)}" if collection.studies else ""),
        version=__version__,
        mark=MARK,
        facts=facts,
        warnings=words.warnings(tables),
        presets=dict(facts).get("Presets", ""),
        shared=shared,
        references=words.references(collection),
        problems=sorted(
            collection.problems, key=lambda p: (order.index(p.kind), p.task, p.method, p.seed or 0)
        ),
        counted=", ".join(f"{counts[kind]} {name}" for kind, name in KINDS.items() if counts[kind]),
        kinds=KINDS,
        few=OPEN_PROBLEMS,
        tables=list(cards.values()),
        cost=[cost] if cost else [],
        figures=figures,
        overview=[figure for figure in figures if figure.name.endswith("-tradeoff")],
        sections={name: get_task(name) if name in task_names() else None for name in sections},
        notes=notes,
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
    environment.filters |= {
        "table": lambda table: Markup(table.html()),
        "address": _address,
        "raw": Markup,
        "task_label": task_label,
    }
    return environment.from_string(ours.joinpath("page.html").read_text(encoding="utf-8"))


def _address(figure: Figure) -> str:
    """Return the image itself, as an address."""
    kind = {"svg": "svg+xml", "png": "png"}[figure.kind]
    return f"data:image/{kind};base64,{base64.b64encode(figure.data).decode()}"


def _describe_table(table: ReportTable, shared: Sequence[str]) -> dict[str, Any]:
    """Split a table by tasks, so that it fits a narrow screen, and leave out notes that are said elsewhere."""
    parts = []
    for task in dict.fromkeys(row[0] for row in table.rows):
        place = {i: k for k, i in enumerate(i for i, row in enumerate(table.rows) if row[0] == task)}
        bold, second_best = (
            frozenset((place[i], j - 2) for i, j in marks if i in place)
            for marks in (table.best, table.second_best)
        )
        # Of task, metric and whose, one column is enough in a part.
        rows = [(_row_head(*table.rows[i][1:3]), *table.rows[i][3:]) for i in place]
        parts.append(Table(task, ("metric", *table.columns[3:]), rows, bold, second_best))
    notes = [note for note in table.notes if note not in shared]
    return {"name": table.name, "title": table.title, "notes": notes, "parts": parts}


def _row_head(metric: str, whose: str) -> str:
    return metric if whose == "ours" else f"{metric} ({whose})"
