"""The state of a training and its step.

Everything random in step n is a function of the seed and n alone: which solutions, which source draws, which
flow times. So nothing of a generator's state has to be kept, and a run continued from a checkpoint takes the
same steps to the same bits as one never stopped.

    rows of step n    entries n batch .. (n+1) batch of the epochs' permutations laid end to end
    source, times     a generator seeded by (seed, n)
    sensors           one seeded by (seed, n) as well, on the CPU
    symmetries        one seeded by (seed, n), too: an element for every solution
    validation        one seeded by (seed, n) too: fresh draws, so that the plateau is one of the objective,
                      not of one draw of it; with `validation_draws` one seeded by the seed alone: the same
                      draws each time, so that losses compare

With `validation_draws` the weights of the lowest validation loss are kept, and are what a training ends with.

Sensors are points that are pinned besides, so that a network that is shown what is pinned learns to use
them: none in every second step, else 1 to N of them, each number as likely. All samples of a batch have the
same, at places drawn among the free values, with the values of their data. The manifold of the loss has them,
as that of a sampling run has: the source is anchored on them, too. Validation has none.

A method with a second objective has two gradients. Each is averaged over all processes, then the method
combines them, so several processes take the step that one would. Where the second is not finite the step is
the first's alone, and that is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..constraints import FeasiblePoint, Manifold, Pin, Solver
from ..errors import SapcError
from ..flow import source
from ..methods import SecondObjective
from ..nn.network import NetworkSource, make_execution, weights_of
from ..tasks import Task
from .augmentation import Augmentation
from .config import TrainingConfig
from .distributed import ProcessGroup
from .run_folder import (
    BEST,
    BEST_VALIDATION,
    LAST,
    OPTIMISER,
    Tensors,
    different_shapes,
    load_tensors,
    load_weights,
    read_step,
    save_tensors,
)

DataProgress = Callable[[str, int, int], None]
"""Called with (split, done, total) while solutions are computed."""

# What Adam keeps of every parameter.
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class StepResult(NamedTuple):
    """Numbers that a step computes, on the device.

    Attributes:
        loss: The objective.
        norm: Norm of its gradient.
        residual: The second objective, if the method has one.
        fallback: One if the gradient of the second objective was not finite and left out, else zero.
    """

    loss: Tensor
    norm: Tensor
    residual: Tensor | None = None
    fallback: Tensor | None = None


class BestWeights(NamedTuple):
    """Weights with the lowest validation loss so far.

    Attributes:
        weights: The weights.
        step: Training steps they had.
        validation: Their validation loss.
    """

    weights: Tensors
    step: int
    validation: float


class Training:
    """The state of a training and its step.

    Args:
        run: Settings of the training.
        group: The processes that train together.
        compiled: Whether the network is compiled; None leaves that open.
        data: Training and validation fields, in place of the run's own.
        data_progress: Called while solutions are computed.
        network: A network of your own.
    """

    def __init__(
        self,
        run: TrainingConfig,
        group: ProcessGroup,
        compiled: bool | None = None,
        data: tuple[Tensor, Tensor] | None = None,
        data_progress: DataProgress | None = None,
        network: NetworkSource | None = None,
    ) -> None:
        self.run, self.group, self.step = run, group, 0
        self.best: BestWeights | None = None
        self.task, self.method = run.make_task(), run.make_method()
        with torch.random.fork_rng(devices=[]):
            # That of the CPU only: weights are drawn there.
            torch.default_generator.manual_seed(run.seed)
            fresh_network = run.make_network(network)
        self.execution = make_execution(fresh_network, group.device, run.precision, compiled)
        self.network = self.execution.network
        self.model = self.execution.for_training(group.wrap)
        self.parameters = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.optimiser = torch.optim.Adam(self.parameters.values(), lr=run.lr, fused=True)
        self.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self.optimiser, factor=run.plateau_factor, patience=run.plateau_patience, min_lr=run.min_lr
        )
        self.augmentation = Augmentation(run, self.task, group.device, has_own_data=data is None)
        self.data, self.validation_data = data or (
            _fields(self.task, split, size, run.seed, group, data_progress)
            for split, size in (("train", run.train), ("validation", run.validation))
        )
        sample = self.data[:1].to(group.device)
        solver = run.solver(self.task)
        solver = _without_programs(solver) if run.sensors else solver
        self.H = self.task.normalized_manifold(sample, solver=solver)
        self._free_points = (~self.H.pinned).flatten().nonzero()[:, 0].cpu()
        self.generator = torch.Generator(group.device)
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.long)

    # -- randomness --

    def _seed_generator(self, *labels: object) -> torch.Generator:
        return self.generator.manual_seed(source.derive_seed(self.run.seed, *labels))

    def _rows(self) -> Tensor:
        """Select the solutions of this step."""
        n, rows, remaining = len(self.data), [], self.run.batch
        position = self.step * self.run.batch
        while remaining:
            epoch, first = divmod(position, n)
            if epoch != self._epoch:
                order = torch.Generator().manual_seed(source.derive_seed(self.run.seed, "epoch", epoch))
                self._epoch = epoch
                self._order = _to_device(torch.randperm(n, generator=order), self.data.device)
            rows.append(self._order[first : first + remaining])
            position, remaining = position + len(rows[-1]), remaining - len(rows[-1])
        return torch.cat(rows)

    def _solutions(self) -> Tensor:
        """Select the solutions of this step, each under a random element of every symmetry."""
        v0 = self.data[rows := self._rows()]
        if not self.augmentation.symmetries:
            return v0
        return self.augmentation.transform(v0, rows, self._seed_generator("symmetry", self.step))

    def _draw(self, v0: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Draw source fields and flow times; return this process's shard of data, source and times."""
        n, shard = len(v0), self.group.local_shard
        t = torch.rand(n, generator=g, device=self.group.device)
        if t_min := self.method.t_min:
            t = t_min + (1 - t_min) * t
        v1 = source.sample(self.task.grid, n, generator=g, length=self.run.source_length_scale)
        return shard(v0).to(self.group.device, non_blocking=True), shard(v1), shard(t)

    def _sensors(self) -> Pin | None:
        """Draw the points that are pinned in this step besides, the same on every device."""
        if not (largest := self.run.sensors):
            return None
        g = torch.Generator().manual_seed(source.derive_seed(self.run.seed, "sensors", self.step))
        # From 1 - largest on: half of the numbers mean none.
        number = max(0, int(torch.randint(1 - largest, largest + 1, (), generator=g)))
        mask = torch.zeros(self.H.shape, dtype=torch.bool)
        mask.view(-1)[self._free_points[torch.randperm(len(self._free_points), generator=g)[:number]]] = True
        return Pin(mask, label="sensors") if number else None

    # -- a step --

    def loss(self, v0: Tensor, v1: Tensor, t: Tensor, sensors: Pin | None = None) -> Tensor:
        """Compute the method's objective.

        Args:
            v0: Data `(batch, *grid)`.
            v1: Source draws.
            t: Flow times.
            sensors: Points that are pinned besides.

        Returns:
            One number.
        """
        H = self._manifold(v0, sensors)
        return self.method.loss(self.method.velocity(self.model, H), v0, v1, t, H)

    def _manifold(self, v0: Tensor, sensors: Pin | None = None) -> Manifold:
        H = self.H.rebind(v0) if self.method.loss_uses_manifold else self.H
        return H if sensors is None else H & sensors

    def advance(self) -> StepResult:
        """Take one step.

        Returns:
            What the step computed.
        """
        if self.run.schedule == "cosine":
            for group in self.optimiser.param_groups:
                group["lr"] = self.run.rate(self.step)
        v0, v1, t = self._draw(self._solutions(), self._seed_generator("step", self.step))
        sensors = self._sensors()
        self.optimiser.zero_grad(set_to_none=True)
        second_objective: Sequence[Tensor] = ()
        with self.execution.fixed_seed(
            lambda: source.derive_seed(self.run.seed, "network", self.step, self.group.rank)
        ):
            if (objective := self.method.second_objective) is not None:
                loss, *second_objective = self._two_gradients(objective, v0, v1, t, sensors)
            else:
                loss = self.loss(v0, v1, t, sensors)
                if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
                    raise SapcError(
                        f"the loss of method {self.method.name} must return one number that depends on the network, "
                        f"as a tensor; got {loss!r:.80}"
                    )
                torch.autograd.backward(loss)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.run.max_grad_norm)
        self.optimiser.step()
        self.step += 1
        return StepResult(loss.detach(), norm, *second_objective)

    def _two_gradients(
        self, objective: SecondObjective, v0: Tensor, v1: Tensor, t: Tensor, sensors: Pin | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Combine two gradients; return both objectives, and whether the second was left out."""
        H = self._manifold(v0, sensors)
        # Not the wrapped network: averages are taken here.
        v = self.method.velocity(self.execution.for_training(lambda network: network), H)
        first = self.method.loss(v, v0, v1, t, H)
        g1 = self._gradient(first)
        second = objective.loss(v, v0, v1, t, H, self.step / self.run.steps)
        g2 = self._gradient(second)
        g = objective.combine(g1, g2)
        # Of the combination: squares can overflow where gradients do not.
        is_fine = g.isfinite().all()
        g = torch.where(is_fine, g, g1)
        parameters = list(self.parameters.values())
        for p, part in zip(parameters, torch.split(g, [p.numel() for p in parameters]), strict=True):
            p.grad = part.view_as(p)
        return first.detach(), second.detach(), (~is_fine).to(first.dtype)

    def _gradient(self, objective: Tensor) -> Tensor:
        """Compute a gradient as one vector, averaged over all processes."""
        parameters = list(self.parameters.values())
        parts = torch.autograd.grad(objective, parameters, allow_unused=True, materialize_grads=True)
        return self.group.total(torch.cat([part.flatten() for part in parts])) / self.group.size

    def without_gradient(self) -> list[str]:
        """Name the layers that the last step gave no gradient.

        Returns:
            Their names.
        """
        return self.execution.without_gradient(self.parameters)

    @torch.no_grad()
    def validate(self) -> float:
        """Average the objective over the validation split, and keep the weights if they are the best so far.

        Returns:
            The mean.
        """
        draws, n = self.run.validation_draws, len(self.validation_data)
        g = self._seed_generator("validation", *([] if draws else [self.step]))
        total = torch.zeros((), dtype=torch.float64, device=self.group.device)
        with self.execution.evaluation_mode():
            for _ in range(draws or 1):
                for v0 in self.validation_data.chunk(math.ceil(n / self.run.batch)):
                    v0, v1, t = self._draw(v0, g)
                    if len(v0):
                        total += len(v0) * self.loss(v0, v1, t).double()
        loss = float(self.group.total(total)) / (n * (draws or 1))
        if draws and (self.best is None or loss < self.best.validation):
            weights = {name: value.clone() for name, value in weights_of(self.network).items()}
            self.best = BestWeights(weights, self.step, loss)
        return loss

    def result(self) -> tuple[Tensors, dict[str, Any]]:
        """Return what the training ends with.

        Returns:
            The weights, the best ones if validations compare, and what to record of them.
        """
        if self.best is None:
            return weights_of(self.network), {}
        return self.best.weights, {"best_step": self.best.step, "validation": self.best.validation}

    # -- files --

    def save(self, path: Path, **values: Any) -> None:
        """Write a checkpoint: everything that the next step depends on.

        Args:
            path: The file.
            values: Further values, which `restore` returns.
        """
        tensors, metadata = self._optimiser_state()
        if self.best is not None:
            tensors |= {BEST + name: value for name, value in self.best.weights.items()}
        save_tensors(path, {**weights_of(self.network), **tensors}, {**metadata, **values})

    def save_optimiser(self, path: Path) -> None:
        """Write what a training that goes on needs besides the weights it ended with.

        Args:
            path: The file.
        """
        tensors, metadata = self._optimiser_state()
        if self.best is not None:
            tensors |= {LAST + name: value for name, value in weights_of(self.network).items()}
        save_tensors(path, tensors, metadata)

    def _optimiser_state(self) -> tuple[Tensors, dict[str, Any]]:
        tensors = {
            f"adam.{key}.{name}": value
            for name, parameter in self.parameters.items()
            for key, value in self.optimiser.state[parameter].items()
        }
        schedule = {k: v for k, v in self.schedule.state_dict().items() if isinstance(v, int | float | list)}
        rates = [group["lr"] for group in self.optimiser.param_groups]
        best = {} if self.best is None else {BEST_VALIDATION: [self.best.step, self.best.validation]}
        return tensors, {"step": self.step, "schedule": schedule, "rates": rates, **best}

    def restore(self, path: Path) -> dict[str, Any]:
        """Restore the state from a checkpoint.

        Args:
            path: The file.

        Returns:
            Its description, with the further values that `save` wrote.

        Raises:
            SapcError: The file is no checkpoint of this network.
        """
        tensors, metadata = load_tensors(path)
        adam = {name: tensors.pop(name) for name in list(tensors) if name.startswith(OPTIMISER)}
        load_weights(self.network, tensors, path)
        if missing_keys := {"step", "schedule", "rates"} - set(metadata):
            raise SapcError(f"{path} is not a checkpoint: it lacks {', '.join(sorted(missing_keys))}")
        best = {name.removeprefix(BEST): adam.pop(name) for name in list(adam) if name.startswith(BEST)}
        # A training that begins with weights has no state of its optimiser yet.
        if adam:
            self._restore_optimiser(adam, path)
        # Another version of torch may have kept more, or other, entries.
        schedule = self.schedule.state_dict()
        _check_schedule(metadata, schedule, path)
        if best:
            self._restore_best(best, metadata, path)
        for group, rate in zip(self.optimiser.param_groups, metadata["rates"], strict=True):
            group["lr"] = rate
        self.schedule.load_state_dict({k: v for k, v in metadata["schedule"].items() if k in schedule})
        self.step = read_step(metadata, path)
        return metadata

    def _restore_best(self, weights: Tensors, metadata: dict[str, Any], path: Path) -> None:
        if (
            different_shapes(_shapes(weights), _shapes(weights_of(self.network)))
            or BEST_VALIDATION not in metadata
        ):
            raise SapcError(f"{path} is not a whole checkpoint: of its best weights some are missing")
        step, validation = metadata[BEST_VALIDATION]
        moved_weights = {name: value.to(self.group.device) for name, value in weights.items()}
        self.best = BestWeights(moved_weights, int(step), float(validation))

    def _restore_optimiser(self, adam: Tensors, path: Path) -> None:
        for name, parameter in self.parameters.items():
            if missing := [k for k in MOMENTS if f"adam.{k}.{name}" not in adam]:
                raise SapcError(
                    f"{path} is not a whole checkpoint: the optimiser's {missing[0]} of {name} is missing"
                )
            moments = {k: adam[f"adam.{k}.{name}"] for k in MOMENTS}
            shapes = [list(v.shape) for v in moments.values()]
            if shapes != [[], list(parameter.shape), list(parameter.shape)]:
                raise SapcError(
                    f"{path} is not a whole checkpoint: the optimiser's state of {name} has shapes {shapes}"
                )
            self.optimiser.state[parameter] = {k: v.to(self.group.device) for k, v in moments.items()}


def _check_schedule(metadata: dict[str, Any], reference: dict[str, Any], path: Path) -> None:
    """Refuse a checkpoint whose rates, schedule or losses are not numbers, as those of a reference are."""

    def is_like(value: Any, kind: Any) -> bool:
        if isinstance(kind, list):
            return isinstance(value, list) and all(is_like(v, 0.0) for v in value)
        return isinstance(value, int | float)

    schedule = metadata["schedule"]
    values = {**metadata, **schedule} if isinstance(schedule, dict) else {"rates": None}
    kinds = {**reference, "losses": [], "residuals": [], "seconds": 0.0, "fallbacks": 0.0}
    # Lists of numbers, and how many.
    lengths = {"rates": 1, BEST_VALIDATION: 2}
    kinds |= {name: [] for name in lengths}
    is_fine = all(is_like(values[name], kind) for name, kind in kinds.items() if name in values)
    if not is_fine or any(len(metadata[name]) != n for name, n in lengths.items() if name in metadata):
        raise SapcError(f"{path} is not a whole checkpoint: its rates, schedule or losses are not numbers")


def _shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in tensors.items()}


def _without_programs(solver: Solver) -> Solver:
    """Project without compiled programs, which would be made anew for each new set of pinned points."""
    if not isinstance(solver, FeasiblePoint):
        return solver
    return replace(solver, execution=replace(solver.execution, compiled=False))


def _to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy to the device, without waiting for it."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


def _fields(
    task: Task, split: str, size: int, seed: int, group: ProcessGroup, data_progress: DataProgress | None
) -> Tensor:
    """Load solutions: onto the device if they fit beside the training, else onto the CPU."""
    # The first process solves and fills the cache.
    if not group.is_main:
        group.wait()
    progress = partial(data_progress, split) if data_progress is not None and group.is_main else None
    fields = task.normalize(
        task.dataset(split, size=size, seed=seed, device=group.device, progress=progress).fields
    )
    if group.is_main:
        group.wait()
    if group.device.type == "cpu":
        return fields
    free = torch.cuda.mem_get_info(group.device)[0]
    return fields.to(group.device) if fields.nbytes < free / 3 else fields
