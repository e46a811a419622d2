"""A study: a list of cells, the folder that holds their runs, and what has become of each.

    runs/smoke/
      study.json            what belongs to the study: format, name, cells with all their settings
      heat-ffm-seed0/       a run folder, with the scores of every method that samples with its weights
      states/               per cell the last that was heard of it (training, evaluating, failed and why, done and how long it took), and
                            per run folder a lock that is held while a process works there
      logs/                 per run folder what the process said that worked there

All the cells of one run folder are one job: a job trains, then evaluates cell after cell. Jobs do not depend on each other. What a job has
done is read from its folder alone, so a study that is killed at any moment goes on where it was.
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._files import ensure_folder, line_of, read_json, real_path, write_json
from .._old_names import rename_method
from ..errors import SapcError
from ..models.scores import Scores
from ..training.run_folder import RunFolder, lock_file
from .cell import Cell, iter_scores

FORMAT = "sapc-study-1"
FILE = "study.json"


@dataclass(frozen=True)
class Study:
    """Cells and the folder of their runs."""

    name: str
    cells: tuple[Cell, ...]
    out: Path

    def __post_init__(self) -> None:
        named: set[str] = set()
        for cell in self.cells:
            if cell.name in named:
                raise SapcError(
                    f"the study {self.name} lists {cell.name} twice; give one of them another label="
                )
            named.add(cell.name)
        for folder, own in self.jobs().items():
            if any(cell.run != own[0].run for cell in own):
                one = f"the study {self.name} has two different runs for the folder {folder}"
                raise SapcError(f"{one}; give one of them a label=")

    # -- parts --

    def jobs(self) -> dict[str, list[Cell]]:
        """The cells of every run folder, in the order of the list."""
        found: dict[str, list[Cell]] = {}
        for cell in self.cells:
            found.setdefault(cell.folder, []).append(cell)
        return found

    def select(
        self, tasks: Iterable[str] = (), methods: Iterable[str] = (), seeds: Iterable[int] = ()
    ) -> list[Cell]:
        """Return the cells of some tasks, methods and seeds; all of them where none is named."""
        found = list(self.cells)
        wanted: tuple[tuple[str, set[Any], Callable[[Cell], Any]], ...] = (
            ("task", set(tasks), lambda cell: cell.run.task),
            ("method", set(methods), lambda cell: cell.method),
            ("seed", set(seeds), lambda cell: cell.run.seed),
        )
        for what, names, value in wanted:
            known = list(dict.fromkeys(map(value, self.cells)))
            if unknown := names - set(known):
                listed = ", ".join(map(str, known))
                raise SapcError(f"the study {self.name} has no {what} {min(unknown)!r}; it has {listed}")
            found = [cell for cell in found if not names or value(cell) in names]
        return found

    def folder(self, cell: Cell) -> RunFolder:
        """Where a cell's run is."""
        return RunFolder(self.out / cell.folder)

    def log(self, folder: str) -> Path:
        """Where a job's process writes."""
        return self.out / "logs" / f"{folder}.log"

    def scores_of_task(self, cell: Cell) -> Iterator[Scores]:
        """Scores of the same task, whose sampling floor may serve."""
        for other in self.cells:
            if other.run.task == cell.run.task:
                yield from iter_scores(self.folder(other), other.method)

    def check(self) -> None:
        """Refuse what would fail in the middle of the work."""
        if not self.cells:
            raise SapcError(f"the study {self.name} is empty: its list of runs has no entry")
        for cell in self.cells:
            cell.check()

    # -- files --

    def write(self, is_shared: bool = False) -> None:
        """Write down what belongs to the study; makes its folder, which must not hold other things unless it `is_shared`."""
        if self.out.exists() and not self.out.is_dir():
            raise SapcError(f"{self.out} is not a folder, but a study goes there; choose another --out")
        there = self.out / FILE
        # A hidden file is what a process left that was killed while it wrote; `write_json` removes it.
        is_used = self.out.is_dir() and any(not path.name.startswith(".") for path in self.out.iterdir())
        if is_used and not there.exists() and not is_shared:
            raise SapcError(f"{self.out} is not empty and holds no study; choose another --out")
        self._refuse_others(there)
        with ensure_folder(self.out):
            content = {"format": FORMAT, "name": self.name, "cells": [cell.to_dict() for cell in self.cells]}
            write_json(there, content)  # first: a folder with anything else and without it is not a study's
            for part in ("states", "logs"):
                (self.out / part).mkdir(exist_ok=True)

    def _refuse_others(self, there: Path) -> None:
        """Nobody's cells are changed while a process works on one: jobs that have not begun would not find theirs."""
        try:
            other = open_study(self.out) if there.exists() else self
        except SapcError:  # damaged, and written anew
            return
        if all(cell in self.cells for cell in other.cells):
            return
        if busy := next(filter(other.is_busy, other.jobs()), None):
            raise SapcError(
                f"a process works on {busy} of the study {other.name} in {self.out}, and this study would change or drop "
                "cells of it; wait for it, or choose another --out"
            )

    def state(self, cell: Cell) -> dict[str, Any]:
        """The last that was heard of a cell; nothing, if there is no readable note."""
        try:
            return read_json(self._state(cell))
        except SapcError:
            return {}

    def record(self, cell: Cell, state: str, **more: Any) -> None:
        """Note what becomes of a cell."""
        write_json(self._state(cell), {"state": state, **more})

    def stamp(self, cell: Cell) -> tuple[int, int]:
        """Return what changes whenever something is noted of a cell."""
        try:
            about = os.stat(self._state(cell))
        except OSError:
            return (0, 0)
        return (about.st_ino, about.st_mtime_ns)

    def _state(self, cell: Cell) -> Path:
        return self.out / "states" / f"{cell.name}.json"

    @contextmanager
    def lock(self, folder: str) -> Iterator[bool]:
        """Inside the block nobody else works on a job; whether that is so: somebody else may have been first."""
        path = self._lock(folder)
        # Somebody else's study can be looked at, where that is allowed; locks on network file systems ask for more.
        with open(path, "a" if os.access(path if path.exists() else path.parent, os.W_OK) else "r") as file:
            try:
                lock_file(file)
            except BlockingIOError:
                yield False
                return
            yield True

    def _lock(self, folder: str) -> Path:
        return self.out / "states" / f"{folder}.lock"

    def is_busy(self, folder: str) -> bool:
        """Whether a process works on a job."""
        if not self._lock(folder).exists():
            return False
        with self.lock(folder) as mine:
            return not mine

    alike = rename_method("Study.alike", "Study.scores_of_task")
    chosen = rename_method("Study.chosen", "Study.select")
    is_worked_on = rename_method("Study.is_worked_on", "Study.is_busy")
    note = rename_method("Study.note", "Study.record")
    working = rename_method("Study.working", "Study.lock")


