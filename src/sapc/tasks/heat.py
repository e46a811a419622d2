"""Heat on a ring:  u_t = a u_xx,  u(x, 0) = sin(x + phi),  x in [0, 2 pi) periodic,  t in [0, 1].

The equation is Eq. heat, the initial condition Eq. heat_ic, the manifold Eq. heat_H.
The solution is u = exp(-a t) sin(x + phi), evaluated in float64. The pinned condition is the initial profile
(phi); the free parameter is the diffusivity a. Mass is conserved: the plain sum over the points of each
frame, which is how the published constraint error is scored.

Symmetry: x -> -x, where phi becomes pi - phi, which is as likely.
"""

from __future__ import annotations

from functools import cached_property
from math import pi
from typing import ClassVar, final

from torch import Tensor

from ..constraints.terms import Balance, ConstraintTerm, Pin
from ..grid import Axis, Grid
from .base import Task
from .residual import relative_residual, second_difference
from .sources import Parameters, Streams

PHASES = (pi / 4, pi / 2, 3 * pi / 4, pi)


@final
class Heat(Task):
    """The heat equation on a ring."""

    name = "heat"
    title = "Heat equation"
    equation = "∂u/∂t = a ∂²u/∂x²"
    pinned = "initial condition u(x, 0) = sin(x + φ)"
    law = "mass: Σₓ u is constant"
    parameters: ClassVar = {"diffusivity": "a ~ U[1, 5]", "phase": "φ ~ U[0, π]; tests pin π/4, π/2, 3π/4, π"}
    paper_grid = Grid((Axis("x", 100, 0.0, 2 * pi, "periodic"), Axis("t", 100)))
    symmetries = ("reflect:x",)

    @cached_property
    def constraint(self) -> ConstraintTerm:
        """The initial frame, and mass."""
        return Pin.frame(0) & Balance(self.grid.total())

    def _draw(self, streams: Streams, size: int) -> dict[str, Tensor]:
        phase = streams.uniform_condition("phase", 0.0, pi, PHASES, size)
        return {"diffusivity": streams.uniform("diffusivity", 1.0, 5.0, size), "phase": phase}

    def _solve(self, parameters: Parameters) -> Tensor:
        a, phi = parameters["diffusivity"], parameters["phase"]
        x, t = self.grid["x"].points.to(a), self.grid["t"].points.to(a)
        decay = (-a[:, None] * t).exp()
        return decay[:, None, :] * (x + phi[:, None]).sin()[:, :, None]

    def residual(self, u: Tensor) -> Tensor:
        """`u_t - a u_xx`, with the diffusivity that fits the field best."""
        return relative_residual(self.grid, u, free=second_difference(self.grid, u, "x"))
