"""Fields into files: NetCDF-4 by the CF conventions, which xarray, netCDF4 and ParaView open.

A variable per channel with the dimensions sample, space, time; with two samples or more also `NAME_mean` and `NAME_std` (the unbiased
one, as in the metrics), and `NAME_quantile` if quantiles are asked for (linear between order statistics, as numpy's). Coordinates
carry `sapc_kind` and `sapc_bounds`, from which `read_fields` gets the same grid back.

Samples of several conditions have the dimensions condition and member instead of sample, their statistics are over the members of each
condition, and `NAME_condition` holds the conditions themselves, NaN where nothing is pinned.
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
from ..errors import SapcError, explain_misuse
from ..grid import Grid
from .conditions import CONDITION, ENDING, MEMBER
from .reading.formats import Dataset, import_xarray, make_coordinate
from .reading.hdf5 import Array

Entry = tuple[tuple[str, ...], Array, dict[str, Any]]  # dimensions, values, attributes
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
    """An xarray dataset of fields and their statistics; `units` and `labels` go by channel and axis name.

    With `conditions` `(k, *grid)` the fields are k m samples, the m of each condition in a row: dimensions are condition and member, and
    statistics are those of each condition.
    """
    xr = import_xarray("writing")
    fields = torch.as_tensor(fields)
    grid.check(fields)
    if len(fields) == 0:
        raise SapcError("there are no samples to write; give at least one")
    said: Any = (quantiles,) if isinstance(quantiles, float) else quantiles
    quantiles = tuple(said)
    if isinstance(said, str) or not all(0 <= q <= 1 for q in quantiles):
        raise SapcError(f"quantiles are numbers between 0 and 1, as (0.05, 0.95), got {quantiles!r}")
    names = grid.channels or ("u",)
    about = {
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
    coordinates = _coordinates(grid, about, counts, quantiles)
    variables: list[tuple[str, Entry]] = []
    for name, array in zip(names, values, strict=True):
        variables += _statistics(name, array, tuple(counts), grid, about[name], quantiles)
    if conditions is not None:
        for name, array in zip(names, _by_channel(conditions, grid), strict=True):
            label = f"pinned values of {about[name].get('long_name', name)}, NaN elsewhere"
            entry = ((CONDITION, *grid.names), array, {**about[name], "long_name": label})
            variables.append((f"{name}{ENDING}", entry))
    _check_names(grid, [name for name, _ in (*variables, *coordinates)])
    dataset: Dataset = xr.Dataset(dict(variables), dict(coordinates), _attributes(attributes))
    return dataset


def _by_channel(fields: Tensor, grid: Grid) -> Array:
    """Fields as `(channel, n, *lattice)`."""
    values = fields.detach().cpu().numpy()
    return np.moveaxis(values, 1, 0) if grid.n_channels > 1 else values[None]


def _coordinates(
    grid: Grid, about: Mapping[str, dict[str, str]], counts: Mapping[str, int], quantiles: Sequence[float]
) -> list[tuple[str, Entry]]:
    # CF's standard name of what counts the members of an ensemble.
    realization = {"standard_name": "realization"}
    found: list[tuple[str, Entry]] = []
    for name, n in counts.items():
        what = {"long_name": "number of the condition"} if name == CONDITION else realization
        found.append((name, ((name,), np.arange(n, dtype=np.int32), {**what, "units": "1"})))
    for coordinate in (make_coordinate(grid, name) for name in grid.names):
        name, said = coordinate.name, {**coordinate.attributes, **about[coordinate.name]}
        found.append((name, ((name,), coordinate.read(), said)))
    if quantiles:
        said = {"units": "1", "long_name": "quantile"}
        found.append(("quantile", (("quantile",), np.array(quantiles, np.float64), said)))
    return found


def _statistics(
    name: str,
    values: Array,
    counted: tuple[str, ...],
    grid: Grid,
    about: dict[str, str],
    quantiles: Sequence[float],
) -> list[tuple[str, Entry]]:
    """A channel with its mean, standard deviation and quantiles over the last of what is counted: samples, or members of a condition."""
    *outer, over = counted
    axis = len(outer)
    found: list[tuple[str, Entry]] = [(name, ((*counted, *grid.names), values, about))]
    label = about.get("long_name", name)

    def add(what: str, dims: tuple[str, ...], array: Array, method: dict[str, str], words: str) -> None:
        attributes = {**about, "long_name": f"{words} of {label} over the {over}s", **method}
        entry = ((*dims, *outer, *grid.names), array.astype(values.dtype), attributes)
        found.append((f"{name}_{what}", entry))

    if values.shape[axis] > 1:
        add("mean", (), values.mean(axis, dtype=np.float64), {"cell_methods": f"{over}: mean"}, "mean")
        spread = values.std(axis, dtype=np.float64, ddof=1)
        add("std", (), spread, {"cell_methods": f"{over}: standard_deviation"}, "standard deviation")
    if quantiles:
        levels = np.quantile(values.astype(np.float64), quantiles, axis=axis)
        # CF has no method for quantiles; its free text in brackets may say so, and a median is one.
        is_median = list(quantiles) == [0.5]
        method = f"{over}: {'median' if is_median else f'point (comment: quantiles over {over})'}"
        add("quantile", ("quantile",), levels, {"cell_methods": method}, "quantiles")
    return found


def _check_names(grid: Grid, names: list[str]) -> None:
    """Names of a file must differ, and NetCDF refuses some."""
    if len(set(names)) < len(names):
        raise SapcError(
            f"channels {', '.join(grid.channels)} and axes {', '.join(grid.names)} leave no names for sample, condition, member, "
            "quantile or statistics, as u_mean of u; rename them"
        )
    for name in names:
        if "/" in name or name != name.strip() or not name:
            raise SapcError(f"NetCDF has no room for the name {name!r}; rename it without slash and spaces")


def _attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of the file: NetCDF knows text and numbers, the rest is written as JSON."""
    source = f"sapc {__version__}"
    every = {
        "Conventions": "CF-1.11",
        "title": "Samples of PDE solutions",
        "history": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} written by {source}",
        "source": source,
        **given,
    }
    plain = (str, int, float, np.integer, np.floating)
    return {
        key: value if isinstance(value, plain) and not isinstance(value, bool) else json.dumps(value)
        for key, value in every.items()
    }


@explain_misuse
def write_netcdf(path: str | os.PathLike[str], dataset: Dataset) -> Path:
    """Write a dataset as compressed NetCDF-4, atomically, and return its path."""
    if not hasattr(dataset, "to_netcdf"):
        raise SapcError(
            f"write_netcdf writes an xarray dataset, got {type(dataset).__name__}; make one with to_xarray(fields, grid)"
        )
    import_xarray("writing")
    path, content = Path(path), io.BytesIO()
    packed = {"zlib": True, "complevel": 4, "shuffle": True}
    encoding: dict[Any, dict[str, Any]] = {
        name: {"_FillValue": None, **(packed if v.ndim > 1 and v.dtype.kind in "fiu" else {})}
        for name, v in dataset.variables.items()
    }
    dataset.to_netcdf(content, engine="h5netcdf", format="NETCDF4", encoding=encoding)
    with ensure_folder(path.parent), atomic_write(path) as partial:
        partial.write_bytes(content.getbuffer())
    return path
