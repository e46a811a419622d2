"""Truncated Fourier transforms of channels-last fields as products with thin DFT matrices.

So few modes are kept that a product beats a full FFT, and moves less memory. With the real and imaginary part as an axis p of length two,
a transform along one axis is one real matrix. From the last axis to the first,

    (b, x, t, c) -> (b, x, p k_t, c) = (b, x p, k_t c) -> (b, p k_x, k_t c),

each arrow a product from the left, no transposition anywhere; the way back runs the same arrows in reverse.

`modes` counts k = -m/2 .. m/2-1 on every axis but the last, and k = 0 .. m-1 on the last, whose transform is that of real data. Norm: none
forward, 1/n back; `unitary`: n^-1/2 both ways, which keeps spectra near the size of fields, within the range of half precision. What is
done to the modes between the two is linear, so the result is the same. A grid too coarse for some of the modes keeps those it has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Transforms:
    """DFT matrices of one grid, first axis first, which of the stored modes the grid has, and what else depends on the grid alone."""

    grid: tuple[int, ...]
    analyse: tuple[Tensor, ...]
    synthesise: tuple[Tensor, ...]
    kept: tuple[slice, ...]
    one: Tensor  # (modes,): the transform of the constant 1, zero but for the mean's entry
    place: Tensor  # (points, axes + 1): the points' coordinates in the unit cube, and a one; never less than float32

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, *grid, channels)` to `(batch, 2, *modes, channels)`."""
        *lead, n, channels = x.shape
        z = _product(self.analyse[-1], x.reshape(math.prod(lead), n, channels))
        return self.to_modes(z.reshape(*lead, 2, -1, channels))

    def to_modes(self, z: Tensor) -> Tensor:
        """The transforms of all axes but the last: `(batch, *lines, 2, modes of the last, channels)` to `(batch, 2, *modes, channels)`."""
        batch, channels, modes = z.shape[0], z.shape[-1], [s.stop - s.start for s in self.kept]
        for axis in reversed(range(len(self.kept) - 1)):
            lines = batch * math.prod(self.grid[:axis])
            z = _product(self.analyse[axis], z.reshape(lines, 2 * self.grid[axis], -1))
        return z.reshape(batch, 2, *modes, channels)

    def inverse(self, z: Tensor) -> Tensor:
        """`(batch, 2, *modes, channels)` to `(batch, *grid, channels)`."""
        z = self.from_modes(z)
        *lead, two, n, channels = z.shape
        return _product(self.synthesise[-1], z.reshape(-1, two * n, channels)).reshape(
            *lead, self.grid[-1], channels
        )

    def from_modes(self, z: Tensor) -> Tensor:
        """The inverse of `to_modes`, on fields that have no other modes."""
        batch, channels, last = z.shape[0], z.shape[-1], z.shape[-2]
        for axis, n in enumerate(z.shape[2:-2]):
            z = _product(self.synthesise[axis], z.reshape(batch * math.prod(self.grid[:axis]), 2 * n, -1))
        return z.reshape(batch, *self.grid[:-1], 2, last, channels)


def _product(matrix: Tensor, x: Tensor) -> Tensor:
    """One matrix times a batch of them; `matrix @ x` would transpose all of x first."""
    return torch.bmm(matrix.expand(len(x), -1, -1), x)


@lru_cache(maxsize=16)
def transforms(
    grid: tuple[int, ...],
    modes: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    unitary: bool = False,
) -> Transforms:
    """The matrices of a grid, computed in float64 and kept."""
    with torch.inference_mode(False), torch.no_grad():  # kept for training too, whoever asks first
        return _transforms(grid, modes, dtype, device, unitary)


def _transforms(
    grid: tuple[int, ...], modes: tuple[int, ...], dtype: torch.dtype, device: torch.device, unitary: bool
) -> Transforms:
    analyse, synthesise, kept = [], [], []
    for n, m in zip(grid[:-1], modes[:-1], strict=True):
        low, high = -min(m // 2, n // 2), min((m + 1) // 2, (n + 1) // 2)
        c, s = _waves(torch.arange(low, high), n)
        # (c - i s)(re + i im), columns (x, p); and its conjugate transpose over n.
        forward = torch.stack((torch.stack((c, s), -1), torch.stack((-s, c), -1))).flatten(2).flatten(0, 1)
        scale = n**-0.5 if unitary else 1.0
        analyse.append(forward * scale)
        synthesise.append(forward.T / (n * scale))
        kept.append(slice(low + m // 2, high + m // 2))
    n, m = grid[-1], min(modes[-1], grid[-1] // 2 + 1)
    c, s = _waves(torch.arange(m), n)
    forward = torch.cat((c, -s))
    twice = torch.full((m,), 2.0, dtype=torch.float64)  # a wave and its conjugate, but for the mean and n/2
    twice[0] = 1
    if 2 * (m - 1) == n:
        twice[-1] = 1
    scale = n**-0.5 if unitary else 1.0
    analyse.append(forward * scale)
    synthesise.append((forward * twice.repeat(2)[:, None]).T / (n * scale))
    kept.append(slice(0, m))
    first, second = (tuple(a.contiguous().to(device, dtype) for a in side) for side in (analyse, synthesise))
    ones = torch.ones(1, *grid, 1, dtype=dtype, device=device)
    found = Transforms(grid, first, second, tuple(kept), torch.empty(0), _place(grid, dtype, device))
    mean = math.prod(grid) ** (0.5 if unitary else 1.0)
    return replace(found, one=_mean_only(found.forward(ones)[0, 0, ..., 0], mean))


def _place(grid: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    lines = torch.meshgrid(*(torch.linspace(0, 1, n, dtype=torch.float64) for n in grid), indexing="ij")
    exact = dtype if dtype == torch.float64 else torch.float32
    return torch.stack((*lines, torch.ones(grid, dtype=torch.float64)), -1).flatten(0, -2).to(device, exact)


def _mean_only(z: Tensor, mean: float) -> Tensor:
    """The transform of 1 without its rounding."""
    return torch.where(z > mean / 2, mean, 0.0).to(z.dtype).flatten()


def _waves(k: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """`cos` and `sin` of `2 pi k x / n`, `(k, x)`; the phase is reduced in integers, so it is exact."""
    phase = (k[:, None] * torch.arange(n)).remainder(n).double() * (2 * math.pi / n)
    return phase.cos(), phase.sin()
