"""Timing what may be very slow or very large: on as many fields as a bound allows, and not at all beyond a second one.

One field comes first, then a few, then as many as should take `SECONDS` by what the last ones took, or half the free memory. A figure
says how many there were; times are per field, so that a smaller batch can stand beside a larger one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ...constraints import Manifold
from ...constraints.manifold import MOST_BYTES
from .memory import free, unless_full
from .timer import Timer

SECONDS = 0.5  # that one call should take
LIMIT = 30.0  # that a call on a single field may take
FEW = 4  # fields that are tried in any case, because what a call costs once weighs too much on a single one
GROWTH = 8  # times more fields than the last time


@dataclass(frozen=True)
class Figure:
    """Seconds and memory of a call on some fields, or why there are none."""

    fields: int = 0
    seconds: float | None = None
    peak_bytes: int | None = None
    left_out: str | None = None

    def named(self, what: str, scale: float = 1.0) -> dict[str, Any]:
        """As entries of a row, milliseconds per field times `scale`."""
        time = None if self.seconds is None else 1e3 * self.seconds / self.fields * scale
        row = {f"{what}_ms": time, f"{what}_fields": self.fields, f"{what}_peak_bytes": self.peak_bytes}
        return row if self.left_out is None else {**row, f"{what}_left_out": self.left_out}


def bounded(make: Callable[[int], Callable[[], object]], most: int, timer: Timer) -> Figure:
    """A figure of the call that `make(n)` gives for n fields, n at most `most`."""

    def figure(n: int, repeats: int, warm_up: int) -> Figure:
        return Figure(n, *replace(timer, repeats=repeats, warm_up=warm_up).weighed(make(n)))

    best = unless_full(partial(figure, 1, 1, 1))
    if best is None:
        return Figure(left_out="memory: one field does not fit")
    while (n := _more(best, most, timer.device)) > best.fields:
        larger = unless_full(partial(figure, n, 1, 0))
        if larger is None:
            break
        best = larger
    return figure(best.fields, 3, 0) if best.seconds is not None and best.seconds < SECONDS else best


def _more(done: Figure, most: int, device: torch.device) -> int:
    """How many fields next."""
    assert done.seconds is not None
    each = max(done.seconds / done.fields, 1e-9)
    few = FEW if FEW * each < LIMIT else 1
    n = min(most, GROWTH * done.fields, max(few, int(SECONDS / each)))
    if done.fields == 1:
        n = min(n, FEW)
    room = free(device)
    if room is not None and done.peak_bytes:
        n = min(n, int(done.fields * room / 2 / done.peak_bytes))
    return n


def jacobian_bytes(H: Manifold) -> int:
    """One sample's Jacobian with its copies."""
    rows = H[:1].balance(H.fields[:1]).shape[1]
    return 3 * 8 * rows * H.fields[0].numel()


def unfit(H: Manifold, device: torch.device) -> str | None:
    """Why a dense projection of one field is not tried, if so."""
    needed, room = jacobian_bytes(H), free(device)
    if needed > min(MOST_BYTES, MOST_BYTES if room is None else room // 2):
        return f"memory: a Jacobian takes {needed / 2**30:.1f} GiB"
    return None


def too_long(seconds: float) -> str | None:
    """Why a call that should take so long on one field is not tried, if so."""
    return f"time: one field takes about {seconds:.0f} s" if seconds > LIMIT else None
