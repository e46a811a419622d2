"""Models that come with the package: a small SAPC and a small FFM network for every task, as folders in `models/pretrained`.

    config.json     what the run was            model.safetensors   its weights, in half precision
    scores.json     how it scored               README.md           all of it in words

Such a folder has the layout of a model on the Hugging Face hub, and can be loaded, sampled, evaluated, reported and cited as a run folder.
SHA256SUMS lists the digests of all weights, as `sha256sum --check` reads them; weights that differ are not loaded.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import path_of

HOME = Path(__file__).parent.parent / "models" / "pretrained"


def model_names() -> tuple[str, ...]:
    """The models that come with the package."""
    return tuple(sorted(path.parent.name for path in HOME.glob("*/config.json")))


def is_shipped(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is one of these, which nobody writes to."""
    return Path(os.path.realpath(path)).parent == Path(os.path.realpath(HOME))


def shipped_digest(path: str | os.PathLike[str]) -> str | None:
    """The SHA-256 of the weights in one of these folders, as it was when they were published."""
    lines = (HOME / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    listed = {file: digest for digest, file in (line.split(maxsplit=1) for line in lines)}
    return listed.get(f"{Path(os.path.realpath(path)).name}/model.safetensors") if is_shipped(path) else None


def find(where: str | os.PathLike[str]) -> Path:
    """The run folder of that path; if there is none, the model of that name."""
    path = path_of(where, "a model")
    return path if (path / "config.json").is_file() or str(where) not in model_names() else HOME / path
