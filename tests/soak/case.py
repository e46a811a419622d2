"""A case: a kind and a seed, which decide all of it; and how one is run."""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import ModuleType

# How often each kind comes up, in a hundred cases: the expensive ones are rare.
SHARES = {"files": 43, "projections": 30, "commands": 16, "misuse": 8, "signals": 3}
SEEDS_PER_RUN = 10**6


class BadCase(Exception):
    """What went wrong in a case, on one line."""


@dataclass(frozen=True)
class Case:
    """One case, which `str` writes as the command line takes it: `files:1234`."""

    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.seed}"

    @classmethod
    def parse(cls, text: str) -> Case:
        """Read `files:1234`."""
        kind, _, seed = text.partition(":")
        if kind not in SHARES or not seed.isdigit():
            raise SystemExit(f"a case is KIND:SEED with a kind of {', '.join(SHARES)}, got {text!r}")
        return cls(kind, int(seed))

    def check(self, folder: Path, examples: Path) -> str:
        """Run it in an empty folder; what went wrong on one line, or nothing."""
        os.chdir(folder)
        try:
            module, rng = import_module(f"soak.{self.kind}"), random.Random(str(self))
            if hasattr(module, "check"):
                module.check(rng, self.seed, examples)
            else:
                _check_call(module, rng)
        except BadCase as bad:
            return _one_line(str(bad))
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            traceback.print_exc()
            return _one_line(f"{type(error).__name__}: {error}{_place(error)}")
        return ""


def _check_call(module: ModuleType, rng: random.Random) -> None:
    """One of the calls that a module lists, each with its name."""
    name, call = rng.choice(list(module.cases()))
    print(name, flush=True)
    if (reason := module.problem(call)) is not None:
        raise BadCase(f"{name}: {reason}")


def available_kinds() -> list[str]:
    """The kinds that have a module."""
    return [kind for kind in SHARES if find_spec(f"soak.{kind}")]


def cases(kinds: list[str], seed: int) -> Iterator[Case]:
    """Cases without end; the same for the same seed."""
    for number in count(seed * SEEDS_PER_RUN):
        (kind,) = random.Random(number).choices(kinds, [SHARES[kind] for kind in kinds])
        yield Case(kind, number)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def _place(error: BaseException) -> str:
    """The innermost line of the package that an error came through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f"{os.sep}sapc{os.sep}" in f.filename]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
