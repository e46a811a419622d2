"""Names of version 0.1.0 work, and a warning says what they are now: `from sapc.study import cells`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from inspect import isfunction, signature
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeVar

from .errors import SapcError

MODULE_PATHS = {
    "card": "models.card",
    "checking": "tasks.check",
    "checkpoint": "training.run_folder",
    "compare": "experiments.comparison",
    "condition": "models.sampling",
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
    "pretrained": "training.run_folder",
    "projection": "constraints",
    "references": "methods.references",
    "report": "experiments.report",
    "results": "experiments.results",
    "scaling": "data.normalizer",
    "scores": "evaluation.scores",
    "source": "flow.source",
    "study": "experiments",
    "study.plan": "experiments.study",
    "table": "experiments.report.format",
    "train": "training.loop",
    "trajectory": "evaluation.trajectory",
}
"""Modules: old names, without `sapc.`, and what they are called now."""

REMOVED_MODULES = {
    "bench": "`sapc bench` stays, and benchmarks/ of the repository measures the rest",
    "calibration": "it is benchmarks/calibrate_frd.py of the repository",
}
"""Old names of modules that left the package, and where their work is done now."""

ATTRIBUTE_PATHS = {
    "sapc.FrameIntegral": "sapc.grid.FrameIntegral",
    "sapc.Globalised": "sapc._old_names.globalised",
    "sapc.LawKernel": "sapc.constraints.LawKernel",
    "sapc.OwnTask": "sapc.Task",
    "sapc.Plain": "sapc.GaussNewton",
    "sapc.Run": "sapc.training.config.TrainingConfig",
    "sapc.WithGradient": "sapc.constraints.WithGradient",
    "sapc.own_task": "sapc.Task.from_data",
    "sapc.preset": "sapc._old_names.preset",
    "sapc.use": "sapc.load_plugin",
    "sapc.when_unknown": "sapc.tasks.registry.lookup_hooks",
    "sapc.write_netcdf": "sapc.data.write_netcdf",
    "sapc.constraints.Globalised": "sapc._old_names.globalised",
    "sapc.constraints.Plain": "sapc.GaussNewton",
    "sapc.constraints.Report": "sapc.constraints.ProjectionInfo",
    "sapc.constraints.Stackable": "sapc.constraints.ConstraintTerm",
    "sapc.data.cache.cached": "sapc.data.cache.load_or_make",
    "sapc.evaluation.frechet.GET": "sapc.evaluation.frechet.DOWNLOAD_HINT",
    "sapc.evaluation.moments.Kept": "sapc.evaluation.moments.EnsembleStatistics",
    "sapc.evaluation.moments.load_kept": "sapc.evaluation.moments.EnsembleStatistics.load",
    "sapc.evaluation.trajectory.Watch": "sapc.evaluation.trajectory.TrajectoryRecorder",
    "sapc.experiments.time_left": "sapc.experiments.remaining_time",
    "sapc.experiments.results.Collected": "sapc.experiments.results.Collection",
    "sapc.experiments.results.Scored": "sapc.experiments.results.ScoresFile",
    "sapc.flow.at": "sapc.flow.evaluate_velocity",
    "sapc.flow.endpoint": "sapc.flow.predict_data",
    "sapc.flow.per_field": "sapc.flow.expand_like",
    "sapc.flow.source.seed_of": "sapc.flow.source.derive_seed",
    "sapc.flow.times": "sapc.flow.time_pairs",
    "sapc.flow.toward": "sapc.flow.step_toward",
    "sapc.flow.within": "sapc.flow.clip_endpoint",
    "sapc.methods.is_own": "sapc.methods.is_user_defined",
    "sapc.methods.paper.Printed": "sapc.methods.paper.PrintedMean",
    "sapc.methods.paper.printed": "sapc.methods.paper.printed_mean",
    "sapc.methods.Sampler": "sapc.methods.SampleFunction",
    "sapc.methods.Penalty": "sapc.methods.SecondObjective",
    "sapc.methods.use": "sapc.load_plugin",
    "sapc.tasks.check.Report": "sapc.tasks.check.DataCheck",
    "sapc.tasks.when_unknown": "sapc.tasks.registry.lookup_hooks",
    "sapc.training.config.Run": "sapc.training.config.TrainingConfig",
    "sapc.training.config.preset": "sapc._old_names.preset",
    "sapc.training.distributed.Team": "sapc.training.distributed.ProcessGroup",
    "sapc.training.distributed.joined": "sapc.training.distributed.process_group",
    "sapc.training.run_folder.find": "sapc.training.run_folder.resolve_model_path",
    "sapc.training.run_folder.Folder": "sapc.training.run_folder.RunFolder",
}
"""Attributes of modules by their old names."""

REPLACEMENTS = {
    "sapc._old_names.globalised": "sapc.NearestPoint() or, for nearest=0, sapc.FeasiblePoint()",
    "sapc._old_names.preset": "sapc.training_config(task, method, preset)",
    "sapc.training.config.TrainingConfig": "sapc.TrainingConfig",
}
"""What to write now, where it is not the new name."""

PRESETS = {"paper": "published"}
"""Presets by their old names."""


def find_renamed(module: str) -> Callable[[str], Any]:
    """Make the `__getattr__` of a module: it finds modules and attributes by their old names, and warns."""

    def find(name: str) -> Any:
        if module == "sapc" and name in MODULE_PATHS:
            return import_module(f"sapc.{name}")
        new = ATTRIBUTE_PATHS.get(f"{module}.{name}")
        if new is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"{module}.{name} is now {REPLACEMENTS.get(new, new)}", DeprecationWarning, stacklevel=2
        )
        return attrgetter(new.removeprefix("sapc."))(sys.modules["sapc"])

    return find


F = TypeVar("F", bound=Callable[..., Any])


def deprecate(function: F, old: str, new: str) -> F:
    """Return a function for its old name: it warns that it is now called by another one."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=2)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def rename_method(old: str, new: str) -> Callable[..., Any]:
    """Return a method for its old name; a subclass that overrides the new name is heard."""
    return deprecate(
        lambda self, *args, **kwargs: getattr(self, new.split(".")[-1])(*args, **kwargs), old, new
    )


