"""Settings of a training: task, method, network, optimisation, seed.

Everything that changes a result is here, and nothing else. `presets` has settings by one word.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

import torch
from torch import nn

from .._old_names import find_renamed, rename_arguments, rename_fields, rename_method
from ..constraints import FeasiblePoint, NearestPoint, Solver
from ..data import Fields
from ..errors import SapcError, check_choice, check_record, check_type, explain_misuse, has_type
from ..methods import Method, get_method
from ..methods.registry import describe_method_file
from ..nn.fno import LARGEST, Precision
from ..nn.network import Backbone, Inputs, NetworkSource, OwnNetwork, make_plain, read_settings, to_tuples
from ..tasks import DataDescription, Physics, Task, attach_task, check_options, get_task
from ..tasks.physics import pins_of
from .presets import Preset, current_preset, preset_name, published_settings, settings_for_data

FORMAT = "sapc-run-1"
Projector = Literal["feasible", "nearest", "paper"]
Schedule = Literal["plateau", "cosine"]
FILE_KEYS = {
    "lr_floor": "min_lr",
    "factor": "plateau_factor",
    "patience": "plateau_patience",
    "clip": "max_grad_norm",
    "validate": "validation_interval",
    "length": "source_length_scale",
}
"""Entries of config.json that have another name than their field: those of the fields in version 0.1.0."""
LATER_SETTINGS = ("stages", "parent", "validation_draws", "sensors", "symmetries")
"""Settings that are only written if they are used, so that older runs have the files they had."""


@rename_fields(**FILE_KEYS, attached="attached_task")
@dataclass(frozen=True)
class TrainingConfig:
    """Complete settings of one training run.

    Attributes:
        task: Name of the task.
        method: Name of the method.
        grid: Points per axis.
        backbone: Sizes of the FNO, or the description of a network of your own.
        steps: Training steps.
        batch: Samples per step, over all processes together.
        train: Number of solutions to train on.
        validation: Number of solutions to validate on.
        seed: Seed of data, weights, source draws and flow times.
        options: Options of the task.
        lr: Learning rate, the highest one.
        min_lr: Lowest learning rate.
        plateau_factor: Multiplies the rate of schedule plateau where the validation makes no progress.
        plateau_patience: Validations without progress before that.
        max_grad_norm: Gradients with a larger norm are scaled down to it.
        validation_interval: Steps between two validations.
        validation_draws: Draws of source and flow time for every validation solution. They are the same at
            each validation, so that losses compare, and the weights with the lowest one are the result. 0:
            one fresh draw each time, and the last weights are the result.
        schedule: plateau, or cosine: half a cosine from `lr` to `min_lr` over all steps, after a rise over
            the first hundredth of them.
        precision: Precision of the network's products: float32, tf32, fp16 or bf16.
        projector: Projection onto curved manifolds: feasible (a near point on H), nearest (the nearest one)
            or paper (its plain iteration).
        source_length_scale: Length scale of the source, the grid being the unit cube.
        sensors: At most so many random points are pinned in a step besides, for a network that is shown what
            is pinned.
        preset: Name of the preset that the settings come from.
        stages: Steps at which the training had come to its end before it was continued.
        parent: Weights that the training begins with, if they are another run's: name, step and SHA-256.
        symmetries: Texts of the task's symmetries by which solutions are moved at random; see
            `sapc.tasks.index_maps`.
        attached_task: The task itself, if it was made of data. Its physics and data are no settings: they are
            neither compared nor written. A run that was read from a file or sent to another process has
            none until `attach` gives it.
    """

    task: str
    method: str
    grid: tuple[int, ...]
    backbone: Backbone | OwnNetwork
    steps: int
    batch: int
    train: int
    validation: int
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    lr: float = 3e-4
    min_lr: float = 1e-4
    plateau_factor: float = 0.5
    plateau_patience: int = 10
    max_grad_norm: float = 100.0
    validation_interval: int = 200
    validation_draws: int = 0
    schedule: str = "plateau"
    precision: str = "fp16"
    projector: str = "feasible"
    source_length_scale: float = 1e-3
    sensors: int = 0
    preset: str = "published"
    stages: tuple[int, ...] = ()
    parent: Mapping[str, Any] = field(default_factory=dict)
    symmetries: tuple[str, ...] = ()
    attached_task: Task | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "preset", preset_name(self.preset))
        make_plain(self, *(name for name in SETTINGS if name not in ("backbone", "options", "parent")))
        unused = {"stages": 0, "validation_draws": 0, "sensors": 0, "symmetries": 0}
        check_record(self, seed=0, plateau_patience=0, **unused)
        if self.plateau_factor >= 1:
            raise SapcError(f"plateau_factor must be below 1, got {self.plateau_factor}")
        for name, kinds in (("precision", Precision), ("projector", Projector), ("schedule", Schedule)):
            check_choice(getattr(self, name), name, get_args(kinds))
        ends = (*self.stages, self.steps)
        if any(a >= b for a, b in zip((0, *ends), ends, strict=False)):
            raise SapcError(
                f"stages must be growing numbers below steps, got {self.stages!r:.60} of {self.steps}"
            )
        self.backbone.check_grid(self.grid)
        if math.prod(self.grid) >= LARGEST:
            raise SapcError(f"the grid {self.grid} has more points than can be counted; choose a smaller one")
        if reserved_names := sorted({"name", "grid"} & set(self.options)):
            raise SapcError(f"{reserved_names[0]!r} is no option of a task, but a setting of the run")
        check_options(self.options)
        method = get_method(self.method)
        if method.weights != self.method:
            raise SapcError(
                f"{self.method} is not trained: it samples with the weights of {method.weights}; "
                "train that one"
            )
        if self.sensors and method.conditioning_input is None:
            raise SapcError(
                f"the network of {self.method} is not shown what is pinned, so it cannot learn to use sensors; "
                "leave sensors out, or train cond_sapc"
            )

    def __getstate__(self) -> dict[str, Any]:
        # Physics is code, and data are large: another process attaches its own.
        return {**self.__dict__, "attached_task": None}

    # -- what the settings stand for --

    def rate(self, step: int) -> float:
        """Compute the learning rate of schedule cosine.

        Args:
            step: Training step, counted from 0.

        Returns:
            The rate of that step.
        """
        warmup = max(1, self.steps // 100)
        decay = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return min(1.0, (step + 1) / warmup) * (self.min_lr + (self.lr - self.min_lr) * decay)

    def extend_to(self, steps: int) -> TrainingConfig:
        """Describe this run, finished and then continued.

        Args:
            steps: Steps in all.

        Returns:
            The settings of the longer run.
        """
        return replace(self, steps=steps, stages=(*self.stages, self.steps))

    extended = rename_method("TrainingConfig.extended", "TrainingConfig.extend_to")

    @explain_misuse
    def make_task(self, grid: tuple[int, ...] | None = None) -> Task:
        """Make the task.

        Args:
            grid: Points per axis, if not those of the training.

        Returns:
            The task on that grid.
        """
        grid = self.grid if grid is None else grid
        if self.attached_task is not None:
            return self.attached_task.resize(grid)
        return get_task(self.task, grid=grid, **self.options)

    @property
    def description(self) -> DataDescription:
        """What the settings say of data and physics of the task."""
        return DataDescription.from_options(self.options)

    def attach(
        self,
        physics: Any = None,
        data: Fields | str | os.PathLike[str] | None = None,
        reading: Mapping[str, Any] | None = None,
    ) -> TrainingConfig:
        """Attach a task that is made from what the settings do not hold.

        Args:
            physics: The laws of your data: a constraint, a function that makes one, or a Python file.
            data: Your fields, or the file that they are read from.
            reading: How the file is read, if not as before; see `sapc.read_fields`.

        Returns:
            The same settings with that task.
        """
        task = attach_task(self.task, self.options, self.attached_task, physics, data, reading)
        return replace(self, attached_task=task)

    @property
    def physics(self) -> Physics | None:
        """The physics of the attached task."""
        return None if self.attached_task is None else self.attached_task.physics

    def make_method(self) -> Method:
        """Look up the method.

        Returns:
            The method by its name.
        """
        return get_method(self.method)

    def make_network(self, network: NetworkSource | None = None) -> nn.Module:
        """Make the network.

        Args:
            network: A network of your own, or a function that makes one, if the run has one.

        Returns:
            An FNO with fresh weights, or a copy of the given network.
        """
        return self.backbone.make(self._inputs(), network)

    def network_shapes(self, network: NetworkSource | None = None) -> dict[str, tuple[int, ...]]:
        """Compute the shapes of the network's weights, without making an FNO; impossible sizes are refused.

        Args:
            network: A network of your own, if the run has one.

        Returns:
            The shapes by name.
        """
        return self.backbone.shapes(self._inputs(), network)

    def check(self, network: NetworkSource | None = None) -> None:
        """Refuse now what would fail later: a network that cannot be made, data that the task does not have.

        Args:
            network: A network of your own, if the run has one.
        """
        self.network_shapes(network)
        task = self.make_task()
        self._check_sensors(task)
        task.find_symmetries(self.symmetries)
        task.check("train", self.train, self.seed)
        task.check("validation", self.validation, self.seed)

    def _check_sensors(self, task: Task) -> None:
        """Refuse as many sensors as there are free points."""
        if self.sensors:
            pinned = torch.zeros(task.grid.shape, dtype=torch.bool)
            for pin in pins_of(task.constraint):
                pinned |= pin.mask(task.grid.shape)
            if self.sensors >= (free := int((~pinned).sum())):
                raise SapcError(
                    f"sensors must be below the {free} values that are not pinned, got {self.sensors}"
                )

    def describe_plugins(self) -> dict[str, dict[str, str]]:
        """Describe the files that define the method and the task, as far as they are plug-ins.

        Returns:
            Name and SHA-256 of the file of the `method` and of the `task`.
        """
        files = {"method": describe_method_file(self.method)}
        if self.description.can_draw:
            files["task"] = dict(self.make_task().class_file)
        return {kind: file for kind, file in files.items() if file}

    def _inputs(self) -> Inputs:
        method = self.make_method()
        conditions = 0 if method.conditioning_input is None else method.condition_fields
        return Inputs(len(self.grid), self.description.n_channels, conditions, self.precision)

    def solver(self, task: Task) -> Solver:
        """Choose how curved manifolds are projected onto.

        Args:
            task: The task, which may have a published iteration.

        Returns:
            The solver that `projector` names.
        """
        if self.projector == "paper" and task.published_solver is not None:
            return task.published_solver
        return NearestPoint() if self.projector == "nearest" else FeasiblePoint()

    # -- files --

    def to_dict(self) -> dict[str, Any]:
        """Describe the run as config.json does.

        Returns:
            A record that JSON can hold.
        """
        keys = {name: key for key, name in FILE_KEYS.items()}
        values = {keys.get(name, name): getattr(self, name) for name in SETTINGS}
        values = {key: value for key, value in values.items() if value or key not in LATER_SETTINGS}
        return {"format": FORMAT, **values, "backbone": asdict(self.backbone), "options": dict(self.options)}

    def identity(self) -> dict[str, Any]:
        """Describe what makes it this very run, as a file gives it back.

        Returns:
            The settings, without where a network's class and the file of your data lie and how it is read.
        """
        options = {**self.options, **self.description.identity()}
        values = {**self.to_dict(), "backbone": self.backbone.identity(), "options": options}
        return dict(json.loads(json.dumps(values)))

    @classmethod
    def from_dict(cls, data: Any) -> TrainingConfig:
        """Read the settings from the content of a config.json.

        Args:
            data: What `to_dict` returned, in this version or an earlier one.

        Returns:
            The settings.

        Raises:
            SapcError: The content is of another kind or version, or an entry is unknown, missing or
                impossible.
        """
        file_format = data.get("format") if isinstance(data, Mapping) else type(data).__name__
        if file_format != FORMAT:
            raise SapcError(f"this is not the configuration of a run ({FORMAT}), but {file_format!r}")
        entries = {key: to_tuples(value) for key, value in data.items() if key != "format"}
        required_keys = {f.name for f in fields(cls) if f.default is f.default_factory is MISSING}
        keys = set(SETTINGS) - set(FILE_KEYS.values()) | set(FILE_KEYS)
        if wrong_keys := sorted((entries.keys() - keys) | (required_keys - entries.keys())):
            raise SapcError(
                f"the configuration of a run has unknown or missing entries: {', '.join(wrong_keys)}"
            )
        values = {FILE_KEYS.get(key, key): value for key, value in entries.items()}
        values["backbone"] = read_settings(values["backbone"])
        if "preset" in values:
            values["preset"] = current_preset(values["preset"])
        return cls(**values)


SETTINGS = tuple(f.name for f in fields(TrainingConfig) if f.compare)
"""Names of all settings: the fields without the task that a run carries."""


@rename_arguments(**FILE_KEYS)
@explain_misuse
def training_config(
    task: str | Task,
    method: str | None = None,
    preset: str = "small",
    grid: tuple[int, ...] | None = None,
    network: NetworkSource | None = None,
    **changes: Any,
) -> TrainingConfig:
    """Make the settings of a training from a preset, with any of them changed.

    Args:
        task: A task by name, or a task of your own.
        method: Name of a method that is trained; `default_method(task, network, preset)` unless given.
        preset: published, full, best, compact, small or tiny.
        grid: Points per axis, if not those of the preset; a task of your own has its grid already.
        network: A network of your own, which the settings describe. It is passed again to train it.
        changes: Fields of `TrainingConfig` and sizes of the FNO (`modes`, `hidden`, ...) by name.
            `symmetries=True` stands for all that the task declares, False for none. Unless given it is True
            for data of your own and for preset best, and False otherwise.

    Returns:
        The settings.

    Raises:
        SapcError: A name or a setting is unknown or impossible, or two of them contradict each other.
    """
    check_choice(preset := preset_name(preset), "preset", get_args(Preset))
    if not isinstance(task, str | Task):
        raise SapcError(
            "a run is of a task, by name or as sapc.Task.from_data(data, physics) makes it, "
            f"got {type(task).__name__}"
        )
    options = changes.pop("options", {})
    check_type(options, Mapping, "options", "a record of a task's options by name")
    resolved_task = get_task(task, **options) if isinstance(task, str) else task
    is_named = isinstance(task, str) and resolved_task.can_draw
    if not is_named and (grid is not None or options):
        raise SapcError("a task of your own has its grid and options already; leave out grid and options")
    make_settings = published_settings if resolved_task.can_draw else settings_for_data
    settings = make_settings(preset, tuple(resolved_task.grid.points_per_axis), resolved_task.sizes)
    if is_named:
        resolved_task = resolved_task.resize(settings["grid"] if grid is None else grid)
    shape = tuple(resolved_task.grid.points_per_axis)
    settings |= {"grid": shape, "options": resolved_task.options}
    settings["backbone"] = _backbone(settings["backbone"], len(shape), changes, network)
    if unknown_names := sorted(set(changes) - set(SETTINGS)):
        settable = set(SETTINGS) - {"task", "method", "preset", "backbone", "stages", "parent"}
        choices = ", ".join(sorted(settable | {size.name for size in fields(Backbone)}))
        raise SapcError(f"unknown setting {unknown_names[0]!r} of a run; choose from {choices}")
    method = default_method(resolved_task, network, preset) if method is None else method
    settings |= {"task": resolved_task.name, "method": method, "preset": preset}
    settings["attached_task"] = None if resolved_task.can_draw else resolved_task
    is_symmetric = not resolved_task.can_draw or preset == "best"
    settings["symmetries"] = _symmetries(resolved_task, changes.pop("symmetries", is_symmetric))
    return TrainingConfig(**settings | changes)


def default_method(task: Task, network: NetworkSource | None = None, preset: str = "small") -> str:
    """Choose the method where none is named.

    Args:
        task: The task.
        network: A network of your own.
        preset: The preset.

    Returns:
        `cond_sapc` with an FNO for fields of your own and for preset best; else the paper's, `sapc`, whose
        network takes no condition.
    """
    goes_beyond = not task.can_draw or preset == "best"
    return "cond_sapc" if goes_beyond and network is None else "sapc"


def _symmetries(task: Task, choice: Any) -> tuple[str, ...]:
    """Return the texts of the symmetries that are chosen; True stands for all that the task declares."""
    if isinstance(choice, bool):
        return tuple(symmetry.text for symmetry in task.find_symmetries()) if choice else ()
    if not has_type(choice := to_tuples(choice), tuple[str, ...]):
        raise SapcError(f"symmetries is true, false, or texts as ('shift:x',), got {choice!r:.60}")
    return tuple(symmetry.text for symmetry in task.find_symmetries(choice))


def _backbone(
    default: Backbone, axes: int, changes: dict[str, Any], network: NetworkSource | None
) -> Backbone | OwnNetwork:
    """Take what is said of the network out of the changes of a preset."""
    sizes = {f.name: changes.pop(f.name) for f in fields(Backbone) if f.name in changes}
    backbone = changes.pop("backbone", None)
    if network is not None:
        if sizes or backbone is not None:
            raise SapcError(
                f"{next(iter(sizes), 'backbone')} is a size of the FNO, and network= is one of your own; "
                "leave one of them out"
            )
        return OwnNetwork.of(network)
    backbone = default if backbone is None else backbone
    check_type(backbone, (Backbone, OwnNetwork), "backbone", "the sizes of an FNO, a sapc.config.Backbone")
    if isinstance(modes := sizes.get("modes"), int):
        sizes["modes"] = (modes,) * axes
    return replace(backbone, **sizes) if sizes else backbone


__getattr__ = find_renamed(__name__)
