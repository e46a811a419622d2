"""Reaction and diffusion on a strip:  u_t = nu u_xx + rho u (1 - u),  x in [0, 1],  t in [0, 1].

The equation is Eq. rd with nu = 0.005 and rho = 0.01. The fluxes at the ends are prescribed, -nu u_x = g_L at
x = 0 and g_R at x = 1 (Eq. rd_bc). The pinned condition is the initial profile; the free parameters are the
fluxes. On the manifold (Eq. rd_H) mass changes by what flows in and what grows:

    d/dt int u dx = g_L - g_R + rho int u (1 - u) dx

In the constraint the fluxes are read off the field's first and last two cells, a difference centred at the
first face inside, one cell from the boundary; on exact solutions the law therefore keeps a residual of 0.02
to 0.1, a property of the published scoring.

Initial profiles: two of the wave numbers 1, 2, 3 are drawn with replacement; one that is drawn twice counts
double and one that is not drawn leaves a constant. Random amplitudes and phases; sometimes the absolute
value; a random sign; sometimes a window that leaves one bump; rescaled to [0, 1]. A wave number counts waves
on [0, 1]. The code published with ECI and PCFM counts them between the first and the last of 128 cell centres,
so that its wave numbers are 128/127 of these: `wave_span="centres"`.

Symmetry: x -> 1 - x, where g_L becomes -g_R and g_R becomes -g_L. Both fluxes are as likely then, and so is
the initial profile: its phases p become pi - p, its window (a, b) becomes (1 - b, 1 - a).

Solver: finite volumes, order 2 in dx. The diffusion matrix between the inner faces is diagonal in the DCT-II
basis, so ETDRK4 treats it exactly, and the constant fluxes with it. Measured on 400 training samples: one
step per published frame is off by 1e-8 at most against eight, below the rounding of float32. The order in
time is 4 for smooth data and about 3 where the fluxes set in with a jump at t = 0. The published 128 cells
themselves differ from the limit of fine cells by 3e-4 (root mean square).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import pi
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from ..constraints import GaussNewton, WithGradient
from ..constraints.terms import Balance, ConstraintTerm, Pin
from ..errors import check_choice
from ..grid import Axis, Grid
from .base import Task
from .etdrk4 import frames, trajectory
from .initial_profiles import Profile, rescale_profile, sines
from .law_gradients import reaction_diffusion_kernel, supply_slope
from .residual import relative_residual, second_difference
from .sources import Parameters, Streams

DIFFUSIVITY = 0.005
GROWTH = 0.01
MAX_STEP = 1 / 99
WINDOW_WIDTH = 0.01
RARE_SHARE = 0.1
WAVE_SPANS = {"domain": 1.0, "centres": 127 / 128}


@final
class ReactionDiffusion(Task):
    """Logistic growth and diffusion with prescribed end fluxes."""

    name = "reaction_diffusion"
    title = "Reaction-diffusion equation"
    equation = "∂u/∂t = ν ∂²u/∂x² + ρ u(1 - u),  ν = 0.005,  ρ = 0.01,  -ν ∂u/∂x = g at the ends"
    pinned = "initial condition u(x, 0)"
    law = "mass: ∫u dx changes by ∫(g_L - g_R + ρ∫u(1 - u) dx) dt, fluxes read off the field"
    parameters: ClassVar = {
        "initial": "u₀ ~ sines on [0, 1]; one per test set",
        "flux_left": "g_L ~ U[0, 0.05]",
        "flux_right": "g_R ~ U[-0.05, 0]",
    }
    paper_grid = Grid((Axis("x", 128, kind="cells"), Axis("t", 100)))
    symmetries = ("reflect:x",)
    published_solver = GaussNewton(n_iter=3, mu=1e-8, tol=1e-6)
    integrates = True
    solver = f"finite volumes, ETDRK4, steps of at most {MAX_STEP:.3g}"
    block: ClassVar = {"cpu": 64, "cuda": 4096}

    def __init__(self, grid: Grid | Sequence[int] | None = None, wave_span: str = "domain") -> None:
        super().__init__(grid)
        check_choice(wave_span, "wave_span", WAVE_SPANS)
        self.wave_span = wave_span

    @property
    def options(self) -> dict[str, Any]:
        """What the waves of initial profiles are counted on, if not on the domain."""
        return {} if self.wave_span == "domain" else {"wave_span": self.wave_span}

    @cached_property
    def constraint(self) -> ConstraintTerm:
        """The initial frame, and mass with its sources."""
        flux = DIFFUSIVITY / self.grid["x"].spacing
        return Pin.frame(0) & Balance(
            self.grid.integral(),
            WithGradient(self.supply, lambda u: (self.supply(u), supply_slope(self.grid, flux, GROWTH, u))),
            times=self.grid.time.points,
            label=(self.name, self.grid),
            kernel=reaction_diffusion_kernel(self.grid, flux, GROWTH),
        )

    def supply(self, u: Tensor) -> Tensor:
        """`g_L - g_R + rho int u (1 - u) dx` of every frame, the fluxes by one-sided differences."""
        dx = self.grid["x"].spacing
        flux_left = -DIFFUSIVITY * (u[:, 1] - u[:, 0]) / dx
        flux_right = -DIFFUSIVITY * (u[:, -1] - u[:, -2]) / dx
        return flux_left - flux_right + GROWTH * self.grid.integral()(u * (1 - u))

    def _draw(self, streams: Streams, size: int) -> dict[str, Tensor]:
        i, j = streams.product_pairs(size)
        conditions, fluxes = int(i.max()) + 1, int(j.max()) + 1
        r = streams.condition.uniforms("initial", conditions, 13)
        u0 = initial_profiles(r, WAVE_SPANS[self.wave_span])(self.grid["x"].points)
        return {
            "initial": u0[i],
            "flux_left": streams.uniform("flux_left", 0.0, 0.05, fluxes)[j],
            "flux_right": streams.uniform("flux_right", -0.05, 0.0, fluxes)[j],
        }

    def _solve(self, parameters: Parameters) -> Tensor:
        u0, flux_left, flux_right = (parameters[name] for name in ("initial", "flux_left", "flux_right"))
        return react(u0, flux_left, flux_right, self.grid.time)

    def residual(self, u: Tensor) -> Tensor:
        """`u_t - nu u_xx - rho u (1 - u)`."""
        supply = DIFFUSIVITY * second_difference(self.grid, u, "x") + GROWTH * u * (1 - u)
        return relative_residual(self.grid, u, supply)

    def _workspace(self, block: int) -> int:
        # The DCT matrix.
        return 3 * self.grid["x"].n ** 2


def initial_profiles(r: Float[Tensor, "n 13"], span: float = 1.0) -> Profile:
    """Make initial profiles from 13 uniform numbers each, of waves on an interval of length `span`."""
    waves = (r[:, :2] * 3).long()
    count = torch.nn.functional.one_hot(waves, 3).sum(1)
    wave_numbers = count * torch.arange(1.0, 4.0, dtype=torch.float64) / span
    wave = sines(wave_numbers, r[:, 2:5], 2 * pi * r[:, 5:8])
    absolute, window = r[:, 8:9] < RARE_SHARE, r[:, 10:11] < RARE_SHARE
    sign = torch.where(r[:, 9:10] < 0.5, -1.0, 1.0)
    window_start, window_end = 0.1 + 0.35 * r[:, 11:12], 0.55 + 0.35 * r[:, 12:13]

    def profile(x: Float[Tensor, " x"]) -> Float[Tensor, "n x"]:
        u = wave(x)
        u = sign * torch.where(absolute, u.abs(), u)
        bump = (
            torch.tanh((x - window_start) / WINDOW_WIDTH) - torch.tanh((x - window_end) / WINDOW_WIDTH)
        ) / 2
        return torch.where(window, bump * u, u)

    return rescale_profile(profile, 0.0, 1.0)


def react(
    u0: Float[Tensor, "n x"],
    flux_left: Float[Tensor, " n"],
    flux_right: Float[Tensor, " n"],
    time: Axis,
    rho: float = GROWTH,
    max_step: float = MAX_STEP,
) -> Float[Tensor, "n x t"]:
    """Solve for the cell values at all times of the axis."""
    n = u0.shape[1]
    C, eigenvalues = (tensor.to(u0) for tensor in neumann_basis(n))
    flux = torch.zeros_like(u0)
    flux[:, 0] = flux_left * n
    flux[:, -1] -= flux_right * n

    def N(u_hat: Tensor) -> Tensor:
        u = u_hat @ C
        return (rho * u * (1 - u) + flux) @ C.T

    states = frames(u0 @ C.T, DIFFUSIVITY * eigenvalues, N, time.spacing, time.n - 1, max_step)
    return trajectory(u0, states, time, lambda u_hat: u_hat @ C)


def neumann_basis(n: int) -> tuple[Float[Tensor, "n n"], Float[Tensor, " n"]]:
    """Return the orthogonal DCT-II matrix, modes in rows, and the Laplacian's eigenvalues on n insulated cells."""
    k = torch.arange(n, dtype=torch.float64)
    C = torch.cos(pi / n * k[:, None] * (k + 0.5)) * (2 / n) ** 0.5
    C[0] /= 2**0.5
    return C, -4 * n**2 * torch.sin(pi * k / (2 * n)) ** 2
