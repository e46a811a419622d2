"""Projections without iteration: `P(u) = u - A^T (A A^T)^-1 (A u - b)` when every residual is affine.

**A frame integral that does not change** needs no matrix. Let w_t be the integral's weights at the free points of frame t and
m_t its value after the pins are set. All frames must share one value m. Moving frame t from m_t to m costs
(m - m_t)^2 / |w_t|^2, so the nearest fields have m = sum_t m_t |w_t|^-2 / sum_t |w_t|^-2, and frame t moves by
(m - m_t) w_t / |w_t|^2. A frame without free points dictates m: with the initial frame pinned, m = m_0.

**A matrix or linear map** keeps a float64 Cholesky factor of its Gram matrix.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from ..errors import SapcWarning


def project_conserved(u: Tensor, weights: Tensor, free: Tensor) -> Tensor:
    """Shift each frame of `u` (pins already set) so that all frame integrals agree."""
    w = weights[..., None] * free  # (*space, time)
    ww = (w * w).flatten(0, -2).sum(0)
    fixed = ww == 0
    m = (weights[..., None] * u).flatten(1, -2).sum(1)
    # Where some frame cannot move, only such frames vote on m.
    vote = torch.where(fixed.any(), fixed.to(u.dtype), 1 / torch.where(fixed, 1.0, ww))
    # Taken about the first frame's value, so that a large common mass costs no digits.
    target = m[:, :1] + ((m - m[:, :1]) * (vote / vote.sum())).sum(1, keepdim=True)
    shift = torch.where(fixed, 0.0, (target - m) / torch.where(fixed, 1.0, ww))
    return u + w * shift.reshape(len(u), *(1,) * (u.ndim - 2), -1)


class GramSolver:
    """`(A A^T)^-1` for the free columns of A: Cholesky, else pivoted LU, else the pseudo-inverse; each fallback warns."""

    def __init__(self, matrix: Tensor, free: Tensor) -> None:
        self.full = matrix
        self.a = matrix * free.flatten()
        gram = self.a @ self.a.T
        self.method = "cholesky"
        self.factor, info = torch.linalg.cholesky_ex(gram)
        if bool(info == 0) and self._accurate(gram):
            return
        condition = float(torch.linalg.cond(gram))
        self.method = "lu"
        self.lu, self.pivots, singular = torch.linalg.lu_factor_ex(gram)
        if bool(singular) or not self._accurate(gram):
            self.method = "pseudo-inverse"
            self.inverse = torch.linalg.pinv(gram, hermitian=True, rtol=1e-12)
        warnings.warn(
            f"the Gram matrix of an affine constraint of {len(gram)} rows has condition number {condition:.1e}; its Cholesky factor is not "
            f"accurate, using {self.method} instead: are some rows implied by others?",
            SapcWarning,
            stacklevel=4,
        )

    def _accurate(self, gram: Tensor) -> bool:
        """Whether solving against known right-hand sides gives them back to 1e-6."""
        truth = torch.linspace(-1, 1, len(gram), dtype=gram.dtype, device=gram.device)[:, None]
        rhs = gram @ truth
        solved = self.solve(rhs.T).T
        error = (solved - truth).abs().max()
        return bool(error <= 1e-6)

    def solve(self, rhs: Tensor) -> Tensor:
        """`(A A^T)^-1 rhs` for rows `(batch, rows)`."""
        if self.method == "cholesky":
            solved: Tensor = torch.cholesky_solve(rhs.T, self.factor).T
        elif self.method == "lu":
            solved = torch.linalg.lu_solve(self.lu, self.pivots, rhs.T).T
        else:
            solved = rhs @ self.inverse
        return solved

    def project(self, u: Tensor, target: Tensor) -> Tensor:
        """The nearest field with `A u = target`, pins already set; a second pass removes the rounding of the first."""
        for _ in range(2):
            correction = self.solve(u.flatten(1) @ self.full.T - target) @ self.a
            u = u - correction.reshape(u.shape)
        return u
