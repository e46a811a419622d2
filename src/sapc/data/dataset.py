"""Datasets: solutions with the parameters that made them, and their files.

A file is HDF5 and explains itself: the fields, one array per parameter, the grid, where the data came from,
and a SHA-256 checksum over all of it. Writing is atomic: a file under its final name is complete, whatever
interrupted the writer. Folders made for a file that then fails are taken away again.
"""

from __future__ import annotations

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

from .._files import first_line, replacing
from ..errors import SapcError, explain_misuse, path_of
from ..grid import Grid
from .reading.dataset_file import FORMAT, checksum, read_dataset_file
from .reading.hdf5 import open_hdf5


@explain_misuse
@dataclass(frozen=True, eq=False)
class Dataset:
    """Solutions of one task: `fields` float32 `(n, *grid)`, `parameters` float64 with the same first axis."""

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

    @explain_misuse
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the dataset to an HDF5 file, atomically, and return its path."""
        import h5py

        header = json.dumps(self.describe(), sort_keys=True)
        with replacing(path) as partial, _Sink(partial) as sink, h5py.File(sink, "w") as file:
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
        """What a file of it says besides the numbers, as JSON can hold it."""
        return {
            "task": self.task,
            "options": dict(self.options),
            "split": self.split,
            "seed": self.seed,
            "grid": self.grid.to_dict(),
            "parameters": list(self.parameters),
            "provenance": dict(self.provenance),
        }


@explain_misuse
def load_dataset(path: str | os.PathLike[str]) -> Dataset:
    """Read a dataset back, bit for bit, after checking that the file is whole."""
    path = path_of(path, "a dataset")
    if not path.is_file():
        raise SapcError(f"there is no dataset file {path}; write one with `sapc data TASK --out PATH`")
    try:
        with open_hdf5(path) as file:
            if file.attrs.get("format") != FORMAT:
                raise SapcError(f"{path} is HDF5, but not a dataset of this package ({FORMAT})")
            found = read_dataset_file(path, file)
        fields = torch.from_numpy(found.fields)
        parameters = {name: torch.from_numpy(value) for name, value in found.parameters.items()}
    except SapcError:
        raise
    except Exception as error:  # h5py reports damage by whatever its C library met first
        raise SapcError(
            f"{path} is not a readable dataset file ({first_line(error)}); "
            "it is damaged or of another kind: write it again"
        ) from error
    about = found.header
    options = {key: _tuples(value) for key, value in about["options"].items()}
    identity = (about["task"], about["split"], about["seed"])
    return Dataset(*identity, found.grid, fields, parameters, options, about["provenance"])


class _Sink(io.RawIOBase):
    """A file that HDF5 can always write to: the first failure is kept and raised once HDF5 has closed.

    HDF5 must not see a full disk: it cannot close a file that it cannot flush, and tries again while the
    interpreter exits, which ends in a crash.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115 (closed by close)
        self._error: BaseException | None = None

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while self._error is None and len(rest):
                rest = rest[self._file.write(rest) :]
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
        """Nothing is held back."""

    def close(self) -> None:
        self._file.close()
        super().close()

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._error is not None:
            raise self._error


def _array(tensor: Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    return np.ascontiguousarray(tensor.detach().cpu().numpy())


def _tuples(value: Any) -> Any:
    """JSON knows lists only; options are immutable."""
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
