"""Source anchoring for physical consistency.

The flow starts on the manifold, is trained to stay there, and is kept there.

Training anchors the source on the manifold of its paired datum (Eq. sapc-loss, P the projection onto H):

    L = E | v(v_t, t) - (P(v1) - v0) |^2,     v_t = (1 - t) v0 + t P(v1)

Sampling starts from P(v1) and replaces every endpoint estimate by its projection (Eq. sapc-sampling):

    v_s = (s/t) v_t + (1 - s/t) P(v0^),     v0^ = v_t - t v(v_t, t)

Where H is affine every state lies on it. Where H is curved the path leaves it between its ends, by the bound
of Eq. sapc-nonlinear-interp, |R(v_t)| <= t (1 - t) L |v0 - P(v1)|^2 / 2. There projections are iterations:
those on the way are cut off after a few passes, and one more at t = 0, not cut off, takes away what they may
have left.

Romoli, Ruffini and Soda, "Source Anchoring for Physical Consistency in Flow Matching Models", 2026.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ..constraints import Manifold
from ..errors import explain_misuse
from ..flow import EULER, Sampler, Velocity
from . import references
from .base import Method
from .ffm import regress


def loss(v: Velocity, v0: Tensor, v1: Tensor, t: Tensor, H: Manifold) -> Float[Tensor, ""]:
    """Regress the velocity between data and the source anchored on their manifolds."""
    return regress(v, v0, H.approximate().project(v1), t)


@explain_misuse
def sample(v: Velocity, v1: Tensor, H: Manifold, steps: int = 100, *, sampler: Sampler = EULER) -> Tensor:
    """Start from the anchored source and step towards projected estimates."""
    P = H.approximate().project
    return H.finish(sampler.run(v, P(v1), steps, P))


SAPC = Method(
    name="sapc",
    title="Source anchoring for physical consistency",
    reference=references.SAPC,
    loss=loss,
    sample=sample,
    weights="sapc",
    exact="all",
    accepts_sampler=True,
    loss_uses_manifold=True,
    sampler_uses_manifold=True,
)
