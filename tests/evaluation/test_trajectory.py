"""What is watched along a sampling run: the same samples, and quantities known in closed form."""

from __future__ import annotations

import json
import math
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import sapc
from sapc import flow
from sapc.errors import SapcError
from sapc.evaluation.evaluate import evaluate, write_scores
from sapc.evaluation.trajectory import TrajectoryRecorder
from sapc.methods import METHODS, get_method
from variants import variant

pytest.importorskip("rich")
from rich.cells import cell_len


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def task_and_manifold(name="heat", n=1):
    task = sapc.get_task(name, grid=(8, 6))
    return task, task.manifold(task.dataset("test0", size=1).fields.double().repeat(n, 1, 1))


def wild(vt, t):
    """A velocity that leads nowhere, in float32 as a network's."""
    return (3 * torch.sin(5 * vt.flip(1)) + t[0] * vt.square().clamp(max=2)).float()


def mild(vt, t):
    return torch.tanh(vt.flip(1)) + 0.3 * vt


def run(sample, v, v1, H, steps, **options):
    recorder = TrajectoryRecorder()
    fields = sample(recorder.wrap(v), v1, H, steps)
    recorder.finish(fields, H, **options)
    return fields, recorder.result()


def close(a, b, tolerance=1e-12):
    a, b = torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64)
    assert a.shape == b.shape
    assert (a - b).abs().max() <= tolerance * (1 + b.abs().max()), (a, b)


# -- nothing is changed --


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "task"),
    [
        variant(name, task, long=task == "reaction_diffusion" and name.startswith("eci_"))
        for name in METHODS
        for task in ("heat", "reaction_diffusion")
    ],
)
def test_samples_are_the_same_to_the_bit(name, task):
    method, (task, H) = get_method(name), task_and_manifold(task)

    sample = method.bind_source(lambda: randn(*v1.shape, seed=9))
    v1 = randn(3, *task.grid.shape)
    with torch.no_grad():
        plain = sample(mild, v1, H, 6)
        fields, seen = run(sample, mild, v1, H, 6)
    assert torch.equal(fields, plain)
    close(seen.times, [i / 6 for i in range(6, -1, -1)])
    assert (len(seen.endpoint_residual), len(seen.energy), seen.samples) == (6, 6, 3)
    assert seen.state_residual[-1] == pytest.approx(float(H.residual(plain).norm(dim=1).median()), abs=1e-14)


def test_states_and_velocities_keep_their_precision():
    """States in float32: the estimate is the sampler's own."""
    task, H = task_and_manifold()
    v1 = randn(2, *task.grid.shape).float()
    fields, seen = run(get_method("ffm").sample, wild, v1, H, 1)
    assert fields.dtype == torch.float32
    assert seen.endpoint_residual == seen.state_residual[-1:]


def test_gradients_pass_through():
    recorder, vt = TrajectoryRecorder(), randn(2, 3, 3).requires_grad_()
    (slope,) = torch.autograd.grad(recorder.wrap(mild)(vt, torch.ones(2)).sum(), vt)
    (plain,) = torch.autograd.grad(mild(vt, torch.ones(2)).sum(), vt)
    assert torch.equal(slope, plain)


# -- known paths --


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_straight_flow(steps):
    task, H = task_and_manifold()
    u, v1 = randn(5, *task.grid.shape, seed=1), randn(5, *task.grid.shape)
    fields, seen = run(get_method("ffm").sample, lambda vt, t: (vt - u) / t[0], v1, H, steps)
    close(fields, u)
    of = lambda x: float(H.residual(x).norm(dim=1).median())
    close(seen.endpoint_residual, [of(u)] * steps)
    close(seen.state_residual[0], of(v1))
    assert max(seen.deviation) < 1e-14
    assert max(seen.energy) < 1e-27
    assert seen.excess_energy < 1e-26
    close(seen.straight_energy, float((v1 - u).flatten(1).square().sum(1).median()))


