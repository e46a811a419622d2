"""Which variables of a file are the channels: those named, else those of most dimensions, which must agree in them.

Bounds of coordinates are no channels. Where variables of most dimensions disagree, those along a dimension of samples are meant:
beside fields, a file may hold their quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...errors import SapcError
from .formats import Variable, Variables

SAMPLES = (
    "sample",
    "samples",
    "n",
    "batch",
    "member",
    "ensemble",
    "realization",
    "realisation",
    "run",
    "case",
)


def pick_channels(
    path: Path, variables: Variables, names: Sequence[str] | None, samples: str | None
) -> list[Variable]:
    """The channels of a file, all of the same dimensions and of real numbers."""
    chosen = _largest(path, variables, samples) if names is None else _named(path, variables, names)
    first = chosen[0]
    for other in chosen:
        if (other.dims, other.shape) != (first.dims, first.shape):
            raise SapcError(
                f"{path}: {first.describe()} and {other.describe()} have different dimensions; "
                f"interpolate them to one grid, or name those to read: channels=({first.name!r},)"
            )
        if other.kind not in "fiu":
            what = {"c": "complex numbers", "b": "truth values"}.get(other.kind, "text or objects")
            raise SapcError(
                f"{path}: {other.name!r} holds {what}; channels must be real numbers: split or convert it"
            )
    if len(first.shape) < 2:
        raise SapcError(
            f"{path}: {first.describe()} is no field; it needs a dimension of samples and one of space"
        )
    return chosen


def _named(path: Path, variables: Variables, names: Sequence[str]) -> list[Variable]:
    names = (names,) if isinstance(names, str) else tuple(names)
    if not names or len(set(names)) < len(names):
        raise SapcError(
            f"`channels` must name variables, each once, got {list(names)}; leave it out to take all"
        )
    for name in names:
        if name not in variables:
            there = ", ".join(v.name for v in variables.values() if len(v.shape) >= 2) or "none"
            raise SapcError(f"{path} has no channel {name!r}; it has {there}")
    return [variables[name] for name in names]


def _largest(path: Path, variables: Variables, samples: str | None) -> list[Variable]:
    bounds = {v.text("bounds") for v in variables.values()}
    found = [v for v in variables.values() if len(v.shape) >= 2 and v.name not in bounds]
    found = [v for v in found if v.kind in "fiuc"] or found
    if not found:
        raise SapcError(
            f"{path} has no array of two or more dimensions; fields need samples and at least one axis"
        )
    most = max(len(v.shape) for v in found)
    found = [v for v in found if len(v.shape) == most]
    if len({(v.dims, v.shape) for v in found}) == 1:
        return found
    sampled = [v for v in found if any(is_samples(d, samples, variables) for d in v.dims)]
    return sampled or found


def is_samples(dim: str | None, samples: str | None, variables: Variables) -> bool:
    """Whether a dimension is that of the samples, by its name or by its coordinate's."""
    if dim is None or samples is not None:
        return dim is not None and dim == samples
    coordinate = variables.get(dim)
    standard = coordinate.text("standard_name") if coordinate is not None else None
    return dim.lower() in SAMPLES or standard == "realization"
