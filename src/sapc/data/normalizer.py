"""Normalize fields: the network sees channels of mean 0 and deviation 1; data and laws keep their units.

w = (u - m) / s      with m and s one number per channel
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._old_names import rename_method
from ..errors import SapcError, has_type
from ..grid import Grid


class Identity:
    """Leave fields as they are."""

    is_identity: ClassVar[bool] = True

    def normalize(self, u: Tensor) -> Tensor:
        """Return `u` as it is."""
        return u

    denormalize = normalize


@dataclass(frozen=True)
class Normalizer:
    """Normalize every channel by its mean and deviation.

    Attributes:
        grid: Grid of the fields.
        mean: m, one number per channel.
        deviation: s, one positive number per channel.
    """

    grid: Grid
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    is_identity: ClassVar[bool] = False

    @classmethod
    def fit(cls, fields: Tensor, grid: Grid) -> Normalizer:
        """Measure mean and deviation over samples and points.

        Args:
            fields: Fields `(n, *grid)`.
            grid: Their grid.

        Returns:
            The normalizer.

        Raises:
            SapcError: A channel is constant.
        """
        grid.check(fields)
        rows = fields.reshape(len(fields), grid.n_channels, -1).transpose(0, 1).flatten(1)
        means, deviations = [], []
        for name, values in zip(grid.channels or ("the field",), rows, strict=True):
            deviation, mean = (float(x) for x in torch.std_mean(values.double(), correction=0))
            if not deviation > 1e-12 * (abs(mean) + 1e-300):
                raise SapcError(f"all values of {name} are {mean:g}: nothing to learn; leave it out")
            means.append(mean)
            deviations.append(deviation)
        return cls(grid, tuple(means), tuple(deviations))

    def columns(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return m and s, shaped to broadcast against a field or a batch of fields.

        Args:
            u: Fields, for their device.

        Returns:
            m and s in float64.
        """
        shape = (-1, *(1,) * len(self.grid.axes)) if self.grid.n_channels > 1 else ()
        m, s = (torch.tensor(x, dtype=torch.float64, device=u.device) for x in (self.mean, self.deviation))
        return m.reshape(shape), s.reshape(shape)

    def normalize(self, u: Tensor) -> Tensor:
        """Normalize: w = (u - m) / s.

        Args:
            u: Fields `(n, *grid)` in units of the data.

        Returns:
            w in the dtype of `u`.
        """
        m, s = self.columns(u)
        return ((u.double() - m) / s).to(u.dtype)

    def denormalize(self, w: Tensor) -> Tensor:
        """Invert `normalize`: u = m + s w.

        Args:
            w: Fields `(n, *grid)` as the network has them.

        Returns:
            u in the dtype of `w`.
        """
        m, s = self.columns(w)
        return (m + s * w.double()).to(w.dtype)

    enter, leave = rename_method("enter", "normalize"), rename_method("leave", "denormalize")

    def to_dict(self) -> dict[str, Any]:
        """Return mean and deviation as JSON can hold them."""
        return {"mean": list(self.mean), "deviation": list(self.deviation)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], grid: Grid) -> Normalizer:
        """Invert `to_dict`.

        Args:
            data: Mean and deviation.
            grid: Grid of the fields.

        Returns:
            The normalizer.

        Raises:
            SapcError: Mean and deviation are not one finite number per channel, or a deviation is not
                positive.
        """
        mean, deviation = data.get("mean", ()), data.get("deviation", ())
        for values in (mean, deviation):
            is_per_channel = has_type(values, Sequence[float]) and len(values) == grid.n_channels
            if not is_per_channel or not all(map(math.isfinite, values)):
                raise SapcError(
                    f"mean and deviation are {grid.n_channels} finite numbers each, got {values!r:.60}"
                )
        if min(deviation) <= 0:
            raise SapcError(f"the deviation of fields is positive, got {deviation!r:.60}")
        return cls(grid, tuple(map(float, mean)), tuple(map(float, deviation)))


Scale = Normalizer
"""Name of version 0.1.0."""
