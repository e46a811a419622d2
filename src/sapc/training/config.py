"""What a run is, completely: task, method, network, optimisation, seed. Everything that changes a result is here and nothing else."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from torch import nn

from ..constraints import FeasiblePoint, NearestPoint, Solver
from ..data import Fields
from ..errors import SapcError, check_record, choice, explain_misuse
from ..methods import Method, get_method
from ..nn.fno import LARGEST, Precision
from ..nn.network import Backbone, Inputs, NetworkSource, OwnNetwork, make_plain, read_settings, to_tuples
from ..tasks import DataDescription, Physics, Task, attach_task, check_options, get_task

FORMAT = "sapc-run-1"
Projector = Literal["feasible", "nearest", "paper"]
Schedule = Literal["plateau", "cosine"]


@dataclass(frozen=True)
class Run:
    """One training run.

    grid        points per axis; options: the task's own
    train, validation   numbers of solutions
    batch       samples per step, over all processes together
    clip        largest gradient norm
    validate    steps between validations
    schedule    plateau: the rate is multiplied by `factor` after `patience` validations without progress, down to `lr_floor`;
                cosine: half a cosine from `lr` to `lr_floor` over all steps, after a rise over the first hundredth of them
    precision   of the network's products: float32, tf32, fp16 or bf16
    projector   curved manifolds: feasible (a near point on H), nearest (the nearest one), paper (its plain iteration)
    stages      steps at which the training had come to its end before it was continued
    parent      the weights it begins with, if they are another run's: name, step and SHA-256
    attached    the task itself, where it was made of data: its physics and data are no settings, so it is neither compared nor written,
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
    lr_floor: float = 1e-4
    factor: float = 0.5
    patience: int = 10
    clip: float = 100.0
    validate: int = 200
    schedule: str = "plateau"
    precision: str = "fp16"
    projector: str = "feasible"
    length: float = 1e-3
    preset: str = "paper"
    stages: tuple[int, ...] = ()
    parent: Mapping[str, Any] = field(default_factory=dict)
    attached: Task | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        make_plain(self, *(name for name in SETTINGS if name not in ("backbone", "options", "parent")))
        check_record(self, seed=0, patience=0, stages=0)
        if self.factor >= 1:
            raise SapcError(f"factor must be below 1, got {self.factor}")
        for name, kinds in (("precision", Precision), ("projector", Projector), ("schedule", Schedule)):
            choice(getattr(self, name), name, get_args(kinds))
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
        return min(1.0, (step + 1) / rise) * (self.lr_floor + (self.lr - self.lr_floor) * turn)

    def extended(self, steps: int) -> Run:
        """This run, finished and then continued to more steps."""
        return replace(self, steps=steps, stages=(*self.stages, self.steps))

    @explain_misuse
    def make_task(self, grid: tuple[int, ...] | None = None) -> Task:
        """The task, on the trained grid or another one."""
        grid = self.grid if grid is None else grid
        if self.attached is not None:
            return self.attached.resize(grid)
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
    ) -> Run:
        """Return the same run with its task at hand, made from what its settings do not hold; see `tasks.attach_task`."""
        task = attach_task(self.task, self.options, self.attached, physics, data, reading)
        return replace(self, attached=task)

    @property
    def physics(self) -> Physics | None:
        """The physics of the attached task."""
        return None if self.attached is None else self.attached.physics

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: physics is code, and data are large; they are attached there."""
        return {**self.__dict__, "attached": None}

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
        conditions = int(self.make_method().shows is not None)
        return Inputs(len(self.grid), self.description.n_channels, conditions, self.precision)

    def solver(self, task: Task) -> Solver:
        """How curved manifolds are projected onto."""
        if self.projector == "paper" and task.plain is not None:
            return task.plain
        return NearestPoint() if self.projector == "nearest" else FeasiblePoint()

    # -- files --

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        values = {name: getattr(self, name) for name in SETTINGS}
        values = {name: value for name, value in values.items() if value or name not in ("stages", "parent")}
        return {"format": FORMAT, **values, "backbone": asdict(self.backbone), "options": dict(self.options)}

    def identity(self) -> dict[str, Any]:
        """What makes it this very run: its settings, without where a network's class and the file of own data lie and how it is read."""
        options = {**self.options, **self.description.identity()}
        return {**self.to_dict(), "backbone": self.backbone.identity(), "options": options}

    @classmethod
    def from_dict(cls, data: Any) -> Run:
        """Back from `to_dict`; a file of another kind or version is refused by name."""
        form = data.get("format") if isinstance(data, Mapping) else type(data).__name__
        if form != FORMAT:
            raise SapcError(f"this is not the configuration of a run ({FORMAT}), but {form!r}")
        values = {name: to_tuples(value) for name, value in data.items() if name != "format"}
        known = set(SETTINGS)
        required = {f.name for f in fields(cls) if f.default is f.default_factory is dataclasses.MISSING}
        if wrong := sorted((set(values) - known) | (required - set(values))):
            raise SapcError(f"the configuration of a run has unknown or missing entries: {', '.join(wrong)}")
        return cls(**{**values, "backbone": read_settings(values["backbone"])})


SETTINGS = tuple(f.name for f in fields(Run) if f.compare)
"""What a run is, by name: all of it but the task that it carries."""


def __getattr__(name: str) -> Any:
    """Give what is in `training.presets` under its old path, too."""
    if name in ("Preset", "preset", "settings_for"):
        from . import presets

        return getattr(presets, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
