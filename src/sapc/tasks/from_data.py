"""Tasks of users' data: fields from a file, and physics in a few lines.

    data = sapc.read_fields("my.h5")
    task = sapc.Task.from_data(data, "my_physics.py")
    run = sapc.training_config(task, "sapc", "small")

The fields keep their units; a network sees them normalized, channel by channel. What defines the task (grid,
scale, units, where the data came from and how their file was read, which physics) is written into the run's
settings, but neither the data nor the code: whoever loads the model gives the physics, and for training also
the data. Both belong to the task that was made from them, and to nothing else: two tasks may have the same
name and different physics, and data are kept as long as a task that holds them.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import Fields, read_fields
from ..data.normalizer import Normalizer
from ..errors import SapcError, SapcWarning
from .base import Task
from .description import DataDescription
from .physics import Physics, explain_failure, load_physics, pins_of
from .sources import FieldsSource
from .symmetries import Declaration

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
# In deviations of a channel: what is larger is not rounding.
PIN_TOLERANCE = 1e-4
DataFile = Fields | str | os.PathLike[str]


def make_task(
    data: DataFile,
    physics: Any,
    name: str | None,
    *,
    share: float,
    seed: int,
    symmetries: Sequence[Declaration] = (),
) -> Task:
    """Make a task of fields and physics; see `Task.from_data`."""
    if isinstance(data, str | os.PathLike):
        data = read_fields(data)
    if not isinstance(data, Fields):
        raise SapcError(
            "a task is made of fields and physics, as Task.from_data(sapc.read_fields('my.nc'), physics), "
            f"got {type(data).__name__} first"
        )
    if bad := int((~data.values.flatten(1).isfinite().all(1)).sum()):
        raise SapcError(f"{bad} of {len(data)} samples contain NaN or infinity; fill them or leave them out")
    task_name = _choose_name(name, data)
    physics = load_physics(physics)
    train, validation = data.split_rows(share=share, seed=seed)
    entries: dict[str, Any] = {
        "grid": data.grid.to_dict(),
        "scale": Normalizer.fit(data.values[train], data.grid).to_dict(),
        "units": dict(data.units),
        "labels": dict(data.labels),
        "data": dict(data.origin),
        "physics": physics.to_dict(),
        "split": {"share": share, "seed": seed},
        "sizes": {"train": len(train), "validation": len(validation)},
    }
    if data.reading:
        entries["reading"] = dict(data.reading)
    symmetries = (symmetries,) if isinstance(symmetries, str) else symmetries
    task = _compose(task_name, physics, DataDescription(entries), data, symmetries)
    _check_prescribed_values(task, data.values)
    _try_laws(task, data.values[:1].double())
    for symmetry in task.find_symmetries():
        symmetry.transform(data.values[:1].double(), torch.Generator().manual_seed(seed))
    return task


def _compose(
    name: str,
    physics: Physics,
    description: DataDescription,
    data: Fields | None,
    symmetries: Sequence[Declaration] = (),
) -> Task:
    grid = description.grid
    source, normalizer = FieldsSource(description, data), description.normalizer(grid)
    return Task(grid, name=name, physics=physics, normalizer=normalizer, source=source, symmetries=symmetries)


def rebuild(
    name: str,
    description: DataDescription,
    physics: Any,
    data: DataFile | None = None,
    reading: Mapping[str, Any] | None = None,
    symmetries: Sequence[Declaration] = (),
) -> Task:
    """Make the task that a run's settings describe, from the physics and the data that are given for it.

    Physics whose text is not that of the training is a warning, for its file may have been moved or tidied
    up; other data are refused.

    Args:
        name: Name of the task.
        description: What the run keeps of data and physics.
        physics: A Python file, a function of the grid, or constraints.
        data: The fields of the training, or their file.
        reading: How its files are read from now on, where that is not as in the training.
        symmetries: Symmetries that are declared now; a run holds the texts of its own.

    Returns:
        The task.
    """
    physics, description = load_physics(physics), description.with_reading(reading)
    if description.physics_sha256 and physics.sha256 != description.physics_sha256:
        expected_physics = (
            f"the physics that {name} was trained with, {description.physics_file or 'a function'}"
        )
        reason = f"is not {expected_physics}: its text has changed since, or it is another one"
        reason = reason if physics.sha256 else f"has no text to compare with {expected_physics}"
        message = f"{physics.label} {reason}; samples will satisfy the laws that are given now"
        warnings.warn(message, SapcWarning, stacklevel=5)
    fields = None if data is None else _same_data(name, description, data)
    return _compose(name, physics, description, fields, symmetries)


def _same_data(name: str, description: DataDescription, data: DataFile) -> Fields:
    """Return the data of the training again; refuse others."""
    fields = data if isinstance(data, Fields) else read_like(description, data)
    if fields.grid != description.grid:
        raise SapcError(
            f"the data are on another grid than {name} was trained on; read them with the same periodic=, "
            "cells= and channels="
        )
    if fields.origin.get("sha256") != description.data.get("sha256"):
        raise SapcError(f"the data are not the file that {name} was trained on; give that one")
    return fields


def read_like(description: DataDescription, path: str | os.PathLike[str], **options: Any) -> Fields:
    """Read a file that is laid out like that of a task, where `options` say nothing else.

    It is read as that one was; if it does not fit then, it may still name its dimensions after the task's
    axes. Where nothing was said when the task's file was read, or it is not known (version 0.1.0 did not keep
    it), the names come first.

    Args:
        description: What the run keeps of its data.
        path: The file.
        **options: Arguments of `read_fields`.

    Returns:
        The fields.
    """
    grid, reading = description.grid, description.reading
    kinds = {kind: tuple(a.name for a in grid.axes if a.kind == kind) for kind in ("periodic", "cells")}
    usual = {"channels": grid.channels, **kinds, **options}
    # Without the option `gaps` it is the very file of the training: its samples are where they were.
    if not options.get("gaps"):
        usual["samples"] = description.data.get("samples") or None
    by_name = {"steady": True} if grid.steady else {"time": grid.time.name}
    first_fields: Fields | None = None
    problem: SapcError | None = None
    for choice in (reading, by_name) if reading else (by_name, {}):
        try:
            fields = read_fields(path, **{**usual, **choice})
        except SapcError as error:
            problem = error if problem is None or choice is not by_name else problem
            continue
        if fields.grid.names == grid.names:
            return fields
        first_fields = first_fields or fields
    if first_fields is None:
        assert problem is not None
        raise problem
    return first_fields


def reuse(name: str, description: DataDescription, registered_task: Task | None) -> Task:
    """Make the task that a run's settings describe, from a known task if it has the same physics."""
    file = description.physics_file or "a function"
    if registered_task is None or registered_task.physics is None:
        raise SapcError(
            f"{name} has physics of its own, which is code and not part of its folder: it was {file}; "
            "give it as --physics FILE, or in Python as load(..., physics=FILE)"
        )
    if registered_task.physics.sha256 != description.physics_sha256:
        raise SapcError(
            f"the task {name} that is known here has other physics, {registered_task.physics.label}, than "
            "this run was "
            f"trained with, {file}; give that one as --physics FILE, or in Python as load(..., physics=FILE)"
        )
    if not registered_task.physics.sha256:
        message = (
            f"the physics of {name} has no text to compare: it is taken for that of the task {name} "
            "that is known here"
        )
        warnings.warn(f"{message}; give it as physics= to be sure", SapcWarning, stacklevel=5)
    is_same_data = registered_task.description.data.get("sha256") == description.data.get("sha256")
    is_same_data &= registered_task.description.grid == description.grid
    fields = registered_task.source.fields if is_same_data else None
    return _compose(name, registered_task.physics, description, fields, registered_task.symmetries)


