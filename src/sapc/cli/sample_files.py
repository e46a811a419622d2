"""Conditions from files, and samples into files: HDF5, npz or NetCDF.

Samples of k conditions, m of each, are n = k m fields with the m of each condition in a row. HDF5 and npz
hold `fields` `(n, *grid)`, the conditions themselves, `condition` `(k, *grid)`, and of every field the
numbers `condition_index` and `member_index`; NetCDF has the dimensions `condition` and `member`.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._files import atomic_write, ensure_folder, first_line
from ..data import to_xarray, write_netcdf
from ..data.conditions import has_conditions, place_conditions, read_conditions
from ..data.dataset import FORMAT as DATASET
from ..data.reading.hdf5 import load_array, open_hdf5
from ..errors import SapcError
from ..grid import Grid
from ..models.sampling import condition_mask
from ..tasks import Dataset, Task, load_dataset, read_like

FORMAT = "sapc-samples-1"
SUFFIXES = (".h5", ".hdf5", ".npz", ".nc")
Array = np.ndarray[Any, np.dtype[Any]]


def read_condition(path: Path, task: Task) -> Tensor:
    """Read conditions from a file.

    Args:
        path: A dataset, or an HDF5, npz or NetCDF file with an array `condition`, else `fields`, else a
        single
            one. It may hold the pinned part alone, as an initial frame.
        task: The task that is sampled.

    Returns:
        Conditions `(k, *grid)`, NaN where the file has nothing.

    Raises:
        SapcError: The file cannot be read, is of another task, or does not fit the grid.
    """
    if not path.is_file():
        raise SapcError(f"there is no file {path}; --condition takes an npz, HDF5 or NetCDF file")
    if has_conditions(path, task.grid):
        return read_conditions(path, task.grid, condition_mask(task))
    if not task.can_draw:
        return _read_like_data(path, task)
    array = _read(path)
    if isinstance(array, Dataset):
        if array.task != task.name:
            raise SapcError(f"{path} is a dataset of {array.task}, but this is a model of {task.name}")
        return array.fields
    if array.dtype.kind not in "fiu":
        raise SapcError(f"the condition in {path} holds values of type {array.dtype}; expected real numbers")
    if array.ndim == 0:
        raise SapcError(f"the condition in {path} is a single number; expected fields, or their pinned part")
    # NaN stays NaN.
    with np.errstate(invalid="ignore"):
        values = array.astype(np.float64)
    fields = place_conditions(values, task.grid, condition_mask(task))
    return torch.from_numpy(values) if fields is None else fields


def _read_like_data(path: Path, task: Task) -> Tensor:
    """Read conditions from a file like that of the training, or of `sapc sample`; gaps may be left out."""
    if (condition := _read_sampled_condition(path, task)) is not None:
        return condition
    by_channel = {}
    for name in task.grid.channels:
        with suppress(SapcError):
            by_channel[name] = read_like(
                task.description, path, channels=(name,), dtype=torch.float64, gaps=True
            )
    if not by_channel:
        return _read_pinned_part(path, task)
    first = next(iter(by_channel.values()))
    if first.grid.axes != task.grid.axes:
        return _read_pinned_part(path, task, _grid_mismatch(path, first.grid, task.grid))
    gap = torch.full_like(first.values, torch.nan)
    channels = [by_channel[name].values if name in by_channel else gap for name in task.grid.channels]
    return channels[0] if task.grid.n_channels == 1 else torch.stack(channels, 1)


def _read_pinned_part(path: Path, task: Task, problem: SapcError | None = None) -> Tensor:
    """Read conditions without a dimension of samples, or the pinned part; `problem` is of whole fields."""
    reading = task.description.reading
    space = tuple(axis.name for axis in task.grid.space)
    order = (task.grid.time.name, *space) if reading.get("time") == "first" else task.grid.names
    try:
        return read_conditions(path, task.grid, condition_mask(task), order)
    except SapcError as error:
        raise problem or error from error


def _grid_mismatch(path: Path, file_grid: Grid, task_grid: Grid) -> SapcError:
    """Describe how the grid of a file differs from that of the samples."""
    if file_grid.names != task_grid.names:
        return SapcError(
            f"{path} has the axes {', '.join(file_grid.names)}; expected {', '.join(task_grid.names)}"
        )
    axis, file_axis = next((a, b) for a, b in zip(task_grid.axes, file_grid.axes, strict=True) if a != b)
    return SapcError(
        f"{path} is on another grid: {file_axis.name} has {file_axis.n} points of "
        f"[{file_axis.start:g}, {file_axis.stop:g}] ({file_axis.kind}), and {axis.n} of "
        f"[{axis.start:g}, {axis.stop:g}] ({axis.kind}) are sampled; "
        "give a condition on that grid, or name its own by --grid"
    )


def _read_sampled_condition(path: Path, task: Task) -> Tensor | None:
    """Read the array `condition` of a file of `sapc sample`; None for another file."""
    try:
        array = _read(path)
    except SapcError:
        return None
    fits = isinstance(array, np.ndarray) and array.dtype.kind in "fiu"
    if not fits or array.shape[-len(task.grid.shape) :] != task.grid.shape:  # type: ignore[union-attr]
        return None
    values = torch.from_numpy(array.astype(np.float64))  # type: ignore[union-attr]
    return values.reshape(-1, *task.grid.shape)


def parse_quantiles(text: str | None, path: Path) -> tuple[float, ...]:
    """Read `0.05,0.95` as numbers.

    Args:
        text: Numbers joined by commas, or None.
        path: The file to write, which must be NetCDF to hold quantiles.

    Returns:
        The quantiles; none without a text.

    Raises:
        SapcError: They are no numbers between 0 and 1, or the file is not NetCDF.
    """
    if text is None:
        return ()
    if path.suffix.lower() != ".nc":
        raise SapcError(f"--quantiles are written to NetCDF; name the file .nc, not {path.name!r}")
    try:
        quantiles = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise SapcError(f"--quantiles takes numbers joined by commas, as 0.05,0.95, got {text!r}") from error
    if not all(0 <= quantile <= 1 for quantile in quantiles):
        raise SapcError(f"quantiles lie between 0 and 1, got {text!r}")
    return quantiles


def _read(path: Path) -> Array | Dataset:
    import h5py

    try:
        if zipfile.is_zipfile(path):
            with np.load(path, allow_pickle=False) as file:
                return _select_array(path, list(file.files), lambda name: file[name])
        with open_hdf5(path) as file:
            if file.attrs.get("format") != DATASET:
                names: list[str] = []
                file.visititems(
                    lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
                )
                return _select_array(path, names, lambda name: load_array(path, file[name]))
    except SapcError:
        raise
    # numpy and h5py report damage by whatever they met first.
    except Exception as error:
        raise SapcError(
            f"{path} is not a readable npz or HDF5 file ({first_line(error)}); "
            "write the condition as one of them"
        ) from error
    return load_dataset(path)


def _select_array(path: Path, names: list[str], get: Callable[[str], Array]) -> Array:
    for name in ("condition", "fields", *(names if len(names) == 1 else ())):
        if name in names:
            return get(name)
    available = ", ".join(names) or "none"
    raise SapcError(
        f"{path} has no array `condition` or `fields` (found: {available}); name the one to use `condition`"
    )


def check_suffix(path: Path) -> None:
    """Refuse a name whose suffix stands for no format."""
    if path.suffix.lower() not in SUFFIXES:
        raise SapcError(f"the suffix of --out picks the format: {', '.join(SUFFIXES)}; got {path.name!r}")


def write_samples(
    path: Path,
    arrays: dict[str, Tensor],
    metadata: Mapping[str, Any],
    task: Task,
    quantiles: tuple[float, ...] = (),
) -> None:
    """Write samples and their conditions, with a description; nothing half-written is left behind.

    Args:
        path: The file, whose suffix picks the format.
        arrays: `fields` `(n, *grid)` and `condition` `(k, *grid)`.
        metadata: Where the samples come from, as JSON can hold it.
        task: The task, for titles, units and coordinates.
        quantiles: Quantiles of the samples of each condition; NetCDF also has their mean and deviation.
    """
    if path.suffix.lower() == ".nc":
        attributes = {"title": f"Samples of {task.title}", "sapc": {"format": FORMAT, **metadata}}
        dataset = to_xarray(
            arrays["fields"],
            task.grid,
            units=task.units,
            labels=task.labels,
            quantiles=quantiles,
            attributes=attributes,
            conditions=arrays["condition"],
        )
        write_netcdf(path, dataset)
        return
    content, header = io.BytesIO(), json.dumps({"format": FORMAT, **metadata})
    contents = {name: tensor.numpy() for name, tensor in (arrays | _member_indices(arrays)).items()}
    if path.suffix.lower() == ".npz":
        np.savez(content, header=np.array(header), **contents)  # type: ignore[arg-type]
    else:
        import h5py

        with h5py.File(content, "w") as file:
            file.attrs["format"], file.attrs["header"] = FORMAT, header
            for name, array in contents.items():
                file[name] = array
    with ensure_folder(path.parent), atomic_write(path) as partial:
        partial.write_bytes(content.getbuffer())


def _member_indices(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the number of the condition of each field, and its number among the members of it."""
    n, k = len(arrays["fields"]), len(arrays["condition"])
    return {"condition_index": torch.arange(n) // (n // k), "member_index": torch.arange(n) % (n // k)}
