"""The equations left after the pins: rows `r(u)`, their linearisation, and solves with J J^T.

A `Problem` is what Gauss-Newton works on. Pinned points have left the unknowns: their values are set before,
and the gradients are masked to the free points. Two problems share one interface, so one algorithm and one
test suite serve both.

**Banded** (see `banded`): one balance law, every operation O(grid).

**Dense**: any residual, its Jacobian by automatic differentiation, a batched Cholesky solve. The oracle of
every faster path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner product per sample."""
    return (a * b).flatten(1).sum(1)


def norm(a: Tensor) -> Tensor:
    """Return the l2 norm per sample."""
    return dot(a, a).sqrt()


class Linearisation(ABC):
    """`r(u + v) = rows + J v + O(v^2)` at one point, for every sample.

    Attributes:
        rows: The rows at this point, `(batch, m)`.
    """

    rows: Tensor

    @abstractmethod
    def apply(self, v: Tensor) -> Tensor:
        """Return `J v`."""

    @abstractmethod
    def transpose(self, l: Tensor) -> Tensor:
        """Return `J^T l`, zero at pinned points."""

    @abstractmethod
    def solve(self, rhs: Tensor) -> Tensor:
        """Return `(J J^T + damping)^-1 rhs`."""

    @abstractmethod
    def terms(self, u: Tensor) -> Tensor:
        """Add up the sizes in every row of the residual: T of `tolerance`.

        Args:
            u: The point of the linearisation.

        Returns:
            T, `(batch, rows)`.
        """

    @abstractmethod
    def weight_columns(self, root: Tensor) -> Linearisation:
        """Return the linearisation with J's columns, one per point, multiplied by `root`."""

    @abstractmethod
    def terms_bound(self, u: Tensor) -> Tensor:
        """Bound the largest of `terms`, roughly, from what is known anyway.

        Args:
            u: The point of the linearisation.

        Returns:
            One number per sample, `(batch,)`.
        """

    def normal_step(self, rhs: Tensor) -> Tensor:
        """Return `J^+ rhs`: the smallest change of the field that changes the rows by `rhs`."""
        return self.transpose(self.solve(rhs))

    def tangent(self, v: Tensor) -> Tensor:
        """Return the part of `v` along the manifold: `v - J^+ J v`."""
        return v - self.normal_step(self.apply(v))


class Problem(ABC):
    """Rows that must vanish at the free points of a batch of fields.

    Attributes:
        free: One at unknown points, zero at pinned ones, `(*grid)`, float64.
        is_traced: Whether a compiler traces it: the law itself is differentiated, nothing is written in place
            or asked.
    """

    free: Tensor
    is_traced: bool = (
        # For a compiler: differentiate the law itself, write nothing in place, ask nothing.
        False
    )

    @abstractmethod
    def rows(self, u: Tensor) -> Tensor:
        """Return the rows `r(u)`, `(batch, m)`."""

    @abstractmethod
    def residual(self, rows: Tensor) -> Tensor:
        """Return the user's residual from the rows."""

    @abstractmethod
    def linearise(self, u: Tensor, mu: float = 0.0, graph: bool = False) -> Linearisation:
        """Linearise the rows.

        Args:
            u: Fields.
            mu: Damping of the solves.
            graph: Whether the result can be differentiated once more.

        Returns:
            Rows and Jacobian at `u`.
        """

    @abstractmethod
    def select(self, index: Tensor) -> Problem:
        """Return the same problem for some of the samples."""

    def slope(self, u: Tensor, weights: tuple[Tensor, Tensor], directions: tuple[Tensor, Tensor]) -> Tensor:
        """Differentiate `m . r - m . J d + l . J tau`.

        Args:
            u: Fields.
            weights: m and l, constants.
            directions: d and tau, constants that are zero at pinned points.

        Returns:
            The gradient in all of `u`, pinned points too.
        """
        (m, l), (d, tau) = weights, directions
        with torch.enable_grad():
            point = u.detach().requires_grad_()
            rows = self.rows(point)
            # Nothing in it reads the field.
            if not rows.requires_grad:
                return torch.zeros_like(u)
            first = (m * rows).sum()
            Jm, Jl = (
                torch.autograd.grad(f, point, create_graph=True, materialize_grads=True)[0]
                for f in (first, (l * rows).sum())
            )
            total = first - (Jm * d).sum() + (Jl * tau).sum()
            return torch.autograd.grad(total, point, materialize_grads=True)[0]


