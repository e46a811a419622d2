"""Conditions in files, and samples of several conditions.

A condition counts only where a field is pinned. So a file of conditions may leave out the axis along which a
single point is pinned: where the initial frame is pinned, it holds the initial frame. It may also leave out
the dimension that counts conditions, if there is only one.

Samples of k conditions, m of each, are written along the dimensions `condition` and `member`. Whoever reads
them back as fields gets k m samples, the m of each condition in a row.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import SapcError, SapcWarning
from ..grid import Axis, Grid
from .reading.axes import read_axis
from .reading.formats import Variable, Variables, open_variables
from .reading.hdf5 import Array

CONDITION, MEMBER = "condition", "member"
CONDITION_SUFFIX = "_condition"
"""End of the name of a channel's conditions, in files of samples."""


def flatten_members(variables: Variables, samples: str | None = None) -> Variables:
    """Join the dimensions `condition` and `member` to one of samples.

    Args:
        variables: All variables of a file. Those along one of the two dimensions alone are no fields and left
            out.
        samples: Name of the dimension of samples, if the caller gave it.

    Returns:
        The variables of a file of samples; those of another file as they are.
    """
    pair = (CONDITION, MEMBER)
    if samples in pair or not any(v.dims[:2] == pair for v in variables.values()):
        return variables

    def join(v: Variable) -> Variable:
        shape = (v.shape[0] * v.shape[1], *v.shape[2:])
        return replace(v, shape=shape, dims=("sample", *v.dims[2:]), load=lambda: v.read().reshape(shape))

    return {
        name: join(v) if v.dims[:2] == pair else v
        for name, v in variables.items()
        if v.dims[:2] == pair or not set(v.dims) & set(pair)
    }


def has_conditions(path: Path, grid: Grid) -> bool:
    """Tell whether a file is one of samples that holds their conditions under names of their own."""
    try:
        with open_variables(path) as variables:
            return any(f"{name}{CONDITION_SUFFIX}" in variables for name in grid.channels or ("u",))
    except SapcError:
        return False


def read_conditions(path: Path, grid: Grid, mask: Tensor, order: Sequence[str] = ()) -> Tensor:
    """Read conditions from a file.

    Args:
        path: The file.
        grid: Grid of the task.
        mask: Where fields are pinned, shaped as `grid.shape`.
        order: Names of the axes in the order of the file, where that is not the grid's and dimensions have no
            names.

    Returns:
        Conditions `(k, *grid)` in float64, NaN where the file has nothing.

    Raises:
        SapcError: The file has no channel of the task, or not as many conditions of each.
    """
    names = grid.channels or ("u",)
    masks = mask.reshape(grid.n_channels, *grid.points_per_axis)
    values: dict[str, Tensor] = {}
    with open_variables(path) as variables:
        for name, pin_mask in zip(names, masks, strict=True):
            variable = variables.get(f"{name}{CONDITION_SUFFIX}") or variables.get(name)
            # A channel without a pinned point has no condition: it need not fit.
            is_relevant = bool(pin_mask.any()) or not bool(mask.any())
            if variable is not None and is_relevant:
                values[name] = _Placement(path, grid, pin_mask, tuple(order)).read(variable, variables)
        contents = ", ".join(v.describe() for v in variables.values())
    if not values:
        raise SapcError(
            f"{path} has none of the channels {', '.join(names)}; it has {contents or 'no arrays'}: "
            "name an array after its channel"
        )
    counts = {name: len(conditions) for name, conditions in values.items()}
    if len(set(counts.values())) > 1:
        numbers = ", ".join(f"{n} of {name}" for name, n in counts.items())
        raise SapcError(f"{path} has different numbers of conditions: {numbers}; give as many of each")
    missing_values = torch.full_like(next(iter(values.values())), torch.nan)
    channels = [values.get(name, missing_values) for name in names]
    return channels[0] if grid.n_channels == 1 else torch.stack(channels, 1)


def place_conditions(values: Array, grid: Grid, mask: Tensor) -> Tensor | None:
    """Put an array on the grid as conditions.

    Args:
        values: An array `(*grid)`, `(k, *grid)`, or the same without the axis of a single pinned point. A
            shape that fits in several ways is taken in this order.
        grid: Grid of the task.
        mask: Where fields are pinned, shaped as `grid.shape`.

    Returns:
        Conditions `(k, *grid)`, or None where the array has another shape.
    """
    if grid.n_channels > 1:
        return None
    placement = _Placement(Path(), grid, mask, ())
    axes = placement.fit_shape(values.shape, grid.names)
    if axes is None:
        return None
    placement.warn_if_ambiguous(values, axes)
    return placement.fill(values.astype(np.float64), axes)


