"""Datasets: solutions with the parameters that made them, and their files.

A file is HDF5 and describes itself: the fields, one array per parameter, the grid, where the data came from,
and a SHA-256 checksum over all of it. Writing is atomic: a file under its final name is complete, whatever
interrupted the writer. Folders made for a file that then fails are removed again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .._files import atomic_write, first_line, parse_json
from ..errors import SapcError, check_path, explain_misuse
from ..grid import Grid
from .reading.hdf5 import Array, load_array, open_hdf5

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


@explain_misuse
@dataclass(frozen=True, eq=False)
class Dataset:
    """Solutions of one task.

    Attributes:
        task: Name of the task.
        split: Name of the split or test set.
        seed: Seed of the draw.
        grid: Grid of the fields.
        fields: The solutions `(n, *grid)` in float32.
        parameters: What made them, by name; float64 with the same first axis.
        options: Options of the task.
        provenance: Versions, device, solver and time of the computation.

    Raises:
        SapcError: Fields, grid and parameters do not fit together.
    """

    task: str
    split: str
    seed: int
    grid: Grid
    fields: Float[Tensor, " batch *grid"]
    parameters: Mapping[str, Tensor]
    options: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.grid.check(self.fields, "dataset's field")
        for name, value in self.parameters.items():
            if value.ndim == 0 or len(value) != len(self):
                raise SapcError(
                    f"parameter {name!r} has shape {tuple(value.shape)}; "
                    f"a dataset of {len(self)} fields needs one row per field"
                )

    def __len__(self) -> int:
        return self.fields.shape[0]

    def __repr__(self) -> str:
        grid = " x ".join(map(str, self.grid.shape))
        return f"Dataset({self.task}, {self.split}, {len(self)} solutions, {grid}, seed {self.seed})"

    @explain_misuse
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the dataset to an HDF5 file, atomically.

        Args:
            path: The file.

        Returns:
            Its path.
        """
        import h5py

        header = json.dumps(self.describe(), sort_keys=True)
        with atomic_write(path) as partial, _Sink(partial) as sink, h5py.File(sink, "w") as file:
            file.attrs["format"] = FORMAT
            file.attrs["header"] = header
            fields = _array(self.fields)
            parameters = {name: _array(value) for name, value in self.parameters.items()}
            file.attrs["sha256"] = checksum(header, fields, parameters)
            file.attrs["grid"] = json.dumps(self.grid.to_dict())
            file["fields"] = fields
            for name, value in parameters.items():
                file[f"parameters/{name}"] = value
        return Path(path)

    def describe(self) -> dict[str, Any]:
        """Return everything but the numbers, as JSON can hold it."""
        metadata = {
            "options": dict(self.options),
            "provenance": dict(self.provenance),
            "grid": self.grid.to_dict(),
        }
        identity = {"task": self.task, "split": self.split, "seed": self.seed}
        return {**identity, **metadata, "parameters": list(self.parameters)}


@explain_misuse
def load_dataset(path: str | os.PathLike[str]) -> Dataset:
    """Read a dataset back, bit for bit, after checking that the file is complete.

    Args:
        path: A file that `Dataset.save` wrote.

    Returns:
        The dataset.

    Raises:
        SapcError: There is no such file, it is damaged, or of another kind.
    """
    path = check_path(path, "a dataset")
    if not path.is_file():
        raise SapcError(f"there is no dataset file {path}; write one with `sapc data TASK --out PATH`")
    try:
        with open_hdf5(path) as file:
            if file.attrs.get("format") != FORMAT:
                raise SapcError(f"{path} is HDF5, but not a dataset of this package ({FORMAT})")
            return read_dataset(path, file)
    except SapcError:
        raise
    # h5py reports damage by whatever its C library met first.
    except Exception as error:
        raise SapcError(
            f"{path} is not a readable dataset file ({first_line(error)}); "
            "it is damaged or of another kind: write it again"
        ) from error


