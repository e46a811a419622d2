"""`sapc report`: tables, figures and one page about runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from ..experiments.report import make_report
from ..training.run_folder import resolve_model_path
from .app import app
from .options import AsJson
from .progress import stage_bar


@app.command()
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Folders of runs or of studies, with all below, or files of scores."
        ),
    ],
    folder: Annotated[
        Path, typer.Option("--out", help="Folder for the report; one that is there is replaced.")
    ] = Path("report"),
    title: Annotated[str, typer.Option(help="What stands at the top of the page.")] = "",
    as_json: AsJson = False,
) -> None:
    """Make tables, figures and one HTML page from everything that was evaluated.

    The page, index.html, needs no other file.
    What is missing, failed or does not belong together stands at its top.

    Example: [bold]sapc report runs/study --out report[/bold],
    or [bold]sapc report runs/heat-sapc runs/heat-ffm[/bold]
    """
    with stage_bar("collecting") as bar:
        result = make_report([resolve_model_path(path) for path in paths], folder, title, bar)
    if as_json:
        names = ("kind", "path", "task", "method", "seed")
        problems = [
            {n: getattr(p, n) for n in names} | {"path": str(p.path), "why": p.reason}
            for p in result.problems
        ]
        files = [str(path) for path in result.files]
        content = {"format": "sapc-report-1", "page": str(result.page), "files": files}
        print(json.dumps(content | {"problems": problems, "notes": result.notes}))
        return
    for path in result.files:
        if path != result.page:
            print(path)
    counts = Counter(problem.kind.replace("_", " ") for problem in result.problems)
    if counts:
        summary = ", ".join(f"{number} {kind}" for kind, number in counts.items())
        print(f"does not count: {summary}; the page says what and why")
    print(f"page: {result.page}")
