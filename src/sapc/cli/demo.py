"""`sapc demo`: every task, a picture each."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from .app import app, err, out
from .arguments import AsJson

if TYPE_CHECKING:
    from ..report.demo import Row


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the pictures.")] = Path("demo"),
    size: Annotated[int, typer.Option(help="Solutions and noise draws per task.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of data and noise.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Solve a few of every task, put noise on their manifolds, print the residuals before and after, draw a picture each.

    Example: [bold]sapc demo --out pictures[/bold]
    """
    from ..report.demo import run_demo

    with err.status("starting") as status:
        rows = list(
            run_demo(folder, size, seed, lambda name: status.update(f"{name}: solving, projecting, drawing"))
        )
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    out.print(residual_table(rows))
    print(f"pictures: {folder / 'overview.png'} and one per task")


def residual_table(rows: list[Row]) -> Table:
    """The table of the demonstration; every cell is whole at 80 columns."""
    table = Table(
        title="Noise before → after projection: mean l2 norm of the residual",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("task", no_wrap=True)
    table.add_column("projection", overflow="fold")
    table.add_column("pinned\ncondition", justify="right", no_wrap=True)
    table.add_column("balance\nlaw", justify="right", no_wrap=True)
    table.add_column("ms\neach", justify="right", no_wrap=True)
    for r in rows:
        table.add_row(
            r.task,
            r.algorithm.replace("Gauss-Newton", "GN"),
            f"{r.local_before:.1e} → {r.local_after:.0e}",
            f"{r.balance_before:.1e} → {r.balance_after:.0e}",
            f"{r.milliseconds:.0f}",
        )
    return table
