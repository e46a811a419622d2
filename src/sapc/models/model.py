"""A trained model: weights from a run folder, and sampling with them.

model = sapc.load("runs/heat-sapc")                    # or the name of a model that comes with the package
fields = model.sample(n=64, condition=data.fields[:1], steps=100, seed=0)
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn

from .._old_names import old_attribute, rename_arguments, rename_method
from ..constraints import Manifold
from ..constraints.terms import ConstraintTerm
from ..data import Fields, Sensors
from ..errors import (
    SapcError,
    SapcWarning,
    check_int,
    check_number,
    explain_memory_errors,
    explain_misuse,
    require_memory,
)
from ..methods import Method, get_method
from ..nn.fno import matmul_precision
from ..nn.network import NetworkSource, describe, execution_of, find_device, parameter_count, weights_of
from ..tasks import Dataset, Task
from ..training.config import TrainingConfig
from ..training.run_folder import (
    OPTIMISER,
    RunFolder,
    check_shapes,
    find,
    load_tensors,
    load_weights,
    range_of,
    steps_of,
)
from .card import CardText
from .hub import REPOSITORY, download, physics_text, scores_of_weights, write_model
from .sampling import (
    Condition,
    Progress,
    Sampling,
    SamplingCallback,
    check_finite,
    count_evaluations,
    pinned_values,
    with_sensors,
)

BATCH = {("cpu", 2): 8, ("cpu", 3): 4, ("cuda", 2): 256, ("cuda", 3): 32}
CLIP_MARGIN = 0.1  # of the data's range, how far estimates that are cut off may leave it
JOINT = {2: 32, 3: 16}  # as published, where the batch is one problem and so part of the method


@explain_misuse
def load(
    path: str | os.PathLike[str],
    device: str | torch.device = "auto",
    compiled: bool | None = None,
    *,
    physics: Any = None,
    data: Fields | str | os.PathLike[str] | None = None,
    reading: Mapping[str, Any] | None = None,
    network: NetworkSource | None = None,
) -> Model:
    """The model in a run folder, or the one of that name that comes with the package, on a device (`auto`: the GPU where there is one).

    compiled    whether the network is compiled; unless given it is on a GPU, once many evaluations are asked for
    physics     of a model of your own data: the file, function or constraints it was trained with, which a folder does not hold
    data        its file or fields, where splits are wanted again
    reading     how that file and those of conditions are read, as arguments of `read_fields`, where that is not as in the training
    network     of a model with a network of your own: one like it, a module, which is copied, or a function that makes one

    Physics and data belong to this model alone. Physics whose text has changed since the training is a warning; other data are refused.
    An unfinished training gives the weights of its last checkpoint, with a warning.
    """
    folder = RunFolder(find(path))
    run = folder.run().attach(physics, data, reading)
    return read_model(path, folder, run, device, compiled, network)


def read_model(
    path: str | os.PathLike[str],
    folder: RunFolder,
    run: TrainingConfig,
    device: str | torch.device = "auto",
    compiled: bool | None = None,
    network: NetworkSource | None = None,
) -> Model:
    """The model in a run folder, that was given as `path`, of a run whose task is at hand."""
    module, step, metadata = read_network(path, folder, run, network)
    model = Model(
        run,
        module,
        find_device(str(device)),
        compiled=compiled,
        step=step,
        data_range=metadata.get("range"),
        metadata=metadata,
    )
    model.folder = folder
    return model


def read_network(
    path: str | os.PathLike[str], folder: RunFolder, run: TrainingConfig, network: NetworkSource | None = None
) -> tuple[nn.Module, int, dict[str, Any]]:
    """The network in a run folder, that was given as `path`: with its weights, their training steps, and what was noted of them."""
    file = folder.weights if folder.trained else folder.checkpoint
    if not file.is_file():
        raise SapcError(
            f"{path} holds no weights yet: its training was stopped before the first checkpoint; "
            f"continue it with `sapc train --resume {path}`"
        )
    check_shapes(run, file, network)
    tensors, metadata = load_tensors(file, sha256=folder.known_digest() if folder.trained else None)
    step = steps_of(metadata, file)
    range_of(metadata, file)
    made = run.make_network(network)
    load_weights(made, {k: v for k, v in tensors.items() if not k.startswith(OPTIMISER)}, file)
    if step < run.steps:
        message = f"{path} is not trained to its end: these are the weights of step {step} of {run.steps}"
        warnings.warn(message, SapcWarning, stacklevel=4)
    return made, step, metadata


@rename_arguments(span="data_range", about="metadata")
@explain_misuse
class Model:
    """A network with the run that it was trained in.

    run         the run's settings
    task        the task, on the grid of the training
    method      the method it was trained with, which also samples unless another one is named
    network     the velocity, in evaluation mode, on `device`
    step        training steps taken
    data_range  the smallest and the largest value of the training data, if known
    metadata    what else was noted at the end of the training
    folder      where it was loaded from, if it was
    """

    span = old_attribute("Model.span", "Model.data_range")
    about = old_attribute("Model.about", "Model.metadata")

    def __init__(
        self,
        run: TrainingConfig,
        network: nn.Module,
        device: torch.device,
        *,
        compiled: bool | None = None,
        step: int | None = None,
        data_range: Sequence[float] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        if device.type not in ("cpu", "cuda"):
            raise SapcError(f"a model lives on cpu or cuda, not on {device}")
        self.run = replace(run.attach(), backbone=describe(network, run.backbone))
        self.device, self.step = device, run.steps if step is None else step
        self.folder: RunFolder | None = None
        self.data_range = None
        if data_range is not None:
            if len(data_range) != 2:
                raise SapcError(f"the range of the training data are two numbers, got {data_range!r:.40}")
            low, high = (check_number(value, "range of the training data") for value in data_range)
            self.data_range = low, high
        self.metadata = dict(metadata or {})
        self.task, self.method = self.run.make_task(), run.make_method()
        self.execution = execution_of(network, device, run.precision, compiled)
        self.network, self._evaluated = self.execution.network, self.execution.for_sampling()

    @property
    def parameters(self) -> int:
        """How many real parameters the network has."""
        return parameter_count(self.network)

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

        half      half the size: a weight has 11 bits, as many as preset `published` multiplies with
        scores    of these weights, as `evaluate` returns them, else those in the folder that the model was loaded from: they go into
                  the folder and its card
        name      by which others will find it, for the card
        license   under which you pass it on, as the hub spells it (apache-2.0), for the card
        """
        if self.step < self.run.steps:
            raise SapcError(f"this model is not trained to its end: step {self.step} of {self.run.steps}")
        data_range = {} if self.data_range is None else {"range": list(self.data_range)}
        metadata, weights = {**self.metadata, **data_range, "step": self.step}, weights_of(self.network)
        if self.folder is not None and scores is None:
            scores = scores_of_weights(self.folder, weights)
        card = CardText(name, license, physics_text(self.run, self.folder))
        return write_model(path, self.run, weights, metadata, half=half, scores=scores, card=card)

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
        network: NetworkSource | None = None,
    ) -> Model:
        """The model in a folder, of a name that comes with the package, or of a repository `owner/name` on the Hugging Face hub.

        `physics`, `data` and `network` are those of a model of your own, as for `load`.
        """
        folder = find(where)
        if not folder.exists() and REPOSITORY.fullmatch(str(where)):
            folder = download(str(where), revision)
        return load(folder, device, physics=physics, data=data, network=network)

    # -- sampling --

    @rename_arguments(also="extra_constraints", watch="callback")
    @explain_misuse
    def sample(
        self,
        n: SupportsIndex = 64,
        condition: Tensor | Dataset | Fields | Condition | None = None,
        steps: SupportsIndex | None = None,
        seed: SupportsIndex = 0,
        *,
        extra_constraints: ConstraintTerm | Sensors | None = None,
        method: str | None = None,
        grid: Sequence[int] | None = None,
        batch: SupportsIndex | None = None,
        progress: Progress | None = None,
        callback: SamplingCallback | None = None,
    ) -> Tensor:
        """Draw `n` fields, float64 `(n, *grid)` on the CPU.

        condition   fields `(k, *grid)`, k conditions for n = k m samples, the m of each in a row: `(1, *grid)` is one for all, `(n, *grid)`
                    one each; only the pinned values count, the others may be NaN; or what `bind` gives, which knows
                    `extra_constraints` and `grid`
        steps       of the sampler, the method's own number unless given
        extra_constraints  constraints besides the task's, as `Pin(mask)`, with values in the condition; or what `read_sensors` gives
        method      another method that samples with these weights
        grid        points per axis, if not those of the training; the condition lives there too
        batch       fields at a time, at most
        callback    looks on, for the trajectory analysis
        """
        chosen = self.sampler(method)
        if callback is not None and condition is None:
            raise SapcError(
                "to watch a trajectory, give a condition: its residuals are those of the condition's manifold"
            )
        if condition is None and (chosen.sampler_uses_manifold or extra_constraints is not None):
            raise SapcError(
                f"{chosen.name} samples on the manifold of a condition: give one, as condition=data.fields[:1] "
                f"(pinned are: {self.task.pinned})"
            )
        sampling = self._plan(self.bind(condition, grid, extra_constraints), chosen, n, steps, seed, batch)
        calls = math.ceil(sampling.n / sampling.size) * chosen.evaluations(sampling.steps)
        self.compile_for(calls)
        network = count_evaluations(self._evaluated, sampling.n, calls, progress)
        with (
            torch.inference_mode(False),  # whatever the caller's: D-Flow needs gradients
            torch.no_grad(),
            matmul_precision(self.run.precision),
            explain_memory_errors(f"{sampling.size} fields at a time"),
        ):
            fields = sampling.run(network, callback)
        if progress is not None:
            progress(sampling.n, sampling.n)
        check_finite(fields, chosen)
        is_free = condition is None or chosen.exact == "none"
        return fields if is_free else sampling.condition.restore(fields)

    def _plan(
        self,
        condition: Condition,
        method: Method,
        n: SupportsIndex,
        steps: SupportsIndex | None,
        seed: SupportsIndex,
        batch: SupportsIndex | None,
    ) -> Sampling:
        """Decide what a call leaves open, and refuse what cannot be."""
        n, seed, task = check_int(n, "number of samples", 1), check_int(seed, "seed", 0), condition.task
        steps = method.steps if steps is None else check_int(steps, "number of sampling steps", 1)
        size, points = self.batch_size(n, task, batch, method), " x ".join(map(str, task.grid.shape))
        if n % (k := len(condition.values)):
            raise SapcError(
                f"{k} conditions for {n} samples; give as many samples of each, n={k * math.ceil(n / k)}, "
                "or a single condition for all, as condition[:1]"
            )
        require_memory(8 * n * math.prod(task.grid.shape), f"{n} fields on {points} points")
        return Sampling(
            condition, method, n, size, steps, seed, self.run.source_length_scale, self.clip_range(method)
        )

    def clip_range(self, method: Method) -> tuple[float, float] | None:
        """Where a method's estimates are cut off, if they are: beyond the training data, by a tenth of their range on both sides."""
        if self.data_range is None or not method.clips_endpoint:
            return None
        low, high = self.data_range
        return low - CLIP_MARGIN * (high - low), high + CLIP_MARGIN * (high - low)

    @rename_arguments(also="extra_constraints")
    @explain_misuse
    def bind(
        self,
        condition: Tensor | Dataset | Fields | Condition | None,
        grid: Sequence[int] | None = None,
        extra_constraints: ConstraintTerm | Sensors | None = None,
    ) -> Condition:
        """Check conditions as `sample` takes them, once; its `manifold` is theirs, in the units of the fields."""
        if isinstance(condition, Condition):
            if condition.run is not self.run or grid is not None or extra_constraints is not None:
                raise SapcError(
                    "what `bind` returned serves the model that bound it, with the grid= and extra_constraints= given there; bind it anew"
                )
            return condition
        task = self.task_at(grid)
        if isinstance(extra_constraints, Sensors) and condition is not None:
            condition, extra_constraints = with_sensors(condition, extra_constraints, task)
        if extra_constraints is not None and not isinstance(extra_constraints, ConstraintTerm):
            raise SapcError(
                f"extra_constraints= takes constraints, as sapc.Pin(mask), got {type(extra_constraints).__name__}; "
                "condition= holds the values"
            )
        nothing = torch.zeros(1, *task.grid.shape)
        values = nothing if condition is None else pinned_values(condition, task, extra_constraints)
        return Condition(task, values.to(self.device), extra_constraints, self.run)

    @rename_arguments(also="extra_constraints")
    @explain_misuse
    def manifold(
        self,
        condition: Tensor | Dataset | Fields,
        grid: Sequence[int] | None = None,
        extra_constraints: ConstraintTerm | Sensors | None = None,
    ) -> Manifold:
        """The manifolds of conditions as `sample` takes them, on the model's device and in the units of the fields."""
        return self.bind(condition, grid, extra_constraints).manifold

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
    def task_at(self, grid: Sequence[int] | None) -> Task:
        """The task, on the grid of the training or another one."""
        return self.task if grid is None else self.run.make_task(tuple(grid))

    bounds = rename_method("Model.bounds", "Model.clip_range")
    on = rename_method("Model.on", "Model.task_at")

    def batch_size(
        self, n: int, task: Task, batch: SupportsIndex | None = None, method: Method | None = None
    ) -> int:
        """Fields at a time: as many as fit, in batches of equal size."""
        if batch is None:
            most = BATCH.get((self.device.type, len(task.grid.shape)), 16)
            if (method or self.method).couples_batch:
                most = JOINT[len(task.grid.shape)]
            points = math.prod(task.paper_grid.shape) / math.prod(task.grid.shape)
            batch = max(1, int(most * min(1.0, points)))
        return math.ceil(n / math.ceil(n / check_int(batch, "batch", 1)))

    def compile_for(self, evaluations: int) -> None:
        """Compile the network if so many evaluations make that worth while and the caller of `load` left it open."""
        self.execution.expect(evaluations)
