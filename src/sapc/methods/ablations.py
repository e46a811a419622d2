"""SAPC with parts removed.

What the endpoint projection, the training through it, and the anchored source are worth alone.

S1   FFM's weights, source not anchored, estimates projected at every step
S2   the same sampler, trained through the projection: CAFM's regression, at all flow times and without its
     second term
S3   FFM's weights, source anchored, plain Euler steps
"""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from ..constraints import Manifold
from ..errors import explain_misuse
from ..flow import EULER, Sampler, Velocity
from . import cafm, ffm, references
from .base import Method


def loss_through_projection(v: Velocity, v0: Tensor, v1: Tensor, t: Tensor, H: Manifold) -> Float[Tensor, ""]:
    """Regress the velocity that leads to the projected estimate."""
    return cafm.fit(v, v0, v1, t, H)[0]


@explain_misuse
def sample_unanchored(
    v: Velocity, v1: Tensor, H: Manifold, steps: int = 100, *, sampler: Sampler = EULER
) -> Tensor:
    """SAPC's steps from the bare source."""
    return H.finish(sampler.run(v, v1, steps, H.approximate().project))


@explain_misuse
def sample_anchored(
    v: Velocity, v1: Tensor, H: Manifold, steps: int = 100, *, sampler: Sampler = EULER
) -> Tensor:
    """FFM's steps from the anchored source."""
    return ffm.sample(v, H.approximate().project(v1), H, steps, sampler=sampler)


S1 = Method(
    name="sapc_s1",
    title="SAPC without anchoring: endpoint projection only",
    reference=references.SAPC,
    loss=ffm.loss,
    sample=sample_unanchored,
    weights="ffm",
    exact="all",
    accepts_sampler=True,
    sampler_uses_manifold=True,
)
S2 = replace(
    S1,
    name="sapc_s2",
    title="SAPC without anchoring, trained through the endpoint projection",
    loss=loss_through_projection,
    weights="sapc_s2",
    loss_uses_manifold=True,
)
S3 = replace(S1, name="sapc_s3", title="SAPC's anchored source alone", sample=sample_anchored, exact="none")
