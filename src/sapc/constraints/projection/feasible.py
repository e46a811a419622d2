"""Restoration: `u <- u - alpha J^+ r(u)`, feasible first; the loop that samples run between two network passes, so it counts in kernels.

A pass takes a state to the next one and is a pure function of tensors: `begin` linearises at the start, `advance` tries the point
`u - alpha d`, accepts it or shortens alpha, and has the next step ready. The same two functions run step by step, or as one compiled
program each (see `compiled`). The length of a step needs no pass over the field: `d = J^T l` with `J J^T l = r`, so `|d|^2 = l . r`.

The counts at the end of a pass (samples active, samples off the manifold) tell the host when to stop, whether anybody missed, and when
so few samples are left that going on with those alone is cheaper. Samples only ever become inactive, so counts that are one pass old
are still enough room, and nothing has to wait for newer ones.

Who wants the derivative (see `feasible`) gives `restore` a path to fill: where each pass began and the share of its step that was taken.
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
from .tolerance import NEAR, excess, row_tolerance

MIN_ALPHA = 2.0**-12  # a shorter step than this share of Newton's is no progress
FAR_FROM_MANIFOLD = 1e-6  # of what a row adds up: no start with a larger residual is on the manifold
MIN_SAMPLES = 64  # on a device, fewer samples than this are not worth sorting out


class State(NamedTuple):
    """Where every sample stands."""

    u: Tensor
    r: Tensor  # residual there
    d: Tensor  # Newton step of smallest norm from there
    alpha: Tensor  # share of it to try next
    length: Tensor  # |d|
    tol: Tensor  # of every row there, or of an earlier point while r is far from it; see `tolerance`
    passes: Tensor
    active: Tensor


class Step(NamedTuple):
    """One pass of a path: `u <- u - alpha J^+ r(u)`."""

    u: Tensor  # where it began
    alpha: Tensor  # share of the Newton step that was taken; zero where the trial was refused or the sample was done
    rows: Tensor | None  # of the batch, those that it worked on; None for all


Path = list[Step]


class Attempt(NamedTuple):
    """From the start, with the test of `gauss_newton` or accepting any decrease, at most `limit` passes."""

    strict: bool
    limit: int


def attempts(solver: FeasiblePoint) -> tuple[Attempt, ...]:
    """The attempts of `restore`, each for those whom the ones before left off the manifold."""
    limits = sorted({solver.passes, max(solver.passes, solver.patience)})
    every = tuple(Attempt(strict, most) for most in limits for strict in (True, False))
    return every if solver.retry and not solver.execution.ahead else every[:1]


@runtime_checkable
class Passes(Protocol):
    """The functions of the loop and its derivative for one problem: step by step, or compiled."""

    expected_counts: int  # counts that the last loop needed until it stopped, zero if that is not remembered

    def begin(self, u: Tensor) -> tuple[State, Tensor]:
        """The state at the start, and counts."""

    def advance(self, state: State, strict: Tensor) -> tuple[State, Tensor]:
        """The state after one trial, and counts."""

    def prepare(self, u: Tensor) -> None:
        """Whatever `pullback` needs once, done before it is called."""

    def pullback(self, u: Tensor, alpha: Tensor, w: Tensor) -> Tensor:
        """The cotangent `w` of `u - alpha J^+ r(u)`, pulled back to `u`."""

    def select(self, index: Tensor) -> Passes:
        """The same for some of the samples."""


class EagerPasses:
    """The passes, operation by operation."""

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
        # grows in proportion to alpha
        bend = norm(rt - (1 - alpha)[:, None] * r) / (alpha * size).clamp(min=tiny)
        shrinks = norm(rt) <= (1 - 1e-4 * alpha) * size
        good = torch.where(strict, bend <= self.solver.kappa, shrinks)
        largest = sup(rt)
        accept = active & good & (largest < torch.inf)
        known = tol.amax(1).clamp(min=self.solver.tol)
        new_length = torch.where(accept, new_length, length)
        next_alpha = _next_alpha(alpha, accept, bend / self.solver.kappa, new_length / length)
        return _update_active(
            State(
                choose(accept, trial, u),
                choose(accept, rt, r),
                choose(accept, step, d),
                torch.where(active, next_alpha, alpha),
                new_length,
                self._tolerance(lin, trial, accept & (largest <= NEAR * known), tol),
                passes + active,
                active,
            )
        )

    def _first_tolerance(self, lin: Linearisation, u: Tensor, r: Tensor) -> Tensor:
        """The tolerances at the start; on a CPU, of samples that are far from the manifold, those of a bound that costs less."""
        if u.is_cuda or self.problem.is_traced:
            return row_tolerance(lin.terms(u), self.solver.tol)
        most = lin.terms_bound(u)
        tol = row_tolerance(most, self.solver.tol)[:, None].expand_as(r)
        return self._tolerance(lin, u, ~(sup(r) > FAR_FROM_MANIFOLD * most), tol)

    def _tolerance(self, lin: Linearisation, u: Tensor, near: Tensor, tol: Tensor) -> Tensor:
        """The tolerances at `u` for the samples that are near the manifold, the known ones for the others."""
        if not u.is_cuda and not self.problem.is_traced and not bool(near.any()):
            return tol
        return choose(near, row_tolerance(lin.terms(u), self.solver.tol), tol)

    def prepare(self, u: Tensor) -> None:
        """Nothing to do."""

    def pullback(self, u: Tensor, alpha: Tensor, w: Tensor) -> Tensor:
        """See the module docstring of `feasible`; letters as there."""
        problem, lin = self.problem, self.problem.linearise(u)
        l, m = lin.solve(lin.rows), lin.solve(lin.apply(w))
        d, tau = lin.transpose(l), (w - lin.transpose(m)) * problem.free
        slope = problem.slope(u, (m, l), (d, tau))
        return choose(alpha > 0, w - expand_like(alpha, w) * slope, w)

    def select(self, index: Tensor) -> EagerPasses:
        """The same for some of the samples."""
        return EagerPasses(self.problem.select(index), self.solver)


def newton_step(lin: Linearisation) -> tuple[Tensor, Tensor]:
    """`J^+ r` and its length."""
    l = lin.solve(lin.rows)
    return lin.transpose(l), dot(l, lin.rows).clamp(min=0).sqrt()


def _update_active(state: State) -> tuple[State, Tensor]:
    """The state with its active samples, and how many are active and how many off the manifold."""
    off = excess(state.r, state.tol) > 1
    active = state.active & off & (state.alpha > MIN_ALPHA) & state.length.isfinite()
    return state._replace(active=active), torch.stack((active.sum(), off.sum()))


def _next_alpha(alpha: Tensor, accept: Tensor, bend: Tensor, growth: Tensor) -> Tensor:
    """The step length that the measured bend (one: as much as is allowed) suggests; bend grows with alpha and with the step's norm."""
    suggested = alpha / bend.nan_to_num(torch.inf).clamp(min=1e-3)
    longer = torch.maximum(suggested / growth.nan_to_num(1.0).clamp(min=1e-3), alpha)
    shorter = torch.minimum(torch.maximum(suggested, alpha / 8), alpha / 2)
    return torch.where(accept, longer.clamp(max=1.0), shorter)


