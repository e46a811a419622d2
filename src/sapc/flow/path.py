"""The straight path, and the time convention of the whole package.

    **data v0 at t = 0, source v1 at t = 1; sampling runs from t = 1 DOWN to t = 0.**

Other libraries count time the other way (torchcfm and the paper of Lipman et al. have the source at 0 and the
data at 1): what is `t` here is `1 - t` there, and velocities have the opposite sign. `t` is never physical
time, which is the last axis of a field.

    v_t = (1 - t) v0 + t v1,     velocity  v = v1 - v0                                     (Eq. ffm-interp)
    v0^ = v_t - t v              where the flow would end if it went on straight
    v_s = (s/t) v_t + (1 - s/t) v0^,   s < t                one sampling step

The last line with the plain estimate v0^ is Euler's step v_t - (t - s) v; with a projected estimate it is a
convex combination, so a state and an estimate on an affine manifold give a state on it, and at s = 0 the step
returns the estimate itself, to the bit. Some samplers mix the estimate with the source draw instead of the
state: `mix`.

States are as precise as the source they start from: in float64, constraints survive a hundred steps to
rounding, whatever the precision of the network.
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
    """Evaluate the straight path from data to source.

    Args:
        v0: Data.
        v1: Source draws.
        t: Times, one per sample.

    Returns:
        States `(1 - t) v0 + t v1`.
    """
    t = expand_like(t, v0)
    return (1 - t) * v0 + t * v1


@explain_misuse
def mix(
    v0: Float[Tensor, "batch *grid"], v1: Float[Tensor, "batch *grid"], t: float
) -> Float[Tensor, "batch *grid"]:
    """Evaluate the straight path at one time for the whole batch; at t = 0 it is `v0` itself, to the bit.

    Args:
        v0: Data, or estimates of them.
        v1: Source draws.
        t: The time.

    Returns:
        States `(1 - t) v0 + t v1`.
    """
    return v0 if t == 0 else (1 - t) * v0 + t * v1


def predict_data(
    vt: Float[Tensor, "batch *grid"],
    t: float | Float[Tensor, " batch"],
    velocity: Float[Tensor, "batch *grid"],
) -> Float[Tensor, "batch *grid"]:
    """Estimate the data from a state and its velocity: where the flow would end if it went on straight.

    Args:
        vt: States.
        t: One time for all samples, or one per sample.
        velocity: Velocities of the states.

    Returns:
        Estimates `vt - t velocity`.
    """
    return vt - (expand_like(t, vt) if isinstance(t, Tensor) else t) * velocity


def expand_like(
    t: Shaped[Tensor, " batch"], like: Shaped[Tensor, "batch *grid"]
) -> Shaped[Tensor, "batch *ones"]:
    """Shape a number per sample so that it multiplies fields.

    Args:
        t: Numbers, one per sample.
        like: Fields `(batch, *grid)`.

    Returns:
        The numbers as `(batch, 1, ..., 1)`.
    """
    return t.reshape(-1, *(1,) * (like.ndim - 1))


def step_toward(
    vt: Float[Tensor, "batch *grid"], v0: Float[Tensor, "batch *grid"], t: float, s: float
) -> Float[Tensor, "batch *grid"]:
    """Move along the straight line to an estimate of the data.

    Args:
        vt: States at time `t`.
        v0: Estimates of the data.
        t: The time of the states.
        s: The time to reach, earlier than `t`.

    Returns:
        States at time `s`; at s = 0 the estimates themselves.
    """
    return v0 if s == 0 else (s / t) * vt + (1 - s / t) * v0


def clip_endpoint(v: Velocity, low: float, high: float) -> Velocity:
    """Keep the estimates of the data that a velocity implies within a range.

    Args:
        v: The velocity.
        low: Lower end of the range.
        high: Upper end of the range.

    Returns:
        A velocity; the same numbers where the estimates lie in the range.
    """

    def velocity_of_clipped_endpoint(vt: Tensor, t: Tensor) -> Tensor:
        velocity, times = v(vt, t).to(vt.dtype), expand_like(t, vt)
        e = vt - times * velocity
        return velocity + (e - e.clamp(low, high)) / times

    return velocity_of_clipped_endpoint


def evaluate_velocity(
    v: Velocity, vt: Float[Tensor, "batch *grid"], t: float
) -> Float[Tensor, "batch *grid"]:
    """Evaluate a velocity at one time for the whole batch.

    Args:
        v: The velocity.
        vt: States.
        t: Their time.

    Returns:
        Velocities in the dtype of the states.
    """
    return v(vt, torch.full((len(vt),), t, dtype=vt.dtype, device=vt.device)).to(vt.dtype)
