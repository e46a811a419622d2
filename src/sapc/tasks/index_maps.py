"""Maps of the indices of fields, and the texts that name them.

    (T u)[c, i] = s_c u[q_c, j],   j_d = (a_d i_(p_d) + b_d) mod n_d,   a_d, s_c = +-1

moves points (a, b), lets axes change places (p) and channels (q), and changes signs (s). Such maps form a
group: the composition of two is one again. Values are moved, not interpolated.

    shift:x             (T u)(x) = u(x - s), s one point; x is periodic
    shift:x,shift:-y    s along x and -s along y, the same share of both periods
    shift:x=1/4         s is this share of the period
    reflect:x           x -> start + stop - x: b = n - 1 on closed points and on cells; on a periodic axis,
                        where start and stop are the same point, b = 0
    swap:x:y            two axes change places; swap:u:v two channels
    sign:u              u -> -u, a channel; `sign` all of them

Parts that are joined by commas act one after the other: `reflect:x,sign:u` is u(x) -> -u(-x).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd

import torch
from torch import Tensor

from ..errors import SapcError
from ..grid import Axis, Grid

EXAMPLE = "shift:x or reflect:x,sign:u"


@dataclass(frozen=True)
class IndexMap:
    """A map T of fields: `(T u)[c, i] = s_c u[q_c, j]`, `j_d = (a_d i_(p_d) + b_d) mod n_d`.

    Attributes:
        points: n, points per axis.
        axes: p.
        steps: a, 1 or -1 per axis.
        offsets: b.
        channels: q.
        signs: s, 1 or -1 per channel.
    """

    points: tuple[int, ...]
    axes: tuple[int, ...]
    steps: tuple[int, ...]
    offsets: tuple[int, ...]
    channels: tuple[int, ...]
    signs: tuple[int, ...]

    @classmethod
    def identity(cls, grid: Grid) -> IndexMap:
        """Return the map that changes nothing.

        Args:
            grid: Grid of the fields.

        Returns:
            The map.
        """
        n, d, c = grid.points_per_axis, len(grid.axes), grid.n_channels
        return cls(n, tuple(range(d)), (1,) * d, (0,) * d, tuple(range(c)), (1,) * c)

    def then(self, other: IndexMap) -> IndexMap:
        """Compose with another map.

        Args:
            other: The map that comes second.

        Returns:
            The map that is this one, followed by the other.
        """
        axes = tuple(other.axes[p] for p in self.axes)
        steps = tuple(a * other.steps[p] for a, p in zip(self.steps, self.axes, strict=True))
        offsets = tuple(
            (a * other.offsets[p] + b) % n
            for a, b, p, n in zip(self.steps, self.offsets, self.axes, self.points, strict=True)
        )
        channels = tuple(self.channels[q] for q in other.channels)
        signs = tuple(s * self.signs[q] for s, q in zip(other.signs, other.channels, strict=True))
        return IndexMap(self.points, axes, steps, offsets, channels, signs)

    @property
    def changes_values(self) -> bool:
        """Whether it does more than move the points of each channel."""
        return self.channels != tuple(range(len(self.channels))) or min(self.signs) < 0

    def __call__(self, u: Tensor) -> Tensor:
        """Map fields.

        Args:
            u: Fields `(n, *grid)`.

        Returns:
            Their images.
        """
        first, d = u.ndim - len(self.points), len(self.points)
        for i, (n, a, b) in enumerate(zip(self.points, self.steps, self.offsets, strict=True)):
            if (a, b) != (1, 0):
                u = u.index_select(first + i, (a * torch.arange(n, device=u.device) + b) % n)
        u = u.permute(*range(first), *(first + self.axes.index(i) for i in range(d)))
        if not self.changes_values:
            return u
        if len(self.channels) == 1:
            return -u
        rows = [u[:, q] if s > 0 else -u[:, q] for q, s in zip(self.channels, self.signs, strict=True)]
        return torch.stack(rows, 1)


def parse_map(text: str, grid: Grid) -> IndexMap:
    """Make the map T that a text names.

    Args:
        text: Parts, joined by commas, as in the module docstring.
        grid: Grid of the fields.

    Returns:
        T; for a shift by any number of points, the shift by the least one.

    Raises:
        SapcError: The text names no map, or none of fields on this grid.
    """
    words = [tuple(part.strip().split(":")) for part in text.split(",")]
    is_free = [word[0] == "shift" and len(word) == 2 and "=" not in word[1] for word in words]
    if any(is_free) and not all(is_free):
        raise SapcError(
            f"in the symmetry {text!r} a shift by any number of points stands beside other maps; name each as "
            "a symmetry of its own, or a fixed shift by its share of the period, as shift:x=1/2"
        )
    if all(is_free):
        T = _free_shift(text, [word[1] for word in words], grid)
    else:
        T = IndexMap.identity(grid)
        for word in words:
            T = T.then(_fixed_map(text, word, grid))
    if IndexMap.identity(grid) == T:
        raise SapcError(f"the symmetry {text!r} leaves every field as it is; leave it out")
    return T


def _free_shift(text: str, names: list[str], grid: Grid) -> IndexMap:
    """Make the least shift along some axes, by the same share of their periods."""
    axes = [_axis(text, name.removeprefix("-"), grid) for name in names]
    count = gcd(*(axis.n for axis in axes))
    T = IndexMap.identity(grid)
    for name, axis in zip(names, axes, strict=True):
        points = axis.n // count * (-1 if name.startswith("-") else 1)
        T = T.then(_shift(text, axis, points, grid))
    return T


def _fixed_map(text: str, word: tuple[str, ...], grid: Grid) -> IndexMap:
    """Make one part of a text."""
    T = IndexMap.identity(grid)
    match word:
        case ("shift", argument):
            name, _, value = argument.partition("=")
            axis = _axis(text, name, grid)
            return _shift(text, axis, _points(text, axis, value), grid)
        case ("reflect", name):
            d = grid.names.index(_axis(text, name, grid).name)
            last = 0 if grid.axes[d].kind == "periodic" else grid.axes[d].n - 1
            return replace(T, steps=_put(T.steps, d, -1), offsets=_put(T.offsets, d, last))
        case ("swap", first, second) if {first, second} <= set(grid.channels):
            return replace(T, channels=_exchange(T.channels, grid.channel(first), grid.channel(second)))
        case ("swap", first, second):
            a, b = (_axis(text, name, grid) for name in (first, second))
            if (a.n, a.kind) != (b.n, b.kind):
                raise SapcError(
                    f"the symmetry {text!r} needs as many points along {a.name} as along {b.name}, and axes of "
                    f"one kind; they have {a.n} ({a.kind}) and {b.n} ({b.kind})"
                )
            return replace(T, axes=_exchange(T.axes, grid.names.index(a.name), grid.names.index(b.name)))
        case ("sign",):
            return replace(T, signs=(-1,) * len(T.signs))
        case ("sign", name):
            return replace(T, signs=_put(T.signs, grid.channel(name), -1))
    raise SapcError(
        f"the symmetry {text!r} has a part {':'.join(word)!r}; parts are shift:AXIS, shift:AXIS=1/2, "
        f"reflect:AXIS, swap:AXIS:AXIS, swap:CHANNEL:CHANNEL, sign:CHANNEL and sign, joined by commas, "
        f"as {EXAMPLE}"
    )


def _axis(text: str, name: str, grid: Grid) -> Axis:
    if name not in grid.names:
        raise SapcError(f"the symmetry {text!r} is along {name!r}; the grid has {', '.join(grid.names)}")
    return grid[name]


def _points(text: str, axis: Axis, value: str) -> int:
    """Return a share of a period in points."""
    try:
        points = Fraction(value) * axis.n
    except (ValueError, ZeroDivisionError) as error:
        raise SapcError(
            f"in the symmetry {text!r} a fixed shift is a share of the period, as shift:{axis.name}=1/2, got "
            f"{value!r}"
        ) from error
    if points.denominator != 1:
        raise SapcError(
            f"the symmetry {text!r} would move {axis.n} points along {axis.name} by {float(points):g}; nothing "
            "is interpolated, so the shift must be a whole number of points"
        )
    return int(points)


def _shift(text: str, axis: Axis, points: int, grid: Grid) -> IndexMap:
    """Shift fields towards larger coordinates: (T u)[i] = u[i - points]."""
    if axis.kind != "periodic":
        raise SapcError(
            f"the symmetry {text!r} shifts along {axis.name}, which is not periodic ({axis.kind}); if it is a "
            "ring, say so when the data are read, as periodic=('x',)"
        )
    T = IndexMap.identity(grid)
    return replace(T, offsets=_put(T.offsets, grid.names.index(axis.name), -points % axis.n))


def _put(values: tuple[int, ...], i: int, value: int) -> tuple[int, ...]:
    return (*values[:i], value, *values[i + 1 :])


def _exchange(values: tuple[int, ...], i: int, j: int) -> tuple[int, ...]:
    return _put(_put(values, i, values[j]), j, values[i])
