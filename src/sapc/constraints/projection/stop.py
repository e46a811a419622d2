"""When to stop a loop whose state lives on the device, with the host a bounded number of passes ahead of it.

A pass ends with a few numbers (how many samples are still active, ...). They are copied to the host without
waiting. Before pass i + 1 is queued the host waits for the numbers of pass i - 1: the device always has a
pass to work on while the host prepares the next one, and a loop that is done costs at most one pass too many,
however far behind the device was when the loop began.

A loop that is run again and again needs much the same number of passes. If `StopCheck` is given the number of
counts that the last one needed, it lets as many be queued at once (a few at most), while the device is still
busy with something else, and then waits for the last of them, which is most likely to say stop.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Passes queued in good faith; a wrong guess costs those that nobody needed.
MAX_EXPECTED = 7


class StopCheck:
    """Read the counts of every pass; say stop when the first of them, the number of active samples, is zero.

    Attributes:
        expected_counts: How many counts the last such loop needed; zero if that is not known.
        in_flight: Counts on their way to the host, each with the event that says it has arrived.
        latest: The newest counts that have arrived.
        calls: How many counts were given.
        n_arrived: How many of them have arrived.
    """

    def __init__(self, expected_counts: int = 0) -> None:
        self.expected_counts = expected_counts
        self.in_flight: list[tuple[Tensor, torch.cuda.Event]] = []
        # The newest counts that have arrived.
        self.latest: list[int] | None = None
        self.calls = self.n_arrived = 0

    def __call__(self, counts: Tensor) -> bool:
        """Take the counts of the pass just queued.

        Args:
            counts: Numbers of the pass, the active samples first.

        Returns:
            Whether the loop is done.
        """
        self.calls += 1
        if not counts.is_cuda:
            self.latest, self.n_arrived = counts.reshape(-1).tolist(), self.calls
            return self.latest[0] == 0
        if torch.cuda.is_current_stream_capturing():
            return False
        host = torch.empty(counts.numel(), dtype=counts.dtype, pin_memory=True)
        host.copy_(counts.reshape(-1), non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self.in_flight.append((host, event))
        while len(self.in_flight) > self._max_in_flight() or self._has_arrived():
            if self._wait_for_oldest() == 0:
                return True
        return False

    def _has_arrived(self) -> bool:
        return bool(self.in_flight) and self.in_flight[0][1].query()  # type: ignore[no-untyped-call]

    def _max_in_flight(self) -> int:
        """Return how many counts may be under way when the next pass is queued."""
        if self.calls < min(self.expected_counts, MAX_EXPECTED):
            return self.calls
        return 0 if self.calls == self.expected_counts <= MAX_EXPECTED else 1

    def _wait_for_oldest(self) -> int:
        """Wait for the oldest counts that are under way; return their first number."""
        host, event = self.in_flight.pop(0)
        self.n_arrived += 1
        event.synchronize()
        self.latest = host.tolist()
        return int(host[0])

    def wait(self) -> list[int] | None:
        """Wait for the last pass's counts, or those that said stop.

        Returns:
            The counts; None while a graph is being captured.
        """
        while self.in_flight and (self.latest is None or self.latest[0] > 0):
            self._wait_for_oldest()
        return self.latest


def count_active(active: Tensor) -> Tensor:
    """Count the active samples, shaped for `StopCheck`."""
    return active.sum().reshape(1)
