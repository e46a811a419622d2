"""Sampling, batch by batch: from draws of the source to fields.

The source is drawn on the CPU from the seed, one field after the other, so a seed means the same noise on every device, and the noise of
field i depends neither on how many are drawn nor on how many at a time (the field itself does, to the network's rounding). States are
float64, whatever the precision of the network, so the samples of an exact method satisfy their constraints to the rounding of float64.

Batches are equally large; the last one is filled up with copies, so that a compiled network sees one shape only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..constraints import Manifold
from ..constraints.terms import Stackable
from ..data import Fields
from ..errors import SapcError, SapcWarning
from ..flow import source
from ..flow.path import Velocity, within
from ..methods import Method
from ..tasks import Dataset, Task
from .condition import per_sample, pinned_mask, pinned_values

Progress = Callable[[int, int], None]
"""Called with (fields done, fields in all); a partly integrated field counts fractionally."""


@runtime_checkable
class Watcher(Protocol):
    """Looks on while fields are sampled, batch by batch: `sapc.trajectory.Watch` is one."""

    def around(self, v: Velocity) -> Velocity:
        """Wrap the velocity of a batch."""

    def finish(self, fields: Tensor, H: Manifold, *, keep: int | None = None) -> None:
        """End a batch: its fields, their manifolds, and how many of them are no copies."""


@dataclass(frozen=True)
class Sampling:
    """What is sampled, with everything decided.

    n, size   fields in all and at a time
    length    length scale of the source
    bounds    where estimates of the solution are cut off, if they are
    """

    task: Task
    method: Method
    n: int
    size: int
    steps: int
    seed: int
    length: float
    device: torch.device
    bounds: tuple[float, float] | None = None

    def run(self, network: Callable[..., Tensor], H: Manifold, watch: Watcher | None = None) -> Tensor:
        """Draw all fields, float64 on the CPU; H is one manifold for all, or k of them, for n / k fields in a row each."""
        out = torch.empty(self.n, *self.task.grid.shape, dtype=torch.float64)
        draws = _Draws(self)
        batch = draws.next_batch()
        while batch is not None:
            own = H if len(H) == 1 else H[batch.rows // (self.n // len(H))]
            fields = self._sample(batch, network, own, draws, watch)
            # The next batch is drawn while a GPU is at work.
            following = draws.next_batch()
            if watch is not None:
                watch.finish(fields, own, keep=batch.new)
            out[int(batch.rows[0]) :][: batch.new] = self.task.denormalize(fields[: batch.new]).cpu()
            batch = following
        return out

    def _sample(
        self, batch: _Batch, network: Callable[..., Tensor], H: Manifold, draws: _Draws, watch: Watcher | None
    ) -> Tensor:
        """Move one batch of draws to fields."""
        v = self.method.velocity(network, H)
        v = v if self.bounds is None else within(v, *self.bounds)
        v = v if watch is None else watch.around(v)
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
        self.sampling, self.first = sampling, 0
        self.generator = torch.Generator().manual_seed(source.seed_of("sample", sampling.seed))
        self.redraws: list[torch.Generator] = []

    def next_batch(self) -> _Batch | None:
        """Return the next batch, filled up with copies of its last field unless its samples depend on each other."""
        asked = self.sampling
        first, new = self.first, min(asked.size, asked.n - self.first)
        if new <= 0:
            return None
        self.first += asked.size
        rows = torch.arange(first, first + (new if asked.method.joint else asked.size)).clamp(max=asked.n - 1)
        return _Batch(rows, new, self._draw(rows, new, self.generator))

    def _draw(self, rows: Tensor, new: int, g: torch.Generator) -> Tensor:
        asked = self.sampling
        v1 = source.sample(asked.task.grid, new, g, length=asked.length, dtype=torch.float64)
        return v1[rows - rows[0]].to(asked.device)

    def redraws_of(self, batch: _Batch) -> Callable[[], Tensor]:
        """Return a function that draws the source of a batch afresh; each of its generators goes on in the next batch."""
        return partial(next, self._redraw(batch.rows, batch.new))

    def _redraw(self, rows: Tensor, new: int) -> Iterator[Tensor]:
        calls = 0
        while True:
            if calls == len(self.redraws):
                seed = source.seed_of("redraw", self.sampling.seed, calls)
                self.redraws.append(torch.Generator().manual_seed(seed))
            calls += 1
            yield self._draw(rows, new, self.redraws[calls - 1])


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


def restore_pinned(
    fields: Tensor, condition: Tensor | Dataset | Fields, task: Task, also: Stackable | None
) -> Tensor:
    """Restore pinned values to the last bit where a task's units came in between; warn of samples that are off the laws."""
    if also is None and task.normalizer.is_identity:
        return fields
    values = per_sample(pinned_values(condition, task, also).cpu(), len(fields))
    if not task.normalizer.is_identity:
        fields = torch.where(pinned_mask(task, also), values, fields)
    H = task.manifold(values, also)
    # On a curved manifold the projection at the end of the sampler has said so already.
    if also is not None or H.affine:
        _warn_if_off(fields, H, also is not None)
    return fields


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
