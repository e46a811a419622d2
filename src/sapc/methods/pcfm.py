"""PCFM: one Gauss-Newton step per sampling step, and the straight path back to the source draw.

It samples with FFM's weights.

At each step from t to s the endpoint estimate takes one damped root step of the stacked residual and is
joined to the initial draw:

    u = v0^ - J^T (J J^T + 1e-6 I)^-1 R(v0^),     v_s = (1 - s) u + s v1

and the result is projected by three undamped iterations. R holds the pins as rows beside the law, and is
linearised at the estimate, whose values at the pinned points are not yet the prescribed ones. On an affine
manifold one step is the projection itself (its damping, which only keeps a Gram matrix regular, is left out),
so PCFM is ECI with a single mix. On a curved one three iterations need not arrive.

Two variants. `pcfm_pins_first` writes the pinned values into the estimate before it is linearised.
`pcfm_relaxed` also moves every state v_s towards states whose straight continuation has a small residual, the
default of the authors' code: 20 gradient steps of 1e-2 on

    |w - v_s|^2 + |R(w - max(s, 1e-3) v)|^2,     v the velocity at t

On an affine manifold it is left out: it moves states across H only, and with rows in large units its steps
would grow without bound.

Utkarsh, Cai, Edelman, Gomez-Bombarelli and Rackauckas, "Physics-Constrained Flow Matching: Sampling
Generative Models with Hard Constraints", 2025.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..constraints import GaussNewton, Manifold
from ..flow import Velocity, evaluate_velocity, integrate, mix, predict_data
from . import references
from .base import Method
from .ffm import loss

# No residual is small enough to leave out a step.
TINY = 1e-14
# From the point it starts at, a step of the anchored iteration is a root step.
ONE_STEP = GaussNewton(n_iter=1, mu=1e-6, tol=TINY, pin_rows=True)
LAST_STEPS = GaussNewton(n_iter=3, mu=0.0, tol=TINY, pin_rows=True)
RELAXATION_STEPS, RELAXATION_RATE, MIN_TIME = 20, 1e-2, 1e-3


def sample(
    v: Velocity, v1: Tensor, H: Manifold, steps: int = 100, *, pin_rows: bool = True, relaxation: bool = False
) -> Tensor:
    """Towards estimates that were moved once, on the path to the initial draw."""
    one_step, last_steps = (
        H.with_solver(replace(solver, pin_rows=pin_rows)) for solver in (ONE_STEP, LAST_STEPS)
    )

    def step(vt: Tensor, t: float, s: float) -> Tensor:
        velocity = evaluate_velocity(v, vt, t)
        vs = mix(one_step.project(predict_data(vt, t, velocity), check=False), v1, s)
        return relax(vs, velocity, s, H) if relaxation and not H.affine else vs

    v0 = integrate(step, v1, steps)
    return v0 if H.affine else last_steps.project(v0, check=False)


def relax(vs: Tensor, velocity: Tensor, s: float, H: Manifold) -> Tensor:
    """Move states at time s by gradient steps on the residual of their straight continuation."""
    w = vs.detach()
    for _ in range(RELAXATION_STEPS):
        with torch.enable_grad():
            at_w = w.requires_grad_()
            residual = H.residual(at_w - max(s, MIN_TIME) * velocity)
            goal = (at_w - vs).square().sum() + residual.square().sum()
            (slope,) = torch.autograd.grad(goal, at_w)
        w = (w - RELAXATION_RATE * slope).detach()
    return w


PCFM = Method(
    name="pcfm",
    title="Physics-constrained flow matching",
    reference=references.PCFM,
    loss=loss,
    sample=sample,
    weights="ffm",
    exact="affine",
    sampler_uses_manifold=True,
    clips_endpoint=True,
)
PCFM_PINS_FIRST = replace(
    PCFM,
    name="pcfm_pins_first",
    title="PCFM with pinned values written before each step",
    sample=partial(sample, pin_rows=False),
    variant_of="pcfm",
)
PCFM_RELAXED = replace(
    PCFM,
    name="pcfm_relaxed",
    title="PCFM with its authors' relaxed correction",
    sample=partial(sample, relaxation=True),
    variant_of="pcfm",
)
