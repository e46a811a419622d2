"""Models of own data after their training: physics and data belong to one model, files are read as before, and models can be passed on."""

import copy
import gc
import json
import pickle
import re
import shlex
import shutil
import weakref

import numpy as np
import pytest
import torch

for name in ("h5py", "rich", "typer"):
    pytest.importorskip(name)
import h5py

import sapc
from commands import is_one_sentence
from sapc import Axis, Fields, Grid, Pin
from sapc.cli import main
from sapc.tasks import registry

MASS = """
import sapc

def physics(grid):
    mass = sapc.Balance(grid.integral("h"), times=grid.time.points)
    return sapc.Pin.frame(0, grid=grid, channel="h") & mass
"""
PINNED = "import sapc\n\ndef physics(grid):\n    return sapc.Pin.frame(0, grid=grid, channel='h')\n"
GRID = Grid((Axis("x", 8, kind="periodic"), Axis("t", 5, 0.0, 2.0)), ("h",))


def waves(n=20, sha256="waves"):
    """Travelling waves, whose mean does not change."""
    x, t = GRID.axes[0].points[:, None], GRID.axes[1].points
    phase = torch.rand(n, 1, 1, generator=torch.Generator().manual_seed(0))
    values = 5 + torch.sin(2 * torch.pi * (x - 0.3 * t + phase))
    return Fields(values.float(), GRID, {"h": "m"}, origin={"path": "waves.h5", "sha256": sha256})


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two runs of one name with different physics; and a run of a file without names, time before space."""
    path = tmp_path_factory.mktemp("reuse")
    (path / "mass.py").write_text(MASS)
    (path / "pinned.py").write_text(PINNED)
    for name in ("mass", "pinned"):
        task = sapc.Task.from_data(waves(), path / f"{name}.py", "own")
        sapc.training.loop.train(sapc.training_config(task, "sapc", "tiny", steps=1), path / name)
    values = waves().values.numpy().transpose(0, 2, 1)
    with h5py.File(path / "first.hdf5", "w") as file:
        file["h"] = np.stack((values, values))[0]
    return path


@pytest.fixture(scope="module")
def first(home):
    """A run of the file without names, with what the command printed."""
    line = (
        "train",
        "--data",
        home / "first.hdf5",
        "--physics",
        home / "mass.py",
        "--time",
        "first",
        "--periodic",
        "x",
    )
    assert run(*line, "--preset", "tiny", "--steps", 2, "--out", home / "first run") == 0
    return home / "first run"


# -- physics belongs to a model --


def off(model, grid=None):
    """By how much the mass of samples changes, on another grid if given."""
    at = GRID if grid is None else GRID.resize(*grid)
    condition = torch.full((1, *at.shape), torch.nan)
    condition[..., 0] = 5 + torch.sin(2 * torch.pi * at.axes[0].points)
    mass = model.sample(2, condition, 2, grid=grid).mean(1)
    return float((mass - mass[:, :1]).abs().max())


def test_two_models_of_one_name_keep_their_own_physics(home):
    a = sapc.load(home / "mass", physics=home / "mass.py")
    b = sapc.load(home / "pinned", physics=home / "pinned.py")
    assert off(a) < 1e-13
    assert off(a, (12, 7)) < 1e-13  # where the task is made again
    assert off(b, (12, 7)) > 1e-3
    assert [len(model.task_at((12, 7)).constraint.parts) for model in (a, b)] == [2, 1]


def test_a_model_does_not_take_the_physics_of_another(home):
    kept = sapc.load(home / "mass", physics=home / "mass.py", data=waves())
    with pytest.raises(sapc.SapcError, match=r"it was pinned\.py; give it as --physics FILE"):
        sapc.load(home / "pinned")
    with pytest.raises(sapc.SapcError, match="data of own are not loaded"):
        sapc.load(home / "mass", physics=home / "mass.py").task.dataset("train")
    assert len(kept.task.dataset("train")) == 18


def test_other_physics_than_in_the_training_is_told_by_name(home):
    with pytest.warns(
        sapc.SapcWarning, match=r"pinned\.py is not the physics that own was trained with, mass\.py"
    ):
        model = sapc.load(home / "mass", physics=home / "pinned.py")
    assert off(model) > 1e-3  # as was asked for
    with pytest.warns(
        sapc.SapcWarning, match=r"a function has no text to compare with the physics .*, mass\.py"
    ):
        sapc.load(home / "mass", physics=Pin.frame(0))
    with pytest.raises(sapc.SapcError, match="not the file that own was trained on"):
        sapc.load(home / "mass", physics=home / "mass.py", data=waves(sha256="others"))


def test_data_are_kept_no_longer_than_their_models(home):
    data = waves()
    ref = weakref.ref(data)
    models = [sapc.load(home / "mass", physics=home / "mass.py", data=data) for _ in range(2)]
    runs = [sapc.training_config(sapc.Task.from_data(data, Pin.frame(0), "brief"), "sapc", "tiny")]
    assert all(len(model.task.dataset("train")) == 18 for model in models)
    del data, models, runs
    gc.collect()
    assert ref() is None


def test_a_registered_task_is_found_by_name_and_only_for_its_own_physics(home, monkeypatch):
    monkeypatch.setattr("sapc.tasks.registry.TASKS", dict(registry.TASKS))
    with pytest.raises(sapc.SapcError, match=r"unknown task 'own'.*register_task"):
        sapc.training_config("own", "sapc", "tiny")
    task = sapc.register_task(sapc.Task.from_data(waves(), home / "mass.py", "own"))
    assert sapc.training_config("own", "sapc", "tiny").attached_task is task
    model = sapc.load(home / "mass")
    assert len(model.task.dataset("train")) == 18
    with pytest.raises(
        sapc.SapcError, match=r"other physics, .*mass\.py, than this run was trained with, pinned\.py"
    ):
        sapc.load(home / "pinned")
    sapc.register_task(sapc.Task.from_data(waves(), home / "pinned.py", "own"))
    assert off(model, (12, 7)) < 1e-13  # models keep what they were made with
    with pytest.raises(sapc.SapcError, match="there is a task 'heat' already"):
        sapc.register_task(sapc.Task.from_data(waves(), Pin.frame(0), "heat"))


def test_physics_without_a_text_is_taken_by_name_with_a_warning(home, monkeypatch):
    """Constraints that were made by hand cannot be compared: whoever loads the model is told whose they are."""
    monkeypatch.setattr("sapc.tasks.registry.TASKS", dict(registry.TASKS))
    run = sapc.training_config(sapc.Task.from_data(waves(), Pin.frame(0), "bare"), "sapc", "tiny", steps=1)
    folder = sapc.training.loop.train(run, home / "bare").path
    sapc.register_task(sapc.Task.from_data(waves(), Pin.frame(-1), "bare"))
    with pytest.warns(sapc.SapcWarning, match="the physics of bare has no text to compare"):
        sapc.load(folder)


def test_a_run_carries_its_task_but_is_told_apart_by_its_settings(home):
    one, two = (
        sapc.training_config(sapc.Task.from_data(waves(), home / "mass.py", "own"), "sapc", "tiny")
        for _ in range(2)
    )
    assert one == two
    assert "own=" not in repr(one).replace("'own'", "")
    assert "own" not in one.to_dict()
    sent = pickle.loads(pickle.dumps(one))  # as to the processes of several devices: code and data stay here
    assert (sent, sent.attached_task, copy.copy(one).attached_task) == (one, None, None)
    with pytest.raises(sapc.SapcError, match="physics of its own"):
        sent.make_task()
    again = sent.attach(home / "mass.py", waves()).make_task()
    assert torch.equal(again.dataset("train").fields, one.make_task().dataset("train").fields)
    with pytest.raises(sapc.SapcError, match="unknown or missing entries: own"):
        sapc.TrainingConfig.from_dict({**one.to_dict(), "own": "x"})


def test_a_folder_keeps_the_physics_that_was_trained_with(home, tmp_path):
    assert (home / "mass" / "physics.py").read_text() == MASS
    (tmp_path / "p.py").write_text(MASS)
    sapc_run = sapc.training_config(
        sapc.Task.from_data(waves(), tmp_path / "p.py", "own"), "sapc", "tiny", steps=1
    )
    (tmp_path / "p.py").write_text(PINNED)  # edited while the training runs
    sapc.training.loop.train(sapc_run, tmp_path / "run")
    assert (tmp_path / "run" / "physics.py").read_text() == MASS


# -- files are read as in the training --


def test_the_printed_next_command_works(home, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = (
        "train",
        "--data",
        home / "first.hdf5",
        "--physics",
        home / "mass.py",
        "--time",
        "first",
        "--periodic",
        "x",
    )
    assert run(*line, "--preset", "tiny", "--steps", 1, "--out", "a run") == 0
    words = shlex.split(re.search(r"^next: sapc (.*)$", capsys.readouterr().out, re.M)[1])
    assert run(*words) == 0, capsys.readouterr().err
    with h5py.File("samples.h5") as file:
        assert np.ptp(file["fields"][()].mean(1), axis=1).max() < 1e-13


def test_the_printed_next_command_names_the_plug_in(home, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = f"{MASS}\ndata = sapc.read_fields({str(home / 'first.hdf5')!r}, time='first', periodic='x')\n"
    (tmp_path / "my task.py").write_text(made + "TASK = sapc.Task.from_data(data, physics, 'by_plug_in')\n")

    def fresh(*words):  # as a process of its own would see it
        with monkeypatch.context() as patch:
            patch.setenv("SAPC_PLUGINS", "")
            patch.setattr("sapc.tasks.registry.TASKS", dict(registry.TASKS))
            patch.setattr("sapc.methods.registry._digests", {})
            return run(*words)

    assert fresh("--plugin", "my task.py", "train", "by_plug_in", "--preset", "tiny", "--steps", 1) == 0
    words = shlex.split(re.search(r"^next: sapc (.*)$", capsys.readouterr().out, re.M)[1])
    assert fresh(*words) == 0, capsys.readouterr().err
    assert fresh("sample", "runs/by_plug_in-sapc-tiny") == 2


def test_a_run_remembers_how_its_file_was_read(home, first, tmp_path):
    kept = json.loads((first / "config.json").read_text())["options"]["own"]["reading"]
    assert kept == {"time": "first"}
    model = sapc.load(first, physics=home / "mass.py", data=home / "first.hdf5")
    read = sapc.read_fields(home / "first.hdf5", time="first", periodic=["x"])
    assert model.task.source.fields.grid == read.grid
    assert torch.equal(model.task.source.fields.values, read.values)
    own = ("--physics", home / "mass.py", "--data", home / "first.hdf5", "--steps", 1)
    assert run("evaluate", first, *own) == 0
    assert run("train", "--resume", first, *own[:4]) == 0
    condition = ("--physics", home / "mass.py", "--condition", home / "first.hdf5", "--steps", 1)
    assert run("sample", first, *condition, "--out", tmp_path / "s.nc") == 0
    # a file with names, time last, as this program writes it, is still a condition
    condition = ("--physics", home / "mass.py", "--condition", tmp_path / "s.nc", "--steps", 1)
    assert run("sample", first, *condition, "--out", tmp_path / "again.npz") == 0
    with np.load(tmp_path / "again.npz") as file:
        assert file["fields"].shape == (20, 8, 5)
        np.testing.assert_allclose(file["fields"][..., 0], read.values[..., 0], rtol=1e-6)


def test_the_dimension_of_samples_is_remembered(tmp_path):
    values = waves().values.numpy().transpose(1, 0, 2)  # space, samples, time
    np.savez(tmp_path / "middle.npz", h=values)
    data = sapc.read_fields(tmp_path / "middle.npz", samples="dim_1", time="last", periodic="x")
    task = sapc.Task.from_data(data, Pin.frame(0), "middle")
    sapc.training.loop.train(sapc.training_config(task, "sapc", "tiny", steps=1), tmp_path / "run")
    model = sapc.load(tmp_path / "run", physics=Pin.frame(0), data=tmp_path / "middle.npz")
    assert torch.equal(model.task.source.fields.values, waves().values)


def test_runs_that_do_not_say_how_they_were_read(home, first, tmp_path, capsys):
    """As version 0.1.0 wrote them: the same command finds them, and what is not known is said again."""
    old = tmp_path / "old"
    shutil.copytree(first, old)
    config = json.loads((old / "config.json").read_text())
    del config["options"]["own"]["reading"]
    (old / "config.json").write_text(json.dumps(config))
    own = ("--physics", home / "mass.py", "--data", home / "first.hdf5")
    again = ("--time", "first", "--periodic", "x", "--preset", "tiny", "--steps", 2)
    assert run("train", *own, *again, "--out", old) == 0
    told = capsys.readouterr().out
    assert "already trained" in told
    assert told.endswith(f"--data {home / 'first.hdf5'} --time first\n")
    sample = ("sample", old, *own, "--n", 1, "--steps", 1, "--out")
    assert run(*sample, tmp_path / "a.npz") == 2
    assert is_one_sentence(capsys.readouterr().err)
    assert run(*sample, tmp_path / "a.npz", "--time", "first") == 0
    assert run("evaluate", old, *own, "--steps", 1, "--time", "first") == 0
    assert run("sample", "heat-sapc", "--time", "first", "--n", 1, "--out", tmp_path / "b.npz") == 2
    assert "is a task of this package" in capsys.readouterr().err


def test_help_says_how_time_is_named(capsys):
    assert run("train", "--help") == 0
    assert "first" in re.search(r"--time\b(.*?)--samples-dim", capsys.readouterr().out, re.S)[1]


# -- passing on --


def snippet(card):
    return re.search(r"```python\n(.*?)```", card, re.S)[1]


def commands(card):
    return re.findall(r"`sapc ([^`]+)`", card)


def test_export_of_own_data_needs_no_physics_and_its_card_works(home, first, tmp_path, monkeypatch, capsys):
    shutil.copytree(first, tmp_path / "run")
    (tmp_path / "run" / "scores.json").unlink(missing_ok=True)
    assert run("export", tmp_path / "run", tmp_path / "passed", "--half") == 0
    assert (tmp_path / "passed" / "physics.py").read_text() == MASS
    card = (tmp_path / "passed" / "README.md").read_text().replace("path/of/this/folder", "passed")
    shutil.copy(home / "first.hdf5", tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(snippet(card), names)
    assert names["fields"].shape == (16, 8, 5)
    found = commands(card)
    assert [words.split()[0] for words in found] == ["train", "evaluate"]
    for words in found:
        assert run(*shlex.split(words)) == 0, capsys.readouterr().err
    made = json.loads((tmp_path / "runs" / "first-cond_sapc-tiny" / "config.json").read_text())
    config = json.loads((tmp_path / "passed" / "config.json").read_text())
    assert {name for name in made if made[name] != config[name]} == {"steps", "options"}
    assert made["options"]["own"]["reading"] == {"time": "first"}
    assert "with other steps (`config.json`)" in card
    assert "# first, own data by condSAPC (SAPC with the condition as an input, beyond the paper)\n" in card


def test_the_card_of_a_run_with_scores_and_a_name(home, tmp_path):
    model = sapc.load(home / "mass", physics=home / "mass.py", data=waves())
    scores = sapc.evaluate(model, samples=2, reference=2, steps=1)
    card = (model.save_pretrained(tmp_path / "x", scores=scores, name="me/waves") / "README.md").read_text()
    assert (
        'Model.from_pretrained("me/waves", physics=hf_hub_download("me/waves", "physics.py"), data="waves.h5")'
        in card
    )
    assert "import sapc\nfrom huggingface_hub import hf_hub_download" in card
    assert "--channels h --periodic x --method sapc" in card
    assert "that satisfy them and the laws" in card
    assert "| | this model |\n|---|---|\n| MMSE | " in card
    assert "in the paper" not in card
    function = sapc.Task.from_data(waves(), Pin.frame(0), "own")
    sapc.training.loop.train(sapc.training_config(function, "ffm", "tiny", steps=1), tmp_path / "run")
    assert run("export", tmp_path / "run", tmp_path / "y") == 0
    card = (tmp_path / "y" / "README.md").read_text().replace("path/of/this/folder", str(tmp_path / "y"))
    assert "is not part of this folder" in card
    assert (commands(card), "`sapc.evaluate(model)` makes them" in card) == ([], True)
    names = {"physics": Pin.frame(0), "data": waves()}
    exec(snippet(card).replace('"waves.h5"', "data"), names)  # the file was never written
    assert names["fields"].shape == (16, 8, 5)
    assert not (tmp_path / "y" / "physics.py").exists()


def test_save_pretrained_keeps_the_scores_of_its_folder(home, tmp_path):
    shutil.copytree(home / "mass", tmp_path / "run")
    model = sapc.load(tmp_path / "run", physics=home / "mass.py", data=waves())
    scores = sapc.evaluate(model, samples=2, reference=2, steps=1)
    sapc.evaluation.evaluate.write_scores(tmp_path / "run", scores)
    path = model.save_pretrained(tmp_path / "passed")
    kept = json.loads((path / "scores.json").read_text())
    assert kept["mean"] == scores["mean"]
    assert kept["weights"] == sapc._files.sha256(path / "model.safetensors")
    assert run("export", tmp_path / "run", tmp_path / "exported") == 0
    for name in ("scores.json", "README.md", "config.json", "physics.py"):
        assert (path / name).read_text() == (tmp_path / "exported" / name).read_text()
    model.network.project_out.bias.add_(1)  # other weights than those that were scored
    assert not (model.save_pretrained(tmp_path / "other") / "scores.json").exists()


def test_the_commands_of_every_card_name_the_folder(tmp_path):
    card = sapc.models.card.model_card(sapc.training_config("heat", "sapc", "tiny"), 7, {}, half=False)
    assert commands(card) == [
        "data heat",
        "train heat --method sapc --preset tiny",
        "evaluate path/of/this/folder",
    ]


CONTRADICTION = """
import sapc

