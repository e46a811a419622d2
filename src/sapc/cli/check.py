"""`sapc check`: physics and data of one's own, before a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..tasks.check import check as check_task
from .app import app
from .options import AsJson
from .own_data import (
    Cells,
    ChannelNames,
    DataFile,
    Periodic,
    SampleAxis,
    Share,
    Steady,
    TimeAxis,
    parse_own_data,
)


@app.command()
def check(
    physics: Annotated[Path, typer.Argument(help="A Python file with `def physics(grid)`: it is run.")],
    data: DataFile = None,
    channels: ChannelNames = None,
    periodic: Periodic = None,
    cells: Cells = None,
    time: TimeAxis = None,
    samples: SampleAxis = None,
    steady: Steady = None,
    share: Share = 0.1,
    noise: Annotated[int, typer.Option(help="Draws of noise to project.")] = 16,
    as_json: AsJson = False,
) -> None:
    """Say how physics and data of your own fit: residuals of the data, whether noise can be projected, how and how fast.

    Example: [bold]sapc check my_physics.py --data my.h5[/bold]. Exit code 1 if there is something to look into.
    """
    options = parse_own_data(
        data, physics, channels=channels, periodic=periodic, cells=cells, time=time, samples=samples,
        steady=steady, share=share,
    )  # fmt: skip
    assert options is not None  # without data, physics was refused
    report = check_task(options.task(), noise)
    print(json.dumps(report.to_dict()) if as_json else report.text())
    if report.problems:
        raise typer.Exit(1)
