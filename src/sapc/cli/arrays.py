"""Conditions from files, and samples into files: HDF5 or npz."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import SapcError
from ..files import first_line, folder_for, replacing
from ..tasks import Dataset, Task, load_dataset
from ..tasks.dataset import FORMAT as DATASET

FORMAT = "sapc-samples-1"
SUFFIXES = (".h5", ".hdf5", ".npz")
Array = np.ndarray[Any, np.dtype[Any]]


def read_condition(path: Path, task: Task) -> Tensor:
    """Conditions `(m, *grid)` from a dataset, or from the array `condition`, else `fields`, else the only one of a file."""
    if not path.is_file():
        raise SapcError(f"there is no file {path}; --condition takes an npz or HDF5 file")
    array = _read(path)
    if isinstance(array, Dataset):
        if array.task != task.name:
            raise SapcError(f"{path} is a dataset of {array.task}, but this is a model of {task.name}")
        return array.fields
    if array.dtype.kind not in "fiu":
        raise SapcError(f"the condition in {path} holds values of type {array.dtype}; expected real numbers")
    values = torch.from_numpy(array.astype(np.float64))
    return values[None] if tuple(values.shape) == task.grid.shape else values


def _read(path: Path) -> Array | Dataset:
    import h5py

    try:
        if zipfile.is_zipfile(path):
            with np.load(path, allow_pickle=False) as file:
                return _choose(path, list(file.files), lambda name: file[name])
        with h5py.File(path, "r") as file:
            if file.attrs.get("format") != DATASET:
                names: list[str] = []
                file.visititems(
                    lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
                )
                return _choose(path, names, lambda name: np.asarray(file[name][()]))
    except SapcError:
        raise
    except Exception as error:  # numpy and h5py report damage by whatever they met first
        raise SapcError(
            f"{path} is not a readable npz or HDF5 file ({first_line(error)}); write the condition as one of them"
        ) from error
    return load_dataset(path)


def _choose(path: Path, names: list[str], get: Callable[[str], Array]) -> Array:
    for name in ("condition", "fields", *(names if len(names) == 1 else ())):
        if name in names:
            return get(name)
    found = ", ".join(names) or "none"
    raise SapcError(
        f"{path} has no array `condition` or `fields` (found: {found}); name the one to use `condition`"
    )


def check_suffix(path: Path) -> None:
    """Refuse a name that tells no format."""
    if path.suffix.lower() not in SUFFIXES:
        raise SapcError(f"the suffix of --out picks the format: {', '.join(SUFFIXES)}; got {path.name!r}")


def write_samples(path: Path, arrays: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write arrays with a JSON description, atomically."""
    content, header = io.BytesIO(), json.dumps({"format": FORMAT, **about})
    ready = {name: tensor.numpy() for name, tensor in arrays.items()}
    if path.suffix.lower() == ".npz":
        np.savez(content, header=np.array(header), **ready)  # type: ignore[arg-type]
    else:
        import h5py

        with h5py.File(content, "w") as file:
            file.attrs["format"], file.attrs["header"] = FORMAT, header
            for name, array in ready.items():
                file[name] = array
    with folder_for(path.parent), replacing(path) as partial:
        partial.write_bytes(content.getbuffer())
