"""From run folders to a report: collect, tabulate, draw, and write every file whole or not at all.

    index.html                    all of it on one page
    tables.md, *.csv, *.tex       the tables
    results.csv                   every number that counts, one per row
    figures/*.svg, figures/*.png  the figures of the page, to the byte

A report in the same folder is replaced; files that are not of a report are left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..._files import first_line, folder_for, read_json, replacing
from ...errors import SapcError
from ..results import Collected, Problem, collect, write_rows
from .data import ReportData
from .figures import Figure, FigureData, pyplot, task_figures
from .page import is_page, template, write_page
from .tables import report_tables, write_tables

Progress = Callable[[str, int, int], None]
"""Called with what is being done, (parts done, parts in all)."""
FIGURE_FILE = re.compile(r"[a-z0-9_]+-(tradeoff|ensembles|trajectories|examples)\.(svg|png)")


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
    collected = collect(paths)
    if not collected.scored:
        raise SapcError(_describe_nothing(paths, collected))
    data = ReportData(collected)
    tables = report_tables(data)
    figures, notes = draw_all(data, tell)
    tell("writing", 0, 1)
    with folder_for(out):
        written = [*write_tables(tables, out), out / "results.csv", *_write_figures(figures, out / "figures")]
        write_rows(data.rows, out / "results.csv")
        # The page comes last: it tells of the rest.
        written.append(write_page(collected, tables, figures, out, title, notes))
    return Report(out, sorted(written), collected.problems, notes)


def draw_all(data: ReportData, progress: Progress) -> tuple[list[Figure], dict[str, list[str]]]:
    """Draw the figures of all tasks; return them, and per task what is not there. One that fails is a note."""
    figures: list[Figure] = []
    notes: dict[str, list[str]] = {}
    for done, task in enumerate(data.tasks):
        progress(f"drawing {task}", done, len(data.tasks))
        try:
            made, missing = task_figures(FigureData.of(data, task))
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


def _describe_nothing(paths: Sequence[str | os.PathLike[str]], collected: Collected) -> str:
    where = ", ".join(str(path) for path in paths) or "no folder at all"
    if not collected.problems:
        return f"there are no scores in {where}; run `sapc evaluate` on trained runs first"
    first, number = collected.problems[0], len(collected.problems)
    return f"there are no scores that count in {where}; {number} problems, the first one: {first}"


def _write_figures(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Write every figure as a file; those of an earlier report that are not there any more are removed."""
    written = [folder / figure.file for figure in figures]
    with folder_for(folder):
        for path, figure in zip(written, figures, strict=True):
            with replacing(path) as partial:
                partial.write_bytes(figure.data)
        for path in folder.iterdir():
            if FIGURE_FILE.fullmatch(path.name) and path not in written:
                path.unlink()
    return written
