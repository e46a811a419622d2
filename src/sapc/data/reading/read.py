"""Reading fields from files: a channel per variable, samples first, time last, on a grid of equally spaced points.

`formats` opens files, `variables` picks the channels and tells their dimensions apart, `axes` reads the coordinates; here the values are
put in order and checked. Nothing is filled in or left out: a value that is not finite, an axis that is not equally spaced or
a channel that is constant ends with an error that says where. Units stay as the file has them.
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
from .axes import axis_of
from .formats import Variable, Variables, opened, readable
from .hdf5 import Array
from .variables import Layout, layout_of, pick_channels

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
    """Fields from a NetCDF, HDF5 or npz file.

    `channels` names variables, `samples` and `time` dimensions, `periodic` and `cells` the axes of these kinds; what is left out is found
    by the rules of this package's modules. `steady=True` refuses a time, `steady=False` takes the last dimension if none is called time.
    With `gaps`, as conditions have them, a single sample, NaN and constant channels are fine.
    """
    if dtype not in DTYPES:
        raise SapcError(f"fields are read as torch.float32 or torch.float64, got {dtype}")
    where = check_path(path, "a file of fields")
    with opened(where) as every:
        variables = flatten_members(every, samples)
        chosen = pick_channels(where, variables, channels, samples)
        layout = layout_of(where, chosen[0], variables, samples, time, steady)
        n = chosen[0].shape[layout.samples]
        if n < (1 if gaps else 2):
            raise SapcError(
                f"{path}: dimension {layout.dims[layout.samples]!r} has {n} samples; give at least 2"
            )
        axes, flipped = _axes(where, chosen[0], layout, periodic, cells)
        grid = Grid(axes, tuple(v.name for v in chosen), layout.steady)
        values = _room(where, chosen, (n, len(chosen), *grid.points_per_axis), DTYPES[dtype])
        for i, variable in enumerate(chosen):
            values[:, i] = _ordered(_loaded(variable, layout, values.dtype, gaps), layout, flipped)
        known = {v.name: v for v in chosen} | {a.name: a.coordinate for a in layout.axes if a.coordinate}
        units, labels = (
            {k: t for k, v in known.items() if (t := v.text(key))} for key in ("units", "long_name")
        )
        split = _split(where, variables, n)
    shaped = torch.from_numpy(values if grid.n_channels > 1 else values[:, 0])
    origin = {"path": str(path), "sha256": sha256(where), "samples": layout.dims[layout.samples]}
    said = {"samples": samples, "time": time, "steady": steady}
    reading = {name: value for name, value in said.items() if value is not None}
    return Fields(shaped, grid, units, labels, origin, split, reading)


def _room(path: Path, chosen: Sequence[Variable], shape: tuple[int, ...], dtype: Any) -> Array:
    """An array for all channels, once one of them fits beside it: as the file has it, converted, and a mask."""
    with readable(path):
        for variable in chosen:
            variable.check()
    itemsize = np.dtype(dtype).itemsize
    points, more = prod(shape) // len(chosen), max(v.itemsize for v in chosen) + itemsize + 1
    require_memory(points * (len(chosen) * itemsize + more), f"{chosen[0].describe()} of {path}")
    return np.empty(shape, dtype)


def _axes(
    path: Path, like: Variable, layout: Layout, periodic: Sequence[str], cells: Sequence[str]
) -> tuple[tuple[Axis, ...], tuple[bool, ...]]:
    """The axes, and which of them are turned over."""
    periodic, cells = (((said,) if isinstance(said, str) else tuple(said)) for said in (periodic, cells))
    names = [a.name for a in layout.axes]
    for name in (*periodic, *cells):
        if name not in names:
            raise SapcError(f"{path} has no axis {name!r} to be periodic or cells; it has {', '.join(names)}")
        if name in periodic and name in cells:
            raise SapcError(f"{path}: axis {name!r} cannot be periodic and cells; choose periodic")
    kinds = dict.fromkeys(periodic, "periodic") | dict.fromkeys(cells, "cells")
    found = [axis_of(path, a.name, like.shape[a.place], a.coordinate, kinds.get(a.name)) for a in layout.axes]
    return tuple(axis for axis, _ in found), tuple(flip for _, flip in found)


def _ordered(values: Array, layout: Layout, flipped: Sequence[bool]) -> Array:
    """Samples first, the axes in their order, turned over where they decreased."""
    values = values.transpose(layout.samples, *(a.place for a in layout.axes))
    turned = tuple(i + 1 for i, flip in enumerate(flipped) if flip)
    return np.asarray(np.flip(values, turned))


def _loaded(variable: Variable, layout: Layout, dtype: np.dtype[np.floating], gaps: bool) -> Array:
    """The values of a channel: finite and not constant, unless gaps are fine."""
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
        at = ", ".join(f"{d}={i}" for d, i in zip(layout.dims, first, strict=True))
        where = f"{path}: channel {variable.name!r} has {int(bad.sum())} values"
        if np.isfinite(raw[bad]).all():
            raise SapcError(f"{where} too large for {dtype}, first at {at}; read with dtype=torch.float64")
        raise SapcError(
            f"{where} that are missing, NaN or infinite, the first at index {at}; fill them or leave out these samples or points"
        )
    if values.min() == values.max():
        raise SapcError(f"{path}: channel {variable.name!r} is {values.flat[0]:.6g} everywhere; leave it out")
    by_sample = np.moveaxis(values, layout.samples, 0)
    if (by_sample == by_sample[:1]).all():
        warnings.warn(
            f"{path}: channel {variable.name!r} is the same in all {len(by_sample)} samples; there is nothing to learn in it",
            SapcWarning,
            stacklevel=3,
        )


def _split(path: Path, variables: Variables, n: int) -> tuple[str, ...] | None:
    """What the variable `split` says of each sample: train or validation, or 0 or 1."""
    variable = variables.get("split")
    if variable is None:
        return None
    if variable.shape != (n,):
        raise SapcError(f"{path}: {variable.describe()} must have one for each of the {n} samples")
    rows = variable.read().tolist()
    said = [row.decode(errors="replace") if isinstance(row, bytes) else row for row in rows]
    names = [SPLITS[int(s)] if s in (0, 1) else str(s).strip("\0 ").lower() for s in said]
    for i, name in enumerate(names):
        if name not in SPLITS:
            raise SapcError(
                f"{path}: split is {said[i]!r} for sample {i}; write train or validation, or 0 or 1"
            )
    return tuple(names)
