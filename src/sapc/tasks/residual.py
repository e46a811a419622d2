"""Residuals of PDEs on a grid: by how much fields miss their equation, by central differences.

An equation u_t = known + theta free, with a parameter theta that is read off the field by least squares over
its inner points, has the residual

    (u_t - known - theta^ free) / rms(u_t),    theta^ = <u_t - known, free> / <free, free>

the share of u_t that the equation does not explain. Solutions have a residual, too, that of the differences:
one of samples says something beside theirs only.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..grid import Grid


def second_difference(grid: Grid, u: Float[Tensor, "batch *grid"], name: str) -> Float[Tensor, "batch *grid"]:
    """Differentiate twice along a named axis, on its own points; ends that are not periodic do not count."""
    axis, dim = grid[name], grid.names.index(name) - len(grid.axes)
    return (u.roll(1, dim) - 2 * u + u.roll(-1, dim)) / axis.spacing**2


def inner_points(grid: Grid, u: Float[Tensor, "batch *grid"]) -> Float[Tensor, "batch *inner"]:
    """Leave out the ends of axes that are not periodic, where differences are one-sided."""
    for i, axis in enumerate(grid.axes):
        if axis.kind != "periodic":
            u = u.narrow(i - len(grid.axes), 1, axis.n - 2)
    return u


def relative_residual(
    grid: Grid,
    u: Float[Tensor, "batch *grid"],
    known: Float[Tensor, "batch *grid"] | None = None,
    free: Float[Tensor, "batch *grid"] | None = None,
) -> Float[Tensor, "batch *inner"]:
    """Compute the residual of u_t = known + theta free, relative to u_t."""
    u_t = inner_points(grid, grid.derivative(u, "t"))
    dims = tuple(range(1, u.ndim))
    residual = u_t if known is None else u_t - inner_points(grid, known)
    if free is not None:
        free = inner_points(grid, free)
        products = ((a * free).sum(dims, keepdim=True) for a in (residual, free))
        residual = residual - _divide(*products) * free
    return _divide(residual, u_t.square().mean(dims, keepdim=True).sqrt())


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """Divide; fields that do not change have no residual."""
    return a / b.clamp(min=torch.finfo(b.dtype).tiny)