def sup(residual: Tensor) -> Tensor:
    """|R|_inf per sample; infinite where anything is not finite, so that a comparison always decides."""
    size = residual.abs().amax(1)
    return torch.where(size.isfinite(), size, torch.inf)


def choose(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Per sample, one or the other."""
    return torch.where(expand_like(mask, yes), yes, no)


class _Loop:
    """A state that shrinks to the samples still active while the rest waits, frozen, in `whole`."""

    def __init__(self, passes: Passes, state: State, path: Path | None) -> None:
        self.passes, self.state, self.whole, self.path = passes, state, state, path
        self.index: Tensor | None = None  # rows of `whole` that `state` holds
        # Counts of those that were left out.
        self.lost = torch.zeros(2, dtype=torch.long, device=state.u.device)

    def advance(self, strict: Tensor) -> Tensor:
        """One pass; the counts of all samples."""
        before = self.state
        self.state, counts = self.passes.advance(before, strict)
        if self.path is not None:
            self.path.append(Step(before.u, _share_of_step(before, self.state), self.index))
        return counts if self.index is None else counts + self.lost

    def shrink(self, count: int, few: bool = False) -> None:
        """Go on with `count` samples, all active ones among them, if that is worth it; with `few`, in any case."""
        n = self.state.u.shape[0]
        if not 0 < count < n or (self.state.u.is_cuda and not few and (n <= MIN_SAMPLES or count > n // 2)):
            return
        self.whole, before = self.merge(), _update_active(self.state)[1]
        chosen = self.state.active.to(torch.int8).argsort(descending=True, stable=True)[:count]
        self.index = chosen if self.index is None else self.index[chosen]
        self.state = State(*(x[chosen] for x in self.state))
        self.lost = self.lost + before - _update_active(self.state)[1]
        self.passes = self.passes.select(chosen)

    def merge(self) -> State:
        """The state of all samples, as far as it is a result."""
        if self.index is None:
            return self.state
        rows = {
            name: getattr(self.whole, name).index_copy(0, self.index, getattr(self.state, name))
            for name in ("u", "r", "tol", "passes", "active")
        }
        return self.whole._replace(**rows)


def _share_of_step(before: State, after: State) -> Tensor:
    """The share of the step that a pass took: a refused trial shortens alpha, an accepted one never does."""
    return torch.where(before.active & (after.alpha >= before.alpha), before.alpha, 0.0)


def _select_path(path: Path, keep: Tensor) -> Path:
    """The path of some of the samples; the others stay where they are."""
    return [
        step._replace(alpha=step.alpha * (keep if step.rows is None else keep[step.rows])) for step in path
    ]


def run(
    passes: Passes,
    state: State,
    counts: Tensor,
    attempt: Attempt,
    most: int,
    path: Path | None = None,
    few: bool = False,
) -> tuple[State, int]:
    """One attempt of at most `terms_bound` active samples; the state reached, and how many samples are off the manifold.

    `few`: the others are left out from the start, as for a long attempt they should be.
    """
    strict = attempt.strict
    loop, stop = _Loop(passes, state, path), StopCheck(passes.expected_counts if strict and not few else 0)
    loop.shrink(most, few)
    how = torch.full((), strict, dtype=torch.bool, device=state.u.device)
    for _ in range(attempt.limit):
        if stop(counts):
            break
        if stop.latest is not None:
            loop.shrink(stop.latest[0])
        counts = loop.advance(how)
    else:
        stop(counts)
    final = stop.wait()
    if strict and not few:
        passes.expected_counts = stop.n_arrived
    return loop.merge(), state.u.shape[0] if final is None else final[1]


def restore(passes: Passes, u: Tensor, solver: FeasiblePoint, path: Path | None = None) -> State:
    """Newton steps of smallest norm onto the manifold; who misses it may try again from `u`, then accepting any decrease.

    Who misses it once more may try both ways again with `patience` passes: those who ran out of passes in the shorter attempt of that
    kind, because the longer one would only repeat how the others got stuck. With `ahead` all passes are queued at once and nobody is
    asked whether they are needed, nor tries again. An empty `path` is filled with the passes that lead from `u` to the result. A
    captured graph, where nobody can be asked, holds no long attempts.
    """
    start, counts = passes.begin(u)
    if solver.execution.ahead:
        strict = torch.ones((), dtype=torch.bool, device=u.device)
        loop = _Loop(passes, start, path)
        for _ in range(solver.passes):
            loop.advance(strict)
        return loop.state
    first, *more = attempts(solver)
    best, missed = run(passes, start, counts, first, most=u.shape[0], path=path)
    cut = {first.strict: best.passes >= first.limit}  # of each kind of attempt, who ran out
    for attempt in more:
        long = attempt.strict in cut
        if missed == 0 or (long and is_capturing(u)):
            break
        off = excess(best.r, best.tol) > 1
        who = start.active & off & cut.get(attempt.strict, off)
        most = int(who.sum()) if long else missed
        if most == 0:
            continue
        counts = torch.stack((who.sum(), off.sum()))
        again: Path | None = None if path is None else []
        end, _ = run(passes, start._replace(active=who), counts, attempt, most, again, few=long)
        cut[attempt.strict] = end.passes >= attempt.limit
        better = who & (excess(end.r, end.tol) < excess(best.r, best.tol))
        if path is not None and again is not None:  # the attempt that was no use leads nowhere
            path[:] = [*_select_path(path, ~better), *_select_path(again, better)]
        best = best._replace(
            u=choose(better, end.u, best.u),
            r=choose(better, end.r, best.r),
            tol=choose(better, end.tol, best.tol),
            passes=best.passes + torch.where(who, end.passes, 0),
        )
    return best
