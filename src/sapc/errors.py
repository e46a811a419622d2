"""The one exception that a user's mistake raises: what was wrong, what was expected, what to do; and the checks that raise it."""

from __future__ import annotations

import inspect
import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter
from numbers import Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, SupportsIndex, TypeVar, Union, get_args, get_origin, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])
MAX_MESSAGE = 900  # characters of a sentence
INT_LIMIT = 2**63  # whole numbers stay below it: torch, numpy and file formats count in 64 bits


class SapcError(ValueError):
    """A bad call or bad input. The command line prints its one sentence and exits with code 2."""

    def __init__(self, sentence: object = "") -> None:
        # Values that a message shows may have lines, and any length: the middle is cut out, the advice at the end stays.
        text = " ".join(str(sentence).split("\n"))
        super().__init__(
            text
            if len(text) <= MAX_MESSAGE
            else f"{text[: MAX_MESSAGE // 2]} ... {text[-MAX_MESSAGE // 3 :]}"
        )


class SapcWarning(UserWarning):
    """Something worth knowing that did not stop the work; the message carries the number."""


# -- arguments of a call --


def check_path(value: Any, what: str) -> Path:
    """A path, or an error that names what was given in its place."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise SapcError(f"{what} is given by its path, got {type(value).__name__}")
    if "\0" in os.fspath(value):
        raise SapcError(f"{what} is given by its path, and a path has no NUL character: {value!r:.60}")
    return Path(value)


def check_int(value: SupportsIndex, what: str, least: int) -> int:
    """A whole number of at least `least`, or an error that names it."""
    if (number := _index(value)) is None or number < least:
        raise SapcError(f"the {what} must be a whole number of at least {least}, got {_shown(value)}")
    return number


def is_finite(value: Any) -> bool:
    """Whether a value can be taken for a finite number; text, arrays and 10**400 cannot."""
    try:
        return not isinstance(value, bool) and math.isfinite(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


def check_number(value: Any, what: str) -> float:
    """A finite number, or an error that names it."""
    if not is_finite(value):
        raise SapcError(f"the {what} must be a finite number, got {_shown(value)}")
    return float(value)


def check_type(value: Any, kinds: type | tuple[type, ...], what: str, expected: str) -> None:
    """Refuse a value that is not of some kinds; `expected` says in words what is."""
    if not isinstance(value, kinds):
        raise SapcError(f"{what} must be {expected}, got {_shown(value)}")


def check_choice(value: Any, what: str, among: Iterable[str]) -> str:
    """One of some words, or an error that lists them."""
    known = tuple(among)
    if not isinstance(value, str) or value not in known:
        raise SapcError(f"unknown {what} {_shown(value)}; choose one of {', '.join(known)}")
    return value


# -- memory --


def _available() -> int:
    """Bytes that can be had: what the system reports as available, or the limit of the control group if that is less."""
    system = INT_LIMIT
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        system = 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        with suppress(AttributeError, OSError, ValueError):
            system = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no such limit, or the word "max"
        system = min(system, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return system


def require_memory(size: int, what: str) -> None:
    """Refuse `what` before the work if its `size` in bytes is more than there is."""
    if size > (there := _available()):
        raise SapcError(
            f"not enough memory for {what}: about {size / 2**30:.3g} GiB needed, {there / 2**30:.3g} GiB available; "
            "choose a smaller size or grid"
        )


@contextmanager
def explain_memory_errors(what: str) -> Iterator[None]:
    """Turn a failed allocation inside the block, as numpy and torch report it, into one sentence."""
    try:
        yield
    except SapcError:
        raise
    except (MemoryError, RuntimeError, ValueError) as error:
        signs = ("maximum allowed",) if isinstance(error, ValueError) else ("alloc", "memory")
        text = str(error).lower().replace("illegal memory access", "")  # which is no lack of memory
        if not isinstance(error, MemoryError) and not any(sign in text for sign in signs):
            raise
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise SapcError(f"not enough memory for {what} ({why}); choose a smaller size or grid") from error


# -- values and the types they are declared to have --


def explain_misuse(function: F) -> F:
    """Let a call that fails on an argument of the wrong type say so, in one sentence that names the argument.

    Looked at is only what has failed, so a call that works costs nothing, and whatever works is not forbidden. A failure with arguments
    that are as declared is a mistake of ours, or of a function that the caller gave, and stays as it is. A class is its constructor.
    """
    if isinstance(function, type):
        function.__init__ = explain_misuse(function.__init__)  # type: ignore[misc]
        return function
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (SapcError, Warning):
            raise
        except Exception as error:
            if wrong := _misused(function, signature, args, kwargs):
                raise SapcError(wrong) from error
            raise

    return call  # type: ignore[return-value]


def _misused(function: Any, signature: inspect.Signature, args: Any, kwargs: Any) -> str:
    """Which argument of a call is not as declared, in a sentence; nothing if there is none, or if the call itself is not."""
    from jaxtyping import jaxtyped

    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return ""
    pairs = []
    for name, hint in _hints(function).items():
        kind = signature.parameters[name].kind if name in given else None
        if kind is Parameter.VAR_KEYWORD:
            pairs += [(key, value, hint) for key, value in given[name].items()]
        elif kind is Parameter.VAR_POSITIONAL:
            pairs += [(name, value, hint) for value in given[name]]
        elif kind is not None:
            pairs.append((name, given[name], hint))
    if is_dataclass(owner := given.get("self")) and not function.__name__.startswith("__"):
        pairs += [(name, getattr(owner, name), hint) for name, hint in get_type_hints(type(owner)).items()]
    called = function.__qualname__.removesuffix(".__init__")
    with jaxtyped("context"):  # axes of the same name are as long in all of them
        for name, value, hint in pairs:
            if not has_type(value, hint):
                return f"{name} of {called} must be {_words(hint)}, got {_shown(value)}"
    return ""


def _hints(function: Any) -> dict[str, Any]:
    """Declared types of arguments; those that cannot be found out at run time are left out."""
    found, function = {}, inspect.unwrap(function)
    for name, hint in inspect.get_annotations(function).items():
        with suppress(Exception):
            found[name] = eval(hint, function.__globals__) if isinstance(hint, str) else hint
    return found


def has_type(value: Any, hint: Any) -> bool:
    """Whether a value is of a declared type, as deep as the declaration goes."""
    kind, of = get_origin(hint) or hint, get_args(hint)
    if hint is None or hint is NoneType:
        return value is None
    if kind in (Union, UnionType):
        return any(has_type(value, one) for one in of)
    if kind is Literal:
        return any(value is one or (type(value) is type(one) and value == one) for one in of)
    if _holds(kind, Mapping, of):
        return isinstance(value, Mapping) and all(
            has_type(k, of[0]) and has_type(v, of[1]) for k, v in value.items()
        )
    if kind is tuple and of and of[-1] is not Ellipsis:
        return isinstance(value, tuple) and len(value) == len(of) and all(map(has_type, value, of))
    if _holds(kind, Iterable, of):
        is_list = isinstance(value, kind) and not isinstance(value, str | bytes)
        return is_list and all(has_type(v, of[0]) for v in value)
    if kind in (int, SupportsIndex):
        return (number := _index(value)) is not None and abs(number) < INT_LIMIT
    if kind is float:
        return has_type(value, int) if isinstance(value, int) else isinstance(value, Real)
    if kind is str:
        return isinstance(value, str) and "\0" not in value
    if kind is Callable:
        return callable(value) and not isinstance(value, type)
    if not isinstance(kind, type):
        return True
    if hasattr(value, "is_meta") and (value.is_meta or "strided" not in str(value.layout)):
        return False  # a tensor without numbers, or one that is no array
    with suppress(TypeError):  # of a protocol that cannot be asked
        return isinstance(value, kind)
    return True


def _words(hint: Any, least: int | None = None) -> str:
    """A declared type, in words."""
    kind, of = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        parts = [_words(one, least) for one in of if one is not NoneType]
        return " or ".join(dict.fromkeys((*parts, *(["nothing"] if NoneType in of else []))))
    if kind is Literal:
        return " or ".join(map(repr, of))
    if _holds(kind, Mapping, of):
        is_any = of[1] is Any
        return (
            "a record of settings by name" if is_any else f"a record in which every entry is {_words(of[1])}"
        )
    if _holds(kind, Iterable, of):
        return f"a list in which every entry is {_words(of[0], least)}"
    if hasattr(hint, "dim_str"):
        return f"a tensor of real numbers ({', '.join(hint.dim_str.split())})"
    count = "a whole number below 2^63" if least is None else f"a whole number of at least {least}"
    known = {
        int: count, SupportsIndex: count, str: "a word", bool: "true or false", os.PathLike: "a path", Callable: "a function",
        float: "a number" if least is None else "a positive number",
    }  # fmt: skip
    return known.get(kind, f"a {getattr(kind, '__name__', kind)}")


def _holds(kind: Any, container: type, of: tuple[Any, ...]) -> bool:
    """Whether a type is a container that declares what it holds."""
    return bool(of) and isinstance(kind, type) and issubclass(kind, container)


def check_record(record: Any, **least: int) -> None:
    """Hold a dataclass to the types of its fields, as files and callers may have filled it with anything.

    Whole numbers are at least 1, unless `least` says otherwise; other numbers are positive and finite; a tuple has an entry, unless
    `least` is 0.
    """
    for name, hint in get_type_hints(type(record)).items():
        value, low = getattr(record, name), least.get(name, 1)
        if isinstance(value, int) and value >= INT_LIMIT:
            raise SapcError(f"{name} must be below 2^63, got {_shown(value)}")
        entries = value if isinstance(value, tuple) else (value,)
        is_empty = not entries and low > 0
        if is_empty or not has_type(value, hint) or not all(_is_plain(entry, low) for entry in entries):
            raise SapcError(f"{name} must be {_words(hint, low)}, got {_shown(value)}")


def _is_plain(value: Any, least: int) -> bool:
    """Whether a file can hold a value, and it is large enough if it is a number."""
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return least <= value < INT_LIMIT
    if isinstance(value, float):
        return 0 < value < math.inf
    # Arrays and tensors of one number count as numbers in a call, but a file cannot hold them.
    return not hasattr(value, "dtype")


def _index(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # torch refuses tensors of several numbers, or without any
        return None


def _shown(value: Any) -> str:
    """A value as a message shows it: short, on one line, and without failing."""
    if hasattr(value, "dtype") and hasattr(value, "shape") and not isinstance(value, type):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a class that is not ours, or a number of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
