"""Restoration: `u <- u - alpha J^+ r(u)`, feasible first; this loop runs between two network passes.

A pass takes a state to the next one and is a pure function of tensors: `begin` linearises at the start,
`advance` tries the point `u - alpha d`, accepts it or shortens alpha, and has the next step ready. The same
two functions run step by step, or as one compiled program each (see `compiled`). The length of a step needs
no pass over the field: `d = J^T l` with `J J^T l = r`, so `|d|^2 = l . r`. Samples run this loop in every
sampling step, so the number of its kernels counts.

The counts at the end of a pass (samples active, samples off the manifold) tell the host when to stop, whether
any sample missed, and when so few samples are left that going on with those alone is cheaper. Samples only
ever become inactive, so counts that are one pass old are still enough room, and nothing has to wait for newer
ones.

Where the derivative is wanted (see `adjoint`), `restore` gets a path to fill: where each pass began and the
share of its step that was taken.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..._triton import is_capturing
from ...flow.path import expand_like
from .linearisation import Linearisation, Problem, dot, norm
from .solvers import FeasiblePoint
from .stop import StopCheck
from .tolerance import NEAR_RATIO, excess, row_tolerance, sup

# A shorter step than this share of Newton's is no progress.
MIN_ALPHA = 2.0**-12
# Of what a row adds up: no start with a larger residual is on the manifold.
FAR_FROM_MANIFOLD = 1e-6
# On a device, fewer samples than this are not worth sorting out.
MIN_SAMPLES = 64


class State(NamedTuple):
    """Where every sample stands.

    Attributes:
        u: The field.
        r: Residual there.
        d: Newton step of smallest norm from there.
        alpha: Share of it to try next.
        length: |d|.
        tol: Tolerance of every row there, or of an earlier point while r is far from it; see `tolerance`.
        passes: Passes taken.
        active: Whether the sample goes on.
    """

    u: Tensor
    r: Tensor
    d: Tensor
    alpha: Tensor
    length: Tensor
    tol: Tensor
    passes: Tensor
    active: Tensor


class Step(NamedTuple):
    """One pass of a path: `u <- u - alpha J^+ r(u)`.

    Attributes:
        u: Where it began.
        alpha: Share of the Newton step that was taken; zero where the trial was refused or the sample was
            done.
        rows: The samples of the batch that it worked on; None: all of them.
    """

    u: Tensor
    alpha: Tensor
    rows: Tensor | None


Path = list[Step]


class Attempt(NamedTuple):
    """A run from the start.

    Attributes:
        strict: Whether the test of `gauss_newton` decides; otherwise any decrease is accepted.
        limit: Largest number of passes.
    """

    strict: bool
    limit: int


def attempts(solver: FeasiblePoint) -> tuple[Attempt, ...]:
    """Return the attempts of `restore`, each for samples that are still off the manifold."""
    limits = sorted({solver.passes, max(solver.passes, solver.patience)})
    all_attempts = tuple(Attempt(strict, limit) for limit in limits for strict in (True, False))
    return all_attempts if solver.retry and not solver.execution.ahead else all_attempts[:1]


@runtime_checkable
class Passes(Protocol):
    """The functions of the loop and its derivative for one problem: step by step, or compiled."""

    # Counts that the last loop needed until it stopped, zero if that is not remembered.
    expected_counts: int

    def begin(self, u: Tensor) -> tuple[State, Tensor]:
        """Return the state at the start, and counts."""

    def advance(self, state: State, strict: Tensor) -> tuple[State, Tensor]:
        """Return the state after one trial, and counts."""

    def prepare(self, u: Tensor) -> None:
        """Do whatever `pullback` needs once, before it is called."""

    def pullback(self, u: Tensor, alpha: Tensor, w: Tensor) -> Tensor:
        """Pull the cotangent `w` of `u - alpha J^+ r(u)` back to `u`."""

    def select(self, index: Tensor) -> Passes:
        """Return the same for some of the samples."""


class EagerPasses:
    """The passes, operation by operation.

    Args:
        problem: The rows to restore.
        solver: Tolerance and kappa.
    """

    expected_counts = 0

    def __init__(self, problem: Problem, solver: FeasiblePoint) -> None:
        self.problem, self.solver = problem, solver

    def begin(self, u: Tensor) -> tuple[State, Tensor]:
        """Linearise at `u`."""
        lin = self.problem.linearise(u)
        r = self.problem.residual(lin.rows)
        d, length = newton_step(lin)
        tol = self._first_tolerance(lin, u, r)
        alpha, passes = torch.ones_like(length), torch.zeros_like(length, dtype=torch.long)
        return _update_active(State(u, r, d, alpha, length, tol, passes, length.isfinite()))

    def advance(self, state: State, strict: Tensor) -> tuple[State, Tensor]:
        """Try `u - alpha d`; see the module docstring of `gauss_newton` for the test."""
        u, r, d, alpha, length, tol, passes, active = state
        tiny = torch.finfo(u.dtype).tiny
        trial = u - expand_like(alpha, u) * d
        lin = self.problem.linearise(trial)
        rt = self.problem.residual(lin.rows)
        step, new_length = newton_step(lin)
        size = norm(r)
        # The bend grows in proportion to alpha.
        bend = norm(rt - (1 - alpha)[:, None] * r) / (alpha * size).clamp(min=tiny)
        shrinks = norm(rt) <= (1 - 1e-4 * alpha) * size
        good = torch.where(strict, bend <= self.solver.kappa, shrinks)
        largest = sup(rt)
        accept = active & good & (largest < torch.inf)
        known_tol = tol.amax(1).clamp(min=self.solver.tol)
        new_length = torch.where(accept, new_length, length)
        next_alpha = _next_alpha(alpha, accept, bend / self.solver.kappa, new_length / length)
        return _update_active(
            State(
                choose(accept, trial, u),
                choose(accept, rt, r),
                choose(accept, step, d),
                torch.where(active, next_alpha, alpha),
                new_length,
                self._tolerance(lin, trial, accept & (largest <= NEAR_RATIO * known_tol), tol),
                passes + active,
                active,
            )
        )

    def _first_tolerance(self, lin: Linearisation, u: Tensor, r: Tensor) -> Tensor:
        """Compute the tolerances at the start; on a CPU, far samples get those of a cheap bound."""
        if u.is_cuda or self.problem.is_traced:
            return row_tolerance(lin.terms(u), self.solver.tol)
        bound = lin.terms_bound(u)
        tol = row_tolerance(bound, self.solver.tol)[:, None].expand_as(r)
        return self._tolerance(lin, u, ~(sup(r) > FAR_FROM_MANIFOLD * bound), tol)

    def _tolerance(self, lin: Linearisation, u: Tensor, is_near: Tensor, tol: Tensor) -> Tensor:
        """Compute the tolerances at `u` for samples near the manifold; take the known ones for the others."""
        if not u.is_cuda and not self.problem.is_traced and not bool(is_near.any()):
            return tol
        return choose(is_near, row_tolerance(lin.terms(u), self.solver.tol), tol)

    def prepare(self, u: Tensor) -> None:
        """Do nothing."""

    def pullback(self, u: Tensor, alpha: Tensor, w: Tensor) -> Tensor:
        """Walk one step back; see the module docstring of `adjoint`, letters as there."""
        problem, lin = self.problem, self.problem.linearise(u)
        l, m = lin.solve(lin.rows), lin.solve(lin.apply(w))
        d, tau = lin.transpose(l), (w - lin.transpose(m)) * problem.free
        slope = problem.slope(u, (m, l), (d, tau))
        return choose(alpha > 0, w - expand_like(alpha, w) * slope, w)

    def select(self, index: Tensor) -> EagerPasses:
        """Return the same for some of the samples."""
        return EagerPasses(self.problem.select(index), self.solver)


def newton_step(lin: Linearisation) -> tuple[Tensor, Tensor]:
    """Return `J^+ r` and its length."""
    l = lin.solve(lin.rows)
    return lin.transpose(l), dot(l, lin.rows).clamp(min=0).sqrt()


def _update_active(state: State) -> tuple[State, Tensor]:
    """Update which samples are active; also count them and those off the manifold."""
    is_off = excess(state.r, state.tol) > 1
    active = state.active & is_off & (state.alpha > MIN_ALPHA) & state.length.isfinite()
    return state._replace(active=active), torch.stack((active.sum(), is_off.sum()))


def _next_alpha(alpha: Tensor, accept: Tensor, bend: Tensor, growth: Tensor) -> Tensor:
    """Return the step length that the measured bend suggests; bend grows with alpha and with the step's norm.

    A bend of one is as much as is allowed.

    Args:
        alpha: Share of the Newton step that was tried.
        accept: Whether the trial was accepted.
        bend: How far the residual is from its linear prediction.
        growth: Norm of the next Newton step relative to this one's.

    Returns:
        The share to try next.
    """
    suggestion = alpha / bend.nan_to_num(torch.inf).clamp(min=1e-3)
    longer = torch.maximum(suggestion / growth.nan_to_num(1.0).clamp(min=1e-3), alpha)
    shorter = torch.minimum(torch.maximum(suggestion, alpha / 8), alpha / 2)
    return torch.where(accept, longer.clamp(max=1.0), shorter)


def choose(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Choose one or the other, per sample."""
    return torch.where(expand_like(mask, yes), yes, no)


