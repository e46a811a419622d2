"""Read files as arrays: in every format, a file is a set of variables with shape, attributes and dimensions.

The first bytes tell the format: NetCDF-4 (HDF5 whose every dimension has a scale, by xarray), plain HDF5 (by
h5py), NetCDF-3 (by xarray and scipy), npz, and the dataset files of this package, whose checksum is verified.
Arrays are read on demand. Missing values (`_FillValue`) become NaN; numbers of a time stay numbers, whatever
their units say. Only the root group of an HDF5 file is read, and no other file that it names (`hdf5`).
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
from .hdf5 import Array, check_storage, open_hdf5

if TYPE_CHECKING:
    from xarray import Dataset as Dataset
else:
    # Annotations are read at run time in tests, and importing xarray takes a second.
    Dataset = Any


def import_xarray(action: str) -> Any:
    """Import xarray, which only NetCDF needs.

    Args:
        action: What needs it, "reading" or "writing", for the message.

    Returns:
        The module.

    Raises:
        SapcError: It is not installed.
    """
    try:
        import h5netcdf  # noqa: F401 (its engine for NetCDF-4)
        import xarray
    except ImportError as error:
        raise SapcError(f"{action} NetCDF needs xarray: pip install 'sapc[data]'") from error
    return xarray


@dataclass(frozen=True, eq=False)
class Variable:
    """An array of a file, read on demand.

    Attributes:
        name: Its name in the file.
        shape: Its shape.
        kind: Letter of its kind of numbers, as numpy has it.
        load: Reads the values.
        dims: Names of its dimensions, None where there is none.
        attributes: Attributes by name.
        itemsize: Bytes of one value.
        check: Refuses, before anything is allocated, what `load` could not read.
        path: The file, for messages.
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
        """Read the values; damage, and values that do not fit into memory, end in one sentence."""
        with readable(self.path):
            self.check()
            return np.asarray(self.load())

    def text(self, key: str) -> str | None:
        """Return an attribute as text, or None if it is absent or empty."""
        value = self.attributes.get(key)
        value = value.reshape(-1)[0] if isinstance(value, np.ndarray) and value.size == 1 else value
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        return None if value is None else text.strip() or None

    def describe(self) -> str:
        """Format name and dimensions for messages."""
        dims = (f"{d or '?'}: {n}" for d, n in zip(self.dims, self.shape, strict=True))
        return f"{self.name} ({', '.join(dims)})"


Variables = dict[str, Variable]


