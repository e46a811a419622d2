"""Methods from outside the package: files that are named, files in SAPC_PLUGINS, entry points; see `registry`.

A file may bring a task instead: it says `TASK = sapc.register_task(...)` or `TASK = sapc.Task.from_data(...)`, and tasks that are not
known are looked for here, too.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from .._files import first_line
from ..errors import SapcError, SapcWarning, explain_misuse, path_of
from . import registry
from .base import Method

VARIABLE = "SAPC_PLUGINS"
GROUP = "sapc.methods"
EXAMPLE = "METHOD = sapc.Method(name=..., ...)"

when_task: list[Callable[[Any], Any]] = []  # what makes the `TASK` of a file known

_files: dict[Path, str] = {}  # what was loaded or tried, with the SHA-256 of its text
_asked: set[str] = set()  # whether entry points were looked at
_guard = threading.RLock()


@explain_misuse
def use(path: str | os.PathLike[str]) -> tuple[Method, ...]:
    """Make the methods known that a Python file defines, here and in all processes that are started later; returns them.

    A relative path is looked up from the current folder, then from the folder of the file that calls this. A file that was used before
    and has not changed is not run again.
    """
    file = _find(path_of(path, "a plug-in"), Path(registry.caller().f_code.co_filename))
    if os.pathsep in str(file):
        raise SapcError(
            f"{file} has a {os.pathsep!r} in its path, which separates paths in {VARIABLE}; move or rename it"
        )
    found = load_file(file)
    listed = plugin_files()
    if str(file) not in listed:
        os.environ[VARIABLE] = os.pathsep.join([*listed, str(file)])
    return found


def load_plugins() -> None:
    """Load what SAPC_PLUGINS and entry points name and is not loaded yet; what is broken is a warning, once."""
    with _guard:
        for file in (Path(name).expanduser().resolve() for name in plugin_files()):
            if file not in _files:
                _attempt(f"{file} (from {VARIABLE})", load_file, file)
        if GROUP not in _asked:
            _asked.add(GROUP)
            points = {_described(point): point for point in entry_points(group=GROUP)}
            loaded = [(name, _attempt(name, point.load)) for name, point in points.items()]
            # those that train first: others may use their weights
            for name, method in sorted(loaded, key=lambda one: not getattr(one[1], "trains", False)):
                if method is not None:
                    _attempt(name, registry.add, [method], name)


def load_file(file: Path) -> tuple[Method, ...]:
    """Run a file and add its methods; those of an earlier text of it that it does not have any more are forgotten."""
    with _guard:
        before, earlier = _from(file), _files.get(file)
        _files[file] = ""  # tried; and before it runs, for it may ask for methods itself
        try:
            text = file.read_bytes()
        except OSError as error:
            raise SapcError(
                f"{file} cannot be read: {first_line(error)}; give a Python file that defines a method"
            ) from error
        digest = hashlib.sha256(text).hexdigest()
        if earlier != digest:
            module = _run(file, text)
            own = _methods_in(module, file)
            try:
                registry.add(own, str(file))
                for register in when_task if getattr(module, "TASK", None) is not None else ():
                    register(module.TASK)
            except SapcError as error:
                raise SapcError(f"{file}: {error}") from error
            registry.forget(set(before) - {method.name for method in own})
        _files[file] = digest
        return tuple(_from(file).values())


def _run(file: Path, text: bytes) -> ModuleType:
    """A file as a module of a private name; what goes wrong in it is one line with its number."""
    name = f"_sapc_plugin_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    module, before = ModuleType(name), sys.modules.get(name)
    module.__file__ = str(file)
    sys.modules[name] = module  # dataclasses and pickle look there
    try:
        exec(compile(text, str(file), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before
        raise SapcError(f"{file}{_line(error, file)} cannot be used: {_reason(error)}") from error
    return module


def _methods_in(module: ModuleType, file: Path) -> list[Method]:
    """The methods at a module's top level and those that it has registered, without those that it has from elsewhere."""
    there = [value for value in vars(module).values() if isinstance(value, Method)]
    there += _from(file).values() if not there else ()
    own: list[Method] = []
    for method in there:
        known = registry.METHODS.get(method.name) if isinstance(method.name, str) else None
        elsewhere = known is method and registry.SOURCES.get(method.name) != str(file)
        if not elsewhere and not any(method is other for other in own):
            own.append(method)
    if not own and getattr(module, "TASK", None) is None:
        other = getattr(module, "METHOD", None)
        got = "" if other is None or isinstance(other, Method) else f" (METHOD is {other!r:.40})"
        raise SapcError(
            f"{file} defines no method of its own{got}; write {EXAMPLE} at its top level, or TASK = sapc.register_task(...)"
        )
    return own


def _from(file: Path) -> dict[str, Method]:
    return {name: registry.METHODS[name] for name, source in registry.SOURCES.items() if source == str(file)}


def _find(path: str | os.PathLike[str], caller: Path) -> Path:
    """The file that is meant, as an absolute path."""
    given = Path(path).expanduser()
    places = [given] if given.is_absolute() else [Path.cwd() / given, caller.absolute().parent / given]
    for place in places:
        if place.is_file():
            return place.resolve()
    if folder := next((place for place in places if place.is_dir()), None):
        raise SapcError(f"{folder} is a folder; give the Python file in it that defines a method")
    looked = " and ".join(dict.fromkeys(str(place.parent) for place in places))
    raise SapcError(f"there is no file {given.name} in {looked}; give a Python file that defines a method")


def plugin_files() -> list[str]:
    """The files that SAPC_PLUGINS lists, which `use` adds to."""
    return [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]


def _attempt(name: str, load: Callable[..., Any], *arguments: Any) -> Any:
    """What loading gives, or a warning and None."""
    try:
        return load(*arguments)
    except (Exception, SystemExit) as error:
        told = f"the plug-in {name} is left out: {_reason(error)}"
    warnings.warn(told, SapcWarning, stacklevel=4)
    return None


def _described(point: EntryPoint) -> str:
    dist = point.dist
    return f"{point.name} ({point.value}" + (f", package {dist.name} {dist.version})" if dist else ")")


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, SapcError) else f"{type(error).__name__}: {first_line(error)}"


def _line(error: BaseException, file: Path) -> str:
    """Where in the file it went wrong."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f", line {error.lineno},"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    return f", line {lines[-1]}," if lines else ""
