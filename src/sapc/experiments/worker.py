"""The work of one job: train what is missing, then evaluate cell after cell; every engine calls this and nothing else.

    python -m sapc.experiments.worker STUDY_FOLDER RUN_FOLDER --cell heat-sapc-seed0 --device cpu --threads 1

What happens is noted per cell in the study's folder. A cell that fails does not stop the next; a training that fails, fails for all the
cells that need its weights. The process that started a worker keeps its standard input open: when that closes, the worker saves and ends,
so nothing goes on behind the back of someone who killed the study.
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
from collections.abc import Sequence
from typing import Any

import torch

from .._files import first_line, remove_remains
from ..errors import SapcError
from ..models.model import Model, load
from ..training import loop as training
from ..training.distributed import find_device, termination_as_interrupt
from ..training.step import Solving
from .cell import Cell, distances_for
from .study import Study, open_study

PATIENCE = 60.0  # seconds that a job waits for a process that works on it: one that is being ended may still be saving
BUSY = "another process is working on it"
LEFT, INTERRUPTED = 3, 130  # exit codes of a worker that has noted why; with any other one it has died
BEAT = 2.0  # seconds between notes of an evaluation's progress


def work(
    out: str,
    folder: str,
    names: Sequence[str],
    device: str = "auto",
    threads: int | None = None,
    poseidon: str | None = None,
) -> list[str]:
    """Do the cells `names` of one job; returns those that are not done."""
    study = open_study(out)
    wanted = [cell for cell in study.jobs().get(folder, []) if cell.name in set(names)]
    if lost := set(names) - {cell.name for cell in wanted}:
        raise SapcError(
            f"the study in {out} has no cell {min(lost)} in {folder} any more: its list was changed"
        )
    if threads:
        torch.set_num_threads(threads)
    deadline = time.monotonic() + PATIENCE
    while True:
        with study.working(folder) as mine:
            if mine:
                return [cell.name for cell in _Job(study, wanted, device, poseidon).left()]
        if time.monotonic() > deadline:
            print(f"{folder}: {BUSY}", flush=True)
            return [cell.name for cell in wanted]
        time.sleep(0.5)


class _Job:
    """The cells of one run folder, with the model that they share."""

    def __init__(self, study: Study, cells: list[Cell], device: str, poseidon: str | None) -> None:
        self.study, self.cells, self.device, self.poseidon = study, cells, device, poseidon
        self.model: Model | None = None

    def left(self) -> list[Cell]:
        """Work; the cells that are not done afterwards."""
        self._tidy()
        left = self.cells
        try:
            left = [cell for cell in self.cells if not self._done(cell)]
            if left:
                self._train(left[0])
        except (Exception, KeyboardInterrupt) as error:
            for cell in left:
                self._failed(cell, error)
            if isinstance(error, KeyboardInterrupt):
                raise
            return left
        return [cell for cell in left if not self._evaluated(cell)]

    def _tidy(self) -> None:
        """Remove what a process left behind that was killed while it wrote here."""
        remove_remains(self.study.folder(self.cells[0]).path, unnamed=True)
        remove_remains(self.study.out / "states")

    def _done(self, cell: Cell) -> bool:
        distances = distances_for(cell, self.poseidon, find_device(self.device))
        return cell.scored(self.study.folder(cell), distances) is not None

    def _train(self, cell: Cell) -> None:
        folder = self.study.folder(cell)
        if folder.trained:
            folder.check(cell.run)
            return
        self._note(cell, "training")
        print(f"training in {folder.path}", flush=True)
        training.train(cell.run, folder.path, device=self.device, solving=self._solving(cell))

    def _solving(self, cell: Cell) -> Solving:
        beat = _Beat()

        def solving(split: str, done: int, total: int) -> None:
            if done == total:
                self._note(cell, "training")
            elif beat.due():
                self._note(cell, "training", part=f"solving the {split} set", done=done, total=total)

        return solving

    def _evaluated(self, cell: Cell) -> bool:
        """Evaluate a cell; whether that went well."""
        start, beat = time.monotonic(), _Beat()

        def progress(part: str, done: int, total: int) -> None:
            if beat.due():
                self._note(cell, "evaluating", part=part, done=done, total=total)

        self._note(cell, "evaluating")
        print(f"evaluating {cell.name}", flush=True)
        try:
            folder = self.study.folder(cell)
            if self.model is None:
                self.model = load(folder.path, self.device)
            distances = distances_for(cell, self.poseidon, self.model.device)
            cell.evaluate(self.model, folder, self.study.alike(cell), distances, progress)
        except (Exception, KeyboardInterrupt) as error:
            self._failed(cell, error)
            if isinstance(error, KeyboardInterrupt):
                raise
            return False
        self._note(cell, "done", seconds=round(time.monotonic() - start, 3))
        return True

    def _note(self, cell: Cell, state: str, **more: Any) -> None:
        where = {"host": socket.gethostname(), "process": os.getpid(), "device": self.device}
        self.study.note(cell, state, time=round(time.time(), 3), **where, **more)

    def _failed(self, cell: Cell, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._note(cell, "stopped")
            return
        text = str(error) if isinstance(error, SapcError) else f"{type(error).__name__}: {first_line(error)}"
        self._note(cell, "failed", error=" ".join(text.splitlines()))
        print(f"{cell.name} failed: {text}", flush=True)
        if not isinstance(error, SapcError):
            traceback.print_exception(error)


class _Beat:
    """Now and then."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def due(self) -> bool:
        now = time.monotonic()
        if now - self.last < BEAT:
            return False
        self.last = now
        return True


def end_with_parent() -> None:
    """End this process, saving what it can, as soon as its standard input is closed."""

    def watch() -> None:
        while os.read(0, 1024):  # not through sys.stdin: its lock would be held when the interpreter ends
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    """The worker as a process of its own."""
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
            left = work(given.out, given.folder, given.cell, given.device, given.threads, given.poseidon)
    except KeyboardInterrupt:
        return INTERRUPTED
    return LEFT if left else 0


if __name__ == "__main__":
    sys.exit(main())
