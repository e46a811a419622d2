"""A trained model: weights from a run folder, and sampling with them.

model = sapc.load("runs/heat-sapc")     # or the name of a model that comes with the package
fields = model.sample(n=64, condition=data.fields[:1], steps=100, seed=0)
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, SupportsIndex, overload

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
from ..flow import EULER, STEPPERS, Sampler, TimeGrid
from ..methods import Method, get_method
from ..nn.fno import matmul_precision
from ..nn.network import NetworkSource, describe, find_device, make_execution, parameter_count, weights_of
from ..tasks import Dataset, Task
from ..training.config import TrainingConfig
from ..training.run_folder import (
    OPTIMISER,
    RunFolder,
    check_shapes,
    load_tensors,
    load_weights,
    read_range,
    read_step,
    resolve_model_path,
)
from .card import CardText
from .hub import download, is_repository, physics_text, scores_of_weights, write_model
from .sampling import (
    Condition,
    CountedNetwork,
    Progress,
    Sampling,
    SamplingCallback,
    SamplingInfo,
    check_finite,
    merge_sensors,
    pinned_values,
)
from .times import read_record, read_times

BATCH = {("cpu", 2): 8, ("cpu", 3): 4, ("cuda", 2): 256, ("cuda", 3): 32}
"""Fields at a time, by kind of device and number of axes."""
COUPLED_BATCH = {2: 32, 3: 16}
"""The same, by number of axes, for methods that solve one problem for a whole batch: the published sizes."""
CLIP_MARGIN = 0.1
"""How far estimates that are clipped may leave the range of the training data, as a share of it."""

DEFAULT_SAMPLER, DEFAULT_STEPS = "multistep", 20
"""How methods sample that accept any sampler: as good as 100 of Euler's steps."""

ConditionLike = Tensor | Dataset | Fields | Condition
"""What conditions can be given as."""
SamplerLike = str | Sampler
"""What samplers can be given as."""


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
    revision: str | None = None,
) -> Model:
    """Load a trained model.

    Physics and data belong to this model alone. Physics whose text has changed since the training is a
    warning, other data are refused. An unfinished training gives the weights of its last checkpoint, with a
    warning.

    Args:
        path: A run folder, the name of a model that comes with the package, or a repository `owner/name` of
            the Hugging Face hub. A folder comes first; where there is a folder `owner`, nothing is looked up
            on the hub unless a revision is given.
        device: `auto` (the GPU where there is one), `cpu`, `cuda` or a torch device.
        compiled: Whether the network is compiled; by default on a GPU, once many evaluations are asked for.
        physics: For a model of your own data, the file, function or constraints it was trained with, which a
            folder does not hold.
        data: Its file or fields, where splits are needed again.
        reading: How that file and those of conditions are read, as arguments of `read_fields`, where that is
            not as in the training.
        network: For a model with a network of your own, one like it: a module, which is copied, or a function
            that makes one.
        revision: Branch, tag or commit of a repository on the hub.

    Returns:
        The model, ready to sample.

    Raises:
        SapcError: There is no such model, its files are damaged, or it was trained with other physics, data
            or another network than those given.
    """
    home = resolve_model_path(path)
    if home.exists() and revision is not None:
        raise SapcError(f"{path} is on this machine; revision= is for a repository owner/name of the hub")
    if isinstance(path, str) and not home.exists() and is_repository(path, revision):
        home = download(path, revision)
    folder = RunFolder(home)
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
    """Load the model of a run folder, which the caller knows as `path`, with the task of the run at hand."""
    module, step, metadata = read_network(path, folder, run, network)
    folder.warn_of_changed_plugins(run)
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
    """Load the network of a run folder: the module, the training steps of its weights, and their metadata."""
    file = folder.weights if folder.is_trained else folder.checkpoint
    if not file.is_file():
        raise SapcError(
            f"{path} holds no weights yet: its training was stopped before the first checkpoint; "
            f"continue it with `sapc train --resume {path}`"
        )
    check_shapes(run, file, network)
    tensors, metadata = load_tensors(file, sha256=folder.known_digest() if folder.is_trained else None)
    step = read_step(metadata, file)
    read_range(metadata, file)
    module = run.make_network(network)
    load_weights(module, {k: v for k, v in tensors.items() if not k.startswith(OPTIMISER)}, file)
    if step < run.steps:
        message = f"{path} is not trained to its end: these are the weights of step {step} of {run.steps}"
        warnings.warn(message, SapcWarning, stacklevel=4)
    return module, step, metadata


