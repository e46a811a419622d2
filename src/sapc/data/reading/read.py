"""Read fields from files: a channel per variable, samples first, time last, on equally spaced points.

`formats` opens files, `variables` picks the channels and identifies their dimensions, `axes` reads the
coordinates; here the values are put in order and checked. Nothing is filled in or left out: a value that is
not finite, an axis that is not equally spaced or a channel that is constant ends with an error that says
where. Units stay as the file has them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..._files import sha256
from ...errors import SapcError, SapcWarning, check_path, explain_misuse, require_memory
from ...grid import Axis, Grid
from ..conditions import flatten_members
from ..fields import SPLITS, Fields
from .axes import read_axis
from .formats import Variable, Variables, open_variables, readable
from .hdf5 import Array
from .variables import Layout, find_layout, pick_channels

DTYPES = {torch.float32: np.float32, torch.float64: np.float64}


@explain_misuse
def read_fields(
    path: str | os.PathLike[str],
    *,
    channels: Sequence[str] | None = None,
    samples: str | None = None,
    time: str | None = None,
    steady: bool | None = None,
    periodic: Sequence[str] = (),
    cells: Sequence[str] = (),
    dtype: torch.dtype = torch.float32,
    gaps: bool = False,
) -> Fields:
    """Read fields from a NetCDF, HDF5 or npz file.

    What is not given is found by the rules in the modules of `sapc.data.reading`.

    Args:
        path: The file.
        channels: Names of the variables to read; all of most dimensions unless given.
        samples: Name of the dimension of samples.
        time: Name of the dimension of time, or "first" or "last" (after the samples).
        steady: True refuses a time. False takes the last dimension as time if none is called so.
        periodic: Names of periodic axes.
        cells: Names of axes whose points are centres of cells.
        dtype: `torch.float32` or `torch.float64`.
        gaps: Accept a single sample, NaN and constant channels, as files of conditions have them.

    Returns:
        The fields, with grid, units, labels, origin and split.

    Raises:
        SapcError: The file cannot be read as fields; the message says what to change.
    """
    if dtype not in DTYPES:
        raise SapcError(f"fields are read as torch.float32 or torch.float64, got {dtype}")
    file = check_path(path, "a file of fields")
    with open_variables(file) as arrays:
        variables = flatten_members(arrays, samples)
        selection = pick_channels(file, variables, channels, samples)
        layout = find_layout(file, selection[0], variables, samples, time, steady)
        n = selection[0].shape[layout.samples]
        if n < (1 if gaps else 2):
            raise SapcError(
                f"{path}: dimension {layout.dims[layout.samples]!r} has {n} samples; give at least 2"
            )
        axes, flips = _read_axes(file, selection[0], layout, periodic, cells)
        grid = Grid(axes, tuple(v.name for v in selection), layout.steady)
        values = _allocate(file, selection, (n, len(selection), *grid.points_per_axis), DTYPES[dtype])
        for i, variable in enumerate(selection):
            values[:, i] = _reorder(_load(variable, layout, values.dtype, gaps), layout, flips)
        sources = {v.name: v for v in selection} | {a.name: a.coordinate for a in layout.axes if a.coordinate}
        units, labels = (
            {k: text for k, v in sources.items() if (text := v.text(key))} for key in ("units", "long_name")
        )
        split = _read_split(file, variables, n)
    fields = torch.from_numpy(values if grid.n_channels > 1 else values[:, 0])
    origin = {"path": str(path), "sha256": sha256(file), "samples": layout.dims[layout.samples]}
    options = {"samples": samples, "time": time, "steady": steady}
    reading = {name: value for name, value in options.items() if value is not None}
    return Fields(fields, grid, units, labels, origin, split, reading)


def _allocate(path: Path, channels: Sequence[Variable], shape: tuple[int, ...], dtype: Any) -> Array:
    """Allocate an array for all channels; one more must fit as the file has it, converted, and as a mask."""
    with readable(path):
        for variable in channels:
            variable.check()
    itemsize = np.dtype(dtype).itemsize
    points, temporaries = prod(shape) // len(channels), max(v.itemsize for v in channels) + itemsize + 1
    require_memory(points * (len(channels) * itemsize + temporaries), f"{channels[0].describe()} of {path}")
    return np.empty(shape, dtype)


def _read_axes(
    path: Path, channel: Variable, layout: Layout, periodic: Sequence[str], cells: Sequence[str]
) -> tuple[tuple[Axis, ...], tuple[bool, ...]]:
    """Return the axes, and which of them are reversed in the file."""
    periodic, cells = (((names,) if isinstance(names, str) else tuple(names)) for names in (periodic, cells))
    names = [a.name for a in layout.axes]
    for name in (*periodic, *cells):
        if name not in names:
            raise SapcError(f"{path} has no axis {name!r} to be periodic or cells; it has {', '.join(names)}")
        if name in periodic and name in cells:
            raise SapcError(f"{path}: axis {name!r} cannot be periodic and cells; choose periodic")
    kinds = dict.fromkeys(periodic, "periodic") | dict.fromkeys(cells, "cells")
    pairs = [
        read_axis(path, a.name, channel.shape[a.position], a.coordinate, kinds.get(a.name))
        for a in layout.axes
    ]
    return tuple(axis for axis, _ in pairs), tuple(flip for _, flip in pairs)


def _reorder(values: Array, layout: Layout, flips: Sequence[bool]) -> Array:
    """Put samples first and the axes in their order, and reverse those that decrease in the file."""
    values = values.transpose(layout.samples, *(a.position for a in layout.axes))
    return np.asarray(np.flip(values, tuple(i + 1 for i, flip in enumerate(flips) if flip)))


def _load(variable: Variable, layout: Layout, dtype: np.dtype[np.floating], gaps: bool) -> Array:
    """Load a channel, which must be finite and not constant unless gaps are accepted."""
    with np.errstate(over="ignore", invalid="ignore"):
        raw = variable.read()
        values = raw.astype(dtype)
    if not gaps:
        _check_values(variable, layout, raw, values)
    return values


def _check_values(variable: Variable, layout: Layout, raw: Array, values: Array) -> None:
    """Refuse values that are not finite, and a channel that is constant."""
    path = variable.path
    dtype, bad = values.dtype, ~np.isfinite(values)
    if bad.any():
        first = np.unravel_index(int(bad.argmax()), bad.shape)
        place = ", ".join(f"{d}={i}" for d, i in zip(layout.dims, first, strict=True))
        channel = f"{path}: channel {variable.name!r} has {int(bad.sum())} values"
        if np.isfinite(raw[bad]).all():
            raise SapcError(
                f"{channel} too large for {dtype}, first at {place}; read with dtype=torch.float64"
            )
        raise SapcError(
            f"{channel} that are missing, NaN or infinite, the first at index {place}; fill them or leave "
            "out these samples or points"
        )
    if values.min() == values.max():
        raise SapcError(f"{path}: channel {variable.name!r} is {values.flat[0]:.6g} everywhere; leave it out")
    by_sample = np.moveaxis(values, layout.samples, 0)
    if (by_sample == by_sample[:1]).all():
        warnings.warn(
            f"{path}: channel {variable.name!r} is the same in all {len(by_sample)} samples; "
            "there is nothing to learn in it",
            SapcWarning,
            stacklevel=3,
        )


def _read_split(path: Path, variables: Variables, n: int) -> tuple[str, ...] | None:
    """Read from the variable `split` what each sample is for: train or validation, or 0 or 1."""
    variable = variables.get("split")
    if variable is None:
        return None
    if variable.shape != (n,):
        raise SapcError(f"{path}: {variable.describe()} must have one for each of the {n} samples")
    rows = variable.read().tolist()
    entries = [row.decode(errors="replace") if isinstance(row, bytes) else row for row in rows]
    names = [SPLITS[int(e)] if e in (0, 1) else str(e).strip("\0 ").lower() for e in entries]
    for i, name in enumerate(names):
        if name not in SPLITS:
            raise SapcError(
                f"{path}: split is {entries[i]!r} for sample {i}; write train or validation, or 0 or 1"
            )
    return tuple(names)
