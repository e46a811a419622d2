"""What only a GPU can show: the same projection as on the CPU, compiled or not.

The host waits only to stay one pass ahead.
"""

import warnings

import pytest
import torch

import sapc
from sapc.constraints.projection.feasible import EagerPasses, restore
from sapc.constraints.projection.gpu.compiled import CompiledPasses, passes_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def case(name):
    """Conditions and noisy fields on a small grid, on the CPU."""
    task = sapc.get_task(name, grid=(16, 16, 6) if name == "navier_stokes" else (20, 16))
    g = torch.Generator().manual_seed(0)
    f = task.dataset("test1", size=4, seed=0, cache=False).fields.double()
    return task, f, f + 0.05 * torch.randn(f.shape, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("name", sapc.task_names())
def test_projection_agrees_with_the_cpu(name):
    task, f, u = case(name)
    want, report = task.manifold(f).solve(u)
    got, there = task.manifold(f.cuda()).solve(u.cuda())
    assert torch.equal(there.converged.cpu(), report.converged)
    assert (got.cpu() - want).abs().max() < 1e-9
    assert (task.manifold(f).to("cuda").project(u.cuda()).cpu() - want).abs().max() < 1e-9


SOLVERS = [
    sapc.NearestPoint(execution=sapc.Execution(compiled=False)),
    sapc.FeasiblePoint(execution=sapc.Execution(compiled=False)),
    sapc.FeasiblePoint(execution=sapc.Execution(compiled=True)),
    sapc.GaussNewton(),
]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", sapc.task_names())
def test_nothing_but_the_limit_on_running_ahead_waits_for_the_device(name, solver, forbid_waiting):
    """That limit waits for an event, which the debug mode does not count; all it counts is an error here."""
    task, f, u = case(name)
    f, u = f.cuda(), u.cuda()
    H = task.manifold(f, solver=solver)
    H.solve(u)
    torch.cuda.synchronize()
    with forbid_waiting():
        other = H.rebind(f)
        _, report = other.solve(u)
        other.project(u, check=False)
    assert report.residual.isfinite().all()


@pytest.mark.parametrize("name", ["reaction_diffusion", "stokes_ic", "stokes_bc"])
def test_compiled_equals_step_by_step(name):
    task, f, u = case(name)
    f, u = f.cuda(), u.cuda()
    eager, fast = (
        task.manifold(f, solver=sapc.FeasiblePoint(execution=sapc.Execution(compiled=how)))
        for how in (False, True)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", sapc.SapcWarning)
        want, (got, _) = eager.project(u), fast.solve(u)
        assert (got - want).abs().max() < 1e-12
        for n in (1, 2, 3):
            assert (fast[:n].project(u[:n]) - want[:n]).abs().max() < 1e-12
        # Enough for the loop to drop the samples that are done.
        many = torch.arange(300, device="cuda") % len(u)
        assert (fast[many].project(u[many], check=False) - want[many]).abs().max() < 1e-12
        assert (eager[many].project(u[many], check=False) - want[many]).abs().max() < 1e-12
        assert (
            fast.approximate(ahead=True).project(u, check=False)
            - fast.approximate(ahead=False).project(u, check=False)
        ).abs().max() == 0
    program = passes_of(fast._problem(), fast.solver)
    assert isinstance(program, CompiledPasses)
    assert not program.failures


def test_compiled_is_the_default_on_a_gpu():
    task, f, _ = case("stokes_ic")
    H = task.manifold(f.cuda(), solver=sapc.FeasiblePoint())
    assert isinstance(passes_of(H._problem(), H.solver), CompiledPasses)


def test_the_host_does_not_queue_passes_that_nobody_needs():
    """Behind a long kernel, as behind a network, passes queued are those used and one more.

    They are not all that are allowed.
    """
    task, f, u = case("reaction_diffusion")
    H = task.manifold(f.cuda(), solver=sapc.FeasiblePoint(execution=sapc.Execution(compiled=False)))
    passes, u = Counting(H._problem(), H.solver), torch.where(H.pinned, H.fields, u.cuda())
    torch.cuda._sleep(200_000_000)
    state = restore(passes, u, H.solver)
    assert passes.queued <= int(state.passes.max()) + 2


class Counting(EagerPasses):
    """Counts its passes."""

    queued = 0

    def advance(self, state, strict):
        self.queued += 1
        return super().advance(state, strict)


@pytest.mark.parametrize("name", sapc.task_names())
def test_gradient_agrees_with_the_cpu(name):
    task, f, u = case(name)
    w = torch.cos(torch.arange(u.numel(), dtype=torch.float64)).reshape(u.shape)
    gradients = []
    for device in ("cpu", "cuda"):
        x = u.to(device, copy=True).requires_grad_()
        (task.manifold(f.to(device)).project(x) * w.to(device)).sum().backward()
        gradients.append(x.grad.cpu())
    assert (gradients[0] - gradients[1]).abs().max() < 1e-7 * gradients[0].abs().max()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["reaction_diffusion", "stokes_ic", "stokes_bc"])
def test_the_gradient_of_a_feasible_point_is_the_cpus(name, compiled, forbid_waiting):
    task = sapc.get_task(name, grid=(14, 10))
    f = task.dataset("train", size=5).fields.double()
    g = torch.Generator().manual_seed(0)
    noise, w = (torch.randn(f.shape, generator=g, dtype=f.dtype) for _ in range(2))
    u = f + 0.3 * noise
    for cut in (lambda H: H, lambda H: H.approximate(ahead=False), lambda H: H.approximate(ahead=True)):
        want = pulled(cut(task.manifold(f, solver=sapc.FeasiblePoint())), u, w)
        H = cut(
            task.manifold(f.cuda(), solver=sapc.FeasiblePoint(execution=sapc.Execution(compiled=compiled)))
        )
        got = pulled(H, u.cuda(), w.cuda()).cpu()
        assert (got - want).abs().max() < 1e-7 * want.abs().max()
        there, back = u.cuda(), w.cuda()
        # Nothing but the limit on running ahead waits.
        with forbid_waiting():
            pulled(H, there, back)


def pulled(H, u, w):
    """The vector-Jacobian product of the projection."""
    u = u.detach().requires_grad_()
    return torch.autograd.grad((H.project(u, check=False) * w).sum(), u)[0]
