"""The work of one job: train what is missing, then evaluate cell after cell; every engine calls this and nothing else.

    python -m sapc.experiments.worker STUDY_FOLDER RUN_FOLDER --cell heat-sapc-seed0 --device cpu --threads 1

The state of each cell is noted in the study's folder. A cell that fails does not stop the next; a training that fails, fails for all the
cells that need its weights. The process that started a worker keeps its standard input open: when that closes, the worker saves and ends,
so no work goes on after somebody has killed the study.
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

PATIENCE = 60.0  # seconds that a job waits for a process that works on it: one that is being ended may still be saving
BUSY = "another process is working on it"
EXIT_UNFINISHED, EXIT_INTERRUPTED = (
    3,
    130,
)  # exit codes of a worker that has noted why; with any other one it has died
NOTE_SECONDS = 2.0  # between notes of an evaluation's progress

OnChange = Callable[[Cell, Mapping[str, Any]], None]
"""Called with a cell and what was noted of it, whenever its state has changed."""

CellProgress = Callable[[Cell, str, int, int, Mapping[str, float]], None]
"""Called with (cell, stage, done, total, losses) in the process that works on the cell."""


def ignore(*_: Any) -> None:
    """Do nothing with what is told."""


def further_metrics(
    poseidon: str | None, device: torch.device | str = "cpu"
) -> Callable[[Cell], tuple[Distance, ...]]:
    """Return the further metrics of a cell as a function of it; each is made once, since encoders are large."""
    made: dict[bool, tuple[Distance, ...]] = {}

    def distances(cell: Cell) -> tuple[Distance, ...]:
        if cell.evaluation.frd not in made:
            made[cell.evaluation.frd] = fpd.distances(poseidon, cell.evaluation.frd, device)
        return made[cell.evaluation.frd]

    return distances


@dataclass(frozen=True)
class Means:
    """What a job is done with.

    distances    further metrics of a cell
    on_change    called when the state of a cell changes
    progress     called while a cell is worked on
    """

    device: str
    distances: Callable[[Cell], tuple[Distance, ...]]
    on_change: OnChange = ignore
    progress: CellProgress = ignore


def work(
    out: str,
    folder: str,
    names: Sequence[str],
    device: str = "auto",
    threads: int | None = None,
    poseidon: str | None = None,
) -> list[str]:
    """Do the cells `names` of one job; return those that are not done."""
    if threads:
        torch.set_num_threads(threads)
    means = Means(device, further_metrics(poseidon, find_device(device)), on_change=_log)
    return work_with(means, out, folder, names)


def _log(cell: Cell, noted: Mapping[str, Any]) -> None:
    print(f"{cell.name}: {noted['state']}", noted.get("error", ""), flush=True)


def work_with(means: Means, out: str, folder: str, names: Sequence[str]) -> list[str]:
    """Do the cells `names` of one job as soon as no other process works on it; return those that are not done."""
    study = open_study(out)
    wanted = [cell for cell in study.jobs().get(folder, []) if cell.name in set(names)]
    if lost := set(names) - {cell.name for cell in wanted}:
        raise SapcError(
            f"the study in {out} has no cell {min(lost)} in {folder} any more: its list was changed"
        )
    deadline = time.monotonic() + PATIENCE
    while True:
        with study.lock(folder) as mine:
            if mine:
                return [cell.name for cell in _Job(study, wanted, means).run()]
        if time.monotonic() > deadline:
            print(f"{folder}: {BUSY}", flush=True)
            return [cell.name for cell in wanted]
        time.sleep(0.5)


class _Job:
    """The cells of one run folder, with the model that they share."""

    def __init__(self, study: Study, cells: list[Cell], means: Means) -> None:
        self.study, self.cells, self.means = study, cells, means
        self.folder = study.folder(cells[0])
        self.model: Model | None = None
        self.noted = 0.0

    def run(self) -> list[Cell]:
        """Train, evaluate, and return the cells that are not done afterwards."""
        # What a process left behind that was killed while it wrote here.
        remove_remains(self.folder.path, unnamed=True)
        remove_remains(self.study.out / "states")
        left = self.cells
        try:
            left = [
                cell for cell in self.cells if not cell.find_scores(self.folder, self.means.distances(cell))
            ]
            if left:
                self._train(left[0])
        except (Exception, KeyboardInterrupt) as error:
            self._fail(left, error)
            return left
        return [cell for cell in left if not self._evaluate(cell)]

    def _train(self, cell: Cell) -> None:
        if self.folder.is_trained:
            self.folder.check(cell.run)
            return
        self._note(cell, "training")

        def data_progress(split: str, done: int, total: int) -> None:
            self._show(cell, "training", f"solving the {split} set", done, total)

        def step(done: int, total: int, losses: dict[str, float]) -> None:
            self.means.progress(cell, "training", done, total, losses)

        training.train(
            cell.run, self.folder.path, device=self.means.device, progress=step, data_progress=data_progress
        )

    def _evaluate(self, cell: Cell) -> bool:
        """Evaluate a cell; return whether that went well."""
        start = time.monotonic()
        self._note(cell, "evaluating")
        try:
            if self.model is None:
                self.model = load(self.folder.path, self.means.device)
            show = lambda part, done, total: self._show(cell, "evaluating", part, done, total)
            cell.evaluate(
                self.model,
                self.folder,
                self.study.scores_of_task(cell),
                self.means.distances(cell),
                progress=show,
            )
        except (Exception, KeyboardInterrupt) as error:
            self._fail([cell], error)
            return False
        self._note(cell, "done", seconds=round(time.monotonic() - start, 3))
        return True

    def _show(self, cell: Cell, state: str, part: str, done: int, total: int) -> None:
        """Show progress; note it as well, but not more often than every few seconds."""
        self.means.progress(cell, part, done, total, {})
        if state == "training" and done == total:
            self._write(cell, state)
        elif time.monotonic() - self.noted > NOTE_SECONDS:
            self._write(cell, state, part=part, done=done, total=total)

    def _note(self, cell: Cell, state: str, **more: Any) -> None:
        """Note a new state of a cell, and tell it."""
        self.means.on_change(cell, self._write(cell, state, **more))

    def _write(self, cell: Cell, state: str, **more: Any) -> dict[str, Any]:
        self.noted = time.monotonic()
        where = {"host": socket.gethostname(), "process": os.getpid(), "device": self.means.device}
        noted = {"time": round(time.time(), 3), **where, **more}
        self.study.record(cell, state, **noted)
        return {"state": state, **noted}

    def _fail(self, cells: Sequence[Cell], error: BaseException) -> None:
        """Note why cells are not done; an interrupt goes on."""
        text = describe(error)
        for cell in cells:
            if isinstance(error, KeyboardInterrupt):
                self._note(cell, "stopped")
            else:
                self._note(cell, "failed", error=text)
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
        while os.read(0, 1024):  # not through sys.stdin: its lock would be held when the interpreter ends
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
    given = parser.parse_args()
    try:
        with termination_as_interrupt():  # else it would end in the middle of a note, and leave half of it
            end_with_parent()
            left = (do or work)(
                given.out, given.folder, given.cell, given.device, given.threads, given.poseidon
            )
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_UNFINISHED if left else 0


if __name__ == "__main__":
    sys.exit(main())
