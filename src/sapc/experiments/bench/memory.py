"""How much memory a call takes beyond what was there before it, and how much there is.

On a GPU the allocator tells. On Linux the kernel does: the highest resident size of the process, which can be reset (`clear_refs`). What
the C library has kept of memory freed earlier would be used again unseen, so it is given back first (`malloc_trim`). Libraries' own work
space counts; what was there before, weights and data, does not. Where the system does not tell, there is no figure.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

STATUS, RESET, SYSTEM = Path("/proc/self/status"), Path("/proc/self/clear_refs"), Path("/proc/meminfo")
LIMIT = Path("/sys/fs/cgroup/memory.max")
Result = TypeVar("Result")


class Peak:
    """The most bytes at one time beyond those at the start; None where the system does not tell."""

    bytes: int | None = None


@contextmanager
def peak(device: torch.device) -> Iterator[Peak]:
    """Watch the block; the answer is there after it."""
    found = Peak()
    gc.collect()  # a network refers to itself, so those that were trained before may still be there
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield found
        found.bytes = torch.cuda.max_memory_allocated(device) - before
    else:
        start = _restarted() if device.type == "cpu" else None
        yield found
        highest = _entry(STATUS, "VmHWM") if start is not None else None
        found.bytes = None if start is None or highest is None else max(0, highest - start)


@contextmanager
def young_garbage() -> Iterator[None]:
    """Collect garbage only among what is made inside: all that has been imported would be a tenth of a second each time."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def free(device: torch.device) -> int | None:
    """Bytes that could be allocated; None where the system does not tell."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    there, resident = _entry(SYSTEM, "MemAvailable"), _entry(STATUS, "VmRSS")
    try:
        limit = int(LIMIT.read_text())  # a container's
    except (OSError, ValueError):  # none is set
        return there
    return limit - (resident or 0) if there is None else min(there, limit - (resident or 0))


def unless_full(call: Callable[[], Result]) -> Result | None:
    """What the call returns, or None if memory does not suffice; any other error goes on."""
    try:
        return call()
    except torch.OutOfMemoryError:
        return None
    except RuntimeError as error:  # the CPU's allocator has no error of its own
        if "DefaultCPUAllocator" not in str(error):
            raise
        return None


def _restarted() -> int | None:
    """Bytes resident now, after the highest size was reset to it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if STATUS.exists() else None
    if trim is not None:  # of the C library; without it small figures come out smaller
        trim(0)
    try:
        RESET.write_text("5")
    except OSError:
        return None
    return _entry(STATUS, "VmRSS")


def _entry(path: Path, name: str) -> int | None:
    """A number of kB in a file of the kernel, in bytes."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)
