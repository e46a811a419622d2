"""The work of one job: train what is missing, then evaluate cell after cell; every engine calls this.

    python -m sapc.experiments.worker STUDY_FOLDER RUN_FOLDER --cell heat-sapc-seed0 --device cpu --threads 1

The state of each cell is recorded in the study's folder. A cell that fails does not stop the next; a training
that fails, fails for all the cells that need its weights. The process that started a worker keeps its
standard input open: when that closes, the worker saves and ends, so no work goes on after the study has been
killed.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._files import first_line, remove_remains
from ..errors import SapcError
from ..evaluation.frechet import distance as fpd
from ..evaluation.frechet.distance import Distance
from ..models.model import Model, load
from ..training import loop as training
from ..training.distributed import find_device, termination_as_interrupt
from .cell import Cell
from .study import Study, open_study

# How long a job waits for a process that works on it, which may be saving before its end.
PATIENCE = 60.0
BUSY = "another process is working on it"
# Exit codes of a worker that has recorded the reason; with any other one it has died.
EXIT_UNFINISHED, EXIT_INTERRUPTED = 3, 130
# Between records of an evaluation's progress.
RECORD_SECONDS = 2.0

StateCallback = Callable[[Cell, Mapping[str, Any]], None]
"""Called with a cell and its record, whenever its state has changed."""

CellProgress = Callable[[Cell, str, int, int, Mapping[str, float]], None]
"""Called with (cell, stage, done, total, losses) in the process that works on the cell."""


def ignore(*_: Any) -> None:
    """Do nothing."""


def further_metrics(
    poseidon: str | None, device: torch.device | str = "cpu"
) -> Callable[[Cell], tuple[Distance, ...]]:
    """Return a function that gives the further metrics of a cell, with every encoder made once."""
    cache: dict[bool, tuple[Distance, ...]] = {}

    def distances(cell: Cell) -> tuple[Distance, ...]:
        if cell.evaluation.frd not in cache:
            cache[cell.evaluation.frd] = fpd.distances(poseidon, cell.evaluation.frd, device)
        return cache[cell.evaluation.frd]

    return distances


@dataclass(frozen=True)
class JobContext:
    """Where and with what a job is done.

    Attributes:
        device: Where to train and sample.
        distances: Gives the metrics beyond the usual ones of a cell.
        on_change: Called when the state of a cell changes.
        progress: Called while a cell is worked on.
    """

    device: str
    distances: Callable[[Cell], tuple[Distance, ...]]
    on_change: StateCallback = ignore
    progress: CellProgress = ignore


def work(
    out: str,
    folder: str,
    names: Sequence[str],
    device: str = "auto",
    threads: int | None = None,
    poseidon: str | None = None,
) -> list[str]:
    """Do the cells `names` of one job in a process of its own; return those that are not done."""
    if threads:
        torch.set_num_threads(threads)
    context = JobContext(device, further_metrics(poseidon, find_device(device)), on_change=_log)
    return run_job(context, out, folder, names)


def _log(cell: Cell, record: Mapping[str, Any]) -> None:
    print(f"{cell.name}: {record['state']}", record.get("error", ""), flush=True)


def run_job(context: JobContext, out: str, folder: str, names: Sequence[str]) -> list[str]:
    """Do cells of one job as soon as no other process works on it; return those that are not done."""
    study = open_study(out)
    cells = [cell for cell in study.jobs().get(folder, []) if cell.name in set(names)]
    if unknown := set(names) - {cell.name for cell in cells}:
        raise SapcError(
            f"the study in {out} has no cell {min(unknown)} in {folder} any more: its list was changed"
        )
    deadline = time.monotonic() + PATIENCE
    while True:
        with study.lock(folder) as is_locked:
            if is_locked:
                return [cell.name for cell in _Job(study, cells, context).run()]
        if time.monotonic() > deadline:
            print(f"{folder}: {BUSY}", flush=True)
            return [cell.name for cell in cells]
        time.sleep(0.5)


class _Job:
    """The cells of one run folder, with the model that they share."""

    def __init__(self, study: Study, cells: list[Cell], context: JobContext) -> None:
        self.study, self.cells, self.context = study, cells, context
        self.folder = study.folder(cells[0])
        self.model: Model | None = None
        self.last_record = 0.0

    def run(self) -> list[Cell]:
        """Train, evaluate, and return the cells that are not done afterwards."""
        # Remains of a process that was killed while it wrote here.
        remove_remains(self.folder.path, is_locked=True)
        remove_remains(self.study.out / "states")
        todo = self.cells
        try:
            todo = [
                cell for cell in self.cells if not cell.find_scores(self.folder, self.context.distances(cell))
            ]
            if todo:
                self._train(todo[0])
        except (Exception, KeyboardInterrupt) as error:
            self._fail(todo, error)
            return todo
        return [cell for cell in todo if not self._evaluate(cell)]

    def _train(self, cell: Cell) -> None:
        if self.folder.is_trained:
            self.folder.check(cell.run)
            return
        self._set_state(cell, "training")

        def data_progress(split: str, done: int, total: int) -> None:
            self._show(cell, "training", f"solving the {split} set", done, total)

        def step(done: int, total: int, losses: dict[str, float]) -> None:
            self.context.progress(cell, "training", done, total, losses)

        training.train(
            cell.run, self.folder.path, device=self.context.device, progress=step, data_progress=data_progress
        )

    def _evaluate(self, cell: Cell) -> bool:
        """Evaluate a cell; return whether that went well."""
        start = time.monotonic()
        self._set_state(cell, "evaluating")
        try:
            if self.model is None:
                self.model = load(self.folder.path, self.context.device)
            show = lambda part, done, total: self._show(cell, "evaluating", part, done, total)
            cell.evaluate(
                self.model,
                self.folder,
                self.study.scores_of_task(cell),
                self.context.distances(cell),
                progress=show,
            )
        except (Exception, KeyboardInterrupt) as error:
            self._fail([cell], error)
            return False
        self._set_state(cell, "done", seconds=round(time.monotonic() - start, 3))
        return True

    def _show(self, cell: Cell, state: str, part: str, done: int, total: int) -> None:
        """Report progress, and record it every few seconds."""
        self.context.progress(cell, part, done, total, {})
        if state == "training" and done == total:
            self._write(cell, state)
        elif time.monotonic() - self.last_record > RECORD_SECONDS:
            self._write(cell, state, part=part, done=done, total=total)

    def _set_state(self, cell: Cell, state: str, **entries: Any) -> None:
        """Record a new state of a cell, and report it."""
        self.context.on_change(cell, self._write(cell, state, **entries))

    def _write(self, cell: Cell, state: str, **entries: Any) -> dict[str, Any]:
        self.last_record = time.monotonic()
        origin = {"host": socket.gethostname(), "process": os.getpid(), "device": self.context.device}
        record = {"time": round(time.time(), 3), **origin, **entries}
        self.study.record(cell, state, **record)
        return {"state": state, **record}

    def _fail(self, cells: Sequence[Cell], error: BaseException) -> None:
        """Record why cells are not done; an interrupt goes on."""
        text = describe(error)
        for cell in cells:
            if isinstance(error, KeyboardInterrupt):
                self._set_state(cell, "stopped")
            else:
                self._set_state(cell, "failed", error=text)
        if isinstance(error, KeyboardInterrupt):
            raise error
        if not isinstance(error, SapcError):
            traceback.print_exception(error)


def describe(error: BaseException) -> str:
    """Return what an error says, on one line."""
    text = str(error) if isinstance(error, SapcError) else f"{type(error).__name__}: {first_line(error)}"
    return " ".join(text.splitlines())


def end_with_parent() -> None:
    """End this process, saving what it can, as soon as its standard input is closed."""

    def watch() -> None:
        # Not through sys.stdin: its lock would be held when the interpreter ends.
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main(do: Callable[..., list[str]] | None = None) -> int:
    """Do one job as a process of its own; `do` takes the place of `work`."""
    parser = argparse.ArgumentParser(prog="sapc.experiments.worker")
    parser.add_argument("out")
    parser.add_argument("folder")
    parser.add_argument("--cell", action="append", default=[])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--poseidon")
    options = parser.parse_args()
    try:
        # Else it would end in the middle of a record, and leave half of it.
        with termination_as_interrupt():
            end_with_parent()
            unfinished = (do or work)(
                options.out,
                options.folder,
                options.cell,
                options.device,
                options.threads,
                options.poseidon,
            )
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_UNFINISHED if unfinished else 0


if __name__ == "__main__":
    sys.exit(main())
