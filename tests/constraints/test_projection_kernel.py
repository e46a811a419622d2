"""Restoration as one kernel, interpreted: the same points as step by step, sample by sample, and laws that
bring their own functions.
"""

import itertools
import os
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import sapc
from interpreting import with_large_frame
from sapc.constraints import LawKernel
from sapc.constraints.projection.feasible import EagerPasses, restore, sup
from sapc.constraints.projection.gpu import launch
from sapc.constraints.projection.tolerance import excess, row_tolerance

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter"
)

F64 = torch.float64
RD, IC, BC = CURVED = ("reaction_diffusion", "stokes_ic", "stokes_bc")


@pytest.fixture(autouse=True)
def _room(monkeypatch):
    monkeypatch.setattr(launch.Kernel, "_run", with_large_frame(launch.Kernel._run))


@pytest.fixture(autouse=True)
def _no_way_back():
    """A kernel that fails would be replaced by the passes it is compared with; numbers that are not finite
    are meant.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error", sapc.SapcWarning)
        yield


def noise(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def waves(shape, n):
    x, t = torch.meshgrid(*(torch.linspace(0, 1, k, dtype=F64) for k in shape), indexing="ij")
    phase = torch.linspace(0, 1, n, dtype=F64)[:, None, None]
    return torch.cos(3 * x + 2 * t + 6 * phase)


def pair(H, **changes):
    """The same manifolds step by step and by the kernel."""
    ahead, compiled = changes.pop("ahead", False), changes.pop("compiled", False)
    ways = (sapc.Execution(ahead, compiled, fused) for fused in (False, True))
    kind = sapc.NearestPoint if "newton_steps" in changes else sapc.FeasiblePoint
    return (H.with_solver(kind(**changes, execution=execution)) for execution in ways)


def assert_same(H, u, tolerance=1e-10, **changes):
    """Both ways give the same fields, passes and reports; what the kernel gives."""
    eager, fused = pair(H, **changes)
    (want, expected_info), (got, report) = eager.solve(u), fused.solve(u)
    assert torch.equal(report.iterations, expected_info.iterations)
    assert torch.equal(report.converged, expected_info.converged)
    assert torch.allclose(got, want, rtol=0, atol=tolerance, equal_nan=True)
    return got, report


# Interpreted, a pass of one sample takes a quarter of a second whatever the grid; so few of them, on grids
# with ends of all kinds.


@pytest.mark.parametrize(
    ("name", "grid", "near"),
    [(RD, (3, 3), True), (RD, (10, 17), False), (IC, (9, 7), True), (BC, (16, 8), False)],
)
def test_the_kernel_equals_step_by_step(name, grid, near):
    """From near a solution of order one or from white noise; the fewest points, and blocks that are full or
    not.
    """
    f = waves(grid, 1)
    u = f + 0.05 * noise(f.shape) if near else noise(f.shape, 1)
    assert_same(sapc.get_task(name, grid=grid).manifold(f), u, passes=2, retry=False, ahead=True)


def test_many_blocks():
    """Three blocks of four points, the last one not full; the law reads across their ends."""
    task, f = sapc.get_task(IC, grid=(11, 6)), waves((11, 6), 1)
    with launch.use_tuning(warps=1, entries=1):
        assert_same(task.manifold(f), noise(f.shape), passes=1, retry=False)


def test_a_block_is_as_large_as_its_threads_like():
    block = launch.KernelTuning(warps=4, entries=4).block
    assert [block(128, t) for t in (32, 64, 128, 256, 1024)] == [16, 8, 4, 2, 1]
    assert [block(n, 8) for n in (1, 9, 16, 100)] == [1, 16, 16, 64]


@pytest.mark.parametrize("name", [RD, IC])
def test_final_time_and_pins_as_they_come(name):
    """Another spacing of frames; sensors, or two pinned frames, between which rows depend on each other but
    for the jitter.
    """
    x = sapc.get_task(name, grid=(9, 6)).grid["x"]
    task = sapc.get_task(name, grid=sapc.Grid((x, sapc.Axis("t", 6, 0.0, 0.4))))
    f = waves((9, 6), 1)
    subset = torch.zeros(9, 6, dtype=torch.bool)
    subset[::3, 1::2] = True
    pin = sapc.Pin(subset) if name == IC else sapc.Pin.frame(0) & sapc.Pin.frame(3)
    H = (pin & task.constraint.parts[1]).on(f)
    got, _ = assert_same(H, f + 0.1 * noise(f.shape), passes=1, retry=False)
    assert torch.equal(got[:, H.pinned], f[:, H.pinned])


def test_samples_do_not_know_of_each_other():
    """Alone or in company, to the bit; and who is on the manifold stays there."""
    f = waves((9, 7), 2)
    H = sapc.get_task(IC, grid=(9, 7)).manifold(f)
    u = f + 0.2 * noise(f.shape)
    u[0] = next(pair(H)).project(f)[0]
    got, report = assert_same(H, u, passes=1, retry=False)
    assert report.iterations.tolist() == [0, 1]
    assert torch.equal(got[0], u[0])
    _, alone = pair(H[1:], passes=1, retry=False)
    assert torch.equal(alone.project(u[1:], check=False), got[1:])


@pytest.mark.parametrize("name", [RD, IC])
def test_a_pass_is_the_dense_newton_step(name):
    """`u - J^+ R(u)` with the whole Jacobian, by automatic differentiation."""
    task, f = sapc.get_task(name, grid=(5, 4)), waves((5, 4), 1)
    law, H = task.constraint.parts[1], task.manifold(f)
    u = torch.where(H.pinned, f, f + 1e-3 * noise(f.shape))
    J = torch.autograd.functional.jacobian(law.residual, u)[0, :, 0] * ~H.pinned
    step = torch.linalg.pinv(J.flatten(1)) @ law.residual(u)[0]
    _, fused = pair(H, passes=1, retry=False)
    assert (fused.project(u, check=False) - (u - step.reshape(u.shape))).abs().max() < 1e-12


def test_tolerance_and_residual_are_those_of_the_passes():
    task, f = sapc.get_task(IC, grid=(9, 7)), waves((9, 7), 1)
    H = next(pair(task.manifold(f)))
    # So large that rounding is more than the solver's tolerance.
    u = torch.where(H.pinned, f, 1e6 * noise(f.shape))
    start = EagerPasses(H._problem(), H.solver).begin(u)[0]
    kernel = launch.kernel_of(H._problem(), sapc.NearestPoint(execution=sapc.Execution(fused=True)))
    _, size, off, passes = kernel._launch(u, 0, strict=True)
    tol = row_tolerance(H._problem().linearise(u).terms(u), H.solver.tol)
    assert torch.allclose(off, excess(start.r, tol), rtol=1e-9)
    assert (tol > 1e-12).all()
    assert torch.allclose(size, sup(start.r), rtol=1e-10)
    assert passes.tolist() == [0]


# -- laws of one's own --

import triton
import triton.language as tl


@triton.jit
def cubic(u, i, t, data, X: tl.constexpr, T: tl.constexpr):
    """`e = sum w (u + u^3)`; no rate."""
    v, w = tl.load(u + i * T + t), tl.load(data + i)
    return w * (v + v * v * v), v, w * (1.0 + 3.0 * v * v), v


@triton.jit
def decay(u, i, t, data, X: tl.constexpr, T: tl.constexpr):
    """`e = sum u^2`, `s = sum u`."""
    v = tl.load(u + i * T + t)
    return v * v, v, 2.0 * v, 1.0 + 0.0 * v


@triton.jit
def mean_square(u, i, t, data, X: tl.constexpr, T: tl.constexpr):
    """The terms of `sum u^2 / sum 1`."""
    v = tl.load(u + i * T + t)
    return v * v, 1.0 + 0.0 * v, v


@triton.jit
def mean_square_slope(u, k, i, t, data, above, below, X: tl.constexpr, T: tl.constexpr):
    return 2.0 * tl.load(k + i * T + t) / below


def own_laws():
    w = torch.linspace(1, 2, 12, dtype=F64)
    cubic_law = sapc.Balance(
        lambda u: (w.reshape(4, 3, 1) * (u + u**3)).sum((1, 2)), kernel=LawKernel(lambda: (cubic,), w)
    )
    three = sapc.Balance(
        lambda u: (u**2).sum((1, 2)), lambda u: u.sum((1, 2)), lambda u: (u**2).mean((1, 2, 3)),
        kernel=LawKernel(lambda: (decay, mean_square, mean_square_slope), w),
        times=torch.tensor([0.0, 0.1, 0.4, 0.5, 1.0], dtype=F64),
    )  # fmt: skip
    return cubic_law, three


def shares(H, u):
    """The share of every Newton step that the passes take, zero where one is refused."""
    path = []
    restore(EagerPasses(H._problem(), H.solver), u, replace(H.solver, patience=0), path)
    return [float(step.alpha) for step in path]


@pytest.mark.parametrize(("law_number", "kappa", "seed"), [(0, 0.5, 0), (1, 0.1, 3)])
def test_a_law_of_ones_own_whose_steps_are_shortened_and_lengthened(law_number, kappa, seed):
    """Two axes of space; refused steps, shares that the bend suggests on the way down and up, and full steps
    at the end.
    """
    law, u = own_laws()[law_number], 2 * noise((1, 4, 3, 5), seed)
    H = (sapc.Pin.frame(0) & law).on(u)
    steps = shares(next(pair(H, kappa=kappa)), u)
    assert steps.count(0.0) >= 2
    assert any(0 < a < b < 1 for a, b in itertools.pairwise(steps))
    assert steps[-1] == 1
    got, report = assert_same(H, u, kappa=kappa)
    assert int(report.iterations) == len(steps)
    assert bool(report.converged)
    assert law.residual(got).abs().max() < 1e-11


def test_one_condition_for_all_and_the_callers_dtype():
    u = (1 + 0.3 * noise((2, 4, 3, 5))).float()
    H = (sapc.Pin.frame(0) & own_laws()[0]).on(u[:1])
    got, _ = assert_same(H, u, tolerance=1e-6, passes=1, retry=False)
    assert got.dtype == torch.float32


@pytest.mark.parametrize("law_number", [0, 1])
def test_what_is_not_finite_stays_as_it_is(law_number):
    u = 1 + 0.02 * noise((2, 4, 3, 5))
    H = (sapc.Pin.frame(0) & own_laws()[law_number]).on(u)
    u[0, 1, 1, 3], u[1, 1, 1, 3] = torch.nan, torch.inf
    got, report = assert_same(H, u)
    assert not bool(report.converged.any())
    assert torch.equal(got.nan_to_num(7.0), u.nan_to_num(7.0))


def test_the_nearest_point_starts_from_the_kernels():
    u = 1 + 0.02 * noise((1, 4, 3, 5))
    assert_same((sapc.Pin.frame(0) & own_laws()[0]).on(u), u, newton_steps=20, tolerance=1e-8)


def test_who_misses_tries_again_accepting_any_decrease():
    """A test that nothing passes: alpha goes down to its end, eight times shorter each time; who is there at
    once does not try again.
    """
    u = 1 + 0.02 * noise((2, 4, 3, 5), 3)
    H = (sapc.Pin.frame(0) & own_laws()[0]).on(u)
    u[0] = next(pair(H)).project(u)[0]
    _, report = assert_same(H, u, kappa=1e-9, passes=6)
    assert bool(report.converged.all())
    assert int(report.iterations[0]) == 0
    assert 4 < int(report.iterations[1]) < 4 + 6


def test_who_ran_out_of_passes_goes_on():
    """Two passes are too few for the second sample, with the test and without; the first one needs none and
    stays.
    """
    u = 1 + 0.02 * noise((2, 4, 3, 5), 3)
    H = (sapc.Pin.frame(0) & own_laws()[0]).on(u)
    u[0] = next(pair(H)).project(u)[0]
    for kappa, n_trials in (
        (0.5, 2 + 2),
        (1e-9, 2 + 2 + 4),
        # In the end the test passes, or gets stuck and any decrease will do.
    ):
        _, report = assert_same(H, u, kappa=kappa, passes=2, patience=40)
        assert bool(report.converged.all())
        assert int(report.iterations[0]) == 0
        assert n_trials + 2 < int(report.iterations[1]) < n_trials + 10


def test_some_samples_alone():
    """The others come back as they are."""
    u = 2 * noise((2, 4, 3, 5), 3)
    _, H = pair((sapc.Pin.frame(0) & own_laws()[0]).on(u))
    kernel = launch.kernel_of(H._problem(), H.solver)
    every, subset = (kernel._launch(u, 1, strict=True, subset=x) for x in (None, torch.tensor([False, True])))
    assert subset[3].tolist() == [0, 1]
    assert torch.equal(subset[0], torch.stack((u[0], every[0][1])))


# -- the functions of the laws, one block at a time --


@triton.jit
def tabulate(
    u,
    data,
    e,
    s,
    E,
    S,
    X: tl.constexpr,
    T: tl.constexpr,
    XB: tl.constexpr,
    TB: tl.constexpr,
    LOCAL: tl.constexpr,
):
    i, t = tl.arange(0, XB)[:, None], tl.arange(0, TB)[None, :]
    inside = (i < X) & (t < T)
    a, b, c, d = LOCAL(u, tl.minimum(i, X - 1), tl.minimum(t, T - 1), data, X, T)
    tl.store(e + i * T + t, a, mask=inside)
    tl.store(s + i * T + t, b, mask=inside)
    tl.store(E + i * T + t, c, mask=inside)
    tl.store(S + i * T + t, d, mask=inside)


@triton.jit
def tabulate_fit(
    u,
    data,
    a,
    b,
    k,
    g,
    X: tl.constexpr,
    T: tl.constexpr,
    XB: tl.constexpr,
    TB: tl.constexpr,
    FIT: tl.constexpr,
    SLOPE: tl.constexpr,
):
    i, t = tl.arange(0, XB)[:, None], tl.arange(0, TB)[None, :]
    inside = (i < X) & (t < T)
    i, t = tl.minimum(i, X - 1), tl.minimum(t, T - 1)
    above, below, keep = FIT(u, i, t, data, X, T)
    tl.store(k + i * T + t, keep, mask=inside)
    above, below = tl.sum(tl.where(inside, above, 0.0)), tl.sum(tl.where(inside, below, 0.0))
    tl.store(a, above)
    tl.store(b, below)
    tl.store(g + i * T + t, SLOPE(u, k, i, t, data, above, below, X, T), mask=inside)


@pytest.mark.parametrize("grid", [(9, 7), (3, 3), (4, 5), (12, 4)])
@pytest.mark.parametrize("name", CURVED[:2])
def test_the_functions_of_a_law_bring_its_gradients(name, grid):
    law = sapc.get_task(name, grid=grid).constraint.parts[1]
    u, data = noise((1, *grid)).requires_grad_(), law.kernel.data
    sizes = {"X": grid[0], "T": grid[1], "XB": 16, "TB": 8}
    functions = law.kernel.load()
    terms = [torch.empty(grid, dtype=F64) for _ in range(4)]
    tabulate[(1,)](u.detach(), data, *terms, **sizes, LOCAL=functions[0])
    close = {"rtol": 1e-11, "atol": 1e-12}
    for f, value, slope in ((law.stored, *terms[::2]), (law.rate, *terms[1::2])):
        want = f(u)
        assert torch.allclose(value.sum(0), want[0].detach(), **close)
        assert torch.allclose(slope, torch.autograd.grad(want.sum(), u)[0][0], **close)
    if law.coefficient is not None:
        a, b = torch.empty(1, dtype=F64), torch.empty(1, dtype=F64)
        keep, slope = torch.empty(grid, dtype=F64), torch.empty(grid, dtype=F64)
        tabulate_fit[(1,)](u.detach(), data, a, b, keep, slope, **sizes, FIT=functions[1], SLOPE=functions[2])
        want = law.coefficient(u)
        assert torch.allclose(a / b, want.detach(), **close)
        assert torch.allclose(slope, torch.autograd.grad(want.sum(), u)[0][0], **close)


# -- who gets it --


def test_who_gets_a_kernel():
    task, f = sapc.get_task("stokes_ic", grid=(9, 7)), waves((9, 7), 1)
    problem = task.manifold(f)._problem()
    # On a CPU only if asked.
    assert launch.kernel_of(problem, sapc.NearestPoint()) is None
    assert launch.kernel_of(problem, sapc.NearestPoint(execution=sapc.Execution(fused=False))) is None
    kernel = launch.kernel_of(problem, sapc.NearestPoint(execution=sapc.Execution(fused=True)))
    assert kernel is not None
    assert (
        launch.kernel_of(
            sapc.get_task("stokes_ic", grid=(9, 7)).manifold(f)._problem(),
            sapc.NearestPoint(execution=sapc.Execution(fused=True)),
        )
        is kernel
    )
    assert (
        launch.kernel_of(
            task.manifold(f).dense()._problem(), sapc.NearestPoint(execution=sapc.Execution(fused=True))
        )
        is None
    )
    H_own = (sapc.Pin.frame(0) & sapc.Balance(lambda u: (u**2).sum(1))).on(f)
    assert launch.kernel_of(H_own._problem(), sapc.NearestPoint(execution=sapc.Execution(fused=True))) is None


def test_a_derivative_is_taken_along_the_passes():
    task, f = sapc.get_task("stokes_ic", grid=(9, 7)), waves((9, 7), 2)
    gradients = []
    for H in pair(task.manifold(f)):
        u = (f + 0.05 * noise(f.shape)).requires_grad_()
        gradients.append(torch.autograd.grad((H.project(u) ** 2).sum(), u)[0])
    assert torch.equal(*gradients)


def test_what_fails_runs_in_passes_after_one_warning():
    def load():
        raise RuntimeError("no such function")

    f = waves((9, 7), 2)
    law = sapc.Balance(lambda u: (u**2).sum(1), kernel=LawKernel(load, torch.zeros(1, dtype=F64)))
    eager, fused = pair((sapc.Pin.frame(0) & law).on(f))
    u = f + 0.05 * noise(f.shape)
    with pytest.warns(sapc.SapcWarning, match="no such function") as caught:
        got = fused.project(u)
    assert len(caught) == 1
    assert torch.equal(got, eager.project(u))
    # No second warning.
    fused.project(u)
