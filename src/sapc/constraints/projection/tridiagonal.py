"""Batched tridiagonal systems by parallel cyclic reduction.

With every row divided by its diagonal, row i reads `a_i x_{i-k} + x_i + c_i x_{i+k} = y_i`. Eliminating both neighbours,

    a_i <- -a_i a_{i-k} / p_i,   c_i <- -c_i c_{i+k} / p_i,   y_i <- (y_i - a_i y_{i-k} - c_i y_{i+k}) / p_i,
    p_i  = 1 - a_i c_{i-k} - c_i a_{i+k},

couples it to rows at distance 2k instead, so n rows take ceil(log2 n) vectorised sweeps (a Thomas sweep would take n). Rows outside the
matrix are zero. The matrices here are Gram matrices, symmetric positive definite, for which elimination without pivoting is stable.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..._stencils import shift


def solve_tridiagonal(
    diagonal: Float[Tensor, "batch n"],
    off: Float[Tensor, "batch n_minus_1"],
    *rhs: Float[Tensor, "*many batch n"],
) -> tuple[Tensor, ...]:
    """Solve `T x = y` for symmetric T with the given diagonal and first off-diagonal and every right-hand side y.

    Several can be stacked in front, `(m, batch, n)`, which is cheapest step by step; kept as separate tensors, a compiler makes one
    kernel of each sweep.
    """
    n = diagonal.shape[1]
    pad = torch.nn.functional.pad
    a, c = pad(off, (1, 0)) / diagonal, pad(off, (0, 1)) / diagonal
    ys = [y / diagonal for y in rhs]
    k = 1
    while k < n:
        p = 1 - a * shift(c, -1, k) - c * shift(a, -1, -k)
        ys = [(y - a * shift(y, -1, k) - c * shift(y, -1, -k)) / p for y in ys]
        a, c = -a * shift(a, -1, k) / p, -c * shift(c, -1, -k) / p
        k *= 2
    return tuple(ys)
