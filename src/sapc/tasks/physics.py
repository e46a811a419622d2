"""The physics of users: a Python file with a function from a grid to constraints, or that function itself.

    import sapc

    def physics(grid):
        mass = sapc.Balance(grid.integral("h"), grid=grid)
        return sapc.Pin.frame(0, grid=grid, channel="h") & mass

A file is run when its path is given by the caller, never because a run folder names it.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._files import first_line, line_of
from .._plugins import run_file
from ..constraints.terms import ConstraintTerm, Pin
from ..errors import SapcError
from ..grid import Grid

FUNCTION = "physics"
Make = Callable[[Grid], ConstraintTerm]
EXAMPLE = "def physics(grid): return sapc.Pin.frame(0) & sapc.Balance(grid.integral(), grid=grid)"


@dataclass(frozen=True)
class Physics:
    """What makes constraints, and how to tell it from another: the name of its file and a digest of its text.

    text    of its file, if it has one: what a run folder keeps, to be read
    """

    make: Make
    file: str = ""
    sha256: str = ""
    text: str = field(default="", repr=False)

    def on(self, grid: Grid) -> ConstraintTerm:
        """Make the constraints of a grid; an error in a user's function is reported with its line."""
        try:
            constraints = self.make(grid)
        except (Exception, SystemExit) as error:
            raise SapcError(
                f"the physics{self.origin} failed: {explain_failure(error, self.file)}"
            ) from error
        if not isinstance(constraints, ConstraintTerm):
            raise SapcError(
                f"the physics{self.origin} returned {type(constraints).__name__}; it has to return "
                f"constraints, as in: {EXAMPLE}"
            )
        return constraints

    @property
    def origin(self) -> str:
        """Its file, for messages."""
        return f" of {self.file}" if self.file else ""

    @property
    def label(self) -> str:
        """Its file or its function, for messages."""
        name = str(getattr(self.make, "__name__", "<"))
        return self.file or ("a function" if name.startswith("<") else f"the function {name}")

    def to_dict(self) -> dict[str, str]:
        """As JSON can hold it."""
        return {"file": Path(self.file).name, "sha256": self.sha256}


def load_physics(physics: Any) -> Physics:
    """Physics from a Python file, a function of the grid, or constraints that fit any grid."""
    if isinstance(physics, Physics):
        return physics
    if isinstance(physics, ConstraintTerm):
        return Physics(lambda grid: physics)
    if isinstance(physics, str | os.PathLike):
        return _from_file(Path(physics))
    if callable(physics):
        return Physics(physics, sha256=_digest_of(physics))
    raise SapcError(
        f"physics is a file, a function of the grid, or constraints, got {type(physics).__name__}"
    )


def _from_file(path: Path) -> Physics:
    if not path.is_file():
        raise SapcError(f"there is no file {path}; --physics takes a Python file, with: {EXAMPLE}")
    try:
        text = path.read_text(encoding="utf-8")
        module = run_file(path, text.encode())
    except (Exception, SystemExit) as error:
        raise SapcError(f"{path} cannot be run as Python: {explain_failure(error, str(path))}") from error
    make = getattr(module, FUNCTION, None)
    if isinstance(make, ConstraintTerm):
        constraints = make
        make = lambda grid: constraints
    if not callable(make):
        names = ", ".join(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))
        raise SapcError(
            f"{path} defines no function `{FUNCTION}` (it has: {names or 'nothing'}); write one, as: "
            f"{EXAMPLE}"
        )
    return Physics(make, str(path), digest_of(text), text)


def explain_failure(error: BaseException, file: str) -> str:
    """Say what went wrong, and in which line of the file."""
    if isinstance(error, SyntaxError):
        place = f" in line {error.lineno}" if error.lineno else ""
        return f"{type(error).__name__}{place}: {error.msg}"
    text = first_line(error) if str(error).strip() else "no message"
    message = str(error) if isinstance(error, SapcError) else f"{type(error).__name__}: {text}"
    line = line_of(error, file)
    return f"{message} (line {line})" if line else message


def digest_of(text: str) -> str:
    """Return the SHA-256 by which a run recognizes its physics."""
    return hashlib.sha256(text.encode()).hexdigest()


def _digest_of(function: Make) -> str:
    try:
        return digest_of(inspect.getsource(function))
    except (OSError, TypeError):
        return ""


def pins_of(constraint: ConstraintTerm) -> list[Pin]:
    """List the pins among stacked constraints."""
    return [part for part in constraint.parts if isinstance(part, Pin)]
