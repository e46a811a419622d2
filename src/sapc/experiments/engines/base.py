"""Engines: they start jobs and say when these have ended; the results are read from the run folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class Job:
    """Cells of one run folder that are to be done.

    Attributes:
        out: The study's folder, absolute, on a file system that all machines share.
        folder: Name of the run folder.
        cells: Names of the cells.
        poseidon: Folder with the weights of Poseidon-B, for FPD.
    """

    out: str
    folder: str
    cells: tuple[str, ...]
    poseidon: str | None = None


@runtime_checkable
class Handle(Protocol):
    """A job that was started."""

    def done(self) -> bool:
        """Return whether it has ended, well or not."""

    def exception(self) -> BaseException | None:
        """Return the error that ended a job, if there was one."""


@runtime_checkable
class Engine(Protocol):
    """A place where jobs run.

    Attributes:
        workers: Number of jobs at a time, where that is known; for estimates of the remaining time.
        is_attended: Whether the jobs end when the study is interrupted; if not, they stay in a queue.
    """

    workers: int | None
    is_attended: bool

    def __enter__(self) -> Engine:
        """Prepare to start jobs."""

    def __exit__(self, *_: Any) -> None:
        """Let running jobs save and end, if the engine is attended; return when they have."""

    def start(self, jobs: Sequence[Job]) -> list[Handle]:
        """Start jobs, the first ones first."""