class _Loop:
    """A state that shrinks to the samples still active; the others wait, frozen, in `all_samples`."""

    def __init__(self, passes: Passes, state: State, path: Path | None) -> None:
        self.passes, self.state, self.all_samples, self.path = passes, state, state, path
        # Rows of `all_samples` that `state` holds.
        self.index: Tensor | None = None
        # Counts of those that were left out.
        self.dropped_counts = torch.zeros(2, dtype=torch.long, device=state.u.device)

    def advance(self, strict: Tensor) -> Tensor:
        """Take one pass; return the counts of all samples."""
        start = self.state
        self.state, counts = self.passes.advance(start, strict)
        if self.path is not None:
            self.path.append(Step(start.u, _share_of_step(start, self.state), self.index))
        return counts if self.index is None else counts + self.dropped_counts

    def shrink(self, count: int, drop_others: bool = False) -> None:
        """Go on with `count` samples, all active ones among them, if that is worth it.

        With `drop_others` it is done in any case.
        """
        n = self.state.u.shape[0]
        if not 0 < count < n or (
            self.state.u.is_cuda and not drop_others and (n <= MIN_SAMPLES or count > n // 2)
        ):
            return
        self.all_samples, counts = self.merge(), _update_active(self.state)[1]
        index = self.state.active.to(torch.int8).argsort(descending=True, stable=True)[:count]
        self.index = index if self.index is None else self.index[index]
        self.state = State(*(x[index] for x in self.state))
        self.dropped_counts = self.dropped_counts + counts - _update_active(self.state)[1]
        self.passes = self.passes.select(index)

    def merge(self) -> State:
        """Return the state of all samples, as far as it is a result."""
        if self.index is None:
            return self.state
        rows = {
            name: getattr(self.all_samples, name).index_copy(0, self.index, getattr(self.state, name))
            for name in ("u", "r", "tol", "passes", "active")
        }
        return self.all_samples._replace(**rows)


def _share_of_step(start: State, end: State) -> Tensor:
    """Return the share of the step that a pass took.

    A refused trial shortens alpha, an accepted one never does.
    """
    return torch.where(start.active & (end.alpha >= start.alpha), start.alpha, 0.0)


def _select_path(path: Path, keep: Tensor) -> Path:
    """Return the path of some of the samples; the others stay where they are."""
    return [
        step._replace(alpha=step.alpha * (keep if step.rows is None else keep[step.rows])) for step in path
    ]


def run(
    passes: Passes,
    state: State,
    counts: Tensor,
    attempt: Attempt,
    n_active: int,
    path: Path | None = None,
    drop_others: bool = False,
) -> tuple[State, int]:
    """Run one attempt.

    Args:
        passes: The functions of the loop.
        state: State at the start.
        counts: Counts there.
        attempt: The attempt.
        n_active: Largest number of active samples.
        path: Path to which the passes are added.
        drop_others: Leave the others out from the start, as for a long attempt they should be.

    Returns:
        The state reached, and how many samples are off the manifold.
    """
    strict = attempt.strict
    loop = _Loop(passes, state, path)
    stop = StopCheck(passes.expected_counts if strict and not drop_others else 0)
    loop.shrink(n_active, drop_others)
    is_strict = torch.full((), strict, dtype=torch.bool, device=state.u.device)
    for _ in range(attempt.limit):
        if stop(counts):
            break
        if stop.latest is not None:
            loop.shrink(stop.latest[0])
        counts = loop.advance(is_strict)
    else:
        stop(counts)
    end_counts = stop.wait()
    if strict and not drop_others:
        passes.expected_counts = stop.n_arrived
    return loop.merge(), state.u.shape[0] if end_counts is None else end_counts[1]


def restore(passes: Passes, u: Tensor, solver: FeasiblePoint, path: Path | None = None) -> State:
    """Take Newton steps of smallest norm onto the manifold; samples that miss it may start again from `u`.

    The second attempt accepts any decrease. Samples that miss the manifold once more may try both ways again
    with `patience` passes: those that ran out of passes in the shorter attempt of that kind, because the
    longer one would only repeat how the others got stuck. With `ahead` all passes are queued at once: nobody
    is asked whether they are needed, and no sample tries again. A captured graph, where nobody can be asked,
    holds no long attempts.

    Args:
        passes: The functions of the loop.
        u: Start, with the pins already set.
        solver: Settings.
        path: Empty; filled with the passes that lead from `u` to the result.

    Returns:
        The state reached.
    """
    start, counts = passes.begin(u)
    if solver.execution.ahead:
        strict = torch.ones((), dtype=torch.bool, device=u.device)
        loop = _Loop(passes, start, path)
        for _ in range(solver.passes):
            loop.advance(strict)
        return loop.state
    first, *later_attempts = attempts(solver)
    best, n_missed = run(passes, start, counts, first, n_active=u.shape[0], path=path)
    # Of each kind of attempt, who ran out.
    ran_out = {first.strict: best.passes >= first.limit}
    for attempt in later_attempts:
        is_long = attempt.strict in ran_out
        if n_missed == 0 or (is_long and is_capturing(u)):
            break
        is_off = excess(best.r, best.tol) > 1
        candidates = start.active & is_off & ran_out.get(attempt.strict, is_off)
        n_active = int(candidates.sum()) if is_long else n_missed
        if n_active == 0:
            continue
        counts = torch.stack((candidates.sum(), is_off.sum()))
        retry_path: Path | None = None if path is None else []
        retry = start._replace(active=candidates)
        end, _ = run(passes, retry, counts, attempt, n_active, retry_path, drop_others=is_long)
        ran_out[attempt.strict] = end.passes >= attempt.limit
        is_better = candidates & (excess(end.r, end.tol) < excess(best.r, best.tol))
        # The attempt that was no use leads nowhere.
        if path is not None and retry_path is not None:
            path[:] = [*_select_path(path, ~is_better), *_select_path(retry_path, is_better)]
        best = best._replace(
            u=choose(is_better, end.u, best.u),
            r=choose(is_better, end.r, best.r),
            tol=choose(is_better, end.tol, best.tol),
            passes=best.passes + torch.where(candidates, end.passes, 0),
        )
    return best
