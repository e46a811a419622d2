"""What a run is, completely: task, method, network, optimisation, seed. Everything that changes a result is here and nothing else.

Presets are a run's settings by one word. They start from a task, because its grid decides how large a model is useful:

    published   the published settings
    full    the published network with a better training: a third of the steps, twenty times the rate, which falls along a cosine
    compact the sizes and the training of the models that come with the package
    small   a narrower network and fewer steps: a meaningful model in two to three minutes on two CPU cores
    tiny    seconds, for trying out commands; its samples mean nothing
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from torch import nn

from .._old_names import find_renamed, rename_arguments, rename_fields, rename_method
from ..constraints import FeasiblePoint, NearestPoint, Solver
from ..data import Fields
from ..errors import SapcError, check_choice, check_record, check_type, explain_misuse
from ..methods import Method, get_method
from ..nn.fno import LARGEST, Precision
from ..nn.network import Backbone, Inputs, NetworkSource, OwnNetwork, make_plain, read_settings, to_tuples
from ..tasks import DataDescription, Physics, Task, attach_task, check_options, get_task

FORMAT = "sapc-run-1"
Projector = Literal["feasible", "nearest", "paper"]
Schedule = Literal["plateau", "cosine"]
Preset = Literal["published", "full", "compact", "small", "tiny"]
OLD_PRESETS = {"paper": "published"}
FILE_KEYS = {
    "lr_floor": "min_lr",
    "factor": "plateau_factor",
    "patience": "plateau_patience",
    "clip": "max_grad_norm",
    "validate": "validation_interval",
    "length": "source_length_scale",
}
"""Entries of config.json that have another name than their field; these were the names of the fields in version 0.1.0, too."""


@rename_fields(**FILE_KEYS, attached="attached_task")
@dataclass(frozen=True)
class TrainingConfig:
    """One training run.

    grid        points per axis; options: the task's own
    train, validation   numbers of solutions
    batch       samples per step, over all processes together
    max_grad_norm   gradients are scaled down to it
    validation_interval     steps between validations
    schedule    plateau: the rate is multiplied by `plateau_factor` after `plateau_patience` validations without progress, down to
                `min_lr`; cosine: half a cosine from `lr` to `min_lr` over all steps, after a rise over the first hundredth of them
    precision   of the network's products: float32, tf32, fp16 or bf16
    projector   curved manifolds: feasible (a near point on H), nearest (the nearest one), paper (its plain iteration)
    stages      steps at which the training had come to its end before it was continued
    parent      the weights it begins with, if they are another run's: name, step and SHA-256
    attached_task   the task itself, if it was made of data: its physics and data are no settings, so it is neither compared nor written,
                and a run that is read from a file or sent to another process is without it until they are given (`attach`)
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
    schedule: str = "plateau"
    precision: str = "fp16"
    projector: str = "feasible"
    source_length_scale: float = 1e-3
    preset: str = "published"
    stages: tuple[int, ...] = ()
    parent: Mapping[str, Any] = field(default_factory=dict)
    attached_task: Task | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "preset", preset_name(self.preset))
        make_plain(self, *(name for name in SETTINGS if name not in ("backbone", "options", "parent")))
        check_record(self, seed=0, plateau_patience=0, stages=0)
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
        if reserved := sorted({"name", "grid"} & set(self.options)):
            raise SapcError(f"{reserved[0]!r} is no option of a task, but a setting of the run")
        check_options(self.options)
        method = get_method(self.method)
        if method.weights != self.method:
            raise SapcError(
                f"{self.method} is not trained: it samples with the weights of {method.weights}; train that one"
            )

    # -- what the words stand for --

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0, by schedule cosine."""
        rise = max(1, self.steps // 100)
        turn = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return min(1.0, (step + 1) / rise) * (self.min_lr + (self.lr - self.min_lr) * turn)

    def extend_to(self, steps: int) -> TrainingConfig:
        """This run, finished and then continued to more steps."""
        return replace(self, steps=steps, stages=(*self.stages, self.steps))

    extended = rename_method("TrainingConfig.extended", "TrainingConfig.extend_to")

    @explain_misuse
    def make_task(self, grid: tuple[int, ...] | None = None) -> Task:
        """The task, on the trained grid or another one."""
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
        """Return the same run with its task at hand, made from what its settings do not hold; see `tasks.attach_task`."""
        task = attach_task(self.task, self.options, self.attached_task, physics, data, reading)
        return replace(self, attached_task=task)

    @property
    def physics(self) -> Physics | None:
        """The physics of the attached task."""
        return None if self.attached_task is None else self.attached_task.physics

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: physics is code, and data are large; they are attached there."""
        return {**self.__dict__, "attached_task": None}

    def make_method(self) -> Method:
        """The method."""
        return get_method(self.method)

    def make_network(self, network: NetworkSource | None = None) -> nn.Module:
        """The FNO with fresh weights, or a copy of the network of one's own that is given."""
        return self.backbone.make(self._inputs(), network)

    def network_shapes(self, network: NetworkSource | None = None) -> dict[str, tuple[int, ...]]:
        """The shapes of the network's weights; the FNO is not made for it, and sizes that it cannot have are refused."""
        return self.backbone.shapes(self._inputs(), network)

    def check(self, network: NetworkSource | None = None) -> None:
        """Refuse before the work what would fail in it: a network that cannot be made, data that the task does not have."""
        self.network_shapes(network)
        task = self.make_task()
        task.check("train", self.train, self.seed)
        task.check("validation", self.validation, self.seed)

    def _inputs(self) -> Inputs:
        conditions = int(self.make_method().conditioning_input is not None)
        return Inputs(len(self.grid), self.description.n_channels, conditions, self.precision)

    def solver(self, task: Task) -> Solver:
        """How curved manifolds are projected onto."""
        if self.projector == "paper" and task.published_solver is not None:
            return task.published_solver
        return NearestPoint() if self.projector == "nearest" else FeasiblePoint()

    # -- files --

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        keys = {name: key for key, name in FILE_KEYS.items()}
        values = {keys.get(name, name): getattr(self, name) for name in SETTINGS}
        values = {name: value for name, value in values.items() if value or name not in ("stages", "parent")}
        return {"format": FORMAT, **values, "backbone": asdict(self.backbone), "options": dict(self.options)}

    def identity(self) -> dict[str, Any]:
        """What makes it this very run, as a file gives it back: its settings, without where a network's class and the file of own data lie
        and how it is read.
        """
        options = {**self.options, **self.description.identity()}
        own = {**self.to_dict(), "backbone": self.backbone.identity(), "options": options}
        return dict(json.loads(json.dumps(own)))

    @classmethod
    def from_dict(cls, data: Any) -> TrainingConfig:
        """Back from `to_dict`; a file of another kind or version is refused by name."""
        form = data.get("format") if isinstance(data, Mapping) else type(data).__name__
        if form != FORMAT:
            raise SapcError(f"this is not the configuration of a run ({FORMAT}), but {form!r}")
        entries = {key: to_tuples(value) for key, value in data.items() if key != "format"}
        required = {f.name for f in fields(cls) if f.default is f.default_factory is MISSING}
        known = set(SETTINGS) - set(FILE_KEYS.values()) | set(FILE_KEYS)
        if wrong := sorted((entries.keys() - known) | (required - entries.keys())):
            raise SapcError(f"the configuration of a run has unknown or missing entries: {', '.join(wrong)}")
        values = {FILE_KEYS.get(key, key): value for key, value in entries.items()}
        values["backbone"] = read_settings(values["backbone"])
        if "preset" in values:
            values["preset"] = current_preset(values["preset"])
        return cls(**values)


