"""D-Flow: the gradient through all steps, without their activations."""

from __future__ import annotations

import json
import subprocess
import sys

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
    v = lambda vt, t: torch.tanh(vt) * (1 + flow.per_field(t, vt)) + 0.2 * vt.roll(1, 1)
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
    found = dflow.optimised(v, v1, H, 10)
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
    assert (dflow.optimised(v, v1, H, 5) - source.detach()).abs().max() < 1e-8


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
        found = dflow.optimised(steep, start, H, 6)
    assert torch.equal(found, start)


MEMORY = """
import json, resource, torch, sapc
from sapc.methods import dflow
task = sapc.get_task("heat", grid=(64, 64))
net = sapc.FNO(2, 8, 32, 128, 8).eval().requires_grad_(False)
u = task.dataset("train", size=8).fields.double()
H = task.manifold(u)
v = lambda vt, t: net(vt.float(), t)
peaks = []
for n, steps in ((4, 4), (4, 40), (8, 4)):
    dflow.slope(v, torch.randn(n, 64, 64, dtype=torch.float64), H[:n], steps)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
x = torch.randn(4, 64, 64)
sizes = []
with torch.autograd.graph.saved_tensors_hooks(lambda y: (sizes.append(y.nbytes), y)[1], lambda y: y):
    net(x.requires_grad_(), torch.rand(4))
print(json.dumps([peaks, sum(sizes)]))
"""


def test_memory_grows_with_the_batch_and_not_with_the_steps():
    """Ten times the steps add ten times their states, a field each; one step's activations are larger than all of them."""
    out = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True).stdout
    (few, many, wide), activations = json.loads(out)
    states = 36 * 4 * 64 * 64 * 8
    assert activations > 3 * states
    assert many - few < 3 * states + 2**23
    assert many - few < 36 * activations / 20  # unrolled it would be all of this
    assert wide - many > activations / 3  # the same batch again is room for one more step's


def test_a_laptop_draws_a_few(tmp_path):
    run = sapc.preset("tiny", "heat", "ffm")
    folder = sapc.train.train(run, tmp_path / "run", device="cpu")
    model = sapc.load(folder.path, device="cpu")
    condition = model.task.dataset("test1", size=1).fields
    H, plain = model.manifold(condition), model.sample(2, condition, steps=10)
    fields = model.sample(2, condition, steps=10, method="dflow")
    assert H.residual(fields).norm() < 0.7 * H.residual(plain).norm()
    assert not any(p.requires_grad or p.grad is not None for p in model.network.parameters())
    assert get_method("dflow").evaluations(10) == 210
