"""Where every cell stands, and how long the rest will take.

A cell is done (its scores are there), running (a process works on it), failed (with the error), stopped (begun, and nobody works on it) or
waiting. The time left is estimated from what this study has measured: seconds per training step of the same run, else of the same task and
method, else of the same task, else of tasks with as many axes; the same for evaluations, where another method's time counts in proportion
to its evaluations of the network. What has no relative that is done does not count.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

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
    """Where one cell stands.

    step       training steps taken, of the run's
    part       what is being done, where something is
    error      why it failed, if it did
    seconds    estimate of what is left to do for it, as far as something is known; a training counts for the first cell that needs it
    known      whether that is all of it
    scores     of a cell that is done
    """

    cell: Cell
    state: State
    step: int
    part: str = ""
    error: str = ""
    seconds: float = 0.0
    known: bool = True
    scores: Scores | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        cell = self.cell
        return {
            "name": cell.name, "task": cell.run.task, "method": cell.method, "seed": cell.run.seed, "state": self.state,
            "step": self.step, "steps": cell.run.steps, "part": self.part, "error": self.error, "seconds_left": self.seconds,
            "all_known": self.known,
        }  # fmt: skip


@dataclass(frozen=True)
class _Training:
    """How far a training is, its seconds per step as far as they are known, and whether a process works on it."""

    step: int
    pace: float | None
    is_busy: bool


def statuses(
    study: Study,
    cells: Sequence[Cell] | None = None,
    distances: Callable[[Cell], Sequence[Distance]] = lambda _: (),
) -> list[Status]:
    """Return where cells stand, all of the study's unless given; `distances` are the metrics beyond the usual ones that they need."""
    jobs = study.jobs()
    trainings = {
        name: _Training(*_pace(study.folder(own[0]), own[0].run.steps), study.is_busy(name))
        for name, own in jobs.items()
    }
    notes = {cell.name: study.state(cell) for cell in study.cells}
    found = [
        _status(
            cell,
            trainings[cell.folder],
            notes[cell.name],
            cell.find_scores(study.folder(cell), distances(cell)),
        )
        for cell in (study.cells if cells is None else cells)
    ]
    paces = [(own[0], pace) for name, own in jobs.items() if (pace := trainings[name].pace) is not None]
    evaluated = [
        (cell, float(noted["seconds"]) / _work(cell))
        for cell in study.cells
        if (noted := notes[cell.name]).get("state") == "done"
        and isinstance(noted.get("seconds"), int | float)
    ]
    counted: set[str] = set()
    return [_with_time(status, trainings, paces, evaluated, counted) for status in found]


def _status(cell: Cell, training: _Training, noted: Mapping[str, Any], scores: Scores | None) -> Status:
    if scores is not None:
        return Status(cell, "done", cell.run.steps, scores=scores)
    state, step, busy = noted.get("state"), training.step, training.is_busy
    begun = state in ("training", "evaluating")
    if busy and begun:
        return Status(cell, "running", step, _part(noted, cell, step))
    if state == "failed":
        return Status(cell, "failed", step, error=str(noted.get("error", "")))
    if begun or state == "stopped" or 0 < step < cell.run.steps:
        return Status(cell, "waiting" if busy else "stopped", step)
    return Status(cell, "waiting", step)


def _part(noted: Mapping[str, Any], cell: Cell, step: int) -> str:
    """What a running cell is at, in words."""
    if "part" in noted and not (noted["state"] == "training" and step):
        return f"{noted['part']}, {noted.get('done', 0)} of {noted.get('total', 0)}"
    return f"step {step} of {cell.run.steps}" if noted["state"] == "training" else "evaluating"


# -- time --


def _pace(folder: RunFolder, steps: int) -> tuple[int, float | None]:
    """Return how many steps a training has done, and seconds per step."""
    if folder.is_trained:
        try:
            return steps, float(read_description(folder.weights)["seconds"]) / steps
        except (SapcError, KeyError, TypeError, ValueError):
            return steps, None
    entries = folder.entries()
    timed = [e for e in entries if isinstance(e.get("seconds"), int | float)]
    pace = float(timed[-1]["seconds"]) / timed[-1]["step"] if timed and timed[-1]["step"] else None
    return int(entries[-1]["step"]) if entries else 0, pace


def _with_time(
    status: Status,
    trainings: Mapping[str, _Training],
    paces: Sequence[tuple[Cell, float]],
    evaluated: Sequence[tuple[Cell, float]],
    counted: set[str],
) -> Status:
    """Add the estimate of the time left; `counted` are the trainings that count for another cell already."""
    if status.state in ("done", "failed"):
        return status
    cell = status.cell
    parts = [(_nearest(cell, evaluated, lambda a, b: a.method == b.method), _work(cell))]
    if cell.folder not in counted and status.step < cell.run.steps:
        counted.add(cell.folder)
        pace = trainings[cell.folder].pace
        pace = pace or _nearest(cell, paces, lambda a, b: a.run.method == b.run.method)
        parts.append((pace, cell.run.steps - status.step))
    left = sum(rate * amount for rate, amount in parts if rate is not None)
    return replace(status, seconds=left, known=all(rate is not None for rate, _ in parts))


def _work(cell: Cell) -> float:
    """What the time of an evaluation is taken to be proportional to: evaluations of the network."""
    settings = cell.settings
    evaluations = get_method(cell.method).evaluations(settings.steps or 0)
    return float(len(cell.sets) * (settings.samples or 0) * evaluations)


def _nearest(
    cell: Cell, measured: Sequence[tuple[Cell, float]], same: Callable[[Cell, Cell], bool]
) -> float | None:
    """Return the mean rate of the nearest relatives of a cell."""
    kinds: tuple[Callable[[Cell], bool], ...] = (
        lambda other: other.run.task == cell.run.task and same(other, cell),
        lambda other: other.run.task == cell.run.task,
        lambda other: len(other.run.grid) == len(cell.run.grid) and same(other, cell),
        lambda other: len(other.run.grid) == len(cell.run.grid),
    )
    for is_relative in kinds:
        if rates := [rate for other, rate in measured if is_relative(other)]:
            return statistics.fmean(rates)
    return None


def remaining_time(found: Sequence[Status], workers: int) -> tuple[float, int]:
    """Return seconds until all cells would be done, shared by some workers, and of how many cells that does not count all."""
    left = [s for s in found if s.state not in ("done", "failed")]
    jobs: dict[str, float] = {}
    for status in left:
        jobs[status.cell.folder] = jobs.get(status.cell.folder, 0.0) + status.seconds
    total, longest = sum(jobs.values()), max(jobs.values(), default=0.0)
    return max(total / max(1, workers), longest), sum(not s.known for s in left)
