"""The dataset files of this package: HDF5 with a header in JSON and a SHA-256 checksum over header, fields and parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._files import parse_json
from ...errors import SapcError
from ...grid import Grid
from .hdf5 import Array, load_array

FORMAT = "sapc-dataset-1"
HEADER = {
    "task": str,
    "options": dict,
    "split": str,
    "seed": int,
    "grid": dict,
    "parameters": list,
    "provenance": dict,
}


@dataclass(frozen=True, eq=False)
class DatasetFile:
    """What a file holds, known to be what was written: `header` has the entries of HEADER."""

    header: Mapping[str, Any]
    grid: Grid
    fields: Array
    parameters: Mapping[str, Array]


def read_dataset_file(path: Path, file: Any) -> DatasetFile:
    """The contents of an open file of this format; refuses what does not match its checksum."""
    header, digest = (file.attrs.get(name) for name in ("header", "sha256"))
    if not isinstance(header, str) or not isinstance(digest, str):
        raise SapcError(f"{path} has no header with a checksum, as every dataset; write it again")
    about = _parsed(path, header)
    arrays = {
        name: _array(path, file, name)
        for name in ("fields", *(f"parameters/{n}" for n in about["parameters"]))
    }
    fields = arrays["fields"]
    parameters = {name: arrays[f"parameters/{name}"] for name in about["parameters"]}
    if checksum(header, fields, parameters) != digest:
        raise SapcError(f"the contents of {path} do not match its checksum; it is damaged: write it again")
    try:
        grid = Grid.from_dict(about["grid"])
    except SapcError as error:
        raise SapcError(f"{path}: {error}") from error
    if fields.dtype.kind != "f" or fields.shape[1:] != grid.shape:
        raise SapcError(
            f"{path} holds {fields.dtype} fields of shape {fields.shape}, but its grid needs floating-point numbers of "
            f"(n, {', '.join(map(str, grid.shape))}); write it again"
        )
    return DatasetFile(about, grid, fields, parameters)


def _parsed(path: Path, header: str) -> dict[str, Any]:
    try:
        about = parse_json(header)
    except SapcError as error:
        raise SapcError(
            f"the header of {path} is not readable JSON; it is damaged: write it again"
        ) from error
    entries = about if isinstance(about, dict) else {}
    for name, kind in HEADER.items():
        if not isinstance(entries.get(name), kind):
            raise SapcError(
                f"the header of {path} has {entries.get(name)!r:.40} for {name!r}, expected a {kind.__name__}; write it again"
            )
    if not all(isinstance(name, str) for name in about["parameters"]):
        raise SapcError(f"the header of {path} names parameters {about['parameters']!r:.60}; write it again")
    return entries


def _array(path: Path, file: Any, name: str) -> Array:
    import h5py

    item = file.get(name)
    if not isinstance(item, h5py.Dataset) or item.shape is None:
        raise SapcError(
            f"{path} has no array {name!r}, which its header names; it is damaged: write it again"
        )
    return load_array(path, item)


def checksum(header: str, fields: Array, parameters: Mapping[str, Array]) -> str:
    """The SHA-256 of all of it."""
    digest = hashlib.sha256(header.encode())
    for name, given in (("fields", fields), *sorted(parameters.items())):
        array = np.ascontiguousarray(given)
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
