"""Golden files: numbers that no rebuilding may change, and files of version 0.1.0 that every later version reads."""

from __future__ import annotations

import json
import shutil
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

import sapc
from variants import variant

FOLDER = Path(__file__).parent / "golden"
OLD = FOLDER / "v0_1_0"
sys.path.insert(0, str(FOLDER))
import bits

GOLDEN = json.loads(bits.FILE.read_text())


def near(name: str, found: dict, golden: dict) -> None:
    """Another processor rounds otherwise: float32 networks agree to six digits, ten steps of training to four."""
    a, b = (torch.tensor(record["values"], dtype=torch.float64) for record in (found, golden))
    assert a.shape == b.shape, name
    size = 1 + b.abs().max()
    assert float((a - b).abs().max() / size) < 1e-3, name


def test_every_record_is_there():
    assert sorted(GOLDEN) == sorted(
        [*bits.SHIPPED]
        + [f"{t}/{m}/sample" for t in bits.TASKS for m in bits.METHODS]
        + [f"{t}/{m}/losses" for t in bits.TASKS for m in bits.METHODS if sapc.get_method(m).weights == m]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", bits.SHIPPED)
def test_samples_of_shipped_models(name):
    near(name, bits.shipped(name), GOLDEN[name])


@pytest.mark.slow
@pytest.mark.parametrize("task", [variant(task, long=task == "navier_stokes") for task in bits.TASKS])
def test_losses_and_samples_of_every_method(task, tmp_path):
    for name, found in bits.trained(task, tmp_path):
        near(name, found, GOLDEN[name])


@cache
def old_fields() -> torch.Tensor:
    return sapc.load_dataset(OLD / "dataset.h5").fields


def test_a_dataset_of_0_1_0_is_read():
    again = sapc.get_task("heat", grid=(16, 16)).dataset("test1", size=4, seed=0, cache=False)
    assert torch.equal(old_fields(), again.fields)


@pytest.mark.parametrize("folder", ["run", "exported", "study/heat-sapc-seed0"])
def test_models_of_0_1_0_are_loaded(folder):
    model = sapc.load(OLD / folder, device="cpu")
    assert (model.run.task, model.run.method, model.run.preset) == ("heat", "sapc", "tiny")
    u = model.sample(n=2, condition=old_fields()[:1], steps=3, seed=0, sampler="euler")
    assert model.manifold(old_fields()[:1]).residual(u).abs().max() < 1e-12


def test_a_model_of_own_data_of_0_1_0_is_loaded():
    model = sapc.load(OLD / "own", device="cpu", physics=OLD / "physics.py", data=OLD / "waves.npz")
    condition = model.task.dataset("validation", size=1)
    u = model.sample(n=2, condition=condition, steps=3, seed=0, sampler="euler")
    assert model.manifold(condition).residual(u).abs().max() < 1e-12


def test_a_study_of_0_1_0_is_done_and_reported(call, folder):
    shutil.copytree(OLD / "study", folder / "study")
    shutil.copyfile(OLD / "study.py", folder / "mini.py")
    code, out, _ = call("study", "status", "study", "--json")
    assert code == 0
    assert [cell["state"] for cell in json.loads(out)["cells"]] == ["done"] * 3
    assert call("study", "run", "mini.py", "--out", "study")[0] == 0
    assert not list((folder / "study" / "logs").glob("*")), "finished cells are not run again"
    assert call("report", "study", "--out", "report")[0] == 0
    assert "SAPC" in (folder / "report" / "tables.md").read_text()


def test_a_run_of_0_1_0_goes_on(call, folder):
    shutil.copytree(OLD / "run", folder / "run")
    assert call("evaluate", "run", "--set", "test1", "--samples", "8", "--reference", "16")[0] == 0
    old, new = (json.loads((place / "run" / "scores.json").read_text()) for place in (OLD, folder))
    assert set(new) >= set(old)
    assert new["mean"]["metrics"]["w2"] == pytest.approx(old["mean"]["metrics"]["w2"], rel=1e-4)
