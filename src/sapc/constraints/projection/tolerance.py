"""When a field is on the manifold: row by row, at the field itself, in the units of the row.

Row i of the residual R(u) is a difference of numbers. What is added up in it, without signs, is

    T_i(u) = sum_j |dR_i / du_j| |u_j|  +  the sizes of the numbers whose difference the row is,

over all points j, pinned ones too. The numbers are the two stored quantities and the supplied terms of a
balance law, or `f(u)` and its value c for `f(u) = c`. Rounding the entries of u and these numbers moves R_i
by about eps T_i, so nothing better can be asked for. A row is met when

    |R_i(u)| <= tol_i(u) = max(16 eps T_i(u), tol min(1, T_i(u))),       eps = 2^-52,

and a field is on the manifold when every row is met. `tol` is the solver's own tolerance: absolute where a
row adds up more than one, relative where it adds up less, so that fields in small units are not on every
manifold. A projection without iteration has tol = 0.

T and R are those of the same u, the float64 result before it is rounded to the caller's dtype. Neither the
start of a projection, nor another row, nor another sample has a part in it. `ProjectionInfo.residual` is
max_i |R_i|, `ProjectionInfo.converged` is whether every row is met.

To measure T costs a pass over the field. A restoration pass therefore keeps the tolerance of an earlier point
as long as |R|_inf is more than `NEAR_RATIO` times that: it is then off the manifold either way. What is
reported is always measured at the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Times eps T_i is what a row can be expected to meet.
ROUNDING = 16
# Tolerances; within this distance they are measured anew at every point.
NEAR_RATIO = 32.0


def row_tolerance(terms: Tensor, tol: float = 0.0) -> Tensor:
    """Compute tol_i from T_i.

    Args:
        terms: T, `(batch, rows)`.
        tol: Tolerance of the solver.

    Returns:
        Tolerances `(batch, rows)`; NaN, which no residual meets, where T_i is not finite.
    """
    info = torch.finfo(terms.dtype)
    limit = torch.maximum(ROUNDING * info.eps * terms, tol * terms.clamp(max=1.0)).clamp(min=info.tiny)
    return torch.where(terms.isfinite(), limit, torch.nan)


def excess(residual: Tensor, limit: Tensor) -> Tensor:
    """Compute max_i |R_i| / tol_i per sample.

    Args:
        residual: R, `(batch, rows)`.
        limit: Tolerances of the rows.

    Returns:
        At most one on the manifold; NaN where a row or its tolerance is, `(batch,)`.
    """
    return (residual.abs() / limit).amax(1)


def sup(residual: Tensor) -> Tensor:
    """Return |R|_inf per sample; infinite where anything is not finite, so that comparisons decide."""
    size = residual.abs().amax(1)
    return torch.where(size.isfinite(), size, torch.inf)
