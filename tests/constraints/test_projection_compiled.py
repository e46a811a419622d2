"""Compiled restoration: the same points as step by step, any batch size from one program, and a way back when
compiling fails.
"""

import warnings
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch._inductor.config

import sapc
from sapc.constraints.projection.banded import BandedProblem
from sapc.constraints.projection.gpu import compiled
from variants import variant

F64 = torch.float64


@pytest.fixture(autouse=True)
def _plain_code():
    """Without vector instructions and precompiled headers the C++ compiler is done sooner."""
    options = {"cpp.simdlen": 1, "cpp_cache_precompile_headers": False}
    known_options = {name: value for name, value in options.items() if name in torch._inductor.config._config}
    with torch._inductor.config.patch(known_options):
        yield


@cache
def case(name, n=5):
    """A task (kept, and its programs with it), conditions, and fields off the manifold, on a grid that
    compiles in seconds.
    """
    task = sapc.get_task(name, grid=(10, 6))
    x, t = torch.meshgrid(*(torch.linspace(0, 1, k, dtype=F64) for k in task.grid.shape), indexing="ij")
    phase = torch.linspace(0, 1, n, dtype=F64)[:, None, None]
    g = torch.Generator().manual_seed(0)
    f = torch.cos(3 * x + 2 * t + 6 * phase)
    return task, f, f + 0.1 * torch.randn(f.shape, generator=g, dtype=F64)


def solvers():
    return (
        sapc.FeasiblePoint(execution=sapc.Execution(compiled=is_compiled)) for is_compiled in (False, True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reaction_diffusion", "stokes_ic", variant("stokes_bc", long=True)])
def test_compiled_equals_step_by_step(name):
    task, f, u = case(name)
    eager, fast = (task.manifold(f, solver=solver) for solver in solvers())
    want, expected_info = eager.solve(u)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got, report = fast.solve(u)
    assert (got - want).abs().max() < 1e-12
    assert torch.equal(report.iterations, expected_info.iterations)
    # Other batch sizes: no sample knows of its mates.
    for rows in (slice(0, 1), slice(1, 3), slice(0, 4)):
        assert (fast[rows].project(u[rows], check=False) - want[rows]).abs().max() < 1e-12
    program = compiled.passes_of(fast._problem(), fast.solver)
    assert isinstance(program, compiled.CompiledPasses)
    assert not program.failures
    assert set(program.programs) == {"begin", "advance"}


def test_compiled_equals_step_by_step_in_long_attempts():
    """Two passes are too few; those who go on are the only ones left in the batch."""
    task, f, u = case("stokes_ic")
    eager, fast = (task.manifold(f, solver=replace(solver, passes=2, patience=80)) for solver in solvers())
    (want, expected_info), (got, report) = eager.solve(u), fast.solve(u)
    assert (report.iterations > 2 * 2).any()
    assert torch.equal(report.iterations, expected_info.iterations)
    assert (got - want).abs().max() < 1e-12


def test_the_compiled_derivative_equals_step_by_step():
    task, f, u = case("reaction_diffusion")
    w = torch.cos(3 * u)

    def pulled(solver, rows):
        v = u[rows].clone().requires_grad_()
        return torch.autograd.grad((task.manifold(f[rows], solver=solver).project(v) * w[rows]).sum(), v)[0]

    eager, fast = solvers()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in (slice(0, 5), slice(0, 1), slice(1, 3)):
            assert (pulled(fast, rows) - pulled(eager, rows)).abs().max() < 1e-12
    program = compiled.passes_of(task.manifold(f)._problem(), fast)
    assert "pullback" in program.programs
    assert not program.failures


def test_a_converged_sample_stays_as_it_is_while_others_go_on():
    task, f, u = case("stokes_ic")
    _, solver = solvers()
    H = task.manifold(f, solver=solver)
    p = H.project(u, check=False)
    fields = torch.cat((p[:2], u[2:]))
    assert torch.equal(H.project(fields, check=False)[:2], p[:2])


def test_the_cpu_runs_step_by_step_unless_asked():
    task, f, _ = case("stokes_ic")
    problem = task.manifold(f)._problem()
    assert isinstance(problem, BandedProblem)
    assert isinstance(compiled.passes_of(problem, sapc.NearestPoint()), compiled.EagerPasses)
    assert isinstance(
        compiled.passes_of(problem, sapc.NearestPoint(execution=sapc.Execution(compiled=True))),
        compiled.CompiledPasses,
    )


def test_the_same_law_is_compiled_once():
    H_one, H_two, H_other = (
        sapc.get_task("stokes_ic", grid=grid).manifold(torch.ones(1, *grid))
        for grid in [(10, 6)] * 2 + [(9, 6)]
    )
    first, second, third = (
        compiled.passes_of(H._problem(), sapc.NearestPoint(execution=sapc.Execution(compiled=True)))
        for H in (H_one, H_two, H_other)
    )
    assert first is second
    assert first is not third


def test_what_cannot_be_compiled_runs_step_by_step_after_one_warning():
    """A law that looks at the values of the field has no trace."""

    def stored(u):
        return (u**2).sum(1) if float(u.sum()) == float(u.sum()) else u.sum(1)

    _, f, u = case("stokes_ic")
    law = sapc.Pin.frame(0) & sapc.Balance(stored)
    eager, fast = (law.on(f, solver=solver) for solver in solvers())
    with pytest.warns(sapc.SapcWarning, match="could not be compiled") as caught:
        got = fast.project(u, check=False)
    assert len(caught) == 1
    assert torch.equal(got, eager.project(u, check=False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast.project(u, check=False)


def test_a_law_tied_to_its_batch_size_runs_step_by_step():
    def stored(u):
        return (u**2).sum(1) + torch.zeros(len(u), u.shape[-1], dtype=u.dtype)

    _, f, u = case("stokes_ic")
    law = sapc.Pin.frame(0) & sapc.Balance(stored)
    eager, fast = (law.on(f, solver=solver) for solver in solvers())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sapc.SapcWarning)
        assert (fast.project(u, check=False) - eager.project(u, check=False)).abs().max() < 1e-12
