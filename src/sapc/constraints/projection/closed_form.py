"""Projections without iteration: `P(u) = u - A^T (A A^T)^-1 (A u - b)` when every residual is affine.

**A frame integral that does not change** needs no matrix. Let w_t be the integral's weights at the free
points of frame t and m_t its value after the pins are set. All frames must share one value m. Moving frame t
from m_t to m costs (m - m_t)^2 / |w_t|^2, so the nearest fields have m = sum_t m_t |w_t|^-2 / sum_t |w_t|^-2,
and frame t moves by (m - m_t) w_t / |w_t|^2. A frame without free points dictates m: with the initial frame
pinned, m = m_0.

**A matrix or linear map** keeps a float64 Cholesky factor of its Gram matrix.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from ...errors import SapcWarning
from ...grid import FrameIntegral
from .tolerance import ROUNDING, excess, row_tolerance


class FrameShift:
    """The projection onto fields whose frame integral does not change; letters as in the module docstring.

    Args:
        integral: The frame integral.
        free: One at free points and zero at pinned ones.
    """

    def __init__(self, integral: FrameIntegral, free: Tensor) -> None:
        weights = integral.weights_like(free)[..., None]
        # Products with weights of one round nothing and can be left out.
        self.weights = None if bool((integral.weights == 1).all()) else weights
        self.w = weights * free
        ww = (self.w * self.w).flatten(0, -2).sum(0)
        self.is_fixed = ww == 0
        self.ww = torch.where(self.is_fixed, 1.0, ww)
        # Where some frame cannot move, only such frames vote on m.
        vote = torch.where(self.is_fixed.any(), self.is_fixed.to(ww), 1 / self.ww)
        self.share = vote / vote.sum()

    def __call__(self, u: Tensor) -> Tensor:
        """Shift each frame so that all frame integrals agree.

        Args:
            u: Fields with the pins already set; they are written into.

        Returns:
            The fields.
        """
        m = (u if self.weights is None else self.weights * u).flatten(1, -2).sum(1)
        # Taken about the first frame's value, so that a large common mass costs no digits.
        target = m[:, :1] + ((m - m[:, :1]) * self.share).sum(1, keepdim=True)
        shift = torch.where(self.is_fixed, 0.0, (target - m) / self.ww).reshape(
            len(u), *(1,) * (u.ndim - 2), -1
        )
        return u.addcmul_(self.w, shift) if self.weights is None else u.add_(self.w * shift)


class GramSolver:
    """`A^T (A A^T)^-1` for the free columns of A: by Cholesky, else pivoted LU, else the pseudo-inverse of A.

    Rows are scaled to norms of about one first, by powers of two, which round nothing: a row in small units
    weighs as much as one in large units. Rows that others imply are harmless: the pseudo-inverse leaves them
    out, and what they ask for is met with the others. Whether digits are lost is measured: a field that is
    known to exist is projected onto, and a residual beyond rounding is a warning, once for a factor.

    Args:
        matrix: A, `(rows, points)`.
        free: One at free points and zero at pinned ones.
    """

    def __init__(self, matrix: Tensor, free: Tensor) -> None:
        self.full = matrix
        free_matrix = matrix * free.flatten()
        length = free_matrix.norm(dim=1)
        self.unit = torch.exp2(-torch.where(length > 0, length, 1.0).log2().round())
        self.scaled_matrix = free_matrix * self.unit[:, None]
        gram = self.scaled_matrix @ self.scaled_matrix.T
        self.method = "cholesky"
        self.factor, info = torch.linalg.cholesky_ex(gram)
        if not (bool(info == 0) and self._is_accurate(gram)):
            self.method = "lu"
            self.lu, self.pivots, singular = torch.linalg.lu_factor_ex(gram)
            if bool(singular) or not self._is_accurate(gram):
                self.method = "pseudo-inverse"
                # Its columns of pinned points are zero but for rounding, and pinned values stay as they are.
                self.inverse = torch.linalg.pinv(self.scaled_matrix, rtol=1e-12).T * free.flatten()
            self._warn_if_digits_are_lost(gram, free)

    def _is_accurate(self, gram: Tensor) -> bool:
        """Whether solving against known right-hand sides gives them back to 1e-6."""
        truth = torch.linspace(-1, 1, len(gram), dtype=gram.dtype, device=gram.device)[:, None]
        return bool(((self._multipliers((gram @ truth).T).T - truth).abs().max()) <= 1e-6)

    def _warn_if_digits_are_lost(self, gram: Tensor, free: Tensor) -> None:
        """Project zero onto `A u = A v` for a known v; warn where a row is not met (see `tolerance`)."""
        v = torch.cos(1.0 + torch.arange(free.numel()) ** 2).to(free)[None] * free.flatten()
        target = v @ self.full.T
        u = self.project(torch.zeros_like(v), target)
        limit = row_tolerance((u.abs() + v.abs()) @ self.full.abs().T)
        worst = float(excess(u @ self.full.T - target, limit))
        if worst > 1:
            warnings.warn(
                f"the Gram matrix of an affine constraint of {len(gram)} rows has condition number "
                f"{float(torch.linalg.cond(gram)):.1e}, and its {self.method} loses "
                f"{math.log10(ROUNDING * worst):.0f} of 16 digits: some rows are nearly, but not quite, "
                "implied by others; leave those out, or state them exactly",
                SapcWarning,
                stacklevel=5,
            )

    def _multipliers(self, rhs: Tensor) -> Tensor:
        """Compute `(A A^T)^-1 rhs` of the scaled rows, for rows `(batch, rows)`."""
        if self.method == "cholesky":
            multipliers: Tensor = torch.cholesky_solve(rhs.T, self.factor).T
        else:
            multipliers = torch.linalg.lu_solve(self.lu, self.pivots, rhs.T).T
        return multipliers

    def normal_step(self, rhs: Tensor) -> Tensor:
        """Compute `A^+ rhs`, the smallest change of the field that changes the rows by `rhs`.

        Args:
            rhs: Changes of the rows, `(batch, rows)`.

        Returns:
            Changes of the fields, `(batch, points)`.
        """
        rhs = rhs * self.unit
        return (
            rhs @ self.inverse
            if self.method == "pseudo-inverse"
            else self._multipliers(rhs) @ self.scaled_matrix
        )

    def project(self, u: Tensor, target: Tensor) -> Tensor:
        """Project onto the fields with `A u = target`; a second pass removes the rounding of the first.

        Args:
            u: Fields with the pins already set.
            target: Values of the rows.

        Returns:
            The nearest fields.
        """
        for _ in range(2):
            u = u - self.normal_step(u.flatten(1) @ self.full.T - target).reshape(u.shape)
        return u
