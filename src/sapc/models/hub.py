"""Models to pass on: folders in the layout of the Hugging Face hub, and repositories there."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .._files import atomic_folder, atomic_write, first_line, sha256, write_json
from ..errors import SapcError, SapcWarning, check_path
from ..tasks.physics import digest_of
from ..training.config import TrainingConfig
from ..training.run_folder import RunFolder, Tensors, load_tensors, save_tensors
from .card import CardText, model_card
from .scores import Scores
from .times import FILE as TIMES

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
FILES = ["config.json", "model.safetensors", TIMES]


def is_repository(name: str, revision: str | None) -> bool:
    """Tell whether a name is `owner/name`; where a folder `owner` exists, a revision has to say so."""
    is_local = revision is None and Path(name).parent.is_dir()
    return REPOSITORY.fullmatch(name) is not None and not is_local


def download(repository: str, revision: str | None = None) -> Path:
    """Return the folder of a repository's files, from the hub or from its cache.

    Raises:
        SapcError: `huggingface_hub` is not installed, or the hub does not give the files.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise SapcError(
            f"there is no folder {repository}; to look for it on the Hugging Face hub, install "
            "huggingface_hub: pip install 'sapc[hub]'"
        ) from error
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=FILES))
    # Errors are of many kinds: no network, no such repository, no permission.
    except Exception as error:
        raise SapcError(
            f"there is no folder {repository}, and the Hugging Face hub did not give one "
            f"({type(error).__name__}: {first_line(error)})"
        ) from error


def read_scores(folder: RunFolder) -> Scores | None:
    """Return the scores of a run folder's own method, if there are some.

    Raises:
        SapcError: There are, and they cannot be used.
    """
    if not folder.scores.is_file():
        return None
    try:
        return Scores.read(folder.scores)
    except SapcError as error:
        raise SapcError(
            f"{folder.scores} cannot be used ({first_line(error)}); run `sapc evaluate` again"
        ) from error


def scores_of_weights(folder: RunFolder, weights: Tensors) -> Scores | None:
    """Return the scores in a run folder, if there are some and they are of these very weights."""
    if (scores := read_scores(folder)) is None:
        return None
    tensors, _ = load_tensors(folder.weights)
    are_equal = tensors.keys() == weights.keys() and all(
        torch.equal(tensors[name].to(value.dtype), value.cpu()) for name, value in weights.items()
    )
    return drop_foreign_scores(folder, scores) if are_equal else None


def drop_foreign_scores(folder: RunFolder, scores: Scores | None) -> Scores | None:
    """Return scores that are of the weights in the folder; those of others stay behind with a warning."""
    if scores is not None and scores.weights not in (None, sha256(folder.weights)):
        warnings.warn(SapcWarning(f"{folder.scores} is of other weights and stays behind"), stacklevel=3)
        return None
    return scores


def physics_text(run: TrainingConfig, folder: RunFolder | None) -> str | None:
    """Return the text of the physics of a training, if the caller gave it or the folder keeps it."""
    digest = run.description.physics_sha256
    texts = [run.physics.text] if run.physics is not None else []
    if folder is not None and folder.physics.is_file():
        texts.append(folder.physics.read_text(encoding="utf-8", errors="replace"))
    return next((text for text in texts if text and digest_of(text) == digest), None)


def write_model(
    path: str | os.PathLike[str],
    run: TrainingConfig,
    network: Tensors,
    metadata: Mapping[str, Any],
    *,
    half: bool,
    scores: Mapping[str, Any] | None,
    times: Mapping[str, Any] | None = None,
    card: CardText,
) -> Path:
    """Write the folder of `Model.save_pretrained`; a failure leaves nothing.

    Args:
        path: The folder.
        run: Settings of the training.
        network: Weights of the network.
        metadata: What was recorded at the end of the training.
        half: Whether weights are rounded to half precision.
        scores: Scores of the weights, if there are some.
        times: Content of the file of times of the sampler, if there is one.
        card: What the card says that the run does not know.

    Returns:
        The path of the folder.

    Raises:
        SapcError: The folder is in use, or weights are beyond half precision.
    """
    home = check_path(path, "a model's folder")
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise SapcError(f"{path} exists and is not an empty folder; choose another one")
    # It would be exchanged for another one, under the caller's feet.
    if home.exists() and home.samefile(os.curdir):
        raise SapcError(f"{path} is the folder you are in; name one that is made for the model, as ./model")
    weights = {key: value.half() if half else value for key, value in network.items()}
    if overflows := [key for key, value in weights.items() if not bool(value.isfinite().all())]:
        raise SapcError(
            f"{overflows[0]} has numbers beyond the range of half precision; save it without half"
        )
    was_rounded = any(not torch.equal(weights[key].to(value.dtype), value) for key, value in network.items())
    parameters = sum(value.numel() for value in network.values())
    record = _check_scores(scores)
    text = model_card(run, parameters, metadata, half, record, was_rounded, card)
    with atomic_folder(home) as folder:
        save_tensors(folder / "model.safetensors", weights, metadata)
        if record is not None:
            # Measured with other weights, if these were rounded.
            digest = None if was_rounded else sha256(folder / "model.safetensors")
            replace(record, weights=digest).write(folder / "scores.json")
        if times is not None:
            digest = sha256(folder / "model.safetensors")
            write_json(folder / TIMES, {**times, "weights": digest})
        for file, content in (("README.md", text), ("physics.py", card.physics)):
            if content is not None:
                with atomic_write(folder / file) as partial:
                    partial.write_text(content, encoding="utf-8")
        write_json(folder / "config.json", run.to_dict())
    return home


def _check_scores(scores: Any) -> Scores | None:
    """Return scores as a record, and refuse what no evaluation has made."""
    if scores is None or isinstance(scores, Scores):
        return scores
    if not isinstance(scores, Mapping) or not {"settings", "mean", "sets"} <= set(scores):
        raise SapcError("scores must be what `evaluate` returns: with settings, sets and their mean")
    try:
        return Scores.from_dict(scores)
    except SapcError as error:
        raise SapcError(f"scores must be what `evaluate` returns, but this {error}") from error
