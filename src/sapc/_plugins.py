"""Run a Python file that a user names: a plug-in, a physics, a task."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from types import ModuleType


def run_file(path: Path, text: bytes | None = None) -> ModuleType:
    """Run a file as a module of a private name.

    What goes wrong in it is raised, and the module is then forgotten.

    Args:
        path: The file; its path makes the name of the module.
        text: Its text; read from the file unless given.

    Returns:
        The module, which is in `sys.modules`: dataclasses and pickle look there.
    """
    text = path.read_bytes() if text is None else text
    name = f"_sapc_plugin_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    module, earlier = ModuleType(name), sys.modules.get(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except BaseException:
        sys.modules.pop(name)
        if earlier is not None:
            sys.modules[name] = earlier
        raise
    return module