@dataclass
class DenseProblem(Problem):
    """Any residual `function(u) - target`; memory and time grow with rows x points.

    Attributes:
        function: Map from fields to rows.
        target: Values of the rows, `(batch or 1, rows)`.
        free: One at unknown points, zero at pinned ones.
        magnitude: Sizes of the numbers whose difference each row of `function` is.
    """

    function: Callable[[Tensor], Tensor]
    target: Tensor
    free: Tensor
    magnitude: Callable[[Tensor], Tensor]

    def rows(self, u: Tensor) -> Tensor:
        """Return the residual itself."""
        return self.function(u) - self.target

    def residual(self, rows: Tensor) -> Tensor:
        """Return the rows, which are the residual."""
        return rows

    def select(self, index: Tensor) -> DenseProblem:
        """Select the targets of some of the samples."""
        return self if len(self.target) == 1 else replace(self, target=self.target[index])

    def linearise(self, u: Tensor, mu: float = 0.0, graph: bool = False) -> DenseLinearisation:
        """Build the full Jacobian: one backward pass per row, vectorised where the function allows it.

        Args:
            u: Fields.
            mu: Damping of the solves.
            graph: Whether the result can be differentiated once more.

        Returns:
            Rows and Jacobian at `u`.
        """
        if not (graph and u.requires_grad):
            u = u.detach()
        with torch.enable_grad():
            rows, pullback = torch.func.vjp(self.rows, u)  # type: ignore[misc]
            m = rows.shape[1]
            one_hot = torch.eye(m, dtype=u.dtype, device=u.device)[:, None].expand(m, len(u), m)
            try:
                slopes = torch.vmap(lambda w: pullback(w)[0])(one_hot)
            # Some operation in the user's function has no batching rule.
            except RuntimeError:
                slopes = torch.stack([pullback(w)[0] for w in one_hot])
        jacobian = (slopes * self.free).flatten(2).transpose(0, 1)
        with torch.no_grad():
            sizes = (slopes.detach() * u.detach()).abs_().flatten(2).sum(2).T
            terms = sizes + self.magnitude(u.detach()) + self.target.abs()
        if not graph:
            rows, jacobian = rows.detach(), jacobian.detach()
        return DenseLinearisation(rows, jacobian, u.shape, mu, terms)


class DenseLinearisation(Linearisation):
    """A Jacobian `(batch, rows, points)` and a Cholesky factor of its Gram matrix.

    Args:
        rows: The rows.
        jacobian: The Jacobian, zero at pinned points.
        shape: Shape of the fields.
        mu: Damping.
        terms: T of `tolerance`, `(batch, rows)`.
    """

    def __init__(self, rows: Tensor, jacobian: Tensor, shape: torch.Size, mu: float, terms: Tensor) -> None:
        self.rows, self.jacobian, self.shape, self.mu, self._terms = rows, jacobian, shape, mu, terms

    @cached_property
    def factor(self) -> Tensor:
        """The Cholesky factor; made for the first solve, because not everybody solves."""
        gram = self.jacobian @ self.jacobian.mT
        # Rows without gradient get a unit pivot, as in the banded case; rounding-size jitter only where
        # Cholesky needs it.
        diagonal = gram.diagonal(dim1=1, dim2=2)
        gram = gram + torch.diag_embed(torch.where(diagonal > 0, torch.full_like(diagonal, self.mu), 1.0))
        factor: Tensor
        factor, info = torch.linalg.cholesky_ex(gram)
        # A device is not asked whether it needs the second factor.
        if gram.requires_grad or not (info.is_cuda or bool(info.any())):
            return factor
        jitter = torch.diag_embed((1e-13 * diagonal.mean(1, keepdim=True)).expand_as(diagonal))
        factor_with_jitter = torch.linalg.cholesky_ex(gram + jitter)[0]
        return torch.where((info > 0)[:, None, None], factor_with_jitter, factor)

    def apply(self, v: Tensor) -> Tensor:
        """Return `J v`."""
        return (self.jacobian @ v.flatten(1)[..., None])[..., 0]

    def terms(self, u: Tensor) -> Tensor:
        """Return `|J| |u|`, pinned points too, with the numbers of every row."""
        return self._terms

    def weight_columns(self, root: Tensor) -> DenseLinearisation:
        """Weight the columns of the Jacobian."""
        return DenseLinearisation(self.rows, self.jacobian * root.flatten(), self.shape, self.mu, self._terms)

    def terms_bound(self, u: Tensor) -> Tensor:
        """Return the largest of `terms`."""
        return self._terms.amax(1)

    def transpose(self, l: Tensor) -> Tensor:
        """Return `J^T l`."""
        return (self.jacobian.mT @ l[..., None])[..., 0].reshape(self.shape)

    def solve(self, rhs: Tensor) -> Tensor:
        """Solve by two triangular solves."""
        return torch.cholesky_solve(rhs[..., None], self.factor)[..., 0]
