"""Cheaper forms of projections beside those they replaced, on the same fields in one run, with the same bits.

python benchmarks/projection_forms.py                 microseconds a field, one core, and the ratio

closed form     constants of the grid computed once, weights of one left out, written in place, in portions
                that stay in the cache
paper           the damped iteration without a linearisation at its end, which only a report needs
dense           a Cholesky factor where it is needed, and a second one only where the first failed
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

import sapc
from sapc.constraints.projection.linearisation import DenseLinearisation


def closed_form_before(u: Tensor, weights: Tensor, free: Tensor) -> Tensor:
    """The closed form as it was: everything computed anew for every call."""
    w = weights[..., None] * free
    ww = (w * w).flatten(0, -2).sum(0)
    is_fixed = ww == 0
    m = (weights[..., None] * u).flatten(1, -2).sum(1)
    vote = torch.where(is_fixed.any(), is_fixed.to(u.dtype), 1 / torch.where(is_fixed, 1.0, ww))
    target = m[:, :1] + ((m - m[:, :1]) * (vote / vote.sum())).sum(1, keepdim=True)
    shift = torch.where(is_fixed, 0.0, (target - m) / torch.where(is_fixed, 1.0, ww))
    return u + w * shift.reshape(len(u), *(1,) * (u.ndim - 2), -1)


def factorised_before(lin: DenseLinearisation) -> Tensor:
    """Both factors, whether or not the second is needed."""
    gram = lin.jacobian @ lin.jacobian.mT
    diagonal = gram.diagonal(dim1=1, dim2=2)
    gram = gram + torch.diag_embed(torch.where(diagonal > 0, torch.full_like(diagonal, lin.mu), 1.0))
    factor, info = torch.linalg.cholesky_ex(gram)
    jitter = torch.diag_embed((1e-13 * diagonal.mean(1, keepdim=True)).expand_as(diagonal))
    factor_with_jitter = torch.linalg.cholesky_ex(gram + jitter)[0]
    return torch.where((info > 0)[:, None, None], factor_with_jitter, factor)


def microseconds(calls: list[Callable[[], Tensor]], repeats: int) -> list[float]:
    """The fastest of many calls, in processor time and in turns, so that other work on the machine counts for
    little.
    """
    took: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, times in zip(calls, took, strict=True):
            begin = time.thread_time()
            call()
            times.append(1e6 * (time.thread_time() - begin))
    return [min(times) for times in took]


def compare(
    name: str, fields: int, before: Callable[[], Tensor], after: Callable[[], Tensor], repeats: int
) -> None:
    assert torch.equal(before(), after()), f"{name} has other bits"
    us_before, us_after = (t / fields for t in microseconds([before, after], repeats))
    print(f"{name:40} {us_before:10.1f} {us_after:10.1f} {us_before / us_after:8.2f}")


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=60)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    print(f"{'us a field':40} {'before':>10} {'after':>10} {'ratio':>8}")
    for name in ("heat", "burgers"):
        task = sapc.get_task(name)
        truth = task.dataset("test0", size=1).fields.double()
        H = task.manifold(truth)
        weights, free = H._frame_integral.weights, (~H.pinned).double()
        for n in (1, 8, 64):
            u = sapc.source.sample(task.grid, n, dtype=torch.float64)
            start = lambda u=u, H=H: torch.where(H.pinned, H.fields, u)
            before = lambda s=start, w=weights, f=free: closed_form_before(s(), w, f)
            after = lambda s=start, H=H: H._step_affine(s())
            compare(f"closed form, {name}, {n} at a time", n, before, after, repeats)
    for name in ("reaction_diffusion", "stokes_ic"):
        task = sapc.get_task(name)
        truth = task.dataset("test0", size=8).fields.double()
        for solver_name, solver in (
            ("paper", task.published_solver),
            ("paper, one step", sapc.GaussNewton(1)),
        ):
            H, u = task.manifold(truth, solver=solver), truth + 0.05 * torch.randn_like(truth)
            before = lambda H=H, u=u: H.solve(u)[0]
            compare(
                f"{solver_name}, {name}",
                len(u),
                before,
                lambda H=H, u=u: H.project(u, check=False),
                repeats // 6 + 1,
            )
    task = sapc.get_task("reaction_diffusion", grid=(32, 25))
    truth = task.dataset("test0", size=8).fields.double()
    problem = task.manifold(truth).dense()._problem()
    lin = problem.linearise(truth)
    after = lambda: DenseLinearisation.factor.func(lin)
    compare("dense factor, reaction_diffusion", 8, lambda: factorised_before(lin), after, repeats)


if __name__ == "__main__":
    main()
