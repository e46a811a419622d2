"""D-Flow: the source draw itself is optimised until the flow from it ends where the constraints hold.

It samples with FFM's weights.

    minimise over v1   |R_loc(v0)|^2 + |R_glob(v0)|^2,     v0 the end of the Euler steps from v1

by L-BFGS: 20 iterations at rate 0.1, no line search, the batch as one problem (so a sample depends on its
batch mates). One integration more, from the source that was found, gives the samples.

The gradient goes backwards through all steps. Their activations are not kept: the states are, one field each,
and every step is evaluated again when the gradient passes it, so that the memory is that of one step. These
second evaluations are not counted as such.

Ben-Hamu, Puny, Gat, Karrer, Singer and Lipman, "D-Flow: Differentiating through Flows for Controlled
Generation", 2024.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from ..constraints import Manifold
from ..errors import SapcWarning
from ..flow import Velocity, euler_step, integrate
from . import ffm, references
from .base import Method

ITERATIONS, RATE, HISTORY = 20, 0.1, 100


def sample(v: Velocity, v1: Tensor, H: Manifold, steps: int = 100) -> Tensor:
    """Euler steps from the optimised source."""
    return ffm.sample(v, optimise_source(v, v1, H, steps), H, steps)


def optimise_source(v: Velocity, v1: Tensor, H: Manifold, steps: int) -> Tensor:
    """Optimise the source by L-BFGS; if it diverges, warn and return the last finite one."""
    source, finite = v1.detach().clone(), v1
    optimiser = torch.optim.LBFGS([source], lr=RATE, max_iter=ITERATIONS, history_size=HISTORY)

    def objective() -> Tensor:
        nonlocal finite
        value, source.grad = slope(v, source, H, steps)
        if not bool(value.isfinite() & source.grad.isfinite().all()):
            raise _Divergence
        finite = source.clone()
        return value

    try:
        optimiser.step(objective)  # type: ignore[no-untyped-call]
    except _Divergence:
        warnings.warn(
            "the optimisation of the source ran away (a loss or gradient that is not finite); going on "
            "with the last finite one",
            SapcWarning,
            stacklevel=2,
        )
        return finite
    return source if bool(source.isfinite().all()) else finite


def slope(v: Velocity, v1: Tensor, H: Manifold, steps: int) -> tuple[Tensor, Tensor]:
    """Compute the objective and its gradient in the source, step by step backwards."""
    states = []

    def step(vt: Tensor, t: float, s: float) -> Tensor:
        states.append((vt, t, s))
        return euler_step(v, vt, t, s)

    with torch.no_grad():
        end = integrate(step, v1, steps)
    with torch.enable_grad():
        v0 = end.detach().requires_grad_()
        value = H.residual(v0).square().sum()
        (w,) = torch.autograd.grad(value, v0)
        for vt, t, s in reversed(states):
            state = vt.detach().requires_grad_()
            (w,) = torch.autograd.grad(euler_step(v, state, t, s), state, w)
    return value.detach(), w


class _Divergence(Exception):
    """L-BFGS has left the finite numbers."""


DFLOW = Method(
    name="dflow",
    title="D-Flow: differentiating through the flow",
    reference=references.DFLOW,
    further_references=(references.LBFGS,),
    loss=ffm.loss,
    sample=sample,
    weights="ffm",
    exact="none",
    nfe=ITERATIONS + 1,
    sampler_uses_manifold=True,
    couples_batch=True,
)
