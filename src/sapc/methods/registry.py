"""Which methods there are: the published ones, those that extend the paper, and a user's own.

A user's method is a `Method` like any other. It is made known in one of three ways:

    load_plugin("my_method.py")  a file that defines it; files in the environment variable SAPC_PLUGINS are
                                 loaded as if by this
    register_method(method)      an object, in this process
    an entry point               group `sapc.methods`, of an installed package; it names a `Method`

`load_plugin` adds its file to SAPC_PLUGINS, so processes that are started later (workers of a study, one
process per device) know the method too. What SAPC_PLUGINS and entry points name is loaded when it may matter:
when a name is not known, or when all names are asked for. A plug-in that cannot be loaded then is a warning,
so that a broken one harms nobody who does not want it; `load_plugin` itself raises.

A method is one's own if its name is not one of this package. Where it came from is kept: the same source may give its
name a new method, so that a file or a notebook's cell can be changed and run again, but no other may.

A file may bring a task instead: it says `TASK = sapc.register_task(...)` or `TASK =
sapc.Task.from_data(...)`, and tasks that are not known are looked for here, too.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, get_args

from .._files import first_line, line_of
from .._old_names import rename_arguments
from .._plugins import run_file
from ..errors import SapcError, SapcWarning, check_int, check_path, explain_misuse
from .ablations import S1, S2, S3
from .base import Exactness, Method
from .cafm import CAFM
from .cond_ffm import COND_FFM
from .cond_sapc import COND_SAPC
from .dflow import DFLOW
from .eci import ECI, ECI_STOKES_BC, ECI_STOKES_IC
from .ffm import FFM
from .pbfm import PBFM
from .pcfm import PCFM, PCFM_PINS_FIRST, PCFM_RELAXED
from .references import Reference
from .sapc import SAPC

PUBLISHED_METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        SAPC, S1, S2, S3, FFM, COND_FFM, ECI, ECI_STOKES_IC, ECI_STOKES_BC,
        PCFM, PCFM_PINS_FIRST, PCFM_RELAXED, CAFM, PBFM, DFLOW,
    )
}  # fmt: skip
EXTENSIONS: Mapping[str, Method] = {COND_SAPC.name: COND_SAPC}
"""Methods of this package that go beyond the paper; they stand apart from the published ones."""
EXTENSION_LABELS = {COND_SAPC.name: "condSAPC"}
"""Their names in reports, as the paper has them of its own."""
METHODS: dict[str, Method] = {**PUBLISHED_METHODS, **EXTENSIONS}
"""All that are known so far, the published ones first; see `get_method` for those that are only installed."""

SOURCES: dict[str, str] = {}
"""Where every method of one's own came from: a file, a package, or a module without a file."""

# What makes the `TASK` of a file known.
task_hooks: list[Callable[[Any], Any]] = []

VARIABLE = "SAPC_PLUGINS"
ENTRY_POINT_GROUP = "sapc.methods"
# A name is part of file names.
NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,39}")
# The first is a line of tables, the second an ending of files of scores.
RESERVED_NAMES = frozenset(("floor", "part"))
MAX_TITLE_LENGTH = 80
INTERNAL_PACKAGES = ("sapc", "jaxtyping", "beartype")

# Files that were loaded or tried, with the SHA-256 of their text; and the group of entry points.
_digests: dict[str, str] = {}
_guard = threading.RLock()


# -- asking for methods --


@rename_arguments(own="user_defined")
@explain_misuse
def method_names(variants: bool = False, user_defined: bool = True, extensions: bool = True) -> list[str]:
    """List the names of all methods.

    Args:
        variants: Also name methods that are presets of another one.
        user_defined: Also name methods of users.
        extensions: Also name methods of this package that go beyond the paper.

    Returns:
        The names, published methods first.
    """
    if user_defined:
        load_all_plugins()
    return [
        n
        for n, m in METHODS.items()
        if (variants or not m.variant_of)
        and (user_defined or not is_user_defined(n))
        and (extensions or not is_extension(n))
    ]


def find_method(name: str) -> Method | None:
    """Return the method of that name, or None if there is none."""
    if name not in METHODS:
        load_all_plugins()
    return METHODS.get(name)


