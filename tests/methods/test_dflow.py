"""D-Flow: the gradient through all steps, without their activations."""

from __future__ import annotations

import pytest
import torch

import sapc
from sapc import flow
from sapc.methods import dflow, ffm, get_method


def case(name="heat", n=2):
    task = sapc.get_task(name, grid=(12, 12, 6) if name == "navier_stokes" else (12, 10))
    u = task.dataset("train", size=n).fields.double()
    g = torch.Generator().manual_seed(0)
    v1 = sapc.source.sample(task.grid, n, g, dtype=torch.float64)
    v = lambda vt, t: torch.tanh(vt) * (1 + flow.expand_like(t, vt)) + 0.2 * vt.roll(1, 1)
    return u, task.manifold(u), v1, v


def unrolled(v, v1, H, steps):
    """The same by plain differentiation, with every step in memory."""
    v1 = v1.clone().requires_grad_()
    value = H.residual(ffm.sample(v, v1, H, steps)).square().sum()
    return value.detach(), torch.autograd.grad(value, v1)[0]


@pytest.mark.parametrize("name", sapc.task_names())
def test_the_gradient_is_that_of_the_unrolled_steps(name):
    _, H, v1, v = case(name)
    value, slope = dflow.slope(v, v1, H, 7)
    wanted, want = unrolled(v, v1, H, 7)
    assert float(value) == pytest.approx(float(wanted), rel=1e-12)
    assert (slope - want).abs().max() < 1e-10 * want.abs().max()
    rows = torch.cat((H.local(v1), H.balance(v1)), 1)
    assert torch.equal(rows, H.residual(v1))  # |R|^2 is the sum over both parts


def test_the_objective_falls_and_the_samples_are_those_of_the_source_found():
    _, H, v1, v = case()
    found = dflow.optimise_source(v, v1, H, 10)
    size = lambda source: float(H.residual(ffm.sample(v, source, H, 10)).square().sum())
    assert size(found) < 0.3 * size(v1)
    assert torch.equal(dflow.sample(v, v1, H, 10), ffm.sample(v, found, H, 10))


def test_it_is_torchs_lbfgs_with_the_published_settings():
    _, H, v1, v = case()
    source = v1.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([source], lr=0.1, max_iter=20, history_size=100)

    def closure():
        optimiser.zero_grad()
        value = H.residual(ffm.sample(v, source, H, 5)).square().sum()
        value.backward()
        return value.detach()

    optimiser.step(closure)
    assert (dflow.optimise_source(v, v1, H, 5) - source.detach()).abs().max() < 1e-8


def test_a_source_that_is_fine_already_is_left_alone():
    u, H, _, _ = case()
    still = lambda vt, t: torch.zeros_like(vt)
    on = H.project(u)
    assert torch.allclose(dflow.sample(still, on, H, 3), on, atol=1e-10)


def test_an_optimisation_that_runs_away_keeps_the_last_finite_source():
    _, H, v1, _ = case()
    steep = lambda vt, t: -(vt.abs() ** 3) * 40
    start = 1e30 * v1
    with pytest.warns(sapc.SapcWarning, match="ran away"):
        found = dflow.optimise_source(steep, start, H, 6)
    assert torch.equal(found, start)


class Live:
    """The most bytes that tensors saved for a gradient hold at any time; what is freed no longer counts."""

    def __init__(self):
        self.now = self.most = 0

    def pack(self, tensor):
        live, size = self, tensor.nbytes

        class Saved:
            def __init__(self):
                self.tensor = tensor
                live.now += size
                live.most = max(live.most, live.now)

            def __del__(self):
                live.now -= size

        return Saved()

    def of(self, call):
        self.now = self.most = 0
        with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda saved: saved.tensor):
            call()
        return self.most


def test_memory_grows_with_the_batch_and_not_with_the_steps():
    """What is kept for the gradient is one step's, however many there are; unrolled it is all of them."""
    task = sapc.get_task("heat", grid=(16, 16))
    torch.manual_seed(0)
    net = sapc.FNO(2, 4, 8, 16, 8).eval().requires_grad_(False)
    H = task.manifold(task.dataset("train", size=4).fields.double())
    v = lambda vt, t: net(vt.float(), t)
    live = Live()
    v1 = torch.randn(4, 16, 16, dtype=torch.float64)
    few, many = (live.of(lambda n=n: dflow.slope(v, v1, H, n)) for n in (4, 40))
    wide = live.of(lambda: dflow.slope(v, v1[:2], H[:2], 4))
    assert few > 0
    assert many == few
    assert wide == pytest.approx(few / 2, rel=0.2)
    assert live.of(lambda: unrolled(v, v1, H, 40)) > 30 * few


def test_a_laptop_draws_a_few(tmp_path):
    run = sapc.training_config("heat", "ffm", "tiny")
    folder = sapc.training.loop.train(run, tmp_path / "run", device="cpu")
    model = sapc.load(folder.path, device="cpu")
    condition = model.task.dataset("test1", size=1).fields
    H, plain = model.manifold(condition), model.sample(2, condition, steps=10)
    fields = model.sample(2, condition, steps=10, method="dflow")
    assert H.residual(fields).norm() < 0.7 * H.residual(plain).norm()
    assert not any(p.requires_grad or p.grad is not None for p in model.network.parameters())
    assert get_method("dflow").evaluations(10) == 210
