"""Record what happens along a sampling run: how far from the manifold it goes, and how far from straight.

A sampler sees the network as a callable v(vt, t). `TrajectoryRecorder.wrap(v)` is that callable, with a
record of every call; any method that is given it samples what it would have sampled, to the bit. The records
of a run are its states v_t at falling times 1 = t > s > ... > 0, each with the estimate v0^ = v_t - t v(v_t,
t) that the network makes there. With v0 the field returned, v1 the state at t = 1 (in SAPC the anchored
source, in D-Flow the optimised one) and R the stacked residual of H, a sample has

    endpoint_residual   |R(v0^)|                  the estimate before any projection, at every step
    state_residual      |R(v_t)|                  at every step, and of the result at t = 0
    deviation           |e_t| / |v1 - v0|         e_t = v_t - [(1 - t) v0 + t v1], away from the line
    straight_energy     |v1 - v0|^2               kinetic energy of the straight line at constant speed
    energy              |e_t - e_s|^2 / (t - s)   per step; `excess_energy` is the sum

|.| being l2 norms over rows or points, not divided by their number. The sum is the excess of the path's
kinetic energy: with d = v_t - v_s the move of a step, h = t - s its length and D = v1 - v0, it is e_t - e_s =
d - h D, the d add up to D and the h to 1, so

    sum |d - h D|^2 / h  =  sum |d|^2 / h  -  2 <D, sum d>  +  |D|^2 sum h  =  sum |d|^2 / h  -  |D|^2

The left side has no difference of large numbers: for a straight path it is zero, to the square of rounding.
Steps may differ in length.

Some samplers evaluate the network more than once. One rule serves them all: a call at time t drops every
record at t or at an earlier time before it is added. Where a step evaluates repeatedly (ECI), the last
evaluation, which the step starts from, stays; where the whole run is repeated, or replayed backwards for a
gradient (D-Flow), the last one does. A record is a state and a velocity, by reference: memory for two fields
per step and sample, until `finish`.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .._old_names import find_renamed, rename_arguments, rename_method
from ..constraints import Manifold
from ..errors import SapcError, check_int
from ..flow.path import Velocity, interpolate, predict_data


@dataclass(frozen=True)
class Trajectory:
    """Medians over samples, at every time.

    Attributes:
        times: Times from 1 down to 0: that of every step, and 0.
        endpoint_residual: One value per step, at `times[:-1]`.
        state_residual: One value per time.
        deviation: One value per time, zero at both ends. A sample that ends where it began has zero where it
            stayed, infinity elsewhere.
        energy: One value per step, from `times[i]` to `times[i + 1]`.
        excess_energy: Median of the sums over steps.
        straight_energy: Kinetic energy of the straight line, to compare the excess with.
        samples: Number of samples.
    """

    times: list[float]
    endpoint_residual: list[float]
    state_residual: list[float]
    deviation: list[float]
    energy: list[float]
    excess_energy: float
    straight_energy: float
    samples: int

    def to_dict(self) -> dict[str, Any]:
        """Return the content for JSON, which knows no infinity: None stands for what is not finite."""
        return {name: _to_json(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class _Record:
    """A call of the network: the time, the state and its velocity."""

    t: float
    vt: Tensor
    velocity: Tensor

    @property
    def v0(self) -> Tensor:
        """Estimate v0^, as the sampler computes it."""
        return predict_data(self.vt, self.t, self.velocity.to(self.vt.dtype))


@dataclass(frozen=True)
class _BatchValues:
    """Quantities of a batch, float64 on the CPU: `(times, batch)`, `(steps, batch)` or `(batch,)`."""

    endpoint_residual: Tensor
    state_residual: Tensor
    deviation: Tensor
    energy: Tensor
    straight_energy: Tensor


class TrajectoryRecorder:
    """Records every state and velocity while fields are sampled, batch by batch.

        recorder = TrajectoryRecorder()
        fields = method.sample(recorder.wrap(v), v1, H, steps)
        recorder.finish(fields, H)      # once per batch
        recorder.result()

    On a GPU every call waits for the device, to read its time.

    Attributes:
        seconds: Time that all calls of `finish` took, to be left out where sampling is timed.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._records: list[_Record] = []
        self._times: list[float] = []
        self._batches: list[_BatchValues] = []

    def wrap(self, v: Velocity) -> Velocity:
        """Record every call of a velocity.

        Records of a run that did not finish are dropped.

        Args:
            v: The velocity `v(vt, t)`.

        Returns:
            A velocity with the same values.
        """
        self._records = []

        def recorded_velocity(vt: Tensor, t: Tensor) -> Tensor:
            velocity = v(vt, t)
            self._record(_common_time(t), vt.detach(), velocity.detach())
            return velocity

        return recorded_velocity

    around = rename_method("TrajectoryRecorder.around", "TrajectoryRecorder.wrap")

    def _record(self, t: float, vt: Tensor, velocity: Tensor) -> None:
        """Add a record by the rule of the module docstring, so that times fall along the list."""
        while self._records and self._records[-1].t <= t:
            self._records.pop()
        self._records.append(_Record(t, vt, velocity))

    @rename_arguments(keep="count")
    def finish(self, fields: Float[Tensor, "batch *grid"], H: Manifold, count: int | None = None) -> None:
        """Measure the run that returned these fields, and drop its states.

        Args:
            fields: What the sampler returned, `(batch, *grid)`.
            H: The manifold to measure on, of one condition for all fields or one each. The method need not
                have known it.
            count: How many of the fields to measure, from the first on, where the others only fill the batch.

        Raises:
            SapcError: The records do not fit the fields, or the batches before.
        """
        _synchronise(fields)
        start = time.perf_counter()
        records, self._records = self._records, []
        _check(records, fields)
        n = (
            len(fields)
            if count is None
            else min(check_int(count, "number of fields that count", 1), len(fields))
        )
        times = [*(record.t for record in records), 0.0]
        if self._batches and times != self._times:
            raise SapcError(
                f"a batch of {len(times) - 1} steps cannot be added to batches of {len(self._times) - 1} "
                "at other times; watch runs of one kind with one TrajectoryRecorder"
            )
        self._batches.append(_measure(records, fields[:n], H if len(H) == 1 else H[:n]))
        self._times = times
        _synchronise(fields)
        self.seconds += time.perf_counter() - start

    def result(self) -> Trajectory:
        """Compute the medians over the samples of all batches.

        Returns:
            The medians.

        Raises:
            SapcError: No batch was finished.
        """
        if not self._batches:
            raise SapcError("nothing was watched: call finish(fields, H) after a batch is sampled")

        def values(name: str) -> Tensor:
            return torch.cat([getattr(batch, name) for batch in self._batches], -1)

        straight = values("straight_energy")
        return Trajectory(
            times=list(self._times),
            endpoint_residual=_median(values("endpoint_residual")).tolist(),
            state_residual=_median(values("state_residual")).tolist(),
            deviation=_median(values("deviation")).tolist(),
            energy=_median(values("energy")).tolist(),
            excess_energy=float(_median(values("energy").sum(0))),
            straight_energy=float(_median(straight)),
            samples=len(straight),
        )


