"""Scenes and laws: what a case of `projections` draws, and every law a second time, as numpy measures it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

import sapc

Array = np.ndarray
# From fields (batch, *grid): the residuals and the sums of the sizes of their terms, both (batch, rows).
Rows = Callable[[Array], tuple[Array, Array]]
LONG = np.longdouble


@dataclass(frozen=True)
class Law:
    """A constraint as the package takes it, and the same as numpy measures it."""

    constraint: sapc.constraints.ConstraintTerm
    rows: Rows
    # Of an affine law: (rows, points), and the values that its rows take, (batch or 1, rows).
    matrix: Array | None = None
    value: Array | None = None
    # Of a curved law: the gradients of its rows at one field, (rows, points).
    slopes: Callable[[Array], Array] | None = None
    # Of a curved law: whether the first field can surely be projected.
    is_within_reach: bool = False


@dataclass(frozen=True)
class Scene:
    """What a case draws first."""

    rng: random.Random
    numbers: np.random.Generator
    grid: sapc.Grid
    dtype: torch.dtype
    batch: int
    scale: float

    def fields(self, scale: float | None = None) -> torch.Tensor:
        """Random fields, some of them smooth."""
        values = self.numbers.standard_normal((self.batch, *self.grid.shape))
        if self.rng.random() < 0.3:
            values = np.cumsum(values, -1) / 3 + 1
        return torch.from_numpy(values * (self.scale if scale is None else scale)).to(self.dtype)


def no_law(scene: Scene, pin_values: Array) -> None:
    return None


def conserved_integral(scene: Scene, pin_values: Array) -> Law:
    """An integral over space that does not change."""
    grid, name = scene.grid, next(iter(scene.grid.channels), None)
    weights = np.zeros((grid.n_channels, *grid.points_per_axis[:-1]))
    weights[0] = quadrature(grid)
    law = sapc.Balance(grid.integral(name), times=grid.time.points)
    frames = grid.points_per_axis[-1]
    # Row T of the matrix: the integral of frame T less that of frame 0.
    matrix = np.zeros((frames - 1, *weights.shape, frames))
    for t in range(1, frames):
        matrix[t - 1, ..., t], matrix[t - 1, ..., 0] = weights, -weights
    flat = matrix.reshape(frames - 1, -1)
    return Law(law, measure_affine(flat, np.zeros((1, frames - 1))), flat, np.zeros((1, frames - 1)))


def affine_rows(scene: Scene, pin_values: Array) -> Law:
    """A few rows with values that a field with these pins takes; some of them say the same."""
    points, n = int(np.prod(scene.grid.shape)), scene.rng.randint(1, 4)
    matrix = (
        scene.numbers.standard_normal((n, points))
        * (scene.numbers.random((n, points)) < 0.5)
        * 10.0 ** scene.rng.uniform(-3, 3)
    )
    matrix[:, : n + 3] += scene.numbers.standard_normal((n, n + 3))
    if scene.rng.random() < 0.2:
        matrix = np.concatenate([matrix, matrix[:1] * 2])
    value = pin_values.reshape(len(pin_values), -1) @ matrix.T
    function = torch.from_numpy(matrix)
    if scene.rng.random() < 0.5:
        tensor = function
        function = lambda u: u.flatten(1) @ tensor.to(u).T
    if scene.rng.random() < 0.3:
        return Law(
            sapc.Affine(function, value=torch.from_numpy(value)), measure_affine(matrix, value), matrix, value
        )
    first = value[:1]
    return Law(
        sapc.Affine(function, value=torch.from_numpy(first)), measure_affine(matrix, first), matrix, first
    )


def measure_affine(matrix: Array, value: Array) -> Rows:
    def rows(u: Array) -> tuple[Array, Array]:
        flat, a = u.reshape(len(u), -1), matrix.astype(LONG)
        return flat @ a.T - value, np.abs(flat) @ np.abs(a).T + np.abs(value)

    return rows


def integral_and_rows(scene: Scene, pin_values: Array) -> Law:
    """Both at once."""
    integral, affine = conserved_integral(scene, pin_values), affine_rows(scene, pin_values)
    matrix = np.concatenate([integral.matrix, affine.matrix])
    value = np.concatenate(
        [np.broadcast_to(integral.value, (len(affine.value), integral.value.shape[1])), affine.value], 1
    )
    return Law(integral.constraint & affine.constraint, measure_affine(matrix, value), matrix, value)


def energy_balance(scene: Scene, pin_values: Array) -> Law:
    """The integral of u^2, or of u + |u|^3 / 9, in units of the scale, decays with that of u^2."""
    grid, size = scene.grid, scene.scale
    decay, squares = scene.rng.choice((0.0, 0.02, 0.1)), scene.rng.random() < 0.5
    w, times = np.tile(quadrature(grid).reshape(-1), grid.n_channels), np.asarray(grid.time.points, LONG)
    weights = torch.from_numpy(w)[:, None]

    def frames(u: torch.Tensor) -> torch.Tensor:
        return u.flatten(1, -2) / size

    def stored(u: torch.Tensor) -> torch.Tensor:
        v = frames(u)
        return ((v**2 if squares else v + v.abs() ** 3 / 9) * weights.to(u)).sum(1)

    def rate(u: torch.Tensor) -> torch.Tensor:
        return -decay * (frames(u) ** 2 * weights.to(u)).sum(1)

    def rows(u: Array) -> tuple[Array, Array]:
        v, wide = u.reshape(len(u), -1, u.shape[-1]) / LONG(size), w.astype(LONG)[:, None]
        e = ((v**2 if squares else v + np.abs(v) ** 3 / 9) * wide).sum(1)
        terms = ((3 * v**2 if squares else 2 * np.abs(v) + np.abs(v) ** 3) * wide).sum(1)
        s = decay * (v**2 * wide).sum(1)
        supply = -np.cumsum(np.diff(times) * (s[:, 1:] + s[:, :-1]) / 2, 1)
        return e[:, 1:] - e[:, :1] - supply, terms[:, 1:] + terms[:, :1] + 3 * np.abs(supply)

    def slopes(u: Array) -> Array:
        v = u.reshape(-1, u.shape[-1]) / size
        de = (2 * v if squares else 1 + np.sign(v) * v**2 / 3) * w[:, None] / size
        ds = -2 * decay * v * w[:, None] / size
        gradients = np.zeros((u.shape[-1] - 1, *v.shape))
        for t in range(1, u.shape[-1]):
            gradients[t - 1, :, t], gradients[t - 1, :, 0] = de[:, t], -de[:, 0]
            for k in range(t):
                half = float(times[k + 1] - times[k]) / 2
                gradients[t - 1, :, k] -= half * ds[:, k]
                gradients[t - 1, :, k + 1] -= half * ds[:, k + 1]
        return gradients.reshape(len(gradients), -1)

    law = sapc.Balance(stored, rate if decay else None, times=grid.time.points)
    return Law(law, rows, slopes=slopes)


def sphere(scene: Scene, pin_values: Array) -> Law:
    """All fields of one norm: that of the first condition, or twice as much."""
    value = float((pin_values[:1] ** 2).sum()) * scene.rng.choice((1.0, 4.0))
    law = sapc.Constraint(lambda u: (u**2).flatten(1).sum(1, keepdim=True), value=value)

    def rows(u: Array) -> tuple[Array, Array]:
        total = (u.reshape(len(u), -1) ** 2).sum(1, keepdims=True)
        return total - value, 3 * total + value

    return Law(law, rows, slopes=lambda u: 2 * u.reshape(1, -1), is_within_reach=True)


def quadrature(grid: sapc.Grid) -> Array:
    """Quadrature weights over space: the trapezoid rule on closed axes, the rectangle rule on others."""
    total = np.ones(())
    for axis in grid.axes[:-1]:
        step = (axis.stop - axis.start) / (axis.n - 1 if axis.kind == "closed" else axis.n)
        w = np.full(axis.n, step)
        if axis.kind == "closed":
            w[[0, -1]] /= 2
        total = total[..., None] * w
    return total


LAWS = (
    no_law,
    conserved_integral,
    conserved_integral,
    affine_rows,
    affine_rows,
    integral_and_rows,
    energy_balance,
    energy_balance,
    energy_balance,
    sphere,
)
