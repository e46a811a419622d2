"""Modules of version 0.1.0 by their old names: `from sapc.study import cells` works, and a warning says where it is now."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "card": "models.card",
    "checking": "tasks.check",
    "checkpoint": "training.run_folder",
    "compare": "experiments.comparison",
    "condition": "models.condition",
    "config": "training.config",
    "distributed": "training.distributed",
    "evaluate": "evaluation.evaluate",
    "fields": "data",
    "files": "_files",
    "fno": "nn.fno",
    "fpd": "evaluation.frechet.distance",
    "hub": "models.hub",
    "metrics": "evaluation.metrics",
    "model": "models.model",
    "moments": "evaluation.moments",
    "paper": "methods.paper",
    "poseidon": "evaluation.frechet",
    "pretrained": "training.shipped",
    "projection": "constraints",
    "references": "methods.references",
    "report": "experiments.report",
    "results": "experiments.results",
    "scaling": "data.normalizer",
    "scores": "evaluation.scores",
    "source": "flow.source",
    "study": "experiments",
    "table": "experiments.report.format",
    "train": "training.loop",
    "trajectory": "evaluation.trajectory",
}
"""Old names, without `sapc.`, and what they are called now."""

GONE = {
    "bench": "`sapc bench` stays, and benchmarks/ of the repository measures the rest",
    "calibration": "it is benchmarks/calibrate_frd.py of the repository",
}
"""Old names of modules that left the package, and where their work is done now."""

RENAMED = {"OwnTask": "Task", "own_task": "Task.from_data"}
"""Attributes of `sapc` by their old names."""


def renamed(old: str, new: str) -> Callable[..., Any]:
    """Return the method `new` of an object, under its old name."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=2)
        return getattr(self, new)(*args, **kwargs)

    return call


class _Alias(Loader):
    """Give a module under another name."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just written the old name into the module.
        module.__spec__ = self.spec


class _Finder(MetaPathFinder):
    """Find modules by their old names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        first, _, rest = name.partition(".")
        if package == "sapc" and first in GONE:
            raise ModuleNotFoundError(f"{fullname} left the package: {GONE[first]}", name=fullname)
        if package != "sapc" or first not in MOVED:
            return None
        new = ".".join(part for part in (package, MOVED[first], rest) if part)
        warnings.warn(f"{fullname} is now {new}", DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, _Alias(import_module(new)))


sys.meta_path.append(_Finder())
