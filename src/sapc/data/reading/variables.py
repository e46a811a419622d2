"""Find which variables of a file are the channels, and which of their dimensions are samples, space and time.

Channels are the variables that the caller names, else those of most dimensions, which must agree in them.
Bounds of coordinates are no channels. Where variables of most dimensions disagree, those along a dimension of
samples
are taken: beside fields, a file may hold their quantiles.

The dimension of samples is named by the caller, else bears one of the usual names, else is the first. Time is
named by the caller, else has CF's `axis = "T"` or `standard_name = "time"` or is called t or time, else does
not exist. Space keeps the order of the file.

Dimensions without a name, as in plain HDF5 and npz files, are called dim_0, dim_1, ... in messages, and
`first` (after the samples) and `last` where the caller names them. They find their coordinates among the
one-dimensional arrays of the file by length, x, y, z in this order where lengths are the same. Which one is
time is not guessed.

A coordinate of another length than its axis is an error. The exception are times with one entry more than
there are frames, as PDEBench writes them, where the last is the time of a frame that is not in the file. The
frames then have the others, with a warning.
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
DEFAULT_NAMES = ("x", "y", "z")
SAMPLE_VARIABLES = ("split", "condition_index", "member_index")
"""Arrays with one entry per sample, which are no coordinates: what it is for, and which one it is."""

CHANNELS = ("channel", "channels", "variable", "component")
SAMPLES = frozenset(
    ["sample", "samples", "n", "batch", "member", "ensemble", "realization", "realisation", "run", "case"]
)


def pick_channels(
    path: Path, variables: Variables, names: Sequence[str] | None, samples: str | None
) -> list[Variable]:
    """Pick the channels of a file, all of the same dimensions and of real numbers.

    Args:
        path: The file, for messages.
        variables: All variables of the file.
        names: Names of the channels, if the caller gave them.
        samples: Name of the dimension of samples, if the caller gave it.

    Returns:
        The channels.

    Raises:
        SapcError: There are no channels, or they do not fit together.
    """
    channels = _largest(path, variables, samples) if names is None else _select(path, variables, names)
    first = channels[0]
    for channel in channels:
        if (channel.dims, channel.shape) != (first.dims, first.shape):
            raise SapcError(
                f"{path}: {first.describe()} and {channel.describe()} have different dimensions; "
                f"interpolate them to one grid, or name those to read: channels=({first.name!r},)"
            )
        if channel.kind not in "fiu":
            content = {"c": "complex numbers", "b": "truth values"}.get(channel.kind, "text or objects")
            raise SapcError(f"{path}: {channel.name!r} holds {content}; channels must be real numbers")
    if len(first.shape) < 2:
        raise SapcError(f"{path}: {first.describe()} is no field; it needs samples and space")
    return channels


def _select(path: Path, variables: Variables, names: Sequence[str]) -> list[Variable]:
    names = (names,) if isinstance(names, str) else tuple(names)
    if not names or len(set(names)) < len(names):
        raise SapcError(
            f"`channels` must name variables, each once, got {list(names)}; leave out to take all"
        )
    for name in names:
        if name not in variables:
            choices = ", ".join(v.name for v in variables.values() if len(v.shape) >= 2) or "none"
            raise SapcError(f"{path} has no channel {name!r}; it has {choices}")
    return [variables[name] for name in names]


def _largest(path: Path, variables: Variables, samples: str | None) -> list[Variable]:
    bounds = {v.text("bounds") for v in variables.values()}
    fields = [v for v in variables.values() if len(v.shape) >= 2 and v.name not in bounds]
    fields = [v for v in fields if v.kind in "fiuc"] or fields
    if not fields:
        raise SapcError(f"{path} has no array of two or more dimensions; fields need samples and an axis")
    ndim = max(len(v.shape) for v in fields)
    fields = [v for v in fields if len(v.shape) == ndim]
    if len({(v.dims, v.shape) for v in fields}) == 1:
        return fields
    ensembles = [v for v in fields if any(is_samples(d, samples, variables) for d in v.dims)]
    return ensembles or fields


def is_samples(dim: str | None, samples: str | None, variables: Variables) -> bool:
    """Tell whether a dimension is that of the samples, by its name or its coordinate's standard name."""
    if dim is None or samples is not None:
        return dim is not None and dim == samples
    coordinate = variables.get(dim)
    standard = coordinate.text("standard_name") if coordinate is not None else None
    return dim.lower() in SAMPLES or standard == "realization"


@dataclass(frozen=True)
class Dimension:
    """A dimension of the file that becomes an axis.

    Attributes:
        position: Which dimension of the arrays it is.
        dim: Its name in the file.
        name: The name of the axis.
        coordinate: Its coordinate, if the file has one.
    """

    position: int
    dim: str
    name: str
    coordinate: Variable | None


@dataclass(frozen=True)
class Layout:
    """The dimensions of the channels.

    Attributes:
        dims: Their names in the file.
        samples: Which dimension is that of the samples.
        axes: The axes, time last unless steady.
        steady: Whether there is no time.
    """

    dims: tuple[str, ...]
    samples: int
    axes: tuple[Dimension, ...]
    steady: bool


