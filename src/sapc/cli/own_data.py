"""Data and physics of one's own, as several commands take them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..data import read_fields
from ..errors import SapcError
from ..tasks import Task
from ..training.config import TrainingConfig
from .messages import as_options

DataFile = Annotated[
    Path | None, typer.Option("--data", help="Your own fields: HDF5, NetCDF or npz, samples first.")
]
PhysicsFile = Annotated[
    Path | None, typer.Option("--physics", help="A Python file with `def physics(grid)`: it is run.")
]
ChannelNames = Annotated[
    str | None, typer.Option("--channels", help="Variables of the file to learn, as h,u,v. \\[all of them]")
]
Periodic = Annotated[str | None, typer.Option("--periodic", help="Axes that are periodic, as x,y.")]
Cells = Annotated[str | None, typer.Option("--cells", help="Axes whose points are centres of cells.")]
TimeAxis = Annotated[
    str | None,
    typer.Option(
        "--time",
        help="The dimension that is time: its name, or first (after the samples) or last where it has none. "
        "\\[t or time, else there is none]",
    ),
]
SampleAxis = Annotated[
    str | None,
    typer.Option("--samples-dim", help="The dimension that counts samples. \\[sample, else the first]"),
]
Steady = Annotated[bool | None, typer.Option("--steady/--unsteady", help="Whether the fields have no time.")]
Share = Annotated[float, typer.Option("--validation-share", help="Of the samples, for validation.")]


@dataclass(frozen=True)
class OwnDataOptions:
    """What the command line says of own data; every process makes the task of it."""

    data: Path
    physics: Path
    name: str | None
    reading: dict[str, Any]
    share: float = 0.1

    def task(self) -> Task:
        """A new task."""
        fields = read_fields(self.data, **self.reading)
        return Task.from_data(fields, self.physics, self.name, share=self.share)

    def attach(self, run: TrainingConfig) -> TrainingConfig:
        """A run that was begun before, with its physics and data; what is said of the file goes before how it was read then."""
        return run.attach(self.physics, self.data, self.reading_changes)

    @property
    def reading_changes(self) -> dict[str, Any]:
        """What is said of the file's dimensions."""
        return reading_changes(**{name: self.reading[name] for name in ("time", "samples", "steady")})

    def option_words(self, run: TrainingConfig) -> list[str]:
        """The options by which other commands find physics and data of a run in its folder, which may not say how they are read."""
        words = ["--physics", str(self.physics), "--data", str(self.data)]
        run_reading = run.description.reading
        for name, value in self.reading_changes.items():
            if name == "steady" and name not in run_reading:
                words.append("--steady" if value else "--unsteady")
            elif name not in run_reading:
                words += ["--samples-dim" if name == "samples" else f"--{name}", value]
        return words


def parse_own_data(
    data: Path | None,
    physics: Path | None,
    name: str | None = None,
    *,
    channels: str | None = None,
    periodic: str | None = None,
    cells: str | None = None,
    time: str | None = None,
    samples: str | None = None,
    steady: bool | None = None,
    share: float = 0.1,
) -> OwnDataOptions | None:
    """The options as one, or None if there is no data file."""
    reading = {
        "channels": _names(channels), "periodic": _names(periodic) or (), "cells": _names(cells) or (),
        "time": time, "samples": samples, "steady": steady,
    }  # fmt: skip
    if data is None:
        names = [name for name, value in reading.items() if value not in (None, ())]
        if physics is not None or names:
            first = names[0] if names else ""
            argument = f"steady={steady}" if first == "steady" else f"{first}="
            option = "--physics" if physics is not None else as_options(argument)
            raise SapcError(f"{option} goes with data of your own; give them as --data FILE")
        return None
    if physics is None:
        raise SapcError(
            "--data needs --physics FILE, a Python file with the constraints: def physics(grid): return sapc.Pin.frame(0)"
        )
    return OwnDataOptions(data, physics, name, reading, share)


def reading_changes(**reading: Any) -> dict[str, Any]:
    """What the command line says of how files are read, without what it leaves open."""
    return {name: value for name, value in reading.items() if value is not None}


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())
