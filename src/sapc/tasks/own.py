"""Tasks of users: fields from a file, and physics in a few lines.

    data = sapc.read_fields("my.h5")
    task = sapc.own_task(data, "my_physics.py")
    run = sapc.preset("small", task, "sapc")

The fields keep their units; a network sees them scaled, channel by channel (`sapc.scaling`). What defines the task (grid, scale, units,
where the data came from, which physics) is written into the run's settings, but neither the data nor the code: whoever loads the model
gives the physics, and for training also the data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from ..constraints import Balance, Pin, Stack, Stackable
from ..errors import SapcError, explain_misuse
from ..fields import Fields, read_fields
from ..grid import Grid
from ..projection import Manifold
from ..scaling import Scale
from .base import Parameters, Task
from .dataset import Dataset
from .physics import Physics, load_physics, pins_of
from .streams import Streams

SPLITS = ("train", "validation")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
VIOLATED = 1e-4  # of a channel's deviation: more is not rounding

_physics: dict[str, Physics] = {}
_fields: dict[str, Fields] = {}
_made_here: dict[str, OwnTask] = {}


@final
class OwnTask(Task):
    """A user's fields and physics; made by `own_task`, or from a run's settings once the physics is known."""

    equation = "as in the data"
    parameters = {}  # noqa: RUF012 (a class variable of the base)
    solver = "read from a file"

    def __init__(
        self, name: str, grid: Grid, physics: Physics, scale: Scale, about: Mapping[str, Any]
    ) -> None:
        self.name, self.grid, self.paper_grid = name, grid, grid  # type: ignore[misc]
        self.physics, self.scale, self.about = physics, scale, dict(about)
        self.title = f"{name}, own data"  # type: ignore[misc]
        self.pinned = ", ".join(pin.label for pin in pins_of(self.constraint)) or "nothing"  # type: ignore[misc]
        laws = [type(p).__name__.lower() for p in self.constraint.parts if not isinstance(p, Pin)]
        self.law = ", ".join(laws) or "none"  # type: ignore[misc]

    @property
    def options(self) -> dict[str, Any]:
        """What a run keeps of the task."""
        return {"own": self.about}

    @property
    def units(self) -> dict[str, str]:
        """Of channels and axes, as the file has them."""
        return dict(self.about.get("units", {}))

    @property
    def labels(self) -> dict[str, str]:
        """Long names of channels and axes."""
        return dict(self.about.get("labels", {}))

    @property
    def sizes(self) -> dict[str, int]:
        """Samples of the two splits."""
        return dict(self.about["sizes"])

    @cached_property
    def constraint(self) -> Stackable:
        """As the physics says, in the units of the data."""
        parts = [p.named(self.grid) if isinstance(p, Pin) else p for p in self.physics.on(self.grid).parts]
        found = Stack(tuple(parts))
        if empty := [p.label for p in pins_of(found) if not bool(p.mask(self.grid.shape).any())]:
            raise SapcError(f"the pin {empty[0]!r} holds no point; look at its indices")
        if self.grid.steady and any(isinstance(part, Balance) for part in found.parts):
            raise SapcError(
                "a Balance compares frames, and these fields are steady; use Affine(grid.integral(...), value=...)"
            )
        return found

    # -- what the network sees --

    @cached_property
    def inner_constraint(self) -> Stackable:
        """The same in the network's units."""
        return self.scale.constraint(self.constraint)

    @explain_misuse
    def enter(self, fields: Tensor) -> Tensor:
        """Fields in the network's units."""
        return self.scale.enter(fields)

    @explain_misuse
    def leave(self, fields: Tensor) -> Tensor:
        """Fields in their own units."""
        return self.scale.leave(fields)

    @explain_misuse
    def inner(self, fields: Tensor, also: Stackable | None = None, **options: Any) -> Manifold:
        """Manifolds of fields in the network's units."""
        more = () if also is None else self.scale.constraint(also).parts
        return Manifold((*self.inner_constraint.parts, *more), fields, **options)

    # -- data --

    @explain_misuse
    def dataset(
        self, split: str, size: int | None = None, seed: int = 0, device: Any = "cpu", cache: Any = None, progress: Any = None
    ) -> Dataset:  # fmt: skip
        """The first `size` samples of a split, as they are in the file."""
        size = self._check_size(split, size)
        data = self._data()
        rows = data.split_rows(**self.about["split"])[SPLITS.index(split)]
        provenance = {key: str(value) for key, value in self.about["data"].items()}
        return Dataset(self.name, split, 0, self.grid, data.values[rows[:size]].float(), {}, {}, provenance)

    def _data(self) -> Fields:
        digest = self.about["data"].get("sha256", "")
        if digest not in _fields:
            raise SapcError(
                f"the data of {self.name} are not loaded; give their file ({self.about['data'].get('path') or 'of the training'}) "
                "as --data FILE, or in Python as load(..., data=FILE)"
            )
        return _fields[digest]

    def _check_size(self, split: str, size: int | None) -> int:
        if split not in SPLITS:
            raise SapcError(f"{self.name} has the splits train and validation, not {split!r}")
        most = self.sizes[split]
        if size is not None and not 1 <= size <= most:
            raise SapcError(f"the split {split} of {self.name} has {most} samples, and {size} were asked for")
        return most if size is None else size

    def _draw(self, streams: Streams, size: int) -> dict[str, Tensor]:
        raise SapcError(f"{self.name} is read from a file; there are no parameters to draw")

    def _solve(self, parameters: Parameters) -> Tensor:
        raise SapcError(f"{self.name} is read from a file; there is nothing to solve")