SETTINGS = tuple(f.name for f in fields(TrainingConfig) if f.compare)
"""What a run is, by name: all of it but the task that it carries."""


# -- presets --


def preset_name(name: str) -> str:
    """Return the name of a preset, given that or its old one; for the old one there is a warning."""
    if (new := current_preset(name)) != name:
        warnings.warn(f"the preset {name} is now called {new}", DeprecationWarning, stacklevel=3)
    return new


def current_preset(name: str) -> str:
    """Return the name of a preset for its old one; anything else as it is."""
    return OLD_PRESETS.get(name, name) if isinstance(name, str) else name


@rename_arguments(**FILE_KEYS)
@explain_misuse
def training_config(
    task: str | Task,
    method: str = "sapc",
    preset: str = "small",
    grid: tuple[int, ...] | None = None,
    network: NetworkSource | None = None,
    **changes: Any,
) -> TrainingConfig:
    """A run of `task`, by name or a task of your own, with `method` by a preset's settings, with any of them changed.

    `network` is one of your own, which the run describes and which is passed again to train it.
    """
    check_choice(preset := preset_name(preset), "preset", get_args(Preset))
    if not isinstance(task, str | Task):
        raise SapcError(
            f"a run is of a task, by name or as sapc.Task.from_data(data, physics) makes it, got {type(task).__name__}"
        )
    options = changes.pop("options", {})
    check_type(options, Mapping, "options", "a record of a task's options by name")
    chosen = get_task(task, **options) if isinstance(task, str) else task
    is_named = isinstance(task, str) and chosen.can_draw
    if not is_named and (grid is not None or options):
        raise SapcError("a task of your own has its grid and options already; leave out grid and options")
    make = _settings if chosen.can_draw else settings_for
    settings = make(preset, tuple(chosen.grid.points_per_axis), chosen.sizes)
    if is_named:
        chosen = chosen.resize(settings["grid"] if grid is None else grid)
    settings |= {"grid": tuple(chosen.grid.points_per_axis), "options": chosen.options}
    settings["backbone"] = _backbone(settings["backbone"], len(chosen.grid.points_per_axis), changes, network)
    if unknown := sorted(set(changes) - set(SETTINGS)):
        raise SapcError(f"unknown setting {unknown[0]!r} of a run")
    attached_task = None if chosen.can_draw else chosen
    named = {"task": chosen.name, "method": method, "preset": preset, "attached_task": attached_task}
    return TrainingConfig(**{**settings, **named, **changes})