@rename_arguments(span="data_range", about="metadata")
@explain_misuse
class Model:
    """A network with the run that it was trained in.

    Args:
        run: Settings of the training.
        network: The velocity, a module `(fields, times[, condition]) -> fields`.
        device: Where it samples, a CPU or a GPU.
        compiled: Whether the network is compiled; by default on a GPU, once many evaluations are asked for.
        step: Training steps taken; all of the run's by default.
        data_range: The smallest and the largest value of the training data, if known.
        metadata: What else was recorded at the end of the training.

    Attributes:
        task: The task, on the grid of the training.
        method: The method it was trained with, which also samples unless another one is named.
        network: The network in evaluation mode, on `device`.
        folder: The run folder it was loaded from, if any.

    Raises:
        SapcError: The device is neither a CPU nor a GPU, or the network does not fit the task.
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
        self.execution = make_execution(network, device, run.precision, compiled)
        self.network, self._evaluated = self.execution.network, self.execution.for_sampling()

    @property
    def parameters(self) -> int:
        """Number of real parameters of the network."""
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
        """Write the model as a folder that `load` reads and the Hugging Face hub takes as it is.

        Args:
            path: The folder; it appears when it is complete.
            half: Halve the size: a weight then has 11 bits, as many as preset `published` multiplies with.
            scores: Scores of these weights, as `evaluate` returns them, for the folder and its card; by
                default those in the folder that the model was loaded from.
            name: Name by which others will find the model, for the card.
            license: Licence under which you pass it on, as the hub spells it (apache-2.0), for the card.

        Returns:
            The path of the folder.

        Raises:
            SapcError: The training has not ended, the folder is in use, or weights are beyond half precision.
        """
        if self.step < self.run.steps:
            raise SapcError(f"this model is not trained to its end: step {self.step} of {self.run.steps}")
        data_range = {} if self.data_range is None else {"range": list(self.data_range)}
        metadata, weights = {**self.metadata, **data_range, "step": self.step}, weights_of(self.network)
        if self.folder is not None and scores is None:
            scores = scores_of_weights(self.folder, weights)
        card = CardText(name, license, physics_text(self.run, self.folder))
        times = None if self.folder is None else read_record(self.folder)
        return write_model(
            path, self.run, weights, metadata, half=half, scores=scores, times=times, card=card
        )

    @classmethod
    @explain_misuse
    def from_pretrained(
        cls, where: str | os.PathLike[str], device: str | torch.device = "auto", **options: Any
    ) -> Model:
        """Load a trained model; another name of `sapc.load`, as users of the hub know it.

        Args:
            where: A folder, the name of a model that comes with the package, or a repository `owner/name` of
                the hub.
            device: `auto`, `cpu`, `cuda` or a torch device.
            options: Further arguments of `sapc.load`, as `revision`, `physics`, `data` and `network`.

        Returns:
            The model, ready to sample.
        """
        return load(str(where) if isinstance(where, os.PathLike) else where, device, **options)

    # -- sampling --

    # fmt: off
    @overload
    def sample(
        self, n: SupportsIndex = 64, condition: ConditionLike | None = None,
        steps: SupportsIndex | None = None, seed: SupportsIndex | None = None, *,
        sampler: SamplerLike | None = None, generator: torch.Generator | None = None,
        extra_constraints: ConstraintTerm | Sensors | None = None, method: str | None = None,
        grid: Sequence[int] | None = None, batch: SupportsIndex | None = None,
        progress: Progress | None = None, callback: SamplingCallback | None = None,
        return_info: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def sample(
        self, n: SupportsIndex = 64, condition: ConditionLike | None = None,
        steps: SupportsIndex | None = None, seed: SupportsIndex | None = None, *,
        sampler: SamplerLike | None = None, generator: torch.Generator | None = None,
        extra_constraints: ConstraintTerm | Sensors | None = None, method: str | None = None,
        grid: Sequence[int] | None = None, batch: SupportsIndex | None = None,
        progress: Progress | None = None, callback: SamplingCallback | None = None,
        return_info: Literal[True],
    ) -> tuple[Tensor, SamplingInfo]: ...
    # fmt: on

    @rename_arguments(also="extra_constraints", watch="callback")
    @explain_misuse
    def sample(
        self,
        n: SupportsIndex = 64,
        condition: ConditionLike | None = None,
        steps: SupportsIndex | None = None,
        seed: SupportsIndex | None = None,
        *,
        sampler: SamplerLike | None = None,
        generator: torch.Generator | None = None,
        extra_constraints: ConstraintTerm | Sensors | None = None,
        method: str | None = None,
        grid: Sequence[int] | None = None,
        batch: SupportsIndex | None = None,
        progress: Progress | None = None,
        callback: SamplingCallback | None = None,
        return_info: bool = False,
    ) -> Tensor | tuple[Tensor, SamplingInfo]:
        """Draw fields.

        A missing condition, arguments that contradict each other, and a network that gives NaN are a
        `SapcError`.

        Args:
            n: Number of fields.
            condition: Fields `(k, *grid)`, k conditions for n = k m samples, the m of each in a row: `(1,
                *grid)` is one for all, `(n, *grid)` one each. Only the pinned values count, the others may be
                NaN. Also what `bind` returns, which knows `extra_constraints` and `grid`.
            steps: Number of steps: by default 20 of second order, or the method's own number of Euler's.
            seed: Seed of the source, 0 by default.
            sampler: `multistep`, of second order on times measured for these weights, for methods that accept
                it; `euler`, Euler's steps on uniform times, as published; `heun`; or a `sapc.flow.Sampler`.
            generator: Random numbers in place of a seed: one is drawn from the generator. The same state
                gives the same samples.
            extra_constraints: Constraints besides the task's, as `Pin(mask)`, with values in the condition;
                or what `read_sensors` returns.
            method: Another method that samples with these weights.
            grid: Points per axis, if not those of the training; the condition lives there too.
            batch: Fields at a time, at most.
            progress: Called with (fields done, fields in all).
            callback: Records every batch, as `sapc.evaluation.trajectory.TrajectoryRecorder` does.
            return_info: Also return what was done: residuals, conditions, cost.

        Returns:
            Fields `(n, *grid)`, float64 on the CPU; with `return_info` also a `SamplingInfo`.
        """
        start = time.perf_counter()
        sampling_method = self.sampling_method(method)
        self._check_condition(condition, sampling_method, extra_constraints, callback)
        bound = self.bind(condition, grid, extra_constraints)
        discretization = self.discretize(sampling_method, sampler, steps)
        sampling = self._plan(bound, sampling_method, n, discretization, _choose_seed(seed, generator), batch)
        fields = self._run(sampling, progress, callback)
        if condition is not None and sampling_method.exact != "none":
            fields = bound.restore(fields)
        if not return_info:
            return fields
        seconds = time.perf_counter() - start
        return fields, sampling.describe(fields, seconds, is_conditioned=condition is not None)

    def _check_condition(
        self,
        condition: ConditionLike | None,
        method: Method,
        extra_constraints: ConstraintTerm | Sensors | None,
        callback: SamplingCallback | None,
    ) -> None:
        """Refuse to sample without a condition where one is needed."""
        if callback is not None and condition is None:
            raise SapcError(
                "to watch a trajectory, give a condition: its residuals are those of the condition's manifold"
            )
        if condition is None and (method.sampler_uses_manifold or extra_constraints is not None):
            raise SapcError(
                f"{method.name} samples on the manifold of a condition: give one, as "
                f"condition=data.fields[:1] (pinned are: {self.task.pinned})"
            )

    def _run(
        self, sampling: Sampling, progress: Progress | None, callback: SamplingCallback | None
    ) -> Tensor:
        """Draw the fields of a plan, in the precision of the training."""
        calls = math.ceil(sampling.n / sampling.size) * sampling.evaluations
        self.compile_for(calls)
        network = CountedNetwork(self._evaluated, sampling.n, calls, progress)
        try:
            with (
                # Whatever the caller's mode: D-Flow needs gradients.
                torch.inference_mode(False),
                torch.no_grad(),
                matmul_precision(self.run.precision),
                explain_memory_errors(f"{sampling.size} fields at a time"),
            ):
                fields = sampling.run(network, self.execution, callback)
        finally:
            # The network may be evaluated once more, when a later call records the same run.
            network.progress = None
        if progress is not None:
            progress(sampling.n, sampling.n)
        check_finite(fields, sampling.method)
        return fields

    def _plan(
        self,
        condition: Condition,
        method: Method,
        n: SupportsIndex,
        discretization: tuple[Sampler, int],
        seed: int,
        batch: SupportsIndex | None,
    ) -> Sampling:
        """Decide what a call leaves open, and refuse what cannot be."""
        n, task = check_int(n, "number of samples", 1), condition.task
        size, points = self.batch_size(n, task, batch, method), " x ".join(map(str, task.grid.shape))
        if n % (k := len(condition.values)):
            raise SapcError(
                f"{k} conditions for {n} samples; give as many samples of each, n={k * math.ceil(n / k)}, "
                "or a single condition for all, as condition[:1]"
            )
        require_memory(8 * n * math.prod(task.grid.shape), f"{n} fields on {points} points")
        length, clip_range = self.run.source_length_scale, self.clip_range(method)
        return Sampling(condition, method, n, size, *discretization, seed, length, clip_range)

    def clip_range(self, method: Method) -> tuple[float, float] | None:
        """Return the range that estimates are clipped to: that of the data, a tenth wider at each end.

        Args:
            method: The method that samples.

        Returns:
            The lower and the upper end; None if the method does not clip or the range of the data is not
            known.
        """
        if self.data_range is None or not method.clips_endpoint:
            return None
        low, high = self.data_range
        return low - CLIP_MARGIN * (high - low), high + CLIP_MARGIN * (high - low)

    @rename_arguments(also="extra_constraints")
    @explain_misuse
    def bind(
        self,
        condition: ConditionLike | None,
        grid: Sequence[int] | None = None,
        extra_constraints: ConstraintTerm | Sensors | None = None,
    ) -> Condition:
        """Check conditions once, for several calls of `sample`.

        Args:
            condition: Conditions as `sample` takes them.
            grid: Points per axis, if not those of the training.
            extra_constraints: Constraints besides the task's, or sensors.

        Returns:
            The conditions; their `manifold` is in the units of the fields.

        Raises:
            SapcError: They do not fit the task, or contradict each other.
        """
        if isinstance(condition, Condition):
            if condition.run is not self.run or grid is not None or extra_constraints is not None:
                raise SapcError(
                    "what `bind` returned serves the model that bound it, with the grid= and "
                    "extra_constraints= given there; bind it anew"
                )
            return condition
        task = self.task_at(grid)
        if isinstance(extra_constraints, Sensors) and condition is not None:
            condition, extra_constraints = merge_sensors(condition, extra_constraints, task)
        if extra_constraints is not None and not isinstance(extra_constraints, ConstraintTerm):
            raise SapcError(
                "extra_constraints= takes constraints, as sapc.Pin(mask), got "
                f"{type(extra_constraints).__name__}; condition= holds the values"
            )
        zeros = torch.zeros(1, *task.grid.shape)
        values = zeros if condition is None else pinned_values(condition, task, extra_constraints)
        return Condition(task, values.to(self.device), extra_constraints, self.run)

    @rename_arguments(also="extra_constraints")
    @explain_misuse
    def manifold(
        self,
        condition: ConditionLike,
        grid: Sequence[int] | None = None,
        extra_constraints: ConstraintTerm | Sensors | None = None,
    ) -> Manifold:
        """Return the manifolds of conditions, on the model's device and in the units of the fields.

        Args:
            condition: Conditions as `sample` takes them.
            grid: Points per axis, if not those of the training.
            extra_constraints: Constraints besides the task's, or sensors.

        Returns:
            One manifold per condition.
        """
        return self.bind(condition, grid, extra_constraints).manifold

    @explain_misuse
    def discretize(
        self, method: Method, sampler: SamplerLike | None = None, steps: SupportsIndex | None = None
    ) -> tuple[Sampler, int]:
        """Decide on stepper, times and number of steps.

        Args:
            method: The method that samples.
            sampler: As `sample` takes it.
            steps: Number of steps, by default that of the sampler.

        Returns:
            The sampler and the number of steps.

        Raises:
            SapcError: The sampler is unknown, or the method does not accept it.
        """
        if sampler is None:
            sampler = DEFAULT_SAMPLER if method.accepts_sampler else EULER.name
        if isinstance(sampler, str):
            if sampler not in STEPPERS:
                raise SapcError(f"unknown sampler {sampler!r:.80}; choose from {', '.join(STEPPERS)}")
            # Refused before its times are looked up, which may warn.
            method.check_sampler(EULER if sampler == EULER.name else Sampler(STEPPERS[sampler]))
            sampler = EULER if sampler == EULER.name else Sampler(STEPPERS[sampler], self.times)
        if not isinstance(sampler, Sampler):
            raise SapcError(
                f"unknown sampler {sampler!r:.60}; choose from {', '.join(STEPPERS)}, or give a "
                "sapc.flow.Sampler(stepper, times)"
            )
        method.check_sampler(sampler)
        if steps is None:
            return sampler, method.steps if sampler == EULER else DEFAULT_STEPS
        return sampler, check_int(steps, "number of sampling steps", 1)

    @cached_property
    def times(self) -> TimeGrid:
        """Times of the steps of second order: measured for these weights, or a shift where none were."""
        return read_times(self.folder)

    @explain_misuse
    def sampling_method(self, method: str | None) -> Method:
        """Return the method to sample with.

        Args:
            method: Name of a method that uses the weights of the trained one, or None for that itself.

        Returns:
            The method.

        Raises:
            SapcError: The method samples with other weights.
        """
        sampler = self.method if method is None else get_method(method)
        if sampler.weights != self.run.method:
            raise SapcError(
                f"{sampler.name} samples with the weights of {sampler.weights}, but these were trained with "
                f"{self.run.method}; train {self.run.task} with --method {sampler.weights}"
            )
        return sampler

    @explain_misuse
    def task_at(self, grid: Sequence[int] | None) -> Task:
        """Return the task on a grid.

        Args:
            grid: Points per axis, or None for the grid of the training.

        Returns:
            The task.
        """
        return self.task if grid is None else self.run.make_task(tuple(grid))

    bounds = rename_method("Model.bounds", "Model.clip_range")
    sampler = rename_method("Model.sampler", "Model.sampling_method")
    on = rename_method("Model.on", "Model.task_at")

    def batch_size(
        self, n: int, task: Task, batch: SupportsIndex | None = None, method: Method | None = None
    ) -> int:
        """Return the number of fields at a time, so that all batches are equally large.

        Args:
            n: Number of fields.
            task: The task, on the grid of the fields.
            batch: At most so many; by default as many as fit.
            method: The method that samples, the trained one by default.

        Returns:
            The size of a batch.
        """
        if batch is None:
            n_axes = len(task.grid.shape)
            is_coupled = (method or self.method).couples_batch
            limit = COUPLED_BATCH[n_axes] if is_coupled else BATCH.get((self.device.type, n_axes), 16)
            ratio = math.prod(task.paper_grid.shape) / math.prod(task.grid.shape)
            batch = max(1, int(limit * min(1.0, ratio)))
        return math.ceil(n / math.ceil(n / check_int(batch, "batch", 1)))

    def compile_for(self, evaluations: int) -> None:
        """Compile the network if so many evaluations make it worth while and `load` left it open.

        Args:
            evaluations: Network evaluations that are to come.
        """
        self.execution.expect(evaluations)


def _choose_seed(seed: SupportsIndex | None, generator: torch.Generator | None) -> int:
    """Return the seed of a call; a generator gives one."""
    if generator is None:
        return check_int(0 if seed is None else seed, "seed", 0)
    if seed is not None:
        raise SapcError("give either seed= or generator=, not both")
    return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
