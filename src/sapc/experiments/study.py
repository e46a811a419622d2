"""A study: a list of cells, and the folder that holds their runs and states.

    runs/smoke/
      study.json            the study itself: format, name, cells with all their settings
      heat-ffm-seed0/       a run folder, with the scores of every method that samples with its weights
      states/               per cell its last recorded state (training, evaluating, failed with the error,
                            done with the time it took), and per run folder a lock that is held while a
                            process works there
      logs/                 per run folder the output of the process that worked there

All the cells of one run folder are one job: a job trains, then evaluates cell after cell. Jobs do not depend
on each other. What a job has done is read from its folder alone, so a study that is killed at any moment goes
on where it was.
"""

from __future__ import annotations

import os
import runpy
from collections import Counter
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
    """Cells and the folder of their runs.

    Attributes:
        name: Name of the study.
        cells: Its cells.
        out: The folder.
    """

    name: str
    cells: tuple[Cell, ...]
    out: Path

    def __post_init__(self) -> None:
        for name, count in Counter(cell.name for cell in self.cells).items():
            if count > 1:
                raise SapcError(f"the study {self.name} lists {name} twice; give one of them another label=")
        for folder, cells in self.jobs().items():
            if any(cell.run != cells[0].run for cell in cells):
                conflict = f"the study {self.name} has two different runs for the folder {folder}"
                raise SapcError(f"{conflict}; give one of them a label=")

    # -- parts --

    def jobs(self) -> dict[str, list[Cell]]:
        """Group the cells by their run folder, in the order of the list."""
        jobs: dict[str, list[Cell]] = {}
        for cell in self.cells:
            jobs.setdefault(cell.folder, []).append(cell)
        return jobs

    def select(
        self, tasks: Iterable[str] = (), methods: Iterable[str] = (), seeds: Iterable[int] = ()
    ) -> list[Cell]:
        """Select the cells of some tasks, methods and seeds.

        Args:
            tasks: Names of tasks; all of them unless given.
            methods: Names of methods; all of them unless given.
            seeds: Seeds; all of them unless given.

        Returns:
            The cells.

        Raises:
            SapcError: The study has no such task, method or seed.
        """
        cells = list(self.cells)
        filters: tuple[tuple[str, set[Any], Callable[[Cell], Any]], ...] = (
            ("task", set(tasks), lambda cell: cell.run.task),
            ("method", set(methods), lambda cell: cell.method),
            ("seed", set(seeds), lambda cell: cell.run.seed),
        )
        for kind, names, value in filters:
            values = list(dict.fromkeys(map(value, self.cells)))
            if unknown := names - set(values):
                listing = ", ".join(map(str, values))
                raise SapcError(f"the study {self.name} has no {kind} {min(unknown)!r}; it has {listing}")
            cells = [cell for cell in cells if not names or value(cell) in names]
        return cells

    def folder(self, cell: Cell) -> RunFolder:
        """Return the run folder of a cell."""
        return RunFolder(self.out / cell.folder)

    def log(self, folder: str) -> Path:
        """Return the file that a job's process writes its output to."""
        return self.out / "logs" / f"{folder}.log"

    def scores_of_task(self, cell: Cell) -> Iterator[Scores]:
        """Yield the scores of the same task, whose sampling floor may serve."""
        for other in self.cells:
            if other.run.task == cell.run.task:
                yield from iter_scores(self.folder(other), other.method)

    def check(self) -> None:
        """Check, before the work, all that can be checked."""
        if not self.cells:
            raise SapcError(f"the study {self.name} is empty: its list of runs has no entry")
        for cell in self.cells:
            cell.check()

    # -- files --

    def write(self, is_shared: bool = False) -> None:
        """Write `study.json`, and make the folders.

        Args:
            is_shared: Whether the study's folder may hold other files already.

        Raises:
            SapcError: The folder holds other files, or a process works on cells that would change.
        """
        if self.out.exists() and not self.out.is_dir():
            raise SapcError(f"{self.out} is not a folder, but a study goes there; choose another --out")
        manifest = self.out / FILE
        # A process that was killed while it wrote leaves a hidden file; `write_json` removes it.
        is_used = self.out.is_dir() and any(not path.name.startswith(".") for path in self.out.iterdir())
        if is_used and not manifest.exists() and not is_shared:
            raise SapcError(f"{self.out} is not empty and holds no study; choose another --out")
        self._check_busy_cells(manifest)
        with ensure_folder(self.out):
            content = {"format": FORMAT, "name": self.name, "cells": [cell.to_dict() for cell in self.cells]}
            # First: a folder with other files, but without this one, is not a study's.
            write_json(manifest, content)
            for part in ("states", "logs"):
                (self.out / part).mkdir(exist_ok=True)

    def _check_busy_cells(self, manifest: Path) -> None:
        """Refuse to change cells while a process works on one: waiting jobs would not find theirs."""
        try:
            other = open_study(self.out) if manifest.exists() else self
        except SapcError:
            # It is damaged, and written anew.
            return
        if all(cell in self.cells for cell in other.cells):
            return
        if busy := next(filter(other.is_busy, other.jobs()), None):
            raise SapcError(
                f"a process works on {busy} of the study {other.name} in {self.out}, and this study would "
                "change or drop cells of it; wait for it, or choose another --out"
            )

    def state(self, cell: Cell) -> dict[str, Any]:
        """Return the last recorded state of a cell; an empty record, if there is none that can be read."""
        try:
            return read_json(self._state_file(cell))
        except SapcError:
            return {}

    def record(self, cell: Cell, state: str, **entries: Any) -> None:
        """Record the state of a cell."""
        write_json(self._state_file(cell), {"state": state, **entries})

    def stamp(self, cell: Cell) -> tuple[int, int]:
        """Return a pair that changes with every recorded state of a cell."""
        try:
            status = os.stat(self._state_file(cell))
        except OSError:
            return (0, 0)
        return (status.st_ino, status.st_mtime_ns)

    def _state_file(self, cell: Cell) -> Path:
        return self.out / "states" / f"{cell.name}.json"

    @contextmanager
    def lock(self, folder: str) -> Iterator[bool]:
        """Keep other processes from a job.

        Args:
            folder: Name of its run folder.

        Yields:
            Whether the job is locked; another process may have been first.
        """
        path = self._lock_file(folder)
        # A study may be read-only; locks on network file systems need a file that is open for writing.
        with open(path, "a" if os.access(path if path.exists() else path.parent, os.W_OK) else "r") as file:
            try:
                lock_file(file)
            except BlockingIOError:
                yield False
                return
            yield True

    def _lock_file(self, folder: str) -> Path:
        return self.out / "states" / f"{folder}.lock"

    def is_busy(self, folder: str) -> bool:
        """Return whether a process works on a job."""
        if not self._lock_file(folder).exists():
            return False
        with self.lock(folder) as is_locked:
            return not is_locked

    alike = rename_method("Study.alike", "Study.scores_of_task")
    chosen = rename_method("Study.chosen", "Study.select")
    is_worked_on = rename_method("Study.is_worked_on", "Study.is_busy")
    note = rename_method("Study.note", "Study.record")
    working = rename_method("Study.working", "Study.lock")


