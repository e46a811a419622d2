"""SAPC with parts removed: what the endpoint projection, the training through it, and the anchored source are worth alone.

S1   FFM's weights, source not anchored, estimates projected at every step
S2   the same sampler, trained through the projection: CAFM's regression, at all flow times and without its second term
S3   FFM's weights, source anchored, plain Euler steps
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ..constraints import Manifold
from ..flow import Velocity
from . import cafm, ffm, references
from .base import Method
from .sapc import sample_from


def trained_through(v: Velocity, v0: Tensor, v1: Tensor, t: Tensor, H: Manifold) -> Float[Tensor, ""]:
    """The velocity that leads to the projected estimate, regressed."""
    return cafm.fit(v, v0, v1, t, H)[0]


def unanchored(v: Velocity, v1: Tensor, H: Manifold, steps: int = 100) -> Tensor:
    """SAPC's steps from the bare source."""
    return sample_from(v1, v, H, steps)


def anchored(v: Velocity, v1: Tensor, H: Manifold, steps: int = 100) -> Tensor:
    """Euler steps from the anchored source."""
    return ffm.sample(v, H.approximate().project(v1), H, steps)


S1 = Method(
    name="sapc_s1",
    title="SAPC without anchoring: endpoint projection only",
    reference=references.SAPC,
    loss=ffm.loss,
    sample=unanchored,
    weights="ffm",
    exact="all",
    conditioned=True,
)
S2 = Method(
    name="sapc_s2",
    title="SAPC without anchoring, trained through the endpoint projection",
    reference=references.SAPC,
    loss=trained_through,
    sample=unanchored,
    weights="sapc_s2",
    exact="all",
    constrained=True,
    conditioned=True,
)
S3 = Method(
    name="sapc_s3",
    title="SAPC's anchored source alone",
    reference=references.SAPC,
    loss=ffm.loss,
    sample=anchored,
    weights="ffm",
    exact="none",
    conditioned=True,
)