@pytest.mark.parametrize("times", [[1.0], [1.0, 0.5], [1.0, 0.9, 0.5, 0.45, 0.1]])
def test_a_curved_path_by_the_direct_formulas(times):
    """Any states at any times, steps of unequal length."""
    task, H = task_and_manifold(n=4)
    path = [randn(4, *task.grid.shape, seed=i) for i in range(len(times) + 1)]
    ends = [*times, 0.0]

    def sample(v, v1, H, steps):
        for vt, t in zip(path, times, strict=False):
            flow.evaluate_velocity(v, vt, t)
        return path[-1]

    _, seen = run(sample, mild, path[0], H, len(times))
    norm = lambda x: x.flatten(1).norm(dim=1)
    middle = lambda x: float(x.quantile(0.5))
    v1, v0 = path[0], path[-1]
    moves = [
        norm(a - b).square() / (t - s) for (a, b), (t, s) in zip(pairwise(path), pairwise(ends), strict=True)
    ]
    off = [norm(vt - ((1 - t) * v0 + t * v1)) / norm(v0 - v1) for vt, t in zip(path, ends, strict=True)]
    assert seen.times == ends
    close(seen.deviation, [middle(x) for x in off])
    close(seen.state_residual, [middle(norm(H.residual(vt))) for vt in path])
    estimates = [vt - t * mild(vt, None) for vt, t in zip(path, times, strict=False)]
    close(seen.endpoint_residual, [middle(norm(H.residual(u))) for u in estimates])
    close(seen.excess_energy, middle(sum(moves) - norm(v0 - v1).square()), 1e-11)
    close(seen.straight_energy, middle(norm(v0 - v1).square()))


def test_two_steps_by_hand():
    """Grid 2 x 2, the point (0, 0) pinned to 1; Euler from 4 with velocities 2 and 6 everywhere: 4, 3, 0."""
    mask = torch.tensor([[True, False], [False, False]])
    H = sapc.Pin(mask).on(torch.ones(1, 2, 2, dtype=torch.float64))
    v = lambda vt, t: torch.full_like(vt, 2.0 if t[0] == 1 else 6.0)
    _, seen = run(get_method("ffm").sample, v, torch.full((1, 2, 2), 4.0, dtype=torch.float64), H, 2)
    assert seen.times == [1.0, 0.5, 0.0]
    # Estimates 4 - 2 = 2 and 3 - 3 = 0.
    assert seen.endpoint_residual == [1.0, 1.0]
    assert seen.state_residual == [3.0, 2.0, 1.0]
    # 3 where the line has 2, at 4 points: 2 of 8.
    assert seen.deviation == [0.0, 0.25, 0.0]
    # The moves are 1 and 3 off 2 each: 4 / 0.5.
    assert seen.energy == [8.0, 8.0]
    assert seen.straight_energy == 64.0
    # 4 / 0.5 + 36 / 0.5 - 64.
    assert seen.excess_energy == 16.0
    assert seen.samples == 1


def test_sapc_stays_on_an_affine_manifold():
    task, H = task_and_manifold("heat")
    _, seen = run(get_method("sapc").sample, wild, randn(5, *task.grid.shape), H, 10)
    assert max(seen.state_residual) < 1e-13
    assert min(seen.endpoint_residual) > 1e-2
    assert seen.excess_energy > 1e-2


def test_a_path_that_ends_where_it_began():
    H = sapc.Pin.frame(0).on(torch.ones(1, 2, 2, dtype=torch.float64))
    start = torch.ones(3, 2, 2, dtype=torch.float64)
    ffm = get_method("ffm").sample
    _, still = run(ffm, lambda vt, t: torch.zeros_like(vt), start, H, 2)
    assert still.deviation == [0.0, 0.0, 0.0]
    _, loop = run(ffm, lambda vt, t: torch.full_like(vt, 1.0 if t[0] == 1 else -1.0), start, H, 2)
    assert loop.deviation == [0.0, math.inf, 0.0]
    assert loop.to_dict()["deviation"] == [0.0, None, 0.0]
    # Four points, moved by 1/2 and back.
    assert loop.excess_energy == 4.0
    assert json.loads(json.dumps(loop.to_dict(), allow_nan=False))["samples"] == 3


# -- the rule --


@pytest.fixture
def scalar():
    """Fields whose residual is their value at one point."""
    mask = torch.tensor([[True, False], [False, False]])
    H = sapc.Pin(mask).on(torch.zeros(1, 2, 2, dtype=torch.float64))
    return H, lambda value: torch.full((1, 2, 2), float(value), dtype=torch.float64)


def test_repeated_calls_at_one_time_leave_the_last(scalar):
    H, field = scalar

    def sample(v, v1, H, steps):
        for i, (t, _) in enumerate(flow.time_pairs(steps)):
            for again in range(3):
                flow.evaluate_velocity(v, field(10 * i + again), t)
        return field(0)

    _, seen = run(sample, lambda vt, t: vt, field(0), H, 3)
    assert seen.times == [1.0, 2 / 3, 1 / 3, 0.0]
    assert seen.state_residual == [2.0, 12.0, 22.0, 0.0]


