"""The second half of `NearestPoint`, along the manifold to its nearest point, and the derivative.

Newton steps along the manifold on the Lagrangian, `K = I + sum_i l_i hess r_i`, `l = -(J J^T)^-1 J (u -
u_0)`, by conjugate gradients in the tangent space (Hessian products by automatic differentiation), each
followed by restoration and accepted only if feasible and nearer. This converges quadratically where plain
steps along tau take hundreds.

The derivative is that of the nearest-point map itself, by the implicit function theorem: for a cotangent w,
solve `K z = w` in the tangent space at the result.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...flow.path import expand_like
from .feasible import Path, choose, restore
from .gauss_newton import ActiveSamples, Outcome, linearise_and_measure, polish, tangential_fraction_of
from .gpu.compiled import passes_of
from .gpu.launch import kernel_of
from .linearisation import Linearisation, Problem, dot, norm
from .solvers import FeasiblePoint, NearestPoint
from .stop import StopCheck, count_active
from .tolerance import excess, sup


class _Hessian:
    """`w -> w + sum_i l_i hess r_i w` at the free points, by differentiating the gradient of l . r(u)."""

    def __init__(self, problem: Problem, u: Tensor, l: Tensor) -> None:
        self.free = problem.free
        with torch.enable_grad():
            self.u = u.detach().requires_grad_()
            rows = problem.rows(self.u)
            self.slope = None
            if rows.requires_grad:
                (slope,) = torch.autograd.grad(
                    (l.detach() * rows).sum(), self.u, create_graph=True, allow_unused=True
                )
                self.slope = slope if slope is not None and slope.requires_grad else None

    def __call__(self, w: Tensor) -> Tensor:
        if self.slope is None:
            return w
        (curvature_term,) = torch.autograd.grad(self.slope, self.u, w, retain_graph=True, allow_unused=True)
        return w if curvature_term is None else w + curvature_term * self.free


def _newton_direction(
    lin: Linearisation, hessian: _Hessian, b: Tensor, steps: int, eta: Tensor, active: Tensor
) -> Tensor:
    """Solve `K z = b` in the tangent space (b tangent) by conjugate gradients.

    Negative curvature ends a sample's iteration with what it has, at least the steepest direction b.

    Args:
        lin: Linearisation at the point.
        hessian: K.
        b: Right-hand side.
        steps: Largest number of steps.
        eta: A sample stops at `|residual| <= eta |b|`.
        active: Which samples are solved for.

    Returns:
        The direction z.
    """
    z, r, p = torch.zeros_like(b), b, b
    rr = dot(r, r)
    goal = eta**2 * rr
    active, stop = active & (rr > goal), StopCheck()
    for k in range(steps):
        if stop(count_active(active)):
            break
        hp = lin.tangent(hessian(p))
        curvature = dot(p, hp)
        is_bent = active & ~(curvature > 1e-12 * dot(p, p))
        if k == 0:
            z = choose(is_bent, b, z)
        active = active & ~is_bent
        alpha = torch.where(active, rr / torch.where(active, curvature, 1.0), 0.0)
        z = z + expand_like(alpha, z) * p
        r = r - expand_like(alpha, r) * hp
        if k % 8 == 7:
            # Rounding builds up a normal component that would stop the convergence.
            r = lin.tangent(r)
        rr_next = dot(r, r)
        beta = torch.where(active, rr_next / torch.where(rr > 0, rr, 1.0), 0.0)
        p = choose(active, r + expand_like(beta, p) * p, p)
        rr = torch.where(active, rr_next, rr)
        active = active & (rr > goal)
    return z


def _stationarity(lin: Linearisation, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return `l = -(J J^T)^-1 J v` and `tau = v + J^T l`, the part of v along the manifold.

    It is projected twice, against rounding.
    """
    l = -lin.solve(lin.apply(v))
    return l, lin.tangent(v + lin.transpose(l))


def approach(
    problem: Problem, u: Tensor, u0: Tensor, solver: NearestPoint, active: Tensor
) -> tuple[Tensor, Tensor]:
    """Move along the manifold to the point nearest to `u0`.

    Args:
        problem: The rows.
        u: Fields on the manifold.
        u0: Start of the projection.
        solver: Settings.
        active: Which samples move.

    Returns:
        The fields, and the Newton steps taken.
    """
    tiny = torch.finfo(u.dtype).tiny
    alpha = torch.ones(len(u), dtype=u.dtype, device=u.device)
    steps = torch.zeros(len(u), dtype=torch.long, device=u.device)
    stop = StopCheck()
    for _ in range(solver.newton_steps):
        if stop(count_active(active)):
            break
        work = ActiveSamples(active)
        ui, start, ai, is_active = work.gather(u, u0, alpha, active)
        problem_part, v = work.select_problem(problem), ui - start
        lin = problem_part.linearise(ui)
        l, tau = _stationarity(lin, v)
        ratio = norm(tau) / norm(v).clamp(min=tiny)
        is_active = is_active & (ratio > solver.rtol)
        d = _newton_direction(
            lin, _Hessian(problem_part, ui, l), -tau, solver.cg_steps, ratio.sqrt().clamp(max=0.1), is_active
        )
        # Never farther than the distance itself.
        d = d * expand_like((norm(v) / norm(d).clamp(min=tiny)).clamp(max=1.0), d)
        trial, lin, off_by = polish(problem_part, ui + expand_like(ai, ui) * d, solver.tol, is_active)
        gain = dot(v, v) - dot(trial - start, trial - start)
        is_nearer = gain >= -2e-4 * ai * dot(d, tau)
        # Close to the solution the distances agree to rounding, and the tangential part decides.
        is_flatter = (gain >= -1e-9 * dot(v, v)) & (
            norm(_stationarity(lin, trial - start)[1]) <= norm(tau) / 2
        )
        accept = is_active & (off_by <= 1) & (is_nearer | is_flatter)
        u = work.scatter(u, choose(accept, trial, ui))
        ai = torch.where(accept, (3 * ai).clamp(max=1.0), ai / 3)
        alpha, active = work.scatter(alpha, ai), work.scatter(active, is_active & (ai > 2.0**-12))
        steps = steps + active
    return u, steps


