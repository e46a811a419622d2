"""PBFM: the combination of two gradients, the unrolled residual, and both in the training loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import sapc
from sapc.methods import SecondObjective, get_method, pbfm
from sapc.training.config import training_config
from sapc.training.distributed import ProcessGroup, spawn
from sapc.training.loop import Interrupts, Trainer, train
from sapc.training.run_folder import RunFolder, load_tensors
from sapc.training.step import Training

pytest.importorskip("conflictfree")
pytest.importorskip("hypothesis")
from conflictfree.grad_operator import ConFIG_update, ConFIG_update_double
from hypothesis import example, given, settings
from hypothesis import strategies as st

CPU = ProcessGroup(torch.device("cpu"))


def tiny(task="heat", **changes):
    return training_config(task, "pbfm", "tiny", **changes)


# -- ConFIG --


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 40), st.floats(1e-6, 1e6), st.floats(-1, 1))
@example(861872, 2, 1.0, 1.0)
def test_config_is_that_of_its_authors_and_opposes_neither_gradient(seed, n, scale, lean):
    g = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(n, generator=g, dtype=torch.float64) for _ in range(2))
    b = scale * (b + 3 * lean * a)
    got = pbfm.config(a, b)
    # The authors' form divides by the sine between the gradients: nearly parallel ones cost it eps / sine^3, as measured.
    e1, e2 = a / a.norm(), b / b.norm()
    rounding = 4 * torch.finfo(a.dtype).eps / max(float((e2 - (e1 @ e2) * e1).norm()), 1e-6) ** 3
    bound = (1e-10 + rounding) * float(got.norm())
    assert torch.allclose(got, ConFIG_update_double(a, b), rtol=1e-8, atol=bound)
    assert float(got @ a) >= -1e-12 * float(got.norm() * a.norm())
    assert float(got @ b) >= -1e-12 * float(got.norm() * b.norm())
    cosines = [float(got @ x / (got.norm() * x.norm())) for x in (a, b)]
    assert cosines[0] == pytest.approx(cosines[1], abs=1e-9)


def test_config_is_that_for_many_gradients_too():
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(50, generator=g) for _ in range(2))
    assert torch.allclose(pbfm.config(a, 7 * b), ConFIG_update([a, 7 * b]), rtol=1e-4, atol=1e-5)


def test_config_where_the_angle_degenerates():
    a = torch.tensor([3.0, 4.0])
    assert torch.allclose(pbfm.config(a, 2 * a), 3 * a)
    assert torch.equal(pbfm.config(a, -a), torch.zeros(2))
    assert torch.equal(pbfm.config(a, 0 * a), a)
    assert torch.equal(pbfm.config(0 * a, a), a)
    assert torch.equal(pbfm.config(0 * a, 0 * a), 0 * a)


# -- the residual --


class Counting:
    def __init__(self):
        self.times = []

    def __call__(self, vt, t):
        self.times.append(t.tolist())
        return 0.3 * vt + t[:, None, None]


def batch(n=3):
    task = sapc.get_task("reaction_diffusion", grid=(8, 6))
    g = torch.Generator().manual_seed(0)
    v0 = task.dataset("train", size=n).fields.double()
    v1 = torch.randn(v0.shape, generator=g, dtype=torch.float64)
    return v0, v1, torch.tensor([0.9, 0.5, 0.2][:n], dtype=torch.float64), task.manifold(v0)


@pytest.mark.parametrize(("done", "n"), [(0.0, 1), (0.24, 1), (0.25, 2), (0.5, 3), (0.75, 4), (0.999, 4)])
def test_stages_of_unrolling(done, n):
    v0, v1, t, H = batch()
    v = Counting()
    pbfm.residual(v, v0, v1, t, H, done)
    assert len(v.times) == n
    for k, seen in enumerate(v.times):
        assert seen == pytest.approx((t * (1 - k / n)).tolist())


def test_one_step_is_the_endpoint_estimate_and_many_converge():
    v0, v1, t, _ = batch()
    v = lambda vt, t: vt  # v_t falls as e^-(time gone)
    vt = sapc.flow.interpolate(v0, v1, t)
    assert torch.equal(pbfm.unroll(v, vt, t, 1), sapc.flow.predict_data(vt, t, vt))
    exact = vt * torch.exp(-t)[:, None, None]
    errors = [float((pbfm.unroll(v, vt, t, n) - exact).abs().max()) for n in (8, 16, 32)]
    assert [errors[0] / errors[1], errors[1] / errors[2]] == pytest.approx([2, 2], abs=0.15)


def test_every_sample_has_its_own_weight_and_its_own_pin():
    v0, v1, t, H = batch()
    v = Counting()
    alone = [
        float(1 - t[i]) * float(H[i].residual(pbfm.unroll(v, sapc.flow.interpolate(v0[i : i + 1], v1[i : i + 1], t[i : i + 1]),
                                                            t[i : i + 1], 2)).square().mean())
        for i in range(3)
    ]  # fmt: skip
    assert float(pbfm.residual(v, v0, v1, t, H, 0.3)) == pytest.approx(sum(alone) / 3, rel=1e-12)
    exact = lambda vt, t: (vt - v0) / t[:, None, None]
    assert float(pbfm.residual(exact, v0, v1, t, H, 0.0)) == pytest.approx(
        float(((1 - t) * H.residual(v0).square().mean(1)).mean()), rel=1e-6
    )


# -- in the loop --


def test_a_step_goes_along_the_combined_gradient():
    training = Training(tiny(), CPU)
    v0, v1, t = training._draw(training.data[training._rows()], training._seed_generator("step", 0))
    H, parameters = training.H.rebind(v0), list(training.network.parameters())
    parts = (
        training.method.loss(training.network, v0, v1, t, H),
        pbfm.residual(training.network, v0, v1, t, H, 0.0),
    )
    flat = [torch.cat([g.flatten() for g in torch.autograd.grad(part, parameters)]) for part in parts]
    values = [float(part.detach()) for part in parts]
    stepped = training.advance()
    got = torch.cat([p.grad.flatten() for p in parameters])
    assert torch.allclose(got, ConFIG_update_double(*flat), rtol=1e-4, atol=1e-6)
    assert (float(stepped.loss), float(stepped.residual)) == pytest.approx(values, rel=1e-5)
    assert float(stepped.fallback) == 0
    assert float(stepped.norm) == pytest.approx(float(got.norm()), rel=1e-5)


def in_team(folder, run):
    train(run, folder, device="cpu")


def test_two_processes_equal_one_with_the_joint_batch(tmp_path):
    """The averages come before the combination, which is not linear."""
    run = tiny(batch=6, validation=9, steps=12, validation_interval=4)
    train(run, tmp_path / "one")
    spawn(2, in_team, tmp_path / "two", run)
    one, two = (load_tensors(RunFolder(tmp_path / name).weights)[0] for name in ("one", "two"))
    first = Training(run, CPU).network.state_dict()
    for name in one:
        scale = (one[name] - first[name]).abs().max()
        assert (one[name] - two[name]).abs().max() <= 2e-3 * scale + 1e-7, name
    logs = [
        [{k: v for k, v in e.items() if k != "seconds"} for e in RunFolder(tmp_path / n).entries()]
        for n in ("one", "two")
    ]
    for a, b in zip(*logs, strict=True):
        assert a == pytest.approx(b, rel=1e-4)


def test_continued_it_is_the_same_to_the_bit(tmp_path):
    """The stage of unrolling follows from the step, so a checkpoint in the middle changes nothing."""
    run = tiny(steps=12)
    whole, half = Training(run, CPU), Training(run, CPU)
    for _ in range(12):
        whole.advance()
    for _ in range(5):
        half.advance()
    half.save(tmp_path / "half.safetensors")
    again = Training(run, CPU)
    again.restore(tmp_path / "half.safetensors")
    for _ in range(7):
        again.advance()
    both = zip(whole.network.parameters(), again.network.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in both)


def every_third(v, v0, v1, t, H, done):
    """A residual whose gradient is not finite at every third of twelve steps."""
    value = pbfm.residual(v, v0, v1, t, H, 0.0)
    return value * torch.tensor(torch.nan if round(12 * done) % 3 == 2 else 1.0)


def test_a_residual_that_is_not_finite_leaves_the_other_gradient_and_is_counted(tmp_path):
    run = tiny(steps=12)
    folder = RunFolder(tmp_path / "run")
    training = Training(run, CPU)
    training.method = replace(training.method, second_objective=SecondObjective(every_third, pbfm.config))
    with folder.lock(), (interrupts := Interrupts()).listen():
        folder.begin(run)
        Trainer(training, folder, interrupts, None, 15.0, False).run()
    entries = [e for e in folder.entries() if "fallbacks" in e]
    assert sum(e["fallbacks"] for e in entries) == 4
    assert all(e["residual"] > 0 for e in entries)
    assert all(bool(p.isfinite().all()) for p in training.network.parameters())


def test_a_gradient_too_large_to_be_squared_is_left_out_too():
    """In float32 the norm of 1e25 is infinite although 1e25 is not."""
    training = Training(tiny(), CPU)
    huge = lambda *what: 1e25 * pbfm.residual(*what)
    training.method = replace(training.method, second_objective=SecondObjective(huge, pbfm.config))
    stepped = training.advance()
    assert float(stepped.fallback) == 1
    assert bool(stepped.norm.isfinite())
    assert all(bool(p.isfinite().all()) for p in training.network.parameters())


def test_a_resumed_log_counts_what_came_before(tmp_path):
    """Interrupted between two lines of the log: residuals and fallbacks since the last one are kept."""
    whole, parts = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    run = tiny(steps=12)
    stop_at = {7}

    def go(folder, stops):
        training = Training(run, CPU)
        training.method = replace(training.method, second_objective=SecondObjective(every_third, pbfm.config))
        with folder.lock(), (interrupts := Interrupts()).listen():
            folder.begin(run)
            ask = lambda step, *_: setattr(interrupts, "stop_requested", step in stops)
            Trainer(training, folder, interrupts, ask, 15.0, False).run()

    go(whole, set())
    with pytest.raises(KeyboardInterrupt):
        go(parts, stop_at)
    go(parts, set())
    last = lambda folder: [{k: v for k, v in e.items() if k != "seconds"} for e in folder.entries()]
    assert last(parts) == last(whole)
    assert sum(e.get("fallbacks", 0) for e in last(parts)) == 4


def test_a_step_without_a_finite_residual_is_ffms():
    """The same weights, data and noise: the gradient that is left is that of flow matching."""
    run = tiny()
    training, ffm = Training(run, CPU), Training(replace(run, method="ffm"), CPU)
    broken = lambda *_: torch.full((), torch.nan) * next(training.network.parameters()).sum()
    training.method = replace(training.method, second_objective=SecondObjective(broken, pbfm.config))
    stepped, wanted = training.advance(), ffm.advance()
    assert float(stepped.fallback) == 1
    assert float(stepped.norm) == pytest.approx(float(wanted.norm), rel=1e-5)
    for a, b in zip(training.network.parameters(), ffm.network.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-7)


def test_a_penalty_lowers_the_residual_it_penalises():
    """Heat at tiny size: after the same number of steps the endpoints of PBFM are nearer to their manifolds
    than FFM's."""
    sizes = {"steps": 150, "batch": 16, "train": 64, "hidden": 8, "modes": 6, "lr": 5e-3}
    found = {}
    for method in ("ffm", "pbfm"):
        training = Training(training_config("heat", method, "tiny", **sizes), CPU)
        for _ in range(150):
            training.advance()
        v0 = training.validation_data
        v1 = torch.randn(v0.shape, generator=torch.Generator().manual_seed(0))
        t = torch.linspace(0.1, 0.9, len(v0))
        with torch.no_grad():
            value = pbfm.residual(training.network, v0, v1, t, training.H.rebind(v0), 0.99)
        found[method] = float(value)
    assert found["pbfm"] < 0.9 * found["ffm"]
    assert get_method("pbfm").sample is get_method("ffm").sample
