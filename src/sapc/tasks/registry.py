"""Which tasks there are, by name: the six PDE systems, and those that users add, as a class or from data."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..data import Fields
from ..errors import SapcError, explain_misuse
from ..grid import Grid
from .base import Task
from .burgers import Burgers
from .description import DataDescription
from .from_data import check_name, rebuild, reuse
from .heat import Heat
from .navier_stokes import NavierStokes
from .reaction_diffusion import ReactionDiffusion
from .stokes import StokesBC, StokesIC

TASKS: dict[str, type[Task] | Task] = {
    kind.name: kind for kind in (Heat, ReactionDiffusion, StokesIC, StokesBC, Burgers, NavierStokes)
}
"""Classes of PDE systems, and tasks of users' data that were registered."""

# What may bring further tasks: plug-ins.
lookup_hooks: list[Callable[[], None]] = []

REQUIRED_TEXTS = ("name", "title", "equation", "pinned", "law", "parameters", "paper_grid")
REQUIRED_MEMBERS = ("_draw", "_solve", "constraint")


def task_names() -> tuple[str, ...]:
    """List the names of the PDE systems that `get_task` knows.

    Returns:
        The names, those of the package first.
    """
    return tuple(name for name, entry in TASKS.items() if isinstance(entry, type))


@explain_misuse
def register_task(kind: Any) -> Any:
    """Make a task known by its name.

    Processes that are started later do not know it, unless a file that says `TASK = sapc.register_task(...)`
    is loaded there (`sapc.load_plugin`). A task of data takes the place of an earlier one of its name; models
    and runs keep the one that they were made with.

    Args:
        kind: A subclass of `Task` with its equation, grid, constraint and solver, or what `Task.from_data`
            made.

    Returns:
        The same class or task.

    Raises:
        SapcError: It is no such class or task, or there is another one of its name.
    """
    if not isinstance(kind, Task):
        _check_class(kind)
    entry = TASKS.get(kind.name)
    is_same_class = isinstance(entry, type) and entry.__qualname__ == getattr(kind, "__qualname__", None)
    is_data_again = isinstance(entry, Task) and isinstance(kind, Task)
    if entry is not None and not is_same_class and not is_data_again:
        raise SapcError(f"there is a task {kind.name!r} already; give yours another name")
    TASKS[kind.name] = kind
    return kind


def _check_class(kind: Any) -> None:
    """Refuse a class that does not say all of its task."""
    if not (inspect.isclass(kind) and issubclass(kind, Task)):
        raise SapcError(f"a task is what Task.from_data makes, or a subclass of sapc.Task, got {kind!r:.60}")
    if absent_members := [name for name in REQUIRED_MEMBERS if getattr(kind, name) is getattr(Task, name)]:
        raise SapcError(f"the task {kind.__name__} lacks {', '.join(absent_members)}; see sapc.Task for them")
    names = {name for base in kind.__mro__ if base is not Task for name in vars(base)}
    if absent_texts := [name for name in REQUIRED_TEXTS if name not in names]:
        raise SapcError(
            f"the task {kind.__name__} lacks {', '.join(absent_texts)}, in its class; see sapc.Task"
        )
    check_name(kind.name)


@explain_misuse
def get_task(name: str, grid: Grid | Sequence[int] | None = None, **options: Any) -> Task:
    """Find a task by its name.

    Args:
        name: Name of a PDE system, or of a task that was registered.
        grid: A `Grid`, or numbers of points, `(64, 50)`; the published grid unless given.
        **options: Options of the task.

    Returns:
        The task.

    Raises:
        SapcError: There is no task of that name, or no such option.
    """
    for look in lookup_hooks if name not in TASKS else ():
        look()
    entry = TASKS.get(name)
    description = DataDescription.from_options(options)
    if not description.can_draw:
        return reuse(name, description, entry if isinstance(entry, Task) else None).resize(grid)
    if isinstance(entry, Task) and not options:
        return entry.resize(grid)
    if not isinstance(entry, type):
        raise SapcError(
            f"unknown task {name!r:.60}; choose one of {', '.join(task_names())}, or name the file that "
            "defines it: "
            "sapc --plugin FILE, in Python sapc.load_plugin(FILE); data of your own are given by --data FILE "
            "--physics FILE, or in Python as sapc.Task.from_data(data, physics), whose name is known after "
            "sapc.register_task(task)"
        )
    has_options = entry.__init__ is not Task.__init__
    option_names = list(inspect.signature(entry.__init__).parameters)[2:] if has_options else []
    if unknown := sorted(set(options) - set(option_names)):
        accepts = f"takes {', '.join(option_names)}" if option_names else "has no options"
        raise SapcError(f"unknown option {unknown[0]!r}: the task {name!r} {accepts}")
    return entry(grid, **options)


def attach_task(
    name: str,
    options: Mapping[str, Any],
    task: Task | None,
    physics: Any = None,
    data: Fields | str | os.PathLike[str] | None = None,
    reading: Mapping[str, Any] | None = None,
) -> Task | None:
    """Find the task of a run that does not hold its physics and data.

    Args:
        name: Name of the task.
        options: Options of the task, as the run has them.
        task: The task that the run carries already, if it does.
        physics: A Python file, a function of the grid, or constraints; unless given, those of the task, or of
            the one that is registered by its name with the same physics.
        data: The fields of the training, or their file.
        reading: How files are read, as arguments of `read_fields`, where that is not as in the training.

    Returns:
        The task; None for a published one.

    Raises:
        SapcError: Physics or data are given for a task of this package.
    """
    description = DataDescription.from_options(options)
    if description.can_draw:
        if physics is not None or data is not None or reading:
            raise SapcError(f"{name} is a task of this package; physics and data are for tasks of your own")
        return task
    if task is None and physics is None:
        task = get_task(name, **options)
    if task is not None:
        if physics is None and data is None and not reading:
            return task
        physics = task.physics if physics is None else physics
        data = task.source.fields if data is None else data
    return rebuild(name, description, physics, data, reading, () if task is None else task.symmetries)
