"""Functional flow matching: learn the velocity of the straight path, follow it with Euler steps.

The loss is Eq. ffm-loss, the flow Eq. ffm-ode.

It knows no constraints. The paper's appendix writes both with time reversed; here data sit at t = 0.

Kerrigan, Migliorini and Smyth, "Functional Flow Matching", 2024.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ..constraints import Manifold
from ..errors import explain_misuse
from ..flow import EULER, Sampler, Velocity, interpolate
from . import references
from .base import Method


def regress(v: Velocity, v0: Tensor, v1: Tensor, t: Tensor) -> Float[Tensor, ""]:
    """`|v(v_t, t) - (v1 - v0)|^2`, mean over batch and grid."""
    return (v(interpolate(v0, v1, t), t) - (v1 - v0)).square().mean()


def loss(v: Velocity, v0: Tensor, v1: Tensor, t: Tensor, H: Manifold) -> Float[Tensor, ""]:
    """Regress the velocity between data and source, paired at random."""
    return regress(v, v0, v1, t)


@explain_misuse
def sample(v: Velocity, v1: Tensor, H: Manifold, steps: int = 100, *, sampler: Sampler = EULER) -> Tensor:
    """Follow the velocity from the source, by Euler's steps as published."""
    return sampler.run(v, v1, steps)


FFM = Method(
    name="ffm",
    title="Functional flow matching",
    reference=references.FFM,
    loss=loss,
    sample=sample,
    weights="ffm",
    exact="none",
    accepts_sampler=True,
)
