"""Restoration as one kernel on a GPU: the points of the passes on the published grids.

The host never waits.
"""

import importlib.util
import warnings

import pytest
import torch

import sapc
from sapc.constraints.projection.gpu.launch import kernel_of

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton"),
]

CURVED = ("reaction_diffusion", "stokes_ic", "stokes_bc")
BATCH = 256


@pytest.fixture(autouse=True)
def _no_way_back():
    """A kernel that fails would be replaced by the passes it is compared with."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", sapc.SapcWarning)
        yield


def case(name, size=0.05):
    """Conditions on the published grid and fields off the manifold.

    The fields are the truth and noise, or (size None) a draw of the source.
    """
    task = sapc.get_task(name)
    f = task.dataset("train", size=16, seed=0, cache=False).fields.double()
    f = f[torch.arange(BATCH) % 16]
    g = torch.Generator().manual_seed(0)
    if size is None:
        return task, f.cuda(), sapc.source.sample(task.grid, BATCH, generator=g).double().cuda()
    return task, f.cuda(), (f + size * torch.randn(f.shape, generator=g, dtype=f.dtype)).cuda()


def pair(H, **changes):
    """The same manifolds step by step and by the kernel."""
    ahead, compiled = changes.pop("ahead", False), changes.pop("compiled", False)
    ways = (sapc.Execution(ahead, compiled, fused) for fused in (False, True))
    kind = sapc.NearestPoint if "newton_steps" in changes else sapc.FeasiblePoint
    return (H.with_solver(kind(**changes, execution=how)) for how in ways)


AHEAD = {"passes": 6, "retry": False, "ahead": True}


@pytest.mark.parametrize("solver", [AHEAD, {}], ids=["ahead", "to the end"])
@pytest.mark.parametrize("size", [0.05, 1.0, None], ids=["near", "noise", "source"])
@pytest.mark.parametrize("name", CURVED)
def test_the_kernel_equals_step_by_step(name, size, solver):
    """Sums are added up in another order, which can decide a close test otherwise.

    That must be rare, and both must arrive.
    """
    task, f, u = case(name, size)
    eager, fused = pair(task.manifold(f), **solver)
    (want, there), (got, report) = eager.solve(u), fused.solve(u)
    alike = report.iterations == there.iterations
    assert alike.double().mean() > 0.98
    assert torch.equal(report.converged[alike], there.converged[alike])
    both = alike & there.converged
    assert (got - want)[both].abs().max() < 1e-10 * max(1.0, float(u.abs().max()))
    assert report.residual[report.converged].max() < 1e-9


def test_one_condition_for_all_and_other_sizes():
    task, f, u = case("stokes_ic")
    _, one = pair(task.manifold(f[:1]), **AHEAD)
    _, each = pair(task.manifold(f[:1].expand_as(f)), **AHEAD)
    p = one.project(u, check=False)
    assert torch.equal(p, each.project(u, check=False))
    # Equal to the bit: no sample knows of its mates.
    for n in (1, 3, 100):
        assert torch.equal(one.project(u[:n], check=False), p[:n])
    u[1, 50, 50] = torch.nan
    others = torch.arange(BATCH, device="cuda") != 1
    assert torch.equal(one.project(u, check=False)[others], p[others])


@pytest.mark.parametrize("grid", [(9, 7), (33, 20), (64, 130)])
@pytest.mark.parametrize("name", CURVED)
def test_other_grids(name, grid):
    task = sapc.get_task(name, grid=grid)
    f = task.dataset("train", size=4, seed=0, cache=False).fields.double().cuda()
    u = f + 0.05 * torch.randn(
        f.shape, generator=torch.Generator("cuda").manual_seed(0), dtype=f.dtype, device="cuda"
    )
    eager, fused = pair(task.manifold(f))
    (want, there), (got, report) = eager.solve(u), fused.solve(u)
    assert torch.equal(report.converged, there.converged)
    assert (got - want).abs().max() < 1e-9


@pytest.mark.parametrize("name", CURVED)
def test_it_is_the_default_and_never_waits(name, forbid_waiting):
    task, f, u = case(name)
    H = task.manifold(f, solver=sapc.FeasiblePoint())
    assert kernel_of(H._problem(), H.solver) is not None
    for way in (H.approximate(ahead=True), H):
        way.project(u, check=False)
        torch.cuda.synchronize()
        with forbid_waiting():
            way.rebind(f).project(u, check=False)


@pytest.mark.parametrize("name", CURVED)
def test_a_captured_graph_gives_the_same_bits(name):
    task, f, u = case(name)
    H = task.manifold(f, solver=sapc.FeasiblePoint()).approximate(ahead=True)
    want = H.project(u, check=False)
    graph, given = torch.cuda.CUDAGraph(), torch.zeros_like(u)
    with torch.cuda.graph(graph):
        got = H.project(given, check=False)
    for _ in range(2):
        given.copy_(u)
        graph.replay()
        assert torch.equal(got, want)
