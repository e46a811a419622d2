"""From a list of cells to run folders: what is done is skipped, what was interrupted goes on, what fails does not stop the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from .._files import real_path
from ..training.distributed import find_device
from .cell import Cell
from .engines import Engine, Handle, Inline, Job
from .status import Status, statuses
from .study import Study
from .worker import OnChange, describe, further_metrics, ignore

POLL = 1.0  # seconds between looks at what has become of the jobs


def run_study(
    study: Study,
    engine: Engine,
    cells: Sequence[Cell] | None = None,
    *,
    poseidon: str | None = None,
    wait: bool = True,
    on_change: OnChange = ignore,
    on_poll: Callable[[], None] = ignore,
    is_shared: bool = False,
) -> list[Status]:
    """Do the cells of a study that are not done, all of them unless some are given, and return where they stand then.

    `wait` is whether to stay until the jobs have ended; `on_change` is called with every new state of a cell, `on_poll`
    every second; `is_shared` is whether the study's folder may
    hold other things already.
    """
    study.check()
    chosen = list(study.cells if cells is None else cells)
    distances = further_metrics(poseidon, find_device(engine.device) if isinstance(engine, Inline) else "cpu")
    left = [s.cell for s in statuses(study, chosen, distances) if s.state != "done"]
    study.write(is_shared)
    for cell in left:
        if study.state(cell).get("state") in ("failed", "done"):  # it is tried again
            study.record(cell, "waiting")
    jobs: dict[str, list[Cell]] = {}
    for cell in left:
        jobs.setdefault(cell.folder, []).append(cell)
    out = str(real_path(study.out))
    where = None if poseidon is None else str(real_path(poseidon))
    todo = [Job(out, folder, tuple(c.name for c in own), where) for folder, own in jobs.items()]
    if isinstance(engine, Inline):
        engine.attach(on_change, distances)
        on_change = ignore
    if todo:
        with engine:
            handles = engine.start(todo)
            if wait:
                _Watch(study, on_change).wait(list(zip(jobs.values(), handles, strict=True)), on_poll)
    return statuses(study, chosen, distances)


class _Watch:
    """Looks at what is noted of cells, and tells what has changed."""

    def __init__(self, study: Study, on_change: OnChange) -> None:
        self.study, self.on_change = study, on_change
        self.stamps: dict[str, tuple[int, int]] = {}
        self.told: dict[str, tuple[Any, ...]] = {}

    def wait(self, jobs: list[tuple[list[Cell], Handle]], on_poll: Callable[[], None]) -> None:
        """Return when all jobs have ended."""
        while True:
            # Asked before the states are read: so the last state of a job that has ended is seen.
            ended = [handle.done() for _, handle in jobs]
            for (own, handle), is_over in zip(jobs, ended, strict=True):
                for cell in own:
                    self._look(cell, handle.exception() if is_over else None)
            jobs = [job for job, is_over in zip(jobs, ended, strict=True) if not is_over]
            if not jobs:
                return
            on_poll()
            time.sleep(POLL)

    def _look(self, cell: Cell, error: BaseException | None) -> None:
        """Report the state of a cell if it is new. If something ended its job, it has failed by that, unless it was done before."""
        if error is not None and not isinstance(error, KeyboardInterrupt):
            if self.study.state(cell).get("state") not in ("done", "failed", "stopped"):
                self.study.record(cell, "failed", error=describe(error), time=round(time.time(), 3))
        elif self.stamps.get(cell.name) == (stamp := self.study.stamp(cell)):
            return
        else:
            self.stamps[cell.name] = stamp
        noted = self.study.state(cell)
        mark = (noted.get("state"), noted.get("error"))
        if mark[0] not in (None, "waiting") and self.told.get(cell.name) != mark:
            self.told[cell.name] = mark
            self.on_change(cell, noted)
