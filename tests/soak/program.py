"""The command line, called in this process."""

from __future__ import annotations

import hashlib
import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from sapc import cli

from .case import BadCase

# In characters.
LONGEST_SENTENCE = 1000


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it said."""

    line: tuple[str, ...]
    code: int
    out: str
    err: str

    def judge(self) -> Outcome:
        """Refuse an end that is no way to end: a traceback, or a mistake that is not told in one sentence."""
        sentences = [
            line for line in self.err.splitlines() if line and not line.startswith("sapc: warning: ")
        ]
        if "Traceback (most" in self.out + self.err:
            raise BadCase(f"traceback of {self}: {self.err.strip().splitlines()[-1]}")
        if self.code not in (0, 1, 2):
            raise BadCase(f"exit code {self.code} of {self}")
        if self.code == 2 and (len(sentences) != 1 or not sentences[0].startswith("sapc: ")):
            raise BadCase(f"exit code 2 and {len(sentences)} sentences of {self}: {sentences}")
        if self.code == 2 and len(sentences[0]) > LONGEST_SENTENCE + sum(map(len, self.line)):
            raise BadCase(f"a sentence of {len(sentences[0])} characters from {self}")
        return self

    def __str__(self) -> str:
        return "sapc " + " ".join(word if len(word) < 60 else word[:20] + "..." for word in self.line)


def call(*line: object) -> Outcome:
    """Run a command; an exception that it lets through comes through here, too."""
    out, err = io.StringIO(), io.StringIO()
    words = tuple(map(str, line))
    with redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main(list(words))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Outcome(words, code, out.getvalue(), err.getvalue())


def contents(folder: Path) -> dict[str, str]:
    """Every file of a folder with a digest of its content, and every folder."""
    digest = lambda path: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    paths = [path for path in sorted(folder.rglob("*")) if path.name != ".lock"]
    return {str(path.relative_to(folder)): digest(path) for path in paths}


def leftovers(folder: Path) -> list[str]:
    """Files that a process began and did not finish."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.partial"))
