"""Gauss-Newton steps onto the manifold: the paper's iteration, and restoration, which converges where that does not.

The projection of u_0 is the nearest point of the manifold: minimise |u - u_0|^2 / 2 subject to r(u) = 0. Its optimality conditions are
r(u) = 0 and tau = 0, where tau = (I - J^+ J)(u - u_0) is the part of the correction that lies along the manifold.

**Plain** (Eq. gauss-newton): `u <- u_0 - J^T (J J^T + mu I)^-1 (r(u) - J (u - u_0))`, which is the normal step -J^+ r together with a
full step -tau. Cheap, nearest where it converges, but it need not converge when the correction is large against the curvature.
It is differentiated step by step.

**Globalised**, feasible first, then nearest. Feasible by *restoration*: `u <- u - alpha J^+ r(u)`. A trial is accepted when the residual
follows its linear prediction, `|r(u - alpha d) - (1 - alpha) r(u)| <= kappa alpha |r(u)|` (Deuflhard's monotonicity test, kappa = 1/2),
so the path stays short and the point found is close to u_0. A sample whose path ends at a fold of the manifold starts again from u_0
and then accepts any decrease of |r|, which gets through at the price of a longer way. From there `nearest` goes on.

Every sample runs its own iteration: once it has converged it is frozen, so batch mates do not influence it. Nothing in the loops waits for
the device: the stop flag is read as it arrives, and passes that run meanwhile change no frozen sample.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import SapcError
from .problem import Linearisation, Problem, norm, spread


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