@pytest.mark.parametrize("grad", [True, False])
def test_repeated_integrations_leave_the_last(scalar, grad):
    """Forward, backward in reverse, three times, and once more forward."""
    H, field = scalar

    def sample(v, v1, H, steps):
        for again in range(3):
            for i, (t, _) in enumerate(flow.time_pairs(steps)):
                flow.evaluate_velocity(v, field(100 * again + i), t)
            with torch.set_grad_enabled(grad):
                for i, (t, _) in reversed(list(enumerate(flow.time_pairs(steps)))):
                    here = field(1000 + i).requires_grad_(grad)
                    flow.evaluate_velocity(v, here, t)
        for i, (t, _) in enumerate(flow.time_pairs(steps)):
            flow.evaluate_velocity(v, field(7 + i), t)
        return field(0)

    _, seen = run(sample, lambda vt, t: 2 * vt, field(0), H, 4)
    assert seen.times == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert seen.state_residual == [7.0, 8.0, 9.0, 10.0, 0.0]


def test_only_two_fields_a_step_are_held(scalar):
    H, field = scalar
    recorder = TrajectoryRecorder()
    v = recorder.wrap(lambda vt, t: vt)
    for _ in range(5):
        for t, _s in flow.time_pairs(4):
            flow.evaluate_velocity(v, field(1), t)
            flow.evaluate_velocity(v, field(2), t)
    assert len(recorder._records) == 4
    recorder.finish(field(0), H)
    assert recorder._records == []


# -- batches --


def test_several_batches_are_one():
    task, H = task_and_manifold(n=7)
    sample, v1 = get_method("sapc").sample, randn(7, *task.grid.shape)
    _, whole = run(sample, mild, v1, H, 4)
    recorder = TrajectoryRecorder()
    for rows in (torch.arange(3), torch.arange(3, 6), torch.tensor([6, 6, 6])):
        part = sample(recorder.wrap(mild), v1[rows], H[rows], 4)
        recorder.finish(part, H[rows], count=1 if rows[0] == 6 else None)
    for name, value in whole.to_dict().items():
        close(recorder.result().to_dict()[name], value)
    assert recorder.result().samples == 7
    assert recorder.seconds > 0


def test_the_median_is_between_the_two_in_the_middle(scalar):
    H, _ = scalar
    v1 = torch.tensor([1.0, 2.0, 5.0, 90.0], dtype=torch.float64)[:, None, None].expand(4, 2, 2)
    _, seen = run(get_method("ffm").sample, lambda vt, t: torch.zeros_like(vt), v1, H, 1)
    assert seen.state_residual == [3.5, 3.5]


def test_a_run_that_failed_leaves_nothing(scalar):
    H, field = scalar
    recorder = TrajectoryRecorder()
    flow.evaluate_velocity(recorder.wrap(mild), field(1), 1.0)
    flow.evaluate_velocity(recorder.wrap(mild), field(2), 1.0)
    recorder.finish(field(3), H)
    assert recorder.result().state_residual == [2.0, 3.0]


def test_bad_calls_are_one_sentence(scalar):
    H, field = scalar
    recorder = TrajectoryRecorder()
    with pytest.raises(SapcError, match="nothing was watched"):
        recorder.result()
    with pytest.raises(SapcError, match=r"with recorder.wrap\(v\)"):
        recorder.finish(field(0), H)
    with pytest.raises(SapcError, match="got 2 times"):
        recorder.wrap(mild)(field(0).expand(2, 2, 2), torch.tensor([1.0, 0.5]))
    flow.evaluate_velocity(recorder.wrap(mild), field(0), 0.5)
    with pytest.raises(SapcError, match=r"from t = 0\.5 to 0\.5"):
        recorder.finish(field(0), H)
    flow.evaluate_velocity(recorder.wrap(mild), field(0), 1.0)
    with pytest.raises(SapcError, match=r"the state at t = 1 has \(1, 2, 2\)"):
        recorder.finish(field(0).expand(2, 2, 2), H)
    get_method("ffm").sample(recorder.wrap(mild), field(0), H, 2)
    recorder.finish(field(0), H)
    get_method("ffm").sample(recorder.wrap(mild), field(0), H, 3)
    with pytest.raises(SapcError, match="a batch of 3 steps cannot be added to batches of 2"):
        recorder.finish(field(0), H)


