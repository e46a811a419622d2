"""Stokes' second problem, a fluid over an oscillating plate:  u_t = nu u_xx,  x in [0, 1],  t in [0, 1].

The equation is Eq. stokes, the conditions at t = 0 and on the plate Eq. stokes_bc, the manifold Eq. stokes_H.
The solution is u = A exp(-k x) cos(k x - w t) with A = 2 and viscosity nu = w / (2 k^2), evaluated in
float64. The decay rate k alone sets the initial profile and the frequency w alone the motion of the plate at
x = 0, so there are two tasks: one pins the initial frame (k), one the boundary x = 0 at all times (w). The
other parameter is free.

Multiplying by u and integrating over x gives the energy balance

    e(u_T) - e(u_0) = nu int_0^T s(u_t) dt,    e = int u^2 dx,    s = 2 ([u u_x]_0^1 - int u_x^2 dx)

whose viscosity is read off the field by least squares, nu^ = <u_t, u_xx> / <u_xx, u_xx>, over all grid
points. Derivatives are central differences with one-sided ends, u_xx is that first difference taken twice,
and integrals are trapezoid sums. On exact solutions the discrete law therefore keeps a residual of about
0.1, which is a property of the published scoring and not of the data.

No map of points and signs is a symmetry: every solution decays with x and has u(0, 0) = 2.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import ClassVar, final

import torch
from torch import Tensor

from ..constraints import GaussNewton, WithGradient
from ..constraints.terms import Balance, ConstraintTerm, Pin
from ..grid import Axis, Grid
from . import law_gradients
from .base import Task
from .residual import relative_residual, second_difference
from .sources import Parameters, Streams

AMPLITUDE = 2.0
DECAYS = (4.0, 8.0, 12.0, 16.0)
FREQUENCIES = (3.0, 4.5, 6.0, 7.5)


class Stokes(Task):
    """What the two tasks share: equation, solution and energy balance."""

    equation = "∂u/∂t = ν ∂²u/∂x²,  u(0, t) = 2 cos(ω t)"
    law = "energy: ∫u² dx changes by ν̂ ∫ 2([u uₓ]₀¹ - ∫uₓ² dx) dt, ν̂ fitted to the field"
    paper_grid = Grid((Axis("x", 100), Axis("t", 100)))
    published_solver = GaussNewton(n_iter=10, mu=1e-8, tol=1e-6)

    @cached_property
    def balance(self) -> Balance:
        """The energy balance, with the viscosity that the field itself shows."""
        return Balance(
            WithGradient(self.energy, partial(law_gradients.energy, self.grid)),
            WithGradient(self.power, partial(law_gradients.power, self.grid)),
            WithGradient(self.viscosity, partial(law_gradients.viscosity, self.grid)),
            times=self.grid.time.points,
            label=("stokes", self.grid),
            kernel=law_gradients.stokes_kernel(self.grid),
        )

    def energy(self, u: Tensor) -> Tensor:
        """`int u^2 dx` of every frame."""
        return self.grid.integral()(u**2)

    def power(self, u: Tensor) -> Tensor:
        """`2 ([u u_x]_0^1 - int u_x^2 dx)` of every frame: work less dissipation, per unit viscosity."""
        u_x = self.grid.derivative(u, "x")
        work = u[:, -1] * u_x[:, -1] - u[:, 0] * u_x[:, 0]
        return 2 * (work - self.grid.integral()(u_x**2))

    def viscosity(self, u: Tensor) -> Tensor:
        """`<u_t, u_xx> / <u_xx, u_xx>`: the viscosity that fits the field best."""
        u_t = self.grid.derivative(u, "t")
        u_xx = self.grid.derivative(self.grid.derivative(u, "x"), "x")
        return (u_t * u_xx).sum(1).sum(1) / (u_xx**2).sum(1).sum(1)

    def residual(self, u: Tensor) -> Tensor:
        """`u_t - nu u_xx`, with the viscosity that fits the field best."""
        return relative_residual(self.grid, u, free=second_difference(self.grid, u, "x"))

    def _solve(self, parameters: Parameters) -> Tensor:
        k, w = (parameters[name][:, None, None] for name in ("decay", "frequency"))
        x, t = self.grid["x"].points.to(k)[:, None], self.grid["t"].points.to(k)
        return AMPLITUDE * (-k * x).exp() * torch.cos(k * x - w * t)


@final
class StokesIC(Stokes):
    """Stokes' second problem, given the initial profile."""

    name = "stokes_ic"
    title = "Stokes' second problem, initial condition"
    pinned = "initial condition u(x, 0) = 2 exp(-k x) cos(k x)"
    parameters: ClassVar = {"decay": "k ~ U[2, 20]; tests pin 4, 8, 12, 16", "frequency": "ω ~ U[2, 8]"}

    @cached_property
    def constraint(self) -> ConstraintTerm:
        """The initial frame, and energy."""
        return Pin.frame(0) & self.balance

    def _draw(self, streams: Streams, size: int) -> dict[str, Tensor]:
        decay = streams.uniform_condition("decay", 2.0, 20.0, DECAYS, size)
        return {"decay": decay, "frequency": streams.uniform("frequency", 2.0, 8.0, size)}


@final
class StokesBC(Stokes):
    """Stokes' second problem, given the motion of the plate."""

    name = "stokes_bc"
    title = "Stokes' second problem, boundary condition"
    pinned = "boundary condition u(0, t) = 2 cos(ω t)"
    parameters: ClassVar = {"decay": "k ~ U[2, 20]", "frequency": "ω ~ U[2, 8]; tests pin 3, 4.5, 6, 7.5"}

    @cached_property
    def constraint(self) -> ConstraintTerm:
        """The plate's motion, and energy."""
        return Pin.at(x=0) & self.balance

    def _draw(self, streams: Streams, size: int) -> dict[str, Tensor]:
        frequency = streams.uniform_condition("frequency", 2.0, 8.0, FREQUENCIES, size)
        return {"decay": streams.uniform("decay", 2.0, 20.0, size), "frequency": frequency}
