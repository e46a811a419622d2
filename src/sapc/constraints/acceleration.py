"""What a law may bring to be projected onto faster: its gradient, or functions for a GPU kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .._old_names import rename_fields


@rename_fields(both="value_and_gradient")
@dataclass(frozen=True, eq=False)
class WithGradient:
    """A function of fields that brings its gradient: the banded projection then needs no automatic differentiation.

    `value_and_gradient(u)` returns the value (a number per frame or per field) and the gradient, with
    respect to `u`, of the sum of all values.
    """

    function: Callable[[Tensor], Tensor]
    value_and_gradient: Callable[[Tensor], tuple[Tensor, Tensor]]

    def __call__(self, u: Tensor) -> Tensor:
        """The value."""
        return self.function(u)


@dataclass(frozen=True, eq=False)
class LawKernel:
    """A balance law as functions of a block of points, which lets a GPU project a whole sample in one program.

    `load` returns `@triton.jit` functions, one, or three for a law with a coefficient; it is called when they are first needed, so that
    the law can be declared where Triton is not installed. `data` is what they read besides the field: numbers and weights. With `u` a
    pointer to one float64 field `(X, T)`, all space flattened, and `i`, `t` blocks of indices, which always lie on the grid,

        local(u, i, t, data, X, T)  ->  e, s, E, S       terms at these points of the stored quantity and the rate, and the gradients
                                                         there of their sums over space (s and S are not read where there is no rate)
        fit(u, i, t, data, X, T)  ->  a, b, k            terms of two sums over the field, whose quotient is the coefficient, and a
                                                         field that is kept for the third function
        slope(u, k, i, t, data, A, B, X, T)  ->  g       the gradient of the coefficient A / B, with `k` a pointer to the field kept

    All of them may read the field anywhere, write nothing, and return float64 blocks of the shape of `i` against `t`.
    """

    load: Callable[[], tuple[Any, ...]]
    data: Tensor
