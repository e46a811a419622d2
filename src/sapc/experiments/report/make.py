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
from ..results import Collected, Problem, collect, rows, write_rows
from .drawing import Figure
from .figures import task_figures
from .material import Found
from .page import is_page, template, write_page
from .pictures import pyplot
from .tables import report_tables, write_tables

Progress = Callable[[str, int, int], None]
"""Called with what is being done, (parts done, parts in all)."""


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
    """A report about all scores in and below these folders or files."""
    tell = progress or (lambda what, done, total: None)
    out = Path(out)
    check_out(out)
    pyplot()  # complains now where it is missing, as does the next
    template()
    tell("collecting", 0, 1)
    collected = collect(paths)
    if not collected.scored:
        raise SapcError(_nothing(paths, collected))
    tables = report_tables(collected)
    figures, notes = draw_all(collected, tell)
    tell("writing", 0, 1)
    with folder_for(out):
        written = [*write_tables(tables, out), out / "results.csv", *_write_figures(figures, out / "figures")]
        write_rows(rows(collected), out / "results.csv")
        written.append(
            write_page(collected, tables, figures, out, title, notes)
        )  # last: it tells of the rest
    return Report(out, sorted(written), collected.problems, notes)


def draw_all(collected: Collected, progress: Progress) -> tuple[list[Figure], dict[str, list[str]]]:
    """The figures of all tasks, and per task what is not there; one that fails is a note."""
    found = Found.of(collected)
    figures: list[Figure] = []
    notes: dict[str, list[str]] = {}
    for done, task in enumerate(found.tasks):
        progress(f"drawing {task}", done, len(found.tasks))
        try:
            made, said = task_figures(found.material(task))
        except Exception as error:  # the other tasks are no worse for it
            made, said = [], [f"no figures: {first_line(error)}"]
        figures += made
        if said:
            notes[task] = said
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
    page = out / "index.html"
    if page.exists() and not is_page(page):
        raise SapcError(f"{page} is there and is not the page of a report; choose another --out")
    if (out / "figures").exists() and not (out / "figures").is_dir():
        raise SapcError(f"{out / 'figures'} is not a folder, but figures go there; choose another --out")


def _is_run(folder: Path) -> bool:
    config = folder / "config.json"
    try:
        return config.is_file() and str(read_json(config).get("format")).startswith("sapc-run-")
    except SapcError:
        return False


def _nothing(paths: Sequence[str | os.PathLike[str]], collected: Collected) -> str:
    where = ", ".join(str(path) for path in paths) or "no folder at all"
    if not collected.problems:
        return f"there are no scores in {where}; run `sapc evaluate` on trained runs first"
    first, number = collected.problems[0], len(collected.problems)
    return f"there are no scores that count in {where}; {number} problems, the first one: {first}"


def _write_figures(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Every figure as a file; those of an earlier report that are not there any more are removed."""
    written = []
    with folder_for(folder):
        for figure in figures:
            with replacing(folder / figure.file) as partial:
                partial.write_bytes(figure.data)
            written.append(folder / figure.file)
        ours = re.compile(r"[a-z0-9_]+-(tradeoff|ensembles|trajectories|examples)\.(svg|png)")
        for path in folder.iterdir():
            if ours.fullmatch(path.name) and path not in written:
                path.unlink()
    return written
