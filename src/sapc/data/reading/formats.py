"""Files as arrays: whatever the format, a file is a set of variables with shape, attributes and, where known, names of dimensions.

Told by their first bytes: NetCDF-4 (HDF5 whose every dimension has a scale, by xarray), plain HDF5 (by h5py), NetCDF-3 (by xarray and
scipy), npz, and the dataset files of this package, whose checksum is verified. Arrays are read when asked for. Missing values
(`_FillValue`) become NaN; numbers of a time stay numbers, whatever their units say. Only the root group of an HDF5 file is looked at,
and no other file that it names (`hdf5`).
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._files import first_line
from ...errors import SapcError, require_memory
from ...grid import Grid
from ..dataset import FORMAT, read_dataset
from ..dataset import Dataset as SolvedDataset
from .hdf5 import Array, check_stored, open_hdf5

if TYPE_CHECKING:
    from xarray import Dataset as Dataset
else:
    # Annotations are read at run time in tests, and importing xarray takes a second.
    Dataset = Any


def xarray(what: str) -> Any:
    """Import xarray, which only NetCDF needs, or say how to get it."""
    try:
        import h5netcdf  # noqa: F401 (its engine for NetCDF-4)
        import xarray as found
    except ImportError as error:
        raise SapcError(f"{what} NetCDF needs xarray: pip install 'sapc[data]'") from error
    return found


@dataclass(frozen=True, eq=False)
class Variable:
    """An array of a file: `dims` are its dimensions' names, None where there is none; `kind` is numpy's letter.

    `check` refuses, before anything is allocated, what `load` could not read; `read` is the one after the other.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    load: Callable[[], Array]
    dims: tuple[str | None, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    itemsize: int = 8
    check: Callable[[], None] = lambda: None
    path: Path = Path()

    def __post_init__(self) -> None:
        if not self.dims:
            object.__setattr__(self, "dims", (None,) * len(self.shape))

    def read(self) -> Array:
        """The values; what is damaged is one sentence."""
        with readable(self.path):
            self.check()
            return np.asarray(self.load())

    def text(self, key: str) -> str | None:
        """An attribute as text; None if it is not there or empty."""
        value = self.attributes.get(key)
        value = value.reshape(-1)[0] if isinstance(value, np.ndarray) and value.size == 1 else value
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        return None if value is None else text.strip() or None

    def describe(self) -> str:
        """Name and dimensions, as errors show them."""
        dims = (f"{d or '?'}: {n}" for d, n in zip(self.dims, self.shape, strict=True))
        return f"{self.name} ({', '.join(dims)})"


Variables = dict[str, Variable]


@contextmanager
def opened(path: Path) -> Iterator[Variables]:
    """The variables of a file, which can be loaded inside the block."""
    if not path.is_file():
        raise SapcError(f"there is no file {path}; fields are read from NetCDF, HDF5 or npz files")
    with ExitStack() as stack:
        with readable(path):
            variables = _open(path, stack)
        yield variables


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Inside, whatever a reader meets in a damaged file becomes one sentence."""
    try:
        yield
    except SapcError:
        raise
    except Exception as error:  # each library reports damage by whatever it met first
        raise SapcError(
            f"{path} cannot be read ({first_line(error)}); it is damaged or not a NetCDF, HDF5 or npz file: write it again"
        ) from error


def _open(path: Path, stack: ExitStack) -> Variables:
    import h5py

    with open(path, "rb") as content:
        magic = content.read(4)
    if magic[:3] == b"CDF":
        return _netcdf(path, stack, {}, engine="scipy")
    if zipfile.is_zipfile(path):
        return _npz(path, stack)
    if not h5py.is_hdf5(path):
        raise SapcError(f"{path} is not a NetCDF, HDF5 or npz file; convert it to one of them")
    file = stack.enter_context(open_hdf5(path))
    if file.attrs.get("format") == FORMAT:
        return _own(path, read_dataset(path, file))
    arrays = {k: a for k, a in file.items() if isinstance(a, h5py.Dataset) and a.shape is not None}
    is_scale = {name: a.attrs.get("CLASS") == b"DIMENSION_SCALE" for name, a in arrays.items()}
    if any(is_scale.values()) and all(is_scale[name] or all(_scales(a)) for name, a in arrays.items()):
        return _netcdf(path, stack, file, engine="h5netcdf", phony_dims="sort")
    if not arrays:
        raise SapcError(
            f"{path} has no arrays in its root group, and others are not searched: write them there"
        )
    return {name: _hdf5(path, name, array) for name, array in arrays.items()}


def _netcdf(path: Path, stack: ExitStack, stored: Mapping[str, Any], **how: Any) -> Variables:
    """By xarray; `stored` are the arrays of the file as HDF5 has them, where it is HDF5."""
    if how["engine"] == "scipy":
        try:
            import scipy.io  # noqa: F401
        except ImportError as error:
            raise SapcError(f"{path} is NetCDF-3, which needs scipy: pip install 'sapc[data]'") from error
    # Without indexes nothing is read before it is asked for.
    how |= {"decode_times": False, "decode_timedelta": False, "create_default_indexes": False}
    data = xarray("reading").open_dataset(path, **how)
    stack.callback(data.close)

    def variable(name: str, of: Any) -> Variable:
        dims = tuple(None if str(d).startswith("phony_dim_") else str(d) for d in of.dims)
        check = partial(check_stored, path, stored[name]) if name in stored else lambda: None
        load, kind = lambda: of.values, of.dtype
        return Variable(name, of.shape, kind.kind, load, dims, of.attrs, kind.itemsize, check, path)

    return {str(name): variable(str(name), of) for name, of in data.variables.items()}


def _hdf5(path: Path, name: str, of: Any) -> Variable:
    import h5py

    attributes = {key: of.attrs[key] for key in of.attrs if key != "DIMENSION_LIST"}
    kind = "U" if h5py.check_string_dtype(of.dtype) else of.dtype.kind
    load, check = lambda: _decoded(of[()], attributes), partial(check_stored, path, of)
    return Variable(name, of.shape, kind, load, _labels(of), attributes, of.dtype.itemsize, check, path)


def _labels(of: Any) -> tuple[str | None, ...]:
    """Names of dimensions that an HDF5 array carries: HDF5's own labels and scales, or a list of names in an attribute."""
    pairs = zip(_texts(of, "DIMENSION_LABELS"), _scales(of), strict=True)
    labels = [label or scale for label, scale in pairs]
    for key in ("dims", "dimensions", "_ARRAY_DIMENSIONS"):
        if not any(labels):
            labels = _texts(of, key)
    return tuple(labels)


def _per_dimension(of: Any, key: str) -> list[Any]:
    """An attribute with one entry per dimension; None for all if it is something else."""
    value = of.attrs.get(key)
    is_list = isinstance(value, np.ndarray) and value.shape == (of.ndim,)
    return list(value) if is_list else [None] * of.ndim


def _texts(of: Any, key: str) -> list[str | None]:
    """An attribute with one text per dimension; None for empty ones."""
    texts = (v.decode() if isinstance(v, bytes) else v for v in _per_dimension(of, key))
    return [None if text is None else str(text) or None for text in texts]


def _scales(of: Any) -> list[str | None]:
    """The name of each dimension's scale, None where it has none.

    Read from the attribute: HDF5's own functions for scales end the process where the attribute is of another type.
    """
    import h5py

    lists = _per_dimension(of, "DIMENSION_LIST")
    first = [v[0] if isinstance(v, np.ndarray) and len(v) else None for v in lists]
    is_name = [isinstance(v, h5py.Reference) and bool(v) for v in first]
    return [of.file[v].name.rpartition("/")[2] if n else None for v, n in zip(first, is_name, strict=True)]


def _decoded(array: Any, attributes: Mapping[str, Any]) -> Array:
    """NaN for what the attributes call missing, scaled as they say; NetCDF's rules, that plain HDF5 files follow too."""
    values = np.asarray(array)
    missing = [attributes[key] for key in ("_FillValue", "missing_value") if key in attributes]
    packed = [key for key in ("scale_factor", "add_offset") if key in attributes]
    if values.dtype.kind not in "fiu" or not (missing or packed):
        return values
    decoded = values.astype(np.result_type(values.dtype, np.float32))
    if missing:
        decoded[np.isin(values, np.concatenate([np.ravel(m) for m in missing]))] = np.nan
    scale, offset = (
        np.ravel(attributes.get(key, d))[0] for key, d in (("scale_factor", 1), ("add_offset", 0))
    )
    return np.asarray(decoded * scale + offset) if packed else decoded


def _npz(path: Path, stack: ExitStack) -> Variables:
    archive = stack.enter_context(np.load(path, allow_pickle=False))

    def variable(name: str) -> Variable:
        with archive.zip.open(f"{name}.npy") as content:
            version = np.lib.format.read_magic(content)
            name_of_reader = f"read_array_header_{1 if version == (1, 0) else 2}_0"
            shape, _, dtype = getattr(np.lib.format, name_of_reader)(content)

        def check() -> None:
            declared = prod(shape) * dtype.itemsize
            if not 0 <= declared <= archive.zip.getinfo(f"{name}.npy").file_size:
                raise SapcError(f"{path}: {name} is declared as {shape}, more than there is; write it again")
            require_memory(declared, f"{name} of {path}")

        load, itemsize = partial(archive.__getitem__, name), dtype.itemsize
        return Variable(name, shape, dtype.kind, load, itemsize=itemsize, check=check, path=path)

    return {name: variable(name) for name in archive.files if f"{name}.npy" in archive.zip.namelist()}


def _own(path: Path, data: SolvedDataset) -> Variables:
    """A dataset of this package: its grid gives names and coordinates."""
    grid, fields = data.grid, data.fields.numpy()
    dims, shape = ("sample", *grid.names), (len(fields), *grid.points_per_axis)
    found = {name: coordinate_of(grid, name) for name in grid.names}
    for i, name in enumerate(grid.channels or ("u",)):
        load = partial(fields.__getitem__, (slice(None), i) if grid.n_channels > 1 else ())
        found[name] = Variable(name, shape, "f", load, dims, itemsize=fields.itemsize, path=path)
    return found


def coordinate_of(grid: Grid, name: str) -> Variable:
    """The coordinate of an axis with the attributes from which the axis is read back, bit for bit."""
    axis = grid[name]
    is_time = not grid.steady and axis == grid.time
    letter = "T" if is_time else "XYZ"[grid.space.index(axis)] if len(grid.space) <= 3 else None
    about: dict[str, Any] = {"axis": letter} if letter else {}
    about |= {"standard_name": "time"} if is_time else {}
    about |= {"sapc_kind": axis.kind, "sapc_bounds": np.array([axis.start, axis.stop])}
    return Variable(name, (axis.n,), "f", lambda: axis.points.numpy().copy(), (name,), about)
