"""Ways to damage arrays in HDF5 and npz files: other types, shapes and values, links to other files."""

from __future__ import annotations

import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from .odd_values import ODD_JSON

# Content of a file that nobody asked to be read.
SECRET = 1234.5
USUAL_ATTRIBUTES = (
    "_FillValue",
    "scale_factor",
    "add_offset",
    "units",
    "bounds",
    "dims",
    "sapc_bounds",
    "axis",
    "standard_name",
)
_SCALES = ("DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME", "_Netcdf4Dimid", "_Netcdf4Coordinates")
ODD_DTYPES = ("complex64", "bool", "int8", "int64", "uint64", "float16", "float64", "S3", "longdouble")


def spoil_hdf5(rng: random.Random, path: Path) -> str:
    """Change an array or an attribute of an HDF5 file."""
    with h5py.File(path, "r+") as file:
        names = [name for name in file if isinstance(file[name], h5py.Dataset)]
        largest = max(names, key=lambda name: file[name].size or 0)
        name = rng.choice((largest, largest, *names))
        if rng.random() < 0.4:
            return _spoil_attribute(rng, rng.choice((file, file[name])))
        array, kind = file[name][()], rng.choice((*_ARRAYS, "sparse", "sparse"))
        attributes = {key: value for key, value in file[name].attrs.items() if key not in _SCALES}
        _drop(file, name)
        _ARRAYS[kind](rng, file, name, array)
        if kind not in ("an external link", "a soft link", "gone"):
            file[name].attrs.update(attributes)
        return f"{name} is {kind}"


def _drop(file: h5py.File, name: str) -> None:
    """Remove an array, and what others know of it."""
    for item in file.values():
        for key in _SCALES if isinstance(item, h5py.Dataset) else ():
            item.attrs.pop(key, None)
    del file[name]


def _spoil_attribute(rng: random.Random, owner: Any) -> str:
    names = list(owner.attrs) or ["units"]
    name, odd = rng.choice(names), rng.choice(ODD_JSON)
    if rng.random() < 0.3:
        name = rng.choice(USUAL_ATTRIBUTES)
    odd = rng.choice(
        (odd[:60_000], 0, -1.5, np.nan, np.zeros(3), np.zeros((2, 2)), b"\xff\xfe", h5py.Empty("f4"))
    )
    owner.attrs[name] = odd
    return f"attribute {name} = {str(odd)[:40]}"


def _dtype(rng: random.Random, file: h5py.File, name: str, array: Any) -> None:
    file[name] = np.asarray(array).astype(rng.choice(ODD_DTYPES))


def _sparse(rng: random.Random, file: h5py.File, name: str, array: Any) -> None:
    """Gigabytes that are promised and not there; most often of a shape that fits all else."""
    long_shape = (10**7, *np.shape(array)[1:])
    shape = rng.choice(
        (
            long_shape,
            long_shape,
            long_shape,
            (2**30, 2**30, 8),
            (2**40,),
            (8, 12, 2**31),
            (0, 12, 6),
            (8, 0, 6),
            (1,) * 32,
        )
    )
    file.create_dataset(
        name, shape, "f4", chunks=tuple(min(n, 16) or 1 for n in shape), maxshape=(None,) * len(shape)
    )


def _shape(rng: random.Random, file: h5py.File, name: str, array: Any) -> None:
    array = np.asarray(array)
    file[name] = rng.choice(
        (array[:1], array.reshape(-1), array[..., None], array[..., :2], np.float32(1.0), array * 0)
    )


def _values(rng: random.Random, file: h5py.File, name: str, array: Any) -> None:
    array = np.array(array, np.float64)
    array.flat[rng.randrange(array.size)] = rng.choice((np.nan, np.inf, -np.inf, 1e300, 1e39))
    file[name] = array


def _external_link(rng: random.Random, file: h5py.File, name: str, array: Any) -> None:
    file[name] = h5py.ExternalLink("secret.h5", "u")


def _external_storage(rng: random.Random, file: h5py.File, name: str, array: Any) -> None:
    size = np.asarray(array).size * 4
    file.create_dataset(name, np.shape(array), "f4", external=[("secret.bin", 0, size)])


def _virtual(rng: random.Random, file: h5py.File, name: str, array: Any) -> None:
    layout = h5py.VirtualLayout(np.shape(array), "f4")
    layout[...] = h5py.VirtualSource("secret.h5", "u", np.shape(array))
    file.create_virtual_dataset(name, layout)


def _soft_link(rng: random.Random, file: h5py.File, name: str, array: Any) -> None:
    file[name] = h5py.SoftLink(rng.choice((f"/{name}", "/nowhere", "/")))


def _group(rng: random.Random, file: h5py.File, name: str, array: Any) -> None:
    file.create_group(name)


def _remove(rng: random.Random, file: h5py.File, name: str, array: Any) -> None:
    pass


def _text(rng: random.Random, file: h5py.File, name: str, array: Any) -> None:
    file[name] = rng.choice(
        ("text", np.array([b"a"] * 8), np.zeros(8, [("a", "f4"), ("b", "i2")]), h5py.Empty("f4"))
    )


_ARRAYS = {
    "of another type": _dtype,
    "sparse": _sparse,
    "of another shape": _shape,
    "with odd values": _values,
    "an external link": _external_link,
    "in external storage": _external_storage,
    "virtual": _virtual,
    "a soft link": _soft_link,
    "a group": _group,
    "gone": _remove,
    "text": _text,
}


def write_secrets(folder: Path) -> None:
    """Files that a damaged file may point to, and whose values must not come out of a reader."""
    values = np.full((8, 12, 6), SECRET, np.float32)
    values[0, 0, 0] = -SECRET
    with h5py.File(folder / "secret.h5", "w") as file:
        file["u"] = values
    (folder / "secret.bin").write_bytes(values.tobytes() * 4)


def spoil_npz(rng: random.Random, path: Path) -> str:
    """Change an array of an npz file, or what its header says."""
    with np.load(path) as archive:
        arrays = dict(archive)
    name = rng.choice(list(arrays))
    kind = rng.choice(("dtype", "object", "shape", "gone", "values", "huge", "header"))
    if kind in ("huge", "header"):
        return _spoil_npy_header(rng, path, name, kind)
    if kind == "gone":
        del arrays[name]
    elif kind == "object":
        arrays[name] = np.array([print, {}], object)
    elif kind == "dtype":
        arrays[name] = arrays[name].astype("S3" if arrays[name].dtype.kind == "U" else rng.choice(ODD_DTYPES))
    elif kind == "shape":
        arrays[name] = rng.choice(
            (arrays[name][..., None], arrays[name].reshape(-1), arrays[name].reshape(-1)[0])
        )
    elif arrays[name].dtype.kind == "f":
        arrays[name].flat[rng.randrange(arrays[name].size)] = rng.choice((np.nan, np.inf, 1e38))
    np.savez(path, **arrays)
    return f"{name}: {kind}"


def _spoil_npy_header(rng: random.Random, path: Path, name: str, kind: str) -> str:
    """A header that promises more than there is, or nonsense."""
    shape = rng.choice(
        (
            "(1073741824, 1024, 8)",
            "(10000000, 12, 6)",
            "(10000000, 12, 6)",
            "(-1, 12, 6)",
            "(9223372036854775807,)",
            "()",
        )
    )
    description = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    text = description if kind == "huge" else rng.choice(ODD_JSON)[:60_000]
    header = text.encode()
    body = b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header + b"\0" * 64
    with zipfile.ZipFile(path) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, body if member == f"{name}.npy" else content)
    return f"header of {name}: {text[:60]}"
