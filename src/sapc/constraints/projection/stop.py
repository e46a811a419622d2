"""When to stop a loop whose state lives on the device, with the host a bounded number of passes ahead of it.

A pass ends with a few numbers (how many samples are still active, ...). They are copied to the host without waiting. Before pass i + 1
is queued the host waits for the numbers of pass i - 1: the device always has a pass to work on while the host prepares the next one,
and a loop that is done costs at most one pass too many, however far behind the device was when the loop began.

A loop that is run again and again needs much the same number of passes. Told how many counts the last one needed, `Stop` lets as many be
queued at once (a few at most), while the device is still busy with something else, and then waits for the last of them, which is most
likely to say stop.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_EXPECTED = 7  # passes queued in good faith; a wrong guess costs those that nobody needed


class Stop:
    """Reads the counts of every pass; says stop when the first of them, the number of active samples, is zero."""

    def __init__(self, expected: int = 0) -> None:
        self.expected = expected
        self.pending: list[tuple[Tensor, torch.cuda.Event]] = []
        self.known: list[int] | None = None  # the newest counts that have arrived
        self.calls = self.taken = 0

    def __call__(self, counts: Tensor) -> bool:
        """Take the counts of the pass just queued; whether the loop is done."""
        self.calls += 1
        if not counts.is_cuda:
            self.known, self.taken = counts.reshape(-1).tolist(), self.calls
            return self.known[0] == 0
        if torch.cuda.is_current_stream_capturing():
            return False
        host = torch.empty(counts.numel(), dtype=counts.dtype, pin_memory=True)
        host.copy_(counts.reshape(-1), non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self.pending.append((host, event))
        while len(self.pending) > self._lead() or (self.pending and self.pending[0][1].query()):  # type: ignore[no-untyped-call]
            if self._take() == 0:
                return True
        return False

    def _lead(self) -> int:
        """How many counts may be under way when the next pass is queued."""
        if self.calls < min(self.expected, MOST_EXPECTED):
            return self.calls
        return 0 if self.calls == self.expected <= MOST_EXPECTED else 1

    def _take(self) -> int:
        """Wait for the oldest counts that are under way."""
        host, event = self.pending.pop(0)
        self.taken += 1
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
