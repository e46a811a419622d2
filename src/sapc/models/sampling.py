"""Conditions, and sampling batch by batch: from draws of the source to fields.

A condition gives values of which only the pinned ones count; it is checked once, when it is bound to a task, and its manifold is made once.

The source is drawn on the CPU from the seed, one field after the other, so a seed means the same noise on every device, and the noise of
field i depends neither on how many are drawn nor on how many at a time (the field itself does, to the network's rounding). States are
float64, whatever the precision of the network, so the samples of an exact method satisfy their constraints to the rounding of float64.

Batches are equally large; the last one is filled up with copies, so that a compiled network sees one shape only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..constraints import Manifold
from ..constraints._bound import check_pins
from ..constraints.terms import Constraint, ConstraintTerm, Pin
from ..data import Fields, Sensors
from ..errors import SapcError, SapcWarning
from ..flow import source
from ..flow.path import Velocity, clip_endpoint
from ..methods import Method
from ..tasks import Dataset, Task
from ..training.config import TrainingConfig

Progress = Callable[[int, int], None]
"""Called with (fields done, fields in all); a partly integrated field counts fractionally."""
CHUNK = 2**22  # grid points whose residuals are looked at together

# -- conditions --


@dataclass(frozen=True, eq=False)
class Condition:
    """Conditions that are known to fit a task, on the device of a model.

    values    float64, zero where nothing counts
    extra_constraints  constraints besides the task's
    run       of the model that they are bound to
    """

    task: Task
    values: Tensor
    extra_constraints: ConstraintTerm | None
    run: TrainingConfig

    @cached_property
    def manifold(self) -> Manifold:
        """The manifolds in the units of the fields."""
        return self.task.manifold(self.values, self.extra_constraints, solver=self.run.solver(self.task))

    @cached_property
    def normalized_manifold(self) -> Manifold:
        """The manifolds in the network's units."""
        if self.task.normalizer.is_identity:
            return self.manifold
        values = self.task.normalize(self.values)
        return self.task.normalized_manifold(
            values, self.extra_constraints, solver=self.run.solver(self.task)
        )

    def restore(self, fields: Tensor) -> Tensor:
        """Restore pinned values to the last bit where a task's units came in between; warn of samples that are off the laws."""
        has_more, has_units = self.extra_constraints is not None, not self.task.normalizer.is_identity
        if not has_more and not has_units:
            return fields
        H = repeat(self.manifold.to("cpu") if self.values.is_cuda else self.manifold, len(fields))
        if has_units:
            fields = torch.where(H.pinned, H.fields, fields)
        # On a curved manifold the projection at the end of the sampler has said so already.
        if has_more or H.affine:
            _warn_if_off(fields, H, has_more)
        return fields


