"""ECI: extrapolate, correct, interpolate.

It samples with FFM's weights; each step refines its estimate by mixing it with the source draw.

At each step from t to s, `n_mix` times: the endpoint estimate of the state, its projection, and a new state
on the straight path from the projection to the source draw v1, at the same t, the last time at s:

    v_t <- (1 - t) P(v0^) + t v1,     v0^ = v_t - t v(v_t, t)

v1 is the initial draw throughout, where SAPC goes on from the current state. The authors' own settings for
Stokes redraw it every few evaluations where the boundary is pinned. Their corrections are closed forms; here
the projection is the one that all methods share.

Cheng, Han, Maddix, Ansari, Stuart, Mahoney and Wang, "Gradient-Free Generation for Hard-Constrained Systems",
2025.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor

from ..constraints import Manifold
from ..errors import SapcError
from ..flow import Velocity, evaluate_velocity, integrate, mix, predict_data
from . import references
from .base import Method
from .ffm import loss


def sample(
    v: Velocity,
    v1: Tensor,
    H: Manifold,
    steps: int = 100,
    redraw: Callable[[], Tensor] | None = None,
    *,
    n_mix: int = 5,
    redraw_interval: int = 0,
) -> Tensor:
    """Step towards projected estimates, each mixed with the source draw `n_mix` times.

    Args:
        v: Velocity.
        v1: Draws of the source `(batch, *grid)`.
        H: Manifolds of the conditions.
        steps: Number of steps.
        redraw: Function that returns fresh draws of the source.
        n_mix: Evaluations in a step.
        redraw_interval: Evaluations after which the source is drawn afresh; 0 for never.

    Returns:
        The fields.

    Raises:
        SapcError: The source is to be redrawn and `redraw` is not given.
    """
    if redraw_interval and redraw is None:
        raise SapcError(
            "this variant of ECI redraws the source: give `redraw`, a function that returns fresh draws"
        )
    P, calls = H.approximate().project, 0

    def step(vt: Tensor, t: float, s: float) -> Tensor:
        nonlocal v1, calls
        for goal in (*(n_mix - 1) * (t,), s):
            calls += 1
            if redraw_interval and redraw is not None and calls % redraw_interval == 0:
                v1 = redraw()
            vt = mix(P(predict_data(vt, t, evaluate_velocity(v, vt, t))), v1, goal)
        return vt

    return H.finish(integrate(step, v1, steps))


ECI = Method(
    name="eci",
    title="Extrapolation, correction, interpolation",
    reference=references.ECI,
    loss=loss,
    sample=sample,
    weights="ffm",
    exact="all",
    nfe=5,
    sampler_uses_manifold=True,
    clips_endpoint=True,
)
ECI_STOKES_IC = replace(
    ECI,
    name="eci_stokes_ic",
    title="ECI with its authors' settings for Stokes, initial condition pinned: 200 steps, 5 mixes",
    steps=200,
    variant_of="eci",
)
ECI_STOKES_BC = replace(
    ECI,
    name="eci_stokes_bc",
    title=(
        "ECI with its authors' settings for Stokes, boundary pinned: 200 steps, 1 mix, "
        "source redrawn every 5 evaluations"
    ),
    sample=partial(sample, n_mix=1, redraw_interval=5),
    nfe=1,
    steps=200,
    redraws_source=True,
    variant_of="eci",
)
