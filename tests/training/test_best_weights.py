"""Validation on fixed draws, and the weights of the best one as the result of a training."""

import shutil
import signal
from dataclasses import replace

import pytest
import torch

from sapc.errors import SapcError
from sapc.training.config import training_config
from sapc.training.distributed import process_group
from sapc.training.loop import train
from sapc.training.run_folder import RunFolder, load_tensors, save_tensors
from sapc.training.step import Training


def tiny(**changes):
    """A training on one solution, which it learns by heart, so that its best validation is not the last one."""
    settings = {"steps": 80, "validation_interval": 20, "validation_draws": 3, "train": 1}
    settings |= {"lr": 0.02, "min_lr": 0.02, "hidden": 8, "projection": 16}
    return training_config("heat", "sapc", "tiny", **settings | changes)


def read(folder):
    return load_tensors(RunFolder(folder).weights)


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def validations(folder):
    return {e["step"]: e["validation"] for e in RunFolder(folder).entries() if "validation" in e}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("best") / "run"
    train(tiny(), folder, keep_optimiser=True)
    return folder


@pytest.mark.parametrize("draws", [0, 1, 4])
def test_fixed_draws_give_equal_weights_equal_losses(draws):
    with process_group("cpu") as group:
        training = Training(tiny(validation_draws=draws), group)
        first = training.validate()
        training.step = 5
        assert (training.validate() == first) == (draws > 0)


def test_more_draws_average_over_more(monkeypatch):
    terms = []
    with process_group("cpu") as group:
        training = Training(tiny(validation_draws=4), group)
        loss = training.loss
        monkeypatch.setattr(training, "loss", lambda *args: terms.append(loss(*args)) or terms[-1])
        mean = training.validate()
    # Eight solutions in batches of four.
    assert len(terms) == 8
    assert mean == pytest.approx(float(torch.stack(terms).double().mean()), rel=1e-12)


def test_the_result_are_the_weights_of_the_lowest_validation(trained, tmp_path):
    losses, (weights, about) = validations(trained), read(trained)
    best = min(losses, key=losses.__getitem__)
    assert best < 80
    assert (about["best_step"], about["validation"], about["step"]) == (best, losses[best], 80)
    # With a rate that does not depend on their number, so many steps give these weights.
    train(tiny(steps=best), tmp_path / "shorter")
    assert same(weights, read(tmp_path / "shorter")[0])


def test_without_fixed_draws_the_last_weights_are_the_result(tmp_path):
    train(tiny(validation_draws=0), tmp_path / "run")
    assert "best_step" not in read(tmp_path / "run")[1]
    assert "validation_draws" not in RunFolder(tmp_path / "run").config.read_text()


def test_an_interrupted_training_remembers_its_best_weights(trained, tmp_path):
    def stop(step, steps, losses):
        if step == 67:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="step 67 of 80"):
        train(tiny(), tmp_path / "run", progress=stop)
    train(tiny(), tmp_path / "run", keep_optimiser=True)
    assert same(read(trained)[0], read(tmp_path / "run")[0])
    assert validations(trained) == validations(tmp_path / "run")


@pytest.mark.parametrize("keeps_optimiser", [True, False])
def test_a_run_that_goes_on_keeps_the_better_weights(trained, tmp_path, keeps_optimiser):
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    if not keeps_optimiser:
        (folder / "optimiser.safetensors").unlink()
        with pytest.warns(UserWarning, match="keeps no state of its optimiser"):
            train(tiny(steps=120), folder, extend=True)
    else:
        train(tiny(steps=120), folder, extend=True)
        train(tiny(steps=120), tmp_path / "whole")
        # Schedule plateau: the rate does not depend on the number of steps.
        assert same(read(folder)[0], read(tmp_path / "whole")[0])
    losses = validations(folder)
    assert list(losses) == [20, 40, 60, 80, 100, 120]
    assert read(folder)[1]["validation"] == min(losses.values())


def test_damaged_best_weights_are_refused(tmp_path):
    def stop(step, steps, losses):
        if step == 23:
            signal.raise_signal(signal.SIGINT)

    folder = RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), folder.path, progress=stop)
    tensors, about = load_tensors(folder.checkpoint)
    name = next(name for name in tensors if name.startswith("adam.best."))
    for damage in ({name: torch.zeros(1)}, {}):
        save_tensors(folder.checkpoint, {k: v for k, v in tensors.items() if k != name} | damage, about)
        with pytest.raises(SapcError, match="not a whole checkpoint"):
            train(tiny(), folder.path)
    for best in ("x", [1], [1, "a"]):
        save_tensors(folder.checkpoint, tensors, {**about, "best_validation": best})
        with pytest.raises(SapcError, match="not a whole checkpoint"):
            train(tiny(), folder.path)


def test_a_negative_number_of_draws_is_refused():
    with pytest.raises(SapcError, match="validation_draws"):
        replace(tiny(), validation_draws=-1)
