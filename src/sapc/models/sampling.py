"""Conditions, and sampling batch by batch: from draws of the source to fields.

A condition gives values of which only the pinned ones count. It is checked once, when it is bound to a task,
and its manifold is made once.

The source is drawn on the CPU from the seed, one field after the other; for a GPU the CPU draws the uniform
numbers only. So a seed means the same noise on every device, to rounding, and the noise of field i depends
neither on how many are drawn nor on how many at a time (the field itself does, to the network's rounding).
States are float64, whatever the precision of the network, so the samples of an exact method satisfy their
constraints to the rounding of float64.

Batches are equally large; the last one is filled up with copies, so that a compiled network sees one shape
only.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..constraints import Manifold
from ..constraints._bound import check_pins
from ..constraints.terms import Constraint, ConstraintTerm, Pin
from ..data import Fields, Sensors
from ..errors import SapcError, SapcWarning, tensor_advice
from ..flow import STEPPERS, Curve, Sampler, Shift, source
from ..flow.path import Velocity, clip_endpoint
from ..methods import Method, is_user_defined
from ..methods.base import SampleFunction
from ..nn.network import Execution
from ..tasks import Dataset, Task
from ..training.config import TrainingConfig

Progress = Callable[[int, int], None]
"""Called with (fields done, fields in all); a partly integrated field counts fractionally."""
CHUNK = 2**22
"""Grid points whose residuals are computed together."""

# -- conditions --


@dataclass(frozen=True, eq=False)
class Condition:
    """Conditions that are known to fit a task, on the device of a model.

    Attributes:
        task: The task, on the grid of the fields.
        values: Fields `(k, *grid)`, float64, zero where nothing counts.
        extra_constraints: Constraints besides the task's.
        run: Settings of the model that they are bound to.
    """

    task: Task
    values: Tensor
    extra_constraints: ConstraintTerm | None
    run: TrainingConfig

    @cached_property
    def manifold(self) -> Manifold:
        """Manifolds in the units of the fields, one per condition."""
        return self.task.manifold(self.values, self.extra_constraints, solver=self.run.solver(self.task))

    @cached_property
    def normalized_manifold(self) -> Manifold:
        """Manifolds in the units of the network, one per condition."""
        if self.task.normalizer.is_identity:
            return self.manifold
        values = self.task.normalize(self.values)
        return self.task.normalized_manifold(
            values, self.extra_constraints, solver=self.run.solver(self.task)
        )

    def restore(self, fields: Tensor) -> Tensor:
        """Restore pinned values exactly after denormalization, and warn of samples that are off the laws.

        Args:
            fields: Samples `(n, *grid)` on the CPU.

        Returns:
            The samples, with the pinned values to the last bit.
        """
        has_extra, has_units = self.extra_constraints is not None, not self.task.normalizer.is_identity
        if not has_extra and not has_units:
            return fields
        H = repeat(self.manifold.to("cpu") if self.values.is_cuda else self.manifold, len(fields))
        if has_units:
            fields = torch.where(H.pinned, H.fields, fields)
        # On a curved manifold the projection at the end of the sampler has said so already.
        if has_extra or H.affine:
            _warn_if_violated(fields, H, has_extra)
        return fields


def repeat(H: Manifold, n: int) -> Manifold:
    """Repeat each of k manifolds for n = k m fields, m times in a row.

    Args:
        H: The manifolds.
        n: Number of fields.

    Returns:
        `n` manifolds, or the single one, which serves all.
    """
    return H if len(H) in (1, n) else H[torch.arange(n) // (n // len(H))]


def worst_residuals(H: Manifold, fields: Tensor) -> dict[str, float]:
    """Compute the largest deviations over all samples.

    Args:
        H: Manifolds, one for all fields or one each in a row.
        fields: Samples `(n, *grid)`.

    Returns:
        The deviation from pinned values, `local`, and from the laws, `balance`.
    """
    H, size = repeat(H, len(fields)), max(1, CHUNK // fields[0].numel())
    worst = {"local": 0.0, "balance": 0.0}
    for first in range(0, len(fields), size):
        part = fields[first : first + size].to(H.fields.device)
        H_part = H if len(H) == 1 else H[first : first + size]
        for name, rows in (("local", H_part.local(part)), ("balance", H_part.balance(part))):
            worst[name] = max(worst[name], float(rows.abs().max()) if rows.numel() else 0.0)
    return worst


def pinned_mask(task: Task) -> Tensor:
    """Return the pinned points of a task's grid.

    Args:
        task: The task.

    Returns:
        A boolean tensor `(*grid)`.
    """
    return _mask(_pins(task, None), task)


def condition_mask(task: Task) -> Tensor:
    """Return the points whose values a condition gives: pinned, and not prescribed by the physics.

    Args:
        task: The task.

    Returns:
        A boolean tensor `(*grid)`.
    """
    return _mask([pin for pin in _pins(task, None) if pin.value is None], task)


def pinned_values(
    condition: Tensor | Dataset | Fields, task: Task, extra: ConstraintTerm | None = None
) -> Tensor:
    """Return the values of conditions, zero where nothing counts.

    Values that a pin prescribes itself need not be given; those that are must agree with it (see
    `check_pins`). Where a law takes its value from the condition, every point counts.

    Args:
        condition: Conditions, on the grid of the task.
        task: The task.
        extra: Constraints besides the task's.

    Returns:
        Fields `(k, *grid)` in float64.

    Raises:
        SapcError: The shape is another one, a value that counts is NaN, or pins contradict each other.
    """
    condition = _tensor(condition, task)
    pins = _pins(task, extra)
    check_pins(pins, condition)
    mask = _mask([pin for pin in pins if pin.value is None], task).to(condition.device)
    if law := _law_of_all_points(task, extra):
        mask = torch.ones_like(mask)
    values = torch.where(mask, condition.detach().double(), 0.0)
    for pin in pins:
        values = pin.prescribe(values)
    if bad := int((~values.isfinite()).sum()):
        quantity = f"values ({law} takes its value from them)" if law else "pinned values"
        labels = (task.pinned, *(pin.label for pin in pins if extra and pin in extra.parts))
        raise SapcError(
            f"{bad} of the condition's {len(values) * int(mask.sum())} {quantity} are NaN or infinite; "
            f"give finite ones (pinned are: {', '.join(filter(None, labels))})"
        )
    return values


def merge_sensors(condition: Tensor | Dataset | Fields, sensors: Sensors, task: Task) -> tuple[Tensor, Pin]:
    """Put measurements into conditions.

    Args:
        condition: Conditions, on the grid of the task.
        sensors: Measurements, of one sample or of as many as there are conditions.
        task: The task.

    Returns:
        The conditions with the measurements, and the pin that holds them.

    Raises:
        SapcError: The numbers of samples differ, or a measurement contradicts the condition.
    """
    values = _tensor(condition, task).double()
    task.grid.check(sensors.values, "sensors' array")
    if len(sensors.values) > 1 and len(values) > 1 and len(sensors.values) != len(values):
        raise SapcError(
            f"there are sensors of {len(sensors.values)} samples for {len(values)} conditions; give as "
            "many, or one for all"
        )
    pinned = pinned_mask(task)
    overlap = pinned & sensors.mask
    difference = (sensors.values - values)[:, overlap].abs()
    tolerance = 1e-4 * sensors.values[:, overlap].abs()
    if difference.numel() and float((difference - tolerance).max()) > 1e-6:
        raise SapcError(
            f"the condition already pins {int(overlap.sum())} of the sensors' points, and differs there by "
            f"up to {float(difference.max()):.3g}; leave out these sensors, or correct the condition"
        )
    shape = (max(len(values), len(sensors.values)), *task.grid.shape)
    values = torch.where(sensors.mask & ~pinned, sensors.values.expand(shape), values.expand(shape))
    return values, Pin(sensors.mask, label="sensors")


def _parts(task: Task, extra: ConstraintTerm | None) -> tuple[ConstraintTerm, ...]:
    return (*task.constraint.parts, *(extra.parts if extra is not None else ()))


def _pins(task: Task, extra: ConstraintTerm | None) -> list[Pin]:
    return [part for part in _parts(task, extra) if isinstance(part, Pin)]


def _mask(pins: list[Pin], task: Task) -> Tensor:
    mask = torch.zeros(task.grid.shape, dtype=torch.bool)
    for pin in pins:
        mask |= pin.mask(task.grid.shape)
    return mask


def _law_of_all_points(task: Task, extra: ConstraintTerm | None) -> str:
    """Return the kind of a law whose value is that of the conditioning field, or an empty string."""
    laws = (part for part in _parts(task, extra) if isinstance(part, Constraint))
    return next((type(law).__name__ for law in laws if isinstance(law.value, str)), "")


def _tensor(condition: Tensor | Dataset | Fields, task: Task) -> Tensor:
    """Return the fields of a condition, after a check that they are on the task's grid."""
    if isinstance(condition, Dataset):
        if condition.task != task.name:
            raise SapcError(f"the condition is a dataset of {condition.task}, not of {task.name}")
        condition = condition.fields
    if isinstance(condition, Fields):
        condition = condition.values
    shape = task.grid.shape
    if not isinstance(condition, Tensor) or condition.is_complex() or condition.dtype == torch.bool:
        got = str(condition.dtype) if isinstance(condition, Tensor) else type(condition).__name__
        raise SapcError(
            f"the condition must be a real tensor or a Dataset, got {got}; {tensor_advice(condition)}"
        )
    if tuple(condition.shape[1:]) != shape or len(condition) == 0:
        sizes = ", ".join(map(str, shape))
        raise SapcError(
            f"the condition has shape {tuple(condition.shape)}; expected (1, {sizes}), or one per sample, "
            f"(n, {sizes}), whole fields, NaN where nothing is pinned; for another resolution give grid= as "
            "well"
        )
    return condition


