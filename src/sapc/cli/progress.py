"""Progress on standard error: a bar on a terminal; elsewhere a training prints a line every ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from .app import err, warn

if TYPE_CHECKING:
    from ..experiments import Cell, Study
    from ..training.config import TrainingConfig
    from ..training.run_folder import RunFolder

LINE_SECONDS = 10.0


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar under one label; what it yields is called with (done, total)."""
    with stage_bar(label) as stage:
        yield lambda count, total: stage(label, count, total)


@contextmanager
def stage_bar(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for work in stages; what it yields is called with (stage, done, total)."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        row = progress.add_task(label, total=None)
        current_stage = label

        def show(stage: str, count: int, total: int) -> None:
            nonlocal current_stage
            if stage != current_stage:
                progress.reset(row, description=stage)
                current_stage = stage
            progress.update(row, completed=count, total=total)

        yield show


class TrainingBar:
    """Bar of a training, with losses, steps per second and the time left; called with (step, steps, losses).

    Args:
        label: What is trained.
        announcement: A line to print at the first step.
        quiet: Show nothing.
    """

    def __init__(self, label: str, announcement: str = "", quiet: bool = False) -> None:
        self.label, self.announcement, self.quiet, self.has_begun = label, announcement, quiet, False
        self.first, self.start, self.last_line_time = 0, 0.0, time.monotonic()
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

    def show_solutions(self, split: str, count: int, total: int) -> None:
        """Show how many solutions of a split are computed, before the first step."""
        self.show_preparation(f"solving the {split} set", count, total)

    def show_preparation(self, stage: str, count: int, total: int) -> None:
        """Show the progress of a stage before the first step."""
        text = f"{self.label}: {stage}"
        if count == total:
            self.bar.reset(self.row, description=f"{self.label}: preparing", total=None)
        else:
            self.bar.update(self.row, description=text, completed=count, total=total)
        self._print_line(f"{text}, {count} of {total}")

    def _print_line(self, text: str) -> None:
        """Print a line where there is no bar, if the last one was printed some time ago."""
        now = time.monotonic()
        if self.bar.disable and not self.quiet and now - self.last_line_time > LINE_SECONDS:
            self.last_line_time = now
            print(text, file=sys.stderr, flush=True)

    def __call__(self, step: int, steps: int, losses: dict[str, float]) -> None:
        """Show a step."""
        now = time.monotonic()
        if not self.has_begun:
            self.has_begun, self.first, self.start = True, step, now
            if self.announcement:
                print(self.announcement, flush=True)
            self.bar.reset(self.row, description=self.label, total=steps, completed=step)
        rate = (step - self.first) / (now - self.start) if now > self.start else 0.0
        parts = [f"{name} {losses[name]:.4g}" for name in ("loss", "validation") if name in losses]
        parts += [f"{rate:.3g} steps/s"] if rate else []
        self.bar.update(self.row, completed=step, losses=", ".join(parts))
        estimate = [f"{timedelta(seconds=round((steps - step) / rate))} left"] if rate else []
        self._print_line(f"{self.label}: " + ", ".join([f"step {step} of {steps}", *parts, *estimate]))


def describe_training(run: TrainingConfig, folder: RunFolder, details: str = "") -> str:
    """Return a line that says what is trained, and where.

    Args:
        run: The configuration.
        folder: Its run folder.
        details: More on the run.

    Returns:
        The line.
    """
    grid = " x ".join(map(str, run.grid))
    verb = "continuing" if folder.checkpoint.is_file() or run.stages else "training"
    return f"{verb} {run.method} on {run.task}, {grid} points, {run.steps} steps{details} in {folder.path}"


def announce_training(run: TrainingConfig, folder: RunFolder, quiet: bool) -> str:
    """Print that a run is trained already, or return what to print once its training has begun."""
    if quiet:
        return ""
    if folder.is_trained:
        print(f"already trained: {folder.path}", flush=True)
    return describe_training(run, folder)


class CellBars:
    """Bars for the cells that this process works on, one after the other; each cell ends with a line.

    Args:
        study: The study of the cells.
        is_alone: Whether there is one cell only, whose failure ends the command.
        quiet: Print nothing.
    """

    def __init__(self, study: Study, is_alone: bool, quiet: bool) -> None:
        self.study, self.is_alone, self.quiet, self.stack = study, is_alone, quiet, ExitStack()
        self.methods: set[str] = set()
        self.training: TrainingBar | None = None
        self.stage: Callable[[str, int, int], None] = lambda stage, count, total: None

    def __enter__(self) -> CellBars:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def show_state(self, cell: Cell, record: Mapping[str, Any]) -> None:
        """Begin the next bar, or print how a cell has ended."""
        self.stack.close()
        self.methods.add(cell.method)
        state, self.training = record["state"], None
        if state == "training":
            text = announce_training(cell.run, self.study.folder(cell), self.quiet)
            self.training = self.stack.enter_context(TrainingBar(f"{cell.run.task} {cell.run.method}", text))
        elif state == "evaluating":
            self.stage = self.stack.enter_context(stage_bar(cell.method))
        elif state == "done" and not self.quiet:
            samples, seconds = cell.settings.samples, record["seconds"]
            print(f"scored: {cell.method}, {samples} samples per set in {seconds:.3g} s", flush=True)
        # A cell that is alone ends the command with its error anyway.
        elif state == "failed" and not self.is_alone:
            warn(f"{cell.method} failed, going on with the others: {record['error']}")

    def show_progress(
        self, cell: Cell, stage: str, count: int, total: int, losses: Mapping[str, float]
    ) -> None:
        """Show the progress of a cell in its stage."""
        if self.training is None:
            self.stage(f"{cell.method}, {stage}", count, total)
        elif stage == "training":
            self.training(count, total, dict(losses))
        else:
            self.training.show_preparation(stage, count, total)
