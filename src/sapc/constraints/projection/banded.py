"""Gauss-Newton onto one balance law, every operation O(grid): the equations are banded in time.

The rows are its increments between consecutive frames,

    r_T = e_T - e_{T-1} - theta c_T (s_T + s_{T-1}),   c_T = (t_T - t_{T-1}) / 2,   T = 1..n_t-1,

whose running sum is the residual. With E_t, S_t the gradients of e and s at frame t and g the gradient of
theta,

    J^T l  =  E_t (l_t - l_{t+1}) - S_t theta (c_t l_t + c_{t+1} l_{t+1}) - g (q . l),
    q_T = c_T (s_T + s_{T-1}),

    J J^T  =  M - h q^T - q h^T + |g|^2 q q^T,   M tridiagonal,   h = J_0 g,

where J_0 is J without the coefficient's term. All gradients come from one backward pass each, because a
frame's number reads that frame only; a solve costs one tridiagonal solve with three right-hand sides and a 2
x 2 system (Woodbury). Damping mu I of the residual's own rows becomes mu D D^T here, D the first difference,
which is tridiagonal too.

**Tridiagonal systems** are solved by parallel cyclic reduction. With every row divided by its diagonal, row i
reads `a_i x_{i-k} + x_i + c_i x_{i+k} = y_i`. Eliminating both neighbours,

    a_i <- -a_i a_{i-k} / p_i,   c_i <- -c_i c_{i+k} / p_i,   y_i <- (y_i - a_i y_{i-k} - c_i y_{i+k}) / p_i,
    p_i  = 1 - a_i c_{i-k} - c_i a_{i+k},

couples it to rows at distance 2k instead, so n rows take ceil(log2 n) vectorised sweeps (a Thomas sweep would
take n). Rows outside the matrix are zero. The matrices here are Gram matrices, symmetric positive definite,
for which elimination without pivoting is stable.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..._stencils import shift
from ...flow.path import expand_like
from ...grid import FrameIntegral
from ..acceleration import WithGradient
from ..terms import Balance
from .linearisation import Linearisation, Problem, dot

# Numbers that stay in the cache of a CPU.
CHUNK_NUMBERS = 2**13


@dataclass
class BandedProblem(Problem):
    """One balance law, every operation O(grid).

    Attributes:
        balance: The law.
        free: One at unknown points, zero at pinned ones.
        pin_index: Flat indices of the pinned points.
        jitter: Relative to the Gram matrix's diagonal; needed where rows can depend on each other.
        key: Tells problems with different pins apart.
        is_traced: Whether a compiler traces it.
    """

    balance: Balance
    free: Tensor
    pin_index: Tensor
    jitter: float = 0.0
    key: object = None
    is_traced: bool = False

    def rows(self, u: Tensor) -> Tensor:
        """Return the increments of the law."""
        return self.balance.increments(u)

    def residual(self, rows: Tensor) -> Tensor:
        """Return the running sum of the increments."""
        return rows.cumsum(1)

    def select(self, index: Tensor) -> BandedProblem:
        """Return the same law; its target is zero for every sample."""
        return self

    def linearise(self, u: Tensor, mu: float = 0.0, graph: bool = False) -> BandedLinearisation:
        """Evaluate e, s and theta and their gradients: one backward pass each, unless the law brings them.

        Args:
            u: Fields.
            mu: Damping of the solves.
            graph: Whether the result can be differentiated once more.

        Returns:
            Rows and Jacobian at `u`.
        """
        if not (graph and u.requires_grad):
            graph, u = False, u.detach()
        values, slopes = self._gradients(u, graph)
        slopes_and_entries = [self._mask_pins(slope, graph) for slope in slopes]
        c = self.balance.steps(u.shape[-1], u) / 2
        lin = BandedLinearisation(
            values, [slope for slope, _ in slopes_and_entries], c, mu, self.jitter, self.is_traced
        )
        lin.pin_index = self.pin_index
        lin.pin_entries = [entries for _, entries in slopes_and_entries]
        return lin

    def _gradients(self, u: Tensor, graph: bool) -> tuple[list[Tensor], list[Tensor]]:
        law = self.balance
        functions = zip(
            (law.stored, law.rate, law.coefficient), ("stored", "rate", "coefficient"), strict=True
        )
        pairs = [
            _value_and_gradient(law.with_shape_check(f, term), f, u, graph, self.is_traced)
            for f, term in functions
            if f is not None
        ]
        return [value for value, _ in pairs], [slope for _, slope in pairs]

    def slope(self, u: Tensor, weights: tuple[Tensor, Tensor], directions: tuple[Tensor, Tensor]) -> Tensor:
        """Differentiate as any problem does, but with gradients of e, s and theta that m and l share.

        Each of them is differentiated once.

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
            values, slopes = self._gradients(point, graph=True)
            lin = BandedLinearisation(values, slopes, self.balance.steps(u.shape[-1], u) / 2, 0.0)
            total = (m * (lin.rows - lin.apply(d))).sum() + (l * lin.apply(tau)).sum()
            # Nothing in the law reads the field.
            if not total.requires_grad:
                return torch.zeros_like(u)
            return torch.autograd.grad(total, point, materialize_grads=True)[0]

    def _mask_pins(self, slope: Tensor, graph: bool) -> tuple[Tensor, Tensor]:
        """Return a gradient at the free points, and the whole of it or its entries at the pinned points.

        The entries are returned where the gradient is masked in place and does not hold them any more.

        Args:
            slope: The gradient.
            graph: Whether it is differentiated once more.

        Returns:
            The masked gradient, and what it had at the pinned points.
        """
        if graph or self.is_traced or not slope.is_contiguous():
            return slope * self.free, slope.detach()
        flat = slope.flatten(1)
        pin_entries = flat[:, self.pin_index]
        # Touches the pinned points only.
        flat.index_fill_(1, self.pin_index, 0)
        return slope, pin_entries


