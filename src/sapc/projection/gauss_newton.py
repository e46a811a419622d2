"""Gauss-Newton projection: the paper's iteration, and a globalised one that converges where it does not.

The projection of u_0 is the nearest point of the manifold: minimise |u - u_0|^2 / 2 subject to r(u) = 0. Its optimality conditions are
r(u) = 0 and tau = 0, where tau = (I - J^+ J)(u - u_0) is the part of the correction that lies along the manifold.

**Plain** (Eq. gauss-newton): `u <- u_0 - J^T (J J^T + mu I)^-1 (r(u) - J (u - u_0))`, which is the normal step -J^+ r together with a
full step -tau. Cheap, nearest where it converges, but it need not converge when the correction is large against the curvature.

**Globalised**, feasible first, then nearest:

1. *Restoration*: `u <- u - alpha J^+ r(u)`. A trial is accepted when the residual follows its linear prediction,
   `|r(u - alpha d) - (1 - alpha) r(u)| <= kappa alpha |r(u)|` (Deuflhard's monotonicity test, kappa = 1/2), so the path stays short and
   the point found is close to u_0. A sample whose path ends at a fold of the manifold starts again from u_0 and then accepts any decrease
   of |r|, which gets through at the price of a longer way.
2. *Nearest point*: Newton steps along the manifold on the Lagrangian, `K = I + sum_i l_i hess r_i`, `l = -(J J^T)^-1 J (u - u_0)`,
   by conjugate gradients in the tangent space (Hessian products by automatic differentiation), each followed by restoration
   and accepted only if feasible and nearer. This converges quadratically where plain steps along tau take hundreds.

Every sample runs its own iteration: once it has converged it is frozen, so batch mates do not influence it. Nothing in the loops waits for
the device: the stop flag is read as it arrives, and passes that run meanwhile change no frozen sample.

The derivative of the globalised projection is that of the nearest-point map itself, by the implicit function theorem: for a cotangent w,
solve `K z = w` in the tangent space at the result. The plain iteration is differentiated step by step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..errors import SapcError
from .problem import Linearisation, Problem, dot, norm, spread


@dataclass(frozen=True)
class Plain:
    """The paper's damped Gauss-Newton: at most `n_iter` steps, damping `mu`, a sample stops at `|R|_inf < tol`."""

    n_iter: int = 10
    mu: float = 1e-8
    tol: float = 1e-6

    def __post_init__(self) -> None:
        if self.n_iter < 1 or self.mu < 0 or self.tol <= 0:
            raise SapcError(f"Plain needs n_iter >= 1, mu >= 0 and tol > 0, got {self}")


@dataclass(frozen=True)
class Globalised:
    """Feasible first, then nearest.

    tol      a sample is on the manifold when |R|_inf <= tol (or as close as rounding allows)
    passes   trial points per restoration attempt
    nearest  Newton steps along the manifold; 0 returns the feasible point found first
    inner    conjugate-gradient steps in each of them
    rtol     nearest when |tau| <= rtol |u - u_0|
    kappa    how closely a restoration step must follow its linear prediction
    """

    tol: float = 1e-12
    passes: int = 80
    nearest: int = 120
    inner: int = 60
    rtol: float = 1e-9
    kappa: float = 0.5

    def __post_init__(self) -> None:
        if self.tol <= 0 or self.passes < 1 or self.nearest < 0 or self.inner < 1 or not 0 < self.kappa <= 1:
            raise SapcError(
                f"Globalised needs tol > 0, passes >= 1, nearest >= 0, inner >= 1 and 0 < kappa <= 1, got {self}"
            )


Solver = Plain | Globalised


@dataclass
class Outcome:
    """Where each sample ended: field, |R|_inf, |tau| / |u - u_0|, linearisations used, whether within tolerance."""

    field: Tensor
    residual: Tensor
    tangential: Tensor
    iterations: Tensor
    converged: Tensor


