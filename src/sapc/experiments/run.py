"""Run a study: skip what is done, go on with what was interrupted, and do not stop at failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from .._files import real_path
from .._old_names import rename_arguments
from ..training.distributed import find_device
from .cell import Cell
from .engines import Engine, Handle, Inline, Job
from .status import Status, statuses
from .study import Study
from .worker import StateCallback, describe, further_metrics, ignore

# Between looks at the states of the jobs.
POLL_SECONDS = 1.0


@rename_arguments(tell="on_change", beat="on_poll")
def run_study(
    study: Study,
    engine: Engine,
    cells: Sequence[Cell] | None = None,
    *,
    poseidon: str | None = None,
    wait: bool = True,
    on_change: StateCallback = ignore,
    on_poll: Callable[[], None] = ignore,
    is_shared: bool = False,
) -> list[Status]:
    """Do the cells of a study that are not done.

    Args:
        study: The study.
        engine: Where jobs run.
        cells: Cells to do; all of the study's unless given.
        poseidon: Folder with the weights of Poseidon-B, for FPD.
        wait: Whether to stay until the jobs have ended.
        on_change: Called with every new state of a cell.
        on_poll: Called every second.
        is_shared: Whether the study's folder may hold other files already.

    Returns:
        The status of every cell afterwards.
    """
    study.check()
    cells = list(study.cells if cells is None else cells)
    distances = further_metrics(poseidon, find_device(engine.device) if isinstance(engine, Inline) else "cpu")
    todo = [s.cell for s in statuses(study, cells, distances) if s.state != "done"]
    study.write(is_shared)
    for cell in todo:
        # It is tried again.
        if study.state(cell).get("state") in ("failed", "done"):
            study.record(cell, "waiting")
    groups: dict[str, list[Cell]] = {}
    for cell in todo:
        groups.setdefault(cell.folder, []).append(cell)
    out = str(real_path(study.out))
    weights = None if poseidon is None else str(real_path(poseidon))
    jobs = [Job(out, folder, tuple(c.name for c in group), weights) for folder, group in groups.items()]
    if isinstance(engine, Inline):
        engine.attach(on_change, distances)
        on_change = ignore
    if jobs:
        with engine:
            handles = engine.start(jobs)
            if wait:
                _Monitor(study, on_change).wait(list(zip(groups.values(), handles, strict=True)), on_poll)
    return statuses(study, cells, distances)


class _Monitor:
    """Read the states of cells, and report changes."""

    def __init__(self, study: Study, on_change: StateCallback) -> None:
        self.study, self.on_change = study, on_change
        self.stamps: dict[str, tuple[int, int]] = {}
        self.reports: dict[str, tuple[Any, ...]] = {}

    def wait(self, jobs: list[tuple[list[Cell], Handle]], on_poll: Callable[[], None]) -> None:
        """Return when all jobs have ended."""
        while True:
            # Before the states are read, so that the last state of a job that has ended is seen.
            are_over = [handle.done() for _, handle in jobs]
            for (cells, handle), is_over in zip(jobs, are_over, strict=True):
                for cell in cells:
                    self._look(cell, handle.exception() if is_over else None)
            jobs = [job for job, is_over in zip(jobs, are_over, strict=True) if not is_over]
            if not jobs:
                return
            on_poll()
            time.sleep(POLL_SECONDS)

    def _look(self, cell: Cell, error: BaseException | None) -> None:
        """Report the state of a cell if it is new; if an error ended its job, the cell has failed by that."""
        if error is not None and not isinstance(error, KeyboardInterrupt):
            if self.study.state(cell).get("state") not in ("done", "failed", "stopped"):
                self.study.record(cell, "failed", error=describe(error), time=round(time.time(), 3))
        elif self.stamps.get(cell.name) == (stamp := self.study.stamp(cell)):
            return
        else:
            self.stamps[cell.name] = stamp
        record = self.study.state(cell)
        mark = (record.get("state"), record.get("error"))
        if mark[0] not in (None, "waiting") and self.reports.get(cell.name) != mark:
            self.reports[cell.name] = mark
            self.on_change(cell, record)
