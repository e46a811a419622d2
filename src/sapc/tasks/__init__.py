"""The six PDE systems, by name: `get_task("heat")`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import SapcError
from ..grid import Grid
from .base import Task, make_task
from .burgers import Burgers
from .dataset import Dataset, load_dataset
from .heat import Heat
from .navier_stokes import NavierStokes
from .own import OwnTask, own_task, reading, remember, task_of
from .physics import Physics, load_physics
from .reaction_diffusion import ReactionDiffusion
from .stokes import StokesBC, StokesIC
from .streams import SPLITS

__all__ = [
    "SPLITS",
    "Dataset",
    "OwnTask",
    "Physics",
    "Task",
    "get_task",
    "load_dataset",
    "load_physics",
    "own_task",
    "reading",
    "remember",
    "task_names",
]

_KINDS: dict[str, type[Task]] = {
    kind.name: kind for kind in (Heat, ReactionDiffusion, StokesIC, StokesBC, Burgers, NavierStokes)
}


def task_names() -> tuple[str, ...]:
    """The names `get_task` knows."""
    return tuple(_KINDS)


def get_task(name: str, grid: Grid | Sequence[int] | None = None, **options: Any) -> Task:
    """A task by name, on its published grid unless given: a `Grid`, or numbers of points, `(64, 50)`."""
    if "own" in options:
        return task_of(name, grid, options["own"])
    if name not in _KINDS:
        raise SapcError(f"unknown task {name!r}; choose one of {', '.join(_KINDS)}")
    return make_task(_KINDS[name], grid, options)