@explain_misuse
def get_method(name: str) -> Method:
    """Find a method by its name.

    Args:
        name: Name of a published method or of a user's.

    Returns:
        The method.

    Raises:
        SapcError: There is no method of that name.
    """
    method = find_method(name)
    if method is None:
        raise SapcError(
            f"unknown method {name!r:.60}; choose one of {', '.join(METHODS)}, or name the file that "
            "defines it: "
            "sapc --plugin FILE, in Python sapc.load_plugin(FILE)"
        )
    return method


def is_user_defined(name: str) -> bool:
    """Whether a method is a user's."""
    return name not in PUBLISHED_METHODS and name not in EXTENSIONS


def is_extension(name: str) -> bool:
    """Whether a method of this package goes beyond the paper."""
    return name in EXTENSIONS


def describe_method_file(name: str) -> dict[str, str]:
    """Return name and SHA-256 of the file that defines a user's method, as it was loaded.

    Args:
        name: Name of the method.

    Returns:
        `{"file": ..., "sha256": ...}`; empty for published methods and those of packages and notebooks.
    """
    source = SOURCES.get(name, "")
    digest = _digests.get(source, "")
    if not digest and Path(source).is_file():
        digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    return {"file": Path(source).name, "sha256": digest} if digest else {}


# -- making methods known --


@explain_misuse
def register_method(method: Method) -> Method:
    """Make a method known in this process, by its name.

    Processes that are started later do not know it, unless they run the same lines: for studies, put it in a
    file and load that by `load_plugin`.

    Args:
        method: The method.

    Returns:
        The same method.
    """
    caller = _caller().f_globals
    file = caller.get("__file__")
    add([method], str(Path(file).resolve()) if file else str(caller.get("__name__")))
    return method


@explain_misuse
def load_plugin(path: str | os.PathLike[str]) -> tuple[Method, ...]:
    """Make the methods known that a Python file defines, here and in all processes that are started later.

    A file that was loaded before and has not changed is not run again.

    Args:
        path: The file. A relative path is looked up from the current folder, then from the folder of the file
            that calls this.

    Returns:
        The methods of the file.

    Raises:
        SapcError: There is no such file, it cannot be run, or it defines neither a method nor a task.
    """
    file = _find_file(check_path(path, "a plug-in").expanduser(), Path(_caller().f_code.co_filename))
    if os.pathsep in str(file):
        raise SapcError(
            f"{file} has a {os.pathsep!r} in its path, which separates paths in {VARIABLE}; move or rename it"
        )
    methods = _load_file(file)
    if str(file) not in (files := plugin_files()):
        os.environ[VARIABLE] = os.pathsep.join([*files, str(file)])
    return methods


def load_all_plugins() -> None:
    """Load what SAPC_PLUGINS and entry points name; what is broken is a warning, once."""
    with _guard:
        for file in (Path(name).expanduser().resolve() for name in plugin_files()):
            if str(file) not in _digests:
                _attempt(f"{file} (from {VARIABLE})", _load_file, file)
        if ENTRY_POINT_GROUP not in _digests:
            _digests[ENTRY_POINT_GROUP] = ""
            points = {_describe(point): point for point in entry_points(group=ENTRY_POINT_GROUP)}
            plugins = [(name, _attempt(name, point.load)) for name, point in points.items()]
            # Those that train first: others may use their weights.
            for name, method in sorted(plugins, key=lambda plugin: not getattr(plugin[1], "trains", False)):
                if method is not None:
                    _attempt(name, add, [method], name)


def plugin_files() -> list[str]:
    """List the files of the variable SAPC_PLUGINS; `load_plugin` adds to it."""
    return [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]


def add(methods: Iterable[Any], source: str) -> None:
    """Make methods from one source known, all of them or, if one is not fine, none."""
    methods_by_name: dict[str, Method] = {}
    for method in methods:
        _check(method)
        if methods_by_name.setdefault(method.name, method) is not method:
            raise SapcError(f"there are two methods of the name {method.name!r}; give one another name")
    for method in methods_by_name.values():
        _check_relations(method, source, METHODS | methods_by_name)
    METHODS.update(methods_by_name)
    for name in methods_by_name:
        SOURCES.setdefault(name, source)


