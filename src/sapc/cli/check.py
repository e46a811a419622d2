"""`sapc check`: physics and data of one's own, before a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..errors import SapcError
from ..tasks.check import check as check_task
from .app import app, end_with_problems
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
    """Say how physics and data of your own fit: residuals of the data, and how noise is projected.

    Example: [bold]sapc check my_physics.py --data my.h5[/bold].
    Exit code 1 if there is something to look into.
    """
    own_data = OwnDataOptions(data, physics, None, reading)
    _require_data(own_data)
    report = check_task(own_data.task(), noise)
    print(json.dumps(report.to_dict()) if as_json else report.text())
    if report.problems:
        end_with_problems()


def _require_data(own_data: OwnDataOptions) -> None:
    if own_data.data is None:
        raise SapcError(
            "sapc check compares physics with fields of your own; give their file as well: "
            f"sapc check {own_data.physics} --data FILE"
        )
