"""PBFM: a physics residual beside FFM's loss.

The two gradients are combined so that neither opposes the update. It is sampled as FFM.

The residual is taken where the flow would end: from v_t by n equal Euler steps, n = 1, 2, 3, 4 in four equal
stages of the training,

    L_R = E (1 - t) mean_rows R(v0^)^2,

R the stacked residual with the datum's own pin, its mean square weighted per sample. The weight trusts an
endpoint that was near.

**ConFIG** asks for a direction that has the same angle with both gradients. With their unit vectors e1, e2
the parts of each that are orthogonal to the other, made unit vectors and added, point along e1 + e2 (both are
e_i - cos e_j over the same sine), and the length is the sum of the gradients' projections on it. Written out,

    g = (|g1| + |g2|) (e1 + e2) / 2,     g . g_i = (|g1| + |g2|) |g_i| (1 + cos) / 2 >= 0,

which needs no division by a sine: g1 + g2 where they are parallel or one of them vanishes, zero where they
are opposed.

Baldan, Liu, Guardone and Thuerey, "Physics vs Distributions: Pareto Optimal Flow Matching with Physics
Constraints", 2026. Liu, Chu and Thuerey, "ConFIG: Towards Conflict-free Training of Physics Informed Neural
Networks", 2025.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..constraints import Manifold
from ..flow import Velocity, expand_like, interpolate
from . import references
from .base import Method, SecondObjective
from .ffm import loss, sample

STAGES = 4


def unroll(v: Velocity, vt: Tensor, t: Tensor, n: int) -> Tensor:
    """Where n equal Euler steps lead from `vt` at times `t`, one per sample, to zero."""
    for k in range(n):
        velocity: Tensor = v(vt, t * (1 - k / n))
        vt = vt - expand_like(t / n, vt) * velocity
    return vt


def residual(
    v: Velocity, v0: Tensor, v1: Tensor, t: Tensor, H: Manifold, progress: float
) -> Float[Tensor, ""]:
    """Mean square of R at the unrolled endpoint, weighted by 1 - t per sample."""
    n = 1 + min(int(STAGES * progress), STAGES - 1)
    end = unroll(v, interpolate(v0, v1, t), t, n)
    weighted_residual: Tensor = (1 - t) * H.residual(end).square().mean(1)
    return torch.mean(weighted_residual)


def config(g1: Float[Tensor, " n"], g2: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """ConFIG's update for two gradients; see the module docstring."""
    n1, n2 = torch.linalg.vector_norm(g1), torch.linalg.vector_norm(g2)
    tiny = torch.finfo(g1.dtype).tiny
    update = (n1 + n2) / 2 * (g1 / n1.clamp(min=tiny) + g2 / n2.clamp(min=tiny))
    return torch.where((n1 > 0) & (n2 > 0), update, g1 + g2)


PBFM = Method(
    name="pbfm",
    title="Physics-based flow matching",
    reference=references.PBFM,
    further_references=(references.CONFIG,),
    loss=loss,
    sample=sample,
    weights="pbfm",
    exact="none",
    accepts_sampler=True,
    loss_uses_manifold=True,
    second_objective=SecondObjective(residual, config),
)
