"""How long a call takes, and how much memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from .memory import peak


@dataclass(frozen=True)
class Timer:
    """Median seconds of a call."""

    device: torch.device
    repeats: int = 20
    warm_up: int = 3

    def __call__(self, call: Callable[[], object]) -> float:
        """Warm up, then time each call."""
        for _ in range(self.warm_up):
            call()
        if self.device.type != "cuda":
            return statistics.median(self._host(call) for _ in range(self.repeats))
        marks: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(self.repeats + 1)]  # type: ignore[no-untyped-call]
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        torch.cuda.synchronize(self.device)
        return float(statistics.median(a.elapsed_time(b) for a, b in pairwise(marks))) / 1e3

    def weighed(self, call: Callable[[], object]) -> tuple[float, int | None]:
        """Median seconds, and the peak of memory in the timed calls: what a compiler took while warming up does not count."""
        for _ in range(self.warm_up):
            call()
        with peak(self.device) as memory:
            seconds = replace(self, warm_up=0)(call)
        return seconds, memory.bytes

    @property
    def clock(self) -> str:
        """The device's; with a single thread the process's, which does not count what other programs do; or the one on the wall."""
        if self.device.type == "cuda":
            return "device"
        return "process" if torch.get_num_threads() == 1 else "wall"

    def _host(self, call: Callable[[], object]) -> float:
        now = time.process_time if self.clock == "process" else time.perf_counter
        start = now()
        call()
        return now() - start
