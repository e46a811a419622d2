"""Constraints in normalized units: what w must satisfy for u = m + s w to satisfy a constraint.

Pins keep their points, the rows R(m + s w) keep their values, and what is declared linear stays so, so that
the same algorithm projects. The nearest point is then nearest in w: a metre and a pascal are compared by how
much each varies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..constraints.acceleration import WithGradient
from ..constraints.terms import Affine, Balance, Constraint, ConstraintTerm, Pin, Stack
from ..data.normalizer import Identity, Normalizer
from ..errors import SapcError
from ..grid import FrameIntegral

Function = Callable[[Tensor], Tensor]


def rescale(constraint: ConstraintTerm, normalizer: Normalizer | Identity) -> ConstraintTerm:
    """Return the constraint on w that holds where u satisfies `constraint`."""
    if isinstance(normalizer, Identity):
        return constraint
    return Stack(tuple(_rescale_part(part, normalizer) for part in constraint.parts))


def _rescale_part(part: ConstraintTerm, normalizer: Normalizer) -> ConstraintTerm:
    grid = normalizer.grid
    if isinstance(part, Pin):
        if part.value is None:
            return part
        value = torch.as_tensor(part.value, dtype=torch.float64).broadcast_to(grid.shape)
        return replace(part, value=normalizer.normalize(value))
    if isinstance(part, Balance):
        rate, theta = (None if f is None else _function(f, normalizer) for f in (part.rate, part.coefficient))
        return Balance(_stored_quantity(part.stored, normalizer), rate, theta, part.with_times_of(grid).times)
    if isinstance(part, Affine):
        return _affine(part, normalizer)
    if isinstance(part, Constraint):
        return replace(part, function=_function(part.function, normalizer))
    raise SapcError(f"a constraint is made of Pin, Balance, Affine and Constraint, got {type(part).__name__}")


def _stored_quantity(f: Function, normalizer: Normalizer) -> Function:
    """Return f(m + s w), of a frame integral only the part that depends on w: laws compare frames."""
    if not isinstance(f, FrameIntegral):
        return _function(f, normalizer)
    s = normalizer.columns(f.weights)[1]
    # The weights are those of one frame.
    if normalizer.grid.n_channels > 1 and not normalizer.grid.steady:
        s = s[..., 0]
    return FrameIntegral(f.weights * s, f.steady)


def _function(f: Function, normalizer: Normalizer) -> Function:
    """Return f(m + s w)."""

    def value(w: Tensor) -> Tensor:
        return f(normalizer.denormalize(w))

    if not isinstance(f, WithGradient):
        return value

    def value_and_gradient(w: Tensor) -> tuple[Tensor, Tensor]:
        result, slope = f.value_and_gradient(normalizer.denormalize(w))
        return result, slope * normalizer.columns(w)[1].to(w.dtype)

    return WithGradient(value, value_and_gradient)


def _affine(part: Affine, normalizer: Normalizer) -> Affine:
    """Return A (m + s w) = value as A s w = value - A m: a large mean costs no digits."""
    zero = torch.zeros(1, *normalizer.grid.shape, dtype=torch.float64)
    offset, constant = part.measure(normalizer.denormalize(zero)), part.measure(zero)

    def linear(w: Tensor) -> Tensor:
        # Without the mean: a large one, added and subtracted again, would cost digits.
        return part.measure((normalizer.columns(w)[1] * w.double()).to(w.dtype)) - constant.to(w)

    if isinstance(part.value, str):
        return Affine(linear, part.value)
    return Affine(linear, torch.as_tensor(part.value, dtype=torch.float64).cpu() - offset)