def find_layout(
    path: Path,
    channel: Variable,
    variables: Variables,
    samples: str | None,
    time: str | None,
    steady: bool | None,
) -> Layout:
    """Find what each dimension of the channels is.

    Args:
        path: The file, for messages.
        channel: One of the channels.
        variables: All variables of the file.
        samples: Name of the dimension of samples, if the caller gave it.
        time: Name of the dimension of time, "first" or "last", if the caller gave it.
        steady: Whether there is no time, if the caller said so.

    Returns:
        The layout.

    Raises:
        SapcError: A dimension cannot be identified, or a coordinate does not fit.
    """
    if steady and time is not None:
        raise SapcError(f"steady fields have no time, but time={time!r} was given; leave one of the two out")
    dims = tuple(d or f"dim_{i}" for i, d in enumerate(channel.dims))
    if len(set(dims)) < len(dims):
        raise SapcError(f"{path}: two dimensions of {channel.describe():.200} have the same name; rename one")
    for dim in dims:
        if dim.lower() in CHANNELS and dim not in (samples, time):
            raise SapcError(f"{path}: {channel.describe()} has {dim!r}; write one variable per channel")
    finder = _LayoutFinder(path, channel, dims, variables)
    sample_dim = finder.find_samples(samples, time)
    time_dim = finder.find_time(sample_dim, time, steady)
    space = [d for d in dims if d not in (sample_dim, time_dim)]
    if not 1 <= len(space) <= 3:
        raise SapcError(
            f"{path}: {channel.describe()} has {len(space)} spatial dimensions "
            f"({', '.join(space) or 'none'}); 1 to 3 are needed: take a slice, or "
            "name the others by samples= and time="
        )
    coordinates = finder.find_coordinates(space, sample_dim, time_dim)
    if time_dim is None and not steady and any(d not in coordinates for d in finder.without_name(space)):
        raise SapcError(
            f"{path}: which dimension of {channel.describe()} is time? Say time='last', time='first' or "
            "steady=True, or add a one-dimensional array per axis to the file, as x and t"
        )
    axes = finder.make_axes(space, time_dim, coordinates)
    return Layout(dims, dims.index(sample_dim), axes, time_dim is None)


