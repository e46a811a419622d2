"""Every projector on the manifold of every task: what each claims, held against an independent dense oracle.

A projector returns fields that keep the pinned values to the bit and the laws to rounding (or says which
samples it left off them), does not move what lies on the manifold, treats every sample alone, and keeps the
dtype. `NearestPoint` also returns the nearest point.
"""

import pytest
import torch

import sapc

GRIDS = {
    "heat": (12, 9),
    "reaction_diffusion": (14, 9),
    "stokes_ic": (14, 10),
    "stokes_bc": (14, 10),
    "burgers": (12, 9),
    "navier_stokes": (6, 6, 5),
}
PROJECTORS = {
    "nearest": sapc.NearestPoint(),
    "feasible": sapc.FeasiblePoint(),
    "gauss_newton": sapc.GaussNewton(n_iter=30, mu=0.0, tol=1e-12),
}


# The paper's iteration need not arrive on Stokes, and says so: tests/constraints/test_projection.py.
CASES = [
    (task, name) for task in GRIDS for name in PROJECTORS if name != "gauss_newton" or "stokes" not in task
]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request):
    """Manifolds of three smooth fields with one projector, and fields near them."""
    task, name = request.param
    grid = sapc.get_task(task, grid=GRIDS[task]).grid
    x = sum(
        torch.meshgrid(*(torch.linspace(0, 1, n, dtype=torch.float64) for n in grid.shape), indexing="ij")
    )
    smooth = torch.stack([torch.cos(3 * x + phase) for phase in (0.0, 2.0, 4.0)])
    noise = torch.randn(smooth.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    H = sapc.get_task(task, grid=grid).manifold(smooth, solver=PROJECTORS[name])
    return name, H, smooth + 0.02 * noise


def independent_residual(H, u):
    """The largest row of the law by the dense manifold's own code, and the largest deviation of a pinned
    value.
    """
    return float(H.dense().balance(u).abs().max()), float(H.local(u).abs().max())


def test_the_result_is_on_the_manifold(case):
    _, H, u = case
    p, report = H.solve(u)
    law, pin = independent_residual(H, p)
    assert bool(report.converged.all())
    assert pin == 0
    assert law < 1e-11


def test_a_point_on_the_manifold_stays(case):
    _, H, u = case
    p = H.project(u)
    assert (H.project(p) - p).abs().max() < 1e-12


def test_every_sample_is_projected_alone(case):
    _, H, u = case
    together = H.project(u)
    alone = torch.cat([H[i].project(u[i : i + 1]) for i in range(len(u))])
    assert (together - alone).abs().max() < 1e-12
    order = torch.tensor([2, 0, 1])
    assert (H[order].project(u[order]) - together[order]).abs().max() < 1e-12


def test_the_dense_oracle_agrees(case):
    _, H, u = case
    assert (H.project(u) - H.dense().project(u)).abs().max() < 1e-9


def test_float32_comes_back_as_float32(case):
    _, H, u = case
    single = H.project(u.float())
    assert single.dtype == torch.float32
    assert (single - H.project(u.float().double())).abs().max() <= 2.0**-23 * u.abs().max()


def test_the_nearest_point_has_no_way_along_the_manifold(case):
    name, H, u = case
    if name == "feasible" and not H.affine:
        pytest.skip("a feasible point need not be the nearest one")
    p = H.project(u)
    for i in range(len(u)):
        jacobian = torch.autograd.functional.jacobian(lambda w, i=i: H[i].residual(w[None])[0], p[i])
        jacobian = jacobian.flatten(1)
        tangent = torch.linalg.svd(jacobian)[2][torch.linalg.matrix_rank(jacobian) :]
        correction = (u[i] - p[i]).flatten()
        assert (tangent @ correction).norm() < 1e-6 * correction.norm()
