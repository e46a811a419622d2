"""The one exception that a user's mistake raises: what was wrong, what was expected, what to do; and the checks that raise it."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, SupportsIndex, get_args, get_origin, get_type_hints

BEYOND = 2**63  # whole numbers stay below it: torch, numpy and file formats count in 64 bits


class SapcError(ValueError):
    """A bad call or bad input. The command line prints its one sentence and exits with code 2."""


class SapcWarning(UserWarning):
    """Something worth knowing that did not stop the work; the message carries the number."""


# -- arguments of a call --


def path_of(value: Any, what: str) -> Path:
    """A path, or an error that names what was given in its place."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise SapcError(f"{what} is given by its path, got {type(value).__name__}")
    if "\0" in os.fspath(value):
        raise SapcError(f"{what} is given by its path, and a path has no NUL character: {value!r:.60}")
    return Path(value)


def whole(value: SupportsIndex, what: str, least: int) -> int:
    """A whole number of at least `least`, or an error that names it."""
    if (number := _index(value)) is None or number < least:
        raise SapcError(f"the {what} must be a whole number of at least {least}, got {_shown(value)}")
    return number


def whole_numbers(values: Any, what: str, least: int) -> tuple[int, ...]:
    """Whole numbers of at least `least`, in a sequence, or an error that names them."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise SapcError(f"the {what} must be whole numbers in a sequence, as (64, 50), got {_shown(values)}")
    return tuple(whole(value, what, least) for value in values)


def real(value: Any, what: str) -> float:
    """A finite number, or an error that names it."""
    try:
        number = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        raise SapcError(f"the {what} must be a finite number, got {_shown(value)}")
    return number


def check_kind(value: Any, kinds: type | tuple[type, ...], what: str, expected: str) -> None:
    """Refuse a value that is not of some kinds; `expected` says in words what is."""
    if not isinstance(value, kinds):
        raise SapcError(f"{what} must be {expected}, got {_shown(value)}")


def choice(value: Any, what: str, among: Iterable[str]) -> str:
    """One of some words, or an error that lists them."""
    known = tuple(among)
    if not isinstance(value, str) or value not in known:
        raise SapcError(f"unknown {what} {_shown(value)}; choose one of {', '.join(known)}")
    return value


# -- records --


def check_record(record: Any, **least: int) -> None:
    """Hold a dataclass to the types of its fields, as files and callers may have filled it with anything.

    Whole numbers are at least 1, unless `least` says otherwise; other numbers are positive and finite; a tuple has an entry, unless
    `least` is 0.
    """
    for name, kind in get_type_hints(type(record)).items():
        value, low = getattr(record, name), least.get(name, 1)
        if not _fits(value, kind, low):
            raise SapcError(f"{name} must be {_words(kind, low)}, got {_shown(value)}")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and number >= BEYOND:
                raise SapcError(f"{name} must be below 2^63, got {_shown(value)}")


def _fits(value: Any, kind: Any, least: int) -> bool:
    of = get_args(kind)
    if get_origin(kind) is tuple:
        is_long_enough = isinstance(value, tuple) and len(value) >= min(1, least)
        return is_long_enough and all(_fits(v, of[0], least) for v in value)
    if NoneType in of:
        return value is None or _fits(value, of[0], least)
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind is int:
        return isinstance(value, int) and value >= least
    if kind is float:
        return isinstance(value, int | float) and 0 < value < math.inf
    if get_origin(kind) is not None:  # a record with entries by name
        return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
    return isinstance(value, kind)


def _words(kind: Any, least: int) -> str:
    of, origin = get_args(kind), get_origin(kind)
    if origin is tuple:
        return f"a list in which every entry is {_words(of[0], least)}"
    if NoneType in of:
        return f"{_words(of[0], least)}, or nothing"
    if origin is not None:
        return "a record of settings by name"
    names = {
        int: f"a whole number of at least {least}",
        float: "a positive number",
        str: "a word",
        bool: "true or false",
    }
    return names.get(kind, f"a {kind.__name__}")


def _index(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # torch refuses tensors of several numbers, or without any
        return None


def _shown(value: Any) -> str:
    """A value as a message shows it: short, on one line, and without failing."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a class that is not ours, or a number of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
