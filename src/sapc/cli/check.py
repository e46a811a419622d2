"""`sapc check`: physics and data of one's own, before a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..errors import SapcError
from ..tasks.check import check as check_task
from .app import app
from .options import AsJson, take_records
from .own_data import PHYSICS_HELP, DataFile, OwnDataOptions, ReadingOptions


@app.command()
@take_records
def check(
    physics: Annotated[Path, typer.Argument(help=PHYSICS_HELP)],
    data: DataFile = None,
    *,
    reading: ReadingOptions,
    noise: Annotated[int, typer.Option(help="Draws of noise to project.")] = 16,
    as_json: AsJson = False,
) -> None:
    """Say how physics and data of your own fit: residuals of the data, whether noise can be projected, how and how fast.

    Example: [bold]sapc check my_physics.py --data my.h5[/bold]. Exit code 1 if there is something to look into.
    """
    if data is None:
        raise SapcError(
            f"sapc check compares physics with fields of your own; give their file as well: sapc check {physics} --data FILE"
        )
    report = check_task(OwnDataOptions(data, physics, None, reading).task(), noise)
    print(json.dumps(report.to_dict()) if as_json else report.text())
    if report.problems:
        raise typer.Exit(1)