def physics(grid):
    return sapc.Pin.frame(0) & sapc.Pin.frame(-1) & sapc.Balance(grid.integral())
"""


def test_samples_off_the_laws_are_told(tmp_path):
    """First and last frame are given, and their masses differ: no field has all of that."""
    (tmp_path / "contradiction.py").write_text(CONTRADICTION)
    data = waves(8)
    data.values[:, ..., -1] += 0.5
    task = sapc.Task.from_data(data, tmp_path / "contradiction.py", "contradiction")
    folder = sapc.training.loop.train(
        sapc.training_config(task, "sapc", "tiny", steps=2, batch=2), tmp_path / "run"
    )
    model = sapc.load(folder.path, physics=tmp_path / "contradiction.py", data=data)
    with pytest.warns(
        sapc.SapcWarning, match="2 of 2 samples are off the laws by up to .* contradict the pinned"
    ):
        model.sample(2, model.task.dataset("validation", size=1), steps=1)


def test_a_training_does_not_go_on_with_other_physics(home, tmp_path):
    shutil.copytree(home / "mass", tmp_path / "run")
    text = (home / "mass.py").read_text()
    (tmp_path / "other.py").write_text(text + "\n# another law\n")
    run = sapc.training.run_folder.RunFolder(tmp_path / "run").run()
    with pytest.warns(sapc.SapcWarning, match="is not the physics"):
        other = run.attach(tmp_path / "other.py", waves())
    before = (tmp_path / "run" / "weights.safetensors").read_bytes()
    with pytest.raises(
        sapc.SapcError, match=r"other\.py is not the physics that the run in .* was begun with \(mass\.py\)"
    ):
        sapc.training.loop.train(other, tmp_path / "run")
    assert (tmp_path / "run" / "weights.safetensors").read_bytes() == before
