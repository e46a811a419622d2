"""Units: a network works with channels of mean 0 and deviation 1, while data and laws keep their units.

    u = m + s w      with m and s one number per channel

A constraint on u is one on w. Pins keep their points, the rows R(m + s w) keep their values, and what is declared linear stays so, so that
the same algorithm projects. The nearest point is then nearest in w: a metre and a pascal are compared by how much each varies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..constraints.acceleration import WithGradient
from ..constraints.terms import Affine, Balance, Constraint, Pin, Stackable
from ..errors import SapcError, fits
from ..grid import FrameIntegral, Grid


@dataclass(frozen=True)
class Scale:
    """Mean and deviation of every channel of the fields on a grid."""

    grid: Grid
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, fields: Tensor, grid: Grid) -> Scale:
        """That of given fields, over samples and points."""
        grid.check(fields)
        rows = fields.reshape(len(fields), grid.width, -1).transpose(0, 1).flatten(1)
        means, deviations = [], []
        for name, values in zip(grid.channels or ("the field",), rows, strict=True):
            deviation, mean = (float(x) for x in torch.std_mean(values.double(), correction=0))
            if not deviation > 1e-12 * (abs(mean) + 1e-300):
                raise SapcError(
                    f"all values of {name} are {mean:g}: there is nothing to learn; leave this channel out"
                )
            means.append(mean)
            deviations.append(deviation)
        return cls(grid, tuple(means), tuple(deviations))

    def _columns(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """m and s as they broadcast against a field or a batch of fields."""
        shape = (-1, *(1,) * len(self.grid.axes)) if self.grid.width > 1 else ()
        m, s = (torch.tensor(x, dtype=torch.float64, device=u.device) for x in (self.mean, self.deviation))
        return m.reshape(shape), s.reshape(shape)

    def enter(self, u: Tensor) -> Tensor:
        """w of u."""
        m, s = self._columns(u)
        return ((u.double() - m) / s).to(u.dtype)

    def leave(self, w: Tensor) -> Tensor:
        """u of w."""
        m, s = self._columns(w)
        return (m + s * w.double()).to(w.dtype)

    def constraint(self, given: Stackable) -> Stackable:
        """What w must satisfy for u to satisfy `given`."""
        parts = [self._part(part) for part in given.parts]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole & part
        return whole

    def _part(self, part: Stackable) -> Stackable:
        if isinstance(part, Pin):
            if part.value is None:
                return part
            value = torch.as_tensor(part.value, dtype=torch.float64).broadcast_to(self.grid.shape)
            return replace(part, value=self.enter(value))
        if isinstance(part, Balance):
            rate, theta = (None if f is None else self._function(f) for f in (part.rate, part.coefficient))
            return Balance(self._stored(part.stored), rate, theta, part.with_times_of(self.grid).times)
        if isinstance(part, Affine):
            return self._affine(part)
        if isinstance(part, Constraint):
            function = part.function
            return replace(part, function=lambda w: function(self.leave(w)))
        raise SapcError(
            f"a constraint is made of Pin, Balance, Affine and Constraint, got {type(part).__name__}"
        )

    def _stored(self, f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """f(m + s w); of a frame integral the part that depends on w: laws compare frames, in which the rest is the same."""
        if not isinstance(f, FrameIntegral):
            return self._function(f)
        s = self._columns(f.weights)[1]
        if self.grid.width > 1 and not self.grid.steady:
            s = s[..., 0]  # frame by frame
        return FrameIntegral(f.weights * s, f.steady)

    def _function(self, f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """f(m + s w)."""
        if isinstance(f, WithGradient):
            both = f.both

            def scaled(w: Tensor) -> tuple[Tensor, Tensor]:
                value, slope = both(self.leave(w))
                return value, slope * self._columns(w)[1].to(w.dtype)

            return WithGradient(lambda w: f(self.leave(w)), scaled)
        return lambda w: f(self.leave(w))

    def _affine(self, part: Affine) -> Affine:
        """A (m + s w) = value as A s w = value - A m: a mean that is large beside the deviation costs no digits."""
        zero = torch.zeros(1, *self.grid.shape, dtype=torch.float64)
        offset, constant = part.measure(self.leave(zero)), part.measure(zero)

        def linear(w: Tensor) -> Tensor:
            # Without the mean: a large one, added and subtracted again, would cost digits.
            return part.measure((self._columns(w)[1] * w.double()).to(w.dtype)) - constant.to(w)

        if isinstance(part.value, str):
            return Affine(linear, part.value)
        return Affine(linear, torch.as_tensor(part.value, dtype=torch.float64).cpu() - offset)

    # -- files --

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"mean": list(self.mean), "deviation": list(self.deviation)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], grid: Grid) -> Scale:
        """Back from `to_dict`; refuses what is not one finite number per channel."""
        mean, deviation = data.get("mean", ()), data.get("deviation", ())
        for values in (mean, deviation):
            whole = fits(values, Sequence[float]) and len(values) == grid.width
            if not whole or not all(map(math.isfinite, values)):
                raise SapcError(
                    f"mean and deviation of fields are {grid.width} finite numbers each, got {values!r:.60}"
                )
        if min(deviation) <= 0:
            raise SapcError(f"the deviation of fields is positive, got {deviation!r:.60}")
        return cls(grid, tuple(map(float, mean)), tuple(map(float, deviation)))
