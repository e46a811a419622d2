"""Ctrl-C and the scheduler's SIGTERM, while a training has something to save."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Interrupts:
    """Ctrl-C and the scheduler's SIGTERM become a wish that the loop grants between two steps.

    The second Ctrl-C is obeyed at once, and so is the first while there is nothing to save.
    """

    def __init__(self) -> None:
        self.asked = self.patient = False
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: Any) -> None:
        if not self.patient or (self.asked and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
