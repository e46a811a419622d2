"""The time convention, once: data v0 at t = 0, source v1 at t = 1, sampling runs from 1 down to 0.

    v_t = (1 - t) v0 + t v1,     velocity  v = v1 - v0                                     (Eq. ffm-interp)
    v0^ = v_t - t v              where the flow would end if it went on straight
    v_s = (s/t) v_t + (1 - s/t) v0^,   s < t                one sampling step

The last line with the plain estimate v0^ is Euler's step v_t - (t - s) v; with a projected estimate it is a convex combination, so a state
and an estimate on an affine manifold give a state on it, and at s = 0 the step returns the estimate itself, to the bit. Some samplers mix
the estimate with the source draw instead of the state: `mix`.

States are as precise as the source they start from: in float64, constraints survive a hundred steps to rounding, whatever the precision of
the network.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ..errors import explain_misuse

Velocity = Callable[[Tensor, Tensor], Tensor]
"""`v(vt, t)`: states `(batch, *grid)` and one flow time per sample `(batch,)` to velocities."""


@explain_misuse
def interpolate(
    v0: Float[Tensor, "batch *grid"], v1: Float[Tensor, "batch *grid"], t: Float[Tensor, " batch"]
) -> Float[Tensor, "batch *grid"]:
    """The straight path from data to source at times `t`, one per sample."""
    t = expand_like(t, v0)
    return (1 - t) * v0 + t * v1


@explain_misuse
def mix(
    v0: Float[Tensor, "batch *grid"], v1: Float[Tensor, "batch *grid"], t: float
) -> Float[Tensor, "batch *grid"]:
    """The straight path at one time for the whole batch; at its ends the fields themselves, to the bit."""
    return v0 if t == 0 else (1 - t) * v0 + t * v1


def predict_data(
    vt: Float[Tensor, "batch *grid"],
    t: float | Float[Tensor, " batch"],
    velocity: Float[Tensor, "batch *grid"],
) -> Float[Tensor, "batch *grid"]:
    """The estimate of v0 from a state and its velocity; one time for all, or one per sample."""
    return vt - (expand_like(t, vt) if isinstance(t, Tensor) else t) * velocity


def expand_like(
    t: Shaped[Tensor, " batch"], like: Shaped[Tensor, "batch *grid"]
) -> Shaped[Tensor, "batch *ones"]:
    """A number per sample, shaped to multiply fields."""
    return t.reshape(-1, *(1,) * (like.ndim - 1))


def step_toward(
    vt: Float[Tensor, "batch *grid"], v0: Float[Tensor, "batch *grid"], t: float, s: float
) -> Float[Tensor, "batch *grid"]:
    """Move from time t to the earlier time s along the line to v0."""
    return v0 if s == 0 else (s / t) * vt + (1 - s / t) * v0


def clip_endpoint(v: Velocity, low: float, high: float) -> Velocity:
    """The velocity whose endpoint estimates are those of `v`, cut off at `low` and `high`; the same numbers where they lie between."""

    def bounded(vt: Tensor, t: Tensor) -> Tensor:
        velocity, per = v(vt, t).to(vt.dtype), expand_like(t, vt)
        e = vt - per * velocity
        return velocity + (e - e.clamp(low, high)) / per

    return bounded


def evaluate_velocity(
    v: Velocity, vt: Float[Tensor, "batch *grid"], t: float
) -> Float[Tensor, "batch *grid"]:
    """The velocity of a whole batch at one time, in the state's dtype."""
    return v(vt, torch.full((len(vt),), t, dtype=vt.dtype, device=vt.device)).to(vt.dtype)
