"""The equations left after the pins: rows `r(u)`, their linearisation, and solves with J J^T.

A `Problem` is what Gauss-Newton works on. Pinned points have left the unknowns: their values are set before, and the gradients are
masked to the free points. Two problems share one interface, so one algorithm and one test suite serve both.

**Banded**: one balance law. The rows are its increments between consecutive frames,

    r_T = e_T - e_{T-1} - theta c_T (s_T + s_{T-1}),   c_T = (t_T - t_{T-1}) / 2,   T = 1..n_t-1,

whose running sum is the residual. With E_t, S_t the gradients of e and s at frame t and g the gradient of theta,

    J^T l  =  E_t (l_t - l_{t+1}) - S_t theta (c_t l_t + c_{t+1} l_{t+1}) - g (q . l),      q_T = c_T (s_T + s_{T-1}),

    J J^T  =  M - h q^T - q h^T + |g|^2 q q^T,   M tridiagonal,   h = J_0 g,

where J_0 is J without the coefficient's term. All gradients come from one backward pass each, because a frame's number reads that frame
only; a solve costs one tridiagonal solve with three right-hand sides and a 2 x 2 system (Woodbury). Damping mu I of the residual's own
rows becomes mu D D^T here, D the first difference, which is tridiagonal too.

**Dense**: any residual, its Jacobian by automatic differentiation, a batched Cholesky solve. The oracle of every faster path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ...grid import FrameIntegral
from ..acceleration import WithGradient
from ..terms import Balance
from .tridiagonal import solve_tridiagonal

PIECE = 2**13  # numbers


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product per sample."""
    return (a * b).flatten(1).sum(1)


def norm(a: Tensor) -> Tensor:
    """l2 norm per sample."""
    return dot(a, a).sqrt()


def spread(a: Tensor, like: Tensor) -> Tensor:
    """A number per sample, shaped to multiply fields."""
    return a.reshape(-1, *(1,) * (like.ndim - 1))


class Linearisation(ABC):
    """`r(u + v) = rows + J v + O(v^2)` at one point, for every sample."""

    rows: Tensor

    @abstractmethod
    def apply(self, v: Tensor) -> Tensor:
        """`J v`."""

    @abstractmethod
    def transpose(self, l: Tensor) -> Tensor:
        """`J^T l`, zero at pinned points."""

    @abstractmethod
    def solve(self, rhs: Tensor) -> Tensor:
        """`(J J^T + damping)^-1 rhs`."""

    @abstractmethod
    def terms(self, u: Tensor) -> Tensor:
        """What is added up in every row of the residual at this point, which is `u`: T of `tolerance`, `(batch, rows)`."""

    @abstractmethod
    def weighted(self, root: Tensor) -> Linearisation:
        """The linearisation with J's columns, one per point, multiplied by `root`."""

    @abstractmethod
    def most(self, u: Tensor) -> Tensor:
        """About the largest of `terms` at most, per sample, from what is known anyway."""

    def normal_step(self, rhs: Tensor) -> Tensor:
        """`J^+ rhs`: the smallest change of the field that changes the rows by `rhs`."""
        return self.transpose(self.solve(rhs))

    def tangent(self, v: Tensor) -> Tensor:
        """The part of `v` along the manifold: `v - J^+ J v`."""
        return v - self.normal_step(self.apply(v))


