"""Batched tridiagonal systems by parallel cyclic reduction.

Each sweep eliminates the neighbours at distance k of every row at once and doubles k, so n rows take ceil(log2 n) vectorised sweeps
(a Thomas sweep would take n). The matrices here are Gram matrices, symmetric positive definite, for which elimination without
pivoting is stable.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def _shift(v: Tensor, k: int) -> Tensor:
    """Row i of the result is row i - k of `v`, zero outside."""
    pad = torch.zeros_like(v[:, : abs(k)])
    return torch.cat((pad, v[:, :-k]), 1) if k > 0 else torch.cat((v[:, -k:], pad), 1)


def solve_tridiagonal(
    diagonal: Float[Tensor, "batch n"], off: Float[Tensor, "batch n_minus_1"], rhs: Float[Tensor, "batch n m"]
) -> Float[Tensor, "batch n m"]:
    """Solve `T x = rhs` for symmetric T with the given diagonal and first off-diagonal, m right-hand sides at once."""
    n = diagonal.shape[1]
    zero = torch.zeros_like(diagonal[:, :1])
    lower, upper = torch.cat((zero, off), 1), torch.cat((off, zero), 1)
    k = 1
    while k < n:
        # Rows outside the matrix are identity rows: their diagonal is one, and their couplings are zero.
        inside = torch.ones_like(diagonal)
        above = _shift(diagonal, k) + (inside - _shift(inside, k))
        below = _shift(diagonal, -k) + (inside - _shift(inside, -k))
        to_above, to_below = -lower / above, -upper / below
        diagonal = diagonal + to_above * _shift(upper, k) + to_below * _shift(lower, -k)
        rhs = rhs + to_above[..., None] * _shift(rhs, k) + to_below[..., None] * _shift(rhs, -k)
        lower, upper = to_above * _shift(lower, k), to_below * _shift(upper, -k)
        k *= 2
    return rhs / diagonal[..., None]
