"""Tasks: what fields are learned.

A task is a grid, the constraint that all fields satisfy, a normalizer, declared symmetries and a source of
data.

A PDE system is a subclass that declares all of it in one file, with a solver; its data are solved. A user's
fields are a task as well:

    task = sapc.Task.from_data(sapc.read_fields("waves.nc"), sapc.Pin.frame(0) & mass)

Whoever uses a task asks it (`test_sets`, `can_draw`, `normalizer`, `units`, ...) and does not know where its
data come from.
"""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._old_names import old_attribute, rename_arguments, rename_method
from ..constraints import GaussNewton, Manifold
from ..constraints.terms import Affine, Balance, Constraint, ConstraintTerm, Pin, Stack
from ..data import Fields
from ..data.cache import CacheChoice
from ..data.dataset import Dataset
from ..data.normalizer import Identity, Normalizer
from ..errors import SapcError, check_int, explain_misuse
from ..grid import Grid
from . import sources, user_solver
from .description import DataDescription
from .physics import Physics, pins_of
from .rescale import rescale
from .sources import SPLITS, TEST_SETS, FieldsSource, Parameters, Progress, Solver, Streams
from .symmetries import AnySymmetry, Declaration, find_symmetries, make_symmetry


class Task:
    """What fields are learned: a PDE system, or a user's data.

    A subclass declares a PDE: the texts, `paper_grid`, `constraint`, `_draw` and `_solve`; it is made with a
    grid and its own options. `Task.from_data` makes one of fields and physics.

    Args:
        grid: Grid, or its numbers of points; `paper_grid` unless given.
        name: Name in folders and reports, for a user's data.
        physics: Constraints of a user's data.
        normalizer: Map between fields in units and what the network sees; the identity unless given.
        source: What makes the data; the task's own solver unless given.
        symmetries: Symmetries of a user's data.
    """

    name: str
    title: str
    equation: str = "as in the data"
    pinned: str
    law: str
    parameters: ClassVar[Mapping[str, str]] = {}
    paper_grid: Grid
    """The grid it was posed on, in the paper or in a file; others differ from it in their numbers of
    points."""
    train_size: ClassVar[int] = 6400
    published_solver: ClassVar[GaussNewton | None] = None
    """The published Gauss-Newton settings, where the law is not affine."""
    solver: ClassVar[str] = "closed form"
    solver_version: ClassVar[int] = 1
    """Part of the cache key: a solver that changes its numbers takes the next one."""
    integrates: ClassVar[bool] = False
    block: ClassVar[Mapping[str, int]] = {"cpu": 256, "cuda": 4096}
    """Samples solved at once on the published grid, at most, by kind of device."""

    class_file: ClassVar[Mapping[str, str]] = {}
    """Name and SHA-256 of the file that defines a user's class; part of the key of its cached data."""

    def __init__(
        self,
        grid: Grid | Sequence[int] | None = None,
        *,
        name: str = "",
        physics: Physics | None = None,
        normalizer: Normalizer | Identity | None = None,
        source: Solver | FieldsSource | None = None,
        symmetries: Sequence[Declaration] = (),
    ) -> None:
        self.source = source or Solver()
        self._symmetries = tuple(symmetries)
        self.physics = physics
        if physics is not None:
            self.name, self.title = name, f"{name}, own data"
            self.paper_grid = self.description.grid
        self.grid = self._check_grid(grid)
        self.normalizer = normalizer or Identity()
        if physics is not None:
            self.pinned = ", ".join(pin.label for pin in pins_of(self.constraint)) or "nothing"
            laws = [type(p).__name__.lower() for p in self.constraint.parts if not isinstance(p, Pin)]
            self.law = ", ".join(laws) or "none"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.class_file = user_solver.describe_class_file(cls)
        if "plain" in vars(cls):
            warnings.warn("Task.plain is now Task.published_solver", DeprecationWarning, stacklevel=2)
            cls.published_solver = vars(cls)["plain"]

    @staticmethod
    @explain_misuse
    def from_data(
        data: Fields | str | os.PathLike[str],
        physics: Any,
        name: str | None = None,
        *,
        share: float = 0.1,
        seed: int = 0,
        symmetries: Sequence[Declaration] = (),
    ) -> Task:
        """Make a task of fields and physics, once both are known to fit.

        Data that are not finite or contradict the physics, and physics that cannot be evaluated, are refused.

        Args:
            data: Fields, or their file as `read_fields` reads it.
            physics: Constraints, a function from a grid to constraints, or a Python file that defines such a
                function `physics`.
            name: Name in folders and reports; that of the data file unless given.
            share: Share of the samples for validation, drawn with `seed`, unless the file has its own split.
            seed: Seed of the split.
            symmetries: Maps that leave the distribution of the data as it is, by which a training moves them
                at random: texts, as "shift:x" or "reflect:x,sign:u" (see `sapc.tasks.index_maps`), or
                functions `(fields, generator) -> fields` of fields in their own units.

        Returns:
            The task, which holds physics and data.
        """
        # It builds on this module.
        from .from_data import make_task

        return make_task(data, physics, name, share=share, seed=seed, symmetries=symmetries)

    # -- what can be asked of any task --

    @property
    def description(self) -> DataDescription:
        """What a run keeps of its data and physics; empty where a solver makes the data."""
        return self.source.description

    @property
    def units(self) -> dict[str, str]:
        """Units of channels and axes, as the file of the data has them."""
        return dict(self.description.units)

    @property
    def labels(self) -> dict[str, str]:
        """Long names of channels and axes, as the file of the data has them."""
        return dict(self.description.labels)

    @property
    def options(self) -> dict[str, Any]:
        """The options that were chosen, as `get_task` takes them."""
        return self.description.options

    @property
    def symmetries(self) -> tuple[Declaration, ...]:
        """Declared maps of fields that leave their distribution as it is; a class may declare texts."""
        return self._symmetries

    @explain_misuse
    def find_symmetries(self, names: Sequence[str] | None = None) -> tuple[AnySymmetry, ...]:
        """Make symmetries of fields on this grid.

        Args:
            names: Their texts; all that are declared unless given.

        Returns:
            The symmetries.

        Raises:
            SapcError: A text cannot be read, or does not fit the grid.
        """
        declared = self.symmetries
        names = [make_symmetry(d, self.grid).text for d in declared] if names is None else names
        return find_symmetries(declared, (names,) if isinstance(names, str) else names, self.grid)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of samples of every split: as published, or as the file has them."""
        sizes = {split: self.train_size if split == "train" else 1225 for split in SPLITS}
        return sizes if self.can_draw else self.description.sizes

    @property
    def test_sets(self) -> tuple[str, ...]:
        """The splits on which models are scored."""
        return TEST_SETS if self.can_draw else ("validation",)

    @property
    def can_draw(self) -> bool:
        """Whether there can be further independent samples; a file has what it has."""
        return self.description.can_draw

    @property
    def law_kind(self) -> str:
        """What its laws are, in messages: "balance law", "linear constraint", "constraint", or several."""
        names = {Balance: "balance law", Affine: "linear constraint", Constraint: "constraint"}
        kinds = [type(part) for part in self.constraint.parts if not isinstance(part, Pin)]
        return " and ".join(dict.fromkeys(names.get(kind, "constraint") for kind in kinds)) or "laws"

    def condition_count(self, split: str) -> int | None:
        """Count the different conditions of a split.

        Args:
            split: Name of the split.

        Returns:
            The number; None if each sample has a condition of its own, without end.
        """
        if not self.can_draw:
            return self.sizes[split]
        return 1 if split in TEST_SETS else None

    def resize(self, grid: Grid | Sequence[int] | None) -> Task:
        """Return the same task on another grid.

        Args:
            grid: The grid, or its numbers of points; None for its own.

        Returns:
            The task; itself where that is its own grid.
        """
        grid = self.grid if grid is None else self._check_grid(grid)
        if grid == self.grid:
            return self
        if self.physics is None:
            return type(self)(grid, **self.options)
        normalizer = self.description.normalizer(grid)
        return Task(
            grid, name=self.name, physics=self.physics, normalizer=normalizer, source=self.source,
            symmetries=self.symmetries,
        )  # fmt: skip

    # -- the constraint, in the units of the fields and normalized --

    @cached_property
    def constraint(self) -> ConstraintTerm:
        """What every field satisfies: the pinned condition and the laws."""
        if self.physics is None:
            raise NotImplementedError(f"{type(self).__name__} has to define `constraint`")
        parts = [
            p.with_names_of(self.grid) if isinstance(p, Pin) else p for p in self.physics.on(self.grid).parts
        ]
        constraint = Stack(tuple(parts)).with_times_of(self.grid)
        if empty := [p.label for p in pins_of(constraint) if not bool(p.mask(self.grid.shape).any())]:
            raise SapcError(f"the pin {empty[0]!r} holds no point; look at its indices")
        if self.grid.steady and any(isinstance(part, Balance) for part in constraint.parts):
            raise SapcError("a Balance compares frames, and these fields are steady; use Affine(...)")
        return constraint

    @rename_arguments(also="extra_constraints")
    @explain_misuse
    def manifold(
        self, fields: Tensor, extra_constraints: ConstraintTerm | None = None, **options: Any
    ) -> Manifold:
        """Return the manifold of every sample of `fields`, pinned to the values of that sample.

        Args:
            fields: Fields `(n, *grid)`.
            extra_constraints: Constraints that hold besides those of the task.
            **options: Options of `Manifold`, as `solver`.

        Returns:
            The manifolds.

        Raises:
            SapcError: The fields are not on the grid, or not finite.
        """
        self.grid.check(fields)
        if not bool(torch.isfinite(fields).all()):
            bad = int((~torch.isfinite(fields)).sum())
            raise SapcError(f"{bad} of {fields.numel()} field values are NaN or infinite; give finite ones")
        constraint = self.constraint if extra_constraints is None else self.constraint & extra_constraints
        return constraint.with_times_of(self.grid).on(fields, **options)

    @explain_misuse
    def normalize(self, fields: Tensor) -> Tensor:
        """Return fields as the network sees them.

        Args:
            fields: Fields `(n, *grid)` in their own units.

        Returns:
            The normalized fields.
        """
        return self.normalizer.normalize(fields)

    @explain_misuse
    def denormalize(self, fields: Tensor) -> Tensor:
        """Invert `normalize`.

        Args:
            fields: Normalized fields `(n, *grid)`.

        Returns:
            Fields in their own units.
        """
        return self.normalizer.denormalize(fields)

    @cached_property
    def normalized_constraint(self) -> ConstraintTerm:
        """The constraint on normalized fields."""
        return rescale(self.constraint, self.normalizer)

    @rename_arguments(also="extra_constraints")
    @explain_misuse
    def normalized_manifold(
        self, fields: Tensor, extra_constraints: ConstraintTerm | None = None, **options: Any
    ) -> Manifold:
        """Return the manifold of every sample of normalized fields.

        Args:
            fields: Normalized fields `(n, *grid)`.
            extra_constraints: Constraints, on fields in their own units, that hold besides those of the task.
            **options: Options of `Manifold`, as `solver`.

        Returns:
            The manifolds.
        """
        if self.normalizer.is_identity:
            return self.manifold(fields, extra_constraints, **options)
        further = () if extra_constraints is None else rescale(extra_constraints, self.normalizer).parts
        return Manifold((*self.normalized_constraint.parts, *further), fields, **options)

    plain = old_attribute("Task.plain", "Task.published_solver")
    enter, leave = rename_method("enter", "normalize"), rename_method("leave", "denormalize")
    inner = rename_method("inner", "normalized_manifold")

    # -- data --

    @explain_misuse
    def check(
        self, split: str, size: int | None = None, seed: int = 0, device: str | torch.device = "cpu"
    ) -> tuple[int, int, torch.device]:
        """Refuse now what `dataset` would refuse.

        Args:
            split: Name of the split.
            size: Number of samples; all of the split unless given.
            seed: Seed of the random parameters.
            device: Device of the solver.

        Returns:
            Size, seed and device as `dataset` will use them.
        """
        size = self._check_size(split, size)
        sources.check_memory(self, size, torch.float32)
        return size, check_int(seed, "seed", 0), sources.find_device(device)

    @explain_misuse
    def dataset(
        self,
        split: str,
        size: int | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
        cache: CacheChoice = None,
        progress: Progress | None = None,
    ) -> Dataset:
        """Return the first samples of a split.

        Args:
            split: Name of the split.
            size: Number of samples; all of the usual size unless given.
            seed: Seed of the random parameters.
            device: Device of the solver.
            cache: A folder, False for none, or None for what `SAPC_CACHE` says; only solvers that take time
                use it.
            progress: Function that is called with samples solved and samples in all.

        Returns:
            The dataset.
        """
        size, seed, device = self.check(split, size, seed, device)
        data = self.source.dataset(self, split, size, seed, device, cache, progress)
        if split in TEST_SETS and sources.is_user_solver(self):
            user_solver.warn_of_conditions(self, split, data.fields)
        return data

    @explain_misuse
    def draw(self, split: str, size: int | None = None, seed: int = 0) -> dict[str, Tensor]:
        """Draw the parameters of the first samples of a split.

        Args:
            split: Name of the split.
            size: Number of samples; all of the usual size unless given.
            seed: Seed of the random parameters.

        Returns:
            The parameters by name, `(size, ...)`, in float64.
        """
        return sources.draw(self, split, self._check_size(split, size), check_int(seed, "seed", 0))

    @explain_misuse
    def solve(
        self,
        parameters: Parameters,
        device: str | torch.device = "cpu",
        progress: Progress | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """Solve for every row of the parameters, on a device in float64.

        Args:
            parameters: Parameters by name, with one row per sample.
            device: Device of the solver.
            progress: Function that is called with samples solved and samples in all.
            dtype: Type of the result.

        Returns:
            The fields `(n, *grid)`, on the CPU.
        """
        return sources.solve(self, parameters, sources.find_device(device), progress, dtype)

    # -- what a subclass with a solver defines --

    def _draw(self, streams: Streams, size: int) -> dict[str, Tensor]:
        """Draw the parameters of the first `size` samples, float64."""
        raise SapcError(f"{self.name} has no solver; there are no parameters to draw")

    def _solve(self, parameters: Parameters) -> Tensor:
        """Solve the PDE for one block of parameters: fields in float64, on the device of the parameters."""
        raise SapcError(f"{self.name} has no solver; there is nothing to solve")

    def _workspace(self, block: int) -> int:
        """Numbers in float64 that solving `block` samples holds besides the fields, about."""
        return 0

    def residual(self, u: Tensor) -> Tensor | None:
        """Compute by how much fields miss the equation on the grid, as a share of u_t.

        Args:
            u: Fields `(n, *grid)` in float64.

        Returns:
            Residuals `(n, ...)`; None if the task does not say.
        """
        return None

    # -- bad input: what was wrong, what was expected, what to do --

    def _check_size(self, split: str, size: int | None) -> int:
        if split not in self.sizes:
            raise SapcError(f"unknown split {split!r}; choose one of {', '.join(self.sizes)}")
        available = self.sizes[split]
        size = available if size is None else check_int(size, "size", 1)
        if not self.can_draw and size > available:
            raise SapcError(
                f"the split {split} of {self.name} has {available} samples, and {size} were asked for"
            )
        return size

    def _check_grid(self, grid: Grid | Sequence[int] | None) -> Grid:
        paper = self.paper_grid
        if grid is None:
            return paper
        if not isinstance(grid, Grid):
            try:
                return paper.resize(*(operator.index(n) for n in grid))
            except TypeError as error:
                raise SapcError(
                    f"a grid is a Grid or {len(paper.axes)} whole numbers, got {grid!r}"
                ) from error
        if len(grid.axes) == len(paper.axes):
            same_axes = paper.resize(*grid.points_per_axis)
            # A solver can go on to another final time; data end where they end.
            if self.can_draw and not grid.steady:
                time = replace(same_axes.time, stop=grid.time.stop)
                same_axes = replace(same_axes, axes=(*same_axes.space, time))
            if grid == same_axes:
                return grid
        ends = " or the final time" * self.can_draw
        raise SapcError(
            f"{self.name} is posed on axes {_axes(paper)}, got {_axes(grid)}; "
            f"change the numbers of points{ends} only, as in task.paper_grid.resize(...)"
        )

    def __repr__(self) -> str:
        if self.physics is not None:
            return f"Task.from_data({self.name!r}, grid={self.grid.shape})"
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"get_task({self.name!r}, grid={self.grid.shape}{options})"


def _axes(grid: Grid) -> str:
    return ", ".join(f"{a.name} ({a.kind}, [{a.start:g}, {a.stop:g}])" for a in grid.axes)
