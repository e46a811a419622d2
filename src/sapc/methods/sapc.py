"""Source anchoring for physical consistency: the flow starts on the manifold, is trained to stay there, and is kept there.

Training anchors the source on the manifold of its paired datum (Eq. sapc-loss, P the projection onto H):

    L = E | v(v_t, t) - (P(v1) - v0) |^2,     v_t = (1 - t) v0 + t P(v1)

Sampling starts from P(v1) and replaces every endpoint estimate by its projection (Eq. sapc-sampling):

    v_s = (s/t) v_t + (1 - s/t) P(v0^),     v0^ = v_t - t v(v_t, t)

Where H is affine every state lies on it. Where H is curved the path leaves it between its ends, by the bound of
Eq. sapc-nonlinear-interp, |R(v_t)| <= t (1 - t) L |v0 - P(v1)|^2 / 2. There projections are iterations: those on the way are cut off after
a few passes, and one more at t = 0, not cut off, takes away what they may have left.

Romoli, Ruffini and Soda, "Source Anchoring for Physical Consistency in Flow Matching Models", 2026.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ..constraints import Manifold
from ..flow.path import Velocity, at, endpoint, times, toward
from . import references
from .base import Method
from .ffm import regress


def loss(v: Velocity, v0: Tensor, v1: Tensor, t: Tensor, H: Manifold) -> Float[Tensor, ""]:
    """Data paired with the source anchored on their manifolds."""
    return regress(v, v0, on_the_way(H, v1).project(v1, check=False), t)


def sample(v: Velocity, v1: Tensor, H: Manifold, steps: int = 100) -> Tensor:
    """From the anchored source, towards projected estimates."""
    return follow(v, on_the_way(H, v1).project(v1, check=False), H, steps)


def follow(v: Velocity, vt: Tensor, H: Manifold, steps: int) -> Tensor:
    """From a state at t = 1 towards projected estimates."""
    way = on_the_way(H, vt)
    for t, s in times(steps):
        v0 = way.project(endpoint(vt, t, at(v, vt, t)), check=False)
        vt = toward(vt, v0, t, s)
    return settled(vt, H)


def settled(v0: Tensor, H: Manifold) -> Tensor:
    """The end of the way: on a curved manifold one more projection, not cut off."""
    return v0 if H.affine else H.project(v0)


def on_the_way(H: Manifold, v1: Tensor) -> Manifold:
    """On a GPU all passes are queued: a few kernels too many are cheaper than a host that waits instead of preparing the network.

    Not the dense ones, whose passes cost more than waiting.
    """
    return H.quick(ahead=True) if v1.is_cuda and H.algorithm == "banded Gauss-Newton" else H.quick()


SAPC = Method(
    name="sapc",
    title="Source anchoring for physical consistency",
    reference=references.SAPC,
    loss=loss,
    sample=sample,
    weights="sapc",
    exact="all",
    constrained=True,
    conditioned=True,
)
