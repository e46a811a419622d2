"""Functional flow matching: regress the velocity of the straight path (Eq. ffm-loss), follow it with Euler steps (Eq. ffm-ode).

It knows no constraints. The paper's appendix writes both with time reversed; here data sit at t = 0.

Kerrigan, Migliorini and Smyth, "Functional Flow Matching", 2024.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ..constraints import Manifold
from ..flow.path import Velocity, at, endpoint, interpolate, times, toward
from . import references
from .base import Method


def regress(v: Velocity, v0: Tensor, v1: Tensor, t: Tensor) -> Float[Tensor, ""]:
    """`|v(v_t, t) - (v1 - v0)|^2`, mean over batch and grid."""
    return (v(interpolate(v0, v1, t), t) - (v1 - v0)).square().mean()


def loss(v: Velocity, v0: Tensor, v1: Tensor, t: Tensor, H: Manifold) -> Float[Tensor, ""]:
    """Data and source paired at random."""
    return regress(v, v0, v1, t)


def euler(v: Velocity, vt: Tensor, t: float, s: float) -> Tensor:
    """One step along the velocity."""
    return toward(vt, endpoint(vt, t, at(v, vt, t)), t, s)


def sample(v: Velocity, v1: Tensor, H: Manifold, steps: int = 100) -> Tensor:
    """Euler steps from the source."""
    vt = v1
    for t, s in times(steps):
        vt = euler(v, vt, t, s)
    return vt


FFM = Method(
    name="ffm",
    title="Functional flow matching",
    reference=references.FFM,
    loss=loss,
    sample=sample,
    weights="ffm",
    exact="none",
)
