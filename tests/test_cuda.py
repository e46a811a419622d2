"""What only a GPU can show: the same projection as on the CPU, and no waiting for the device inside it."""

import pytest
import torch

import sapc

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


@pytest.mark.parametrize("solver", [sapc.Globalised(), sapc.Plain()])
@pytest.mark.parametrize("name", sapc.task_names())
def test_projection_never_waits_for_the_device(name, solver):
    task, f, u = case(name)
    H = task.manifold(f.cuda(), solver=solver)
    u = u.cuda()
    H.solve(u)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        _, report = H.solve(u)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert report.residual.isfinite().all()


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
