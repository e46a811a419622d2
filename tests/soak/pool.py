"""Cases in processes of their own, a few at a time, bounded in time and memory.

Every process is forked from this one, which has imported everything and done nothing, so a case costs
milliseconds more than its work and knows nothing of the cases before it.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

from .case import Case

FORK = multiprocessing.get_context("fork")
# More than a case may take beyond what the package itself takes.
MEGABYTES = 500
# Limits of kinds, and of all others.
SECONDS = {"signals": 240, "commands": 120}
MAX_SECONDS = 30
# Between two looks at time and memory.
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Verdict:
    """What became of a case: `why` it is bad, or nothing, and `what` it did."""

    case: Case
    reason: str
    seconds: float
    activity: str = ""


@dataclass
class _Child:
    """A case at work."""

    case: Case
    folder: Path
    examples: Path
    began: float = field(default_factory=time.monotonic)

    def start(self) -> _Child:
        self.folder.mkdir()
        (self.folder / "work").mkdir()
        self.answer, answer = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=_work, args=(self.case, self.folder, self.examples, answer))
        self.process.start()
        answer.close()
        self.memory = _resident(self.process.pid)
        return self

    def verdict(self) -> Verdict | None:
        """How it ended, or None while it may go on."""
        seconds, limit = time.monotonic() - self.began, SECONDS.get(self.case.kind, MAX_SECONDS)
        if not self.process.is_alive():
            reason = self._reason()
        elif seconds > limit:
            reason = f"still running after {limit} seconds"
        elif _resident(self.process.pid) - self.memory > MEGABYTES * 2**20:
            reason = f"took more than {MEGABYTES} MB"
        else:
            return None
        return Verdict(self.case, reason, seconds, self._output().partition("\n")[0])

    def _reason(self) -> str:
        with suppress(EOFError):
            reason, megabytes = self.answer.recv()
            if reason:
                return str(reason)
            if "Traceback (most" in self._output():
                return "a traceback was shown: " + self._output().strip().splitlines()[-1]
            return f"took {megabytes:.0f} MB" if megabytes > MEGABYTES else ""
        code = self.process.exitcode or 0
        return "the process died: " + (signal.Signals(-code).name if code < 0 else f"exit code {code}")

    def _output(self) -> str:
        """All that its process has said; the first line tells what the case does."""
        try:
            return (self.folder / "output").read_text(errors="replace")
        except OSError:
            return ""

    def end(self) -> None:
        """Stop it, with all that it has started, and clean up."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.answer.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _work(case: Case, folder: Path, examples: Path, answer: Any) -> None:
    """What a process does: one case, with all that it says in a file."""
    os.setsid()
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.stdout, sys.stderr = (open(stream, "w", buffering=1, closefd=False) for stream in (1, 2))  # noqa: SIM115
    # What a case leaves there is removed with it.
    tempfile.tempdir = str(folder)
    warnings.simplefilter("ignore")
    before = _resident(os.getpid())
    reason = case.check(folder / "work", examples)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    answer.send((reason, (peak - before) / 2**20))
    answer.close()
    sys.stdout.flush()
    os._exit(0)


def _resident(pid: int | None) -> int:
    """Bytes of memory that a process has."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def verdicts(
    cases: Iterator[Case], workers: int, place: Path, examples: Path, until: float
) -> Iterator[Verdict]:
    """Run cases, `workers` at a time, until there are no more or it is late; each tells how it ended."""
    children: list[_Child] = []
    try:
        while True:
            while len(children) < workers and time.monotonic() < until:
                if (case := next(cases, None)) is None:
                    break
                children.append(_Child(case, place / str(case).replace(":", "-"), examples).start())
            if not children:
                return
            connection.wait([child.process.sentinel for child in children], POLL_SECONDS)
            for child in list(children):
                if (verdict := child.verdict()) is not None:
                    child.end()
                    children.remove(child)
                    yield verdict
    finally:
        for child in children:
            child.end()