def load_study(path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Study:
    """Load a study from a Python file or from its folder.

    Args:
        path: A Python file with a list of cells `runs`, or a study's folder.
        out: Folder of the study; `runs/` and the file's name unless given.

    Returns:
        The study.

    Raises:
        SapcError: There is no such file, it cannot be run, or it has no list `runs` of cells.
    """
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
        cells = runpy.run_path(str(path), run_name="__study__").get("runs")
    except SapcError as error:
        raise SapcError(f"{path}: {error}") from error
    except (Exception, SystemExit) as error:
        # A syntax error names its line itself.
        line = None if isinstance(error, SyntaxError) else line_of(error, path)
        place = f" (line {line})" if line else ""
        raise SapcError(f"{path} cannot be run: {type(error).__name__}: {error}{place}") from error
    if not isinstance(cells, Sequence) or not all(isinstance(cell, Cell) for cell in cells):
        raise SapcError(f"{path} has no list `runs` of cells; make one with sapc.experiments.cells(...)")
    return Study(path.stem, tuple(cells), Path("runs") / path.stem if out is None else Path(out))


def open_study(out: str | os.PathLike[str]) -> Study:
    """Open the study in a folder.

    Args:
        out: The study's folder.

    Returns:
        The study.

    Raises:
        SapcError: The folder holds no study, or it is damaged.
    """
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
