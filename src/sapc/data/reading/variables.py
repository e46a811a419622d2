"""Which variables of a file are the channels, and which of their dimensions are samples, space in the file's order, time.

Channels are the variables that are named, else those of most dimensions, which must agree in them. Bounds of coordinates are no channels.
Where variables of most dimensions disagree, those along a dimension of samples are meant: beside fields, a file may hold their quantiles.

A dimension of samples is named by the caller, else bears one of the usual names, else is the first. Time is named by the caller, else
has CF's `axis = "T"` or `standard_name = "time"` or is called t or time, else is not there. Dimensions without a name, as in plain HDF5
and npz files, are called dim_0, dim_1, ... in errors, and `first` (after the samples) and `last` where the caller names them: the
file's one-dimensional arrays find theirs by length, x, y, z in this order where lengths are the same. Which one is time is not guessed.

A coordinate of another length than its axis is an error, but for times with one entry more than there are frames, as PDEBench writes them:
the last is that of a frame which was not kept. The frames then have the others, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import SapcError, SapcWarning
from .formats import Variable, Variables

TIMES = ("t", "time")
SPACES = ("x", "y", "z", "lon", "lat", "longitude", "latitude")
MADE_UP = ("x", "y", "z")
NOT_AXES = ("split", "condition_index", "member_index")  # of samples: for training or not, and which is which
CHANNELS = ("channel", "channels", "variable", "component")
SAMPLES = frozenset(
    ["sample", "samples", "n", "batch", "member", "ensemble", "realization", "realisation", "run", "case"]
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
            raise SapcError(f"{path}: {other.name!r} holds {what}; channels must be real numbers")
    if len(first.shape) < 2:
        raise SapcError(f"{path}: {first.describe()} is no field; it needs samples and space")
    return chosen


def _named(path: Path, variables: Variables, names: Sequence[str]) -> list[Variable]:
    names = (names,) if isinstance(names, str) else tuple(names)
    if not names or len(set(names)) < len(names):
        raise SapcError(
            f"`channels` must name variables, each once, got {list(names)}; leave out to take all"
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
        raise SapcError(f"{path} has no array of two or more dimensions; fields need samples and an axis")
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


@dataclass(frozen=True)
class Dimension:
    """An axis to be: where it is in the file's arrays, its name there, its name here, its coordinate."""

    place: int
    dim: str
    name: str
    coordinate: Variable | None


@dataclass(frozen=True)
class Layout:
    """The dimensions of the channels: where the samples are, and the axes, time last unless steady."""

    dims: tuple[str, ...]
    samples: int
    axes: tuple[Dimension, ...]
    steady: bool


def layout_of(
    path: Path,
    like: Variable,
    variables: Variables,
    samples: str | None,
    time: str | None,
    steady: bool | None,
) -> Layout:
    """What each dimension of the channels is."""
    if steady and time is not None:
        raise SapcError(f"steady fields have no time, but time={time!r} was given; leave one of the two out")
    dims = tuple(d or f"dim_{i}" for i, d in enumerate(like.dims))
    if len(set(dims)) < len(dims):
        raise SapcError(f"{path}: two dimensions of {like.describe():.200} have the same name; rename one")
    for dim in dims:
        if dim.lower() in CHANNELS and dim not in (samples, time):
            raise SapcError(f"{path}: {like.describe()} has {dim!r}; write one variable per channel")
    finder = _Finder(path, like, dims, variables)
    sample = finder.samples(samples, time)
    moment = finder.time(sample, time, steady)
    space = [d for d in dims if d not in (sample, moment)]
    if not 1 <= len(space) <= 3:
        raise SapcError(
            f"{path}: {like.describe()} has {len(space)} spatial dimensions ({', '.join(space) or 'none'}); "
            "1 to 3 are needed: take a slice, or name the others by samples= and time="
        )
    found = finder.coordinates(space, sample, moment)
    if moment is None and not steady and any(d not in found for d in finder.unnamed(space)):
        raise SapcError(
            f"{path}: which dimension of {like.describe()} is time? Say time='last', time='first' or steady=True, "
            "or add a one-dimensional array per axis to the file, as x and t"
        )
    return Layout(dims, dims.index(sample), finder.axes(space, moment, found), moment is None)