class _Placement:
    """Place the values of a variable on the grid of a task."""

    def __init__(self, path: Path, grid: Grid, mask: Tensor, order: tuple[str, ...]) -> None:
        self.path, self.grid, self.order = path, grid, order or grid.names
        # The axis along which one point is pinned, and which one; that axis may be left out.
        self.single = _single(mask)
        self.name = None if self.single is None else grid.names[self.single[0]]

    def read(self, variable: Variable, variables: Variables) -> Tensor:
        """Read the values of a variable, `(k, *points)`."""
        has_names = any(d is not None for d in variable.dims)
        dims = self.fit_names(variable) if has_names else self.fit_shape(variable.shape, self.order)
        if dims is None:
            raise SapcError(self.refusal(variable))
        values = variable.read().astype(np.float64)
        if not has_names:
            self.warn_if_ambiguous(values, dims)
        for i, name in enumerate(dims):
            if name in self.grid.names and self._is_reversed(name, values.shape[i], variables):
                values = np.flip(values, i)
        # A frame that was cut out of whole fields may still say where it was.
        if self.name is not None and self.name not in dims:
            point = variables.get(self.name)
            if point is not None and point.shape in ((), (1,)):
                self._check_point(self.grid[self.name], point)
        return self.fill(values, dims)

    def fit_names(self, variable: Variable) -> tuple[str, ...] | None:
        """Return the dimensions by name, or None.

        They are those of the grid, or all but the one of the pinned point, and at most one that counts
        conditions.
        """
        dims = tuple(d if d is not None and d in self.grid.names else CONDITION for d in variable.dims)
        absent = set(self.grid.names) - set(dims)
        fits = all(self._has_size(d, n) for d, n in zip(dims, variable.shape, strict=True))
        return dims if fits and dims.count(CONDITION) <= 1 and absent <= {self.name} else None

    def fit_shape(self, shape: tuple[int, ...], order: Sequence[str]) -> tuple[str, ...] | None:
        """Return the dimensions by length: whole fields, else pinned parts, of one or several conditions."""
        whole, part = tuple(order), tuple(name for name in order if name != self.name)
        for names in (whole, part):
            for dims in (names, (CONDITION, *names)):
                if len(dims) == len(shape) and all(map(self._has_size, dims, shape)):
                    return dims
        return None

    def warn_if_ambiguous(self, values: Array, dims: tuple[str, ...]) -> None:
        """Warn where one whole field has the shape of several pinned parts, as many as there are times."""
        part = tuple(name for name in self.order if name != self.name)
        fits = values.shape[1:] == tuple(self.grid[name].n for name in part)
        # Where values are missing, it is a whole field.
        if self.name is None or dims != self.order or not fits or not np.isfinite(values).all():
            return
        shape = (len(values), *(1 if name == self.name else self.grid[name].n for name in self.order))
        warnings.warn(
            f"the condition of shape {values.shape} is read as one field ({', '.join(dims)}); "
            f"if it is {len(values)} conditions at one {self.name}, give it the shape {shape}",
            SapcWarning,
            stacklevel=2,
        )

    def fill(self, values: Array, dims: tuple[str, ...]) -> Tensor:
        """Return values along `dims` as `(k, *points)`, NaN elsewhere."""
        if CONDITION not in dims:
            values, dims = values[None], (CONDITION, *dims)
        present = [name for name in self.grid.names if name in dims]
        values = values.transpose(dims.index(CONDITION), *(dims.index(name) for name in present))
        out = torch.full((len(values), *self.grid.points_per_axis), torch.nan, dtype=torch.float64)
        ready = torch.from_numpy(np.ascontiguousarray(values))
        if self.single is None or ready.shape == out.shape:
            return out.copy_(ready)
        axis, index = self.single
        part = out.select(axis + 1, index)
        part.copy_(ready.reshape(part.shape))
        return out

    def refusal(self, variable: Variable) -> str:
        """Say what a variable should be instead."""

        def sizes(names: Sequence[str]) -> str:
            return ", ".join(f"{name}: {self.grid[name].n}" for name in names)

        part = [name for name in self.grid.names if name != self.name]
        part_text = f", or ({sizes(part)}), what is pinned" if self.name else ""
        return (
            f"{self.path}: {variable.describe()} does not fit the grid; expected "
            f"({sizes(self.grid.names)}){part_text}, with a dimension before it "
            "if there are several conditions"
        )

    def _has_size(self, name: str, n: int) -> bool:
        return name == CONDITION or n == self.grid[name].n or (n == 1 and name == self.name)

    def _is_reversed(self, name: str, n: int, variables: Variables) -> bool:
        """Tell whether an axis of the file decreases; refuse one that is not the grid's."""
        grid_axis, coordinate = self.grid[name], variables.get(name)
        if coordinate is None or coordinate.shape != (n,):
            return False
        if n < grid_axis.n:
            self._check_point(grid_axis, coordinate)
            return False
        axis, is_reversed = read_axis(self.path, name, n, coordinate, grid_axis.kind)
        # Coordinates are rounded.
        distance = max(abs(axis.start - grid_axis.start), abs(axis.stop - grid_axis.stop))
        if distance > 1e-3 * grid_axis.spacing:
            raise SapcError(
                f"{self.path} is on another grid: {name} has {n} points of [{axis.start:g}, {axis.stop:g}] "
                f"({axis.kind}), and {grid_axis.n} of [{grid_axis.start:g}, {grid_axis.stop:g}] "
                f"({grid_axis.kind}) are needed"
            )
        return is_reversed

    def _check_point(self, axis: Axis, coordinate: Variable) -> None:
        """Refuse a file whose one point of an axis is not the pinned one."""
        assert self.single is not None
        point, pinned_point = float(np.ravel(coordinate.read())[0]), float(axis.points[self.single[1]])
        if not abs(point - pinned_point) <= axis.spacing / 2:
            raise SapcError(
                f"{self.path} is at {axis.name} = {point:g}, and pinned is {axis.name} = {pinned_point:g}"
            )


def _single(mask: Tensor) -> tuple[int, int] | None:
    """Return the axis, and the index along it, where all points are pinned and no others; or None."""
    for axis in range(mask.ndim):
        rows = mask.movedim(axis, 0).flatten(1)
        index = rows.any(1).nonzero().flatten()
        if len(index) == 1 and bool(rows[index].all()):
            return axis, int(index)
    return None
