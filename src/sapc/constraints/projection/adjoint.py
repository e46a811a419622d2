"""The derivative of restoration: the path to a feasible point, walked back.

Restoration takes u_0 to `u_{k+1} = u_k - alpha_k J^+ r(u_k)`, k = 0, 1, ... Its derivative here is that of
these steps with the lengths alpha_k held fixed. Where every step is full, alpha_k = 1, as it is near the
manifold, that is the derivative of the map itself. Where steps are damped, alpha_k depends on u_0 too (and
jumps where a trial is refused); that part is left out. A sample that tried again began at u_0 once more, so
only the path of the attempt that gave its result counts. A sample that was cut off has the path as far as it
went.

One pass back. With `d = J^T l`, `J J^T l = r` and a cotangent w, the number `w . d` is differentiated with w
fixed. From the differential of `J J^T l = r`, and with `J J^T m = J w` and tau = w - J^T m, the part of w
along the manifold,

    d(w . d)  =  m . dr  +  l . dJ tau  -  m . dJ d,        w  <-  w - alpha grad (w . d).

So a pass costs one linearisation, two solves, and one derivative of first derivatives of the rows; no solve
is differentiated. What is kept of the forward pass is a field and a number per sample and pass. J and the
directions tau and d end at the free points, but the rows and their gradients read pinned values as well:
their gradient is not masked, and the caller, who wrote the pinned values into u_0, passes it on to them. The
pinned entries of the caller's own field get zero.

A sample that rests in a pass (alpha_k = 0) hands its cotangent on untouched, and no sample reads another's. A
sample that is on the manifold from the start takes no step at all, but the map around it does: its derivative
is that of a full step, w <- tau.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .feasible import Passes, Path, Step
from .gauss_newton import ActiveSamples
from .gpu.compiled import passes_of
from .linearisation import Problem
from .nearest import project_by_restoration
from .solvers import FeasiblePoint


def pull_back(passes: Passes, path: Path, w: Tensor) -> Tensor:
    """Pull the cotangent of the end of a path back to its beginning.

    Args:
        passes: The functions of the loop.
        path: The path.
        w: The cotangent.

    Returns:
        The cotangent of the beginning.
    """
    for u, alpha, index in reversed(path):
        work = ActiveSamples(alpha > 0)
        ui, share = work.gather(u, alpha)
        rows = index if work.index is None else work.index if index is None else index[work.index]
        if rows is None:
            w = passes.pullback(ui, share, w)
        elif len(rows) > 0:
            w = w.index_copy(0, rows, passes.select(rows).pullback(ui, share, w[rows]))
    return w


def _with_resting(path: Path, u0: Tensor, rests: Tensor) -> Path:
    """Return the path with a full step for the samples that were on the manifold from the start."""
    # In a pass that is walked back anyway.
    if path and path[0].rows is None:
        return [path[0]._replace(alpha=torch.where(rests, 1.0, path[0].alpha)), *path[1:]]
    return [Step(u0, rests.to(u0), None), *path]


class FeasibleFunction(torch.autograd.Function):
    """Restoration with the derivative of its path."""

    @staticmethod
    def forward(ctx, u0: Tensor, problem: Problem, solver: FeasiblePoint, measure: bool):  # type: ignore[no-untyped-def]
        """Run the projection and keep its path; everything but the field is a record without gradient."""
        path: Path = []
        u0 = u0.detach()
        out = project_by_restoration(problem, u0, solver, measure, path)
        # Without a pass it is u0, which is kept.
        field = out.field if path else out.field.clone()
        path = _with_resting(path, u0, (out.iterations == 0) & out.converged)
        ctx.passes = passes_of(problem, solver)
        ctx.passes.prepare(u0)
        ctx.save_for_backward(*(x for step in path for x in step))
        record = (out.residual, out.tangential_fraction, out.iterations, out.converged)
        ctx.mark_non_differentiable(*record)
        return field, *record

    @staticmethod
    @once_differentiable
    def backward(ctx, w: Tensor, *_: object):  # type: ignore[no-untyped-def]
        """Walk the path back."""
        tensors = iter(ctx.saved_tensors)
        path = [Step(*entries) for entries in zip(tensors, tensors, tensors, strict=True)]
        return pull_back(ctx.passes, path, w), None, None, None
