"""Symmetries: maps g of fields that turn solutions into solutions that are as likely.

g u has the distribution of u: not only the equation must allow it, but also what is random, as initial values
and forces. A training may then show g v0 in place of v0, with another g each time.

A symmetry is a cyclic group {1, T, ..., T^(m-1)}, where T maps indices and signs and has a text, as `shift:x`
or `reflect:x,sign:u` (see `index_maps`). A random element is T^k, k uniform. Its factors are T, T^2, T^4, ...
by the binary digits of k, and the order m is found by composition. No value is interpolated: T^m u is u to
the last bit, and nothing waits for the device. Several symmetries are drawn independently of each other.

Anything else is a function of fields and a generator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from ..data.normalizer import Identity, Normalizer
from ..errors import SapcError
from ..grid import Grid
from .index_maps import EXAMPLE, IndexMap, parse_map
from .physics import digest_of

Function = Callable[[Tensor, torch.Generator], Tensor]
"""Takes fields in their own units, in float64, and a generator; returns their images under random maps."""


@dataclass(frozen=True)
class Symmetry:
    """The powers of a map of indices and signs.

    Attributes:
        text: Its name, as `index_maps` reads it.
        generator: T.
        parameter: Name of the parameter of a solution that draws depend on; empty where there is none.
    """

    text: str
    generator: IndexMap
    parameter: str = ""

    @cached_property
    def powers(self) -> tuple[IndexMap, ...]:
        """T, T^2, T^4, ... below the order."""
        powers = [self.generator]
        while 2 ** len(powers) < self.order:
            powers.append(powers[-1].then(powers[-1]))
        return tuple(powers)

    @cached_property
    def order(self) -> int:
        """The number of its elements m, the least with T^m = 1."""
        T, m = self.generator, 1
        power = T.then(T)
        while power != T:
            power, m = power.then(T), m + 1
        return m

    @property
    def changes_values(self) -> bool:
        """Whether values change, or only their places."""
        return self.generator.changes_values

    def draw(
        self, n: int, generator: torch.Generator, parameters: Mapping[str, Tensor] | None = None
    ) -> Int64[Tensor, " n"]:
        """Draw the exponents of random elements.

        Args:
            n: How many.
            generator: Random numbers, whose device is that of the result.
            parameters: Parameters of the solutions, for symmetries that depend on them.

        Returns:
            k, uniform on 0 .. m - 1.
        """
        return torch.randint(self.order, (n,), generator=generator, device=generator.device)

    def apply(self, u: Tensor, k: Int64[Tensor, " n"]) -> Tensor:
        """Map every field by an element of its own.

        Args:
            u: Fields `(n, *grid)`.
            k: Exponents, 0 .. m - 1.

        Returns:
            T^k u, field by field.
        """
        rows = k.reshape(-1, *(1,) * (u.ndim - 1))
        for i, power in enumerate(self.powers):
            u = torch.where((rows >> i) % 2 == 1, power(u), u)
        return u.contiguous()

    def transform(
        self, u: Tensor, generator: torch.Generator, parameters: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Map every field by a random element of its own.

        Args:
            u: Fields `(n, *grid)`, on the device of the generator.
            generator: Random numbers.
            parameters: Parameters of the solutions.

        Returns:
            Their images.
        """
        return self.apply(u, self.draw(len(u), generator, parameters))


@dataclass(frozen=True)
class RangedShift(Symmetry):
    """A shift that moves a uniform parameter: those shifts only that leave it in its range.

    T moves the parameter p by `step`. Of the values p + j step those in [low, high) are equally likely, so a
    uniform p stays uniform. p is that of the solution as it was solved, so this comes before other
    symmetries.

    Attributes:
        step: By how much T moves the parameter.
        low: Begin of its range.
        high: End of its range.
    """

    step: float = 1.0
    low: float = 0.0
    high: float = 1.0

    def draw(
        self, n: int, generator: torch.Generator, parameters: Mapping[str, Tensor] | None = None
    ) -> Int64[Tensor, " n"]:
        """Draw k, uniform among those that leave the parameter in its range."""
        if parameters is None:
            raise SapcError(
                f"the symmetry {self.text!r} needs the parameter {self.parameter!r} of its fields"
            )
        position = (parameters[self.parameter].to(generator.device, torch.float64) - self.low) / self.step
        place = position.floor()
        count = ((self.high - self.low) / self.step - (position - place)).ceil()
        r = torch.rand(n, generator=generator, device=generator.device, dtype=torch.float64)
        return ((r * count).floor() - place).long() % self.order


