"""The exception that a user's mistake raises, and the checks that raise it.

Its one sentence says what was wrong, what was expected, and what to do.
"""

from __future__ import annotations

import inspect
import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter
from numbers import Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, SupportsIndex, TypeVar, Union, get_args, get_origin, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])
MAX_MESSAGE = 900
"""Characters of a sentence."""
INT_LIMIT = 2**63
"""Whole numbers stay below it: torch, numpy and file formats count in 64 bits."""


class SapcError(ValueError):
    """A bad call or bad input; the command line prints its one sentence and exits with code 2.

    Args:
        sentence: What was wrong, what was expected, and what to do.
    """

    def __init__(self, sentence: object = "") -> None:
        # Values that a message shows may have lines, and any length: the middle is cut out, the advice at the
        # end stays.
        text = " ".join(str(sentence).split("\n"))
        super().__init__(
            text
            if len(text) <= MAX_MESSAGE
            else f"{text[: MAX_MESSAGE // 2]} ... {text[-MAX_MESSAGE // 3 :]}"
        )


class SapcWarning(UserWarning):
    """Something worth knowing that did not stop the work."""


# -- arguments of a call --


def check_path(value: Any, label: str) -> Path:
    """Return a path.

    Args:
        value: What was given.
        label: What it is the path of, as a message calls it.

    Returns:
        The path.

    Raises:
        SapcError: It is not a path.
    """
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise SapcError(f"{label} is given by its path, got {type(value).__name__}")
    if "\0" in os.fspath(value):
        raise SapcError(f"{label} is given by its path, and a path has no NUL character: {value!r:.60}")
    return Path(value)


def check_int(value: SupportsIndex, label: str, minimum: int) -> int:
    """Return a whole number.

    Args:
        value: What was given, also a number of numpy or torch.
        label: What it is, as a message calls it.
        minimum: The smallest number allowed.

    Returns:
        The number.

    Raises:
        SapcError: It is no whole number, or too small.
    """
    if (number := _index(value)) is None or number < minimum:
        raise SapcError(f"the {label} must be a whole number of at least {minimum}, got {_format(value)}")
    return number