def test_old_names_still_work_and_name_the_new_ones(scalar):
    H, field = scalar
    with pytest.warns(DeprecationWarning, match=r"is now sapc\.evaluation\.trajectory\.TrajectoryRecorder"):
        from sapc.evaluation.trajectory import Watch
    recorder = Watch()
    with pytest.warns(DeprecationWarning, match=r"TrajectoryRecorder\.wrap"):
        v = recorder.around(mild)
    flow.evaluate_velocity(v, field(1), 1.0)
    recorder.finish(field(3), H)
    assert recorder.result().state_residual == [1.0, 3.0]


# -- evaluation --

SMALL = {"samples": 5, "reference": 4, "steps": 4, "sampler": "euler", "floor_repeats": 0, "batch": 2}


@pytest.fixture(scope="module", params=["sapc", "ffm"])
def trained(request, tmp_path_factory):
    """A run folder that nobody writes to."""
    settings = sapc.training_config("heat", request.param, "tiny")
    return sapc.training.loop.train(
        settings, tmp_path_factory.mktemp("runs") / request.param, device="cpu"
    ).path


def test_evaluation_with_a_trajectory_scores_the_same(trained):
    plain = evaluate(trained, ["test0", "test2"], device="cpu", **SMALL)
    result = evaluate(trained, ["test0", "test2"], device="cpu", trajectory=True, **SMALL)
    assert result["mean"]["metrics"] == plain["mean"]["metrics"]
    assert "trajectory" not in plain["sets"]["test0"]
    for name, scores in result["sets"].items():
        assert scores["metrics"] == plain["sets"][name]["metrics"]
        assert scores["seconds_per_sample"] > 0
        seen = scores["trajectory"]
        assert seen["times"] == [1.0, 0.75, 0.5, 0.25, 0.0]
        assert seen["samples"] == 5
        if result["run"]["method"] == "sapc":
            assert max(seen["state_residual"]) < 1e-13
        else:
            assert min(seen["state_residual"]) > 1e-2


def test_evaluation_measures_on_the_manifold_of_the_set(trained):
    """Batches of two, the last one filled up: as all five samples at once."""
    model = sapc.load(trained, device="cpu")
    condition = model.task.dataset("test1", size=1).fields
    recorder = TrajectoryRecorder()
    fields = model.sample(5, condition, steps=4, sampler="euler", batch=2, callback=recorder)
    assert torch.equal(fields, model.sample(5, condition, steps=4, sampler="euler", batch=2))
    seen = evaluate(model, ["test1"], trajectory=True, **SMALL)["sets"]["test1"]["trajectory"]
    assert seen == recorder.result().to_dict()
    of = model.manifold(condition).residual(fields).norm(dim=1).median()
    close(seen["state_residual"][-1], float(of))


def test_scores_with_a_trajectory_are_fuller(trained, tmp_path):
    with_it, without = (
        evaluate(trained, ["test0"], device="cpu", trajectory=b, **SMALL) for b in (True, False)
    )
    kept = tmp_path / "scores.json"
    assert write_scores(tmp_path, without) == kept
    assert write_scores(tmp_path, with_it) == kept
    assert write_scores(tmp_path, without).name == "scores-part.json"
    fewer = evaluate(trained, ["test0"], device="cpu", trajectory=True, **{**SMALL, "samples": 4})
    assert write_scores(tmp_path, fewer).name == "scores-part.json"


def test_the_command_prints_a_table_per_set(trained, call, folder):
    shutil.copytree(trained, "run")
    small = ("--samples", "3", "--reference", "4", "--steps", "10", "--floor-repeats", "0", "--device", "cpu")
    arguments = ("evaluate", "run", "--set", "test0", "--set", "test1", "--sampler", "euler", *small)
    code, out, err = call(*arguments, "--trajectory")
    assert (code, err) == (0, "")
    assert max(map(cell_len, [line for line in out.splitlines() if " evaluations and " not in line])) <= 80
    lines = [line.split() for line in out.splitlines()]
    for name in ("test0", "test1"):
        head = lines.index([*f"{name}, median at t |R(v0^)| |R(v_t)| deviation".split()])
        assert [line[0] for line in lines[head + 2 : head + 8]] == ["1", "0.8", "0.5", "0.3", "0.1", "0"]
        assert len(lines[head + 2]) == 4
        assert len(lines[head + 7]) == 3
    assert out.count("excess kinetic energy ") == 2
    scores = json.loads(Path("run/scores.json").read_text())
    assert len(scores["sets"]["test1"]["trajectory"]["energy"]) == 10
    assert "kinetic" not in call(*arguments)[1]
    printed = json.loads(call(*arguments, "--trajectory", "--json")[1])
    assert printed["sets"]["test0"]["trajectory"] == scores["sets"]["test0"]["trajectory"]
