"""What a run is, completely: task, method, backbone, optimisation, seed. Everything that changes a result is here and nothing else.

Presets start from a task, because its grid decides how large a model is useful:

    paper   the published settings
    full    the published network with a better training: a third of the steps, twenty times the rate, which falls along a cosine
    compact the sizes and the training of the models that come with the package
    small   a narrower network and fewer steps: a meaningful model in two to three minutes on two CPU cores
    tiny    seconds, for trying out commands; its samples mean nothing
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from .errors import SapcError
from .fno import FNO, Precision
from .methods import Method, get_method
from .projection import Globalised
from .projection.gauss_newton import Solver
from .tasks import OwnTask, Task, get_task

FORMAT = "sapc-run-1"
Projector = Literal["feasible", "nearest", "paper"]
Schedule = Literal["plateau", "cosine"]
Preset = Literal["paper", "full", "compact", "small", "tiny"]


@dataclass(frozen=True)
class Backbone:
    """Sizes of the FNO."""

    modes: tuple[int, ...]
    hidden: int
    projection: int
    time_channels: int
    blocks: int = 4


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
    """

    task: str
    method: str
    grid: tuple[int, ...]
    backbone: Backbone
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

    def __post_init__(self) -> None:
        for name, least in (
            ("steps", 1),
            ("batch", 1),
            ("train", 1),
            ("validation", 1),
            ("validate", 1),
            ("seed", 0),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise SapcError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if not isinstance(self.patience, int) or self.patience < 0:
            raise SapcError(f"patience must be a whole number of at least 0, got {self.patience!r}")
        if self.seed >= 2**63:
            raise SapcError(f"seed must be below 2^63, got {self.seed}")
        for name in ("lr", "lr_floor", "factor", "clip", "length"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise SapcError(f"{name} must be a positive number, got {value!r}")
        if self.factor >= 1:
            raise SapcError(f"factor must be below 1, got {self.factor}")
        words = (("precision", Precision), ("projector", Projector), ("schedule", Schedule))
        for name, kinds in words:
            if getattr(self, name) not in get_args(kinds):
                raise SapcError(
                    f"unknown {name} {getattr(self, name)!r}; choose one of {', '.join(get_args(kinds))}"
                )
        ends = (*self.stages, self.steps)
        if not all(isinstance(end, int) for end in ends) or any(
            a >= b for a, b in zip((0, *ends), ends, strict=False)
        ):
            raise SapcError(
                f"stages must be growing numbers below steps, got {self.stages!r:.60} of {self.steps}"
            )
        if not isinstance(self.parent, Mapping):
            raise SapcError(f"parent must be a record of other weights, got {self.parent!r:.60}")
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

    def make_task(self, grid: tuple[int, ...] | None = None) -> Task:
        """The task, on the trained grid or another one."""
        return get_task(self.task, grid=self.grid if grid is None else grid, **self.options)

    def make_method(self) -> Method:
        """The method."""
        return get_method(self.method)

    def make_network(self, compiled: bool = False) -> FNO:
        """The backbone with fresh weights."""
        shown = int(self.make_method().shows is not None)
        return FNO(
            len(self.grid),
            channels=max(1, len(self.options.get("own", {}).get("grid", {}).get("channels", ()))),
            conditions=shown,
            precision=self.precision,
            compiled=compiled,
            **asdict(self.backbone),
        )

    def solver(self, task: Task) -> Solver:
        """How curved manifolds are projected onto."""
        if self.projector == "paper" and task.plain is not None:
            return task.plain
        return Globalised() if self.projector == "nearest" else Globalised(nearest=0)

    # -- files --

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        values = {"format": FORMAT, **asdict(self), "options": dict(self.options)}
        return {name: value for name, value in values.items() if value or name not in ("stages", "parent")}

    @classmethod
    def from_dict(cls, data: Any) -> Run:
        """Back from `to_dict`; a file of another kind or version is refused by name."""
        form = data.get("format") if isinstance(data, Mapping) else type(data).__name__
        if form != FORMAT:
            raise SapcError(f"this is not the configuration of a run ({FORMAT}), but {form!r}")
        values = {name: _tuples(value) for name, value in data.items() if name != "format"}
        known = {f.name for f in fields(cls)}
        required = {f.name for f in fields(cls) if f.default is f.default_factory is dataclasses.MISSING}
        if wrong := sorted((set(values) - known) | (required - set(values))):
            raise SapcError(f"the configuration of a run has unknown or missing entries: {', '.join(wrong)}")
        sizes = data["backbone"]
        try:
            values["backbone"] = Backbone(**{name: _tuples(value) for name, value in sizes.items()})
        except (TypeError, AttributeError) as error:
            raise SapcError(f"the backbone of a run's configuration cannot be read: {sizes!r}") from error
        return cls(**values)


def preset(
    name: str, task: str | Task, method: str, grid: tuple[int, ...] | None = None, **changes: Any
) -> Run:
    """A run of `task`, by name or a task of your own, with `method` by a preset's settings, with any of them changed."""
    if name not in get_args(Preset):
        raise SapcError(f"unknown preset {name!r}; choose one of {', '.join(get_args(Preset))}")
    if not isinstance(task, str | Task):
        raise SapcError(
            f"a run is of a task, by name or as sapc.own_task(data, physics) makes it, got {type(task).__name__}"
        )
    options = changes.pop("options", {})
    known = get_task(task, **options) if isinstance(task, str) else task
    if isinstance(task, str) and not isinstance(known, OwnTask):
        settings = _PRESETS[name](known)
        chosen = get_task(task, grid=settings["grid"] if grid is None else grid, **options)
    elif grid is not None or options:
        raise SapcError("a task of your own has its grid and options already; leave out grid and options")
    else:
        chosen, settings = known, _own(name, known) if isinstance(known, OwnTask) else _PRESETS[name](known)
    del settings["grid"]
    sizes = {f.name for f in fields(Backbone)}
    wanted = {k: changes.pop(k) for k in list(changes) if k in sizes}
    if isinstance(modes := wanted.get("modes"), int):
        wanted["modes"] = (modes,) * len(chosen.grid.lattice)
    body = replace(changes.pop("backbone", None) or settings["backbone"], **wanted)
    if unknown := sorted(set(changes) - {f.name for f in fields(Run)}):
        raise SapcError(f"unknown setting {unknown[0]!r} of a run")
    del settings["backbone"]
    values = {**settings, "options": chosen.options, "preset": name, **changes}
    return Run(task=chosen.name, method=method, grid=tuple(chosen.grid.lattice), backbone=body, **values)


def _own(name: str, task: OwnTask) -> dict[str, Any]:
    """A preset's network and training for a grid and a number of samples that are not the paper's."""
    lattice = task.grid.lattice
    flat = get_task("heat" if len(lattice) <= 2 else "navier_stokes")
    settings = _PRESETS[name](flat)
    body, sizes = settings["backbone"], task.sizes
    modes = tuple(min(body.modes[0], 8 if len(lattice) == 4 else n, n) for n in lattice)
    settings |= {"backbone": replace(body, modes=modes), "grid": lattice, **sizes}
    settings["batch"] = min(settings["batch"], sizes["train"])
    if name == "tiny":
        settings |= {split: min(n, _tiny(flat)[split]) for split, n in sizes.items()}
    if name in ("small", "tiny"):
        settings |= {"schedule": "cosine", "lr_floor": 1e-6, "clip": 1.0}
    return settings


def _paper(task: Task) -> dict[str, Any]:
    flat = len(task.grid.shape) == 2
    return {
        "backbone": Backbone((32, 32), 64, 256, 32) if flat else Backbone((16, 16, 16), 32, 128, 16),
        "grid": tuple(task.grid.shape),
        "steps": 20_000,
        "batch": 256 if flat else 32,
        "train": task.sizes["train"],
        "validation": task.sizes["validation"],
    }


def _full(task: Task) -> dict[str, Any]:
    flat = len(task.grid.shape) == 2
    return {
        **_paper(task),
        "steps": 6000 if flat else 8000,
        "lr": 6e-3 if flat else 3e-3,
        "lr_floor": 1e-6,
        "schedule": "cosine",
        "clip": 1.0,
    }


def _compact(task: Task) -> dict[str, Any]:
    flat = len(task.grid.shape) == 2
    return {
        **_full(task),
        "backbone": Backbone((16, 12), 32, 64, 16) if flat else Backbone((8, 8, 8), 32, 64, 16),
        "steps": 8000,
    }


def _small(task: Task) -> dict[str, Any]:
    flat = len(task.grid.shape) == 2
    return {
        "backbone": Backbone((12, 12), 16, 32, 16) if flat else Backbone((8, 8, 8), 12, 24, 16),
        "grid": tuple(n // 2 for n in task.grid.shape) if flat else (32, 32, 20),
        "steps": 1500 if flat else 600,
        "batch": 32 if flat else 8,
        "train": 1600 if flat else 100,
        "validation": 256 if flat else 16,
        "lr": 3e-3,
        "lr_floor": 1e-4,
        "validate": 100,
        "patience": 2,
        "precision": "float32",
    }


def _tiny(task: Task) -> dict[str, Any]:
    d = len(task.grid.shape)
    return {
        **_small(task),
        "backbone": Backbone((4,) * d, 4, 8, 4, blocks=2),
        "grid": (16,) * d if d == 2 else (12, 12, 6),
        "steps": 20,
        "batch": 4,
        "train": 16,
        "validation": 8,
        "validate": 10,
    }


_PRESETS = {"paper": _paper, "full": _full, "compact": _compact, "small": _small, "tiny": _tiny}


def _tuples(value: Any) -> Any:
    """JSON knows lists only; settings are immutable."""
    if isinstance(value, list):
        return tuple(_tuples(v) for v in value)
    return {k: _tuples(v) for k, v in value.items()} if isinstance(value, dict) else value
