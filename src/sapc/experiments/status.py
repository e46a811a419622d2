"""The status of every cell, and an estimate of the remaining time.

A cell is done (its scores exist), running (a process works on it), failed (with the error), stopped (begun,
and nobody works on it) or waiting. The remaining time is estimated from what this study has measured: seconds
per training step of the same run, else of the same task and method, else of the same task, else of tasks with
as many axes; the same for evaluations, where another method's time counts in proportion to its evaluations of
the network. Cells without any relative that is done do not count.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from .._old_names import old_attribute
from ..errors import SapcError
from ..evaluation.frechet.distance import Distance
from ..methods import get_method
from ..models.scores import Scores
from ..training.run_folder import RunFolder, read_description
from .cell import Cell
from .study import Study

State = Literal["done", "running", "failed", "stopped", "waiting"]


@dataclass(frozen=True)
class Status:
    """The status of one cell.

    Attributes:
        cell: The cell.
        state: Its state.
        step: Training steps taken.
        part: What is being done, of a running cell.
        error: The error of a failed cell.
        seconds: Estimate of the remaining time. A training counts for the first cell that needs it.
        is_estimate_complete: Whether that covers all the remaining work.
        scores: The scores, of a cell that is done.
    """

    cell: Cell
    state: State
    step: int
    part: str = ""
    error: str = ""
    seconds: float = 0.0
    is_estimate_complete: bool = True
    scores: Scores | None = None
    known = old_attribute("Status.known", "Status.is_estimate_complete")

    def to_dict(self) -> dict[str, Any]:
        """Return the status as JSON can hold it."""
        cell = self.cell
        return {
            "name": cell.name, "task": cell.run.task, "method": cell.method, "seed": cell.run.seed,
            "state": self.state, "step": self.step, "steps": cell.run.steps, "part": self.part,
            "error": self.error, "seconds_left": self.seconds, "all_known": self.is_estimate_complete,
        }  # fmt: skip


@dataclass(frozen=True)
class _Progress:
    """Steps of a training, seconds per step if they are known, and whether a process works on it."""

    step: int
    pace: float | None
    is_busy: bool


def statuses(
    study: Study,
    cells: Sequence[Cell] | None = None,
    distances: Callable[[Cell], Sequence[Distance]] = lambda _: (),
) -> list[Status]:
    """Return the status of cells.

    Args:
        study: The study.
        cells: Its cells; all of them unless given.
        distances: Gives the metrics beyond the usual ones that a cell needs.

    Returns:
        The status of every cell, in their order.
    """
    jobs = study.jobs()
    trainings = {
        name: _Progress(*_pace(study.folder(group[0]), group[0].run.steps), study.is_busy(name))
        for name, group in jobs.items()
    }
    records = {cell.name: study.state(cell) for cell in study.cells}
    states = [
        _status(
            cell,
            trainings[cell.folder],
            records[cell.name],
            cell.find_scores(study.folder(cell), distances(cell)),
        )
        for cell in (study.cells if cells is None else cells)
    ]
    paces = [(group[0], pace) for name, group in jobs.items() if (pace := trainings[name].pace) is not None]
    evaluations = [
        (cell, float(record["seconds"]) / _work(cell))
        for cell in study.cells
        if (record := records[cell.name]).get("state") == "done"
        and isinstance(record.get("seconds"), int | float)
    ]
    folders: set[str] = set()
    return [_add_estimate(status, trainings, paces, evaluations, folders) for status in states]


def _status(cell: Cell, training: _Progress, record: Mapping[str, Any], scores: Scores | None) -> Status:
    if scores is not None:
        return Status(cell, "done", cell.run.steps, scores=scores)
    state, step, busy = record.get("state"), training.step, training.is_busy
    is_active = state in ("training", "evaluating")
    if busy and is_active:
        return Status(cell, "running", step, _describe_part(record, cell, step))
    if state == "failed":
        return Status(cell, "failed", step, error=str(record.get("error", "")))
    if is_active or state == "stopped" or 0 < step < cell.run.steps:
        return Status(cell, "waiting" if busy else "stopped", step)
    return Status(cell, "waiting", step)


def _describe_part(record: Mapping[str, Any], cell: Cell, step: int) -> str:
    """Return what a running cell does, in words."""
    if "part" in record and not (record["state"] == "training" and step):
        return f"{record['part']}, {record.get('done', 0)} of {record.get('total', 0)}"
    return f"step {step} of {cell.run.steps}" if record["state"] == "training" else "evaluating"


# -- time --


def _pace(folder: RunFolder, steps: int) -> tuple[int, float | None]:
    """Return how many steps a training has done, and seconds per step."""
    if folder.is_trained:
        try:
            return steps, float(read_description(folder.weights)["seconds"]) / steps
        except (SapcError, KeyError, TypeError, ValueError):
            return steps, None
    entries = folder.entries()
    measurements = [e for e in entries if isinstance(e.get("seconds"), int | float)]
    pace = None
    if measurements and (step := measurements[-1]["step"]):
        pace = float(measurements[-1]["seconds"]) / step
    return int(entries[-1]["step"]) if entries else 0, pace


def _add_estimate(
    status: Status,
    trainings: Mapping[str, _Progress],
    paces: Sequence[tuple[Cell, float]],
    evaluations: Sequence[tuple[Cell, float]],
    folders: set[str],
) -> Status:
    """Add the estimate of the remaining time; trainings in `folders` count for another cell already."""
    if status.state in ("done", "failed"):
        return status
    cell = status.cell
    parts = [(_nearest_rate(cell, evaluations, lambda a, b: a.method == b.method), _work(cell))]
    if cell.folder not in folders and status.step < cell.run.steps:
        folders.add(cell.folder)
        pace = trainings[cell.folder].pace
        pace = pace or _nearest_rate(cell, paces, lambda a, b: a.run.method == b.run.method)
        parts.append((pace, cell.run.steps - status.step))
    seconds = sum(rate * amount for rate, amount in parts if rate is not None)
    return replace(status, seconds=seconds, is_estimate_complete=all(rate is not None for rate, _ in parts))


def _work(cell: Cell) -> float:
    """Return the evaluations of the network, to which the time of an evaluation is proportional."""
    settings = cell.settings
    evaluations = get_method(cell.method).evaluations(settings.steps or 0)
    return float(len(cell.sets) * (settings.samples or 0) * evaluations)


def _nearest_rate(
    cell: Cell, rates: Sequence[tuple[Cell, float]], is_alike: Callable[[Cell, Cell], bool]
) -> float | None:
    """Return the mean rate of the nearest relatives of a cell."""
    kinds: tuple[Callable[[Cell], bool], ...] = (
        lambda other: other.run.task == cell.run.task and is_alike(other, cell),
        lambda other: other.run.task == cell.run.task,
        lambda other: len(other.run.grid) == len(cell.run.grid) and is_alike(other, cell),
        lambda other: len(other.run.grid) == len(cell.run.grid),
    )
    for is_relative in kinds:
        if values := [rate for other, rate in rates if is_relative(other)]:
            return statistics.fmean(values)
    return None


def remaining_time(statuses: Sequence[Status], workers: int) -> tuple[float, int]:
    """Estimate when all cells will be done.

    Args:
        statuses: Status of the cells.
        workers: Number of jobs at a time.

    Returns:
        Seconds, and the number of cells whose estimate is not complete.
    """
    unfinished = [s for s in statuses if s.state not in ("done", "failed")]
    jobs: dict[str, float] = {}
    for status in unfinished:
        jobs[status.cell.folder] = jobs.get(status.cell.folder, 0.0) + status.seconds
    total, longest = sum(jobs.values()), max(jobs.values(), default=0.0)
    return max(total / max(1, workers), longest), sum(not s.is_estimate_complete for s in unfinished)
