"""Data and physics of one's own, as several commands take them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..data import read_fields
from ..errors import SapcError
from ..models.model import Model, load
from ..tasks import Task
from ..training.config import TrainingConfig
from .messages import as_options
from .options import Device

DataFile = Annotated[
    Path | None, typer.Option("--data", help="Your own fields: HDF5, NetCDF or npz, samples first.")
]
PHYSICS_HELP = "A Python file with `def physics(grid)`: it is run."
PhysicsFile = Annotated[Path | None, typer.Option("--physics", help=PHYSICS_HELP)]
SymmetryTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--symmetry",
        help="A symmetry of your own data, as shift:x or reflect:x,sign:u. May be repeated.",
    ),
]


@dataclass(frozen=True)
class DimensionOptions:
    """Which dimensions of a file are time and samples."""

    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            help="The dimension that is time: its name, or first (after the samples) or last "
            "where it has none. \\[t or time, else there is none]",
        ),
    ] = None
    samples_dim: Annotated[
        str | None,
        typer.Option("--samples-dim", help="The dimension that counts samples. \\[sample, else the first]"),
    ] = None
    steady: Annotated[
        bool | None, typer.Option("--steady/--unsteady", help="Whether the fields have no time.")
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `sapc.read_fields`."""
        return {"time": self.time, "samples": self.samples_dim, "steady": self.steady}

    def explicit(self) -> dict[str, Any]:
        """Return those arguments that the command line names."""
        return {name: value for name, value in self.arguments().items() if value is not None}


@dataclass(frozen=True)
class ReadingOptions:
    """How a file of one's own is read and divided."""

    channels: Annotated[
        str | None,
        typer.Option("--channels", help="Variables of the file to learn, as h,u,v. \\[all of them]"),
    ] = None
    periodic: Annotated[str | None, typer.Option("--periodic", help="Axes that are periodic, as x,y.")] = None
    cells: Annotated[str | None, typer.Option("--cells", help="Axes whose points are centres of cells.")] = (
        None
    )
    dimensions: DimensionOptions = DimensionOptions()
    share: Annotated[float, typer.Option("--validation-share", help="Of the samples, for validation.")] = 0.1

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `sapc.read_fields`."""
        lists = {"channels": _split(self.channels), "periodic": _split(self.periodic) or ()}
        return {**lists, "cells": _split(self.cells) or (), **self.dimensions.arguments()}


@dataclass(frozen=True)
class OwnDataOptions:
    """Data and physics of one's own; every process of a training makes the task of it."""

    data: DataFile = None
    physics: PhysicsFile = None
    name: Annotated[str | None, typer.Option(help="Of your own task. \\[the data file's]")] = None
    reading: ReadingOptions = ReadingOptions()
    symmetry: SymmetryTexts = None

    def check(self) -> None:
        """Refuse options of own data without data, and data without physics."""
        if self.data is not None:
            self.files()
            return
        names = ["--physics"] if self.physics is not None else []
        names += ["--symmetry"] if self.symmetry else []
        for name, value in self.reading.arguments().items():
            if value not in (None, ()):
                names.append(as_options(f"{name}={value}" if name == "steady" else f"{name}="))
        if names:
            raise SapcError(f"{names[0]} goes with data of your own; give them as --data FILE")

    def files(self) -> tuple[Path, Path]:
        """Return the files of data and physics."""
        if self.data is None or self.physics is None:
            raise SapcError(
                "--data needs --physics FILE, a Python file with the constraints: "
                "def physics(grid): return sapc.Pin.frame(0)"
            )
        return self.data, self.physics

    def task(self) -> Task:
        """Make the task: read the data, run the physics."""
        data, physics = self.files()
        fields = read_fields(data, **self.reading.arguments())
        return Task.from_data(
            fields, physics, self.name, share=self.reading.share, symmetries=self.symmetry or ()
        )

    def attach(self, run: TrainingConfig) -> TrainingConfig:
        """Attach physics and data to a run of own data; a run folder does not store them.

        Args:
            run: Its configuration, which knows how the file was read; what the command line says goes first.

        Returns:
            The configuration with its task.
        """
        data, physics = self.files()
        return run.attach(physics, data, self.reading.dimensions.explicit())

    def option_words(self, run: TrainingConfig) -> list[str]:
        """Return the options by which other commands find physics and data of a run.

        Args:
            run: Its configuration; what it says itself about the reading of the file is left out.

        Returns:
            Words of a command line.
        """
        data, physics = self.files()
        words = ["--physics", str(physics), "--data", str(data)]
        for name, value in self.reading.dimensions.explicit().items():
            if name in run.description.reading:
                continue
            if name == "steady":
                words.append("--steady" if value else "--unsteady")
            else:
                words += ["--samples-dim" if name == "samples" else f"--{name}", value]
        return words


@dataclass(frozen=True)
class ModelOptions:
    """How a command loads a model: physics and data, if it is of own data, and its device."""

    physics: PhysicsFile = None
    data: DataFile = None
    dimensions: DimensionOptions = DimensionOptions()
    device: Device = "auto"

    def load(self, path: Path) -> Model:
        """Load the model of a run folder, or one that comes with the package."""
        reading = self.dimensions.explicit()
        return load(path, self.device, physics=self.physics, data=self.data, reading=reading)


def _split(text: str | None) -> tuple[str, ...] | None:
    """Split names that are joined by commas."""
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())