@torch.no_grad()
def _measure(records: list[_Record], fields: Tensor, H: Manifold) -> _BatchValues:
    """Measure the first `len(fields)` samples, state by state, to hold only a few fields in memory."""
    n, v0, v1 = len(fields), fields.double(), records[0].vt[: len(fields)].double()
    path = chain(((record.t, record.vt[:n].double()) for record in records), [(0.0, v0)])
    states, distances, energy = [], [], []
    t, e_t = 1.0, torch.zeros_like(v0)
    # The first time there is no step yet, and s = t = 1.
    for s, vs in path:
        e_s = vs - interpolate(v0, v1, v0.new_full((n,), s))
        states.append(_norm(H.residual(vs)))
        distances.append(_norm(e_s))
        if s < t:
            energy.append(_square(e_t - e_s) / (t - s))
        t, e_t = s, e_s
    estimates = [_norm(H.residual(record.v0[:n].double())) for record in records]
    straight, distance = _square(v1 - v0), torch.stack(distances)
    return _BatchValues(
        endpoint_residual=torch.stack(estimates).cpu(),
        state_residual=torch.stack(states).cpu(),
        deviation=torch.where(distance == 0, 0.0, distance / straight.sqrt()).cpu(),
        energy=torch.stack(energy).cpu(),
        straight_energy=straight.cpu(),
    )


def _check(records: list[_Record], fields: Tensor) -> None:
    if not records:
        raise SapcError("no call of the network was recorded: sample with recorder.wrap(v) instead of v")
    if records[0].t != 1 or records[-1].t <= 0:
        raise SapcError(
            f"a run is watched from t = 1 to above 0, but this one was evaluated "
            f"from t = {records[0].t:g} to {records[-1].t:g}"
        )
    for record in records:
        if record.vt.shape != fields.shape:
            raise SapcError(
                f"the fields have shape {tuple(fields.shape)}, the state at t = {record.t:g} has "
                f"{tuple(record.vt.shape)}; give finish all that was sampled, and say with "
                "count= how many count"
            )


def _common_time(t: Tensor) -> float:
    """Return the time of a call, which must be the same for the whole batch."""
    times = set(t.tolist())
    if len(times) != 1:
        raise SapcError(
            f"a sampler that is watched must evaluate a whole batch at one time, got {len(times)} times"
        )
    return float(times.pop())


def _square(x: Tensor) -> Tensor:
    """Return |x|^2, one number per sample."""
    return x.flatten(1).square().sum(1)


def _norm(x: Tensor) -> Tensor:
    """Return |x|, one number per sample."""
    return _square(x).sqrt()


def _median(x: Tensor) -> Tensor:
    """Return the median over the last axis; of an even number, the mean of the two in the middle."""
    x, n = x.sort(-1).values, x.shape[-1]
    return (x[..., (n - 1) // 2] + x[..., n // 2]) / 2


def _to_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_json(entry) for entry in value]
    return value if math.isfinite(value) else None


def _synchronise(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)


__getattr__ = find_renamed(__name__)