@contextmanager
def open_variables(path: Path) -> Iterator[Variables]:
    """Open a file; its variables can be read inside the block.

    Args:
        path: A NetCDF, HDF5 or npz file.

    Yields:
        The variables by name.

    Raises:
        SapcError: There is no such file, or it cannot be read.
    """
    if not path.is_file():
        raise SapcError(f"there is no file {path}; fields are read from NetCDF, HDF5 or npz files")
    with ExitStack() as stack:
        with readable(path):
            variables = _open(path, stack)
        yield variables


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn whatever a reader raises at a damaged file into one sentence."""
    try:
        yield
    except SapcError:
        raise
    # Each library reports damage by whatever it met first.
    except Exception as error:
        raise SapcError(
            f"{path} cannot be read ({first_line(error)}); it is damaged or not a NetCDF, HDF5 or npz file: "
            "write it again"
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
        return _dataset_variables(path, read_dataset(path, file))
    arrays = {k: a for k, a in file.items() if isinstance(a, h5py.Dataset) and a.shape is not None}
    is_scale = {name: a.attrs.get("CLASS") == b"DIMENSION_SCALE" for name, a in arrays.items()}
    if any(is_scale.values()) and all(is_scale[name] or all(_scales(a)) for name, a in arrays.items()):
        return _netcdf(path, stack, file, engine="h5netcdf", phony_dims="sort")
    if not arrays:
        raise SapcError(
            f"{path} has no arrays in its root group, and others are not searched: write them there"
        )
    return {name: _hdf5(path, name, array) for name, array in arrays.items()}


def _netcdf(path: Path, stack: ExitStack, arrays: Mapping[str, Any], **options: Any) -> Variables:
    """Read with xarray; `arrays` are those of the file as h5py has them, where it is HDF5."""
    if options["engine"] == "scipy":
        try:
            import scipy.io  # noqa: F401
        except ImportError as error:
            raise SapcError(f"{path} is NetCDF-3, which needs scipy: pip install 'sapc[data]'") from error
    # Without indexes nothing is read before it is asked for.
    options |= {"decode_times": False, "decode_timedelta": False, "create_default_indexes": False}
    data = import_xarray("reading").open_dataset(path, **options)
    stack.callback(data.close)

    def variable(name: str, array: Any) -> Variable:
        dims = tuple(None if str(d).startswith("phony_dim_") else str(d) for d in array.dims)
        check = partial(check_storage, path, arrays[name]) if name in arrays else lambda: None
        load, dtype = lambda: array.values, array.dtype
        return Variable(name, array.shape, dtype.kind, load, dims, array.attrs, dtype.itemsize, check, path)

    return {str(name): variable(str(name), array) for name, array in data.variables.items()}


def _hdf5(path: Path, name: str, array: Any) -> Variable:
    import h5py

    attributes = {key: array.attrs[key] for key in array.attrs if key != "DIMENSION_LIST"}
    kind = "U" if h5py.check_string_dtype(array.dtype) else array.dtype.kind
    load, check = lambda: _decode(array[()], attributes), partial(check_storage, path, array)
    dims, itemsize = _dimension_names(array), array.dtype.itemsize
    return Variable(name, array.shape, kind, load, dims, attributes, itemsize, check, path)


def _dimension_names(array: Any) -> tuple[str | None, ...]:
    """Read names of dimensions from an HDF5 array: labels, scales, or a list of names in an attribute."""
    pairs = zip(_texts(array, "DIMENSION_LABELS"), _scales(array), strict=True)
    names = [label or scale for label, scale in pairs]
    for key in ("dims", "dimensions", "_ARRAY_DIMENSIONS"):
        if not any(names):
            names = _texts(array, key)
    return tuple(names)


def _per_dimension(array: Any, key: str) -> list[Any]:
    """Return an attribute with one entry per dimension; None for all dimensions if it is something else."""
    value = array.attrs.get(key)
    is_list = isinstance(value, np.ndarray) and value.shape == (array.ndim,)
    return list(value) if is_list else [None] * array.ndim


def _texts(array: Any, key: str) -> list[str | None]:
    """Return an attribute with one text per dimension; None for empty ones."""
    texts = (v.decode() if isinstance(v, bytes) else v for v in _per_dimension(array, key))
    return [None if text is None else str(text) or None for text in texts]


def _scales(array: Any) -> list[str | None]:
    """Return the name of each dimension's scale, None where it has none.

    They are read from the attribute: HDF5's own functions for scales end the process where the attribute is
        of another type.
    """
    import h5py

    lists = _per_dimension(array, "DIMENSION_LIST")
    first = [v[0] if isinstance(v, np.ndarray) and len(v) else None for v in lists]
    is_name = [isinstance(v, h5py.Reference) and bool(v) for v in first]
    return [array.file[v].name.rpartition("/")[2] if n else None for v, n in zip(first, is_name, strict=True)]


def _decode(array: Any, attributes: Mapping[str, Any]) -> Array:
    """Return values with NaN where the attributes say that they are missing, the others scaled.

    The rules are those of NetCDF, which plain HDF5 files follow, too.
    """
    values = np.asarray(array)
    fill_values = [attributes[key] for key in ("_FillValue", "missing_value") if key in attributes]
    is_packed = any(key in attributes for key in ("scale_factor", "add_offset"))
    if values.dtype.kind not in "fiu" or not (fill_values or is_packed):
        return values
    numbers = values.astype(np.result_type(values.dtype, np.float32))
    if fill_values:
        numbers[np.isin(values, np.concatenate([np.ravel(m) for m in fill_values]))] = np.nan
    scale, offset = (
        np.ravel(attributes.get(key, d))[0] for key, d in (("scale_factor", 1), ("add_offset", 0))
    )
    return np.asarray(numbers * scale + offset) if is_packed else numbers


def _npz(path: Path, stack: ExitStack) -> Variables:
    archive = stack.enter_context(np.load(path, allow_pickle=False))

    def variable(name: str) -> Variable:
        with archive.zip.open(f"{name}.npy") as content:
            version = np.lib.format.read_magic(content)
            read_header = getattr(np.lib.format, f"read_array_header_{1 if version == (1, 0) else 2}_0")
            shape, _, dtype = read_header(content)

        def check() -> None:
            size = prod(shape) * dtype.itemsize
            if not 0 <= size <= archive.zip.getinfo(f"{name}.npy").file_size:
                raise SapcError(f"{path}: {name} is declared as {shape}, more than there is; write it again")
            require_memory(size, f"{name} of {path}")

        load, itemsize = partial(archive.__getitem__, name), dtype.itemsize
        return Variable(name, shape, dtype.kind, load, itemsize=itemsize, check=check, path=path)

    return {name: variable(name) for name in archive.files if f"{name}.npy" in archive.zip.namelist()}


def _dataset_variables(path: Path, data: SolvedDataset) -> Variables:
    """Make variables of a dataset of this package, with names and coordinates from its grid."""
    grid, fields = data.grid, data.fields.numpy()
    dims, shape = ("sample", *grid.names), (len(fields), *grid.points_per_axis)
    variables = {name: make_coordinate(grid, name) for name in grid.names}
    for i, name in enumerate(grid.channels or ("u",)):
        load = partial(fields.__getitem__, (slice(None), i) if grid.n_channels > 1 else ())
        variables[name] = Variable(name, shape, "f", load, dims, itemsize=fields.itemsize, path=path)
    return variables


def make_coordinate(grid: Grid, name: str) -> Variable:
    """Make the coordinate of an axis, with the attributes from which the axis is read back bit for bit."""
    axis = grid[name]
    is_time = not grid.steady and axis == grid.time
    letter = "T" if is_time else "XYZ"[grid.space.index(axis)] if len(grid.space) <= 3 else None
    attributes: dict[str, Any] = {"axis": letter} if letter else {}
    attributes |= {"standard_name": "time"} if is_time else {}
    attributes |= {"sapc_kind": axis.kind, "sapc_bounds": np.array([axis.start, axis.stop])}
    return Variable(name, (axis.n,), "f", lambda: axis.points.numpy().copy(), (name,), attributes)