@dataclass
class _Stop:
    """Says when no sample is active any more, without ever waiting for the device."""

    pending: list[tuple[Tensor, torch.cuda.Event]] = field(default_factory=list)

    def __call__(self, active: Tensor) -> bool:
        if not active.is_cuda:
            return not bool(active.any())
        if torch.cuda.is_current_stream_capturing():
            return False
        flag = torch.empty((), dtype=torch.bool, pin_memory=True)
        flag.copy_(active.any(), non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self.pending.append((flag, event))
        return any(event.query() and not bool(flag) for flag, event in self.pending)  # type: ignore[no-untyped-call]


def _sup(residual: Tensor) -> Tensor:
    """|R|_inf per sample; infinite where anything is not finite, so that a comparison always decides."""
    size = residual.abs().amax(1)
    return torch.where(size.isfinite(), size, torch.inf)


def _choose(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(spread(mask, yes), yes, no)


class _Working:
    """The samples a pass works on: the active ones on the CPU, where leaving the others out is free; all of them on a device."""

    def __init__(self, active: Tensor) -> None:
        self.index = None if active.is_cuda or bool(active.all()) else active.nonzero()[:, 0]

    def take(self, *tensors: Tensor) -> list[Tensor]:
        """Their entries."""
        return list(tensors) if self.index is None else [x[self.index] for x in tensors]

    def put(self, whole: Tensor, part: Tensor) -> Tensor:
        """`whole` with their entries replaced."""
        return part if self.index is None else whole.index_copy(0, self.index, part)

    def of(self, problem: Problem) -> Problem:
        """Their part of the problem."""
        return problem if self.index is None else problem.select(self.index)


def project_plain(problem: Problem, u0: Tensor, solver: Plain) -> Outcome:
    """The paper's iteration; differentiable through its steps."""
    graph = torch.is_grad_enabled() and u0.requires_grad
    u, stop = u0, _Stop()
    active = torch.ones(len(u0), dtype=torch.bool, device=u0.device)
    iterations = torch.zeros(len(u0), dtype=torch.long, device=u0.device)
    for _ in range(solver.n_iter):
        lin = problem.linearise(u, solver.mu, graph)
        active = active & (_sup(problem.residual(lin.rows.detach())) >= solver.tol)
        if stop(active):
            break
        l = lin.solve(lin.rows - lin.apply(u - u0))
        usable = active & l.detach().isfinite().all(1)
        u = _choose(usable, u0 - lin.transpose(l), u)
        iterations = iterations + active
    with torch.no_grad():
        end = problem.linearise(u)
        size = _sup(problem.residual(end.rows))
    return Outcome(u, size, _tangential(end, u.detach() - u0.detach()), iterations, size < solver.tol)


def _tangential(lin: Linearisation, v: Tensor) -> Tensor:
    moved = norm(v)
    return norm(lin.tangent(v)) / torch.where(moved > 0, moved, 1.0)


def restore(
    problem: Problem, u: Tensor, lin: Linearisation, solver: Globalised, tol: Tensor, strict: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Newton steps of smallest norm onto the manifold, one trial point a pass; returns the fields, |R|_inf and the passes used."""
    r = problem.residual(lin.rows)
    d = lin.normal_step(lin.rows)
    tiny = torch.finfo(u.dtype).tiny
    alpha = torch.ones(len(u), dtype=u.dtype, device=u.device)
    passes = torch.zeros(len(u), dtype=torch.long, device=u.device)
    stop = _Stop()
    for _ in range(solver.passes):
        active = (_sup(r) > tol) & (alpha > 2.0**-12) & norm(d).isfinite()
        if stop(active):
            break
        work = _Working(active)
        ui, ri, di, ai, on = work.take(u, r, d, alpha, active)
        trial = ui - spread(ai, ui) * di
        lin = work.of(problem).linearise(trial)
        rt = problem.residual(lin.rows)
        bend = norm(rt - (1 - ai)[:, None] * ri) / (ai * norm(ri)).clamp(
            min=tiny
        )  # grows in proportion to alpha
        good = bend <= solver.kappa if strict else norm(rt) <= (1 - 1e-4 * ai) * norm(ri)
        accept = on & good & rt.isfinite().all(1)
        step = _choose(accept, lin.normal_step(lin.rows), di)
        u, r, d = (
            work.put(u, _choose(accept, trial, ui)),
            work.put(r, _choose(accept, rt, ri)),
            work.put(d, step),
        )
        alpha = work.put(
            alpha, torch.where(on, _next_alpha(ai, accept, bend / solver.kappa, norm(step) / norm(di)), ai)
        )
        passes = passes + active
    return u, _sup(r), passes


def _next_alpha(alpha: Tensor, accept: Tensor, bend: Tensor, growth: Tensor) -> Tensor:
    """The step length that the measured bend (one: as much as is allowed) suggests; bend grows with alpha and with the step's norm."""
    suggested = alpha / bend.nan_to_num(torch.inf).clamp(min=1e-3)
    longer = torch.maximum(suggested / growth.nan_to_num(1.0).clamp(min=1e-3), alpha)
    shorter = torch.minimum(torch.maximum(suggested, alpha / 8), alpha / 2)
    return torch.where(accept, longer.clamp(max=1.0), shorter)


def _polish(
    problem: Problem, u: Tensor, tol: Tensor, active: Tensor, steps: int = 8
) -> tuple[Tensor, Linearisation]:
    """Full Newton steps from a point near the manifold, for the active samples."""
    stop = _Stop()
    lin = problem.linearise(u)
    for _ in range(steps):
        active = active & (_sup(problem.residual(lin.rows)) > tol / 16)
        if stop(active):
            break
        u = _choose(active, u - lin.normal_step(lin.rows), u)
        lin = problem.linearise(u)
    return u, lin


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
        (curved,) = torch.autograd.grad(self.slope, self.u, w, retain_graph=True, allow_unused=True)
        return w if curved is None else w + curved * self.free


def _newton_direction(
    lin: Linearisation, hessian: _Hessian, b: Tensor, steps: int, eta: Tensor, active: Tensor
) -> Tensor:
    """Conjugate gradients for `K z = b` in the tangent space (b tangent), stopped per sample at `|residual| <= eta |b|`.

    Negative curvature ends a sample's iteration with what it has, at least the steepest direction b.
    """
    z, r, p = torch.zeros_like(b), b, b
    rr = dot(r, r)
    goal = eta**2 * rr
    active, stop = active & (rr > goal), _Stop()
    for k in range(steps):
        if stop(active):
            break
        hp = lin.tangent(hessian(p))
        curvature = dot(p, hp)
        bent = active & ~(curvature > 1e-12 * dot(p, p))
        if k == 0:
            z = _choose(bent, b, z)
        active = active & ~bent
        alpha = torch.where(active, rr / torch.where(active, curvature, 1.0), 0.0)
        z = z + spread(alpha, z) * p
        r = r - spread(alpha, r) * hp
        if k % 8 == 7:
            r = lin.tangent(r)  # rounding builds up a normal component that would stop the convergence
        new = dot(r, r)
        beta = torch.where(active, new / torch.where(rr > 0, rr, 1.0), 0.0)
        p = _choose(active, r + spread(beta, p) * p, p)
        rr = torch.where(active, new, rr)
        active = active & (rr > goal)
    return z


def _stationarity(lin: Linearisation, v: Tensor) -> tuple[Tensor, Tensor]:
    """Multipliers `l = -(J J^T)^-1 J v` and `tau = v + J^T l`, the part of v along the manifold (projected twice against rounding)."""
    l = -lin.solve(lin.apply(v))
    return l, lin.tangent(v + lin.transpose(l))


def approach(
    problem: Problem, u: Tensor, u0: Tensor, solver: Globalised, tol: Tensor, active: Tensor
) -> tuple[Tensor, Tensor]:
    """Move along the manifold to the point nearest to u0; returns the fields and the Newton steps taken."""
    tiny = torch.finfo(u.dtype).tiny
    alpha = torch.ones(len(u), dtype=u.dtype, device=u.device)
    steps = torch.zeros(len(u), dtype=torch.long, device=u.device)
    stop = _Stop()
    for _ in range(solver.nearest):
        if stop(active):
            break
        work = _Working(active)
        ui, start, ai, goal, on = work.take(u, u0, alpha, tol, active)
        some, v = work.of(problem), ui - start
        lin = some.linearise(ui)
        l, tau = _stationarity(lin, v)
        ratio = norm(tau) / norm(v).clamp(min=tiny)
        on = on & (ratio > solver.rtol)
        d = _newton_direction(lin, _Hessian(some, ui, l), -tau, solver.inner, ratio.sqrt().clamp(max=0.1), on)
        d = d * spread(
            (norm(v) / norm(d).clamp(min=tiny)).clamp(max=1.0), d
        )  # never farther than the distance itself
        trial, lin = _polish(some, ui + spread(ai, ui) * d, goal, on)
        gain = dot(v, v) - dot(trial - start, trial - start)
        nearer = gain >= -2e-4 * ai * dot(d, tau)
        # Close to the solution the distances agree to rounding, and the tangential part decides.
        flatter = (gain >= -1e-9 * dot(v, v)) & (norm(_stationarity(lin, trial - start)[1]) <= norm(tau) / 2)
        accept = on & (_sup(some.residual(lin.rows)) <= goal) & (nearer | flatter)
        u = work.put(u, _choose(accept, trial, ui))
        ai = torch.where(accept, (3 * ai).clamp(max=1.0), ai / 3)
        alpha, active = work.put(alpha, ai), work.put(active, on & (ai > 2.0**-12))
        steps = steps + active
    return u, steps


def project_globalised(problem: Problem, u0: Tensor, solver: Globalised) -> Outcome:
    """Feasible first, then nearest; see the module docstring."""
    with torch.no_grad():
        lin = problem.linearise(u0)
        tol = (16 * lin.rounding(u0)).clamp(min=solver.tol)
        u, size, iterations = restore(problem, u0, lin, solver, tol, strict=True)
        u, size, iterations = _retry(problem, u0, solver, tol, u, size, iterations)
        feasible = size <= tol
        if solver.nearest > 0:
            u, steps = approach(problem, u, u0, solver, tol, feasible)
            iterations = iterations + steps
        end = problem.linearise(u)
        size = _sup(problem.residual(end.rows))
        return Outcome(u, size, _tangential(end, u - u0), iterations, size <= tol)


def _retry(
    problem: Problem, u0: Tensor, solver: Globalised, tol: Tensor, u: Tensor, size: Tensor, iterations: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Start the samples that are not yet on the manifold again from u0, now accepting any decrease."""
    missed = size > tol
    start = _choose(
        missed, u0, u
    )  # on a device the others take part too, from where they are, and stop at once
    if _Stop()(missed):
        return u, size, iterations
    work = _Working(missed)
    ui, si, goal = work.take(start, size, tol)
    some = work.of(problem)
    again, size_again, passes = restore(some, ui, some.linearise(ui), solver, goal, strict=False)
    better = size_again < si
    u = work.put(u, _choose(better, again, work.take(u)[0]))
    size = work.put(size, torch.minimum(size_again, si))
    return u, size, work.put(iterations, work.take(iterations)[0] + passes)


class Nearest(torch.autograd.Function):
    """The globalised projection with the derivative of the nearest-point map."""

    @staticmethod
    def forward(ctx, u0: Tensor, problem: Problem, solver: Globalised, pins: bool):  # type: ignore[no-untyped-def]
        """Run the projection; everything but the field is a report without gradient. `pins`: pinned values want theirs too."""
        out = project_globalised(problem, u0.detach(), solver)
        ctx.problem, ctx.pins = problem, pins
        ctx.save_for_backward(u0, out.field)
        report = (out.residual, out.tangential, out.iterations, out.converged)
        ctx.mark_non_differentiable(*report)
        return out.field, *report

    @staticmethod
    @once_differentiable
    def backward(ctx, w: Tensor, *_: object):  # type: ignore[no-untyped-def]
        """Solve `K z + J^T m = w`, `J z = 0` at the result; pinned values p get `w_p - (J^T m + sum_i l_i hess r_i z)_p`."""
        problem: Problem = ctx.problem
        u0, u = ctx.saved_tensors
        lin = problem.linearise(u)
        l = -lin.solve(lin.apply(u - u0))
        hessian = _Hessian(problem, u, l)
        eta = torch.full((len(u),), 1e-12, dtype=u.dtype, device=u.device)
        every = torch.ones(len(u), dtype=torch.bool, device=u.device)
        free = w * problem.free
        z = _newton_direction(lin, hessian, lin.tangent(free), 48 if u.is_cuda else 400, eta, every)
        if not ctx.pins:
            return z, None, None, None
        m = lin.solve(lin.apply(free - hessian(z)))
        with torch.enable_grad():
            at = u.detach().requires_grad_()
            rows = problem.rows(at)
            (slope,) = torch.autograd.grad((l * rows).sum(), at, create_graph=True)
            (pull,) = torch.autograd.grad((m * rows).sum() + (slope * z).sum(), at)
        return z + (w - pull) * (1 - problem.free), None, None, None
