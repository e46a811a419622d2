"""Constraints: what a field must satisfy, written as residuals R(u) that vanish on the manifold.

    Pin          u = g on part of the grid                      rows: one per pinned point
    Balance      e(u_T) - e(u_0) = theta(u) int_0^T s(u_t) dt   rows: one per frame T >= 1, trapezoid rule
    Affine       A u = b, given as a matrix or as a linear map  rows: those of A
    Constraint   f(u) = c for any differentiable f              rows: those of f

`a & b` stacks residuals; corrections are never chained. What a constraint declares by its type is what lets a
manifold choose a cheap projection: a pin leaves the unknowns, the stored quantity `e` and the rate `s` read
one frame each, the coefficient `theta` is one number per field, a `FrameIntegral` is linear.

`.on(fields)` binds a constraint to a batch of fields, one condition per sample: pinned values, and any value
asked for as `"field"`, are those of `fields`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import InitVar, dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from .._old_names import rename_method
from ..errors import SapcError, explain_misuse, has_type
from ..grid import Axis, FrameIntegral, Grid, cached_like
from .acceleration import LawKernel

if TYPE_CHECKING:
    from . import Manifold


SPACE_NAMES = ("x", "y", "z")
Channels = str | Sequence[str] | None
Value = float | Tensor | None


class ConstraintTerm:
    """A constraint that `&` can stack and `.on(fields)` can bind."""

    def __getstate__(self) -> dict[str, Any]:
        # What is kept to be fast, in private attributes, stays behind: a copy makes its own.
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    @property
    def parts(self) -> tuple[ConstraintTerm, ...]:
        """The constraints stacked in this one, in order."""
        return (self,)

    def __and__(self, other: ConstraintTerm) -> Stack:
        """Stack this constraint with another one."""
        if not isinstance(other, ConstraintTerm):
            raise SapcError(f"& stacks constraints, as sapc.Pin.frame(0) & law, got {type(other).__name__}")
        return Stack((*self.parts, *other.parts))

    def with_times_of(self, grid: Grid) -> ConstraintTerm:
        """Complete laws with the times of a grid.

        Args:
            grid: Grid of the fields.

        Returns:
            This constraint; laws that have a rate and were given no times take those of the grid.
        """
        return self

    @explain_misuse
    def on(self, fields: Tensor, **options: Any) -> Manifold:
        """Bind the constraint to a batch of fields.

        Binding is an error if two pins prescribe different values at one point, or if the dtype of the fields
        cannot hold a prescribed value.

        Args:
            fields: One condition per sample, `(batch, *grid)`: pinned values, and values asked for as
                `"field"`, are those of the sample.
            **options: `solver` and `algorithm` of `Manifold`.

        Returns:
            The manifolds, one per sample.
        """
        # The one door back: binding a constraint makes a manifold.
        from . import Manifold

        return Manifold.bind(self.parts, fields, **options)


@dataclass(frozen=True, eq=False)
class Stack(ConstraintTerm):
    """Several constraints at once.

    Attributes:
        members: The constraints, in order.
    """

    members: tuple[ConstraintTerm, ...]

    @property
    def parts(self) -> tuple[ConstraintTerm, ...]:
        """The constraints stacked in this one, in order."""
        return self.members

    def with_times_of(self, grid: Grid) -> Stack:
        """Complete every member with the times of a grid.

        Args:
            grid: Grid of the fields.

        Returns:
            The stack of the members with their times.
        """
        return Stack(tuple(member.with_times_of(grid) for member in self.members))


@dataclass(frozen=True, eq=False)
class Pin(ConstraintTerm):
    """Values prescribed on part of the grid: an initial condition, a boundary, sensors.

    `Pin.frame`, `Pin.at` and `Pin.near` make the usual masks. Two pins that prescribe different values at one
    point are refused when they are bound to fields. Where a value differs from the conditioning field by
    rounding only, the value counts.

    Attributes:
        where: Boolean mask of the grid's shape, or a function from that shape to such a mask.
        label: Name of the pin in error messages.
        value: The same values for every sample: a number, or a tensor that broadcasts to the grid. None:
            those of the conditioning field.
        indices: Indices by the names x, y, z and t, for pins that were made without a grid.
    """

    where: Tensor | Callable[[tuple[int, ...]], Tensor]
    label: str = "pin"
    value: float | Tensor | None = None
    indices: Mapping[str, int | slice] | None = None

    @classmethod
    @explain_misuse
    def frame(
        cls, index: int = 0, *, grid: Grid | None = None, channel: Channels = None, value: Value = None
    ) -> Pin:
        """Pin one whole frame, by default the initial one.

        Args:
            index: Number of the frame.
            grid: Grid of the fields; needed to name channels.
            channel: Names of the channels to pin; None: all of them.
            value: Values to prescribe; None: those of the conditioning field.

        Returns:
            The pin.

        Raises:
            SapcError: Channels are named, and the grid is missing.
        """
        if channel is None:
            return cls(lambda shape: _frame_mask(shape, index), f"t[{index}]", value, {"t": index})
        if grid is None:
            raise SapcError(
                "Pin.frame needs the grid to know its channels, as in Pin.frame(0, grid=grid, channel='h')"
            )
        return cls.at(grid, channel=channel, value=value, **{grid.time.name: index})

    @classmethod
    @explain_misuse
    def at(
        cls,
        grid: Grid | None = None,
        /,
        *,
        channel: Channels = None,
        value: Value = None,
        **indices: int | slice,
    ) -> Pin:
        """Pin all points that have the given indices, as in `Pin.at(x=0)` or `Pin.at(x=-1, t=slice(0, 5))`.

        Without a grid, the axes are x, y, z in order and t last. With a grid, its own names of axes and
        channels count: `Pin.at(grid, lon=0, channel="h")`.

        Args:
            grid: Grid of the fields.
            channel: Names of the channels to pin; None: all of them.
            value: Values to prescribe; None: those of the conditioning field.
            **indices: An index or a slice for each axis; an axis that is left out is pinned everywhere.

        Returns:
            The pin.

        Raises:
            SapcError: No axis is given, or channels are named and the grid is missing.
        """
        if not indices and channel is None:
            raise SapcError("Pin.at needs at least one axis, as in Pin.at(x=0)")
        if places := [v for v in indices.values() if isinstance(v, float)]:
            raise _not_an_index(places[0])
        if grid is not None:
            return cls(_point_mask(grid, channel, indices), _pin_label(channel, indices), value)
        if channel is not None:
            raise SapcError(
                "Pin.at needs the grid to know its channels, as in Pin.at(grid, x=0, channel='h')"
            )

        def make_mask(shape: tuple[int, ...]) -> Tensor:
            mask = torch.zeros(shape, dtype=torch.bool)
            names = (*SPACE_NAMES[: len(shape) - 1], "t")
            if unknown := set(indices) - set(names):
                raise SapcError(
                    f"Pin.at has no axis {sorted(unknown)[0]!r} on a grid of {len(shape)} axes; it has "
                    f"{', '.join(names)}"
                )
            try:
                mask[tuple(indices.get(name, slice(None)) for name in names)] = True
            except IndexError as error:
                raise SapcError(f"Pin.at({indices}) is outside a grid of shape {shape}") from error
            return mask

        return cls(make_mask, _pin_label(None, indices), value, indices)

    @classmethod
    @explain_misuse
    def near(
        cls, grid: Grid, /, *, channel: Channels = None, value: Value = None, **coordinates: float
    ) -> Pin:
        """Pin the points nearest to coordinates, at all times: `Pin.near(grid, x=0.3, y=0.7)` is a sensor.

        Args:
            grid: Grid of the fields.
            channel: Names of the channels to pin; None: all of them.
            value: Values to prescribe; None: those of the conditioning field.
            **coordinates: A place on each axis, in the units of that axis.

        Returns:
            The pin.
        """
        return cls.at(grid, channel=channel, value=value, **grid.nearest(**coordinates))

    @explain_misuse
    def with_names_of(self, grid: Grid) -> Pin:
        """Translate x, y, z and t into the axis names of a grid.

        Args:
            grid: Grid of the fields: x, y, z are its spatial axes in order, and t is its time.

        Returns:
            The pin on that grid.

        Raises:
            SapcError: A frame is pinned, and the grid has no time.
        """
        if self.indices is None:
            return self
        standard_names = dict(zip(SPACE_NAMES, (axis.name for axis in grid.space), strict=False))
        if not grid.steady:
            standard_names["t"] = grid.time.name
        elif "t" in self.indices and "t" not in grid.names:
            raise SapcError(
                f"these fields are steady and have no frames to pin; use Pin.at(grid, {grid.names[-1]}=0)"
            )
        indices = {
            n if n in grid.names else standard_names.get(n, n): index for n, index in self.indices.items()
        }
        return Pin(_point_mask(grid, None, indices), _pin_label(None, indices), self.value)

    @explain_misuse
    def prescribe(self, fields: Tensor) -> Tensor:
        """Set the values of this pin, if it has its own.

        Args:
            fields: Fields `(batch, *grid)`.

        Returns:
            The fields with those values at the pinned points.

        Raises:
            SapcError: The value cannot be broadcast to the grid.
        """
        if self.value is None:
            return fields
        try:
            value = torch.as_tensor(self.value, dtype=fields.dtype, device=fields.device)
            value = value.broadcast_to(fields.shape)
        except (RuntimeError, TypeError, ValueError) as error:
            raise SapcError(
                f"the value of the pin {self.label!r} must be a number or broadcast to "
                f"{tuple(fields.shape[1:])}"
            ) from error
        return torch.where(self.mask(tuple(fields.shape[1:])).to(fields.device), value, fields)

    prescribed = rename_method("Pin.prescribed", "prescribe")
    named = rename_method("Pin.named", "with_names_of")

    @explain_misuse
    def mask(self, shape: tuple[int, ...]) -> Tensor:
        """Return the pinned points of a grid.

        Args:
            shape: Shape of one field.

        Returns:
            A boolean mask of this shape, on the CPU.

        Raises:
            SapcError: The mask is not boolean, or has another shape.
        """
        try:
            mask = torch.as_tensor(self.where(shape) if callable(self.where) else self.where).cpu()
        except SapcError:
            raise
        except (TypeError, ValueError, RuntimeError) as error:
            raise SapcError(
                f"a pin's mask must be a boolean tensor, got {type(self.where).__name__}"
            ) from error
        if mask.dtype != torch.bool or tuple(mask.shape) != tuple(shape):
            raise SapcError(
                f"a pin's mask must be boolean of shape {tuple(shape)}, got {mask.dtype} of shape "
                f"{tuple(mask.shape)}"
            )
        return mask


def _frame_mask(shape: tuple[int, ...], index: int) -> Tensor:
    """Return a mask of one frame."""
    mask = torch.zeros(shape, dtype=torch.bool)
    try:
        mask[..., index] = True
    except IndexError as error:
        raise SapcError(
            f"Pin.frame({index}) is outside fields of {shape[-1] if shape else 0} frames"
        ) from error
    return mask


def _not_an_index(value: object) -> SapcError:
    return SapcError(
        f"Pin.at takes indices or slices, got {value!r}; places in the units of an axis go to Pin.near"
    )


def _point_mask(grid: Grid, channel: Channels, indices: Mapping[str, int | slice]) -> Tensor:
    """Return a mask of some channels at indices along named axes."""
    if unknown := sorted(set(indices) - set(grid.names)):
        raise SapcError(f"Pin.at has no axis {unknown[0]!r}; the grid has {', '.join(grid.names)}")
    mask = torch.zeros(grid.n_channels, *grid.points_per_axis, dtype=torch.bool)
    names = grid.channels if channel is None else (channel,) if isinstance(channel, str) else tuple(channel)
    if wrong := [v for v in indices.values() if not isinstance(v, Integral | slice)]:
        raise _not_an_index(wrong[0])
    if not all(isinstance(name, str) for name in names):
        raise SapcError(f"channels are named, as channel='h', got {channel!r}")
    for i in [grid.channel(name) for name in names] or range(grid.n_channels):
        try:
            mask[(i, *(indices.get(name, slice(None)) for name in grid.names))] = True
        except IndexError as error:
            raise SapcError(
                f"Pin.at({dict(indices)}) is outside a grid of {' x '.join(map(str, grid.points_per_axis))} "
                "points"
            ) from error
    return mask.reshape(grid.shape)


def _pin_label(channel: Channels, indices: Mapping[str, int | slice]) -> str:
    """Name a pin by its channels and indices."""
    names = () if channel is None else (channel,) if isinstance(channel, str) else tuple(channel)
    return ", ".join((*names, *(f"{k}[{v}]" for k, v in indices.items())))


@explain_misuse
@dataclass(frozen=True, eq=False)
class Balance(ConstraintTerm):
    """A balance law: the change of a stored quantity is the time integral of a rate.

        e(u_T) - e(u_0) = theta(u) int_0^T s(u_t) dt

    `stored` and `rate` map fields `(batch, *space, time)` to one number per frame `(batch, time)` and read
    that frame only.

    Attributes:
        stored: The stored quantity e.
        rate: The rate s; None: the stored quantity does not change.
        coefficient: Map from fields to one number each `(batch,)`, theta; None: one.
        times: Times of the frames, over which a rate is integrated. Not needed without a rate; a task fills
            in those of its grid.
        label: Laws with equal labels are the same law: what was compiled for one serves the others.
        kernel: The same law as functions for a GPU kernel.
        grid: Take the times from this grid; give `grid` or `times`.
    """

    stored: Callable[[Tensor], Tensor]
    rate: Callable[[Tensor], Tensor] | None = None
    coefficient: Callable[[Tensor], Tensor] | None = None
    times: Tensor | None = None
    label: Hashable = None
    kernel: LawKernel | None = None
    grid: InitVar[Grid | None] = None

    def __post_init__(self, grid: Grid | None) -> None:
        if grid is not None:
            self._take_times(grid)
        if self.rate is None and self.coefficient is not None:
            raise SapcError("a Balance with a coefficient needs the rate that the coefficient multiplies")
        if self.times is not None:
            object.__setattr__(self, "times", torch.as_tensor(self.times))
        for name in ("rate", "coefficient"):
            if not has_type(part := getattr(self, name), Callable[[Tensor], Tensor] | None):
                raise SapcError(f"`{name}` of a Balance is a function of fields, got {type(part).__name__}")
        if not has_type(self.stored, Callable[[Tensor], Tensor]):
            raise SapcError(
                "`stored` of a Balance is a function of fields, as grid.integral('h'), got "
                f"{self.stored!r:.40}"
            )
        if self.times is not None and (self.times.ndim != 1 or not bool((self.times.diff() > 0).all())):
            raise SapcError("a Balance's times must be one increasing sequence, one entry per frame")

    def _take_times(self, grid: Grid) -> None:
        if not isinstance(grid, Grid):
            raise SapcError(
                f"the grid of a Balance is a sapc.Grid, got {type(grid).__name__}; give grid=grid"
            )
        if self.times is not None:
            raise SapcError("a Balance takes its times from grid= or from times=; leave one of the two out")
        if grid.steady:
            raise SapcError(
                "a Balance compares frames, and this grid is of steady fields; use "
                "Affine(grid.integral(...), value=...)"
            )
        object.__setattr__(self, "times", grid.time.points)

    def with_times_of(self, grid: Grid) -> Balance:
        """Complete the law with the times of a grid, if it needs times and has none.

        Args:
            grid: Grid of the fields.

        Returns:
            The law with its times; the same object whenever it is asked for.
        """
        if self.rate is None or self.times is not None or grid.steady:
            return self
        laws: dict[Axis, Balance] = self.__dict__.setdefault("_known", {})
        if (axis := grid.time) not in laws:
            # What was compiled is found again by its label, and the times are part of it.
            label = None if self.label is None else (self.label, axis)
            laws[axis] = replace(self, times=axis.points, label=label)
        return laws[axis]

    @property
    def is_linear(self) -> bool:
        """Whether the law is declared linear: a frame integral that does not change."""
        return isinstance(self.stored, FrameIntegral) and self.rate is None

    def steps(self, frames: int, like: Tensor) -> Tensor:
        """Return the time between consecutive frames.

        Args:
            frames: Number of frames of the fields.
            like: A tensor of the dtype and device that are needed.

        Returns:
            Times `(frames - 1,)`.

        Raises:
            SapcError: There are fewer than two frames, or the law has no times or those of another number of
                frames.
        """
        if frames < 2:
            raise SapcError("a Balance compares frames, so it needs fields of at least 2 frames")
        if self.times is None and self.rate is not None:
            raise SapcError(
                "a Balance with a rate needs the times of its frames: write Balance(..., grid=grid), or "
                "times=grid.time.points"
            )
        # There is no rate to multiply with.
        if self.times is None:
            return torch.full((frames - 1,), 1 / (frames - 1), dtype=like.dtype, device=like.device)
        if len(self.times) != frames:
            raise SapcError(f"a Balance for {len(self.times)} frames was given fields of {frames} frames")
        return cached_like(self, "times", like).diff()

    def with_shape_check(self, function: Callable[[Tensor], Tensor], term: str) -> Callable[[Tensor], Tensor]:
        """Refuse an answer that is not one number per frame or, from the coefficient, one per field.

        Args:
            function: Function of the law to guard.
            term: Its name: `stored`, `rate` or `coefficient`.

        Returns:
            The function with a check of what it returns.
        """

        def call(u: Tensor) -> Tensor:
            out = function(u)
            want = (u.shape[0],) if term == "coefficient" else (u.shape[0], u.shape[-1])
            if not isinstance(out, Tensor) or out.shape != want:
                result = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
                number = "field" if term == "coefficient" else "frame"
                raise SapcError(
                    f"a Balance's {term} must return one number per {number}, {want}, got {result}"
                )
            return out

        return call

    checked = rename_method("Balance.checked", "with_shape_check")

    def increments(self, u: Tensor) -> Tensor:
        """Evaluate the law between consecutive frames.

        Args:
            u: Fields `(batch, *space, time)`.

        Returns:
            Increments `(batch, frames - 1)`; their running sum is the residual.

        Raises:
            SapcError: The fields have one frame only.
        """
        d = self.with_shape_check(self.stored, "stored")(u).diff(dim=1)
        if d.shape[1] == 0:
            raise SapcError(
                "a Balance compares frames, so it needs fields of at least 2 frames; for steady ones use "
                "Affine(grid.integral(), value=...)"
            )
        if self.rate is None:
            return d
        s = self.with_shape_check(self.rate, "rate")(u)
        supplied = self.steps(u.shape[-1], u) * (s[:, 1:] + s[:, :-1]) / 2
        if self.coefficient is None:
            return d - supplied
        return d - self.with_shape_check(self.coefficient, "coefficient")(u)[:, None] * supplied

    def residual(self, u: Tensor) -> Tensor:
        """Evaluate the law from the initial frame on.

        Args:
            u: Fields `(batch, *space, time)`.

        Returns:
            `e(u_T) - e(u_0) - theta int_0^T s dt` for every frame T >= 1, `(batch, frames - 1)`.
        """
        return self.increments(u).cumsum(1)

    def magnitude(self, u: Tensor) -> Tensor:
        """Add up the sizes of the numbers whose difference the residual is.

        Args:
            u: Fields `(batch, *space, time)`.

        Returns:
            `|e(u_T)| + |e(u_0)| + |theta| int_0^T |s| dt` for every frame T >= 1, `(batch, frames - 1)`.
        """
        stored = self.stored(u).abs()
        if self.rate is None:
            return self.add_up(stored)
        weights = self.steps(u.shape[-1], u) / 2
        if self.coefficient is not None:
            weights = self.coefficient(u)[:, None] * weights
        return self.add_up(stored, self.rate(u).abs(), weights)

    @staticmethod
    def add_up(stored: Tensor, supplied: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """Add up sizes as the residual adds up values: frames T and 0, and what is supplied between them.

        Args:
            stored: Sizes that belong to the stored quantity, `(batch, frames)`.
            supplied: Sizes that belong to the rate, `(batch, frames)`.
            weights: `theta` times half the time between frames, `(batch, frames - 1)`.

        Returns:
            Sizes `(batch, frames - 1)`.
        """
        total = stored[:, 1:] + stored[:, :1]
        if supplied is None or weights is None:
            return total
        return total + (weights.abs() * (supplied[:, 1:] + supplied[:, :-1])).cumsum(1)


@explain_misuse
@dataclass(frozen=True, eq=False)
class Constraint(ConstraintTerm):
    """Any other condition `function(u) = value`.

    Attributes:
        function: Map from fields to rows `(batch, rows)`.
        value: A number, a tensor that broadcasts to the rows, or `"field"`: what `function` gives on the
            conditioning field.
    """

    function: Callable[[Tensor], Tensor]
    value: float | Tensor | str = 0.0
    kinds: ClassVar[Any] = Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        if not has_type(self.function, self.kinds):
            raise SapcError(
                f"the function of {type(self).__name__} must be a function of fields, got "
                f"{type(self.function).__name__}"
            )

    def measure(self, u: Tensor) -> Tensor:
        """Evaluate the function.

        Args:
            u: Fields `(batch, *grid)`.

        Returns:
            `function(u)`, `(batch, rows)`.

        Raises:
            SapcError: The function returns anything else.
        """
        rows: Any = self.function(u)
        if not isinstance(rows, Tensor):
            raise SapcError(f"a constraint must return a tensor (batch, rows), got {type(rows).__name__}")
        if rows.ndim != 2 or rows.shape[0] != u.shape[0]:
            raise SapcError(
                f"a constraint must return (batch, rows) = ({u.shape[0]}, ...), got shape {tuple(rows.shape)}"
            )
        return rows


@dataclass(frozen=True, eq=False)
class Affine(Constraint):
    """A linear condition `A u = value`.

    The Gram matrix A A^T is factorised once and kept (see `projection.closed_form.GramSolver`).

    Attributes:
        function: The matrix `(rows, points)`, or the linear map itself.
        value: A number, a tensor that broadcasts to the rows, or `"field"`: what the map gives on the
            conditioning field.
    """

    function: Tensor | Callable[[Tensor], Tensor]  # type: ignore[assignment]
    kinds: ClassVar[Any] = Tensor | Callable[[Tensor], Tensor]

    def measure(self, u: Tensor) -> Tensor:
        """Apply the matrix or the map.

        Args:
            u: Fields `(batch, *grid)`.

        Returns:
            `A u`, `(batch, rows)`.

        Raises:
            SapcError: The matrix does not fit the fields.
        """
        if not isinstance(self.function, Tensor):
            return super().measure(u)
        a = self.function.to(u)
        if a.ndim != 2 or a.shape[1] != u[0].numel():
            raise SapcError(
                f"the matrix of an Affine constraint must be (rows, {u[0].numel()}), got {tuple(a.shape)}"
            )
        return u.flatten(1) @ a.T