def _try_laws(task: Task, u: Tensor) -> None:
    """Evaluate all laws once, so that a mistake in them is told now, with its line."""
    physics = task.physics
    assert physics is not None
    try:
        task.manifold(u).residual(u)
        task.normalized_manifold(task.normalize(u))
    except SapcError:
        raise
    except Exception as error:
        raise SapcError(
            f"a law of the physics{physics.origin} failed: {explain_failure(error, physics.file)}"
        ) from error


def _choose_name(name: str | None, data: Fields) -> str:
    if name is None:
        stem = Path(data.origin.get("path", "own")).stem
        name = re.sub(r"\W+", "_", stem).strip("_") or "own"
        name = name if name[0].isalpha() else f"own_{name}"
    check_name(name)
    return name


def check_name(name: str) -> None:
    """Refuse a task's name that could not be part of a file name."""
    if not NAME.fullmatch(name):
        raise SapcError(f"a task's name is made of letters, digits and _, a letter first, got {name!r}")


def _check_prescribed_values(task: Task, values: Tensor) -> None:
    """Refuse data that contradict values which the physics prescribes."""
    assert isinstance(task.normalizer, Normalizer)
    deviation = task.normalizer.columns(values)[1]
    for pin in pins_of(task.constraint):
        if pin.value is None:
            continue
        mask = pin.mask(task.grid.shape)
        distance = (pin.prescribe(values.double()) - values).abs()
        share = distance / deviation
        worst = float(share.max())
        if worst > PIN_TOLERANCE:
            sample = int(share.flatten(1).amax(1).argmax())
            raise SapcError(
                f"the data violate the pin {pin.label!r} by up to {float(distance.max()):.3g}, "
                f"{worst:.2g} of the channel's deviation, at most in sample {sample} "
                f"({int((share.flatten(1) > PIN_TOLERANCE).sum())} of "
                f"{len(values) * int(mask.sum())} pinned "
                "values are off); correct the data, or the value in the physics"
            )
