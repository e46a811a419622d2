"""Read axes from coordinates: finite, strictly monotonic, equally spaced to a thousandth of the step.

A coordinate gives the points of its axis. What lies beyond the last point depends on the kind of the axis
(`grid.Axis`), which the caller gives, else the attribute `sapc_kind` or `periodic` of the coordinate, else it
is closed. Axes that decrease are reversed, and the fields with them. An axis without a coordinate is [0, 1].
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...errors import SapcError
from ...grid import Axis
from .formats import Variable
from .hdf5 import Array

TOLERANCE = 1e-3
"""Largest deviation of a step from the mean step, as a fraction of it."""


def read_axis(
    path: Path, name: str, n: int, coordinate: Variable | None, kind: str | None
) -> tuple[Axis, bool]:
    """Read an axis from its coordinate.

    Args:
        path: The file, for messages.
        name: Name of the axis.
        n: Number of points that the fields have along it.
        coordinate: The coordinate, if the file has one.
        kind: Kind of the axis, if the caller gave one.

    Returns:
        The axis, and whether it is reversed in the file.

    Raises:
        SapcError: The axis is too short, or its coordinate is not usable.
    """
    if n < 3:
        raise SapcError(f"{path}: axis {name!r} has {n} points; 3 are needed: leave it out or refine it")
    if coordinate is None:
        return Axis(name, n, kind=kind or "closed"), False
    kind = kind or _kind(path, coordinate)
    points = _points(path, name, coordinate)
    is_reversed = bool(points[-1] < points[0])
    points = points[::-1] if is_reversed else points
    step = float(points[-1] - points[0]) / (n - 1)
    first, last = float(points[0]), float(points[-1])
    if kind == "cells":
        axis = Axis(name, n, first - step / 2, last + step / 2, kind)
    else:
        axis = Axis(name, n, first, last + step if kind == "periodic" else last, kind)
    return _exact_axis(coordinate, points, axis) or axis, is_reversed


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
            f"{path}: the points of axis {name!r} are not equally spaced, their steps run from "
            f"{steps.min():.6g} to {steps.max():.6g}; interpolate the fields to equal steps first"
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
    is_periodic = (coordinate.text("periodic") or "").lower() in ("1", "1.0", "true", "yes")
    return "periodic" if is_periodic else "closed"


def _exact_axis(coordinate: Variable, points: Array, axis: Axis) -> Axis | None:
    """Return the axis with exactly the ends in `sapc_bounds`, or None where they do not belong to the points.

    A part of a file keeps the attributes of the whole, so the bounds may be those of a longer axis.
    """
    bounds = np.ravel(coordinate.attributes.get("sapc_bounds", ()))
    if len(bounds) != 2 or bounds.dtype.kind != "f" or not bounds[1] > bounds[0]:
        return None
    exact = Axis(axis.name, axis.n, float(bounds[0]), float(bounds[1]), axis.kind)
    distance = np.abs(exact.points.numpy() - points).max()
    return exact if distance <= 1e-6 * axis.spacing else None