def rename_arguments(**names: str) -> Callable[[F], F]:
    """Make a decorator that takes keyword arguments also by their old names; it stands above all others.

    An old name gives a warning that names the new one; a call that gives both is refused. A class stands for
    its constructor. The new name need not be a parameter: it may be one of `**settings`.

    Args:
        names: New names by old ones, as `clip="max_grad_norm"`.

    Returns:
        The decorator.
    """

    def decorate(function: F) -> F:
        if isinstance(function, type):
            function.__init__ = decorate(function.__init__)  # type: ignore[misc]
            return function
        qualified_name = function.__qualname__.removesuffix(".__init__")

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for old in names.keys() & kwargs.keys():
                new, value = names[old], kwargs.pop(old)
                if new in signature(function).bind_partial(*args).arguments or new in kwargs:
                    raise SapcError(
                        f"{qualified_name} got {new}= and {old}=, which is its old name; give {new}= alone"
                    )
                warnings.warn(f"{old}= of {qualified_name} is now {new}=", DeprecationWarning, stacklevel=2)
                kwargs[new] = value
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def old_attribute(old: str, new: str) -> Any:
    """Make a property for the old name of an attribute: it warns when it is read or set.

    In the body of a dataclass it has no annotation, so it is no field.

    Args:
        old: The old name, as `Model.span`.
        new: The new name, as `Model.data_range`.

    Returns:
        The property.
    """

    def get(self: Any) -> Any:
        warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=2)
        return attrgetter(new.split(".")[-1])(self)

    def set_(self: Any, value: Any) -> None:
        warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=2)
        setattr(self, new.split(".")[-1], value)

    return property(get, set_, doc=f"Old name of `{new}`.")


C = TypeVar("C", bound=type)


