"""What lets the laws of the curved tasks be projected onto faster: gradients by hand, and kernels for a GPU.

A gradient is `value_and_gradient` of `sapc.constraints.WithGradient`: the value, and the gradient of the sum
of all values. D is the difference in x, w the quadrature weights in x; the other letters are those of the
tasks' own files.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..constraints import LawKernel
from ..grid import Grid


def energy(grid: Grid, u: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `int u^2 dx` of every frame and its gradient `2 w u`."""
    wu = grid.integral().weights_like(u)[:, None] * u
    return (wu * u).sum(1), wu.mul_(2)


def power(grid: Grid, u: Tensor) -> tuple[Tensor, Tensor]:
    """Compute Stokes' `2 ([u u_x]_0^1 - int u_x^2 dx)` and its gradient.

    The gradient is `2 (D^T (b u - 2 w u_x) + b u_x)`, b = -1, 0 .., 0, 1.

    Returns:
        Value and gradient.
    """
    x = grid["x"]
    u_x = x.difference_into(torch.empty_like(u), u, 1)
    y = grid.integral().weights_like(u)[:, None] * u_x
    slope = y * u_x
    work = u[:, -1] * u_x[:, -1] - u[:, 0] * u_x[:, 0]
    s = 2 * (work - slope.sum(1))
    y.mul_(-2)[:, -1].add_(u[:, -1])
    y[:, 0].sub_(u[:, 0])
    x.difference_into(slope, y, 1, transposed=True)
    slope[:, -1].add_(u_x[:, -1])
    slope[:, 0].sub_(u_x[:, 0])
    return s, slope.mul_(2)


def viscosity(grid: Grid, u: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `nu = <u_t, u_xx> / <u_xx, u_xx>` and its gradient.

    The gradient is `(D^T D^T (u_t - 2 nu u_xx) + D_t^T u_xx) / <u_xx, u_xx>`.

    Returns:
        Value and gradient.
    """
    x, t = grid["x"], grid["t"]
    # Holds u_x, then <u_t, u_xx>, then the slope: a field less to allocate each time.
    slope = torch.empty_like(u)
    u_xx = x.difference_into(torch.empty_like(u), x.difference_into(slope, u, 1), 1)
    u_t = t.difference_into(torch.empty_like(u), u, 2)
    numerator = torch.mul(u_t, u_xx, out=slope).flatten(1).sum(1)
    denominator = torch.mul(u_xx, u_xx, out=slope).flatten(1).sum(1)
    nu = numerator / denominator
    inner = u_t.addcmul_(u_xx, nu[:, None, None], value=-2)
    difference = x.difference_into(u_t.new_empty(u.shape), inner, 1, transposed=True)
    x.difference_into(inner, difference, 1, transposed=True)
    t.difference_into(slope, u_xx, 2, transposed=True)
    return nu, slope.add_(inner).div_(denominator[:, None, None])


def supply_slope(grid: Grid, flux: float, growth: float, u: Tensor) -> Tensor:
    """Compute the gradient of reaction-diffusion's supply.

    It is `rho w (1 - 2 u)`, and `nu / dx` in the four cells that the fluxes read.

    Returns:
        The gradient.
    """
    slope = growth * grid.integral().weights_like(u)[:, None] * (1 - 2 * u)
    for edge, neighbour in ((0, 1), (-1, -2)):
        slope[:, edge].add_(flux)
        slope[:, neighbour].sub_(flux)
    return slope


def stokes_kernel(grid: Grid) -> LawKernel:
    """Return Stokes' energy balance for a GPU."""
    steps = (0.5 / grid[axis].spacing for axis in ("x", "t"))
    return _kernel(("stokes", "viscosity", "viscosity_slope"), grid, *steps)


def reaction_diffusion_kernel(grid: Grid, flux: float, growth: float) -> LawKernel:
    """Return reaction-diffusion's mass balance for a GPU."""
    return _kernel(("reaction_diffusion",), grid, flux, growth)


def _kernel(names: tuple[str, ...], grid: Grid, *numbers: float) -> LawKernel:
    def load() -> tuple[Any, ...]:
        # Needs Triton.
        from . import law_kernels

        return tuple(getattr(law_kernels, name) for name in names)

    return LawKernel(load, torch.cat((torch.tensor(numbers, dtype=torch.float64), grid.weights)))
