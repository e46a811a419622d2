"""From a list of cells to run folders: what is done is skipped, what was interrupted goes on, what fails does not stop the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._files import first_line, real_path
from ..errors import SapcError
from ..evaluation.frechet.distance import Distance
from .cell import Cell, distances_for
from .engines import Engine, Handle, Job
from .status import Status, statuses
from .study import Study

POLL = 1.0  # seconds between looks at what has become of the jobs

Tell = Callable[[Cell, dict[str, Any]], None]
"""Called with a cell and what was noted of it, whenever that has changed."""


def run_study(
    study: Study,
    engine: Engine,
    cells: Sequence[Cell] | None = None,
    *,
    poseidon: str | None = None,
    wait: bool = True,
    tell: Tell = lambda cell, noted: None,
    beat: Callable[[], None] = lambda: None,
) -> list[Status]:
    """Do the cells of a study that are not done, all of them unless some are given, and say where they stand then.

    `wait` is whether to stay until the jobs have ended; `beat` is called every second.
    """
    study.check()
    study.write()
    chosen = list(study.cells if cells is None else cells)
    distances = further_metrics(poseidon)
    left = [s.cell for s in statuses(study, chosen, distances) if s.state != "done"]
    for cell in left:
        if study.state(cell).get("state") in ("failed", "done"):  # it is tried again
            study.note(cell, "waiting")
    jobs: dict[str, list[str]] = {}
    for cell in left:
        jobs.setdefault(cell.folder, []).append(cell.name)
    out = str(real_path(study.out))
    where = None if poseidon is None else str(real_path(poseidon))
    todo = [Job(out, folder, tuple(names), where) for folder, names in jobs.items()]
    if todo:
        with engine:
            handles = engine.start(todo)
            if wait:
                _wait(study, left, list(zip(todo, handles, strict=True)), tell, beat)
    return statuses(study, chosen, distances)


def further_metrics(poseidon: str | None) -> Callable[[Cell], tuple[Distance, ...]]:
    """The further metrics of a cell, made once: encoders are large."""
    made: dict[bool, tuple[Distance, ...]] = {}

    def distances(cell: Cell) -> tuple[Distance, ...]:
        if cell.frd not in made:
            made[cell.frd] = distances_for(cell, poseidon, torch.device("cpu"))
        return made[cell.frd]

    return distances


def _wait(
    study: Study, cells: list[Cell], open_: list[tuple[Job, Handle]], tell: Tell, beat: Callable[[], None]
) -> None:
    """Until all jobs have ended; tells what changes meanwhile."""
    seen: dict[str, tuple[Any, ...]] = {}
    named = {cell.name: cell for cell in cells}
    while True:
        ended = [(job, handle) for job, handle in open_ if handle.done()]
        for job, handle in ended:
            _note_end(study, [named[name] for name in job.cells], handle)
        for cell in cells:
            noted = study.state(cell)
            mark = (noted.get("state"), noted.get("error"))
            if noted and noted.get("state") != "waiting" and seen.get(cell.name) != mark:
                seen[cell.name] = mark
                tell(cell, noted)
        open_ = [pair for pair in open_ if pair not in ended]
        if not open_:
            return
        beat()
        time.sleep(POLL)


def _note_end(study: Study, cells: list[Cell], handle: Handle) -> None:
    """If a job was ended by something, its cells that are neither done nor failed have failed by that."""
    error = handle.exception()
    if error is None or isinstance(error, KeyboardInterrupt):
        return
    text = str(error) if isinstance(error, SapcError) else f"{type(error).__name__}: {first_line(error)}"
    for cell in cells:
        if study.state(cell).get("state") not in ("done", "failed", "stopped"):
            study.note(cell, "failed", error=text, time=round(time.time(), 3))
