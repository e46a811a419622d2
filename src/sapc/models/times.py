"""Times for steps of second order, measured for a network and kept beside its weights.

Steps cost least error where the estimate D of the data bends little. So a fine run, evenly spaced in lambda
(`flow.time_grids`), records for a few validation conditions how D bends, b = rms |D(lambda + 1) - 2 D(lambda) +
D(lambda - 1)|, averaged over neighbours, and steps are placed with a density of the form

    rho(lambda) = (b (1 - t)^q)^p,     p in {1/3, 1/2, 3/4},  q in {0, 1}:

p = 1/3 if errors fall with the third power of a step, larger where steps are too long for that; (1 - t) is how
much of an error in D a state takes over. Which p and q serve, or whether a shift of uniform times does better,
is measured, too: each grid of times takes the same source draws through TRIAL_STEPS steps, and the one is kept
whose ensembles have standard deviations nearest to those of the fine run, at every point. Spread is what long
steps lose first. Distances between fields, or between sorted members, would not do: for few members they say
how far paths differ, which they may where distributions agree. No solutions are needed for this.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from .._files import read_json, sha256, write_json
from ..constraints import Manifold
from ..errors import SapcError, SapcWarning
from ..flow import STEPPERS, Curve, Sampler, Shift, TimeGrid, Velocity, predict_data
from ..flow.time_grids import time_at
from ..training.run_folder import RunFolder

if TYPE_CHECKING:
    from .model import Model

FORMAT = "sapc-times-1"
FILE = "times.json"
DEFAULT = Shift(4.0)
"""Times where none were measured."""

# The fine run: lambda from -EXTENT to EXTENT, PER_UNIT steps per unit of lambda.
EXTENT, PER_UNIT = 10, 4
# Neighbours on either side over which the square of b is averaged.
SMOOTHING = 2
# Equal shares of a curve: 5, 10, 20 and 40 steps take times that were measured, not interpolated.
SHARES = 120
POWERS, WEIGHTS, SHIFTS = (1 / 3, 1 / 2, 3 / 4), (0, 1), (1.0, 4.0, 16.0)
TRIAL_STEPS = 10
CONDITIONS, MEMBERS = 4, 8
"""Validation conditions, and fields of each; in three dimensions half as many of both."""


@dataclass(frozen=True)
class Measurement:
    """What `measure_times` found.

    Attributes:
        curve: The times.
        name: What they are: a density or a shift.
        distances: By name, how far each grid's standard deviations are from those of the fine run.
    """

    curve: Curve
    name: str
    distances: Mapping[str, float]


def measure_times(
    model: Model, seed: int = 0, progress: Callable[[int, int], None] = lambda count, total: None
) -> Measurement:
    """Measure the times of steps of second order for a model.

    Args:
        model: The model.
        seed: Seed of the source draws.
        progress: Called with runs done, runs in all.

    Returns:
        The times, with the distances that chose them.

    Raises:
        SapcError: The method of the model samples by its own steps.
    """
    if not model.method.accepts_sampler:
        raise SapcError(
            f"{model.method.name} samples by its own steps on uniform times; there is nothing to measure"
        )
    is_flat = len(model.task.grid.shape) <= 2
    k, m = (CONDITIONS, MEMBERS) if is_flat else (CONDITIONS // 2, MEMBERS // 2)
    k = min(k, model.task.sizes["validation"])
    condition = model.bind(model.task.dataset("validation", size=k).fields)

    def sample(times: TimeGrid, steps: int, recorder: BendRecorder | None = None) -> Tensor:
        sampler = Sampler(STEPPERS["multistep"], times)
        fields = model.sample(k * m, condition, steps, seed, sampler=sampler, callback=recorder)
        return fields.reshape(k, m, -1)

    recorder = BendRecorder()
    total = 1 + len(POWERS) * len(WEIGHTS) + len(SHIFTS)
    progress(0, total)
    reference = sample(lambda steps: recorder.times, len(recorder.times) - 1, recorder)
    curves = recorder.curves() | {f"shift {a:g}": Curve(Shift(a)(SHARES)) for a in SHIFTS}
    distances: dict[str, float] = {}
    for count, (name, curve) in enumerate(curves.items(), start=1):
        progress(count, total)
        distances[name] = _distance(sample(curve, TRIAL_STEPS), reference)
    progress(total, total)
    name = min(distances, key=distances.__getitem__)
    return Measurement(curves[name], name, distances)


def _distance(a: Tensor, b: Tensor) -> float:
    """Return how far the standard deviations of ensembles `(condition, member, point)` differ, rms."""
    return float((a.std(1) - b.std(1)).square().mean().sqrt())


class BendRecorder:
    """Records along a fine run how the estimate of the data bends; see the module docstring.

    Attributes:
        times: Times of the fine run.
    """

    def __init__(self) -> None:
        n = EXTENT * PER_UNIT
        self.lattice = np.arange(-n, n + 1) / PER_UNIT
        self.times = (1.0, *map(time_at, self.lattice.tolist()), 0.0)
        self.sums, self.count = np.zeros(len(self.lattice) - 2 * PER_UNIT), 0

    def wrap(self, v: Velocity) -> Velocity:
        """Record the estimates of one batch.

        Args:
            v: The velocity.

        Returns:
            A velocity with the same values.
        """
        estimates: deque[Tensor] = deque(maxlen=2 * PER_UNIT + 1)
        position = 0

        def recorded_velocity(vt: Tensor, t: Tensor) -> Tensor:
            nonlocal position
            velocity = v(vt, t)
            # The first is at t = 1, where lambda is infinite.
            if position > 0:
                estimates.append(predict_data(vt, float(self.times[position]), velocity.to(vt.dtype)))
            if len(estimates) == estimates.maxlen:
                bend = estimates[-1] - 2 * estimates[PER_UNIT] + estimates[0]
                self.sums[position - 1 - 2 * PER_UNIT] += float(bend.square().sum())
            position += 1
            return velocity

        return recorded_velocity

    def finish(self, fields: Tensor, H: Manifold, *, count: int | None = None) -> None:
        """End a batch.

        Args:
            fields: Its fields.
            H: Their manifolds.
            count: Number of fields that are no copies.
        """
        self.count += fields.numel()

    def curves(self) -> dict[str, Curve]:
        """Return the curve of every density, by name."""
        window = np.ones(2 * SMOOTHING + 1) / (2 * SMOOTHING + 1)
        squares = np.convolve(np.pad(self.sums / self.count, SMOOTHING, "edge"), window, "valid")
        lattice = self.lattice[PER_UNIT:-PER_UNIT]
        weight = 1 / (1 + np.exp(-lattice))
        return {
            f"bend {p:.2g} {q:g}": density_curve(lattice, (np.sqrt(squares) * weight**q) ** p)
            for p in POWERS
            for q in WEIGHTS
        }


def density_curve(lattice: np.ndarray, density: np.ndarray) -> Curve:
    """Place times so that equal shares of a density lie between them.

    Args:
        lattice: Values of lambda, in ascending order.
        density: The density there. Nothing lies beyond the two ends.

    Returns:
        The curve.
    """
    # Times that coincide would be no curve: where nothing bends, a thousandth of the mean is left.
    density = density + 1e-3 * density.mean() + np.finfo(float).tiny
    share = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(lattice))])
    inner = np.interp(np.arange(1, SHARES) / SHARES, share / share[-1], lattice)
    return Curve((1.0, *map(time_at, inner.tolist()), 0.0))


# -- the file --


def tune(model: Model, progress: Callable[[int, int], None] = lambda count, total: None) -> Measurement:
    """Measure the times of a model, use them, and write them into its run folder.

    Args:
        model: The model, of a training that has ended.
        progress: Called with runs done, runs in all.

    Returns:
        What was measured.

    Raises:
        SapcError: The model has no run folder, or its method samples by its own steps.
    """
    folder = model.folder
    if folder is None or not folder.is_trained:
        raise SapcError("times are kept beside the weights of a training that has ended; this model has none")
    measurement = measure_times(model, progress=progress)
    write_times(folder, measurement)
    # As in the file, which has fewer digits: a model that is loaded later samples the same bits.
    model.times = read_times(folder)
    return measurement


def tune_after_training(model: Model, progress: Callable[[int, int], None] | None = None) -> None:
    """Measure the times of a model whose training has just ended, unless that was done; a failure is a warning.

    Args:
        model: The model.
        progress: Called with runs done, runs in all.
    """
    if not model.method.accepts_sampler or model.folder is None or not model.folder.is_trained:
        return
    try:
        if _read_curve(model.folder) is None:
            tune(model, progress or (lambda count, total: None))
    except SapcError as error:
        message = f"times of the sampler were not measured: {error}; later: sapc tune {model.folder.path}"
        warnings.warn(message, SapcWarning, stacklevel=2)


def write_times(folder: RunFolder, measurement: Measurement) -> None:
    """Write measured times beside the weights they belong to.

    Args:
        folder: The run folder.
        measurement: What was measured.
    """
    write_json(
        folder.path / FILE,
        {
            "format": FORMAT,
            "weights": sha256(folder.weights),
            "times": [float(f"{t:.9g}") for t in measurement.curve.times],
            "choice": measurement.name,
            "trial_steps": TRIAL_STEPS,
            "distances": {name: float(f"{x:.4g}") for name, x in measurement.distances.items()},
        },
    )


def read_times(folder: RunFolder | None) -> TimeGrid:
    """Read the times that were measured for the weights of a run folder.

    Args:
        folder: The run folder, None for a model without one.

    Returns:
        The times; where none were measured for these weights `DEFAULT`, with a warning if the training has ended.

    Raises:
        SapcError: The file is damaged.
    """
    if folder is not None and (curve := _read_curve(folder)) is not None:
        return curve
    # An unfinished training has been warned of, and its times are measured when it ends.
    if folder is not None and not folder.is_trained:
        return DEFAULT
    where = "this model" if folder is None else str(folder.path)
    advice = (
        "model.times = sapc.models.times.measure_times(model).curve"
        if folder is None
        else f"sapc tune {folder.path}"
    )
    warnings.warn(
        f"no times were measured for the weights of {where}; uniform times shifted by {DEFAULT.a:g} are used. "
        f"Measure them: {advice}",
        SapcWarning,
        stacklevel=2,
    )
    return DEFAULT


def read_record(folder: RunFolder) -> dict[str, Any] | None:
    """Read the file of times of a run folder.

    Args:
        folder: The run folder.

    Returns:
        Its content; None if there is none, or it is of other weights.

    Raises:
        SapcError: The file is damaged.
    """
    path = folder.path / FILE
    if not path.is_file() or not folder.is_trained:
        return None
    content = read_json(path, f"times of a sampler ({FORMAT})")
    if content.get("format") != FORMAT or not isinstance(content.get("times"), list):
        raise SapcError(f"{path} has no times of the format {FORMAT}; measure them: sapc tune {folder.path}")
    return content if content.get("weights") == sha256(folder.weights) else None


def _read_curve(folder: RunFolder) -> Curve | None:
    if (content := read_record(folder)) is None:
        return None
    try:
        return Curve(content["times"])
    except SapcError as error:
        path = folder.path / FILE
        raise SapcError(f"{path}: {error}; measure them again: sapc tune {folder.path}") from error
