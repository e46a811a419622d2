"""Make a report from run folders: collect, tabulate, draw, and write every file whole or not at all.

    index.html                    all of it on one page
    tables.md, *.csv, *.tex       the tables
    results.csv                   every number that counts, one per row
    figures/*.svg, figures/*.png  the figures of the page, to the byte

A report in the same folder is replaced; files that are not of a report are left alone.

Everything of the page is in its file. It runs no script and asks no server: its policy forbids the browser to
load anything but the images inside it. A figure opens large by its own address (`#figure`), which style
sheets can see, so the page holds every image once.
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
from . import notes as report_notes
from .data import ReportData, order_tasks, task_label
from .figures import Figure, FigureData, pyplot, task_figures
from .format import Table
from .tables import ReportTable, report_tables, write_files, write_tables

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""
FIGURE_FILE = re.compile(r"[a-z0-9_]+-(tradeoff|ensembles|trajectories|skill|examples)\.(svg|png)")
MARK = '<meta name="generator" content="sapc report">'
# As many problems are listed openly, more of them in a box that opens.
OPEN_PROBLEMS = 6
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
    """What `make_report` wrote.

    Attributes:
        folder: The folder of the report.
        files: All files of the report.
        problems: What does not count, and why.
        notes: Per task which figures are missing, and why.
    """

    folder: Path
    files: list[Path] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)

    @property
    def page(self) -> Path:
        """The page, to be opened in a browser."""
        return self.folder / "index.html"


def make_report(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    title: str = "",
    progress: Progress | None = None,
) -> Report:
    """Make a report about all scores in and below some folders or files.

    Args:
        paths: Folders of runs or studies, or files of scores.
        out: Folder of the report.
        title: Title of the page.
        progress: Called with (stage, done, total).

    Returns:
        What was written.

    Raises:
        SapcError: There are no scores, or `out` cannot take a report.
    """
    progress = progress or (lambda stage, done, total: None)
    out = Path(out)
    check_out(out)
    # Fail early if matplotlib or jinja2 is missing.
    pyplot()
    template()
    progress("collecting", 0, 1)
    collection = collect(paths)
    if not collection.files:
        raise SapcError(_describe_nothing(paths, collection))
    data = ReportData(collection)
    tables = report_tables(data)
    figures, notes = draw_all(data, progress)
    progress("writing", 0, 1)
    with ensure_folder(out):
        report_files = [*write_tables(tables, out), out / "results.csv"]
        report_files += write_files(
            {figure.file: figure.data for figure in figures}, out / "figures", FIGURE_FILE
        )
        write_rows(data.rows, out / "results.csv")
        # The page comes last: it shows the others.
        report_files.append(write_page(collection, tables, figures, out, title, notes))
    return Report(out, sorted(report_files), collection.problems, notes)


def draw_all(data: ReportData, progress: Progress) -> tuple[list[Figure], dict[str, list[str]]]:
    """Draw the figures of all tasks; return them, and notes on missing ones by task."""
    figures: list[Figure] = []
    notes: dict[str, list[str]] = {}
    for done, task in enumerate(data.tasks):
        progress(f"drawing {task}", done, len(data.tasks))
        try:
            drawings, reasons = task_figures(FigureData(data, task))
        except Exception as error:
            # The other tasks are drawn all the same.
            drawings, reasons = [], [f"no figures: {first_line(error)}"]
        figures += drawings
        if reasons:
            notes[task] = reasons
    return figures, notes


def check_out(out: Path) -> None:
    """Refuse a folder that cannot take a report, before the work; create nothing."""
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
    places = ", ".join(str(path) for path in paths) or "no folder at all"
    if not collection.problems:
        return f"there are no scores in {places}; run `sapc evaluate` on trained runs first"
    first, number = collection.problems[0], len(collection.problems)
    return f"there are no scores that count in {places}; {number} problems, the first one: {first}"


# -- the page --


def write_page(
    collection: Collection,
    tables: Sequence[ReportTable],
    figures: Sequence[Figure],
    out: str | os.PathLike[str],
    title: str = "",
    notes: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Write `out/index.html` and return its path; `notes` say by task which figures are missing, and why."""
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
    facts, shared_notes = report_notes.facts(collection), report_notes.shared_notes(tables)
    cards = {table.name: _describe_table(table, shared_notes) for table in tables}
    cost = cards.pop("cost", None)
    order = list(KINDS)
    counts: Counter[str] = Counter(p.kind for p in collection.problems)
    sections = order_tasks(sorted({*(figure.task for figure in figures), *notes}))
    text: str = template().render(
        title=title or "Results" + (f" of {', '.join(collection.studies)}" if collection.studies else ""),
        version=__version__,
        mark=MARK,
        facts=facts,
        warnings=report_notes.warnings(tables),
        presets=dict(facts).get("Presets", ""),
        shared=shared_notes,
        references=report_notes.references(collection),
        problems=sorted(
            collection.problems, key=lambda p: (order.index(p.kind), p.task, p.method, p.seed or 0)
        ),
        counted=", ".join(f"{counts[kind]} {name}" for kind, name in KINDS.items() if counts[kind]),
        kinds=KINDS,
        open_problems=OPEN_PROBLEMS,
        tables=list(cards.values()),
        cost=[cost] if cost else [],
        figures=figures,
        overview=[figure for figure in figures if figure.name.endswith("-tradeoff")],
        sections={name: get_task(name) if name in task_names() else None for name in sections},
        notes=notes,
    )
    return text


def is_page(path: Path) -> bool:
    """Return whether a file is the page of a report."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return MARK in file.read(4096)
    except OSError:
        return False


def template() -> Any:
    """Return the template of the page; jinja2 is needed from here on."""
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError as error:
        raise SapcError("the page needs jinja2; install it with: pip install 'sapc[report]'") from error
    resources = files("sapc.experiments.report")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.globals["style"] = Markup(resources.joinpath("page.css").read_text(encoding="utf-8"))
    environment.filters |= {
        "table": lambda table: Markup(table.html()),
        "address": _address,
        "raw": Markup,
        "task_label": task_label,
    }
    return environment.from_string(resources.joinpath("page.html").read_text(encoding="utf-8"))


def _address(figure: Figure) -> str:
    """Return an address that holds the image itself."""
    kind = {"svg": "svg+xml", "png": "png"}[figure.kind]
    return f"data:image/{kind};base64,{base64.b64encode(figure.data).decode()}"


def _describe_table(table: ReportTable, shared_notes: Sequence[str]) -> dict[str, Any]:
    """Split a table by tasks, so that it fits a narrow screen, and leave out the shared notes."""
    parts = []
    for task in dict.fromkeys(row[0] for row in table.rows):
        place = {i: k for k, i in enumerate(i for i, row in enumerate(table.rows) if row[0] == task)}
        best, second_best = (
            frozenset((place[i], j - 2) for i, j in marks if i in place)
            for marks in (table.best, table.second_best)
        )
        # In a part, one column is enough for task, metric and whose.
        rows = [(_row_head(*table.rows[i][1:3]), *table.rows[i][3:]) for i in place]
        parts.append(Table(task, ("metric", *table.columns[3:]), rows, best, second_best))
    notes = [note for note in table.notes if note not in shared_notes]
    return {"name": table.name, "title": table.title, "notes": notes, "parts": parts}


def _row_head(metric: str, whose: str) -> str:
    return metric if whose == "ours" else f"{metric} ({whose})"