def load_study(path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Study:
    """The study in a Python file, which names its list of cells `runs`; or the one in a study's folder."""
    path = Path(path)
    if path.is_dir():
        if out is not None and real_path(out) != real_path(path):
            raise SapcError(
                f"{path} is a study's folder already, so --out {out} would be another one; leave it out"
            )
        return open_study(path)
    if not path.is_file():
        raise SapcError(
            f"there is no study {path}; give a Python file with a list `runs`, or a study's folder"
        )
    try:
        found = runpy.run_path(str(path), run_name="__study__").get("runs")
    except SapcError as error:
        raise SapcError(f"{path}: {error}") from error
    except (Exception, SystemExit) as error:
        # What cannot be parsed names its line itself.
        line = None if isinstance(error, SyntaxError) else line_of(error, path)
        where = f" (line {line})" if line else ""
        raise SapcError(f"{path} cannot be run: {type(error).__name__}: {error}{where}") from error
    if not isinstance(found, Sequence) or not all(isinstance(cell, Cell) for cell in found):
        raise SapcError(f"{path} has no list `runs` of cells; make one with sapc.experiments.cells(...)")
    return Study(path.stem, tuple(found), Path("runs") / path.stem if out is None else Path(out))


def open_study(out: str | os.PathLike[str]) -> Study:
    """The study whose runs are in a folder."""
    path = Path(out) / FILE
    if not path.is_file():
        raise SapcError(f"{out} holds no study: there is no {FILE}; start one with `sapc study run`")
    content = read_json(path, f"the description of a study ({FORMAT})")
    if content.get("format") != FORMAT:
        raise SapcError(f"{path} is not the description of a study ({FORMAT})")
    try:
        return Study(content["name"], tuple(map(Cell.from_dict, content["cells"])), Path(out))
    except (KeyError, TypeError) as error:
        raise SapcError(f"{path} is damaged: {error!r}; `sapc study run` writes it anew") from error
