"""Viscous Burgers' equation on a ring:  u_t + u u_x = nu u_xx,  x in [0, 1) periodic,  t in [0, 1].

The equation is Eq. burgers, its initial condition and periodicity Eq. burgers_bc, the manifold Eq. burgers_H.
The pinned condition is the initial profile: the four lowest Fourier modes with random amplitudes and phases,
rescaled to `initial_range`. The free parameter is the viscosity. Mass is conserved: the plain sum over the
points of each frame.

Symmetries: shifts, and u(x) -> -u(-x) where the range of the initial profiles is symmetric.

The published text names the range [0, 1], but its printed constraint errors of unconstrained samples fit
[-1, 1] only, which is therefore the default.

Solver: Fourier pseudo-spectral with 2/3 dealiasing, ETDRK4 in time. A front between -1 and 1 has the profile
tanh(x / 2 nu), whose modes fall as exp(-2 pi^2 nu k): with nu = 0.01 and 400 points (133 modes) to 4e-12. So
the internal grid is the least multiple of the output grid with 200 points per unit of the range. Measured on
48 profiles, half of them at nu = 0.01, against 800 points and a quarter of the step: 2e-8 at most, order 4
in time, below the rounding of float32. Fields are point values: the internal sum is conserved to rounding of
float64, and the sum over the output grid as far as that grid resolves the front, which 100 points do to the
rounding of float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import ceil, pi
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.fft import irfft, rfft

from ..constraints.terms import Balance, ConstraintTerm, Pin
from ..errors import SapcError
from ..grid import Axis, Grid
from .base import Task
from .etdrk4 import frames, trajectory
from .initial_profiles import rescale_profile, sines
from .residual import relative_residual, second_difference
from .sources import Parameters, Streams
from .symmetries import Declaration

MODES = 4
INTERNAL_POINTS = 400
MAX_STEP = 1 / (99 * 10)
MAX_INITIAL_VALUE = 1e3


@final
class Burgers(Task):
    """The viscous Burgers' equation on a ring."""

    name = "burgers"
    title = "Burgers' equation"
    equation = "∂u/∂t + u ∂u/∂x = ν ∂²u/∂x²"
    pinned = "initial condition u(x, 0)"
    law = "mass: Σₓ u is constant"
    parameters: ClassVar = {
        "initial": "u₀ ~ four lowest modes, rescaled; one per test set",
        "viscosity": "ν ~ U[0.01, 0.05]",
    }
    paper_grid = Grid((Axis("x", 100, kind="periodic"), Axis("t", 100)))
    integrates = True
    solver = f"Fourier pseudo-spectral, ETDRK4, steps of at most {MAX_STEP:.3g}"
    block: ClassVar = {"cpu": 32, "cuda": 4096}

    def __init__(
        self, grid: Grid | Sequence[int] | None = None, initial_range: tuple[float, float] = (-1.0, 1.0)
    ) -> None:
        super().__init__(grid)
        if self.grid["x"].n <= 2 * MODES:
            raise SapcError(
                f"burgers starts from {MODES} Fourier modes: use at least {2 * MODES + 1} points in x"
            )
        self.initial_range = _check_range(initial_range)

    @property
    def options(self) -> dict[str, Any]:
        """The range of the initial profiles."""
        return {"initial_range": self.initial_range}

    @property
    def symmetries(self) -> tuple[Declaration, ...]:
        """Shifts, and the reflection that changes the sign."""
        low, high = self.initial_range
        return ("shift:x", "reflect:x,sign") if low == -high else ("shift:x",)

    @cached_property
    def constraint(self) -> ConstraintTerm:
        """The initial frame, and mass."""
        return Pin.frame(0) & Balance(self.grid.total())

    def _draw(self, streams: Streams, size: int) -> dict[str, Tensor]:
        i, _ = streams.independent_pairs(size)
        r = streams.condition.uniforms("initial", int(i.max()) + 1, 2 * MODES)
        k = torch.arange(1.0, MODES + 1, dtype=torch.float64).expand(len(r), MODES)
        profile = rescale_profile(sines(k, r[:, :MODES], 2 * pi * r[:, MODES:]), *self.initial_range)
        return {
            "initial": profile(self.grid["x"].points)[i],
            "viscosity": streams.uniform("viscosity", 0.01, 0.05, size),
        }

    def _solve(self, parameters: Parameters) -> Tensor:
        u0, nu = parameters["initial"], parameters["viscosity"]
        return advect(u0, nu, self.grid.time, ceil(INTERNAL_POINTS * self._scale), MAX_STEP / self._scale)

    def residual(self, u: Tensor) -> Tensor:
        """`u_t + (u^2 / 2)_x - nu u_xx`, with the viscosity that fits the field best."""
        transport = -self.grid.derivative(u**2 / 2, "x")
        return relative_residual(self.grid, u, transport, second_difference(self.grid, u, "x"))

    @property
    def _scale(self) -> float:
        """How much steeper than between -1 and 1 a front can be."""
        low, high = self.initial_range
        return max(1.0, (high - low) / 2, abs(low), abs(high))

    def _workspace(self, block: int) -> int:
        return 12 * block * max(self.grid["x"].n, ceil(INTERNAL_POINTS * self._scale))


def advect(
    u0: Float[Tensor, "n x"],
    nu: Float[Tensor, " n"],
    time: Axis,
    points: int = INTERNAL_POINTS,
    max_step: float = MAX_STEP,
) -> Float[Tensor, "n x t"]:
    """Solve the equation on at least `points` points, and return all times of the axis."""
    n = u0.shape[1]
    ratio = -(-points // n)
    m = ratio * n
    k = 2 * pi * torch.arange(m // 2 + 1, dtype=torch.float64, device=u0.device)
    # Dealiasing: below two thirds of the highest.
    keep = k < 2 * pi * m / 3
    flux = torch.where(keep, -0.5j * k, 0)
    u_hat = torch.zeros(len(u0), len(k), dtype=torch.complex128, device=u0.device)
    u_hat[:, : (n + 1) // 2] = rfft(u0.contiguous(), norm="forward")[:, : (n + 1) // 2]
    u_hat = u_hat * keep

    def N(u_hat: Tensor) -> Tensor:
        u: Tensor = irfft(u_hat, n=m, norm="forward")
        square: Tensor = rfft(u**2, norm="forward")
        return flux * square

    states = frames(u_hat, -nu[:, None] * k**2, N, time.spacing, time.n - 1, max_step)
    return trajectory(u0, states, time, lambda v: irfft(v, n=m, norm="forward")[:, ::ratio])


def _check_range(initial_range: tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = (float(bound) for bound in initial_range)
    except (TypeError, ValueError) as error:
        raise SapcError(f"initial_range is two numbers, low and high, got {initial_range!r}") from error
    if not -MAX_INITIAL_VALUE <= low < high <= MAX_INITIAL_VALUE:
        raise SapcError(
            f"initial_range needs low < high between {-MAX_INITIAL_VALUE:g} and {MAX_INITIAL_VALUE:g}, got "
            f"{initial_range!r}; "
            "fronts of a wider one are too steep to be resolved"
        )
    return low, high
