"""The Hugging Face hub: models by the name of their repository, if `huggingface_hub` is installed."""

from __future__ import annotations

import re
from pathlib import Path

from .errors import SapcError
from .files import first_line

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