def repeat(H: Manifold, n: int) -> Manifold:
    """Repeat each of k manifolds for n = k m fields, m times in a row; a single one serves all."""
    return H if len(H) in (1, n) else H[torch.arange(n) // (n // len(H))]


def worst_residuals(H: Manifold, fields: Tensor) -> dict[str, float]:
    """The largest deviation from a pinned value and from the balance law, over all samples."""
    H, size = repeat(H, len(fields)), max(1, CHUNK // fields[0].numel())
    worst = {"local": 0.0, "balance": 0.0}
    for first in range(0, len(fields), size):
        part = fields[first : first + size].to(H.fields.device)
        own = H if len(H) == 1 else H[first : first + size]
        for name, rows in (("local", own.local(part)), ("balance", own.balance(part))):
            worst[name] = max(worst[name], float(rows.abs().max()) if rows.numel() else 0.0)
    return worst


def pinned_mask(task: Task) -> Tensor:
    """The pinned points of a task's grid, boolean."""
    return _mask(_pins(task, None), task)


def given_mask(task: Task) -> Tensor:
    """The points whose values a condition gives: pinned, and not prescribed by the physics."""
    return _mask([pin for pin in _pins(task, None) if pin.value is None], task)


def pinned_values(
    condition: Tensor | Dataset | Fields, task: Task, extra: ConstraintTerm | None = None
) -> Tensor:
    """The condition in float64, zero where nothing counts.

    Refuses another shape, NaN where it counts, and pins that contradict each other. Values that a pin prescribes
    itself need not be given; given ones must agree with it (see `check_pins`). Where a law takes
    its value from the condition, every point counts.
    """
    condition = _tensor(condition, task)
    pins = _pins(task, extra)
    check_pins(pins, condition)
    given = _mask([pin for pin in pins if pin.value is None], task).to(condition.device)
    if whole := _wants_all(task, extra):
        given = torch.ones_like(given)
    values = torch.where(given, condition.detach().double(), 0.0)
    for pin in pins:
        values = pin.prescribed(values)
    if bad := int((~values.isfinite()).sum()):
        what = f"values ({whole} takes its value from them)" if whole else "pinned values"
        pinned = ", ".join(
            filter(None, (task.pinned, *(p.label for p in pins if extra and p in extra.parts)))
        )
        raise SapcError(
            f"{bad} of the condition's {len(values) * int(given.sum())} {what} are NaN or infinite; "
            f"give finite ones (pinned are: {pinned})"
        )
    return values


def with_sensors(condition: Tensor | Dataset | Fields, sensors: Sensors, task: Task) -> tuple[Tensor, Pin]:
    """Conditions with what sensors measured put in, and the pin that holds them there; sensors may not contradict the condition."""
    values = _tensor(condition, task).double()
    task.grid.check(sensors.values, "sensors' array")
    if len(sensors.values) > 1 and len(values) > 1 and len(sensors.values) != len(values):
        raise SapcError(
            f"there are sensors of {len(sensors.values)} samples for {len(values)} conditions; give as many, or one for all"
        )
    both = pinned_mask(task) & sensors.mask
    off = (sensors.values - values)[:, both].abs()
    if off.numel() and float((off - 1e-4 * sensors.values[:, both].abs()).max()) > 1e-6:
        raise SapcError(
            f"the condition already pins {int(both.sum())} of the sensors' points, and differs there by up to {float(off.max()):.3g}; "
            "leave out these sensors, or correct the condition"
        )
    shape = (max(len(values), len(sensors.values)), *task.grid.shape)
    mixed = torch.where(sensors.mask & ~pinned_mask(task), sensors.values.expand(shape), values.expand(shape))
    return mixed, Pin(sensors.mask, label="sensors")


def _parts(task: Task, extra: ConstraintTerm | None) -> tuple[ConstraintTerm, ...]:
    return (*task.constraint.parts, *(extra.parts if extra is not None else ()))


def _pins(task: Task, extra: ConstraintTerm | None) -> list[Pin]:
    return [part for part in _parts(task, extra) if isinstance(part, Pin)]


def _mask(pins: list[Pin], task: Task) -> Tensor:
    mask = torch.zeros(task.grid.shape, dtype=torch.bool)
    for pin in pins:
        mask |= pin.mask(task.grid.shape)
    return mask


def _wants_all(task: Task, extra: ConstraintTerm | None) -> str:
    """The kind of a law whose value is that of the conditioning field, if there is one."""
    laws = (part for part in _parts(task, extra) if isinstance(part, Constraint))
    return next((type(law).__name__ for law in laws if isinstance(law.value, str)), "")


def _tensor(condition: Tensor | Dataset | Fields, task: Task) -> Tensor:
    """The fields of a condition, known to be on the task's grid."""
    if isinstance(condition, Dataset):
        if condition.task != task.name:
            raise SapcError(f"the condition is a dataset of {condition.task}, not of {task.name}")
        condition = condition.fields
    if isinstance(condition, Fields):
        condition = condition.values
    shape = task.grid.shape
    if not isinstance(condition, Tensor) or condition.is_complex() or condition.dtype == torch.bool:
        got = str(condition.dtype) if isinstance(condition, Tensor) else type(condition).__name__
        raise SapcError(f"the condition must be a real tensor or a Dataset, got {got}; use torch.as_tensor")
    if tuple(condition.shape[1:]) != shape or len(condition) == 0:
        wanted = ", ".join(map(str, shape))
        raise SapcError(
            f"the condition has shape {tuple(condition.shape)}; expected (1, {wanted}), or one per sample, (n, {wanted}); "
            "for another resolution give grid= as well"
        )
    return condition


# -- samples --


@runtime_checkable
class SamplingCallback(Protocol):
    """Looks on while fields are sampled, batch by batch: `sapc.evaluation.trajectory.TrajectoryRecorder` is one."""

    def wrap(self, v: Velocity) -> Velocity:
        """Wrap the velocity of a batch."""

    def finish(self, fields: Tensor, H: Manifold, *, count: int | None = None) -> None:
        """End a batch: its fields, their manifolds, and how many of them are no copies."""


@dataclass(frozen=True)
class Sampling:
    """What is sampled, with everything decided.

    n, size   fields in all and at a time
    length    length scale of the source
    clip_range  where estimates of the solution are cut off, if they are
    """

    condition: Condition
    method: Method
    n: int
    size: int
    steps: int
    seed: int
    length: float
    clip_range: tuple[float, float] | None = None

    def run(self, network: Callable[..., Tensor], callback: SamplingCallback | None = None) -> Tensor:
        """Draw all fields, float64 on the CPU: n / k in a row on each of the k manifolds of the condition."""
        task, H = self.condition.task, self.condition.normalized_manifold
        out = torch.empty(self.n, *task.grid.shape, dtype=torch.float64)
        draws = _Draws(self)
        batches = draws.batches()
        batch = next(batches, None)
        while batch is not None:
            own = H if len(H) == 1 else H[batch.rows // (self.n // len(H))]
            fields = self._sample(batch, network, own, draws, callback)
            # The next batch is drawn while a GPU is at work.
            following = next(batches, None)
            if callback is not None:
                callback.finish(fields, own, count=batch.new)
            out[int(batch.rows[0]) :][: batch.new] = task.denormalize(fields[: batch.new]).cpu()
            batch = following
        return out

    def _sample(
        self,
        batch: _Batch,
        network: Callable[..., Tensor],
        H: Manifold,
        draws: _Draws,
        callback: SamplingCallback | None,
    ) -> Tensor:
        """Move one batch of draws to fields."""
        v = self.method.velocity(network, H)
        v = v if self.clip_range is None else clip_endpoint(v, *self.clip_range)
        v = v if callback is None else callback.wrap(v)
        fields = self.method.bind_source(draws.redraws_of(batch))(v, batch.v1, H, self.steps)
        if not isinstance(fields, Tensor) or fields.shape != batch.v1.shape:
            got = tuple(fields.shape) if isinstance(fields, Tensor) else type(fields).__name__
            raise SapcError(
                f"the sampler of {self.method.name} must return fields {tuple(batch.v1.shape)}, one per draw, got {got}"
            )
        return fields


class _Batch(NamedTuple):
    """Draws of the source: the numbers of their fields, and how many of them are no copies."""

    rows: Tensor
    new: int
    v1: Tensor


class _Draws:
    """Draws of the source, in batches; the k-th redraw of a field depends on seed, field and k, not on batches."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.generator = torch.Generator().manual_seed(source.seed_of("sample", sampling.seed))
        self.redraws: list[torch.Generator] = []

    def batches(self) -> Iterator[_Batch]:
        """Draw the batches, each filled up with copies of its last field unless its samples depend on each other."""
        n, size = self.sampling.n, self.sampling.size
        for first in range(0, n, size):
            new = min(size, n - first)
            rows = torch.arange(first, first + (new if self.sampling.method.couples_batch else size)).clamp(
                max=n - 1
            )
            yield _Batch(rows, new, self._draw(rows, new, self.generator))

    def _draw(self, rows: Tensor, new: int, g: torch.Generator) -> Tensor:
        condition, length = self.sampling.condition, self.sampling.length
        v1 = source.sample(condition.task.grid, new, g, length=length, dtype=torch.float64)
        return v1[rows - rows[0]].to(condition.values.device)

    def redraws_of(self, batch: _Batch) -> Callable[[], Tensor]:
        """Return a function that draws the source of a batch afresh; each of its generators goes on in the next batch."""
        calls = count()

        def draw() -> Tensor:
            if (call := next(calls)) == len(self.redraws):
                seed = source.seed_of("redraw", self.sampling.seed, call)
                self.redraws.append(torch.Generator().manual_seed(seed))
            return self._draw(batch.rows, batch.new, self.redraws[call])

        return draw


def count_evaluations(
    network: Callable[..., Tensor], n: int, calls: int, progress: Progress | None
) -> Callable[..., Tensor]:
    """Return the network, in float32, telling of its progress: of n fields the share of evaluations that are done."""
    done = 0

    def v(vt: Tensor, t: Tensor, *shown: Tensor) -> Tensor:
        nonlocal done
        out = network(vt.float(), t, *(x.float() for x in shown))
        done += not torch.is_grad_enabled()  # what is repeated for a gradient does not count
        if progress is not None:
            progress(min(n, n * done // calls), n)
        return out

    return v


def _warn_if_off(fields: Tensor, H: Manifold, has_more: bool) -> None:
    """Pins and laws may contradict each other: then no field has both, and samples are off the laws."""
    if bad := int((~_is_met(fields, H)).sum()):
        why = (
            "what was added contradicts them"
            if has_more
            else "they contradict the pinned values or each other"
        )
        off = float(H.balance(fields).abs().max())
        message = f"{bad} of {len(fields)} samples are off the laws by up to {off:.2g}: {why}"
        warnings.warn(message, SapcWarning, stacklevel=4)


def _is_met(fields: Tensor, H: Manifold) -> Tensor:
    """Say of each field whether it satisfies the constraints, with some slack."""
    if H.affine:
        return H.is_met(fields, slack=1e3)
    return H.balance(fields).abs().amax(1) <= 1e-6 * (1 + H.fields.abs().max())


def check_finite(fields: Tensor, method: Method) -> None:
    """Refuse samples that contain NaN or infinity."""
    if bad := int((~fields.flatten(1).isfinite().all(1)).sum()):
        raise SapcError(
            f"{bad} of {len(fields)} samples contain NaN or infinity: the network is not usable with {method.name}; "
            "train longer, or with a smaller lr or in float32"
        )
