"""Write fields into files: NetCDF-4 by the CF conventions, which xarray, netCDF4 and ParaView open.

A variable per channel has the dimensions sample, space, time. With two samples or more there are also
`NAME_mean` and `NAME_std` (the unbiased one, as in the metrics), and `NAME_quantile` if quantiles are asked
for (linear between order statistics, as numpy's). Coordinates carry `sapc_kind` and `sapc_bounds`, from which
`read_fields` gets the same grid back.

Samples of several conditions have the dimensions condition and member instead of sample, their statistics are
over the members of each condition, and `NAME_condition` holds the conditions themselves, NaN where nothing is
pinned.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._files import atomic_write, ensure_folder
from .._version import __version__
from ..errors import SapcError, check_type, explain_misuse
from ..grid import Grid
from .conditions import CONDITION, CONDITION_SUFFIX, MEMBER
from .reading.formats import Dataset, import_xarray, make_coordinate
from .reading.hdf5 import Array

Entry = tuple[tuple[str, ...], Array, dict[str, Any]]
"""Dimensions, values and attributes of a variable."""

NO_UNITS: Mapping[str, str] = {}


@explain_misuse
def to_xarray(
    fields: Tensor,
    grid: Grid,
    *,
    units: Mapping[str, str] = NO_UNITS,
    labels: Mapping[str, str] = NO_UNITS,
    quantiles: Sequence[float] = (),
    attributes: Mapping[str, Any] = NO_UNITS,
    conditions: Tensor | None = None,
) -> Dataset:
    """Make an xarray dataset of fields and their statistics.

    Args:
        fields: Samples `(n, *grid)`.
        grid: Their grid.
        units: Units by name of channel or axis.
        labels: Long names by name of channel or axis.
        quantiles: Levels between 0 and 1 of the quantiles to add.
        attributes: Attributes of the file; what is neither text nor a number is written as JSON.
        conditions: Conditions `(k, *grid)`. The fields are then k m samples, the m of each condition in a
            row; dimensions are condition and member, and statistics are those of each condition.

    Returns:
        The dataset.

    Raises:
        SapcError: There is nothing to write, or fields, conditions, quantiles or names do not fit.
    """
    xr = import_xarray("writing")
    check_type(grid, Grid, "grid of to_xarray", "a Grid, as task.grid")
    fields = torch.as_tensor(fields)
    grid.check(fields)
    if len(fields) == 0:
        raise SapcError("there are no samples to write; give at least one")
    quantiles = _check_quantiles(quantiles)
    names = grid.channels or ("u",)
    metadata = {
        name: {k: v[name] for k, v in (("units", units), ("long_name", labels)) if name in v}
        for name in (*grid.names, *names)
    }
    values, counts = _by_channel(fields, grid), {"sample": len(fields)}
    if conditions is not None:
        grid.check(conditions, "conditions' array")
        n, k = len(fields), len(conditions)
        if n % k:
            raise SapcError(
                f"{n} fields of {k} conditions: give as many of each, one condition after the other"
            )
        counts = {CONDITION: k, MEMBER: n // k}
        values = values.reshape(len(names), *counts.values(), *grid.points_per_axis)
    coordinates = _coordinates(grid, metadata, counts, quantiles)
    variables: list[tuple[str, Entry]] = []
    for name, array in zip(names, values, strict=True):
        variables += _statistics(name, array, tuple(counts), grid, metadata[name], quantiles)
    if conditions is not None:
        for name, array in zip(names, _by_channel(conditions, grid), strict=True):
            label = f"condition of {metadata[name].get('long_name', name)}: its pinned values count"
            entry = ((CONDITION, *grid.names), array, {**metadata[name], "long_name": label})
            variables.append((f"{name}{CONDITION_SUFFIX}", entry))
    _check_names(grid, [name for name, _ in (*variables, *coordinates)])
    dataset: Dataset = xr.Dataset(dict(variables), dict(coordinates), _attributes(attributes))
    return dataset


def _check_quantiles(quantiles: Any) -> tuple[float, ...]:
    levels = (quantiles,) if isinstance(quantiles, float) else tuple(quantiles)
    if isinstance(quantiles, str) or not all(0 <= q <= 1 for q in levels):
        raise SapcError(f"quantiles are numbers between 0 and 1, as (0.05, 0.95), got {levels!r}")
    return levels


def _by_channel(fields: Tensor, grid: Grid) -> Array:
    """Return fields as `(channel, n, *points)`."""
    values = fields.detach().cpu().numpy()
    return np.moveaxis(values, 1, 0) if grid.n_channels > 1 else values[None]


def _coordinates(
    grid: Grid, metadata: Mapping[str, dict[str, str]], counts: Mapping[str, int], quantiles: Sequence[float]
) -> list[tuple[str, Entry]]:
    # CF's standard name of what counts the members of an ensemble.
    realization = {"standard_name": "realization"}
    entries: list[tuple[str, Entry]] = []
    for name, n in counts.items():
        attributes = {"long_name": "number of the condition"} if name == CONDITION else realization
        entries.append((name, ((name,), np.arange(n, dtype=np.int32), {**attributes, "units": "1"})))
    for coordinate in (make_coordinate(grid, name) for name in grid.names):
        name = coordinate.name
        entries.append((name, ((name,), coordinate.read(), {**coordinate.attributes, **metadata[name]})))
    if quantiles:
        levels = np.array(quantiles, np.float64)
        entries.append(("quantile", (("quantile",), levels, {"units": "1", "long_name": "quantile"})))
    return entries


def _statistics(
    name: str,
    values: Array,
    sample_dims: tuple[str, ...],
    grid: Grid,
    metadata: dict[str, str],
    quantiles: Sequence[float],
) -> list[tuple[str, Entry]]:
    """Return a channel with mean, standard deviation and quantiles over the last dimension of samples."""
    *outer, member_dim = sample_dims
    axis = len(outer)
    entries: list[tuple[str, Entry]] = [(name, ((*sample_dims, *grid.names), values, metadata))]
    label = metadata.get("long_name", name)

    def add(suffix: str, dims: tuple[str, ...], array: Array, method: str, words: str) -> None:
        attributes = {
            **metadata,
            "long_name": f"{words} of {label} over the {member_dim}s",
            "cell_methods": f"{member_dim}: {method}",
        }
        entry = ((*dims, *outer, *grid.names), array.astype(values.dtype), attributes)
        entries.append((f"{name}_{suffix}", entry))

    if values.shape[axis] > 1:
        add("mean", (), values.mean(axis, dtype=np.float64), "mean", "mean")
        deviation = values.std(axis, dtype=np.float64, ddof=1)
        add("std", (), deviation, "standard_deviation", "standard deviation")
    if quantiles:
        levels = np.quantile(values.astype(np.float64), quantiles, axis=axis)
        # CF has no method for quantiles; its free text in brackets may say so, and a median is one.
        is_median = list(quantiles) == [0.5]
        method = "median" if is_median else f"point (comment: quantiles over {member_dim})"
        add("quantile", ("quantile",), levels, method, "quantiles")
    return entries


def _check_names(grid: Grid, names: list[str]) -> None:
    """Refuse names that are not unique, and those that NetCDF refuses."""
    if len(set(names)) < len(names):
        raise SapcError(
            f"channels {', '.join(grid.channels)} and axes {', '.join(grid.names)} leave no names for "
            "sample, condition, member, quantile or statistics, as u_mean of u; rename them"
        )
    for name in names:
        if "/" in name or name != name.strip() or not name:
            raise SapcError(f"NetCDF has no room for the name {name!r}; rename it without slash and spaces")


def _attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of the file: NetCDF knows text and numbers, anything else is written as JSON."""
    source = f"sapc {__version__}"
    entries = {
        "Conventions": "CF-1.11",
        "title": "Samples of PDE solutions",
        "history": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} written by {source}",
        "source": source,
        **attributes,
    }
    plain = (str, int, float, np.integer, np.floating)
    return {
        key: value if isinstance(value, plain) and not isinstance(value, bool) else json.dumps(value)
        for key, value in entries.items()
    }


@explain_misuse
def write_netcdf(path: str | os.PathLike[str], dataset: Dataset) -> Path:
    """Write a dataset as compressed NetCDF-4, atomically.

    Args:
        path: The file.
        dataset: What `to_xarray` returns.

    Returns:
        The path of the file.

    Raises:
        SapcError: It is no dataset, or xarray is not installed.
    """
    if not hasattr(dataset, "to_netcdf"):
        raise SapcError(
            f"write_netcdf writes an xarray dataset, got {type(dataset).__name__}; "
            "make one with to_xarray(fields, grid)"
        )
    import_xarray("writing")
    path, content = Path(path), io.BytesIO()
    compression = {"zlib": True, "complevel": 4, "shuffle": True}
    encoding: dict[Any, dict[str, Any]] = {
        name: {"_FillValue": None, **(compression if v.ndim > 1 and v.dtype.kind in "fiu" else {})}
        for name, v in dataset.variables.items()
    }
    dataset.to_netcdf(content, engine="h5netcdf", format="NETCDF4", encoding=encoding)
    with ensure_folder(path.parent), atomic_write(path) as partial:
        partial.write_bytes(content.getbuffer())
    return path
