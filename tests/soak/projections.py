"""Random constraints on random grids; the result is checked by residuals that are computed here, in numpy.

Nothing of the package measures its own result: laws are written a second time, in extended precision, and the
nearest point of an affine manifold is solved for a second time, as a dense least-squares problem. A case
draws

    a grid of one to three axes, one or several channels, a batch, a dtype, sizes of 1e-8 to 1e8
    pins on frames, faces, channels or single points, with values of the field or of their own
    a law: none, a conserved integral, a balance with nonlinear quantity and rate, affine rows, any residual
"""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sapc

from .case import BadCase
from .laws import LAWS, LONG, Array, Law, Scene

# Of float64, and of the solver.
EPS, TOLERANCE = 2.0**-52, 1e-12
# Terms are added up a little differently here.
SLACK = 4


def check(rng: random.Random, seed: int, examples: Path) -> None:
    """Project random fields onto a random manifold."""
    scene = _scene(rng, seed)
    rng.choice((_check_projection,) * 16 + (_check_contradiction, _check_overflow))(scene)


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
    pin, mask, pin_values = _pin(scene, condition)
    law = scene.rng.choice(LAWS)(scene, pin_values)
    start = scene.fields(scene.scale * 10.0 ** scene.rng.choice((0, 0, 0, -4, 2, 4)))
    solver = scene.rng.choice((None, None, sapc.FeasiblePoint()))
    print(_describe(scene, mask, law, start), flush=True)
    whole = pin if law is None else pin & law.constraint
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sapc.SapcWarning)
        H = whole.on(condition, solver=solver)
        end, report = H.solve(start)
        repeat, _ = H.solve(start)
        alone, single_report = H[0].solve(start[:1])
    if end.dtype != start.dtype or end.shape != start.shape:
        raise BadCase(f"{start.dtype} {tuple(start.shape)} became {end.dtype} {tuple(end.shape)}")
    if not torch.equal(end, repeat):
        raise BadCase("the same call gave other bits")
    converged = report.converged.numpy()
    _check_pins(end, mask, pin_values)
    _check_rows(law, end, converged)
    if law is None or law.matrix is not None:
        if not converged.all():
            raise BadCase(
                f"an affine projection ({report.algorithm}) says that it has not converged, "
                f"|R| {report.residual.max():.1e}"
            )
        _check_nearest(law, mask, pin_values, start, end)
    else:
        _check_stationary(law, mask, pin_values, start, end, report)
    if converged[0] != bool(single_report.converged[0]):
        raise BadCase("whether a sample converges depends on its batch")
    if converged[0] and (H.affine or float(report.tangential_fraction[0]) == 0):
        distance, size = (
            float((end[0] - alone[0]).abs().max()),
            float(torch.stack((start[0], end[0])).abs().max()),
        )
        if distance > 1e4 * torch.finfo(end.dtype).eps * size:
            raise BadCase(f"a sample moves by {distance / size:.1e} of its size when its batch is left out")


def _check_contradiction(scene: Scene) -> None:
    """Two values for one point are an error, the same value twice is none."""
    condition = scene.fields()
    value, last = scene.scale * scene.rng.choice((7.0, -0.5)), scene.rng.choice((0, -1))
    first = scene.rng.choice((sapc.Pin.at(scene.grid, x=last, value=value), sapc.Pin.frame(0)))
    second = sapc.Pin.at(scene.grid, t=0, value=value * (1 + scene.rng.choice((1e-3, 1.0))))
    print(f"two values for one point, scale {scene.scale:.0e}", flush=True)
    try:
        (first & second).on(condition).project(scene.fields())
    except sapc.SapcError:
        pass
    else:
        raise BadCase("two different values for one point were accepted")
    (first & first).on(condition).project(scene.fields())


def _check_overflow(scene: Scene) -> None:
    """A value that the dtype of the fields cannot hold is an error."""
    value, dtype = scene.rng.choice(
        ((1e6, torch.float16), (1e39, torch.float32), (-7e4, torch.float16), (1e300, torch.bfloat16))
    )
    print(f"{value:g} pinned in {dtype}", flush=True)
    fields = torch.zeros(scene.batch, *scene.grid.shape, dtype=dtype)
    try:
        sapc.Pin.at(scene.grid, x=0, value=value).on(fields).project(fields)
    except sapc.SapcError:
        return
    raise BadCase(f"{value:g} was pinned in {dtype}")


# -- checks --


def _check_pins(end: torch.Tensor, mask: Array, pin_values: Array) -> None:
    values = end.numpy()
    targets = np.broadcast_to(pin_values.astype(values.dtype), values.shape)
    if not np.array_equal(values[:, mask], targets[:, mask]):
        raise BadCase("a pinned value is not the prescribed one to the bit")


