"""Models that come with the package: a small SAPC and a small FFM network for every task, as folders beside this file.

    config.json     what the run was            model.safetensors   its weights, in half precision
    scores.json     how it scored               README.md           all of it in words

Such a folder has the layout of a model on the Hugging Face hub, and can be loaded, sampled, evaluated, reported and cited as a run folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import path_of

HOME = Path(__file__).parent


def model_names() -> tuple[str, ...]:
    """The models that come with the package."""
    return tuple(sorted(path.parent.name for path in HOME.glob("*/config.json")))


def is_shipped(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is one of these, which nobody writes to."""
    return Path(path).resolve().parent == HOME.resolve()


def find(where: str | os.PathLike[str]) -> Path:
    """The run folder of that path; if there is none, the model of that name."""
    path = path_of(where, "a model")
    return path if (path / "config.json").is_file() or str(where) not in model_names() else HOME / path
