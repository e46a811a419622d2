"""PCFM as its authors' code computes it.

`golden/pcfm.npz` holds numbers of their public code (commit eb9266c), in float64 on 24 x 20 grids, with the
velocity 0.9 (u - target) / t: a root step of the estimate, and whole runs of ten steps with the closing
projection, without and with the relaxed correction.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import sapc
from sapc.methods import pcfm

GOLDEN = Path(__file__).parents[1] / "golden" / "pcfm.npz"
CURVED = ("reaction_diffusion", "stokes_ic", "stokes_bc")


def golden(task: str) -> dict[str, torch.Tensor]:
    with np.load(GOLDEN) as file:
        return {k.partition("-")[2]: torch.from_numpy(file[k]) for k in file if k.startswith(f"{task}-")}


def manifold(task: str, condition: torch.Tensor) -> sapc.Manifold:
    return sapc.get_task(task, grid=(24, 20)).manifold(condition)


@pytest.mark.parametrize("name", ["pcfm", "pcfm_relaxed"])
@pytest.mark.parametrize("task", ["heat", *CURVED])
def test_runs_are_those_of_the_authors(task, name):
    theirs = golden(task)

    def v(u, t):
        return 0.9 * (u - theirs["target"]) / t.reshape(-1, 1, 1)

    ours = sapc.get_method(name).sample(v, theirs["source"], manifold(task, theirs["condition"]), 10)
    assert (ours - theirs[f"{name}_final"]).abs().max() < 1e-12


@pytest.mark.parametrize("task", CURVED)
def test_root_step_is_that_of_the_authors(task):
    theirs = golden(task)
    estimate = 0.1 * theirs["source"] + 0.9 * theirs["target"]
    H = manifold(task, theirs["condition"]).with_solver(pcfm.ONE_STEP)
    assert (H.project(estimate, check=False) - theirs["root"]).abs().max() < 1e-12


def test_weighted_columns_do_not_depend_on_what_was_measured_before():
    theirs = golden("reaction_diffusion")
    problem, u = manifold("reaction_diffusion", theirs["condition"])._problem(), theirs["source"]
    fresh, measured = problem.linearise(u), problem.linearise(u)
    measured.terms_bound(u)
    measured.solve(measured.rows)
    root = torch.linspace(0, 1, u[0].numel(), dtype=u.dtype).reshape(u.shape[1:])
    want, got = (lin.weight_columns(root).solve(fresh.rows) for lin in (fresh, measured))
    assert torch.equal(want, got)


@pytest.mark.parametrize("mu", [0.0, 1e-6, 0.3])
@pytest.mark.parametrize("n_iter", [1, 3])
@pytest.mark.parametrize("task", CURVED)
def test_pins_as_rows_equal_the_stacked_system(task, n_iter, mu):
    """`u_0 - J^T (J J^T + mu I)^-1 (R(u) - J (u - u_0))` with every row of the residual, by a dense solve in
    float64."""
    theirs = golden(task)
    u0 = (0.3 * theirs["source"] + 0.7 * theirs["target"])[:1]
    H = manifold(task, theirs["condition"])

    def R(x):
        return H.residual(x.reshape(u0.shape))[0]

    want = u0.flatten()
    for _ in range(n_iter):
        J = torch.autograd.functional.jacobian(R, want)
        gram = J @ J.T + mu * torch.eye(len(J), dtype=torch.float64)
        rhs = R(want) - J @ (want - u0.flatten())
        want = u0.flatten() - J.T @ torch.linalg.lstsq(gram, rhs, driver="gelsd").solution
    solver = sapc.GaussNewton(n_iter=n_iter, mu=mu, tol=1e-14, pin_rows=True)
    for path in (H, H.dense()):
        got = path.with_solver(solver).project(u0, check=False).flatten()
        assert (got - want).abs().max() < 1e-8 * (want - u0.flatten()).abs().max()
    assert mu > 0 or torch.equal(got.reshape(u0.shape)[H.pinned[None]], theirs["condition"][H.pinned[None]])


def test_pins_as_rows_report_and_batch():
    """A start off its pins is not on the manifold; conditions of one's own each; batch mates do not
    matter."""
    theirs = golden("stokes_bc")
    u0 = torch.cat((theirs["source"], theirs["target"]))
    conditions = torch.cat((theirs["target"], theirs["source"]))
    H = sapc.get_task("stokes_bc", grid=(24, 20)).manifold(conditions)
    held, report = H.with_solver(sapc.GaussNewton(n_iter=2, mu=1e3, tol=1e-6, pin_rows=True)).solve(u0)
    assert not bool(report.converged.any())
    assert bool((report.residual >= H.local(held).abs().amax(1) - 1e-12).all())
    near = H.with_solver(pcfm.ONE_STEP)
    together = near.project(u0, check=False)
    for i in range(4):
        assert torch.allclose(near[i].project(u0[i : i + 1], check=False)[0], together[i], rtol=0, atol=1e-12)
