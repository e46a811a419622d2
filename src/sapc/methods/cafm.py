"""CAFM: trained through the projection that the sampler applies, sampled as PCFM.

The velocity that is regressed is the one that leads to the projected estimate:

    L = E | (v_t - P(v0^)) / max(t, 1e-3) - (v1 - v0) |^2 + 1e-3 E |R(P(v0^))|^2,

    v0^ = v_t - t v(v_t, t),   t in [0.05, 1]

The first mean is over batch and grid, the second over the batch. P is differentiated (see
`constraints.projection.adjoint`).

Christopher, Warner and Fioretto, "Constraint-Aware Flow Matching: Decision Aligned End-to-End Training for
Constrained Sampling", 2026.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ..constraints import Manifold
from ..flow import Velocity, expand_like, interpolate, predict_data
from . import references
from .base import Method
from .pcfm import sample

T_MIN = 0.05
# No smaller flow time is divided by.
MIN_TIME = 1e-3
WEIGHT = 1e-3


def fit(v: Velocity, v0: Tensor, v1: Tensor, t: Tensor, H: Manifold) -> tuple[Float[Tensor, ""], Tensor]:
    """Regress through the projection; return the loss and the projected estimates."""
    vt = interpolate(v0, v1, t)
    estimate = H.approximate().project(predict_data(vt, t, v(vt, t)))
    velocity = (vt - estimate) / expand_like(t.clamp(min=MIN_TIME), vt)
    return (velocity - (v1 - v0)).square().mean(), estimate


def loss(v: Velocity, v0: Tensor, v1: Tensor, t: Tensor, H: Manifold) -> Float[Tensor, ""]:
    """Add what the projection left of the residual to the regression."""
    regression, estimate = fit(v, v0, v1, t, H)
    return regression + WEIGHT * H.residual(estimate).square().sum(1).mean()


CAFM = Method(
    name="cafm",
    title="Constraint-aware flow matching",
    reference=references.CAFM,
    loss=loss,
    sample=sample,
    weights="cafm",
    exact="affine",
    loss_uses_manifold=True,
    sampler_uses_manifold=True,
    clips_endpoint=True,
    t_min=T_MIN,
)
