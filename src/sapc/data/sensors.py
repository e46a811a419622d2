"""Sensors: values known at places, from a CSV file onto the nearest points of a grid.

The file has a column per axis with coordinates in the axis's units, `value`, `channel` if the grid has
several,
and optionally `sample`: 0 to m - 1, each with the same places. Other columns are ignored. A periodic axis
wraps.
Distances are in steps of the grid: a sensor more than half a step outside the domain is refused, and one more
than a quarter of a step from its point gives a warning.
"""

from __future__ import annotations

import csv
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from .._files import first_line
from .._old_names import old_attribute
from ..errors import SapcError, SapcWarning, check_path, explain_misuse, require_memory
from ..grid import Axis, Grid


@dataclass(frozen=True, eq=False)
class Sensors:
    """Values of m fields that are known at sensors.

    Attributes:
        mask: Where there are sensors.
        values: The values in float64, NaN elsewhere.
        max_offset: Largest distance of a sensor from its grid point, in steps.
    """

    mask: Bool[Tensor, "*grid"]
    values: Float64[Tensor, "m *grid"]
    max_offset: float

    off = old_attribute("Sensors.off", "Sensors.max_offset")


class _Reading(NamedTuple):
    """A line of the file: its place, the sample, the grid point, the distance from it, the value."""

    line: str
    sample: int
    point: tuple[int, ...]
    offset: float
    value: float


@explain_misuse
def read_sensors(path: str | os.PathLike[str], grid: Grid) -> Sensors:
    """Read values at sensors from a CSV file, onto the nearest points of a grid.

    Args:
        path: The file: a column per axis, `value`, `channel` if the grid has several, optionally `sample`.
        grid: The grid.

    Returns:
        Mask and values on the grid.

    Raises:
        SapcError: The file cannot be read, or sensors contradict each other or the grid.
    """
    path = check_path(path, "a file of sensors")
    if not isinstance(grid, Grid):
        raise SapcError(f"sensors need a grid, as read_sensors(path, task.grid), got {type(grid).__name__}")
    readings = [_reading(line, row, grid) for line, row in _rows(path, grid)]
    if not readings:
        raise SapcError(f"{path} has a header but no sensors; write one line per sensor")
    m = 1 + max(r.sample for r in readings)
    if m > len(readings):
        raise SapcError(
            f"{path} numbers {len(readings)} samples up to {m - 1}; number them from 0 without gaps"
        )
    require_memory(8 * m * math.prod(grid.shape), f"the sensors of {m} samples in {path}")
    values = torch.full((m, *grid.shape), math.nan, dtype=torch.float64)
    for r in readings:
        previous_value = float(values[(r.sample, *r.point)])
        if not math.isnan(previous_value) and previous_value != r.value:
            raise SapcError(
                f"{r.line}: another sensor on the same grid point has the value {previous_value:g}, "
                f"this one {r.value:g}; keep one of them, or use a finer grid"
            )
        values[(r.sample, *r.point)] = r.value
    mask = ~values.isnan()
    for i in range(1, m):
        if not torch.equal(mask[i], mask[0]):
            raise SapcError(
                f"{path}: samples 0 and {i} have sensors on {int(mask[0].sum())} and {int(mask[i].sum())} "
                "grid points, not the same; every sample needs the same places: "
                "write a file per set of places"
            )
    return Sensors(mask[0], values, _check_offsets(path, readings))


def _check_offsets(path: Path, readings: list[_Reading]) -> float:
    """Return the largest distance from a grid point, and warn if it is more than a quarter of a step."""
    n_far, offset = sum(r.offset > 0.25 + 1e-9 for r in readings), max(r.offset for r in readings)
    if n_far:
        message = (
            f"{n_far} of {len(readings)} sensors are more than a quarter of a step from their grid point, "
            f"at most {offset:.2f}"
        )
        warnings.warn(f"{path}: {message}; use a finer grid", SapcWarning, stacklevel=3)
    return offset


def _rows(path: Path, grid: Grid) -> list[tuple[str, Mapping[str, str]]]:
    """Return the lines of the file by column, each with its place for messages."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as content:
            lines = csv.reader(content, strict=True)
            rows = ((lines.line_num, [cell.strip() for cell in row]) for row in lines)
            entries = [(f"{path}, line {number}", row) for number, row in rows if any(row)]
    except FileNotFoundError as error:
        raise SapcError(f"there is no file {path}; sensors are read from a CSV file") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SapcError(f"{path} cannot be read ({first_line(error)}); write it as CSV in UTF-8") from error
    columns = [*grid.names, "value", *(("channel",) if grid.n_channels > 1 else ())]
    header = entries[0][1] if entries else []
    if not set(columns) <= set(header) or len(set(header)) < len(header):
        raise SapcError(
            f"{path} needs a first line that names the columns {', '.join(columns)} once each, separated by "
            f"commas; got {', '.join(header) or 'an empty file'}"
        )
    for line, row in entries[1:]:
        if len(row) != len(header):
            raise SapcError(f"{line}: {len(row)} entries for {len(header)} columns; give one each")
    return [(line, dict(zip(header, row, strict=True))) for line, row in entries[1:]]


def _reading(line: str, row: Mapping[str, str], grid: Grid) -> _Reading:
    places = [_place(line, axis, _number(line, row, axis.name)) for axis in grid.axes]
    index = tuple(i for i, _ in places)
    if grid.channels and "channel" in row:
        name = row["channel"]
        if name not in grid.channels:
            raise SapcError(f"{line}: no channel {name!r}; write {' or '.join(grid.channels)}")
        index = (grid.channel(name), *index) if grid.n_channels > 1 else index
    sample = row.get("sample", "0")
    if not (sample.isascii() and sample.isdigit() and len(sample) < 10):
        raise SapcError(f"{line}: sample is {sample!r:.40}; number the samples 0, 1, 2, ...")
    return _Reading(
        line, int(sample), index, max(offset for _, offset in places), _number(line, row, "value")
    )


def _number(line: str, row: Mapping[str, str], column: str) -> float:
    try:
        number = float(row[column])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise SapcError(f"{line}: {column} is {row[column]!r}; write a number, or leave out the line")
    return number


def _place(line: str, axis: Axis, x: float) -> tuple[int, float]:
    """Return the nearest point of an axis, and how many steps it is away."""
    h = axis.spacing
    if not axis.start - h / 2 <= x <= axis.stop + h / 2:
        raise SapcError(
            f"{line}: {axis.name} = {x:g} is outside the domain [{axis.start:g}, {axis.stop:g}] by more "
            f"than half a step ({h / 2:g}); check the units, or leave out the line"
        )
    steps = (x - float(axis.points[0])) / h
    nearest = round(steps)
    i = nearest if axis.kind == "periodic" else min(max(nearest, 0), axis.n - 1)
    return i % axis.n, abs(steps - i)
