"""The six PDE systems, by name: `get_task("heat")`; and those that users add, as a class (`register_task`) or from a file (`own_task`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ..data.dataset import Dataset, load_dataset
from ..errors import SapcError, explain_misuse
from ..grid import Grid
from .base import Task, make_task
from .burgers import Burgers
from .description import check_description
from .from_data import NAME, OwnTask, own_task, read_like, rebuild, settle
from .heat import Heat
from .navier_stokes import NavierStokes
from .physics import Physics, load_physics
from .random_parameters import SPLITS
from .reaction_diffusion import ReactionDiffusion
from .stokes import StokesBC, StokesIC

__all__ = [
    "SPLITS",
    "Dataset",
    "OwnTask",
    "Physics",
    "Task",
    "check_description",
    "get_task",
    "load_dataset",
    "load_physics",
    "own_task",
    "read_like",
    "rebuild",
    "register_task",
    "task_names",
]

_KINDS: dict[str, type[Task]] = {
    kind.name: kind for kind in (Heat, ReactionDiffusion, StokesIC, StokesBC, Burgers, NavierStokes)
}
_OWN: dict[str, OwnTask] = {}  # tasks from a file that were registered

when_unknown: list[Callable[[], None]] = []  # what may bring further tasks: plug-ins


def task_names() -> tuple[str, ...]:
    """The names `get_task` knows."""
    return tuple(_KINDS)


@explain_misuse
def register_task(kind: Any) -> Any:
    """Make a task known by its name; returns it. A task is a subclass of `Task` with its equation, grid, constraint and solver, or
    what `own_task` made.

    Processes that are started later do not know it, unless a file that says `TASK = sapc.register_task(...)` is used there (`sapc.use`).
    A task of `own_task` takes the place of an earlier one of its name; models and runs keep the one that they were made with.
    """
    if isinstance(kind, OwnTask):
        if kind.name in _KINDS:
            raise SapcError(f"there is a task {kind.name!r} already; give yours another name")
        _OWN[kind.name] = kind
        return kind
    if not (inspect.isclass(kind) and issubclass(kind, Task)):
        raise SapcError(f"a task is what sapc.own_task makes, or a subclass of sapc.Task, got {kind!r:.60}")
    if inspect.isabstract(kind):
        lacking = ", ".join(sorted(kind.__abstractmethods__))
        raise SapcError(f"the task {kind.__name__} lacks {lacking}; see sapc.Task for what they return")
    texts = ("name", "title", "equation", "pinned", "law", "parameters", "paper_grid")
    if missing := [name for name in texts if not hasattr(kind, name)]:
        raise SapcError(f"the task {kind.__name__} lacks {', '.join(missing)}, in its class; see sapc.Task")
    if not NAME.fullmatch(kind.name):
        raise SapcError(
            f"a task's name is made of letters, digits and _, beginning with a letter, got {kind.name!r}"
        )
    if kind.name in _KINDS and _KINDS[kind.name].__qualname__ != kind.__qualname__:
        raise SapcError(f"there is a task {kind.name!r} already; give yours another name")
    _KINDS[kind.name] = kind
    return kind


@explain_misuse
def get_task(name: str, grid: Grid | Sequence[int] | None = None, **options: Any) -> Task:
    """A task by name, on its published grid unless given: a `Grid`, or numbers of points, `(64, 50)`."""
    for look in when_unknown if name not in _KINDS and name not in _OWN else ():
        look()
    if "own" in options:
        return settle(name, options["own"], _OWN.get(name)).resize(grid)
    if name in _OWN and not options:
        return _OWN[name].resize(grid)
    if name not in _KINDS:
        raise SapcError(
            f"unknown task {name!r:.60}; choose one of {', '.join(_KINDS)}, or name the file that defines it: "
            "sapc --plugin FILE, in Python sapc.use(FILE); data of your own are given by --data FILE --physics FILE, or in Python as "
            "sapc.own_task(data, physics), whose name is known after sapc.register_task(task)"
        )
    return make_task(_KINDS[name], grid, options)
