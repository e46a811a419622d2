"""Presets: a run's settings by one word.

They start from a task, because its grid decides how large a model is useful:

    paper   the published settings
    full    the published network with a better training: a third of the steps, twenty times the rate, which falls along a cosine
    compact the sizes and the training of the models that come with the package
    small   a narrower network and fewer steps: a meaningful model in two to three minutes on two CPU cores
    tiny    seconds, for trying out commands; its samples mean nothing
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Literal, get_args

from ..errors import SapcError, check_kind, choice, explain_misuse
from ..nn.network import Backbone, NetworkSource, OwnNetwork
from ..tasks import Task, get_task
from .config import SETTINGS, Run

Preset = Literal["paper", "full", "compact", "small", "tiny"]


@explain_misuse
def preset(
    name: str,
    task: str | Task,
    method: str,
    grid: tuple[int, ...] | None = None,
    network: NetworkSource | None = None,
    **changes: Any,
) -> Run:
    """A run of `task`, by name or a task of your own, with `method` by a preset's settings, with any of them changed.

    `network` is one of your own, which the run describes and which is passed again to train it.
    """
    choice(name, "preset", get_args(Preset))
    if not isinstance(task, str | Task):
        raise SapcError(
            f"a run is of a task, by name or as sapc.Task.from_data(data, physics) makes it, got {type(task).__name__}"
        )
    options = changes.pop("options", {})
    check_kind(options, Mapping, "options", "a record of a task's options by name")
    known = get_task(task, **options) if isinstance(task, str) else task
    if isinstance(task, str) and known.can_draw:
        settings = _settings(name, known)
        chosen = get_task(task, grid=settings["grid"] if grid is None else grid, **options)
    elif grid is not None or options:
        raise SapcError("a task of your own has its grid and options already; leave out grid and options")
    elif known.can_draw:
        chosen, settings = known, _settings(name, known)
    else:
        chosen, settings = known, settings_for(name, known.grid.lattice, known.sizes)
    settings |= {"grid": tuple(chosen.grid.lattice), "options": chosen.options}
    settings["backbone"] = _backbone(settings["backbone"], len(chosen.grid.lattice), changes, network)
    if unknown := sorted(set(changes) - set(SETTINGS)):
        raise SapcError(f"unknown setting {unknown[0]!r} of a run")
    attached = None if chosen.can_draw else chosen
    named = {"task": chosen.name, "method": method, "preset": name, "attached": attached}
    return Run(**{**settings, **named, **changes})


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
    check_kind(body, (Backbone, OwnNetwork), "backbone", "the sizes of an FNO, a sapc.config.Backbone")
    if isinstance(modes := sizes.get("modes"), int):
        sizes["modes"] = (modes,) * axes
    return replace(body, **sizes) if sizes else body


def settings_for(name: str, lattice: tuple[int, ...], sizes: Mapping[str, int]) -> dict[str, Any]:
    """A preset's network and training for a grid and numbers of samples that are not the paper's."""
    flat = get_task("heat" if len(lattice) <= 2 else "navier_stokes")
    settings = _settings(name, flat)
    body = settings["backbone"]
    modes = tuple(min(body.modes[0], 8 if len(lattice) == 4 else n, n) for n in lattice)
    settings |= {"backbone": replace(body, modes=modes), "grid": lattice, **sizes}
    settings["batch"] = min(settings["batch"], sizes["train"])
    if name == "tiny":
        settings |= {split: min(n, _settings(name, flat)[split]) for split, n in sizes.items()}
    if name in ("small", "tiny"):
        settings |= {"schedule": "cosine", "lr_floor": 1e-6, "clip": 1.0}
    return settings


def _settings(name: str, task: Task) -> dict[str, Any]:
    """Return the settings of a preset for a task: those of fields on two axes, or on more."""
    shape = task.grid.shape
    is_flat = len(shape) == 2
    paper = {
        "backbone": Backbone((32, 32), 64, 256, 32) if is_flat else Backbone((16, 16, 16), 32, 128, 16),
        "grid": tuple(shape),
        "steps": 20_000,
        "batch": 256 if is_flat else 32,
        "train": task.sizes["train"],
        "validation": task.sizes["validation"],
    }
    full = {
        "steps": 6000 if is_flat else 8000,
        "lr": 6e-3 if is_flat else 3e-3,
        "lr_floor": 1e-6,
        "schedule": "cosine",
        "clip": 1.0,
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
        "lr_floor": 1e-4,
        "validate": 100,
        "patience": 2,
        "precision": "float32",
    }
    tiny = {
        "backbone": Backbone((4,) * len(shape), 4, 8, 4, blocks=2),
        "grid": (16,) * len(shape) if is_flat else (12, 12, 6),
        "steps": 20,
        "batch": 4,
        "train": 16,
        "validation": 8,
        "validate": 10,
    }
    return {
        "paper": paper,
        "full": paper | full,
        "compact": paper | full | compact,
        "small": small,
        "tiny": small | tiny,
    }[name]