def _feasible(
    problem: Problem, u0: Tensor, solver: FeasiblePoint, path: Path | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Find the point that restoration reaches; in one kernel where nobody wants the path.

    Args:
        problem: The rows.
        u0: Start.
        solver: Settings.
        path: Path to fill, if it is wanted.

    Returns:
        The fields, |R|_inf there, its excess and the passes.
    """
    kernel = kernel_of(problem, solver) if path is None else None
    result = None if kernel is None else kernel.restore(u0, solver)
    if result is not None:
        return result
    state = restore(passes_of(problem, solver), u0, solver, path)
    return state.u, sup(state.r), excess(state.r, state.tol), state.passes


def project_by_restoration(
    problem: Problem, u0: Tensor, solver: FeasiblePoint, measure: bool = True, path: Path | None = None
) -> Outcome:
    """Project by restoration and, for the nearest point, along the manifold from there.

    Args:
        problem: The rows.
        u0: Start, with the pins already set.
        solver: Settings.
        measure: Measure the tangential part of a feasible point, too.
        path: Empty; filled with the passes that lead to the feasible point.

    Returns:
        Where each sample ended.
    """
    with torch.no_grad():
        u, size, off_by, iterations = _feasible(problem, u0, solver, path)
        if not isinstance(solver, NearestPoint) and not measure:
            return Outcome(u, size, torch.zeros_like(size), iterations, off_by <= 1)
        if isinstance(solver, NearestPoint):
            u, steps = approach(problem, u, u0, solver, off_by <= 1)
            iterations = iterations + steps
        end, off_by = linearise_and_measure(problem, u, solver.tol)
        size = sup(problem.residual(end.rows))
        return Outcome(u, size, tangential_fraction_of(end, u - u0), iterations, off_by <= 1)


class NearestFunction(torch.autograd.Function):
    """`NearestPoint` with the derivative of the nearest-point map."""

    @staticmethod
    def forward(ctx, u0: Tensor, problem: Problem, solver: NearestPoint, pins: bool):  # type: ignore[no-untyped-def]
        """Run the projection; everything but the field is a record without gradient.

        Args:
            ctx: Context of autograd.
            u0: Start, with the pins already set.
            problem: The rows.
            solver: Settings.
            pins: Whether pinned values get a gradient, too.

        Returns:
            The field, and the entries of its record.
        """
        out = project_by_restoration(problem, u0.detach(), solver)
        ctx.problem, ctx.pins = problem, pins
        ctx.save_for_backward(u0, out.field)
        record = (out.residual, out.tangential_fraction, out.iterations, out.converged)
        ctx.mark_non_differentiable(*record)
        return out.field, *record

    @staticmethod
    @once_differentiable
    def backward(ctx, w: Tensor, *_: object):  # type: ignore[no-untyped-def]
        """Solve `K z + J^T m = w`, `J z = 0` at the result.

        Pinned values p get `w_p - (J^T m + sum_i l_i hess r_i z)_p`.

        Args:
            ctx: Context of autograd.
            w: Cotangent of the field.
            *_: Cotangents of the record, which are not used.

        Returns:
            The cotangent of the start; None for the other arguments.
        """
        problem: Problem = ctx.problem
        u0, u = ctx.saved_tensors
        lin = problem.linearise(u)
        l = -lin.solve(lin.apply(u - u0))
        hessian = _Hessian(problem, u, l)
        eta = torch.full((len(u),), 1e-12, dtype=u.dtype, device=u.device)
        all_samples = torch.ones(len(u), dtype=torch.bool, device=u.device)
        free = w * problem.free
        z = _newton_direction(lin, hessian, lin.tangent(free), 48 if u.is_cuda else 400, eta, all_samples)
        if not ctx.pins:
            return z, None, None, None
        m = lin.solve(lin.apply(free - hessian(z)))
        with torch.enable_grad():
            point = u.detach().requires_grad_()
            rows = problem.rows(point)
            (slope,) = torch.autograd.grad((l * rows).sum(), point, create_graph=True)
            (pull,) = torch.autograd.grad((m * rows).sum() + (slope * z).sum(), point)
        return z + (w - pull) * (1 - problem.free), None, None, None