@dataclass(frozen=True)
class _Finder:
    path: Path
    like: Variable
    dims: tuple[str, ...]
    variables: Variables

    def size(self, dim: str) -> int:
        return self.like.shape[self.dims.index(dim)]

    def unnamed(self, dims: Sequence[str]) -> list[str]:
        return [d for d in dims if self.like.dims[self.dims.index(d)] is None]

    def _fitted(self, dim: str, coordinate: Variable, time: str | None) -> Variable:
        """A coordinate with one entry per point of its dimension; of times also one with one entry more, less the last."""
        n = self.size(dim)
        if coordinate.shape == (n,):
            return coordinate
        if dim == time and coordinate.shape == (n + 1,):
            told = f"{coordinate.name!r} has {n + 1} times for {n} frames; the frames are at the first {n}"
            warnings.warn(f"{self.path}: {told}", SapcWarning, stacklevel=2)
            return replace(coordinate, shape=(n,), load=lambda: coordinate.read()[:n])
        hint = "" if time is not None else "; or say which dimension is time, as time='first'"
        raise SapcError(
            f"{self.path}: the coordinate {coordinate.name!r} has shape {coordinate.shape}, but axis {dim!r} of "
            f"{self.like.describe()} has {n} points; give it one entry per point, or another name if it is no coordinate{hint}"
        )

    def axis_letter(self, dim: str) -> str | None:
        """X, Y, Z or T, as the coordinate says or the name."""
        coordinate = self.variables.get(dim)
        if coordinate is not None and coordinate.shape == (self.size(dim),):
            letter = coordinate.text("axis")
            if letter is not None or coordinate.text("standard_name") == "time":
                return (letter or "T").upper()
        return "T" if dim.lower() in TIMES else "X" if dim.lower() in SPACES else None

    def samples(self, said: str | None, time: str | None) -> str:
        if said is not None:
            return self._said(said, "samples")
        for dim in self.dims:
            if is_samples(dim, None, self.variables):
                return dim
        if self.dims[0] == time or self.axis_letter(self.dims[0]) is not None:
            raise SapcError(
                f"{self.path}: {self.like.describe()} has no dimension of samples; several runs are needed: "
                "stack them along a dimension called sample, or name it by samples="
            )
        return self.dims[0]

    def _said(self, dim: str, what: str) -> str:
        if dim not in self.dims:
            raise SapcError(
                f"{self.path}: {self.like.describe()} has no dimension {dim!r} for {what}=; name another"
            )
        return dim

    def time(self, sample: str, said: str | None, steady: bool | None) -> str | None:
        """The dimension that is time; None if there is none."""
        rest = [d for d in self.dims if d != sample]
        if said is not None:
            dim = {"first": rest[0], "last": rest[-1]}.get(said) if said not in self.dims else said
            if dim == sample:
                raise SapcError(f"{self.path}: dimension {sample!r} cannot be samples and time; say samples=")
            return self._said(dim or said, "time")
        found = [d for d in rest if self.axis_letter(d) == "T"] or self._fitting(rest)
        if len(found) > 1:
            raise SapcError(
                f"{self.path}: which of {', '.join(found)} of {self.like.describe()} is time? Say time='last', "
                "time='first' or its name"
            )
        if steady and found:
            raise SapcError(
                f"{self.path}: {self.like.describe()} has the time {found[0]!r}, but steady=True was said; leave that out or keep one frame"
            )
        return found[0] if found else rest[-1] if steady is False else None

    def _fitting(self, rest: Sequence[str]) -> list[str]:
        """Dimensions without a name that an array called t or time fits."""
        sizes = {v.shape[0] for v in self._loose() if plain(v.name) in TIMES}
        return [d for d in self.unnamed(rest) if self.size(d) in sizes]

    def _loose(self) -> list[Variable]:
        lists = (v for v in self.variables.values() if len(v.shape) == 1 and v.kind in "fiu")
        return [v for v in lists if v.name not in NOT_AXES]

    def coordinates(self, space: Sequence[str], sample: str, time: str | None) -> dict[str, Variable]:
        """Coordinates by dimension: of its own name, or for those without a name by length."""
        every = [*space, *((time,) if time else ())]
        found = {d: self._fitted(d, self.variables[d], time) for d in every if d in self.variables}
        if time is not None and self.unnamed([time]):
            found |= self._match([time], TIMES, sample)
            if time not in found and (times := [v for v in self._loose() if plain(v.name) in TIMES]):
                found[time] = self._fitted(time, times[0], time)
        unnamed = self.unnamed(space)
        for n in dict.fromkeys(map(self.size, unnamed)):
            found |= self._match([d for d in unnamed if self.size(d) == n], SPACES, sample)
        self._check_rest(every, sample, found)
        return found

    def _check_rest(self, every: Sequence[str], sample: str, found: dict[str, Variable]) -> None:
        """Refuse arrays with the name of a coordinate that fit no axis."""
        bare = [d for d in self.unnamed(every) if d not in found]
        for v in self._loose():
            name = plain(v.name)
            is_used = v.dims != (None,) or any(v.name == used.name for used in found.values())
            if is_used or name not in (*TIMES, *SPACES):
                continue
            # One entry per sample is a parameter, and a single one a moment or a place.
            if v.shape not in ((1,), (self.size(sample),)) or (bare and name in SPACES):
                self._fitted(bare[0] if bare else every[-1], v, None)

    def _match(self, dims: list[str], names: tuple[str, ...], sample: str) -> dict[str, Variable]:
        """Arrays for dimensions of one length: those of usual names in their order, else the only other one of that length."""
        n = self.size(dims[0])
        fitting = [v for v in self._loose() if v.shape == (n,)]
        usual = [v for name in names for v in fitting if plain(v.name) == name]
        if not usual:
            others = [v for v in fitting if plain(v.name) not in (*TIMES, *SPACES)]
            unique = names == SPACES and len(dims) == len(others) == 1 and n != self.size(sample)
            return {dims[0]: others[0]} if unique else {}
        if len(usual) != len(dims):
            raise SapcError(
                f"{self.path}: {', '.join(v.name for v in usual)} and {', '.join(dims)} of {self.like.describe()} have {n} points each, "
                "so it is open which belongs to which; write one array per axis, or name the dimensions in the file"
            )
        return dict(zip(dims, usual, strict=True))

    def axes(
        self, space: Sequence[str], time: str | None, found: dict[str, Variable]
    ) -> tuple[Dimension, ...]:
        """The axes in order, with names made up where neither the dimension nor a coordinate has one."""
        dims, unnamed = [*space, *((time,) if time else ())], set(self.unnamed(self.dims))
        names = {
            d: plain(found[d].name) if d in unnamed else d for d in dims if d in found or d not in unnamed
        }
        free = [name for name in MADE_UP if name not in names.values()]
        for dim in dims:
            if dim not in names:
                names[dim] = "t" if dim == time else free.pop(0)
        return tuple(Dimension(self.dims.index(d), d, names[d], found.get(d)) for d in dims)


def plain(name: str) -> str:
    """A coordinate's name without the word coordinate, in small letters: x-coordinate is x."""
    lower = name.lower()
    for ending in ("-coordinate", "_coordinate", "-coord", "_coord"):
        lower = lower.removesuffix(ending)
    return lower
