"""A trained model: weights from a run folder, and sampling with them.

    model = sapc.load("runs/heat-sapc")                    # or the name of a model that comes with the package
    fields = model.sample(n=64, condition=data.fields[:1], steps=100, seed=0)

The source is drawn on the CPU from the seed, one field after the other, so a seed means the same noise on every device, and the noise of
field i depends neither on how many are drawn nor on how many at a time (the field itself does, to the network's rounding). States are
float64, whatever the precision of the network, so the samples of an exact method satisfy their constraints to the rounding of float64.

Batches are equally large; the last one is filled up with copies, so that a compiled network sees one shape only.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, SupportsIndex, runtime_checkable

import torch
from torch import Tensor

from .._memory import allocating, require
from ..constraints import Manifold
from ..constraints.terms import Stackable
from ..data import Fields, Sensors
from ..errors import SapcError, SapcWarning, explain_misuse, real, whole
from ..flow import source
from ..flow.path import Velocity, within
from ..methods import Method, get_method
from ..nn.cuda_graph import Replayed
from ..nn.fno import FNO, matmul_precision
from ..tasks import Dataset, Task
from ..training.config import Run
from ..training.distributed import find_device
from ..training.run_folder import (
    OPTIMISER,
    Folder,
    check_shapes,
    load_tensors,
    load_weights,
    range_of,
    steps_of,
)
from ..training.shipped import find
from ..training.step import seed_of
from .condition import per_sample, pinned_mask, pinned_values, with_sensors
from .hub import REPOSITORY, fetched, kept_physics, scores_beside, write_model

BATCH = {("cpu", 2): 8, ("cpu", 3): 4, ("cuda", 2): 256, ("cuda", 3): 32}
MARGIN = 0.1  # of the data's range, how far estimates that are cut off may leave it
JOINT = {2: 32, 3: 16}  # as published, where the batch is one problem and so part of the method
COMPILE_FROM = 1000  # network evaluations in sight from which compiling on a GPU is worth its time


@runtime_checkable
class Watcher(Protocol):
    """Looks on while fields are sampled, batch by batch: `sapc.trajectory.Watch` is one."""

    def around(self, v: Velocity) -> Velocity:
        """Wrap the velocity of a batch."""

    def finish(self, fields: Tensor, H: Manifold, *, keep: int | None = None) -> None:
        """End a batch: its fields, their manifolds, and how many of them are no copies."""


Progress = Callable[[int, int], None]
"""Called with (fields done, fields in all); fields in the making count in part."""


@explain_misuse
def load(
    path: str | os.PathLike[str],
    device: str | torch.device = "auto",
    compiled: bool | None = None,
    *,
    physics: Any = None,
    data: Fields | str | os.PathLike[str] | None = None,
    reading: Mapping[str, Any] | None = None,
) -> Model:
    """The model in a run folder, or the one of that name that comes with the package, on a device (`auto`: the GPU where there is one).

    compiled    whether the network is compiled; unless given it is on a GPU, once many evaluations are asked for
    physics     of a model of your own data: the file, function or constraints it was trained with, which a folder does not hold
    data        its file or fields, where splits are wanted again
    reading     how that file and those of conditions are read, as arguments of `read_fields`, where that is not as in the training

    Physics and data belong to this model alone. Physics whose text has changed since the training is a warning; other data are refused.
    An unfinished training gives the weights of its last checkpoint, with a warning.
    """
    folder = Folder(find(path))
    run, where = folder.run().attach(physics, data, reading), find_device(str(device))
    network, step, about = read_network(path, folder, run)
    model = Model(run, network, where, compiled=compiled, step=step, span=about.get("range"), about=about)
    model.folder = folder
    return model


def read_network(path: str | os.PathLike[str], folder: Folder, run: Run) -> tuple[FNO, int, dict[str, Any]]:
    """The network in a run folder, that was given as `path`: with its weights, their training steps, and what was noted of them."""
    if folder.trained:
        file = folder.weights
    elif folder.checkpoint.is_file():
        file = folder.checkpoint
    else:
        raise SapcError(
            f"{path} holds no weights yet: its training was stopped before the first checkpoint; "
            f"continue it with `sapc train --resume {path}`"
        )
    check_shapes(run, file)
    known = folder.known_digest() if folder.trained else None
    tensors, about = load_tensors(file, sha256=known)
    step = steps_of(about, file)
    range_of(about, file)
    network = run.make_network()
    load_weights(network, {k: v for k, v in tensors.items() if not k.startswith(OPTIMISER)}, file)
    if step < run.steps:
        message = f"{path} is not trained to its end: these are the weights of step {step} of {run.steps}"
        warnings.warn(message, SapcWarning, stacklevel=3)
    return network, step, about


@explain_misuse
class Model:
    """A network with the run that it was trained in.

    run         the run's settings
    task        the task, on the grid of the training
    method      the method it was trained with, which also samples unless another one is named
    network     the velocity, in evaluation mode, on `device`
    step        training steps taken
    span        the smallest and the largest value of the training data, if known
    about       what else was noted at the end of the training
    folder      where it was loaded from, if it was
    """

    def __init__(
        self,
        run: Run,
        network: FNO,
        device: torch.device,
        *,
        compiled: bool | None = None,
        step: int | None = None,
        span: Sequence[float] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        if device.type not in ("cpu", "cuda"):
            raise SapcError(f"a model lives on cpu or cuda, not on {device}")
        self.run, self.device, self.step = run.attach(), device, run.steps if step is None else step
        self.folder: Folder | None = None
        self.span = None
        if span is not None:
            if len(span) != 2:
                raise SapcError(f"the range of the training data are two numbers, got {span!r:.40}")
            self.span = (
                real(span[0], "range of the training data"),
                real(span[1], "range of the training data"),
            )
        self.about = dict(about or {})
        self.task, self.method = self.run.make_task(), run.make_method()
        self.network = network.to(device).eval().requires_grad_(False)
        self._evaluated = Replayed(self.network)
        self._may_compile, self._is_compiled = compiled, False
        self.network.compile_instead = device.type == "cuda" and compiled is None
        if compiled:
            self._compile()

    @property
    def parameters(self) -> int:
        """How many real parameters the network has."""
        return self.network.parameter_count

    def __repr__(self) -> str:
        grid = " x ".join(map(str, self.run.grid))
        return (
            f"Model({self.run.task}, {self.run.method}, {grid}, {self.parameters:,} parameters, "
            f"step {self.step} of {self.run.steps}, {self.device})"
        )

    # -- passing it on --

    @explain_misuse
    def save_pretrained(
        self,
        path: str | os.PathLike[str],
        *,
        half: bool = False,
        scores: Mapping[str, Any] | None = None,
        name: str | None = None,
        license: str | None = None,
    ) -> Path:
        """Write the model as a folder that `load` and `from_pretrained` read and the Hugging Face hub takes as it is.

        half      half the size: a weight has 11 bits, as many as preset `paper` multiplies with
        scores    of these weights, as `evaluate` returns them, else those in the folder that the model was loaded from: they go into
                  the folder and its card
        name      by which others will find it, for the card
        license   under which you pass it on, as the hub spells it (apache-2.0), for the card
        """
        if self.step < self.run.steps:
            raise SapcError(f"this model is not trained to its end: step {self.step} of {self.run.steps}")
        span = {} if self.span is None else {"range": list(self.span)}
        about, weights = {**self.about, **span, "step": self.step}, self.network.state_dict()
        if self.folder is not None and scores is None:
            scores = scores_beside(self.folder, weights)
        physics = kept_physics(self.run, self.folder)
        return write_model(
            path,
            self.run,
            weights,
            about,
            half=half,
            scores=scores,
            name=name,
            license=license,
            physics=physics,
        )

    @classmethod
    @explain_misuse
    def from_pretrained(
        cls,
        where: str | os.PathLike[str],
        device: str | torch.device = "auto",
        *,
        revision: str | None = None,
        physics: Any = None,
        data: Fields | str | os.PathLike[str] | None = None,
    ) -> Model:
        """The model in a folder, of a name that comes with the package, or of a repository `owner/name` on the Hugging Face hub.

        `physics` and `data` are those of a model of your own, as for `load`.
        """
        folder = find(where)
        if not folder.exists() and REPOSITORY.fullmatch(str(where)):
            folder = fetched(str(where), revision)
        return load(folder, device, physics=physics, data=data)

    # -- sampling --

    @explain_misuse
    def sample(
        self,
        n: SupportsIndex = 64,
        condition: Tensor | Dataset | Fields | None = None,
        steps: SupportsIndex | None = None,
        seed: SupportsIndex = 0,
        *,
        also: Stackable | Sensors | None = None,
        method: str | None = None,
        grid: Sequence[int] | None = None,
        batch: SupportsIndex | None = None,
        progress: Progress | None = None,
        watch: Watcher | None = None,
    ) -> Tensor:
        """Draw `n` fields, float64 `(n, *grid)` on the CPU.

        condition   fields `(k, *grid)`, k conditions for n = k m samples, the m of each in a row: `(1, *grid)` is one for all, `(n, *grid)`
                    one each; only the pinned values count, the others may be NaN
        steps       of the sampler, the method's own number unless given
        also        constraints besides the task's, as `Pin(mask)`, with values in the condition; or what `read_sensors` gives
        method      another method that samples with these weights
        grid        points per axis, if not those of the training; the condition lives there too
        batch       fields at a time, at most
        watch       looks on, for the trajectory analysis
        """
        if isinstance(also, Sensors) and condition is not None:
            condition, also = with_sensors(condition, also, self.on(grid))
        if also is not None and not isinstance(also, Stackable):
            raise SapcError(
                f"also= takes constraints, as sapc.Pin(mask), got {type(also).__name__}; condition= holds the values"
            )
        n, seed, chosen = whole(n, "number of samples", 1), whole(seed, "seed", 0), self.sampler(method)
        steps = chosen.steps if steps is None else whole(steps, "number of sampling steps", 1)
        task = self.on(grid)
        size = self.batch_size(n, task, batch, chosen)
        require(8 * n * math.prod(task.grid.shape), f"{n} fields on {_times(task.grid.shape)} points")
        if watch is not None and condition is None:
            raise SapcError(
                "to watch a trajectory, give a condition: its residuals are those of the condition's manifold"
            )
        calls = math.ceil(n / size) * chosen.evaluations(steps)
        self.compile_for(calls)
        network, fresh = self._counted(n, calls, progress), _Fresh(self, task, seed)
        with (
            torch.inference_mode(False),  # whatever the caller's: D-Flow needs gradients
            torch.no_grad(),
            matmul_precision(self.run.precision),
            allocating(f"{size} fields at a time"),
        ):
            H = self._manifold_for(chosen, condition, n, task, also)
            out = torch.empty(n, *task.grid.shape, dtype=torch.float64)
            draws = self._draws(task, n, size, seed, filled=not chosen.joint)
            upcoming = next(draws, None)
            while upcoming is not None:
                rows, v1 = upcoming
                own, new = H if len(H) == 1 else H[rows // (n // len(H))], min(size, n - int(rows[0]))
                v = self._velocity(chosen, network, own, watch)
                more = (partial(fresh, rows, new),) if chosen.redraws else ()
                fields = chosen.sample(v, v1, own, steps, *more)
                if not isinstance(fields, Tensor) or fields.shape != v1.shape:
                    got = tuple(fields.shape) if isinstance(fields, Tensor) else type(fields).__name__
                    raise SapcError(
                        f"the sampler of {chosen.name} must return fields {tuple(v1.shape)}, one per draw, got {got}"
                    )
                upcoming = next(draws, None)  # drawn while a GPU is at work
                if watch is not None:
                    watch.finish(fields, own, keep=new)
                out[int(rows[0]) :][:new] = task.denormalize(fields[:new]).cpu()
                fresh.next_batch()
        if progress is not None:
            progress(n, n)
        _check_finite(out, chosen)
        if condition is None or chosen.exact == "none":
            return out
        return self._exactly(out, condition, task, also)

    def _exactly(
        self, fields: Tensor, condition: Tensor | Dataset | Fields, task: Task, also: Stackable | None
    ) -> Tensor:
        """With the pinned values to the last bit, where a task's units came in between; samples that are off the laws are told."""
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

    def _velocity(
        self, method: Method, network: Callable[..., Tensor], H: Manifold, watch: Watcher | None
    ) -> Velocity:
        """The network as a method sees it."""
        v = method.velocity(network, H)
        if (bounds := self.bounds(method)) is not None:
            v = within(v, *bounds)
        return v if watch is None else watch.around(v)

    def bounds(self, method: Method) -> tuple[float, float] | None:
        """Where a method's estimates are cut off, if they are: beyond the training data, by a tenth of their range on both sides."""
        if self.span is None or not method.bounded:
            return None
        low, high = self.span
        return low - MARGIN * (high - low), high + MARGIN * (high - low)

    def _draws(
        self, task: Task, n: int, size: int, seed: int, filled: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of the source, with the numbers of their fields; the last one, if `filled`, filled up with copies."""
        g = torch.Generator().manual_seed(seed_of("sample", seed))
        for first in range(0, n, size):
            new = min(size, n - first)
            rows = torch.arange(first, first + (size if filled else new)).clamp(max=n - 1)
            yield rows, self._source(task, rows, new, g)

    def _source(self, task: Task, rows: Tensor, new: int, g: torch.Generator) -> Tensor:
        """`new` draws, and copies of the last one for what the batch has more."""
        v1 = source.sample(task.grid, new, g, length=self.run.length, dtype=torch.float64)
        return v1[rows - rows[0]].to(self.device)

    @explain_misuse
    def manifold(
        self,
        condition: Tensor | Dataset | Fields,
        grid: Sequence[int] | None = None,
        also: Stackable | None = None,
    ) -> Manifold:
        """The manifolds of conditions as `sample` takes them, on the model's device and in the units of the fields."""
        task = self.on(grid)
        values = pinned_values(condition, task, also).to(self.device)
        return task.manifold(values, also, solver=self.run.solver(task))

    @explain_misuse
    def sampler(self, method: str | None) -> Method:
        """The method to sample with: the trained one, or another that uses its weights."""
        chosen = self.method if method is None else get_method(method)
        if chosen.weights != self.run.method:
            raise SapcError(
                f"{chosen.name} samples with the weights of {chosen.weights}, but these were trained with {self.run.method}; "
                f"train {self.run.task} with --method {chosen.weights}"
            )
        return chosen

    @explain_misuse
    def on(self, grid: Sequence[int] | None) -> Task:
        """The task, on the grid of the training or another one."""
        return self.task if grid is None else self.run.make_task(tuple(grid))

    def batch_size(
        self, n: int, task: Task, batch: SupportsIndex | None = None, method: Method | None = None
    ) -> int:
        """Fields at a time: as many as fit, in batches of equal size."""
        if batch is None:
            most = BATCH.get((self.device.type, len(task.grid.shape)), 16)
            if (method or self.method).joint:
                most = JOINT[len(task.grid.shape)]
            points = math.prod(task.paper_grid.shape) / math.prod(task.grid.shape)
            batch = max(1, int(most * min(1.0, points)))
        return math.ceil(n / math.ceil(n / whole(batch, "batch", 1)))

    def compile_for(self, evaluations: int) -> None:
        """Compile the network if so many evaluations make that worth while and the caller of `load` left it open."""
        many = self.device.type == "cuda" and evaluations >= COMPILE_FROM
        if self._may_compile is None and many and not self.network.has_kernels(self.device):
            self._compile()

    def _compile(self) -> None:
        if not self._is_compiled:
            self.network.compile_core()
            self._is_compiled = True

    def _counted(self, n: int, calls: int, progress: Progress | None) -> Callable[..., Tensor]:
        """The network, telling of its progress."""
        done = 0

        def v(vt: Tensor, t: Tensor, *shown: Tensor) -> Tensor:
            nonlocal done
            out = self._evaluated(vt.float(), t, *(x.float() for x in shown))
            done += not torch.is_grad_enabled()  # what is repeated for a gradient does not count
            if progress is not None:
                progress(min(n, n * done // calls), n)
            return out

        return v

    def _manifold_for(
        self,
        method: Method,
        condition: Tensor | Dataset | Fields | None,
        n: int,
        task: Task,
        also: Stackable | None,
    ) -> Manifold:
        """As the sampler sees them."""
        if condition is None:
            if method.conditioned or also is not None:
                raise SapcError(
                    f"{method.name} samples on the manifold of a condition: give one, as condition=data.fields[:1] "
                    f"(pinned are: {task.pinned})"
                )
            values = torch.zeros(1, *task.grid.shape)
        else:
            values = pinned_values(condition, task, also)
        if n % len(values):
            raise SapcError(
                f"{len(values)} conditions for {n} samples; give as many samples of each, n={len(values) * math.ceil(n / len(values))}, "
                "or a single condition for all, as condition[:1]"
            )
        return task.normalized_manifold(
            task.normalize(values.to(self.device)), also, solver=self.run.solver(task)
        )


class _Fresh:
    """Further draws of the source; the k-th of a field depends on seed, field and k, not on batches."""

    def __init__(self, model: Model, task: Task, seed: int) -> None:
        self.model, self.task, self.seed, self.calls = model, task, seed, 0
        self.generators: list[torch.Generator] = []

    def __call__(self, rows: Tensor, new: int) -> Tensor:
        if self.calls == len(self.generators):
            self.generators.append(torch.Generator().manual_seed(seed_of("redraw", self.seed, self.calls)))
        self.calls += 1
        return self.model._source(self.task, rows, new, self.generators[self.calls - 1])

    def next_batch(self) -> None:
        """Each generator goes on with the fields of the next batch."""
        self.calls = 0


def _warn_if_off(fields: Tensor, H: Manifold, has_more: bool) -> None:
    """Pins and laws may contradict each other: then no field has both, and samples are off the laws."""
    if H.affine:
        is_off = ~H.is_met(fields, slack=1e3)
    else:
        rows = H.balance(fields)
        is_off = rows.abs().amax(1) > 1e-6 * (1 + H.fields.abs().max())
    if bad := int(is_off.sum()):
        why = (
            "what was added contradicts them"
            if has_more
            else "they contradict the pinned values or each other"
        )
        off = float(H.balance(fields).abs().max())
        message = f"{bad} of {len(fields)} samples are off the laws by up to {off:.2g}: {why}"
        warnings.warn(message, SapcWarning, stacklevel=4)


def _check_finite(fields: Tensor, method: Method) -> None:
    if bad := int((~fields.flatten(1).isfinite().all(1)).sum()):
        raise SapcError(
            f"{bad} of {len(fields)} samples contain NaN or infinity: the network is not usable with {method.name}; "
            "train longer, or with a smaller lr or in float32"
        )


def _times(shape: Sequence[Any]) -> str:
    return " x ".join(map(str, shape))