@dataclass(frozen=True)
class _LayoutFinder:
    path: Path
    channel: Variable
    dims: tuple[str, ...]
    variables: Variables

    def size(self, dim: str) -> int:
        return self.channel.shape[self.dims.index(dim)]

    def without_name(self, dims: Sequence[str]) -> list[str]:
        return [d for d in dims if self.channel.dims[self.dims.index(d)] is None]

    def _fit(self, dim: str, coordinate: Variable, time: str | None) -> Variable:
        """Return a coordinate with one entry per point of its axis; the last of n + 1 times is left out."""
        n = self.size(dim)
        if coordinate.shape == (n,):
            return coordinate
        if dim == time and coordinate.shape == (n + 1,):
            message = f"{coordinate.name!r} has {n + 1} times for {n} frames; the frames are at the first {n}"
            warnings.warn(f"{self.path}: {message}", SapcWarning, stacklevel=2)
            return replace(coordinate, shape=(n,), load=lambda: coordinate.read()[:n])
        hint = "" if time is not None else "; or say which dimension is time, as time='first'"
        raise SapcError(
            f"{self.path}: the coordinate {coordinate.name!r} has shape {coordinate.shape}, but axis "
            f"{dim!r} of {self.channel.describe()} has {n} points; give it one entry per point, "
            f"or another name if it is no coordinate{hint}"
        )

    def axis_letter(self, dim: str) -> str | None:
        """Return X, Y, Z or T, by the coordinate or by the name."""
        coordinate = self.variables.get(dim)
        if coordinate is not None and coordinate.shape == (self.size(dim),):
            letter = coordinate.text("axis")
            if letter is not None or coordinate.text("standard_name") == "time":
                return (letter or "T").upper()
        return "T" if dim.lower() in TIMES else "X" if dim.lower() in SPACES else None

    def find_samples(self, name: str | None, time: str | None) -> str:
        """Return the dimension of samples; `name` and `time` are given by the caller."""
        if name is not None:
            return self._check_dimension(name, "samples")
        for dim in self.dims:
            if is_samples(dim, None, self.variables):
                return dim
        if self.dims[0] == time or self.axis_letter(self.dims[0]) is not None:
            raise SapcError(
                f"{self.path}: {self.channel.describe()} has no dimension of samples; several runs are "
                "needed: stack them along a dimension called sample, or name it by samples="
            )
        return self.dims[0]

    def _check_dimension(self, dim: str, argument: str) -> str:
        if dim not in self.dims:
            raise SapcError(
                f"{self.path}: {self.channel.describe()} has no dimension {dim!r} for {argument}=; "
                f"choose one of {', '.join(self.dims)}"
            )
        return dim

    def find_time(self, sample: str, name: str | None, steady: bool | None) -> str | None:
        """Return the dimension of time, or None; `name` and `steady` are given by the caller."""
        dims = [d for d in self.dims if d != sample]
        if name is not None:
            dim = {"first": dims[0], "last": dims[-1]}.get(name) if name not in self.dims else name
            if dim == sample:
                raise SapcError(f"{self.path}: dimension {sample!r} cannot be samples and time; say samples=")
            return self._check_dimension(dim or name, "time")
        times = [d for d in dims if self.axis_letter(d) == "T"] or self._dims_of_times(dims)
        if len(times) > 1:
            raise SapcError(
                f"{self.path}: which of {', '.join(times)} of {self.channel.describe()} is time? Say "
                "time='last', time='first' or its name"
            )
        if steady and times:
            raise SapcError(
                f"{self.path}: {self.channel.describe()} has the time {times[0]!r}, but steady=True was "
                "said; leave that out or keep one frame"
            )
        return times[0] if times else dims[-1] if steady is False else None

    def _dims_of_times(self, dims: Sequence[str]) -> list[str]:
        """Return the dimensions without a name that an array called t or time fits."""
        sizes = {v.shape[0] for v in self._lists() if base_name(v.name) in TIMES}
        return [d for d in self.without_name(dims) if self.size(d) in sizes]

    def _lists(self) -> list[Variable]:
        """Return the one-dimensional arrays of numbers that may be coordinates."""
        lists = (v for v in self.variables.values() if len(v.shape) == 1 and v.kind in "fiu")
        return [v for v in lists if v.name not in SAMPLE_VARIABLES]

    def find_coordinates(self, space: Sequence[str], sample: str, time: str | None) -> dict[str, Variable]:
        """Return coordinates by dimension: of the same name, or for dimensions without a name by length."""
        dims = [*space, *((time,) if time else ())]
        coordinates = {d: self._fit(d, self.variables[d], time) for d in dims if d in self.variables}
        if time is not None and self.without_name([time]):
            coordinates |= self._match([time], TIMES, sample)
            times = [v for v in self._lists() if base_name(v.name) in TIMES]
            if time not in coordinates and times:
                coordinates[time] = self._fit(time, times[0], time)
        nameless = self.without_name(space)
        for n in dict.fromkeys(map(self.size, nameless)):
            coordinates |= self._match([d for d in nameless if self.size(d) == n], SPACES, sample)
        self._check_unused(dims, sample, coordinates)
        return coordinates

    def _check_unused(self, dims: Sequence[str], sample: str, coordinates: dict[str, Variable]) -> None:
        """Refuse arrays with the name of a coordinate that fit no axis."""
        bare = [d for d in self.without_name(dims) if d not in coordinates]
        for v in self._lists():
            name = base_name(v.name)
            is_used = v.dims != (None,) or any(v.name == c.name for c in coordinates.values())
            if is_used or name not in (*TIMES, *SPACES):
                continue
            # One entry per sample is a parameter, and a single one a moment or a place.
            if v.shape not in ((1,), (self.size(sample),)) or (bare and name in SPACES):
                self._fit(bare[0] if bare else dims[-1], v, None)

    def _match(self, dims: list[str], names: tuple[str, ...], sample: str) -> dict[str, Variable]:
        """Match arrays to dimensions of one length: by usual names, else the only other of that length."""
        n = self.size(dims[0])
        candidates = [v for v in self._lists() if v.shape == (n,)]
        usual = [v for name in names for v in candidates if base_name(v.name) == name]
        if not usual:
            unusual = [v for v in candidates if base_name(v.name) not in (*TIMES, *SPACES)]
            is_unique = names == SPACES and len(dims) == len(unusual) == 1 and n != self.size(sample)
            return {dims[0]: unusual[0]} if is_unique else {}
        if len(usual) != len(dims):
            raise SapcError(
                f"{self.path}: {', '.join(v.name for v in usual)} and {', '.join(dims)} of "
                f"{self.channel.describe()} have {n} points each, so it is open which belongs to which; "
                "write one array per axis, or name the dimensions in the file"
            )
        return dict(zip(dims, usual, strict=True))

    def make_axes(
        self, space: Sequence[str], time: str | None, coordinates: dict[str, Variable]
    ) -> tuple[Dimension, ...]:
        """Return the axes in order, with default names where neither dimension nor coordinate has one."""
        dims, nameless = [*space, *((time,) if time else ())], set(self.without_name(self.dims))
        names = {
            d: base_name(coordinates[d].name) if d in nameless else d
            for d in dims
            if d in coordinates or d not in nameless
        }
        free = [name for name in DEFAULT_NAMES if name not in names.values()]
        for dim in dims:
            if dim not in names:
                names[dim] = "t" if dim == time else free.pop(0)
        return tuple(Dimension(self.dims.index(d), d, names[d], coordinates.get(d)) for d in dims)


def base_name(name: str) -> str:
    """Return a coordinate's name in small letters, without the word coordinate: x-coordinate is x."""
    lower = name.lower()
    for ending in ("-coordinate", "_coordinate", "-coord", "_coord"):
        lower = lower.removesuffix(ending)
    return lower