def _backbone(
    usual: Backbone, axes: int, changes: dict[str, Any], network: NetworkSource | None
) -> Backbone | OwnNetwork:
    """Take what is said of the network out of the changes of a preset."""
    sizes = {f.name: changes.pop(f.name) for f in fields(Backbone) if f.name in changes}
    given = changes.pop("backbone", None)
    if network is not None:
        if sizes or given is not None:
            raise SapcError(
                f"{next(iter(sizes), 'backbone')} is a size of the FNO, and network= is one of your own; leave one of them out"
            )
        return OwnNetwork.of(network)
    body = usual if given is None else given
    check_type(body, (Backbone, OwnNetwork), "backbone", "the sizes of an FNO, a sapc.config.Backbone")
    if isinstance(modes := sizes.get("modes"), int):
        sizes["modes"] = (modes,) * axes
    return replace(body, **sizes) if sizes else body


def settings_for(name: str, lattice: tuple[int, ...], sizes: Mapping[str, int]) -> dict[str, Any]:
    """A preset's network and training for a grid and numbers of samples that are not the paper's."""
    settings = _settings(name, lattice, sizes)
    body = settings["backbone"]
    modes = tuple(min(body.modes[0], 8 if len(lattice) == 4 else n, n) for n in lattice)
    settings |= {"backbone": replace(body, modes=modes), "grid": lattice}
    settings |= {split: min(n, settings[split]) if name == "tiny" else n for split, n in sizes.items()}
    settings["batch"] = min(settings["batch"], sizes["train"])
    if name in ("small", "tiny"):
        settings |= {"schedule": "cosine", "min_lr": 1e-6, "max_grad_norm": 1.0}
    return settings


def _settings(name: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the settings of a preset for a published grid: those of fields on up to two axes, or on more."""
    is_flat = len(shape) <= 2
    published = {
        "backbone": Backbone((32, 32), 64, 256, 32) if is_flat else Backbone((16, 16, 16), 32, 128, 16),
        "grid": shape,
        "steps": 20_000,
        "batch": 256 if is_flat else 32,
        "train": sizes["train"],
        "validation": sizes["validation"],
    }
    full = {
        "steps": 6000 if is_flat else 8000,
        "lr": 6e-3 if is_flat else 3e-3,
        "min_lr": 1e-6,
        "schedule": "cosine",
        "max_grad_norm": 1.0,
    }
    compact = {
        "backbone": Backbone((16, 12), 32, 64, 16) if is_flat else Backbone((8, 8, 8), 32, 64, 16),
        "steps": 8000,
    }
    small = {
        "backbone": Backbone((12, 12), 16, 32, 16) if is_flat else Backbone((8, 8, 8), 12, 24, 16),
        "grid": tuple(n // 2 for n in shape) if is_flat else (32, 32, 20),
        "steps": 1500 if is_flat else 600,
        "batch": 32 if is_flat else 8,
        "train": 1600 if is_flat else 100,
        "validation": 256 if is_flat else 16,
        "lr": 3e-3,
        "min_lr": 1e-4,
        "validation_interval": 100,
        "plateau_patience": 2,
        "precision": "float32",
    }
    tiny = {
        "backbone": Backbone((4,) * len(shape), 4, 8, 4, blocks=2),
        "grid": (16,) * len(shape) if is_flat else (12, 12, 6),
        "steps": 20,
        "batch": 4,
        "train": 16,
        "validation": 8,
        "validation_interval": 10,
    }
    return {
        "published": published,
        "full": published | full,
        "compact": published | full | compact,
        "small": small,
        "tiny": small | tiny,
    }[name]


__getattr__ = find_renamed(__name__)
