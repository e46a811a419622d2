"""Random constraints on random grids; what comes back is checked by residuals that are computed here, in numpy.

Nothing of the package measures its own result: laws are written a second time, in extended precision, and the nearest point of an affine
manifold is solved for a second time, as a dense least-squares problem. A case draws

    a grid of one to three axes, one or several channels, a batch, a dtype, sizes of 1e-8 to 1e8
    pins on frames, faces, channels or single points, with values of the field or of their own
    a law: none, a conserved integral, a balance with nonlinear stored quantity and rate, affine rows, any residual
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import sapc

from .case import Bad

Array = np.ndarray
Rows = Callable[
    [Array], tuple[Array, Array]
]  # fields (batch, *grid) -> residuals and sizes of their terms, (batch, rows)
LONG = np.longdouble
EPS, TOLERANCE = 2.0**-52, 1e-12  # of float64, and of the solver
SLACK = 4  # terms are added up a little differently here


@dataclass(frozen=True)
class Law:
    """A constraint as the package takes it, and the same as numpy measures it."""

    constraint: sapc.constraints.Stackable
    rows: Rows
    matrix: Array | None = None  # of an affine law, (rows, points)
    value: Array | None = None  # which its rows take, (batch or 1, rows)


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


def check(rng: random.Random, seed: int, examples: Path) -> None:
    """Project random fields onto a random manifold."""
    scene = _scene(rng, seed)
    rng.choice((_check_projection,) * 8 + (_check_contradiction,))(scene)


def _scene(rng: random.Random, seed: int) -> Scene:
    space = [
        sapc.Axis(
            n, rng.randint(3, 7), 0.0, rng.choice((1.0, 3.0)), rng.choice(("periodic", "closed", "cells"))
        )
        for n in "xyz"
    ]
    time = sapc.Axis("t", rng.randint(3, 7), rng.choice((0.0, 2.0)), rng.choice((3.0, 20.0)))
    channels = rng.choice(((), (), ("h",), ("h", "q"), ("h", "q", "r")))
    grid = sapc.Grid((*space[: rng.choice((1, 1, 2, 2, 3))], time), channels)
    dtype = rng.choice((torch.float64, torch.float64, torch.float32))
    return Scene(rng, np.random.default_rng(seed), grid, dtype, rng.randint(1, 4), 10.0 ** rng.uniform(-8, 8))


def _check_projection(scene: Scene) -> None:
    condition = scene.fields()
    pin, mask, wanted = _pin(scene, condition)
    law = scene.rng.choice(LAWS)(scene, wanted)
    start = scene.fields(scene.scale * 10.0 ** scene.rng.choice((0, 0, 0, -4, 2, 4)))
    solver = scene.rng.choice((None, None, sapc.Globalised(nearest=0)))
    print(_described(scene, mask, law, start), flush=True)
    parts = [part for part in (pin, law.constraint if law else None) if part is not None]
    whole = parts[0] if len(parts) == 1 else parts[0] & parts[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sapc.SapcWarning)
        H = whole.on(condition, solver=solver)
        end, report = H.solve(start)
        again, _ = H.solve(start)
        alone, own = H[0].solve(start[:1])
    if end.dtype != start.dtype or end.shape != start.shape:
        raise Bad(f"{start.dtype} {tuple(start.shape)} became {end.dtype} {tuple(end.shape)}")
    if not torch.equal(end, again):
        raise Bad("the same call gave other bits")
    fine = report.converged.numpy()
    _check_pins(end, mask, wanted)
    _check_rows(law, end, fine)
    if law is None or law.matrix is not None:
        if not fine.all():
            raise Bad(
                f"an affine projection ({report.algorithm}) says that it has not converged, |R| {report.residual.max():.1e}"
            )
        _check_nearest(law, mask, wanted, start, end)
    if fine[0] != bool(own.converged[0]):
        raise Bad("whether a sample converges depends on its batch")
    if fine[0] and (H.affine or float(report.tangential[0]) == 0):
        off, size = float((end[0] - alone[0]).abs().max()), float(torch.stack((start[0], end[0])).abs().max())
        if off > 1e4 * torch.finfo(end.dtype).eps * size:
            raise Bad(f"a sample moves by {off / size:.1e} of its size when its batch is left out")


def _check_contradiction(scene: Scene) -> None:
    """Two values for one point are an error, the same value twice is none."""
    condition = scene.fields()
    value, last = scene.scale * scene.rng.choice((7.0, -0.5)), scene.rng.choice((0, -1))
    first = scene.rng.choice((sapc.Pin.at(scene.grid, x=last, value=value), sapc.Pin.frame(0)))
    other = sapc.Pin.at(scene.grid, t=0, value=value * (1 + scene.rng.choice((1e-3, 1.0))))
    print(f"two values for one point, scale {scene.scale:.0e}", flush=True)
    try:
        (first & other).on(condition).project(scene.fields())
    except sapc.SapcError:
        pass
    else:
        raise Bad("two different values for one point were accepted")
    (first & first).on(condition).project(scene.fields())


# -- checks --


def _check_pins(end: torch.Tensor, mask: Array, wanted: Array) -> None:
    values = end.numpy()
    expected = np.broadcast_to(wanted.astype(values.dtype), values.shape)
    if not np.array_equal(values[:, mask], expected[:, mask]):
        raise Bad("a pinned value is not the prescribed one to the bit")


def _check_rows(law: Law | None, end: torch.Tensor, fine: Array) -> None:
    """Where convergence is claimed, every residual is rounding of its own terms, in the dtype of the result."""
    if law is None:
        return
    rows, terms = law.rows(end.numpy().astype(LONG))
    # What docs/constraints.md states, for the float64 result; rounding to the dtype of the fields comes on top.
    stated = np.maximum(16 * EPS * terms, TOLERANCE * np.minimum(terms, 1))
    rounding = float(torch.finfo(end.dtype).eps) * terms
    allowed = SLACK * (stated + rounding)
    off = np.abs(rows) > allowed
    if off[fine].any():
        worst = float((np.abs(rows) / np.maximum(terms, 1e-300))[fine].max())
        raise Bad(
            f"converged is claimed, but a residual is {worst:.1e} of its terms, and {float(np.abs(rows)[fine].max()):.1e}"
        )


def _check_nearest(
    law: Law | None, mask: Array, wanted: Array, start: torch.Tensor, end: torch.Tensor
) -> None:
    """Solve the affine problem once more, as least squares over the free points."""
    u = start.numpy().astype(np.float64)
    pinned = np.where(mask, wanted, u)
    flat, free = pinned.reshape(len(u), -1), ~mask.reshape(-1)
    truth = flat.copy()
    if law is not None:
        size = np.abs(law.matrix).max(1, keepdims=True)
        a, b = law.matrix / size, (law.value / size.T)
        for i in range(len(u)):
            short = a @ flat[i] - b[i % len(b)]
            truth[i, free] -= np.linalg.lstsq(a[:, free], short, rcond=1e-10)[0]
    off = np.abs(end.numpy().reshape(len(u), -1) - truth).max()
    size = max(np.abs(flat).max(), np.abs(truth).max())
    if off > (1e-6 if end.dtype == torch.float64 else 1e-5) * size:
        raise Bad(f"not the nearest point: {off / size:.1e} of the fields' size away from it")


# -- pins --


def _pin(scene: Scene, condition: torch.Tensor) -> tuple[sapc.Pin | None, Array, Array]:
    """A pin, its mask, and the values that it prescribes."""
    grid, rng, wanted = scene.grid, scene.rng, condition.numpy().astype(np.float64)
    mask = np.zeros((grid.width, *grid.lattice), bool)
    kind = rng.choice(("frame", "frame", "face", "channel", "points", "value"))
    if kind == "frame":
        mask[..., 0] = True
        pin = sapc.Pin.frame(0)
    elif kind == "face":
        mask[:, -1] = True
        pin = sapc.Pin.at(grid, x=-1)
    elif kind == "channel" and grid.channels:
        mask[0, ..., 0] = True
        pin = sapc.Pin.frame(0, grid=grid, channel=grid.channels[0])
    elif kind == "value":
        mask[..., 0, :1] = True
        value = scene.scale * rng.uniform(-2, 2)
        pin = sapc.Pin.at(grid, **{grid.names[-2]: 0, "t": 0}, value=value)
        wanted = np.where(mask.reshape(grid.shape), value, wanted)
    else:
        mask = scene.numbers.random(mask.shape) < 0.1
        mask[(0,) * mask.ndim] = True
        pin = sapc.Pin(torch.from_numpy(mask.reshape(grid.shape)))
    return pin, mask.reshape(grid.shape), wanted


# -- laws --


def _none(scene: Scene, wanted: Array) -> None:
    return None


def _conserved(scene: Scene, wanted: Array) -> Law:
    """An integral over space that does not change."""
    grid, name = scene.grid, scene.grid.channels[0] if scene.grid.channels else None
    weights = np.zeros((grid.width, *grid.lattice[:-1]))
    weights[0] = _weights(grid)
    law = sapc.Balance(grid.integral(name), times=grid.time.points)
    frames = grid.lattice[-1]
    # Row T of the matrix: the integral of frame T less that of frame 0.
    matrix = np.zeros((frames - 1, *weights.shape, frames))
    for t in range(1, frames):
        matrix[t - 1, ..., t], matrix[t - 1, ..., 0] = weights, -weights
    flat = matrix.reshape(frames - 1, -1)
    return Law(law, _affine_rows(flat, np.zeros((1, frames - 1))), flat, np.zeros((1, frames - 1)))


def _affine(scene: Scene, wanted: Array) -> Law:
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
    value = wanted.reshape(len(wanted), -1) @ matrix.T
    function = torch.from_numpy(matrix)
    if scene.rng.random() < 0.5:
        tensor = function
        function = lambda u: u.flatten(1) @ tensor.to(u).T
    if scene.rng.random() < 0.3:
        return Law(
            sapc.Affine(function, value=torch.from_numpy(value)), _affine_rows(matrix, value), matrix, value
        )
    first = value[:1]
    return Law(
        sapc.Affine(function, value=torch.from_numpy(first)), _affine_rows(matrix, first), matrix, first
    )


def _affine_rows(matrix: Array, value: Array) -> Rows:
    def rows(u: Array) -> tuple[Array, Array]:
        flat, a = u.reshape(len(u), -1), matrix.astype(LONG)
        return flat @ a.T - value, np.abs(flat) @ np.abs(a).T + np.abs(value)

    return rows


def _energy(scene: Scene, wanted: Array) -> Law:
    """The integral of a convex function decays at a rate that is another one, with times of the grid."""
    grid, s = scene.grid, LONG(scene.scale)
    w, times = _weights(grid).astype(LONG), np.asarray(grid.time.points, LONG)
    decay, power = scene.rng.choice((0.0, 0.02, 0.1)), scene.rng.choice((1, 2))
    spread, size = torch.from_numpy(np.tile(w.reshape(-1), grid.width).astype(np.float64)), float(s)
    one = lambda u: u.flatten(1, -2) / size  # (batch, channel and space, time), in units of the scale
    stored = lambda u: (
        (one(u) ** 2 if power == 2 else one(u) + one(u).abs().pow(3) / 9) * spread.to(u)[:, None]
    ).sum(1)
    rate = (lambda u: -decay * (one(u) ** 2 * spread.to(u)[:, None]).sum(1)) if decay else None
    wide = np.asarray(spread).astype(LONG)[:, None]

    def rows(u: Array) -> tuple[Array, Array]:
        v = u.reshape(len(u), -1, u.shape[-1]) / s
        terms = v**2 if power == 2 else v + np.abs(v) ** 3 / 9
        e, size_e = (terms * wide).sum(1), (np.maximum(np.abs(v), v**2 + np.abs(v) ** 3) * wide).sum(1)
        r = -LONG(decay) * (v**2 * wide).sum(1)
        supplied = np.cumsum(np.diff(times) * (r[:, 1:] + r[:, :-1]) / 2, 1)
        return e[:, 1:] - e[:, :1] - supplied, size_e[:, 1:] + size_e[:, :1] + np.cumsum(np.abs(supplied), 1)

    return Law(sapc.Balance(stored, rate, times=grid.time.points), rows)


def _sphere(scene: Scene, wanted: Array) -> Law:
    """All fields of one norm, which those of the condition have."""
    value = float((wanted[:1] ** 2).sum()) * scene.rng.choice((1.0, 4.0))
    law = sapc.Constraint(lambda u: (u**2).flatten(1).sum(1, keepdim=True), value=value)

    def rows(u: Array) -> tuple[Array, Array]:
        total = (u.reshape(len(u), -1) ** 2).sum(1, keepdims=True)
        return total - value, 2 * total + value

    return Law(law, rows)


def _weights(grid: sapc.Grid) -> Array:
    """Quadrature weights over space: the trapezoid rule on closed axes, the rectangle rule on others."""
    total = np.ones(())
    for axis in grid.axes[:-1]:
        step = (axis.stop - axis.start) / (axis.n - 1 if axis.kind == "closed" else axis.n)
        w = np.full(axis.n, step)
        if axis.kind == "closed":
            w[[0, -1]] /= 2
        total = total[..., None] * w
    return total


LAWS = (_none, _conserved, _conserved, _affine, _affine, _energy, _energy, _sphere)


def _described(scene: Scene, mask: Array, law: Law | None, start: torch.Tensor) -> str:
    what = type(law.constraint).__name__ if law else "pins only"
    shape = "x".join(map(str, scene.grid.shape))
    start_size = float(start.abs().max())
    return f"{what} on {scene.batch} x {shape} {start.dtype}, {int(mask.sum())} pinned, size {scene.scale:.0e}, start {start_size:.0e}"