@explain_misuse
def own_task(
    data: Fields | str | os.PathLike[str],
    physics: Any,
    name: str | None = None,
    *,
    share: float = 0.1,
    seed: int = 0,
) -> OwnTask:
    """A task from fields and physics (a Python file, a function of the grid, or constraints), once both are known to fit.

    data    fields, or their file as `read_fields` reads it
    name    in folders and reports, the data file's unless given
    share   of the samples for validation, drawn with `seed`, unless the file has a split of its own
    """
    if isinstance(data, str | os.PathLike):
        data = read_fields(data)
    if not isinstance(data, Fields):
        raise SapcError(
            f"own_task takes fields and physics, as own_task(sapc.read_fields('my.nc'), physics), got {type(data).__name__} first"
        )
    if bad := int((~data.values.flatten(1).isfinite().all(1)).sum()):
        raise SapcError(f"{bad} of {len(data)} samples contain NaN or infinity; fill them or leave them out")
    chosen = _name(name, data)
    known = load_physics(physics)
    train, validation = data.split_rows(share=share, seed=seed)
    about: dict[str, Any] = {
        "grid": data.grid.to_dict(),
        "scale": Scale.of(data.values[train], data.grid).to_dict(),
        "units": dict(data.units),
        "labels": dict(data.labels),
        "data": dict(data.origin),
        "physics": known.to_dict(),
        "split": {"share": share, "seed": seed},
        "sizes": {"train": len(train), "validation": len(validation)},
    }
    task = _made(chosen, known, about)
    check_data(task, data.values)
    _try_laws(task, data.values[:1].double())
    remember(chosen, known, data)
    _made_here[chosen] = task
    return task


def _try_laws(task: OwnTask, u: Tensor) -> None:
    """Evaluate all laws once, so that a mistake in them is told now, with its line."""
    try:
        task.manifold(u).residual(u)
        task.inner(task.enter(u))
    except SapcError:
        raise
    except Exception as error:
        raise SapcError(
            f"a law of the physics{task.physics.where} failed: {task.physics.told(error)}"
        ) from error


def made_here(name: str) -> OwnTask | None:
    """The task of that name that `own_task` made in this process."""
    return _made_here.get(name)


def remember(name: str, physics: Physics | None = None, data: Fields | None = None) -> None:
    """Let runs of this process find what their settings do not hold."""
    if physics is not None:
        _physics[name] = physics
    if data is not None:
        _fields[data.origin.get("sha256", "")] = data


def knows(name: str) -> bool:
    """Whether this process has the physics of a task."""
    return name in _physics


def task_of(name: str, grid: Grid | Sequence[int] | None, about: Mapping[str, Any]) -> OwnTask:
    """The task that a run's settings describe."""
    if not knows(name):
        file = about.get("physics", {}).get("file") or "a function"
        raise SapcError(
            f"{name} has physics of its own, which is code and not part of its folder: it was {file}; "
            "give it as --physics FILE, or in Python as load(..., physics=FILE)"
        )
    return _made(name, _physics[name], about, grid)


def _made(
    name: str, physics: Physics, about: Mapping[str, Any], grid: Grid | Sequence[int] | None = None
) -> OwnTask:
    whole = Grid.from_dict(about["grid"])
    if grid is not None and not isinstance(grid, Grid):
        whole = whole.resize(*grid)
    return OwnTask(name, whole, physics, Scale.from_dict(about["scale"], whole), about)


def _name(name: str | None, data: Fields) -> str:
    chosen = Path(data.origin.get("path", "own")).stem if name is None else name
    chosen = re.sub(r"\W+", "_", chosen).strip("_") or "own" if name is None else chosen
    if name is None and not chosen[0].isalpha():
        chosen = f"own_{chosen}"
    if not NAME.fullmatch(chosen):
        raise SapcError(
            f"a task's name is made of letters, digits and _, beginning with a letter, got {chosen!r}"
        )
    return chosen


def check_data(task: OwnTask, values: Tensor) -> None:
    """Refuse data that contradict values which the physics prescribes."""
    for pin in pins_of(task.constraint):
        if pin.value is None:
            continue
        mask = pin.mask(task.grid.shape)
        off = (pin.prescribed(values.double()) - values).abs()
        share = off / _deviations(task)
        worst = float(share.max())
        if worst > VIOLATED:
            sample = int(share.flatten(1).amax(1).argmax())
            raise SapcError(
                f"the data violate the pin {pin.label!r} by up to {float(off.max()):.3g}, {worst:.2g} of the channel's deviation, "
                f"at most in sample {sample} ({int((share.flatten(1) > VIOLATED).sum())} of {len(values) * int(mask.sum())} pinned "
                "values are off); correct the data, or the value in the physics"
            )


def _deviations(task: OwnTask) -> Tensor:
    s = torch.tensor(task.scale.deviation, dtype=torch.float64)
    return s.reshape(-1, *(1,) * len(task.grid.axes)) if task.grid.width > 1 else s


def reading(about: Mapping[str, Any]) -> dict[str, Any]:
    """How the file of a task was read, as arguments of `read_fields`."""
    grid = Grid.from_dict(about["grid"])
    kinds = {kind: tuple(a.name for a in grid.axes if a.kind == kind) for kind in ("periodic", "cells")}
    time = {"steady": True} if grid.steady else {"time": grid.time.name}
    return {"channels": grid.channels, **time, **kinds, "samples": about["data"].get("samples") or None}
