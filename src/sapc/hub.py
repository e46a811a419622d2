"""Models to pass on: folders in the layout of the Hugging Face hub, and repositories there, if `huggingface_hub` is installed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .card import model_card
from .checkpoint import Tensors, save_tensors
from .config import Run
from .errors import SapcError, path_of
from .files import first_line, replacing, replacing_folder, sha256, write_json

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
FILES = ["config.json", "model.safetensors"]


def fetched(repository: str, revision: str | None = None) -> Path:
    """The folder of a repository's files, from the hub or from its cache."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise SapcError(
            f"there is no folder {repository}; to look for it on the Hugging Face hub, install huggingface_hub: "
            "pip install 'sapc[hub]'"
        ) from error
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=FILES))
    except Exception as error:  # of many kinds: no network, no such repository, no permission
        raise SapcError(
            f"there is no folder {repository}, and the Hugging Face hub did not give one "
            f"({type(error).__name__}: {first_line(error)})"
        ) from error


def write_model(
    path: str | os.PathLike[str],
    run: Run,
    network: Tensors,
    about: Mapping[str, Any],
    *,
    half: bool,
    scores: Mapping[str, Any] | None,
    name: str | None,
    license: str | None,
) -> Path:
    """See `Model.save_pretrained`; the folder is there when it is complete, and a failure leaves nothing."""
    home = path_of(path, "a model's folder")
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise SapcError(f"{path} exists and is not an empty folder; choose another one")
    if home.exists() and home.samefile(
        os.curdir
    ):  # it would be exchanged for another one, under the caller's feet
        raise SapcError(f"{path} is the folder you are in; name one that is made for the model, as ./model")
    weights = {key: value.half() if half else value for key, value in network.items()}
    if lost := [key for key, value in weights.items() if not bool(value.isfinite().all())]:
        raise SapcError(f"{lost[0]} has numbers beyond the range of half precision; save it without half")
    rounded = any(not torch.equal(weights[key].to(value.dtype), value) for key, value in network.items())
    parameters = sum(value.numel() for value in network.values())
    card = model_card(run, parameters, about, half, scores, rounded, name, license)
    with replacing_folder(home) as folder:
        save_tensors(folder / "model.safetensors", weights, about)
        if scores is not None:  # measured with other weights, if these were rounded
            same = {} if rounded else {"weights": sha256(folder / "model.safetensors")}
            write_json(folder / "scores.json", {k: v for k, v in scores.items() if k != "weights"} | same)
        with replacing(folder / "README.md") as partial:
            partial.write_text(card, encoding="utf-8")
        write_json(folder / "config.json", run.to_dict())
    return home