def forget(names: Iterable[str]) -> None:
    """Take methods of one's own out again."""
    for name in names:
        if SOURCES.pop(name, None):
            del METHODS[name]


def _caller() -> FrameType:
    """Find who calls this package: the next frame outside of it and of what checks types around it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in INTERNAL_PACKAGES:
        frame = frame.f_back
    return frame or sys._getframe(1)


def _find_file(path: Path, caller: Path) -> Path:
    """Find a file in the current folder or beside its caller, and return its absolute path."""
    places = [path] if path.is_absolute() else [Path.cwd() / path, caller.absolute().parent / path]
    for place in places:
        if place.is_file():
            return place.resolve()
    if folder := next((place for place in places if place.is_dir()), None):
        raise SapcError(f"{folder} is a folder; give the Python file in it that defines a method")
    folders = " and ".join(dict.fromkeys(str(place.parent) for place in places))
    raise SapcError(f"there is no file {path.name} in {folders}; give a Python file that defines a method")


# -- files --


def _load_file(file: Path) -> tuple[Method, ...]:
    """Run a file and add its methods; forget those that only an earlier text of it had."""
    with _guard:
        before, earlier = _from(file), _digests.get(str(file))
        # Noted as tried before it runs, for it may ask for methods itself.
        _digests[str(file)] = ""
        try:
            text = file.read_bytes()
        except OSError as error:
            raise SapcError(
                f"{file} cannot be read: {first_line(error)}; give a Python file that defines a method"
            ) from error
        digest = hashlib.sha256(text).hexdigest()
        if earlier != digest:
            module = _run(file, text)
            methods = _methods_in(module, file)
            try:
                add(methods, str(file))
                for register in task_hooks if getattr(module, "TASK", None) is not None else ():
                    register(module.TASK)
            except SapcError as error:
                raise SapcError(f"{file}: {error}") from error
            forget(set(before) - {method.name for method in methods})
        _digests[str(file)] = digest
        return tuple(_from(file).values())


def _run(file: Path, text: bytes) -> ModuleType:
    """Run a file; what goes wrong in it is one line with its number."""
    try:
        return run_file(file, text)
    except (Exception, SystemExit) as error:
        line = line_of(error, file)
        position = f", line {line}," if line else ""
        raise SapcError(f"{file}{position} cannot be used: {_reason(error)}") from error


def _methods_in(module: ModuleType, file: Path) -> list[Method]:
    """Return the methods at a module's top level and those that it has registered, without imported ones."""
    methods = [value for value in vars(module).values() if isinstance(value, Method)]
    methods = methods or list(_from(file).values())
    # Methods may hold functions that cannot be hashed; the same one under two names is one.
    methods_of_file = {id(method): method for method in methods if not _is_from_elsewhere(method, file)}
    if not methods_of_file and getattr(module, "TASK", None) is None:
        value = getattr(module, "METHOD", None)
        hint = "" if value is None or isinstance(value, Method) else f" (METHOD is {value!r:.40})"
        raise SapcError(
            f"{file} defines no method of its own{hint}; write METHOD = sapc.Method(name=..., ...) at its "
            "top level, "
            "or TASK = sapc.register_task(...)"
        )
    return list(methods_of_file.values())


def _is_from_elsewhere(method: Method, file: Path) -> bool:
    namesake = METHODS.get(method.name) if isinstance(method.name, str) else None
    return namesake is method and SOURCES.get(method.name) != str(file)


def _from(file: Path) -> dict[str, Method]:
    return {name: METHODS[name] for name, source in SOURCES.items() if source == str(file)}


def _attempt(name: str, load: Callable[..., Any], *arguments: Any) -> Any:
    """Load a plug-in; where that fails, warn and return None."""
    try:
        return load(*arguments)
    except (Exception, SystemExit) as error:
        message = f"the plug-in {name} is left out: {_reason(error)}"
    warnings.warn(message, SapcWarning, stacklevel=4)
    return None


