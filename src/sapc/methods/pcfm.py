"""PCFM: FFM's weights, one Gauss-Newton step per sampling step, and the straight path back to the source draw.

At each step from t to s the endpoint estimate takes one damped root step of the stacked residual and is joined to the initial draw:

    u = v0^ - J^T (J J^T + 1e-6 I)^-1 R(v0^),     v_s = (1 - s) u + s v1

and the result is projected by three undamped iterations. On an affine manifold one step is the projection itself (its damping, which only
keeps a Gram matrix regular, is left out), so PCFM is ECI with a single mix. On a curved one three iterations need not arrive.

Utkarsh, Cai, Edelman, Gomez-Bombarelli and Rackauckas, "Physics-Constrained Flow Matching: Sampling Generative Models with Hard
Constraints", 2025.
"""

from __future__ import annotations

from torch import Tensor

from .. import references
from ..flow import Velocity, at, endpoint, mix, times
from ..projection import Manifold, Plain
from .base import Method
from .ffm import loss

TINY = 1e-14  # no residual is small enough to leave out a step
STEP = Plain(
    n_iter=1, mu=1e-6, tol=TINY
)  # from the point it starts at, a step of the anchored iteration is a root step
LAST = Plain(n_iter=3, mu=0.0, tol=TINY)


def sample(v: Velocity, v1: Tensor, H: Manifold, steps: int = 100) -> Tensor:
    """Towards estimates that were moved once, on the path to the initial draw."""
    near, vt = H.with_solver(STEP), v1
    for t, s in times(steps):
        v0 = near.project(endpoint(vt, t, at(v, vt, t)), check=False)
        vt = mix(v0, v1, s)
    return vt if H.affine else H.with_solver(LAST).project(vt, check=False)


PCFM = Method(
    name="pcfm",
    title="Physics-constrained flow matching",
    reference=references.PCFM,
    loss=loss,
    sample=sample,
    weights="ffm",
    exact="affine",
    conditioned=True,
    bounded=True,
)