def read_dataset(path: Path, file: Any) -> Dataset:
    """Read an open file of this format.

    Args:
        path: The file, for messages.
        file: The file, opened by h5py.

    Returns:
        The dataset.

    Raises:
        SapcError: The contents do not match the checksum, or are not those of a dataset.
    """
    header, digest = (file.attrs.get(name) for name in ("header", "sha256"))
    if not isinstance(header, str) or not isinstance(digest, str):
        raise SapcError(f"{path} has no header with a checksum, as every dataset; write it again")
    metadata = _parse_header(path, header)
    fields = _read_array(path, file, "fields")
    parameters = {name: _read_array(path, file, f"parameters/{name}") for name in metadata["parameters"]}
    if checksum(header, fields, parameters) != digest:
        raise SapcError(f"the contents of {path} do not match its checksum; it is damaged: write it again")
    try:
        grid = Grid.from_dict(metadata["grid"])
    except SapcError as error:
        raise SapcError(f"{path}: {error}") from error
    if fields.dtype.kind != "f" or fields.shape[1:] != grid.shape:
        raise SapcError(
            f"{path} holds {fields.dtype} fields of shape {fields.shape}, but its grid needs "
            f"floating-point numbers of (n, {', '.join(map(str, grid.shape))}); write it again"
        )
    tensors = {name: torch.from_numpy(value) for name, value in parameters.items()}
    options = {key: _tuples(value) for key, value in metadata["options"].items()}
    identity = (metadata["task"], metadata["split"], metadata["seed"])
    return Dataset(*identity, grid, torch.from_numpy(fields), tensors, options, metadata["provenance"])


def _parse_header(path: Path, header: str) -> dict[str, Any]:
    try:
        content = parse_json(header)
    except SapcError as error:
        raise SapcError(
            f"the header of {path} is not readable JSON; it is damaged: write it again"
        ) from error
    entries = content if isinstance(content, dict) else {}
    for name, kind in HEADER.items():
        if not isinstance(entries.get(name), kind):
            raise SapcError(
                f"the header of {path} has {entries.get(name)!r:.40} for {name!r}, "
                f"expected a {kind.__name__}; write it again"
            )
    if not all(isinstance(name, str) for name in entries["parameters"]):
        raise SapcError(
            f"the header of {path} names parameters {entries['parameters']!r:.60}; write it again"
        )
    return entries


def _read_array(path: Path, file: Any, name: str) -> Array:
    import h5py

    item = file.get(name)
    if not isinstance(item, h5py.Dataset) or item.shape is None:
        raise SapcError(
            f"{path} has no array {name!r}, which its header names; it is damaged: write it again"
        )
    return load_array(path, item)


def checksum(header: str, fields: Array, parameters: Mapping[str, Array]) -> str:
    """Compute the SHA-256 of all contents of a dataset.

    Args:
        header: The header, as JSON.
        fields: The fields.
        parameters: The parameters by name.

    Returns:
        The digest in hexadecimal.
    """
    digest = hashlib.sha256(header.encode())
    for name, values in (("fields", fields), *sorted(parameters.items())):
        array = np.ascontiguousarray(values)
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


class _Sink(io.RawIOBase):
    """A file that HDF5 can always write to: the first failure is raised once HDF5 has closed.

    HDF5 must not see a full disk: it cannot close a file that it cannot flush, and tries again while the
    interpreter exits, which ends in a crash.
    """

    def __init__(self, path: Path) -> None:
        # `close` closes it.
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115
        self._error: BaseException | None = None

    def write(self, data: Any) -> int:
        remainder = memoryview(data).cast("B")
        size = len(remainder)
        try:
            while self._error is None and len(remainder):
                remainder = remainder[self._file.write(remainder) :]
        except BaseException as error:
            self._error = error
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            if self._error is None:
                self._file.truncate(size)
        except BaseException as error:
            self._error = error
        return self.tell() if size is None else size

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto(buffer)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        """Do nothing: no bytes are held back."""

    def close(self) -> None:
        self._file.close()
        super().close()

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._error is not None:
            raise self._error


def _array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.detach().cpu().numpy())


def _tuples(value: Any) -> Any:
    """Turn the lists of JSON into tuples, as options are immutable."""
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
