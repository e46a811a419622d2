"""The cache of solved datasets: what was once integrated is read back.

The folder is `$SAPC_CACHE`, else `$XDG_CACHE_HOME/sapc`, else `~/.cache/sapc`; `SAPC_CACHE=off` turns it
off. A file's name is a digest of everything that defines the data, so an entry never goes stale, and files
are written atomically with a checksum. The cache can only save time: a damaged entry is made anew and a
folder that cannot be written is left alone, each with a warning.
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
    """The folder to use, or None for no cache: `choice` if given (False: none), else the environment's."""
    if choice is False:
        return None
    if choice is not None:
        return Path(choice)
    named = os.environ.get("SAPC_CACHE", "")
    if named.lower() == "off":
        return None
    try:
        if named:
            return Path(named).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sapc"
    except RuntimeError as error:  # "~" of nobody
        raise SapcError(
            f"there is no home folder for the cache (SAPC_CACHE={named!r}); set SAPC_CACHE to a folder or to off"
        ) from error


def entry_name(description: Mapping[str, Any]) -> str:
    """The file name of the data that `description` defines."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
    return f"{description['task']}-{description['split']}-{digest[:24]}.h5"


def _matching(data: Dataset, description: Mapping[str, Any], path: Path) -> Dataset:
    """The dataset, known to be what `description` defines: a file may have been renamed."""
    found = {**data.describe(), "size": len(data)}
    one, other = ({key: of[key] for key in found.keys() & description.keys()} for of in (found, description))
    if json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True):
        raise SapcError(f"{path} holds other data than its name says")
    return data


def load_or_make(choice: CacheChoice, description: Mapping[str, Any], make: Callable[[], Dataset]) -> Dataset:
    """The dataset that `description` defines: read back if the cache has it, else made and kept."""
    folder = cache_folder(choice)
    if folder is None:
        return make()
    remove_remains(folder)
    path = folder / entry_name(description)
    if os.path.exists(path):
        try:
            return _matching(load_dataset(path), description, path)
        except SapcError as error:
            told = f"a cached dataset is damaged and is made again: {error}"
            warnings.warn(told, SapcWarning, stacklevel=3)
    data = make()
    try:
        with ensure_folder(folder):
            data.save(path)
    except SapcError as error:
        told = f"the dataset is not cached: {error}; set SAPC_CACHE to another folder or to off"
        warnings.warn(told, SapcWarning, stacklevel=3)
    return data


__getattr__ = find_renamed(__name__)
