"""Cache solved datasets: what was integrated once is read back.

The folder is `$SAPC_CACHE`, else `$XDG_CACHE_HOME/sapc`, else `~/.cache/sapc`; `SAPC_CACHE=off` turns the
cache off. The name of a file is a digest of everything that defines the data, so an entry never goes stale,
and files are written atomically with a checksum. The cache can only save time: a damaged entry is made anew
and a folder that cannot be written is left alone, each with a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from .._files import ensure_folder, remove_remains
from .._old_names import find_renamed
from ..errors import SapcError, SapcWarning
from .dataset import Dataset, load_dataset

CacheChoice = str | os.PathLike[str] | Literal[False] | None


def cache_folder(choice: CacheChoice = None) -> Path | None:
    """Find the folder of the cache.

    Args:
        choice: A folder, False for no cache, or None for what the environment says.

    Returns:
        The folder, or None for no cache.

    Raises:
        SapcError: The environment names no folder, and there is no home folder.
    """
    if choice is False:
        return None
    if choice is not None:
        return Path(choice)
    setting = os.environ.get("SAPC_CACHE", "")
    if setting.lower() == "off":
        return None
    try:
        if setting:
            return Path(setting).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sapc"
    # The user has no home folder that "~" could stand for.
    except RuntimeError as error:
        raise SapcError(
            f"there is no home folder for the cache (SAPC_CACHE={setting!r}); "
            "set SAPC_CACHE to a folder or to off"
        ) from error


def entry_name(description: Mapping[str, Any]) -> str:
    """Return the file name of the data that `description` defines.

    Args:
        description: Task, split and everything else that decides on the data, as JSON can hold it.

    Returns:
        The name, without a folder.
    """
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
    return f"{description['task']}-{description['split']}-{digest[:24]}.h5"


def _check_entry(data: Dataset, description: Mapping[str, Any], path: Path) -> Dataset:
    """Return a dataset of the cache if it is what `description` defines: a file may have been renamed."""
    content = {**data.describe(), "size": len(data)}
    keys = content.keys() & description.keys()
    actual, target = ({key: entries[key] for key in keys} for entries in (content, description))
    if json.dumps(actual, sort_keys=True) != json.dumps(target, sort_keys=True):
        raise SapcError(f"{path} holds other data than its name says")
    return data


def load_or_make(choice: CacheChoice, description: Mapping[str, Any], make: Callable[[], Dataset]) -> Dataset:
    """Read a dataset from the cache, or make it and write it there.

    Args:
        choice: A folder, False for no cache, or None for what the environment says.
        description: Everything that defines the data, as JSON can hold it.
        make: Makes the dataset.

    Returns:
        The dataset.
    """
    folder = cache_folder(choice)
    if folder is None:
        return make()
    remove_remains(folder)
    path = folder / entry_name(description)
    if os.path.exists(path):
        try:
            return _check_entry(load_dataset(path), description, path)
        except SapcError as error:
            message = f"a cached dataset is damaged and is made again: {error}"
            warnings.warn(message, SapcWarning, stacklevel=3)
    data = make()
    try:
        with ensure_folder(folder):
            data.save(path)
    except SapcError as error:
        message = f"the dataset is not cached: {error}; set SAPC_CACHE to another folder or to off"
        warnings.warn(message, SapcWarning, stacklevel=3)
    return data


__getattr__ = find_renamed(__name__)
