"""Read HDF5 files of strangers: only what lies in the file itself, was written, and fits into memory.

An HDF5 file can name other files, whose bytes then look like its own: by external links, external storage and
virtual data sets. None of them is followed here. It can also declare arrays of any size without a byte of
them: what was never written reads as zeros.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import SapcError, require_memory

Array = np.ndarray[Any, np.dtype[Any]]

SCAN_LIMIT = 2**28
"""Bytes of the largest file that is searched for damaged heaps; larger ones take too long."""

HEAP = b"GCOL\x01\0\0\0"
"""How a global heap begins: its name, version 1, nothing."""


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Open a file with h5py for reading, after checking that all links and arrays stay inside it.

    Args:
        path: The file.

    Yields:
        The h5py file. One that is damaged or refers to other files is refused.
    """
    import h5py

    with h5py.File(path, "r") as file:
        if file.id.get_create_plist().get_sizes() == (8, 8) and path.stat().st_size <= SCAN_LIMIT:
            _check_heaps(path)
        _check_contents(path, file)
        yield file


def _check_heaps(path: Path) -> None:
    """Refuse a damaged heap of texts that HDF5 would read for ever: free space in it that has no size."""
    with open(path, "rb") as content, mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as data:

        def number(start: int, n: int) -> int:
            return int.from_bytes(data[start : start + n], "little")

        heap = data.find(HEAP)
        while heap >= 0:
            place, end = heap + 16, min(heap + number(heap + 8, 8), len(data))
            while place + 16 <= end:
                index, size = number(place, 2), number(place + 8, 8)
                if index == size == 0:
                    raise SapcError(f"{path} is damaged: the heap at byte {heap} has no end; write it again")
                place += size if index == 0 else 16 + -(-size // 8) * 8
            heap = data.find(HEAP, heap + 8)


def _check_contents(path: Path, file: Any) -> None:
    """Refuse attributes that are larger than the file, and whatever refers to another file."""
    import h5py

    file_size, addresses, queue = path.stat().st_size, set(), [("/", file["/"])]
    while queue:
        place, item = queue.pop()
        # A group may hold itself; objects are told apart by where they begin in the file.
        if (address := h5py.h5o.get_info(item.id).addr) in addresses:
            continue
        addresses.add(address)
        for name in item.attrs:
            if h5py.h5a.open(item.id, name.encode()).get_storage_size() > file_size:
                raise SapcError(f"{path}: the attribute {name!r} of {place} is larger than the file")
        if isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
            problem = "is stored in another file" if item.external else "is a virtual data set"
            raise _other_file(path, place, problem)
        for name in item if isinstance(item, h5py.Group) else ():
            inner = f"{place.rstrip('/')}/{name}"
            link = item.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise _other_file(path, inner, "is a link to another file")
            # The target of a soft link is found by its own name.
            if isinstance(link, h5py.HardLink):
                queue.append((inner, item[name]))


def _other_file(path: Path, place: str, problem: str) -> SapcError:
    return SapcError(f"{path}: {place} {problem}, and no other file is read; copy its values into this file")


def load_array(path: Path, dataset: Any) -> Array:
    """Read the values of an h5py data set, after `check_storage`."""
    check_storage(path, dataset)
    return np.asarray(dataset[()])


def check_storage(path: Path, dataset: Any) -> None:
    """Refuse an array of which values were never written, or that does not fit into memory.

    Args:
        path: The file, for messages.
        dataset: The array, as h5py has it.

    Raises:
        SapcError: The array is not complete, or too large.
    """
    if dataset.size == 0:
        return
    name, shape = dataset.name, " x ".join(map(str, dataset.shape))
    size = prod(dataset.shape) * dataset.id.get_type().get_size()
    storage = dataset.id.get_storage_size()
    if dataset.chunks is None:
        share = min(1.0, storage / size)
    else:
        chunks = prod(-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True))
        share = dataset.id.get_num_chunks() / chunks if storage else 0.0
    if share < 1:
        raise SapcError(
            f"{path}: of {name} ({shape}) {'nothing' if share == 0 else f'only {100 * share:.3g} %'} "
            "was ever written; write all of it, NaN where nothing is known"
        )
    require_memory(size, f"{name} ({shape}) of {path}")