def _describe(point: EntryPoint) -> str:
    dist = point.dist
    return f"{point.name} ({point.value}" + (f", package {dist.name} {dist.version})" if dist else ")")


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, SapcError) else f"{type(error).__name__}: {first_line(error)}"


# -- bad methods --


def _check(method: Any) -> None:
    """Refuse a record that could not be used; the message says which part, and what it should be."""
    if not isinstance(method, Method):
        raise SapcError(
            f"a method must be a sapc.Method, got {_short(method)}; make one with sapc.Method(name=..., ...)"
        )
    if (
        not isinstance(method.name, str)
        or not NAME_PATTERN.fullmatch(method.name)
        or method.name in RESERVED_NAMES
    ):
        raise SapcError(
            "a method's name is at most 40 small letters, digits and _, a letter first (and not "
            f"{' or '.join(sorted(RESERVED_NAMES))}), "
            f"got {_short(method.name)}; choose such a name"
        )
    more = ""
    names: tuple[str, ...] = ()
    if method.redraws_source:
        more = ", redraw"
    elif method.accepts_sampler:
        more, names = ", sampler=...", ("sampler",)
    for part, is_fine, form in (
        ("title", _is_title(method.title), f"one line of at most {MAX_TITLE_LENGTH} characters without $"),
        ("exact", method.exact in get_args(Exactness), f"one of {', '.join(get_args(Exactness))}"),
        (
            "reference",
            isinstance(method.reference, Reference | None),
            "a sapc.methods.references.Reference, or None",
        ),
        ("loss", _takes(method.loss, 5), "a function of (v, v0, v1, t, H)"),
        (
            "sample",
            _takes(method.sample, 4 + method.redraws_source, *names),
            f"a function of (v, v1, H, steps{more})",
        ),
    ):
        if not is_fine:
            raise SapcError(
                f"`{part}` of the method {method.name!r} must be {form}, got {_short(getattr(method, part))}"
            )
    check_int(method.nfe, f"nfe of the method {method.name!r}", 1)
    check_int(method.steps, f"number of steps of the method {method.name!r}", 1)
    check_int(method.condition_fields, f"condition_fields of the method {method.name!r}", 1)


def _is_title(title: Any) -> bool:
    """Tell whether a title can be a label in tables and figures, where $ would begin a formula."""
    is_line = isinstance(title, str) and title.isprintable() and "$" not in title
    return is_line and 0 < len(title.strip()) <= MAX_TITLE_LENGTH


def _takes(function: Any, number: int, *names: str) -> bool:
    """Whether something can be called with so many arguments and those names, as far as it tells."""
    try:
        inspect.signature(function).bind(*range(number), **dict.fromkeys(names))
    except (TypeError, ValueError) as error:
        # A ValueError says that it does not tell.
        return isinstance(error, ValueError)
    return True


def _check_relations(method: Method, source: str, methods: Mapping[str, Method]) -> None:
    """Refuse a name that is taken, and what a method says of other methods that is not so."""
    name, earlier = method.name, METHODS.get(method.name)
    if not is_user_defined(name):
        kind = "method of this package" if is_extension(name) else "published method"
        raise SapcError(f"the name {name!r} is that of a {kind}; give your own another name")
    if earlier is not None and earlier is not method and SOURCES[name] != source:
        raise SapcError(
            f"there is a method {name!r} already, from {SOURCES[name]}; give the one from {source} another "
            "name"
        )
    owner = methods.get(method.weights) if isinstance(method.weights, str) else None
    weights = f"the weights of the method {name!r} are those of {_short(method.weights)}, which"
    if owner is None:
        raise SapcError(
            f"{weights} is not known; write weights={name!r} if it trains its own, else the name of the "
            "method that does"
        )
    if not owner.trains:
        raise SapcError(f"{weights} uses those of {owner.weights!r} itself; write weights={owner.weights!r}")
    if method.variant_of and method.variant_of not in methods:
        raise SapcError(
            f"the method {name!r} is a variant of {_short(method.variant_of)}, which is not known"
        )


def _short(value: Any) -> str:
    return f"{value!r:.60}"
