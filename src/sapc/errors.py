"""The one exception that a user's mistake raises: what was wrong, what was expected, what to do."""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import Any, SupportsIndex


class SapcError(ValueError):
    """A bad call or bad input. The command line prints its one sentence and exits with code 2."""


class SapcWarning(UserWarning):
    """Something worth knowing that did not stop the work; the message carries the number."""


def path_of(value: Any, what: str) -> Path:
    """A path, or an error that names what was given in its place."""
    if not isinstance(value, str | os.PathLike):
        raise SapcError(f"{what} is given by its path, got {type(value).__name__}")
    return Path(value)


def whole(value: SupportsIndex, what: str, least: int) -> int:
    """A whole number of at least `least`, or an error that names it."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise SapcError(f"the {what} must be a whole number of at least {least}, got {value!r}")
    return number
