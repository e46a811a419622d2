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
    """A function of fields that brings its gradient.

    The banded projection then needs no automatic differentiation.

    Attributes:
        function: Map from fields to a number per frame or per field.
        value_and_gradient: Map from fields to these numbers, and to the gradient, with respect to the fields,
            of the sum of all of them.
    """

    function: Callable[[Tensor], Tensor]
    value_and_gradient: Callable[[Tensor], tuple[Tensor, Tensor]]

    def __call__(self, u: Tensor) -> Tensor:
        """Evaluate the function.

        Args:
            u: Fields `(batch, *grid)`.

        Returns:
            Its values.
        """
        return self.function(u)


@dataclass(frozen=True, eq=False)
class LawKernel:
    """A balance law as functions of a block of points, which lets a GPU project a sample in one program.

    The functions are `@triton.jit` functions: one, or three for a law with a coefficient. With `u` a pointer
    to one float64 field `(X, T)`, all space flattened, and `i`, `t` blocks of indices, which always lie on
    the grid,

        local(u, i, t, data, X, T)  ->  e, s, E, S
            Terms at these points of the stored quantity and the rate, and the gradients there of their
            sums over space (s and S are not read where there is no rate).
        fit(u, i, t, data, X, T)  ->  a, b, k
            Terms of two sums over the field, whose quotient is the coefficient, and a field that is kept
            for the third function.
        slope(u, k, i, t, data, A, B, X, T)  ->  g
            The gradient of the coefficient A / B, with `k` a pointer to the field kept.

    All of them may read the field anywhere, write nothing, and return float64 blocks of the shape of `i`
    against `t`.

    Attributes:
        load: Function that returns these functions. It is called when they are first needed, so that the law
            can be declared where Triton is not installed.
        data: Numbers and weights that the functions read besides the field.
    """

    load: Callable[[], tuple[Any, ...]]
    data: Tensor
