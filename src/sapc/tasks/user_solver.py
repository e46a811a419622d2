"""Checks of solvers that users write: where time is, and whether a test set has one condition.

Published solvers are held to both by tests; for a user's class the mistake would go unnoticed on a grid with
as many times as points.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from ..errors import SapcError, SapcWarning
from .physics import pins_of

if TYPE_CHECKING:
    from .base import Task

# In deviations of the fields: pinned values that differ by more are other conditions, not rounding.
CONDITION_TOLERANCE = 1e-4
# In deviations of the initial profile: a first frame that is off by more is not that profile.
FRAME_TOLERANCE = 1e-3


def describe_class_file(cls: type) -> dict[str, str]:
    """Return name and SHA-256 of the file that defines a user's class; empty for others and in notebooks."""
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if cls.__module__.partition(".")[0] == "sapc" or not file:
        return {}
    try:
        text = Path(file).read_bytes()
    except OSError:
        return {}
    # A class that builds on another user's class changes with that one, too.
    texts = [getattr(base, "class_file", {}).get("sha256", "") for base in cls.__mro__[1:]]
    digest = hashlib.sha256(text)
    for parent in filter(None, texts):
        digest.update(parent.encode())
    return {"file": Path(file).name, "sha256": digest.hexdigest()}


def refuse_solution(task: Task, u: object, n: int) -> NoReturn:
    """Say how what a solver returned differs from `n` fields of the grid."""
    shape = (n, *task.grid.shape)
    result = f"shape {tuple(u.shape)}" if isinstance(u, Tensor) else type(u).__name__
    advice = "(batch, *space), as the fields are steady" if task.grid.steady else "(batch, *space, time)"
    axis = _time_axis(u, shape) if isinstance(u, Tensor) and not task.grid.steady else None
    if axis is not None:
        advice = f"time is the last axis: return u.movedim({axis}, -1)"
    raise SapcError(
        f"the solver of {task.name} returned {result} for {n} samples; expected {shape}: {advice}"
    )


def check_time_axis(task: Task, parameters: Mapping[str, Tensor], u: Tensor) -> None:
    """Refuse a solver that returns time on another axis than the last, where the shape says nothing.

    On a grid with as many times as points one sample is solved with more times. The first frame is compared
    with the initial profile, where that is a parameter.

    Raises:
        SapcError: Time is on another axis.
    """
    n, space = task.grid.time.n, task.grid.shape[:-1]
    if n not in space:
        return
    count = next(m for m in range(n + 1, n + len(space) + 2) if m not in space)
    longer = replace(task.grid, axes=(*task.grid.space, replace(task.grid.time, n=count)))
    axis = None
    # A solver that is written for one grid cannot be asked about another one.
    with suppress(Exception):
        probe = type(task)(longer, **task.options)._solve({name: p[:1] for name, p in parameters.items()})
        if tuple(probe.shape) == (1, *longer.shape):
            return
        axis = _time_axis(probe, (1, *longer.shape))
    if axis is None and "initial" in parameters:
        axis = _axis_of_start(u[:1], parameters["initial"][:1].to(u))
    if axis is not None:
        raise SapcError(
            f"the solver of {task.name} returns time on axis {axis} of its fields; time is the last axis: "
            f"return u.movedim({axis}, -1)"
        )


def describe_conditions(task: Task, split: str, fields: Tensor) -> str:
    """Return what is wrong with the conditions of a test set, or an empty string if it has only one."""
    mask = torch.zeros(task.grid.shape, dtype=torch.bool)
    for pin in pins_of(task.constraint):
        if pin.value is None:
            mask |= pin.mask(task.grid.shape)
    values = fields[:, mask].double()
    if not values.numel():
        return ""
    distance, deviation = float((values - values[:1]).abs().max()), float(fields.double().std())
    if distance <= CONDITION_TOLERANCE * deviation:
        return ""
    return (
        f"the test set {split} of {task.name} has several conditions: its pinned values differ by up to "
        f"{distance:.3g}, and metrics "
        "compare samples of the first one with all of them; in _draw, take what is pinned from "
        "streams.condition with the first index of "
        "streams.independent_pairs(size), or from streams.uniform_condition"
    )


def warn_of_conditions(task: Task, split: str, fields: Tensor) -> None:
    """Warn of a test set with several conditions."""
    if problem := describe_conditions(task, split, fields):
        warnings.warn(problem, SapcWarning, stacklevel=4)


def _time_axis(u: Tensor, shape: tuple[int, ...]) -> int | None:
    """Return the axis which, moved to the end, gives the expected shape; None if there is none."""
    axes = (axis for axis in range(1, u.ndim - 1) if tuple(u.movedim(axis, -1).shape) == shape)
    return next(axes, None)


def _axis_of_start(u: Tensor, start: Tensor) -> int | None:
    """Return the axis along which fields begin with their initial profile, where that is not the last one."""
    tolerance = FRAME_TOLERANCE * float(start.std())
    frames = {axis: u.select(axis, 0) for axis in (u.ndim - 1, *range(1, u.ndim - 1))}
    for axis, frame in frames.items():
        if frame.shape == start.shape and bool((frame - start).abs().max() <= tolerance):
            return None if axis == u.ndim - 1 else axis
    return None
