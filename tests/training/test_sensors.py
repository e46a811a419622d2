"""Trainings in which random points are pinned besides: which, when, and what the loss makes of them."""

import json
from dataclasses import replace

import pytest
import torch

import sapc
from sapc import Affine, Balance, Constraint, Pin, SapcError
from sapc.constraints.manifold import MAX_FACTORS
from sapc.training.config import TrainingConfig, training_config
from sapc.training.distributed import ProcessGroup, spawn
from sapc.training.loop import train
from sapc.training.run_folder import RunFolder, load_tensors
from sapc.training.step import Training

CPU = torch.device("cpu")


def tiny(method="cond_sapc", task="heat", sensors=20, **changes):
    return training_config(task, method, "tiny", sensors=sensors, **changes)


def begin(run):
    few = run.make_task().dataset("train", size=4).fields
    return Training(run, ProcessGroup(CPU), data=(few, few))


def sensors_at(training, step):
    """The mask of a step, empty where there are none."""
    pin = replace_step(training, step)._sensors()
    return torch.zeros(training.H.shape, dtype=torch.bool) if pin is None else pin.where


def replace_step(training, step):
    training.step = step
    return training


def test_every_second_step_has_up_to_so_many_free_points():
    masks = torch.stack([sensors_at(begin(tiny()), step) for step in range(3)])
    training, other = begin(tiny()), begin(tiny(seed=1))
    found = torch.stack([sensors_at(training, step) for step in range(300)])
    assert torch.equal(found[:3], masks)
    assert not torch.equal(found, torch.stack([sensors_at(other, step) for step in range(300)]))
    numbers = found.flatten(1).sum(1)
    assert set(numbers.tolist()) == set(range(21))
    # Half of 300, within four deviations.
    assert abs(int((numbers == 0).sum()) - 150) <= 35
    # The initial frame is pinned already.
    assert not found[..., 0].any()
    assert found[..., 1:].any(0).float().mean() > 0.95


@pytest.mark.parametrize("method", ["cond_sapc", "cond_ffm"])
def test_the_loss_has_them_in_manifold_and_network_and_validation_has_none(method, monkeypatch):
    training, seen = begin(tiny(method)), []
    step = next(step for step in range(20) if sensors_at(training, step).any())
    mask = sensors_at(training, step)
    shown_to = training.model

    def model(vt, t, condition):
        seen.append((vt, condition))
        return shown_to(vt, t, condition)

    training.model = model
    losses = []
    original = training.method.loss

    def loss(v, v0, v1, t, H):
        losses.append(H.pinned)
        return original(v, v0, v1, t, H)

    training.method = replace(training.method, loss=loss)
    training.advance()
    training.validate()
    initial = training.H.pinned
    assert torch.equal(losses[0], initial | mask)
    assert all(torch.equal(pinned, initial) for pinned in losses[1:])
    values = seen[0][1] if method == "cond_ffm" else seen[0][1][:, 0]
    v0 = training.data[replace_step(training, step)._rows()]
    assert torch.equal(values, torch.where(initial | mask, v0, 0.0))
    if method == "cond_sapc":
        # The source is anchored on them as well.
        assert (seen[0][0] - v0)[:, initial | mask].abs().max() < 1e-6


def test_a_step_without_any_is_that_of_a_training_without():
    plain, with_sensors = begin(tiny(sensors=0)), begin(tiny())
    step = next(step for step in range(20) if not sensors_at(with_sensors, step).any())
    losses = [replace_step(training, step).advance().loss for training in (plain, with_sensors)]
    assert torch.equal(*losses)


LAWS = {
    "closed form": lambda grid: Balance(grid.integral(), grid=grid),
    "factorised": lambda grid: Affine(lambda u: u.sum(1)[:, 1:] - u.sum(1)[:, :1]),
    "banded Gauss-Newton": lambda grid: Balance(lambda u: grid.integral()(u**2), grid=grid),
    "dense Gauss-Newton": lambda grid: Constraint(lambda u: u.square().sum((1, 2))[:, None], value="field"),
}


@pytest.mark.parametrize("algorithm", LAWS)
def test_laws_of_every_kind_train_with_them(algorithm):
    grid = sapc.Grid((sapc.Axis("x", 8, kind="periodic"), sapc.Axis("t", 5)), ("u",))
    x, t = grid.mesh()
    phase = torch.rand(12, 1, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = torch.sin(2 * torch.pi * (x + phase)) + 0 * t
    data = sapc.Fields(values.float(), grid, origin={"path": "a.nc", "sha256": algorithm})
    task = sapc.Task.from_data(data, lambda grid: Pin.frame(0) & LAWS[algorithm](grid), "laws")
    run = training_config(task, preset="tiny", sensors=5, batch=4)
    training = Training(run, ProcessGroup(CPU))
    assert training.H.algorithm == algorithm
    for _ in range(2 * MAX_FACTORS + 4):
        assert training.advance().loss.isfinite()
    parts = training.H._bound.laws
    assert all(len(law.__dict__.get("_gram_solvers", {})) <= MAX_FACTORS for law in parts)
    step = next(step for step in range(20) if sensors_at(training, step).any())
    v0 = training.data[:4]
    H = training._manifold(v0, replace_step(training, step)._sensors())
    assert H.residual(H.project(torch.randn_like(v0, dtype=torch.float64))).abs().max() < 1e-9


def same_bits(a, b):
    a, b = (load_tensors(RunFolder(folder).weights)[0] for folder in (a, b))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.slow
@pytest.mark.parametrize("sensors", [0, 20])
def test_a_training_that_was_stopped_goes_on_to_the_same_bits(tmp_path, sensors):
    run = tiny(sensors=sensors, steps=30, validation_interval=10)
    train(run, tmp_path / "whole", device="cpu")

    def stop(step, steps, losses):
        if step == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "part", device="cpu", save_seconds=0, progress=stop)
    train(run, tmp_path / "part", device="cpu")
    assert same_bits(tmp_path / "whole", tmp_path / "part")


def in_team(folder, run):
    train(run, folder, device="cpu")


@pytest.mark.slow
def test_two_processes_equal_one_with_the_joint_batch(tmp_path):
    run = tiny(batch=6, validation=9, steps=12, validation_interval=4)
    train(run, tmp_path / "one", device="cpu")
    spawn(2, in_team, tmp_path / "two", run)
    one, two = (load_tensors(RunFolder(tmp_path / name).weights)[0] for name in ("one", "two"))
    first = Training(run, ProcessGroup(CPU)).network.state_dict()
    for name in one:
        scale = (one[name] - first[name]).abs().max()
        assert (one[name] - two[name]).abs().max() <= 2e-3 * scale + 1e-7, name


# -- settings --


def test_files_without_sensors_are_as_before(tmp_path):
    assert "sensors" not in tiny(sensors=0).to_dict()
    entries = json.loads(json.dumps(tiny().to_dict()))
    assert TrainingConfig.from_dict(entries) == tiny()
    del entries["sensors"]
    assert TrainingConfig.from_dict(entries) == tiny(sensors=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "sapc"}, "the network of sapc is not shown what is pinned"),
        ({"sensors": -1}, "sensors must be a whole number"),
        ({"sensors": 2.5}, "sensors must be a whole number"),
        ({"sensors": 240}, "sensors must be below the 240 values that are not pinned, got 240"),
    ],
)
def test_impossible_sensors_are_refused(tmp_path, changes, words):
    with pytest.raises(SapcError, match=words):
        train(tiny(**changes), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