class Problem(ABC):
    """Rows that must vanish at the free points of a batch of fields."""

    free: Tensor  # 1 at unknown points, 0 at pinned ones, (*grid), float64
    traced: bool = False  # for a compiler: differentiate the law itself, write nothing in place, ask nothing

    @abstractmethod
    def rows(self, u: Tensor) -> Tensor:
        """The rows `r(u)`, `(batch, m)`."""

    @abstractmethod
    def residual(self, rows: Tensor) -> Tensor:
        """The user's residual from the rows."""

    @abstractmethod
    def linearise(self, u: Tensor, mu: float = 0.0, graph: bool = False) -> Linearisation:
        """Rows and Jacobian at `u`; with `graph`, differentiable once more."""

    @abstractmethod
    def select(self, index: Tensor) -> Problem:
        """The same problem for some of the samples."""

    def slope(self, u: Tensor, weights: tuple[Tensor, Tensor], along: tuple[Tensor, Tensor]) -> Tensor:
        """Gradient of `m . r - m . J d + l . J tau` in all of `u`, pinned points too; m, l, d and tau are constants, d and tau free."""
        (m, l), (d, tau) = weights, along
        with torch.enable_grad():
            at = u.detach().requires_grad_()
            rows = self.rows(at)
            if not rows.requires_grad:  # nothing in it reads the field
                return torch.zeros_like(u)
            first = (m * rows).sum()
            Jm, Jl = (
                torch.autograd.grad(f, at, create_graph=True, materialize_grads=True)[0]
                for f in (first, (l * rows).sum())
            )
            total = first - (Jm * d).sum() + (Jl * tau).sum()
            return torch.autograd.grad(total, at, materialize_grads=True)[0]


@dataclass
class Banded(Problem):
    """One balance law, every operation O(grid)."""

    balance: Balance
    free: Tensor
    pinned: Tensor  # flat indices of the pinned points
    jitter: float = 0.0  # relative to the Gram matrix's diagonal; needed where rows can depend on each other
    key: object = None  # tells problems with different pins apart
    traced: bool = False

    def rows(self, u: Tensor) -> Tensor:
        """The increments of the law."""
        return self.balance.increments(u)

    def residual(self, rows: Tensor) -> Tensor:
        """The running sum of the increments."""
        return rows.cumsum(1)

    def select(self, index: Tensor) -> Banded:
        """The same law; its target is zero for every sample."""
        return self

    def linearise(self, u: Tensor, mu: float = 0.0, graph: bool = False) -> BandedLinearisation:
        """Values and gradients of e, s and theta, from one backward pass each unless the law brings them."""
        if not (graph and u.requires_grad):
            graph, u = False, u.detach()
        values, slopes = self._gradients(u, graph)
        masked = [self._masked(slope, graph) for slope in slopes]
        c = self.balance.steps(u.shape[-1], u) / 2
        lin = BandedLinearisation(values, [slope for slope, _ in masked], c, mu, self.jitter, self.traced)
        lin.pinned, lin.left_out = self.pinned, [rest for _, rest in masked]
        return lin

    def _gradients(self, u: Tensor, graph: bool) -> tuple[list[Tensor], list[Tensor]]:
        law = self.balance
        functions = zip(
            (law.stored, law.rate, law.coefficient), ("stored", "rate", "coefficient"), strict=True
        )
        pairs = [
            _both(law.checked(f, what), f, u, graph, self.traced) for f, what in functions if f is not None
        ]
        return [value for value, _ in pairs], [slope for _, slope in pairs]

    def slope(self, u: Tensor, weights: tuple[Tensor, Tensor], along: tuple[Tensor, Tensor]) -> Tensor:
        """As for any problem, but m and l share the gradients of e, s and theta, each of which is differentiated once."""
        (m, l), (d, tau) = weights, along
        with torch.enable_grad():
            at = u.detach().requires_grad_()
            values, slopes = self._gradients(at, graph=True)
            lin = BandedLinearisation(values, slopes, self.balance.steps(u.shape[-1], u) / 2, 0.0)
            total = (m * (lin.rows - lin.apply(d))).sum() + (l * lin.apply(tau)).sum()
            if not total.requires_grad:  # nothing in the law reads the field
                return torch.zeros_like(u)
            return torch.autograd.grad(total, at, materialize_grads=True)[0]

    def _masked(self, slope: Tensor, graph: bool) -> tuple[Tensor, Tensor]:
        """The slope at the free points, and the slope itself, or its entries at the pinned points where it is no more."""
        if graph or self.traced or not slope.is_contiguous():
            return slope * self.free, slope.detach()
        flat = slope.flatten(1)
        rest = flat[:, self.pinned]
        flat.index_fill_(1, self.pinned, 0)  # touches the pinned points only
        return slope, rest


