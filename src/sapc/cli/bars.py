"""Progress on standard error: a bar on a terminal; a training elsewhere says a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from .app import err

LINE_SECONDS = 10.0


@contextmanager
def bar_for(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar under one label, called with (done, total)."""
    with stages_bar(label) as stage:
        yield lambda done, total: stage(label, done, total)


@contextmanager
def stages_bar(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for work in stages, called with (stage, done, total)."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        row = progress.add_task(label, total=None)
        before = label

        def show(stage: str, done: int, total: int) -> None:
            nonlocal before
            if stage != before:
                progress.reset(row, description=stage)
                before = stage
            progress.update(row, completed=done, total=total)

        yield show


class TrainingBar:
    """Step, losses, steps per second and time left; called with (step, steps, losses). The first step is announced."""

    def __init__(self, label: str, announcement: str = "", quiet: bool = False) -> None:
        self.label, self.announcement, self.quiet, self.began = label, announcement, quiet, False
        self.first, self.start, self.said = 0, 0.0, time.monotonic()
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[losses]}", markup=False),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal)

    def __enter__(self) -> TrainingBar:
        self.bar.start()
        self.row = self.bar.add_task(f"{self.label}: preparing", total=None, losses="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def solving(self, split: str, done: int, total: int) -> None:
        """Show how many solutions of a split are there, before the first step."""
        text = f"{self.label}: solving the {split} set"
        if done == total:
            self.bar.reset(self.row, description=f"{self.label}: preparing", total=None)
        else:
            self.bar.update(self.row, description=text, completed=done, total=total)
        self._say(f"{text}, {done} of {total}")

    def _say(self, text: str) -> None:
        """A line where there is no bar, if the last one is some time ago."""
        now = time.monotonic()
        if self.bar.disable and not self.quiet and now - self.said > LINE_SECONDS:
            self.said = now
            print(text, file=sys.stderr, flush=True)

    def __call__(self, step: int, steps: int, losses: dict[str, float]) -> None:
        """Show a step."""
        now = time.monotonic()
        if not self.began:
            self.began, self.first, self.start = True, step, now
            if self.announcement:
                print(self.announcement, flush=True)
            self.bar.reset(self.row, description=self.label, total=steps, completed=step)
        rate = (step - self.first) / (now - self.start) if now > self.start else 0.0
        parts = [f"{name} {losses[name]:.4g}" for name in ("loss", "validation") if name in losses]
        parts += [f"{rate:.3g} steps/s"] if rate else []
        self.bar.update(self.row, completed=step, losses=", ".join(parts))
        left = [f"{timedelta(seconds=round((steps - step) / rate))} left"] if rate else []
        self._say(f"{self.label}: " + ", ".join([f"step {step} of {steps}", *parts, *left]))
