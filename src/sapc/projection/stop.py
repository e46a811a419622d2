"""When to stop a loop whose state lives on the device, with the host at most one pass ahead of it.

A pass ends with a few numbers (how many samples are still active, ...). They are copied to the host without waiting. Before pass i + 1
is queued the host waits for the numbers of pass i - 1: the device always has a pass to work on while the host prepares the next one,
and a loop that is done costs at most one pass too many, however far behind the device was when the loop began.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Stop:
    """Reads the counts of every pass; says stop when the first of them, the number of active samples, is zero."""

    def __init__(self) -> None:
        self.pending: list[tuple[Tensor, torch.cuda.Event]] = []
        self.known: list[int] | None = None  # the newest counts that have arrived

    def __call__(self, counts: Tensor) -> bool:
        """Take the counts of the pass just queued; whether the loop is done."""
        if not counts.is_cuda:
            self.known = counts.reshape(-1).tolist()
            return self.known[0] == 0
        if torch.cuda.is_current_stream_capturing():
            return False
        host = torch.empty(counts.numel(), dtype=counts.dtype, pin_memory=True)
        host.copy_(counts.reshape(-1), non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self.pending.append((host, event))
        while self.pending and (len(self.pending) > 1 or self.pending[0][1].query()):  # type: ignore[no-untyped-call]
            if self._take() == 0:
                return True
        return False

    def _take(self) -> int:
        """Wait for the oldest counts that are under way."""
        host, event = self.pending.pop(0)
        event.synchronize()
        self.known = host.tolist()
        return int(host[0])

    def final(self) -> list[int] | None:
        """The last pass's counts, or those that said stop; waits for them. None while a graph is being captured."""
        while self.pending and (self.known is None or self.known[0] > 0):
            self._take()
        return self.known


def any_left(active: Tensor) -> Tensor:
    """How many samples are active, shaped for `Stop`."""
    return active.sum().reshape(1)
