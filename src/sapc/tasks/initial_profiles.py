"""Random initial profiles in one dimension: sums of sines, rescaled to a range.

    u(x) = sum_k a_k sin(2 pi k x + p_k),   a_k ~ U[0, 1],   p_k ~ U[0, 2 pi]

A profile is a function, not a vector: its extremes are found on one fixed fine grid, so that the same draw
is the same function on every grid. On that grid the extremes are right to about 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi

import torch
from jaxtyping import Float
from torch import Tensor

FINE_POINTS = 8192

Profile = Callable[[Float[Tensor, " x"]], Float[Tensor, "n x"]]


def sines(k: Float[Tensor, "n m"], a: Float[Tensor, "n m"], p: Float[Tensor, "n m"]) -> Profile:
    """`sum_m a_m sin(2 pi k_m x + p_m)` as a function of x in [0, 1]."""

    def profile(x: Float[Tensor, " x"]) -> Float[Tensor, "n x"]:
        u = torch.zeros(len(k), len(x), dtype=torch.float64)
        for km, am, pm in zip(k.T, a.T, p.T, strict=True):
            u = u + am[:, None] * torch.sin(2 * pi * km[:, None] * x + pm[:, None])
        return u

    return profile


def rescale_profile(profile: Profile, low: float, high: float) -> Profile:
    """Stretch a profile so that it spans [low, high]."""
    fine = profile((torch.arange(FINE_POINTS, dtype=torch.float64) + 0.5) / FINE_POINTS)
    low_end, high_end = fine.amin(1, keepdim=True), fine.amax(1, keepdim=True)
    return lambda x: low + (high - low) * (profile(x) - low_end) / (high_end - low_end)
