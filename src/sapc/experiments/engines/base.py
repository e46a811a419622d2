"""What an engine is: it starts jobs somewhere and tells when they have ended; what a job did is read from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class Job:
    """The cells of one run folder that are to be done; `out` is the study's folder, absolute, on a file system that all machines share."""

    out: str
    folder: str
    cells: tuple[str, ...]
    poseidon: str | None = None


@runtime_checkable
class Handle(Protocol):
    """A job that was started."""

    def done(self) -> bool:
        """Whether it has ended, well or not."""

    def exception(self) -> BaseException | None:
        """Of a job that has ended, what ended it, if anything did."""


@runtime_checkable
class Engine(Protocol):
    """A place where jobs run.

    workers     how many jobs run at a time, where that is known; for estimates of the time left
    is_attended whether the jobs end when the study is interrupted; if not, they stay in a queue
    """

    workers: int | None
    is_attended: bool

    def __enter__(self) -> Engine:
        """Make ready."""

    def __exit__(self, *_: Any) -> None:
        """Jobs that are still under way are asked to save and end, if the engine is attended; returns when they have."""

    def start(self, jobs: Sequence[Job]) -> list[Handle]:
        """Start jobs, the first ones first."""
