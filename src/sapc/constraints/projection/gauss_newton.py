"""Gauss-Newton steps onto the manifold: the paper's iteration, and how the nearest point is sought.

The projection of u_0 is the nearest point of the manifold: minimise |u - u_0|^2 / 2 subject to r(u) = 0. Its
optimality conditions are r(u) = 0 and tau = 0, where tau = (I - J^+ J)(u - u_0) is the part of the correction
that lies along the manifold.

**GaussNewton** (Eq. gauss-newton): `u <- u_0 - J^T (J J^T + mu I)^-1 (r(u) - J (u - u_0))`, which is the
normal step -J^+ r together with a full step -tau. Cheap, nearest where it converges, but it need not converge
when the correction is large against the curvature. It is differentiated step by step. Pinned values are
written into u_0 before it is linearised, or they are rows of the residual, as PCFM's authors have it:
`PinRows` solves that larger system at the cost of the smaller one.

**NearestPoint**, feasible first, then nearest; **FeasiblePoint** stops between. Feasible by *restoration*: `u
<- u - alpha J^+ r(u)`. A trial is accepted when the residual follows its linear prediction, `|r(u - alpha d)
- (1 - alpha) r(u)| <= kappa alpha |r(u)|` (Deuflhard's monotonicity test, kappa = 1/2), so the path stays
short and the point found is close to u_0. A sample whose path ends at a fold of the manifold starts again
from u_0 and then accepts any decrease of |r|, which gets through at the price of a longer way. Some paths
have no such end and only need many short steps: samples that missed both times for want of passes, and not
because no shorter step helped, get `patience` passes, first with the test, then without. From there `nearest`
goes on.

Every sample runs its own iteration: once it has converged it is frozen, so batch mates do not influence it.
The host runs one pass ahead of the device (see `stop`), and a pass too many changes no frozen sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .feasible import choose
from .linearisation import Linearisation, Problem, norm
from .solvers import GaussNewton
from .stop import StopCheck, count_active
from .tolerance import excess, row_tolerance, sup


@dataclass
class Outcome:
    """Where each sample ended.

    Attributes:
        field: The field reached.
        residual: |R|_inf there.
        tangential_fraction: |tau| / |u - u_0|.
        iterations: Linearisations used.
        converged: Whether every row is met there.
    """

    field: Tensor
    residual: Tensor
    tangential_fraction: Tensor
    iterations: Tensor
    converged: Tensor


class ActiveSamples:
    """The samples that a pass works on.

    On the CPU, where leaving the others out is free, these are the active ones; on a device, all of them.

    Args:
        active: Which samples are active.
    """

    def __init__(self, active: Tensor) -> None:
        self.index = None if active.is_cuda or bool(active.all()) else active.nonzero()[:, 0]

    def gather(self, *tensors: Tensor) -> list[Tensor]:
        """Return the entries of these samples."""
        return list(tensors) if self.index is None else [x[self.index] for x in tensors]

    def scatter(self, whole: Tensor, part: Tensor) -> Tensor:
        """Return `whole` with the entries of these samples replaced."""
        return part if self.index is None else whole.index_copy(0, self.index, part)

    def select_problem(self, problem: Problem) -> Problem:
        """Return the part of the problem that belongs to these samples."""
        return problem if self.index is None else problem.select(self.index)


@dataclass
class PinRows:
    """Pins as rows of the residual, beside those of the laws: `S (u - condition)`.

    S has the rows of the identity at the pinned points. A step solves with the Jacobian [S; L] of both. The
    pins' block of its Gram matrix is a multiple of the identity, so they are eliminated, and what remains is
    the laws' Gram matrix with a weight at the pinned points:

        (L W L^T + mu I) l = b - L S^T p / (1 + mu),   p = S (u_0 - condition),
        W = 1 at free points, mu / (1 + mu) at pinned ones

    Attributes:
        problem: The laws, with all points free.
        pinned: Mask of the pinned points.
        condition: The conditioning fields.
    """

    problem: Problem
    pinned: Tensor
    condition: Tensor

    def select(self, first: int, last: int) -> PinRows:
        """Return those of some of the samples."""
        index = torch.arange(first, last, device=self.condition.device)
        condition = self.condition if len(self.condition) == 1 else self.condition[index]
        return PinRows(self.problem.select(index), self.pinned, condition)

    def size(self, u: Tensor) -> Tensor:
        """Return |S (u - condition)|_inf."""
        return sup((torch.where(self.pinned, u - self.condition, 0.0)).flatten(1))

    def step(self, lin: Linearisation, u: Tensor, u0: Tensor, mu: float) -> tuple[Tensor, Tensor]:
        """Compute `u_0 - J^T (J J^T + mu I)^-1 (R(u) - J (u - u_0))` with the stacked residual R.

        Args:
            lin: Linearisation of the laws at `u`.
            u: Fields.
            u0: Start of the iteration.
            mu: Damping.

        Returns:
            The next fields, and the multipliers of the laws.
        """
        p = torch.where(self.pinned, u0 - self.condition, 0.0)
        root = torch.where(self.pinned, (mu / (1 + mu)) ** 0.5, 1.0).to(u)
        l = lin.weight_columns(root).solve(lin.rows - lin.apply(u - u0 + p / (1 + mu)))
        free = u0 - lin.transpose(l)
        # Without damping the rows of the pins are met: their values themselves, to the bit.
        pin_values = u0 - (p + mu * (u0 - free)) / (1 + mu) if mu > 0 else self.condition
        return torch.where(self.pinned, pin_values, free), l


def project_gauss_newton(
    problem: Problem, u0: Tensor, solver: GaussNewton, pins: PinRows | None = None, measure: bool = True
) -> Outcome:
    """Run the paper's iteration, differentiable through its steps.

    Args:
        problem: The rows.
        u0: Start; its pins are set, unless they are rows.
        solver: Settings.
        pins: Pins as rows of the residual; the start is then off them.
        measure: Measure the end, which takes a linearisation more.

    Returns:
        Where each sample ended.
    """
    graph = torch.is_grad_enabled() and u0.requires_grad
    u, stop = u0, StopCheck()
    active = torch.ones(len(u0), dtype=torch.bool, device=u0.device)
    iterations = torch.zeros(len(u0), dtype=torch.long, device=u0.device)
    for _ in range(solver.n_iter):
        lin = (problem if pins is None else pins.problem).linearise(u, solver.mu, graph)
        active = active & ~_has_converged(problem, lin, u.detach(), solver.tol, pins)
        if stop(count_active(active)):
            break
        if pins is None:
            l = lin.solve(lin.rows - lin.apply(u - u0))
            trial = u0 - lin.transpose(l)
        else:
            trial, l = pins.step(lin, u, u0, solver.mu)
        is_usable = active & l.detach().isfinite().all(1)
        u = choose(is_usable, trial, u)
        iterations = iterations + active
    if not measure:
        zero = torch.zeros_like(iterations, dtype=u0.dtype)
        return Outcome(u, zero, zero, iterations, zero == 0)
    with torch.no_grad():
        end = problem.linearise(u)
        r, tol = problem.residual(end.rows), row_tolerance(end.terms(u.detach()), solver.tol)
        size, is_met = sup(r), excess(r, tol) <= 1
        if pins is not None:
            size, is_met = torch.maximum(size, pins.size(u)), is_met & (pins.size(u) <= solver.tol)
    return Outcome(u, size, tangential_fraction_of(end, u.detach() - u0.detach()), iterations, is_met)


def _has_converged(
    problem: Problem, lin: Linearisation, u: Tensor, tol: float, pins: PinRows | None
) -> Tensor:
    """Whether `|R_i| < tol min(1, T_i)` in every row, as published but for rows that add up less than one."""
    r = problem.residual(lin.rows.detach())
    stops = sup(r) < tol
    if pins is not None:
        stops = stops & (pins.size(u) < tol)
    if not u.is_cuda and not bool(stops.any()):
        return stops
    return stops & (r.abs() < tol * lin.terms(u).clamp(max=1.0).clamp(min=torch.finfo(u.dtype).tiny)).all(1)


def tangential_fraction_of(lin: Linearisation, v: Tensor) -> Tensor:
    """Return the share of the correction `v` that lies along the manifold."""
    distance = norm(v)
    return norm(lin.tangent(v)) / torch.where(distance > 0, distance, 1.0)


def polish(
    problem: Problem, u: Tensor, tol: float, active: Tensor, steps: int = 8
) -> tuple[Tensor, Linearisation, Tensor]:
    """Take full Newton steps from a point near the manifold, for the active samples.

    Args:
        problem: The rows.
        u: Fields.
        tol: Tolerance of the solver.
        active: Which samples move.
        steps: Largest number of steps.

    Returns:
        The fields, their linearisation, and the excess of their residuals (see `tolerance`).
    """
    stop = StopCheck()
    for _ in range(steps):
        lin, ratio = linearise_and_measure(problem, u, tol)
        active = active & (ratio > 1 / 16)
        if stop(count_active(active)):
            break
        u = choose(active, u - lin.normal_step(lin.rows), u)
    else:
        lin, ratio = linearise_and_measure(problem, u, tol)
    return u, lin, ratio


def linearise_and_measure(problem: Problem, u: Tensor, tol: float) -> tuple[Linearisation, Tensor]:
    """Linearise at `u`; also return by how much the residual there exceeds its tolerance."""
    lin = problem.linearise(u)
    return lin, excess(problem.residual(lin.rows), row_tolerance(lin.terms(u), tol))