def rename_fields(**names: str) -> Callable[[C], C]:
    """Make a decorator that keeps fields of a dataclass usable by their old names, with a warning.

    If a call gives both names, the old one counts: `dataclasses.replace` gives the new one with the value to
    be replaced.

    Args:
        names: New names by old ones.

    Returns:
        A decorator of classes.
    """

    def decorate(cls: C) -> C:
        init = cls.__init__  # type: ignore[misc]
        pairs = [(old, f"{cls.__name__}.{old}", f"{cls.__name__}.{new}") for old, new in names.items()]

        @wraps(init)
        def construct(self: Any, *args: Any, **kwargs: Any) -> None:
            for old, old_path, new_path in pairs:
                if old in kwargs:
                    warnings.warn(f"{old_path} is now {new_path}", DeprecationWarning, stacklevel=2)
                    kwargs[names[old]] = kwargs.pop(old)
            init(self, *args, **kwargs)

        cls.__init__ = construct  # type: ignore[misc]
        for old, old_path, new_path in pairs:
            setattr(cls, old, old_attribute(old_path, new_path))
        return cls

    return decorate


def replace_module(name: str, function: F, module: ModuleType) -> F:
    """Let a function stand for a module of the same name: `sapc.train()` and `sapc.train.train()`.

    A function can have attributes, so it gets the names of the module; those that are functions warn when
    they are called.

    Args:
        name: The name of both, without `sapc.`.
        function: The function.
        module: The module.

    Returns:
        The function.
    """
    for key, value in vars(module).items():
        if not key.startswith("_") and not isinstance(value, ModuleType):
            old, new = f"sapc.{name}.{key}", f"sapc.{name}" if key == name else f"{module.__name__}.{key}"
            setattr(function, key, deprecate(value, old, new) if isfunction(value) else value)
    return function


def globalised(
    tol: float = 1e-12,
    passes: int = 80,
    nearest: int = 120,
    inner: int = 60,
    rtol: float = 1e-9,
    **settings: Any,
) -> Any:
    """Return the projector that `Globalised` was: the nearest point, or with `nearest=0` a feasible one."""
    solvers = import_module("sapc.constraints")
    execution = {key: settings.pop(key) for key in ("ahead", "compiled", "fused") if key in settings}
    common = {"tol": tol, "passes": passes, "execution": solvers.Execution(**execution), **settings}
    if nearest == 0:
        return solvers.FeasiblePoint(**common)
    return solvers.NearestPoint(**common, newton_steps=nearest, cg_steps=inner, rtol=rtol)


def preset_name(name: str) -> str:
    """Return the name of a preset, given that or its old one; for the old one there is a warning."""
    if (new := current_preset(name)) is not name:
        warnings.warn(f"the preset {name} is now called {new}", DeprecationWarning, stacklevel=3)
    return new


def current_preset(name: str) -> str:
    """Return the name of a preset for its old one; anything else as it is."""
    return PRESETS.get(name, name) if isinstance(name, str) else name


def preset(name: str, task: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """Return the settings of a training, with the preset's name first, as it was."""
    config = import_module("sapc.training.config")
    return config.training_config(task, method, name, *args, **kwargs)


class _Alias(Loader):
    """Give a module, or what stands for it, under another name."""

    def __init__(self, module: Any) -> None:
        self.module, self.spec = module, getattr(module, "__spec__", None)

    def create_module(self, spec: ModuleSpec) -> Any:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just written the old name into the module.
        module.__spec__ = self.spec


class _Finder(MetaPathFinder):
    """Find modules by their old names: what nobody else has found, until one of them is imported."""

    # The path of a namespace package is no sequence, and what asks for a module may be of any kind.
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        first, _, subpath = name.partition(".")
        if package == "sapc" and first in REMOVED_MODULES:
            raise ModuleNotFoundError(f"{fullname} left the package: {REMOVED_MODULES[first]}", name=fullname)
        if package != "sapc" or first not in MODULE_PATHS:
            return None
        new = (
            f"{package}.{MODULE_PATHS[name]}"
            if name in MODULE_PATHS
            else f"{package}.{MODULE_PATHS[first]}.{subpath}"
        )
        warnings.warn(f"{fullname} is now {new}", DeprecationWarning, stacklevel=2)
        # From now on this finder is the first: a part of the module would be found by its path, and be
        # loaded a second time under its old name.
        sys.meta_path.sort(key=lambda finder: finder is not self)
        function = vars(sys.modules[package]).get(name)
        return ModuleSpec(fullname, _Alias(function if isfunction(function) else import_module(new)))


sys.meta_path.append(_Finder())
