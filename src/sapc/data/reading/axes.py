"""Axes from coordinates: finite, strictly increasing or decreasing, equally spaced to a thousandth of the step.

A coordinate gives its points; what lies beyond the last one is a matter of the kind (`grid.Axis`): said by the caller, else by the
coordinate's attribute `sapc_kind` or `periodic`, else closed. Axes that decrease are turned over, and the fields with them. An axis
without a coordinate is [0, 1].
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...errors import SapcError
from ...grid import Axis
from .formats import Variable
from .hdf5 import Array

TOLERANCE = 1e-3  # of the step


def axis_of(
    path: Path, name: str, n: int, coordinate: Variable | None, kind: str | None
) -> tuple[Axis, bool]:
    """The axis of a coordinate, and whether it has to be turned over."""
    if n < 3:
        raise SapcError(f"{path}: axis {name!r} has {n} points; 3 are needed: leave it out or refine it")
    if coordinate is None:
        return Axis(name, n, kind=kind or "closed"), False
    kind = kind or _kind(path, coordinate)
    points = _points(path, name, coordinate)
    flipped = bool(points[-1] < points[0])
    points = points[::-1] if flipped else points
    step = float(points[-1] - points[0]) / (n - 1)
    first, last = float(points[0]), float(points[-1])
    if kind == "cells":
        axis = Axis(name, n, first - step / 2, last + step / 2, kind)
    else:
        axis = Axis(name, n, first, last + step if kind == "periodic" else last, kind)
    return _written(coordinate, points, axis) or axis, flipped


def _points(path: Path, name: str, coordinate: Variable) -> Array:
    if coordinate.kind not in "fiu":
        raise SapcError(f"{path}: the coordinate {coordinate.name!r} of axis {name!r} is not made of numbers")
    points = coordinate.read().astype(np.float64)
    if not np.isfinite(points).all():
        i = int(np.flatnonzero(~np.isfinite(points))[0])
        raise SapcError(f"{path}: the coordinate of axis {name!r} is {points[i]} at index {i}; give a number")
    steps = np.diff(points)
    mean = (points[-1] - points[0]) / len(steps)
    if mean == 0 or np.abs(steps - mean).max() > TOLERANCE * abs(mean):
        raise SapcError(
            f"{path}: the points of axis {name!r} are not equally spaced, their steps run from {steps.min():.6g} to "
            f"{steps.max():.6g}; interpolate the fields to equal steps first"
        )
    return points


def _kind(path: Path, coordinate: Variable) -> str:
    kind = coordinate.text("sapc_kind")
    if kind is not None:
        if kind not in ("periodic", "closed", "cells"):
            raise SapcError(
                f"{path}: {coordinate.name!r} has sapc_kind {kind!r:.40}; write periodic, closed or cells"
            )
        return kind
    said = (coordinate.text("periodic") or "").lower()
    return "periodic" if said in ("1", "1.0", "true", "yes") else "closed"


def _written(coordinate: Variable, points: Array, axis: Axis) -> Axis | None:
    """The axis with the very ends that were written, if they still are those of the points: a part of a file keeps its attributes."""
    bounds = np.ravel(coordinate.attributes.get("sapc_bounds", ()))
    if len(bounds) != 2 or bounds.dtype.kind != "f" or not bounds[1] > bounds[0]:
        return None
    written = Axis(axis.name, axis.n, float(bounds[0]), float(bounds[1]), axis.kind)
    off = np.abs(written.points.numpy() - points).max()
    return written if off <= 1e-6 * axis.spacing else None