def _check_rows(law: Law | None, end: torch.Tensor, converged: Array) -> None:
    """Where convergence is claimed, a residual is rounding of its own terms, in the dtype of the result."""
    if law is None:
        return
    rows, terms = law.rows(end.numpy().astype(LONG))
    # As docs/how-to/constraints.md states for float64; rounding to the dtype of the fields is added.
    tolerance = np.maximum(16 * EPS * terms, TOLERANCE * np.minimum(terms, 1))
    rounding = float(torch.finfo(end.dtype).eps) * terms
    limit = SLACK * (tolerance + rounding)
    distance = np.abs(rows) > limit
    if distance[converged].any():
        worst = float((np.abs(rows) / np.maximum(terms, 1e-300))[converged].max())
        raise BadCase(
            f"converged is claimed, but a residual is {worst:.1e} of its terms, "
            f"and {float(np.abs(rows)[converged].max()):.1e}"
        )


def _check_nearest(
    law: Law | None, mask: Array, pin_values: Array, start: torch.Tensor, end: torch.Tensor
) -> None:
    """Solve the affine problem once more, as least squares over the free points."""
    u = start.numpy().astype(np.float64)
    base = np.where(mask, pin_values, u)
    flat, free = base.reshape(len(u), -1), ~mask.reshape(-1)
    truth = flat.copy()
    if law is not None:
        size = np.abs(law.matrix).max(1, keepdims=True)
        a, b = law.matrix / size, (law.value / size.T)
        for i in range(len(u)):
            short = a @ flat[i] - b[i % len(b)]
            truth[i, free] -= np.linalg.lstsq(a[:, free], short, rcond=1e-10)[0]
    distance = np.abs(end.numpy().reshape(len(u), -1) - truth).max()
    size = max(np.abs(flat).max(), np.abs(truth).max())
    if distance > (1e-6 if end.dtype == torch.float64 else 1e-5) * size:
        raise BadCase(f"not the nearest point: {distance / size:.1e} of the fields' size away from it")


def _check_stationary(
    law: Law, mask: Array, pin_values: Array, start: torch.Tensor, end: torch.Tensor, report: Any
) -> None:
    """At a point that is called nearest, the correction is a combination of the rows' gradients."""
    # From far below, a norm is doubled again and again.
    is_near = float(start[0].abs().max()) >= np.abs(pin_values).max()
    if law.is_within_reach and is_near and not report.converged[0]:
        raise BadCase(f"a field within reach is not projected, |R| {float(report.residual[0]):.1e}")
    if end.dtype != torch.float64:
        return
    for i in np.flatnonzero((report.converged & report.nearest).numpy()):
        correction = (end - start)[i].numpy()[~mask]
        slopes = law.slopes(end[i].numpy())[:, ~mask.reshape(-1)]
        slopes = slopes / np.maximum(np.abs(slopes).max(1, keepdims=True), 1e-300)
        tangent = correction - slopes.T @ np.linalg.lstsq(slopes.T, correction, rcond=1e-12)[0]
        share = np.linalg.norm(tangent) / max(np.linalg.norm(correction), 1e-300)
        if share > 1e-5 and np.linalg.norm(tangent) > 1e-12 * np.abs(end[i].numpy()).max():
            raise BadCase(f"nearest is claimed, but {share:.1e} of the correction lies along the manifold")


# -- pins --


def _pin(scene: Scene, condition: torch.Tensor) -> tuple[sapc.Pin | None, Array, Array]:
    """A pin, its mask, and the values that it prescribes."""
    grid, rng, pin_values = scene.grid, scene.rng, condition.numpy().astype(np.float64)
    mask = np.zeros((grid.n_channels, *grid.points_per_axis), bool)
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
        pin_values = np.where(mask.reshape(grid.shape), value, pin_values)
    else:
        mask = scene.numbers.random(mask.shape) < 0.1
        mask[(0,) * mask.ndim] = True
        pin = sapc.Pin(torch.from_numpy(mask.reshape(grid.shape)))
    return pin, mask.reshape(grid.shape), pin_values


def _describe(scene: Scene, mask: Array, law: Law | None, start: torch.Tensor) -> str:
    law_name = type(law.constraint).__name__ if law else "pins only"
    shape = "x".join(map(str, scene.grid.shape))
    start_size = float(start.abs().max())
    return (
        f"{law_name} on {scene.batch} x {shape} {start.dtype}, {int(mask.sum())} pinned, "
        f"size {scene.scale:.0e}, start {start_size:.0e}"
    )
