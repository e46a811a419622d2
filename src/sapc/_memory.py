"""Memory: refuse before the work what cannot fit, and say so in one sentence when an allocation fails after all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import SapcError

LARGEST = 2**63 - 1


def available() -> int:
    """Bytes that can be had: what the system reports as available, or the limit of the control group if that is less."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        system = 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        try:
            system = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, OSError, ValueError):
            system = LARGEST
    try:
        return min(system, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such limit, or the word "max"
        return system


def require(size: int, what: str) -> None:
    """Refuse `what` if its `size` in bytes is more than there is."""
    if size > (there := available()):
        raise SapcError(
            f"not enough memory for {what}: about {size / 2**30:.3g} GiB needed, {there / 2**30:.3g} GiB available; "
            "choose a smaller size or grid"
        )


@contextmanager
def allocating(what: str) -> Iterator[None]:
    """Turn a failed allocation inside the block, as numpy and torch report it, into one sentence."""
    try:
        yield
    except SapcError:
        raise
    except (MemoryError, RuntimeError, ValueError) as error:
        signs = ("maximum allowed",) if isinstance(error, ValueError) else ("alloc", "memory")
        text = str(error).lower().replace("illegal memory access", "")  # which is no lack of memory
        if not isinstance(error, MemoryError) and not any(sign in text for sign in signs):
            raise
        raise SapcError(
            f"not enough memory for {what} ({(str(error) or type(error).__name__).splitlines()[0]}); "
            "choose a smaller size or grid"
        ) from error