def _value_and_gradient(
    checked_function: Callable[[Tensor], Tensor],
    f: Callable[[Tensor], Tensor],
    u: Tensor,
    graph: bool,
    is_traced: bool,
) -> tuple[Tensor, Tensor]:
    """Return `f(u)` and the gradient of its sum; with `graph`, differentiable once more."""
    if isinstance(f, FrameIntegral) and not graph:
        return checked_function(u), f.weights_like(u)[..., None].expand_as(u)
    if isinstance(f, WithGradient) and not graph and not is_traced:
        return f.value_and_gradient(u)
    with torch.enable_grad():
        u = u if graph else u.detach().requires_grad_()
        value = checked_function(u)
        slope = None
        if value.requires_grad:
            (slope,) = torch.autograd.grad(value.sum(), u, create_graph=graph, allow_unused=True)
    if slope is None:
        slope = torch.zeros_like(u)
    return (value, slope) if graph else (value.detach(), slope)


def _pad_to_three(tensors: list[Tensor]) -> tuple[Tensor, Tensor | None, Tensor | None]:
    padded: tuple[Any, ...] = (*tensors, None, None)
    return padded[0], padded[1], padded[2]


class BandedLinearisation(Linearisation):
    """The linearisation of the module docstring; letters as there.

    Args:
        values: [e], [e, s] or [e, s, theta].
        slopes: Their gradients at the free points.
        c: Half the times between frames.
        mu: Damping.
        jitter: Relative to the Gram matrix's diagonal.
        is_traced: Whether a compiler traces it.
    """

    def __init__(
        self,
        values: list[Tensor],
        slopes: list[Tensor],
        c: Tensor,
        mu: float,
        jitter: float = 0.0,
        is_traced: bool = False,
    ) -> None:
        self.is_traced = is_traced
        # Flat indices of the pinned points.
        self.pin_index: Tensor | None = None
        # The gradients with their entries there, or these entries.
        self.pin_entries: list[Tensor] = []
        self.values = e, s, theta = _pad_to_three(values)
        self.E, self.S, self.g = _pad_to_three(slopes)
        self.rows = e.diff(dim=1)
        self.c = c.expand_as(self.rows)
        if s is not None:
            self.q = self.c * (s[:, 1:] + s[:, :-1])
            if theta is not None:
                self.c = theta[:, None] * self.c
                self.rows = self.rows - theta[:, None] * self.q
            else:
                self.rows = self.rows - self.q
        self.mu, self.jitter = mu, jitter

    def _frames(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the inner product per frame."""
        return (a * b).flatten(1, -2).sum(1)

    @cached_property
    def _squares(self) -> tuple[Tensor, Tensor]:
        """|E|^2 and |S|^2 of every frame."""
        ee = self._frames(self.E, self.E)
        return ee, ee if self.S is None else self._frames(self.S, self.S)

    @cached_property
    def _tridiagonal(self) -> tuple[Tensor, Tensor]:
        """M, its diagonal and the one beside it; made for the first solve, because not everybody solves."""
        c, (ee, ss) = self.c, self._squares
        diagonal, off_diagonal = ee[:, 1:] + ee[:, :-1], -ee[:, 1:-1]
        if self.S is not None:
            es = self._frames(self.E, self.S)
            diagonal = diagonal + 2 * c * (es[:, :-1] - es[:, 1:]) + c * c * (ss[:, 1:] + ss[:, :-1])
            off_diagonal = (
                off_diagonal + (c[:, :-1] - c[:, 1:]) * es[:, 1:-1] + c[:, :-1] * c[:, 1:] * ss[:, 1:-1]
            )
        if self.mu > 0:
            first = torch.ones_like(diagonal[:, :1])
            diagonal = diagonal + self.mu * torch.cat((first, 2 * torch.ones_like(off_diagonal)), 1)
            off_diagonal = off_diagonal - self.mu
        # A row without any gradient cannot be met by moving; unit pivot, so that it stays finite and is
        # reported.
        return torch.where(diagonal > 0, diagonal * (1 + self.jitter), 1.0), off_diagonal

    @cached_property
    def _rank_two(self) -> tuple[Tensor, Tensor]:
        """The vector h and |g|^2."""
        assert self.g is not None
        return self._apply_0(self.g), self._frames(self.g, self.g).sum(1)

    def _apply_0(self, v: Tensor) -> Tensor:
        out = self._frames(self.E, v).diff(dim=1)
        if self.S is None:
            return out
        sv = self._frames(self.S, v)
        return out - self.c * (sv[:, 1:] + sv[:, :-1])

    def apply(self, v: Tensor) -> Tensor:
        """Return `J v`."""
        out = self._apply_0(v)
        return out if self.g is None else out - self.q * dot(self.g, v)[:, None]

    def terms(self, u: Tensor) -> Tensor:
        """Add up `E`, `S` and the values of a frame over frames; the coefficient adds `|q . 1| |g| |u|`.

        Args:
            u: The point of the linearisation.

        Returns:
            T of `tolerance`, `(batch, rows)`.
        """
        e, s, _ = self.values
        sizes = [
            self._frame_sizes(slope, pin_entries, u)
            for slope, pin_entries in zip(self._detached_slopes(), self.pin_entries, strict=True)
        ]
        total = Balance.add_up(
            sizes[0] + e.detach().abs(), None if s is None else sizes[1] + s.detach().abs(), self.c.detach()
        )
        if self.g is None:
            return total
        return total + self.q.detach().cumsum(1).abs() * sizes[2].sum(1, keepdim=True)

    def terms_bound(self, u: Tensor) -> Tensor:
        """Take `|E| |u|` for the sums over space, by the norms of the gradients at the free points.

        Args:
            u: The point of the linearisation.

        Returns:
            One number per sample.
        """
        e, s, _ = self.values
        size, (ee, ss) = torch.linalg.vector_norm(u.flatten(1), dim=1)[:, None], self._squares
        storage, supply = e.abs() + ee.sqrt() * size, None if s is None else s.abs() + ss.sqrt() * size
        total = Balance.add_up(storage, supply, self.c).amax(1)
        return (
            total if self.g is None else total + self.q.abs().sum(1) * (self._rank_two[1].sqrt() * size[:, 0])
        )

    def _detached_slopes(self) -> list[Tensor]:
        return [slope.detach() for slope in (self.E, self.S, self.g) if slope is not None]

    def _frame_sizes(self, slope: Tensor, pin_entries: Tensor, u: Tensor) -> Tensor:
        """Add up `|slope| |u|` over every frame, with what was left out at the pinned points."""
        assert self.pin_index is not None
        if (
            u.is_cuda and pin_entries.shape != slope.shape
            # To add entries up by index has no fixed order there.
        ):
            pin_entries = slope.flatten(1).index_copy(1, self.pin_index, pin_entries).view_as(slope)
        is_whole = pin_entries.shape == slope.shape
        slope = pin_entries if is_whole else slope
        # On a CPU a few samples at a time: memory for more is new every time, which takes longer than the
        # arithmetic.
        chunk = len(u) if u.is_cuda or self.is_traced else max(1, CHUNK_NUMBERS // u[0].numel())
        pieces = (
            zip(torch.split(slope, chunk), torch.split(u, chunk), strict=True)
            if chunk < len(u)
            else ((slope, u),)
        )
        free = torch.cat([(a * b).abs().flatten(1, -2).sum(1) for a, b in pieces])
        if is_whole:
            return free
        pin_sizes = (pin_entries * u.flatten(1)[:, self.pin_index]).abs()
        return free.index_add(1, self.pin_index % u.shape[-1], pin_sizes)

    def weight_columns(self, root: Tensor) -> BandedLinearisation:
        """Weight the gradients of e, s and theta."""
        result = copy(self)
        # What is cached belongs to the gradients that were there.
        for name in ("_squares", "_tridiagonal", "_rank_two"):
            result.__dict__.pop(name, None)
        result.E = self.E * root
        result.S, result.g = (None if a is None else a * root for a in (self.S, self.g))
        return result

    def transpose(self, l: Tensor) -> Tensor:
        """Return `J^T l`: three fields, each times a number per frame."""
        zero = torch.zeros_like(l[:, :1])

        def per_frame(a: Tensor) -> Tensor:
            return a.reshape(a.shape[0], *(1,) * (self.E.ndim - 2), -1)

        out = self.E * per_frame(torch.cat((zero, l), 1) - torch.cat((l, zero), 1))
        if self.S is not None:
            cl = self.c * l
            out = out - self.S * per_frame(torch.cat((zero, cl), 1) + torch.cat((cl, zero), 1))
        if self.g is not None:
            out = out - self.g * expand_like(dot(self.q, l), self.g)
        return out

    def solve(self, rhs: Tensor) -> Tensor:
        """Solve by Woodbury: `J J^T = M + [h q] K [h q]^T` with `K^-1 = [[-|g|^2, -1], [-1, 0]]`."""
        diagonal, off_diagonal = self._tridiagonal
        if self.g is None:
            return solve_tridiagonal(diagonal, off_diagonal, rhs)[0]
        (h, gg), q = self._rank_two, self.q
        right_sides = (rhs, h, q) if self.is_traced else (torch.stack((rhs, h, q)),)
        solutions = solve_tridiagonal(diagonal, off_diagonal, *right_sides)
        y, mh, mq = solutions if self.is_traced else solutions[0]
        k11, k12, k22 = dot(h, mh) - gg, dot(h, mq) - 1, dot(q, mq)
        b1, b2 = dot(h, y), dot(q, y)
        determinant = k11 * k22 - k12 * k12
        determinant = torch.where(determinant != 0, determinant, 1.0)
        z1, z2 = (k22 * b1 - k12 * b2) / determinant, (k11 * b2 - k12 * b1) / determinant
        return y - mh * z1[:, None] - mq * z2[:, None]


def solve_tridiagonal(
    diagonal: Float[Tensor, "batch n"],
    off_diagonal: Float[Tensor, "batch n_minus_1"],
    *rhs: Float[Tensor, "*many batch n"],
) -> tuple[Tensor, ...]:
    """Solve `T x = y` for symmetric T and every right-hand side y.

    Several right-hand sides can be stacked in front, `(m, batch, n)`, which is cheapest step by step; of
    separate tensors, a compiler makes one kernel of each sweep.

    Args:
        diagonal: The diagonal of T.
        off_diagonal: Its first off-diagonal.
        *rhs: The right-hand sides.

    Returns:
        The solutions, in the order and shapes of the right-hand sides.
    """
    n = diagonal.shape[1]
    pad = torch.nn.functional.pad
    a, c = pad(off_diagonal, (1, 0)) / diagonal, pad(off_diagonal, (0, 1)) / diagonal
    ys = [y / diagonal for y in rhs]
    k = 1
    while k < n:
        p = 1 - a * shift(c, -1, k) - c * shift(a, -1, -k)
        ys = [(y - a * shift(y, -1, k) - c * shift(y, -1, -k)) / p for y in ys]
        a, c = -a * shift(a, -1, k) / p, -c * shift(c, -1, -k) / p
        k *= 2
    return tuple(ys)
