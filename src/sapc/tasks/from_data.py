"""Tasks of users: fields from a file, and physics in a few lines.

    data = sapc.read_fields("my.h5")
    task = sapc.own_task(data, "my_physics.py")
    run = sapc.preset("small", task, "sapc")

The fields keep their units; a network sees them scaled, channel by channel (`sapc.scaling`). What defines the task (grid, scale, units,
where the data came from and how their file was read, which physics) is written into the run's settings, but neither the data nor the
code: whoever loads the model gives the physics, and for training also the data. Both belong to the task that was made from them, and to
nothing else: two tasks may have the same name and different physics, and data are kept as long as a task that holds them.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from ..constraints import Manifold
from ..constraints.terms import Balance, Pin, Stack, Stackable
from ..data import Fields, read_fields
from ..data.dataset import Dataset
from ..errors import SapcError, SapcWarning, explain_misuse
from ..grid import Grid
from .base import Parameters, Task
from .physics import Physics, load_physics, pins_of
from .random_parameters import Streams
from .scaling import Scale

SPLITS = ("train", "validation")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
VIOLATED = 1e-4  # of a channel's deviation: more is not rounding


@final
class OwnTask(Task):
    """A user's physics and fields; made by `own_task`, or from a run's settings and the physics that is given for it.

    physics     what makes the constraints
    data        the fields, None where only the physics was given
    about       what a run keeps of the task, as JSON can hold it
    """

    equation = "as in the data"
    parameters = {}  # noqa: RUF012 (a class variable of the base)
    solver = "read from a file"

    def __init__(
        self,
        name: str,
        physics: Physics,
        about: Mapping[str, Any],
        data: Fields | None = None,
        grid: Grid | None = None,
    ) -> None:
        grid = Grid.from_dict(about["grid"]) if grid is None else grid
        self.name, self.grid, self.paper_grid = name, grid, grid  # type: ignore[misc]
        self.physics, self.data, self.about = physics, data, dict(about)
        self.scale = Scale.from_dict(about["scale"], grid)
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

    def resize(self, grid: Grid | Sequence[int] | None) -> OwnTask:
        """The same task on another number of points; itself where these are its own."""
        if grid is None:
            return self
        points = grid.lattice if isinstance(grid, Grid) else tuple(grid)
        wanted = Grid.from_dict(self.about["grid"]).resize(*points)
        if isinstance(grid, Grid) and grid != wanted:
            raise SapcError(
                f"{self.name} is on the axes of its data; change their numbers of points only, as {self.grid.lattice}"
            )
        return (
            self if wanted == self.grid else OwnTask(self.name, self.physics, self.about, self.data, wanted)
        )

    @cached_property
    def constraint(self) -> Stackable:
        """As the physics says, in the units of the data."""
        parts = [p.named(self.grid) if isinstance(p, Pin) else p for p in self.physics.on(self.grid).parts]
        found = Stack(tuple(parts)).with_times_of(self.grid)
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
        if self.data is None:
            raise SapcError(
                f"the data of {self.name} are not loaded; give their file ({self.about['data'].get('path') or 'of the training'}) "
                "as --data FILE, or in Python as load(..., data=FILE)"
            )
        if self.data.grid != self.grid:
            there, here = (" x ".join(map(str, grid.lattice)) for grid in (self.data.grid, self.grid))
            raise SapcError(
                f"the data of {self.name} are on {there} points, not on {here}; take conditions on these from a file: "
                "--condition FILE, in Python condition=fields"
            )
        rows = self.data.split_rows(**self.about["split"])[SPLITS.index(split)]
        provenance = {key: str(value) for key, value in self.about["data"].items()}
        values = self.data.values[rows[:size]].float()
        return Dataset(self.name, split, 0, self.grid, values, {}, {}, provenance)

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
    if data.reading:
        about["reading"] = dict(data.reading)
    task = OwnTask(chosen, known, about, data)
    check_data(task, data.values)
    _try_laws(task, data.values[:1].double())
    return task


def rebuild(
    name: str,
    about: Mapping[str, Any],
    physics: Any,
    data: Fields | str | os.PathLike[str] | None = None,
    reading: Mapping[str, Any] | None = None,
) -> OwnTask:
    """The task that a run's settings describe, from the physics and the data that are given for it.

    reading     how its files are read from now on, where that is not as in the training

    Physics whose text is not that of the training is a warning, for its file may have been moved or tidied up; other data are refused.
    """
    known, trained = load_physics(physics), about["physics"]
    if reading:
        about = {**about, "reading": {**about.get("reading", {}), **reading}}
    if trained["sha256"] and known.sha256 != trained["sha256"]:
        before = f"the physics that {name} was trained with, {trained.get('file') or 'a function'}"
        what = f"is not {before}: its text has changed since, or it is another one"
        what = what if known.sha256 else f"has no text to compare with {before}"
        told = f"{known.label} {what}; samples will satisfy the laws that are given now"
        warnings.warn(told, SapcWarning, stacklevel=4)
    return OwnTask(name, known, about, None if data is None else _data(name, about, data))


def _data(name: str, about: Mapping[str, Any], data: Fields | str | os.PathLike[str]) -> Fields:
    """The data of the training again, and no others."""
    fields = data if isinstance(data, Fields) else read_like(about, data)
    if fields.grid != Grid.from_dict(about["grid"]):
        raise SapcError(
            f"the data are on another grid than {name} was trained on; read them with the same periodic=, cells= and channels="
        )
    if fields.origin.get("sha256") != about["data"].get("sha256"):
        raise SapcError(f"the data are not the file that {name} was trained on; give that one")
    return fields


def read_like(about: Mapping[str, Any], path: str | os.PathLike[str], **options: Any) -> Fields:
    """Read a file that is laid out like that of a task, where `options` say nothing else.

    It is read as that one was; if it does not fit then, it may still name its dimensions after the task's axes. Where nothing was said when
    the task's file was read, or it is not known (version 0.1.0 did not keep it), the names come first.
    """
    grid, said = Grid.from_dict(about["grid"]), dict(about.get("reading", {}))
    kinds = {kind: tuple(a.name for a in grid.axes if a.kind == kind) for kind in ("periodic", "cells")}
    usual = {"channels": grid.channels, **kinds, **options}
    if not options.get("gaps"):  # the very file of the training: its samples are where they were
        usual["samples"] = about["data"].get("samples") or None
    by_name = {"steady": True} if grid.steady else {"time": grid.time.name}
    other: Fields | None = None
    problem: SapcError | None = None
    for how in (said, by_name) if said else (by_name, {}):
        try:
            fields = read_fields(path, **{**usual, **how})
        except SapcError as error:
            problem = error if problem is None or how is not by_name else problem
            continue
        if fields.grid.names == grid.names:
            return fields
        other = other or fields
    if other is None:
        assert problem is not None
        raise problem
    return other


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


def settle(name: str, about: Mapping[str, Any], known: OwnTask | None) -> OwnTask:
    """The task that a run's settings describe, where nothing is given for it: that of the name, if it has the same physics."""
    trained = about.get("physics", {})
    file = trained.get("file") or "a function"
    if known is None:
        raise SapcError(
            f"{name} has physics of its own, which is code and not part of its folder: it was {file}; "
            "give it as --physics FILE, or in Python as load(..., physics=FILE)"
        )
    if known.physics.sha256 != trained.get("sha256"):
        raise SapcError(
            f"the task {name} that is known here has other physics, {known.physics.label}, than this run was trained with, {file}; "
            "give that one as --physics FILE, or in Python as load(..., physics=FILE)"
        )
    if not known.physics.sha256:
        told = f"the physics of {name} has no text to compare: it is taken for that of the task {name} that is known here"
        warnings.warn(f"{told}; give it as physics= to be sure", SapcWarning, stacklevel=4)
    alike = known.about["data"].get("sha256") == about["data"].get("sha256")
    alike &= Grid.from_dict(known.about["grid"]) == Grid.from_dict(about["grid"])
    return OwnTask(name, known.physics, about, known.data if alike else None)


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
