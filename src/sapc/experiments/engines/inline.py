"""Jobs in this process, one after the other: for short runs, where starting a process would take longer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from ...evaluation.frechet.distance import Distance
from ...training.distributed import find_device
from ..cell import Cell
from ..worker import CellProgress, JobContext, StateCallback, further_metrics, ignore, run_job
from .base import Handle, Job


class Inline:
    """Work in this process.

    A job that crashes the process ends the study too; finished work is kept.

    Args:
        device: Where to train and sample.
        progress: Called while a cell is worked on.
    """

    is_attended = True
    workers: int | None = 1

    def __init__(self, device: str = "auto", progress: CellProgress = ignore) -> None:
        find_device(device)
        self.device, self.progress, self.on_change = device, progress, ignore
        self.distances: Callable[[Cell], tuple[Distance, ...]] | None = None

    def attach(self, on_change: StateCallback, distances: Callable[[Cell], tuple[Distance, ...]]) -> None:
        """Report changes of state at once, and use encoders that are loaded already."""
        self.on_change, self.distances = on_change, distances

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: Any) -> None:
        """Nothing goes on after `start`."""

    def start(self, jobs: Sequence[Job]) -> list[Handle]:
        """Do the jobs."""
        return [self._do(job) for job in jobs]

    def _do(self, job: Job) -> Handle:
        distances = self.distances or further_metrics(job.poseidon, find_device(self.device))
        context = JobContext(self.device, distances, self.on_change, self.progress)
        future: Future[list[str]] = Future()
        try:
            future.set_result(run_job(context, job.out, job.folder, job.cells))
        except Exception as error:
            # The other jobs are done all the same.
            future.set_exception(error)
        return future
