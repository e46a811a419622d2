"""Where every cell stands, and how long the rest will take.

A cell is done (its scores are there), running (a process works on it), failed (with the error), stopped (begun, and nobody works on it) or
waiting. The time left is estimated from what this study has measured: seconds per training step of the same run, else of the same task and
method, else of the same task, else of tasks with as many axes; the same for evaluations, where another method's time counts in proportion
to its evaluations of the network. What has no relative that is done does not count.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..errors import SapcError
from ..evaluation.frechet.distance import Distance
from ..methods import get_method
from ..training.run_folder import about_tensors
from .cell import Cell
from .study import Study

State = Literal["done", "running", "failed", "stopped", "waiting"]


@dataclass(frozen=True)
class Status:
    """One cell's.

    step       training steps taken, of the run's
    part       what is being done, where something is
    error      why it failed, if it did
    seconds    estimate of what is left to do for it, as far as something is known; a training counts for the first cell that needs it
    known      whether that is all of it
    """

    cell: Cell
    state: State
    step: int
    part: str = ""
    error: str = ""
    seconds: float = 0.0
    known: bool = True

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        cell = self.cell
        return {
            "name": cell.name, "task": cell.run.task, "method": cell.method, "seed": cell.run.seed, "state": self.state,
            "step": self.step, "steps": cell.run.steps, "part": self.part, "error": self.error, "seconds_left": self.seconds,
            "all_known": self.known,
        }  # fmt: skip


def statuses(
    study: Study,
    cells: Sequence[Cell] | None = None,
    distances: Callable[[Cell], Sequence[Distance]] = lambda _: (),
) -> list[Status]:
    """Where cells stand, all of the study's unless given; `distances` are the metrics beyond the usual ones that they need."""
    steps = {name: _steps(study, own[0]) for name, own in study.jobs().items()}
    busy = {name for name in steps if study.is_worked_on(name)}
    found = [
        _status(study, cell, steps[cell.folder], cell.folder in busy, distances(cell))
        for cell in (study.cells if cells is None else cells)
    ]
    return _with_times(study, found)


def _status(study: Study, cell: Cell, step: int, busy: bool, distances: Sequence[Distance]) -> Status:
    if cell.scored(study.folder(cell), distances) is not None:
        return Status(cell, "done", cell.run.steps, seconds=0.0)
    noted = study.state(cell)
    state, error = noted.get("state"), str(noted.get("error", ""))
    begun = state in ("training", "evaluating")
    if busy and begun:
        return Status(cell, "running", step, _part(noted, cell, step))
    if state == "failed":
        return Status(cell, "failed", step, error=error)
    if begun or state == "stopped" or 0 < step < cell.run.steps:
        return Status(cell, "waiting" if busy else "stopped", step)
    return Status(cell, "waiting", step)


def _part(noted: Mapping[str, Any], cell: Cell, step: int) -> str:
    """What a running cell is at, in words."""
    if "part" in noted and not (noted["state"] == "training" and step):
        return f"{noted['part']}, {noted.get('done', 0)} of {noted.get('total', 0)}"
    return f"step {step} of {cell.run.steps}" if noted["state"] == "training" else "evaluating"


def _steps(study: Study, cell: Cell) -> int:
    """Training steps of a cell's run that are done."""
    folder = study.folder(cell)
    if folder.trained:
        return cell.run.steps
    entries = folder.entries()
    return int(entries[-1]["step"]) if entries else 0


# -- time --


def _with_times(study: Study, found: list[Status]) -> list[Status]:
    trained = {name: _step_seconds(study, own[0]) for name, own in study.jobs().items()}
    runs = {name: own[0] for name, own in study.jobs().items()}
    training = [(runs[name], seconds) for name, seconds in trained.items() if seconds is not None]
    evaluated = [
        (cell, float(noted["seconds"]) / _work(cell))
        for cell in study.cells
        if (noted := study.state(cell)).get("state") == "done"
        and isinstance(noted.get("seconds"), int | float)
    ]
    result, counted = [], set()
    for status in found:
        cell, parts = status.cell, []
        if status.state in ("done", "failed"):
            result.append(status)
            continue
        parts.append((_nearest(cell, evaluated, lambda a, b: a.method == b.method), _work(cell)))
        if cell.folder not in counted and status.step < cell.run.steps:
            counted.add(cell.folder)
            rate = trained[cell.folder] or _nearest(cell, training, lambda a, b: a.run.method == b.run.method)
            parts.append((rate, cell.run.steps - status.step))
        left = sum(rate * amount for rate, amount in parts if rate is not None)
        known = all(rate is not None for rate, _ in parts)
        result.append(replace(status, seconds=left, known=known))
    return result


def _work(cell: Cell) -> float:
    """What the time of an evaluation is taken to be proportional to: evaluations of the network."""
    evaluations = get_method(cell.method).evaluations(cell.steps)
    return float(len(cell.sets) * cell.count * evaluations)


def _step_seconds(study: Study, cell: Cell) -> float | None:
    """Seconds per step of a run, as far as it is."""
    folder = study.folder(cell)
    if folder.trained:
        try:
            return float(about_tensors(folder.weights)["seconds"]) / cell.run.steps
        except (SapcError, KeyError, TypeError, ValueError):
            return None
    entries = [e for e in folder.entries() if isinstance(e.get("seconds"), int | float)]
    return float(entries[-1]["seconds"]) / entries[-1]["step"] if entries and entries[-1]["step"] else None


def _nearest(
    cell: Cell, measured: Iterable[tuple[Cell, float]], same: Callable[[Cell, Cell], bool]
) -> float | None:
    """The mean rate of the nearest relatives of a cell."""
    measured = list(measured)
    kinds: tuple[Callable[[Cell], bool], ...] = (
        lambda other: other.run.task == cell.run.task and same(other, cell),
        lambda other: other.run.task == cell.run.task,
        lambda other: len(other.run.grid) == len(cell.run.grid) and same(other, cell),
        lambda other: len(other.run.grid) == len(cell.run.grid),
    )
    for alike in kinds:
        if rates := [rate for other, rate in measured if alike(other)]:
            return statistics.fmean(rates)
    return None


def time_left(found: Sequence[Status], workers: int) -> tuple[float, int]:
    """Seconds until cells that are not done would be, shared by some workers, and of how many cells that does not count all."""
    open_ = [s for s in found if s.state not in ("done", "failed")]
    jobs: dict[str, float] = {}
    for status in open_:
        jobs[status.cell.folder] = jobs.get(status.cell.folder, 0.0) + status.seconds
    total, longest = sum(jobs.values()), max(jobs.values(), default=0.0)
    return max(total / max(1, workers), longest), sum(not s.known for s in open_)