@dataclass(frozen=True)
class FunctionSymmetry:
    """A function that maps fields at random.

    Attributes:
        text: Its name, with a digest of its code.
        function: The function of fields, in their own units, and a generator.
    """

    text: str
    function: Function
    changes_values = True
    parameter = ""

    def transform(
        self, u: Tensor, generator: torch.Generator, parameters: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Map every field by a random element of its own; see `Symmetry.transform`."""
        try:
            image = self.function(u, generator)
        except Exception as error:
            raise SapcError(f"the symmetry {self.text} failed: {type(error).__name__}: {error}") from error
        if not isinstance(image, Tensor) or image.shape != u.shape or image.dtype != u.dtype:
            got = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
            raise SapcError(
                f"the symmetry {self.text} takes fields and a generator and returns fields, as a tensor of "
                f"{u.dtype} {tuple(u.shape)}; got {got}"
            )
        return image


AnySymmetry = Symmetry | FunctionSymmetry
Declaration = str | Function | Symmetry
"""How a task declares a symmetry: by its text, as a function, or made already."""


def make_symmetry(declaration: Any, grid: Grid) -> AnySymmetry:
    """Make a symmetry of fields on a grid.

    Args:
        declaration: A text, a function of fields and a generator, or a symmetry.
        grid: Grid of the fields.

    Returns:
        The symmetry.

    Raises:
        SapcError: The declaration cannot be read, or does not fit the grid.
    """
    if isinstance(declaration, Symmetry):
        return declaration
    if isinstance(declaration, str):
        text = ",".join(part.strip() for part in declaration.split(","))
        return Symmetry(text, parse_map(text, grid))
    if callable(declaration):
        return FunctionSymmetry(_name(declaration), declaration)
    raise SapcError(
        f"a symmetry is a text, as {EXAMPLE}, or a function of fields and a generator, got "
        f"{type(declaration).__name__}"
    )


def find_symmetries(
    declared: Sequence[Declaration], names: Sequence[str], grid: Grid
) -> tuple[AnySymmetry, ...]:
    """Find symmetries by name.

    Args:
        declared: Those that a task declares.
        names: Their texts; of any that a text can name, also others.
        grid: Grid of the fields.

    Returns:
        The symmetries, in the order of the names, those that depend on a parameter first.

    Raises:
        SapcError: One is code, and not among those declared.
    """
    known = {symmetry.text: symmetry for symmetry in (make_symmetry(d, grid) for d in declared)}
    if absent := [n for n in names if n.startswith("function:") and n not in known]:
        raise SapcError(
            f"the symmetry {absent[0]} of this run is code, which no file holds; declare this very function "
            "again, as Task.from_data(data, physics, symmetries=[...])"
        )
    found = [known.get(name) or make_symmetry(name, grid) for name in names]
    return tuple(sorted(found, key=lambda symmetry: not symmetry.parameter))


def transform_normalized(
    symmetry: AnySymmetry,
    w: Tensor,
    normalizer: Normalizer | Identity,
    generator: torch.Generator,
    parameters: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Map normalized fields: w -> (g(m + s w) - m) / s.

    Where points only change places that is g w, to the bit. Where values change, it is computed in float64
    and rounded once: with a mean m, u -> -u is w -> -w - 2 m / s.

    Args:
        symmetry: The symmetry, which acts on fields in their units.
        w: Normalized fields `(n, *grid)`.
        normalizer: Mean m and deviation s.
        generator: Random numbers.
        parameters: Parameters of the solutions.

    Returns:
        Normalized fields.
    """
    if normalizer.is_identity or not symmetry.changes_values:
        return symmetry.transform(w, generator, parameters)
    u = symmetry.transform(normalizer.denormalize(w.double()), generator, parameters)
    return normalizer.normalize(u).to(w.dtype)


def _name(function: Function) -> str:
    """Name a function, with a digest of its code where there is one."""
    try:
        digest = digest_of(inspect.getsource(function))[:12]
    except (OSError, TypeError):
        digest = "unknown"
    return f"function:{getattr(function, '__name__', type(function).__name__)}:{digest}"