def _both(
    checked: Callable[[Tensor], Tensor], f: Callable[[Tensor], Tensor], u: Tensor, graph: bool, traced: bool
) -> tuple[Tensor, Tensor]:
    """`f(u)` and the gradient of its sum; with `graph`, differentiable once more."""
    if isinstance(f, FrameIntegral) and not graph:
        return checked(u), f.weights_like(u)[..., None].expand_as(u)
    if isinstance(f, WithGradient) and not graph and not traced:
        return f.both(u)
    with torch.enable_grad():
        u = u if graph else u.detach().requires_grad_()
        value = checked(u)
        slope = None
        if value.requires_grad:
            (slope,) = torch.autograd.grad(value.sum(), u, create_graph=graph, allow_unused=True)
    if slope is None:
        slope = torch.zeros_like(u)
    return (value, slope) if graph else (value.detach(), slope)


def _three(given: list[Tensor]) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return given[0], given[1] if len(given) > 1 else None, given[2] if len(given) > 2 else None


class BandedLinearisation(Linearisation):
    """See the module docstring; letters as there."""

    def __init__(
        self,
        values: list[Tensor],
        slopes: list[Tensor],
        c: Tensor,
        mu: float,
        jitter: float = 0.0,
        traced: bool = False,
    ) -> None:
        """From [e], [e, s] or [e, s, theta] and their gradients."""
        self.traced = traced
        self.pinned: Tensor | None = None  # flat indices of the pinned points
        self.left_out: list[Tensor] = []  # the gradients with their entries there, or these entries
        self.values = e, s, theta = _three(values)
        self.E, self.S, self.g = _three(slopes)
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
        """Inner product per frame."""
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
        diagonal, off = ee[:, 1:] + ee[:, :-1], -ee[:, 1:-1]
        if self.S is not None:
            es = self._frames(self.E, self.S)
            diagonal = diagonal + 2 * c * (es[:, :-1] - es[:, 1:]) + c * c * (ss[:, 1:] + ss[:, :-1])
            off = off + (c[:, :-1] - c[:, 1:]) * es[:, 1:-1] + c[:, :-1] * c[:, 1:] * ss[:, 1:-1]
        if self.mu > 0:
            first = torch.ones_like(diagonal[:, :1])
            diagonal, off = (
                diagonal + self.mu * torch.cat((first, 2 * torch.ones_like(off)), 1),
                off - self.mu,
            )
        # A row without any gradient cannot be met by moving; unit pivot, so that it stays finite and is reported.
        return torch.where(diagonal > 0, diagonal * (1 + self.jitter), 1.0), off

    @cached_property
    def _rank_two(self) -> tuple[Tensor, Tensor]:
        """h and |g|^2."""
        assert self.g is not None
        return self._apply_0(self.g), self._frames(self.g, self.g).sum(1)

    def _apply_0(self, v: Tensor) -> Tensor:
        out = self._frames(self.E, v).diff(dim=1)
        if self.S is None:
            return out
        sv = self._frames(self.S, v)
        return out - self.c * (sv[:, 1:] + sv[:, :-1])

    def apply(self, v: Tensor) -> Tensor:
        """`J v`."""
        out = self._apply_0(v)
        return out if self.g is None else out - self.q * dot(self.g, v)[:, None]

    def terms(self, u: Tensor) -> Tensor:
        """`E`, `S` and the values of a frame, added up over frames; the coefficient's part is `|q . 1| |g| |u|`."""
        e, s, _ = self.values
        sizes = [
            self._sizes(slope, rest, u) for slope, rest in zip(self._slopes(), self.left_out, strict=True)
        ]
        total = Balance.add_up(
            sizes[0] + e.detach().abs(), None if s is None else sizes[1] + s.detach().abs(), self.c.detach()
        )
        if self.g is None:
            return total
        return total + self.q.detach().cumsum(1).abs() * sizes[2].sum(1, keepdim=True)

    def most(self, u: Tensor) -> Tensor:
        """`|E| |u|` for the sums over space, by the norms of the gradients at the free points."""
        e, s, _ = self.values
        size, (ee, ss) = torch.linalg.vector_norm(u.flatten(1), dim=1)[:, None], self._squares
        stored, supplied = e.abs() + ee.sqrt() * size, None if s is None else s.abs() + ss.sqrt() * size
        total = Balance.add_up(stored, supplied, self.c).amax(1)
        return (
            total if self.g is None else total + self.q.abs().sum(1) * (self._rank_two[1].sqrt() * size[:, 0])
        )

    def _slopes(self) -> list[Tensor]:
        return [slope.detach() for slope in (self.E, self.S, self.g) if slope is not None]

    def _sizes(self, slope: Tensor, rest: Tensor, u: Tensor) -> Tensor:
        """`|slope| |u|` of every frame, with what was left out at the pinned points."""
        assert self.pinned is not None
        if u.is_cuda and rest.shape != slope.shape:  # to add entries up by index has no fixed order there
            rest = slope.flatten(1).index_copy(1, self.pinned, rest).view_as(slope)
        is_whole = rest.shape == slope.shape
        slope = rest if is_whole else slope
        # On a CPU a few samples at a time: memory for more is new every time, which takes longer than the arithmetic.
        few = len(u) if u.is_cuda or self.traced else max(1, PIECE // u[0].numel())
        pieces = (
            ((slope, u),) if few >= len(u) else zip(torch.split(slope, few), torch.split(u, few), strict=True)
        )
        free = torch.cat([(a * b).abs().flatten(1, -2).sum(1) for a, b in pieces])
        if is_whole:
            return free
        pinned = (rest * u.flatten(1)[:, self.pinned]).abs()
        return free.index_add(1, self.pinned % u.shape[-1], pinned)

    def weighted(self, root: Tensor) -> BandedLinearisation:
        """The gradients of e, s and theta, weighted."""
        other = copy(self)
        # What is cached belongs to the gradients that were there.
        for name in ("_squares", "_tridiagonal", "_rank_two"):
            other.__dict__.pop(name, None)
        other.E = self.E * root
        other.S, other.g = (None if a is None else a * root for a in (self.S, self.g))
        return other

    def transpose(self, l: Tensor) -> Tensor:
        """`J^T l`: three fields, each times a number per frame."""
        zero = torch.zeros_like(l[:, :1])

        def per_frame(a: Tensor) -> Tensor:
            return a.reshape(a.shape[0], *(1,) * (self.E.ndim - 2), -1)

        out = self.E * per_frame(torch.cat((zero, l), 1) - torch.cat((l, zero), 1))
        if self.S is not None:
            cl = self.c * l
            out = out - self.S * per_frame(torch.cat((zero, cl), 1) + torch.cat((cl, zero), 1))
        if self.g is not None:
            out = out - self.g * spread(dot(self.q, l), self.g)
        return out

    def solve(self, rhs: Tensor) -> Tensor:
        """Woodbury: `J J^T = M + [h q] K [h q]^T` with `K^-1 = [[-|g|^2, -1], [-1, 0]]`."""
        diagonal, off = self._tridiagonal
        if self.g is None:
            return solve_tridiagonal(diagonal, off, rhs)[0]
        (h, gg), q = self._rank_two, self.q
        given = (rhs, h, q) if self.traced else (torch.stack((rhs, h, q)),)
        solved = solve_tridiagonal(diagonal, off, *given)
        y, mh, mq = solved if self.traced else solved[0]
        k11, k12, k22 = dot(h, mh) - gg, dot(h, mq) - 1, dot(q, mq)
        b1, b2 = dot(h, y), dot(q, y)
        determinant = k11 * k22 - k12 * k12
        determinant = torch.where(determinant != 0, determinant, 1.0)
        z1, z2 = (k22 * b1 - k12 * b2) / determinant, (k11 * b2 - k12 * b1) / determinant
        return y - mh * z1[:, None] - mq * z2[:, None]


@dataclass
class Dense(Problem):
    """Any residual `function(u) - target`; memory and time grow with rows x points."""

    function: Callable[[Tensor], Tensor]
    target: Tensor  # (batch or 1, rows)
    free: Tensor
    magnitude: Callable[[Tensor], Tensor]  # sizes of the numbers whose difference each row of `function` is

    def rows(self, u: Tensor) -> Tensor:
        """The residual itself."""
        return self.function(u) - self.target

    def residual(self, rows: Tensor) -> Tensor:
        """Rows are the residual."""
        return rows

    def select(self, index: Tensor) -> Dense:
        """Targets of the chosen samples."""
        return self if len(self.target) == 1 else replace(self, target=self.target[index])

    def linearise(self, u: Tensor, mu: float = 0.0, graph: bool = False) -> DenseLinearisation:
        """The full Jacobian, one backward pass per row, vectorised over rows where the function allows it."""
        if not (graph and u.requires_grad):
            u = u.detach()
        with torch.enable_grad():
            rows, pullback = torch.func.vjp(self.rows, u)  # type: ignore[misc]
            m = rows.shape[1]
            one_hot = torch.eye(m, dtype=u.dtype, device=u.device)[:, None].expand(m, len(u), m)
            try:
                slopes = torch.vmap(lambda w: pullback(w)[0])(one_hot)
            except RuntimeError:  # some operation in the user's function has no batching rule
                slopes = torch.stack([pullback(w)[0] for w in one_hot])
        jacobian = (slopes * self.free).flatten(2).transpose(0, 1)
        with torch.no_grad():
            moved = (slopes.detach() * u.detach()).abs_().flatten(2).sum(2).T
            terms = moved + self.magnitude(u.detach()) + self.target.abs()
        if not graph:
            rows, jacobian = rows.detach(), jacobian.detach()
        return DenseLinearisation(rows, jacobian, u.shape, mu, terms)


class DenseLinearisation(Linearisation):
    """A Jacobian `(batch, rows, points)` and a Cholesky factor of its Gram matrix."""

    def __init__(self, rows: Tensor, jacobian: Tensor, shape: torch.Size, mu: float, terms: Tensor) -> None:
        self.rows, self.jacobian, self.shape, self.mu, self._terms = rows, jacobian, shape, mu, terms

    @cached_property
    def factor(self) -> Tensor:
        """The Cholesky factor; made for the first solve, because not everybody solves."""
        gram = self.jacobian @ self.jacobian.mT
        # Rows without gradient get a unit pivot, as in the banded case; rounding-size jitter only where Cholesky needs it.
        diagonal = gram.diagonal(dim1=1, dim2=2)
        gram = gram + torch.diag_embed(torch.where(diagonal > 0, torch.full_like(diagonal, self.mu), 1.0))
        factor: Tensor
        factor, info = torch.linalg.cholesky_ex(gram)
        # A device is not asked whether it needs the second factor.
        if gram.requires_grad or not (info.is_cuda or bool(info.any())):
            return factor
        jitter = torch.diag_embed((1e-13 * diagonal.mean(1, keepdim=True)).expand_as(diagonal))
        retried = torch.linalg.cholesky_ex(gram + jitter)[0]
        return torch.where((info > 0)[:, None, None], retried, factor)

    def apply(self, v: Tensor) -> Tensor:
        """`J v`."""
        return (self.jacobian @ v.flatten(1)[..., None])[..., 0]

    def terms(self, u: Tensor) -> Tensor:
        """`|J| |u|`, pinned points too, and the numbers of every row."""
        return self._terms

    def weighted(self, root: Tensor) -> DenseLinearisation:
        """The columns of the Jacobian, weighted."""
        return DenseLinearisation(self.rows, self.jacobian * root.flatten(), self.shape, self.mu, self._terms)

    def most(self, u: Tensor) -> Tensor:
        """The largest of `terms`."""
        return self._terms.amax(1)

    def transpose(self, l: Tensor) -> Tensor:
        """`J^T l`."""
        return (self.jacobian.mT @ l[..., None])[..., 0].reshape(self.shape)

    def solve(self, rhs: Tensor) -> Tensor:
        """Two triangular solves."""
        return torch.cholesky_solve(rhs[..., None], self.factor)[..., 0]
