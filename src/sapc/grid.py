"""Grids: where a field lives, and how it is integrated and differentiated there.

A field is a tensor `(batch, *space, time)`: physical time is always the last axis. A field of several
channels, as height and velocities, is `(batch, channel, *space, time)`, and a steady field has no time. Each
axis keeps its own convention,

    periodic   x_i = a + i (b - a) / n          the endpoint b is the point a again, so it is left out
    closed     x_i = a + i (b - a) / (n - 1)    both ends are points
    cells      x_i = a + (i + 1/2) (b - a) / n  centres of n equal cells, the ends are faces

and from it follow the spacing, the quadrature weights (rectangle rule on periodic points and cells, trapezoid
on closed ones, each exact to second order or better) and the finite differences (second order inside; at the
ends of an axis that is not periodic the one-sided difference of first order, as numpy's and torch's
`gradient` with `edge_order=1`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ._old_names import old_attribute, rename_arguments, rename_method
from ._stencils import difference, difference_into
from .errors import SapcError, explain_misuse, has_type, is_finite, order_advice, tensor_advice

Kind = Literal["periodic", "closed", "cells"]
# Names that an axis of space has, and time never.
SPACE = re.compile(
    r"[xyz]_?[0-9]?|r|rho|theta|phi|lat|lon|latitude|longitude|height|depth|radius|angle", re.I
)


@explain_misuse
@dataclass(frozen=True)
class Axis:
    """One axis of a grid: points on an interval.

    Attributes:
        name: Name of the axis.
        n: Number of points, at least 3.
        start: Begin of the interval.
        stop: End of the interval.
        kind: Layout of the points: `periodic`, `closed` or `cells` (see the module docstring).
    """

    name: str
    n: int
    start: float = 0.0
    stop: float = 1.0
    kind: Kind | str = "closed"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise SapcError(f"an axis is named by text, as Axis('x', 64), got {self.name!r:.40}")
        if self.kind not in ("periodic", "closed", "cells"):
            raise SapcError(
                f"axis {self.name!r}: unknown kind {self.kind!r}; choose periodic, closed or cells"
            )
        if not isinstance(self.n, int) or self.n < 3:
            raise SapcError(
                f"axis {self.name!r} has {self.n!r:.40} points; finite differences need at least 3"
            )
        if not (is_finite(self.start) and is_finite(self.stop)):
            raise SapcError(
                f"axis {self.name!r} runs from {self.start!r:.40} to {self.stop!r:.40}; its ends are finite "
                "numbers"
            )
        if not self.stop > self.start:
            raise SapcError(
                f"axis {self.name!r} runs from {self.start} to {self.stop}; the end must be the larger one"
            )

    @property
    def length(self) -> float:
        """Length of the interval."""
        return self.stop - self.start

    @property
    def spacing(self) -> float:
        """Distance between neighbouring points."""
        return self.length / (self.n - 1 if self.kind == "closed" else self.n)

    @cached_property
    def points(self) -> Float[Tensor, " n"]:
        """The coordinates, float64."""
        offset = 0.5 if self.kind == "cells" else 0.0
        return self.start + (torch.arange(self.n, dtype=torch.float64) + offset) * self.spacing

    @cached_property
    def weights(self) -> Float[Tensor, " n"]:
        """Quadrature weights, float64: `(weights * f(points)).sum()` approximates the integral of f."""
        w = torch.full((self.n,), self.spacing, dtype=torch.float64)
        if self.kind == "closed":
            w[0] = w[-1] = self.spacing / 2
        return w

    def derivative(self, u: Tensor, dim: int) -> Tensor:
        """Differentiate along this axis by central differences.

        Args:
            u: A tensor of fields.
            dim: Dimension of the tensor that is this axis.

        Returns:
            The first derivative.
        """
        self._check(u, dim)
        if self.kind == "periodic":
            return (u.roll(-1, dim) - u.roll(1, dim)) / (2 * self.spacing)
        return difference(u, dim % u.ndim, 0.5 / self.spacing)

    def _check(self, u: Any, dim: Any) -> None:
        if not (
            has_type(u, Tensor) and has_type(dim, int) and -u.ndim <= dim < u.ndim and u.dtype != torch.bool
        ):
            raise SapcError(
                f"a derivative is of a tensor along one of its dimensions, got {type(u).__name__} and "
                f"{dim!r:.40}"
            )
        if u.shape[dim] != self.n:
            raise SapcError(
                f"axis {self.name!r} has {self.n} points, but dimension {dim} of the field has {u.shape[dim]}"
            )

    def difference_into(self, out: Tensor, u: Tensor, dim: int, transposed: bool = False) -> Tensor:
        """Write `derivative` or its transpose, on an axis that is not periodic, into a tensor.

        It cannot be differentiated.

        Args:
            out: Tensor to write into.
            u: A tensor of fields.
            dim: Dimension of the tensor that is this axis.
            transposed: Whether the transpose is applied.

        Returns:
            `out`.
        """
        return difference_into(out, u, dim, 0.5 / self.spacing, transposed)


@dataclass(frozen=True, eq=False)
class FrameIntegral:
    """The linear functional `u -> sum_x w(x) u(x, t)`: one number per frame, with its weights in the open.

    That it is linear is declared by its type, which lets a manifold project in closed form.

    Attributes:
        weights: The weights w.
        steady: Whether it is of fields without time: a single number.
    """

    weights: Float[Tensor, "*space"]
    steady: bool = False

    def __call__(self, u: Float[Tensor, "batch *grid"]) -> Float[Tensor, "batch time"]:
        """Apply it to a batch of fields, in the fields' own precision; steady fields are one frame.

        Args:
            u: Fields.

        Returns:
            One number per frame.

        Raises:
            SapcError: The fields do not fit the weights.
        """
        if not isinstance(u, Tensor):
            raise SapcError(f"a frame integral is of a tensor of fields, got {type(u).__name__}")
        u = u[..., None] if self.steady and u.ndim else u
        if u.shape[1:-1] != self.weights.shape:
            raise SapcError(
                f"a frame integral over a spatial grid {tuple(self.weights.shape)} was given fields of shape "
                f"{tuple(u.shape)}; expected (batch, *space, time), and of several channels the integral of "
                "one, as grid.integral('h')"
            )
        return (u * self.weights_like(u)[..., None]).flatten(1, -2).sum(1)

    def weights_like(self, u: Tensor) -> Tensor:
        """Return the weights on the device and in the dtype of `u`.

        They are copied there once, since a copy makes the host wait.

        Args:
            u: A tensor of that device and dtype.

        Returns:
            The weights.
        """
        return cached_like(self, "weights", u)


def cached_like(owner: object, name: str, u: Tensor) -> Tensor:
    """Return a tensor of an object on the device and in the dtype of another tensor.

    The copy is kept with its owner.

    Args:
        owner: The object.
        name: Name of the attribute that is the tensor.
        u: A tensor of that device and dtype.

    Returns:
        The tensor there.
    """
    cache: dict[tuple[str, torch.device, torch.dtype], Tensor] = owner.__dict__.setdefault("_kept", {})
    key = (name, u.device, u.dtype)
    if key not in cache:
        with torch.inference_mode(False):
            cache[key] = getattr(owner, name).to(device=u.device, dtype=u.dtype, copy=True)
    return cache[key]


@explain_misuse
@dataclass(frozen=True)
class Grid:
    """A product of axes, physical time last, and the names of the channels that live on it.

    A single channel has no axis of its own: then a field is `(batch, *space, time)`, whether the channel has
    a name or not. Unless `steady=True` is said, the last axis is time; where its name is one of space, as
    `y`, it has to be said: `steady=True`, or `steady=False` if `y` is time all the same.

    Attributes:
        axes: The axes, time last.
        channels: Names of the channels.
        steady: Whether the fields have no time: then all axes are of space. Left out: they have time, and a
            last axis with a name of space is refused.
    """

    axes: tuple[Axis, ...]
    channels: tuple[str, ...] = ()
    steady: bool = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        channels: Any = self.channels
        if isinstance(channels, str | int):
            raise SapcError(f"channels are a sequence of names, as ('h', 'u'), got {channels!r}")
        steady: bool | None = self.steady
        if not all(isinstance(axis, Axis) for axis in self.axes):
            raise SapcError(
                "the axes of a grid are sapc.Axis(name, n, ...), as Grid((Axis('x', 64), Axis('t', 50)))"
            )
        # A list is as good, but would not compare.
        object.__setattr__(self, "axes", tuple(self.axes))
        object.__setattr__(self, "channels", tuple(self.channels))
        if not all(isinstance(name, str) for name in self.channels):
            raise SapcError(f"channels are a sequence of names, as ('h', 'u'), got {self.channels!r:.60}")
        if len(self.axes) < (1 if self.steady else 2):
            raise SapcError(
                f"a grid needs at least one spatial axis and time, got {len(self.axes)} axes; fields without "
                "time have a grid with steady=True"
            )
        if len({*self.names, *self.channels}) < len(self.names) + len(self.channels):
            raise SapcError(
                f"axis and channel names must differ, got {[*self.names, *self.channels]}; rename one of them"
            )
        if steady is None:
            if SPACE.fullmatch(self.names[-1]):
                raise SapcError(
                    f"the last axis of a grid is physical time, and here it is called {self.names[-1]!r}: "
                    "write steady=True for fields without time, else put the time axis last (or write "
                    "steady=False if this is time)"
                )
            object.__setattr__(self, "steady", False)

    @property
    def points_per_axis(self) -> tuple[int, ...]:
        """Numbers of points, one per axis."""
        return tuple(a.n for a in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one field: points per axis; with several channels, their number first."""
        return self.points_per_axis if self.n_channels == 1 else (self.n_channels, *self.points_per_axis)

    @property
    def n_channels(self) -> int:
        """Number of channels: numbers per point."""
        return max(1, len(self.channels))

    @property
    def names(self) -> tuple[str, ...]:
        """Axis names in order."""
        return tuple(a.name for a in self.axes)

    @property
    def space(self) -> tuple[Axis, ...]:
        """The spatial axes."""
        return self.axes if self.steady else self.axes[:-1]

    @property
    def time(self) -> Axis:
        """The physical time axis."""
        if self.steady:
            raise SapcError("this grid is of steady fields, which have no time axis")
        return self.axes[-1]

    @explain_misuse
    def __getitem__(self, name: str) -> Axis:
        """Return an axis by its name."""
        return self.axes[self._index(name)]

    def _index(self, name: str) -> int:
        if name not in self.names:
            raise SapcError(f"the grid has no axis {name!r}; it has {', '.join(self.names)}")
        return self.names.index(name)

    @explain_misuse
    def channel(self, name: str) -> int:
        """Return the place of a channel among the channels.

        Args:
            name: Name of the channel.

        Returns:
            Its number.

        Raises:
            SapcError: There is no such channel.
        """
        if name not in self.channels:
            names = ", ".join(self.channels) or "one channel without a name"
            raise SapcError(f"the grid has no channel {name!r}; it has {names}")
        return self.channels.index(name)

    def channel_values(self, u: Float[Tensor, "batch *grid"], name: str) -> Float[Tensor, "batch *points"]:
        """Return one channel of a batch of fields.

        Args:
            u: Fields `(batch, *grid)`.
            name: Name of the channel.

        Returns:
            Its values, `(batch, *space, time)`.
        """
        self.check(u)
        i = self.channel(name)
        return u if self.n_channels == 1 else u[:, i]

    @explain_misuse
    def resize(self, *shape: int) -> Grid:
        """Return the same domain with other numbers of points.

        Args:
            *shape: Points per axis.

        Returns:
            The grid.

        Raises:
            SapcError: There are more or fewer numbers than axes.
        """
        if len(shape) != len(self.axes):
            raise SapcError(
                f"this grid has {len(self.axes)} axes ({', '.join(self.names)}), got the sizes {shape}"
            )
        return replace(self, axes=tuple(replace(a, n=n) for a, n in zip(self.axes, shape, strict=True)))

    @cached_property
    def weights(self) -> Float[Tensor, "*space"]:
        """Spatial quadrature weights, float64."""
        w = torch.ones((), dtype=torch.float64)
        for axis in self.space:
            w = w[..., None] * axis.weights
        return w

    @explain_misuse
    def integral(self, channel: str | None = None) -> FrameIntegral:
        """Return the integral over space as a linear functional of each frame.

        Args:
            channel: Name of the channel to integrate; None: fields have one channel.

        Returns:
            The functional, for fields on this grid.
        """
        if channel is None or self.n_channels == 1:
            if channel is not None:
                self.channel(channel)
            return self._integral
        return FrameIntegral(self._weights_of_all(self.weights, channel), self.steady)

    @cached_property
    def _integral(self) -> FrameIntegral:
        return FrameIntegral(self.weights, self.steady)

    @explain_misuse
    def total(self, channel: str | None = None) -> FrameIntegral:
        """Return the plain sum over the spatial points of each frame, without the cell volume.

        Args:
            channel: Name of the channel to add up; None: fields have one channel.

        Returns:
            The functional, for fields on this grid.
        """
        weights = torch.ones_like(self.weights)
        has_channels = channel is not None and self.n_channels > 1
        return FrameIntegral(
            self._weights_of_all(weights, channel or "") if has_channels else weights, self.steady
        )

    def _weights_of_all(self, weights: Tensor, channel: str) -> Tensor:
        """Extend weights of one channel to all channels; those of the others are zero."""
        all_weights = weights.new_zeros(self.n_channels, *weights.shape)
        all_weights[self.channel(channel)] = weights
        return all_weights

    @explain_misuse
    def derivative(self, u: Float[Tensor, "batch *grid"], name: str) -> Float[Tensor, "batch *grid"]:
        """Differentiate along a named axis, by central differences.

        Args:
            u: Fields, or one channel of them.
            name: Name of the axis.

        Returns:
            The first derivative.
        """
        if self.n_channels == 1 or not isinstance(u, Tensor) or tuple(u.shape[1:]) != self.points_per_axis:
            self.check(u)
        i = self._index(name)
        return self.axes[i].derivative(u, i - len(self.axes))

    def mesh(self) -> tuple[Tensor, ...]:
        """Return the coordinates of every point.

        Returns:
            One float64 tensor of the grid's shape per axis.
        """
        return torch.meshgrid(*(a.points for a in self.axes), indexing="ij")

    @explain_misuse
    def nearest(self, **coordinates: float) -> dict[str, int]:
        """Find the points nearest to coordinates.

        Args:
            **coordinates: A place on each of some axes.

        Returns:
            Their indices, by axis.
        """
        return {name: self._nearest(self[name], position) for name, position in coordinates.items()}

    def _nearest(self, axis: Axis, x: float) -> int:
        try:
            distance = (axis.points - float(x)).abs()
        except (TypeError, ValueError) as error:
            raise SapcError(f"a place on axis {axis.name!r} is a number, got {x!r}") from error
        if axis.kind == "periodic":
            distance = torch.minimum(distance % axis.length, axis.length - distance % axis.length)
        if not float(distance.min()) <= axis.spacing * (0.5 + 1e-9):
            raise SapcError(
                f"{axis.name} = {x:g} is not on the grid, which has {axis.name} from {axis.start:g} to "
                f"{axis.stop:g}; check the units"
            )
        return int(distance.argmin())

    @rename_arguments(what="name")
    def check(self, u: Tensor, name: str = "field") -> None:
        """Refuse a tensor that is not a batch of fields on this grid.

        Args:
            u: The tensor.
            name: Its name in the error message.

        Raises:
            SapcError: It is no tensor, or has another shape.
        """
        if not isinstance(u, Tensor):
            raise SapcError(f"the {name} is a {type(u).__name__}; {tensor_advice(u)}")
        if tuple(u.shape[1:]) != self.shape or u.ndim != len(self.shape) + 1:
            raise SapcError(
                f"the {name} has shape {tuple(u.shape)}; this grid needs (batch, "
                f"{', '.join(map(str, self.shape))}){order_advice(u.shape[1:], self.shape)}"
            )

    lattice = old_attribute("Grid.lattice", "Grid.points_per_axis")
    width = old_attribute("Grid.width", "Grid.n_channels")
    take = rename_method("Grid.take", "channel_values")

    def to_dict(self) -> dict[str, Any]:
        """Describe the grid, ready for JSON.

        Returns:
            The description; `from_dict` reads it back.
        """
        axes = [
            {"name": a.name, "n": a.n, "start": a.start, "stop": a.stop, "kind": a.kind} for a in self.axes
        ]
        channel_entry = {"channels": list(self.channels)} if self.channels else {}
        return {"axes": axes, **channel_entry, **({"steady": True} if self.steady else {})}

    @classmethod
    @explain_misuse
    def from_dict(cls, description: Mapping[str, Any]) -> Grid:
        """Make the grid that `to_dict` described.

        Args:
            description: The description.

        Returns:
            The grid.

        Raises:
            SapcError: It does not describe a grid.
        """
        try:
            axes = tuple(Axis(**axis) for axis in description["axes"])
            return cls(axes, tuple(description.get("channels", ())), bool(description.get("steady", False)))
        except (KeyError, TypeError, AttributeError) as error:
            raise SapcError(f"not a grid description: {error}") from error
