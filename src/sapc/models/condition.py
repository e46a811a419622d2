"""Conditions: which points of a task's grid are pinned, and the values that a caller gives for them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..constraints._bound import check_pins
from ..constraints.terms import Constraint, Pin, Stackable
from ..data import Fields, Sensors
from ..errors import SapcError
from ..tasks import Dataset, Task


def pinned_mask(task: Task, also: Stackable | None = None) -> Tensor:
    """The pinned points of a task's grid, boolean; `also` is a constraint besides the task's."""
    return _mask(_pins(task, also), task)


def given_mask(task: Task) -> Tensor:
    """The points whose values a condition gives: pinned, and not prescribed by the physics."""
    return _mask([pin for pin in _pins(task, None) if pin.value is None], task)


def per_sample(values: Tensor, n: int) -> Tensor:
    """Repeat each of k conditions for n = k m samples: m times in a row."""
    return values if len(values) in (1, n) else values.repeat_interleave(n // len(values), 0)


def pinned_values(condition: Tensor | Dataset | Fields, task: Task, also: Stackable | None = None) -> Tensor:
    """The condition in float64, zero where nothing counts.

    Refuses another shape, NaN where it counts, and pins that contradict each other. Values that a pin prescribes
    itself need not be given; given ones must agree with it (see `projection.binding.check_pins`). Where a law takes
    its value from the condition, every point counts.
    """
    condition = _tensor(condition, task)
    pins = _pins(task, also)
    check_pins(pins, condition)
    given, own = (
        _mask([pin for pin in pins if (pin.value is None) == open_], task).to(condition.device)
        for open_ in (True, False)
    )
    if whole := _wants_all(task, also):
        given = torch.ones_like(given)
    values = torch.where(given & ~own, condition.detach().double(), 0.0)
    for pin in pins:
        values = pin.prescribed(values)
    if bad := int((~values.isfinite()).sum()):
        what = f"values ({whole} takes its value from them)" if whole else "pinned values"
        pinned = ", ".join(filter(None, (task.pinned, *(p.label for p in pins if also and p in also.parts))))
        raise SapcError(
            f"{bad} of the condition's {len(values) * int(given.sum())} {what} are NaN or infinite; "
            f"give finite ones (pinned are: {pinned})"
        )
    return values


def with_sensors(condition: Tensor | Dataset | Fields, sensors: Sensors, task: Task) -> tuple[Tensor, Pin]:
    """Conditions with what sensors measured put in, and the pin that holds them there; sensors may not contradict the condition."""
    values = _tensor(condition, task).double()
    task.grid.check(sensors.values, "sensors' array")
    if len(sensors.values) > 1 and len(values) > 1 and len(sensors.values) != len(values):
        raise SapcError(
            f"there are sensors of {len(sensors.values)} samples for {len(values)} conditions; give as many, or one for all"
        )
    both = pinned_mask(task) & sensors.mask
    off = (sensors.values - values)[:, both].abs()
    if off.numel() and float((off - 1e-4 * sensors.values[:, both].abs()).max()) > 1e-6:
        raise SapcError(
            f"the condition already pins {int(both.sum())} of the sensors' points, and differs there by up to {float(off.max()):.3g}; "
            "leave out these sensors, or correct the condition"
        )
    shape = (max(len(values), len(sensors.values)), *task.grid.shape)
    mixed = torch.where(sensors.mask & ~pinned_mask(task), sensors.values.expand(shape), values.expand(shape))
    return mixed, Pin(sensors.mask, label="sensors")


def _pins(task: Task, also: Stackable | None) -> list[Pin]:
    parts = (*task.constraint.parts, *(also.parts if also is not None else ()))
    return [part for part in parts if isinstance(part, Pin)]


def _mask(pins: list[Pin], task: Task) -> Tensor:
    mask = torch.zeros(task.grid.shape, dtype=torch.bool)
    for pin in pins:
        mask |= pin.mask(task.grid.shape)
    return mask


def _wants_all(task: Task, also: Stackable | None) -> str:
    """The kind of a law whose value is that of the conditioning field, if there is one."""
    parts = (*task.constraint.parts, *(also.parts if also is not None else ()))
    return next(
        (type(p).__name__ for p in parts if isinstance(p, Constraint) and isinstance(p.value, str)), ""
    )


def _tensor(condition: Tensor | Dataset | Fields, task: Task) -> Tensor:
    """The fields of a condition, known to be on the task's grid."""
    if isinstance(condition, Dataset):
        if condition.task != task.name:
            raise SapcError(f"the condition is a dataset of {condition.task}, not of {task.name}")
        condition = condition.fields
    if isinstance(condition, Fields):
        condition = condition.values
    shape = task.grid.shape
    if not isinstance(condition, Tensor) or condition.is_complex() or condition.dtype == torch.bool:
        got = str(condition.dtype) if isinstance(condition, Tensor) else type(condition).__name__
        raise SapcError(f"the condition must be a real tensor or a Dataset, got {got}; use torch.as_tensor")
    if tuple(condition.shape[1:]) != shape or len(condition) == 0:
        wanted = ", ".join(map(str, shape))
        raise SapcError(
            f"the condition has shape {tuple(condition.shape)}; expected (1, {wanted}), or one per sample, (n, {wanted}); "
            "for another resolution give grid= as well"
        )
    return condition