def is_finite(value: Any) -> bool:
    """Tell whether a value can be taken for a finite number; text, arrays and 10**400 cannot.

    Args:
        value: What was given.

    Returns:
        Whether it can.
    """
    try:
        return not isinstance(value, bool) and math.isfinite(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


def check_number(value: Any, label: str) -> float:
    """Return a finite number.

    Args:
        value: What was given.
        label: What it is, as a message calls it.

    Returns:
        The number.

    Raises:
        SapcError: It is not a finite number.
    """
    if not is_finite(value):
        raise SapcError(f"the {label} must be a finite number, got {_format(value)}")
    return float(value)


def check_type(value: Any, kinds: type | tuple[type, ...], label: str, description: str) -> None:
    """Refuse a value of another type.

    Args:
        value: What was given.
        kinds: Types that are allowed.
        label: What it is, as a message calls it.
        description: What it must be, in words.

    Raises:
        SapcError: It is of another type.
    """
    if not isinstance(value, kinds):
        raise SapcError(f"{label} must be {description}, got {_format(value)}")


def check_choice(value: Any, label: str, choices: Iterable[str]) -> str:
    """Return one of some words.

    Args:
        value: What was given.
        label: What it is, as a message calls it.
        choices: Words that are allowed.

    Returns:
        The word.

    Raises:
        SapcError: It is none of them.
    """
    words = tuple(choices)
    if not isinstance(value, str) or value not in words:
        raise SapcError(f"unknown {label} {_format(value)}; choose one of {', '.join(words)}")
    return value


def tensor_advice(value: Any) -> str:
    """Say how to make a tensor of fields of another value.

    Args:
        value: What was given in place of the tensor.

    Returns:
        The advice, as the end of a message.
    """
    # A tensor, which is of the wrong dtype.
    if hasattr(value, "requires_grad"):
        return "give real numbers, as of torch.float32"
    for name in ("fields", "values"):
        array = getattr(value, name, None)
        if hasattr(array, "dtype"):
            return f"{'give' if hasattr(array, 'requires_grad') else 'use torch.as_tensor on'} its .{name}"
    return "use torch.as_tensor to make it a tensor" if hasattr(value, "__array__") else "give a tensor"


def order_advice(shape: Sequence[int], expected: Sequence[int]) -> str:
    """Say that axes are in another order, if that is all that is wrong.

    Args:
        shape: Sizes that were given.
        expected: Sizes that are needed.

    Returns:
        The advice, as the end of a message, or an empty string.
    """
    is_permuted = tuple(shape) != tuple(expected) and sorted(shape) == sorted(expected)
    return ": the axes are in another order; time, where there is one, is the last" if is_permuted else ""


# -- memory --


def _available_memory() -> int:
    """Return the free memory in bytes: what the system reports, or the limit of the control group if less."""
    system = INT_LIMIT
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        system = 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        with suppress(AttributeError, OSError, ValueError):
            system = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # Where there is no limit the file is missing or holds the word "max".
    with suppress(OSError, ValueError):
        system = min(system, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return system


def require_memory(size: int, label: str) -> None:
    """Refuse work that needs more memory than there is.

    Args:
        size: Bytes that it needs.
        label: What it is, as a message calls it.

    Raises:
        SapcError: There is less memory.
    """
    if size > (available := _available_memory()):
        raise SapcError(
            f"not enough memory for {label}: about {size / 2**30:.3g} GiB needed, "
            f"{available / 2**30:.3g} GiB available; choose a smaller size or grid"
        )


@contextmanager
def explain_memory_errors(label: str) -> Iterator[None]:
    """Turn a failed allocation inside the block, as numpy and torch report it, into one sentence.

    Args:
        label: What needs the memory, as a message calls it.

    Raises:
        SapcError: The memory was not enough.
        MemoryError: Another failure, as it was.
        RuntimeError: Another failure, as it was.
        ValueError: Another failure, as it was.
    """
    try:
        yield
    except SapcError:
        raise
    except (MemoryError, RuntimeError, ValueError) as error:
        signs = ("maximum allowed",) if isinstance(error, ValueError) else ("alloc", "memory")
        # An illegal memory access is no lack of memory.
        text = str(error).lower().replace("illegal memory access", "")
        if not isinstance(error, MemoryError) and not any(sign in text for sign in signs):
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise SapcError(f"not enough memory for {label} ({reason}); choose a smaller size or grid") from error


# -- values and the types they are declared to have --


def explain_misuse(function: F) -> F:
    """Let a call that fails on an argument of the wrong type say so, in one sentence that names the argument.

    Only a call that has failed is looked at, so one that works costs nothing, and whatever works is not
    forbidden. A failure with arguments that are as declared is a mistake of ours, or of a function that the
    caller gave, and stays as it is.

    Args:
        function: A function or method; a class stands for its constructor.

    Returns:
        The function, or the class, whose calls raise `SapcError` then.
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
            if wrong := _find_misuse(function, signature, args, kwargs):
                raise SapcError(wrong) from error
            raise

    return call  # type: ignore[return-value]


def _find_misuse(function: Any, signature: inspect.Signature, args: Any, kwargs: Any) -> str:
    """Return a sentence on the argument that is not as declared, or an empty string."""
    from jaxtyping import jaxtyped

    try:
        arguments = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return ""
    pairs = []
    for name, hint in _hints(function).items():
        kind = signature.parameters[name].kind if name in arguments else None
        if kind is Parameter.VAR_KEYWORD:
            pairs += [(key, value, hint) for key, value in arguments[name].items()]
        elif kind is Parameter.VAR_POSITIONAL:
            pairs += [(name, value, hint) for value in arguments[name]]
        elif kind is not None:
            pairs.append((name, arguments[name], hint))
    if is_dataclass(owner := arguments.get("self")) and not function.__name__.startswith("__"):
        pairs += [(name, getattr(owner, name), hint) for name, hint in get_type_hints(type(owner)).items()]
    qualified_name = function.__qualname__.removesuffix(".__init__")
    # In one context axes of the same name are equally long in all arguments.
    with jaxtyped("context"):
        for name, value, hint in pairs:
            if not has_type(value, hint):
                wrong = f"{name} of {qualified_name} must be {_words(hint)}, got {_format(value)}"
                return wrong + _describe_others(name, value, hint, pairs)
    return ""


def _describe_others(name: str, value: Any, hint: Any, pairs: list[tuple[str, Any, Any]]) -> str:
    """Return the shapes beside which a tensor is wrong that would be right by itself, or an empty string."""
    from jaxtyping import jaxtyped

    with jaxtyped("context"):
        if not hasattr(hint, "dim_str") or not has_type(value, hint):
            return ""
    tensors = ((other, x) for other, x, h in pairs if other != name and hasattr(h, "dim_str"))
    others = [f"{other} of shape {tuple(x.shape)}" for other, x in tensors if hasattr(x, "shape")]
    return f", beside {' and '.join(others)}" if others else ""


def _hints(function: Any) -> dict[str, Any]:
    """Return the declared types of arguments, without those that cannot be evaluated at run time."""
    hints, function = {}, inspect.unwrap(function)
    for name, hint in inspect.get_annotations(function).items():
        with suppress(Exception):
            hints[name] = eval(hint, function.__globals__) if isinstance(hint, str) else hint
    return hints


def has_type(value: Any, hint: Any) -> bool:
    """Tell whether a value is of a declared type, as deep as the declaration goes.

    Args:
        value: Any value.
        hint: A type as in an annotation.

    Returns:
        Whether it is.
    """
    kind, args = get_origin(hint) or hint, get_args(hint)
    if hint is None or hint is NoneType:
        return value is None
    if kind in (Union, UnionType):
        return any(has_type(value, member) for member in args)
    if kind is Literal:
        return any(value is word or (type(value) is type(word) and value == word) for word in args)
    if _holds(kind, Mapping, args):
        return isinstance(value, Mapping) and all(
            has_type(k, args[0]) and has_type(v, args[1]) for k, v in value.items()
        )
    if kind is tuple and args and args[-1] is not Ellipsis:
        return isinstance(value, tuple) and len(value) == len(args) and all(map(has_type, value, args))
    if _holds(kind, Iterable, args):
        is_list = isinstance(value, kind) and not isinstance(value, str | bytes)
        return is_list and all(has_type(v, args[0]) for v in value)
    if kind in (int, SupportsIndex):
        return (number := _index(value)) is not None and abs(number) < INT_LIMIT
    if kind is float:
        return has_type(value, int) if isinstance(value, int) else isinstance(value, Real)
    if kind is str:
        return isinstance(value, str) and "\0" not in value
    if kind is Callable:
        # A class is a function of the arguments of its constructor: it serves where none are passed.
        return callable(value) and (not isinstance(value, type) or args[:1] == ([],))
    if not isinstance(kind, type):
        return True
    if hasattr(value, "is_meta") and (value.is_meta or "strided" not in str(value.layout)):
        # A tensor without numbers, or one that is no array.
        return False
    # A protocol may not allow the question.
    with suppress(TypeError):
        return isinstance(value, kind)
    return True


def _words(hint: Any, minimum: int | None = None) -> str:
    """Return a declared type in words."""
    kind, args = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        parts = [_words(member, minimum) for member in args if member is not NoneType]
        return " or ".join(dict.fromkeys((*parts, *(["nothing"] if NoneType in args else []))))
    if kind is Literal:
        return " or ".join(map(repr, args))
    if _holds(kind, Mapping, args):
        is_any = args[1] is Any
        return (
            "a record of settings by name"
            if is_any
            else f"a record in which every entry is {_words(args[1])}"
        )
    if _holds(kind, Iterable, args):
        return f"a list in which every entry is {_words(args[0], minimum)}"
    if hasattr(hint, "dim_str"):
        return f"a tensor of real numbers ({', '.join(hint.dim_str.split())})"
    count = "a whole number below 2^63" if minimum is None else f"a whole number of at least {minimum}"
    words = {
        int: count, SupportsIndex: count, str: "a word", bool: "true or false", os.PathLike: "a path",
        Callable: "a function", float: "a number" if minimum is None else "a positive number",
    }  # fmt: skip
    name = str(getattr(kind, "__name__", kind))
    return words.get(kind, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")


def _holds(kind: Any, container: type, args: tuple[Any, ...]) -> bool:
    """Tell whether a type is a container that declares what it holds."""
    return bool(args) and isinstance(kind, type) and issubclass(kind, container)


def check_record(record: Any, **minimum: int) -> None:
    """Hold a dataclass to the types of its fields, as files and callers may have filled it with anything.

    Whole numbers are at least 1 unless stated otherwise, other numbers are positive and finite, a tuple has
    an entry unless its minimum is 0.

    Args:
        record: The dataclass.
        minimum: Smallest values of fields, by name.

    Raises:
        SapcError: A field is not as declared.
    """
    for name, hint in get_type_hints(type(record)).items():
        value, low = getattr(record, name), minimum.get(name, 1)
        if isinstance(value, int) and value >= INT_LIMIT:
            raise SapcError(f"{name} must be below 2^63, got {_format(value)}")
        entries = value if isinstance(value, tuple) else (value,)
        is_empty = not entries and low > 0
        if is_empty or not has_type(value, hint) or not all(_is_plain(entry, low) for entry in entries):
            raise SapcError(f"{name} must be {_words(hint, low)}, got {_format(value)}")


def _is_plain(value: Any, minimum: int) -> bool:
    """Tell whether a file can hold a value, and it is large enough if it is a number."""
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return minimum <= value < INT_LIMIT
    if isinstance(value, float):
        return 0 < value < math.inf
    # Arrays and tensors of one number count as numbers in a call, but a file cannot hold them.
    return not hasattr(value, "dtype")


def _index(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        # Torch refuses tensors of several numbers, or without any.
        return None


def _format(value: Any) -> str:
    """Return a value as a message shows it: short, on one line, and without failing."""
    if hasattr(value, "dtype") and hasattr(value, "shape") and not isinstance(value, type):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    try:
        text = " ".join(repr(value).split())
    except Exception:
        # A class that is not ours, or a number of thousands of digits.
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