# -- samples --


@runtime_checkable
class SamplingCallback(Protocol):
    """What records sampling, batch by batch, as `sapc.evaluation.trajectory.TrajectoryRecorder` does."""

    def wrap(self, v: Velocity) -> Velocity:
        """Wrap the velocity of a batch."""

    def finish(self, fields: Tensor, H: Manifold, *, count: int | None = None) -> None:
        """End a batch.

        Args:
            fields: Its fields.
            H: Their manifolds.
            count: Number of fields that are no copies.
        """


class Residuals(NamedTuple):
    """Largest deviations over all samples, in the units of the fields.

    Attributes:
        local: Deviation from pinned values.
        balance: Deviation from the laws.
    """

    local: float
    balance: float


@dataclass(frozen=True, eq=False)
class SamplingInfo:
    """What `Model.sample` did.

    Attributes:
        method: Name of the method that sampled.
        sampler: Name of the stepper.
        steps: Number of steps.
        seed: Seed of the source; with a generator the one that it gave.
        evaluations: Network evaluations per field.
        seconds: Wall time of the call, without the residuals.
        residuals: Largest deviations from the constraints; None without a condition.
        condition: The conditions: `condition.values` are their pinned values, `condition.manifold` the
            manifold, and `sample` takes it again. None if there was none.
    """

    method: str
    sampler: str
    steps: int
    seed: int
    evaluations: int
    seconds: float
    residuals: Residuals | None
    condition: Condition | None = field(repr=False)


