"""Batched tridiagonal systems by parallel cyclic reduction.

Each sweep eliminates the neighbours at distance k of every row at once and doubles k, so n rows take ceil(log2 n) vectorised sweeps
(a Thomas sweep would take n). The matrices here are Gram matrices, symmetric positive definite, for which elimination without
pivoting is stable.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def solve_tridiagonal(
    diagonal: Float[Tensor, "batch n"], off: Float[Tensor, "batch n_minus_1"], rhs: Float[Tensor, "batch n m"]
) -> Float[Tensor, "batch n m"]:
    """Solve `T x = rhs` for symmetric T with the given diagonal and first off-diagonal, m right-hand sides at once."""
    n = diagonal.shape[1]
    zero = torch.zeros_like(diagonal[:, :1])
    # Columns: coupling to the row above, diagonal, coupling to the row below, right-hand sides. Rows outside the matrix are identity rows.
    rows = torch.cat(
        (torch.stack((torch.cat((zero, off), 1), diagonal, torch.cat((off, zero), 1)), -1), rhs), -1
    )
    outside = torch.zeros_like(rows[:, :1])
    outside[..., 1] = 1
    k = 1
    while k < n:
        padding = outside.expand(-1, k, -1)
        padded = torch.cat((padding, rows, padding), 1)
        above, below = padded[:, :n], padded[:, 2 * k :]
        up, down = rows[..., :1] / above[..., 1:2], rows[..., 2:3] / below[..., 1:2]
        rows = torch.cat(
            (
                -up * above[..., :1],
                rows[..., 1:2] - up * above[..., 2:3] - down * below[..., :1],
                -down * below[..., 2:3],
                rows[..., 3:] - up * above[..., 3:] - down * below[..., 3:],
            ),
            -1,
        )
        k *= 2
    return rows[..., 3:] / rows[..., 1:2]
