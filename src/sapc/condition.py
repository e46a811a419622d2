"""Conditions: which points of a task's grid are pinned, and the values that a caller gives for them."""

from __future__ import annotations

import torch
from torch import Tensor

from .constraints import Pin
from .errors import SapcError
from .tasks import Dataset, Task


def pinned_mask(task: Task) -> Tensor:
    """The pinned points of a task's grid, boolean."""
    shape = task.grid.shape
    mask = torch.zeros(shape, dtype=torch.bool)
    for part in task.constraint.parts:
        if isinstance(part, Pin):
            mask |= part.mask(shape)
    return mask


def pinned_values(condition: Tensor | Dataset, task: Task) -> Tensor:
    """The condition in float64, zero where nothing is pinned; refuses another shape, and NaN where it counts."""
    if isinstance(condition, Dataset):
        if condition.task != task.name:
            raise SapcError(
                f"the condition is a dataset of {condition.task}, but this is a model of {task.name}"
            )
        condition = condition.fields
    shape = task.grid.shape
    if not isinstance(condition, Tensor) or condition.is_complex() or condition.dtype == torch.bool:
        got = str(condition.dtype) if isinstance(condition, Tensor) else type(condition).__name__
        raise SapcError(
            f"the condition must be a real tensor of fields or a Dataset, got {got}; use torch.as_tensor"
        )
    if tuple(condition.shape[1:]) != shape or len(condition) == 0:
        wanted = ", ".join(map(str, shape))
        raise SapcError(
            f"the condition has shape {tuple(condition.shape)}; expected (1, {wanted}), or one per sample, (n, {wanted}); "
            "for another resolution give grid= as well"
        )
    mask = pinned_mask(task).to(condition.device)
    values = torch.where(mask, condition.detach().double(), 0.0)
    if bad := int((~values.isfinite()).sum()):
        raise SapcError(
            f"{bad} of the condition's {len(values) * int(mask.sum())} pinned values are NaN or infinite; "
            f"give finite ones (pinned are: {task.pinned})"
        )
    return values