@dataclass(frozen=True)
class Sampling:
    """A plan of what is sampled, with everything decided.

    Attributes:
        condition: The conditions, which also have the task.
        method: The method that samples.
        n: Number of fields.
        size: Number of fields at a time.
        sampler: Stepper and times.
        steps: Number of steps.
        seed: Seed of the source.
        length: Length scale of the source.
        clip_range: Range that estimates of the solution are clipped to, if they are.
    """

    condition: Condition
    method: Method
    n: int
    size: int
    sampler: Sampler
    steps: int
    seed: int
    length: float
    clip_range: tuple[float, float] | None = None

    @property
    def evaluations(self) -> int:
        """Network evaluations per field."""
        return self.method.evaluations(self.steps, self.sampler)

    def run(
        self, network: CountedNetwork, execution: Execution, callback: SamplingCallback | None = None
    ) -> Tensor:
        """Draw all fields: n / k in a row on each of the k manifolds of the condition.

        Args:
            network: The network.
            execution: What runs it on its device.
            callback: What records every batch.

        Returns:
            Fields `(n, *grid)`, float64 on the CPU.
        """
        task, H = self.condition.task, self.condition.normalized_manifold
        out = torch.empty(self.n, *task.grid.shape, dtype=torch.float64)
        draws = _Draws(self)
        batches = draws.batches()
        batch, count = next(batches, None), 0
        last: _HostCopy | None = None
        while batch is not None:
            H_batch = H if len(H) == 1 else H[batch.rows // (self.n // len(H))]
            fields = self._sample(batch, network, execution, H_batch, draws, callback)
            count += 1
            # A run that was recorded has evaluated it without a word.
            network.report(max(network.evaluations, count * self.evaluations))
            if callback is not None:
                callback.finish(fields, H_batch, count=batch.size)
            copy = _HostCopy(task.denormalize(fields[: batch.size]), batch)
            if copy.event is None:
                copy.store(out)
            else:
                # While a GPU is at work, the batch before is stored, and the next one drawn.
                if last is not None:
                    last.store(out)
                last = copy
            batch = next(batches, None)
        if last is not None:
            last.store(out)
        return out

    def describe(self, fields: Tensor, seconds: float, is_conditioned: bool) -> SamplingInfo:
        """Return a record of the call.

        Args:
            fields: The samples.
            seconds: Wall time of the call.
            is_conditioned: Whether a condition was given.

        Returns:
            The record, with the residuals of the samples.
        """
        condition = self.condition if is_conditioned else None
        residuals = None if condition is None else Residuals(**worst_residuals(condition.manifold, fields))
        return SamplingInfo(
            self.method.name,
            self.sampler.name,
            self.steps,
            self.seed,
            self.evaluations,
            seconds,
            residuals,
            condition,
        )

    @property
    def _is_repeatable(self) -> bool:
        """Whether a run is the same operations each time: no draws on the way, no method of a user's own."""
        method, sampler = self.method, self.sampler
        if is_user_defined(method.name) or not isinstance(sampler.times, Shift | Curve):
            return False
        is_known = any(sampler.stepper is stepper for stepper in STEPPERS.values())
        return is_known and method.accepts_sampler and not method.redraws_source

    def _sample(
        self,
        batch: _Batch,
        network: CountedNetwork,
        execution: Execution,
        H: Manifold,
        draws: _Draws,
        callback: SamplingCallback | None,
    ) -> Tensor:
        """Move one batch of draws to fields."""
        redraw = draws.redraws_of(batch)
        run = _Run(
            self.method, self.method.bind_source(redraw, self.sampler), self.steps, self.clip_range, network
        )
        if callback is None and self._is_repeatable and H.is_recordable:
            key = self.method, self.sampler, self.steps, self.clip_range, H.identity
            template = H if len(H) == 1 else H[:1]
            fields = execution.run(
                key, lambda v1, *tensors: run(v1, template.with_tensors(*tensors)), batch.v1, *H.tensors
            )
            # What may wait is left out of a run.
            if self.method.exact == "all" and not H.finishes_ahead:
                fields = H.finish(fields)
        else:
            fields = run(batch.v1, H, callback)
        if not isinstance(fields, Tensor) or fields.shape != batch.v1.shape:
            got = tuple(fields.shape) if isinstance(fields, Tensor) else type(fields).__name__
            raise SapcError(
                f"the sampler of {self.method.name} must return fields {tuple(batch.v1.shape)}, one per "
                f"draw, got {got}"
            )
        return fields


class _Run(NamedTuple):
    """A method with its settings; it knows no condition, and so keeps none in memory while it is recorded."""

    method: Method
    sample: SampleFunction
    steps: int
    clip_range: tuple[float, float] | None
    network: CountedNetwork

    def __call__(self, v1: Tensor, H: Manifold, callback: SamplingCallback | None = None) -> Tensor:
        """Move draws to fields."""
        v = self.method.velocity(self.network, H)
        v = v if self.clip_range is None else clip_endpoint(v, *self.clip_range)
        v = v if callback is None else callback.wrap(v)
        return self.sample(v, v1, H, self.steps)


class _Batch(NamedTuple):
    """Draws `v1` of the source: the numbers of their fields, and how many of them are no copies."""

    rows: Tensor
    size: int
    v1: Tensor


class _HostCopy:
    """Fields on their way to the CPU, while a GPU goes on."""

    def __init__(self, fields: Tensor, batch: _Batch) -> None:
        self.fields, self.batch, self.event = fields, batch, None
        if fields.is_cuda:
            self.fields = torch.empty(fields.shape, dtype=fields.dtype, pin_memory=True)
            self.fields.copy_(fields, non_blocking=True)
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.event.record(torch.cuda.current_stream(fields.device))

    def store(self, out: Tensor) -> None:
        """Wait, and write the fields to their place among all."""
        if self.event is not None:
            self.event.synchronize()
        out[int(self.batch.rows[0]) :][: self.batch.size] = self.fields


class _Draws:
    """Draws of the source; the k-th redraw of a field depends on seed, field and k, not on batches."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.generator = torch.Generator().manual_seed(source.derive_seed("sample", sampling.seed))
        self.redraws: list[torch.Generator] = []

    def batches(self) -> Iterator[_Batch]:
        """Draw the batches, filled up with copies of the last field unless samples depend on each other."""
        n, size = self.sampling.n, self.sampling.size
        for first in range(0, n, size):
            n_fields = min(size, n - first)
            length = n_fields if self.sampling.method.couples_batch else size
            rows = torch.arange(first, first + length).clamp(max=n - 1)
            yield _Batch(rows, n_fields, self._draw(rows, n_fields, self.generator))

    def _draw(self, rows: Tensor, count: int, g: torch.Generator) -> Tensor:
        condition, length = self.sampling.condition, self.sampling.length
        device = condition.values.device
        v1 = source.sample(condition.task.grid, count, g, length=length, device=device, dtype=torch.float64)
        copies = v1[-1:].expand(len(rows) - count, *v1.shape[1:])
        return torch.cat((v1, copies)) if len(copies) else v1

    def redraws_of(self, batch: _Batch) -> Callable[[], Tensor]:
        """Return a function that redraws the source of a batch; its generators go on in the next one."""
        calls = itertools.count()

        def draw() -> Tensor:
            if (call := next(calls)) == len(self.redraws):
                seed = source.derive_seed("redraw", self.sampling.seed, call)
                self.redraws.append(torch.Generator().manual_seed(seed))
            return self._draw(batch.rows, batch.size, self.redraws[call])

        return draw


class CountedNetwork:
    """A network that gets float32, and whose progress is reported.

    Args:
        network: The network.
        n: Number of fields.
        calls: Evaluations that are to come.
        progress: Called with the share of the n fields that is done.
    """

    def __init__(self, network: Callable[..., Tensor], n: int, calls: int, progress: Progress | None) -> None:
        self.network, self.n, self.calls, self.progress = network, n, calls, progress
        self.evaluations = 0

    def __call__(self, vt: Tensor, t: Tensor, *conditioning: Tensor) -> Tensor:
        """Evaluate the velocity."""
        velocity = self.network(vt.float(), t, *(x.float() for x in conditioning))
        # What is repeated for a gradient does not count.
        self.report(self.evaluations + (not torch.is_grad_enabled()))
        return velocity

    def report(self, evaluations: int) -> None:
        """Report that so many evaluations are done."""
        self.evaluations = evaluations
        if self.progress is not None:
            self.progress(min(self.n, self.n * evaluations // self.calls), self.n)


def _warn_if_violated(fields: Tensor, H: Manifold, has_extra: bool) -> None:
    """Warn of samples that are off the laws, as where pins and laws contradict each other."""
    if bad := int((~_is_met(fields, H)).sum()):
        reason = (
            "what was added contradicts them"
            if has_extra
            else "they contradict the pinned values or each other"
        )
        distance = float(H.balance(fields).abs().max())
        message = f"{bad} of {len(fields)} samples are off the laws by up to {distance:.2g}: {reason}"
        warnings.warn(message, SapcWarning, stacklevel=4)


def _is_met(fields: Tensor, H: Manifold) -> Tensor:
    """Tell of each field whether it satisfies the constraints, with some slack."""
    if H.affine:
        return H.is_met(fields, slack=1e3)
    return H.balance(fields).abs().amax(1) <= 1e-6 * (1 + H.fields.abs().max())


def check_finite(fields: Tensor, method: Method) -> None:
    """Refuse samples that contain NaN or infinity.

    Args:
        fields: Samples `(n, *grid)`.
        method: The method that sampled.

    Raises:
        SapcError: Some are not finite.
    """
    # A sum is one pass, and finite where all is.
    if bool(fields.sum().isfinite()):
        return
    if bad := int((~fields.flatten(1).isfinite().all(1)).sum()):
        raise SapcError(
            f"{bad} of {len(fields)} samples contain NaN or infinity: the network is not usable with "
            f"{method.name}; train longer, or with a smaller lr or in float32"
        )
