"""Gauss-Newton steps onto the manifold: the paper's iteration, and restoration, which converges where that does not.

The projection of u_0 is the nearest point of the manifold: minimise |u - u_0|^2 / 2 subject to r(u) = 0. Its optimality conditions are
r(u) = 0 and tau = 0, where tau = (I - J^+ J)(u - u_0) is the part of the correction that lies along the manifold.

**Plain** (Eq. gauss-newton): `u <- u_0 - J^T (J J^T + mu I)^-1 (r(u) - J (u - u_0))`, which is the normal step -J^+ r together with a
full step -tau. Cheap, nearest where it converges, but it need not converge when the correction is large against the curvature.
It is differentiated step by step.

**Globalised**, feasible first, then nearest. Feasible by *restoration*: `u <- u - alpha J^+ r(u)`. A trial is accepted when the residual
follows its linear prediction, `|r(u - alpha d) - (1 - alpha) r(u)| <= kappa alpha |r(u)|` (Deuflhard's monotonicity test, kappa = 1/2),
so the path stays short and the point found is close to u_0. A sample whose path ends at a fold of the manifold starts again from u_0
and then accepts any decrease of |r|, which gets through at the price of a longer way. Some paths have no such end and only need many
short steps: who missed both times for want of passes, and not because no shorter step helped, gets `patience` passes, first with the
test, then without. From there `nearest` goes on.

Every sample runs its own iteration: once it has converged it is frozen, so batch mates do not influence it. The host runs one pass ahead
of the device (see `stop`), and a pass too many changes no frozen sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import SapcError, explain_misuse
from .problem import Linearisation, Problem, norm
from .restoration import choose, sup
from .stop import Stop, any_left


@explain_misuse
@dataclass(frozen=True)
class Plain:
    """The paper's damped Gauss-Newton: at most `n_iter` steps, damping `mu`, a sample stops at `|R|_inf < tol`."""

    n_iter: int = 10
    mu: float = 1e-8
    tol: float = 1e-6

    def __post_init__(self) -> None:
        if self.n_iter < 1 or self.mu < 0 or self.tol <= 0:
            raise SapcError(f"Plain needs n_iter >= 1, mu >= 0 and tol > 0, got {self}")


@explain_misuse
@dataclass(frozen=True)
class Globalised:
    """Feasible first, then nearest.

    tol       a sample is on the manifold when |R|_inf <= tol (or as close as rounding allows)
    passes    trial points per restoration attempt
    nearest   Newton steps along the manifold; 0 returns the feasible point found first
    inner     conjugate-gradient steps in each of them
    rtol      nearest when |tau| <= rtol |u - u_0|
    kappa     how closely a restoration step must follow its linear prediction
    retry     whether samples that miss the manifold try once more, accepting any decrease
    patience  trial points for samples that missed it both times for want of passes; 0: they are left where they are
    ahead     whether restoration takes all its passes, needed or not, and no retry, so that it never waits for the device
    compiled  whether restoration runs as a compiled program; None: on a GPU, where the compiler is installed
    fused     whether restoration is one kernel, for laws that have one (`LawKernel`); None: on a GPU, unless `compiled` is given
    """

    tol: float = 1e-12
    passes: int = 80
    nearest: int = 120
    inner: int = 60
    rtol: float = 1e-9
    kappa: float = 0.5
    retry: bool = True
    patience: int = 1000
    ahead: bool = False
    compiled: bool | None = None
    fused: bool | None = None

    def __post_init__(self) -> None:
        counts = self.passes >= 1 and self.nearest >= 0 and self.inner >= 1 and self.patience >= 0
        if not counts or self.tol <= 0 or not 0 < self.kappa <= 1:
            raise SapcError(
                "Globalised needs tol > 0, passes >= 1, nearest >= 0, inner >= 1, patience >= 0 and 0 < kappa <= 1, "
                f"got {self}"
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
    u, stop = u0, Stop()
    active = torch.ones(len(u0), dtype=torch.bool, device=u0.device)
    iterations = torch.zeros(len(u0), dtype=torch.long, device=u0.device)
    for _ in range(solver.n_iter):
        lin = problem.linearise(u, solver.mu, graph)
        active = active & (sup(problem.residual(lin.rows.detach())) >= solver.tol)
        if stop(any_left(active)):
            break
        l = lin.solve(lin.rows - lin.apply(u - u0))
        usable = active & l.detach().isfinite().all(1)
        u = choose(usable, u0 - lin.transpose(l), u)
        iterations = iterations + active
    with torch.no_grad():
        end = problem.linearise(u)
        size = sup(problem.residual(end.rows))
    return Outcome(u, size, _tangential(end, u.detach() - u0.detach()), iterations, size < solver.tol)


def _tangential(lin: Linearisation, v: Tensor) -> Tensor:
    moved = norm(v)
    return norm(lin.tangent(v)) / torch.where(moved > 0, moved, 1.0)


def _polish(
    problem: Problem, u: Tensor, tol: Tensor, active: Tensor, steps: int = 8
) -> tuple[Tensor, Linearisation]:
    """Full Newton steps from a point near the manifold, for the active samples."""
    stop = Stop()
    lin = problem.linearise(u)
    for _ in range(steps):
        active = active & (sup(problem.residual(lin.rows)) > tol / 16)
        if stop(any_left(active)):
            break
        u = choose(active, u - lin.normal_step(lin.rows), u)
        lin = problem.linearise(u)
    return u, lin
