"""Models that come with the package, and models to pass on."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sapc
from commands import is_one_sentence
from sapc.methods import paper
from sapc.models.card import model_card
from sapc.tasks import task_names
from sapc.training import run_folder as pretrained
from sapc.training.run_folder import RunFolder, load_tensors

NAMES = [f"{task}-{method}" for task in task_names() for method in ("ffm", "sapc")]
ROOT = Path(__file__).parents[2]


def test_every_task_has_both_models_in_less_than_30_megabytes():
    assert sorted(NAMES) == list(pretrained.model_names())
    assert sum(file.stat().st_size for file in pretrained.HOME.rglob("*") if file.is_file()) < 30e6


@pytest.mark.parametrize("name", NAMES)
def test_folders_are_whole(name):
    folder = RunFolder(pretrained.resolve_model_path(name))
    run = folder.run()
    assert (f"{run.task}-{run.method}", run.preset) == (name, "compact")
    tensors, about = load_tensors(folder.weights)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    assert about["step"] == run.steps
    card = folder.card.read_text()
    assert card.startswith("---\nlicense: apache-2.0\n")
    assert f'from_pretrained("{name}")' in card


@pytest.mark.parametrize("name", NAMES)
def test_published_scores_are_of_these_weights_and_in_the_card(name):
    folder = RunFolder(pretrained.resolve_model_path(name))
    scores = json.loads(folder.scores.read_text())
    assert scores["weights"] == sapc._files.sha256(folder.weights)
    w2 = scores["mean"]["metrics"]["w2"]
    assert f"| W2 | {w2:.2g} |" in folder.card.read_text()
    told = paper.printed_mean("generation", scores["run"]["task"], "w2", scores["run"]["method"])
    assert w2 < 1.3 * told.mean


@pytest.mark.slow
def test_samples_are_solutions():
    """Heat by 16 samples: on the manifold to rounding, near the solutions, and far nearer than FFM's."""
    task = sapc.get_task("heat")
    truth = task.dataset("test1", size=200).fields
    found = {}
    for method in ("ffm", "sapc"):
        model = sapc.load(f"heat-{method}", "cpu")
        fields = model.sample(16, truth[:1], steps=10)
        found[method] = sapc.metrics.w2(fields, truth)
    H = task.manifold(truth[:1].double())
    assert H.residual(fields).abs().max() < 1e-12
    assert found["sapc"] < 0.06
    assert found["sapc"] < found["ffm"] / 2


def test_a_folder_of_the_same_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pretrained.HOME / "burgers-sapc", tmp_path / "heat-sapc")
    assert sapc.load("heat-sapc", "cpu").run.task == "burgers"
    shutil.rmtree(tmp_path / "heat-sapc")
    (tmp_path / "heat-sapc").mkdir()  # no run folder
    assert sapc.load("heat-sapc", "cpu").run.task == "heat"


@pytest.mark.slow
def test_no_network_is_needed(tmp_path):
    """With every connection refused, in another folder: the command writes samples."""
    code = (
        "import socket, sys\n"
        "def refuse(*a, **k): raise OSError('no network')\n"
        "socket.socket.connect = socket.create_connection = refuse\n"
        "from sapc.cli import main\n"
        "main(['sample', 'heat-sapc', '--n', '2', '--steps', '2', '--device', 'cpu', '--out', 'heat.npz'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 fields of heat" in done.stdout
    assert (tmp_path / "heat.npz").is_file()


# -- passing on --


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "heat-sapc"
    sapc.training.loop.train(sapc.training_config("heat", "sapc", "tiny"), folder, device="cpu")
    return folder


def test_there_and_back(trained, tmp_path):
    model = sapc.load(trained, "cpu")
    path = model.save_pretrained(tmp_path / "passed" / "on")
    assert sorted(file.name for file in path.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    again = sapc.Model.from_pretrained(path, "cpu")
    assert (again.run, again.step, again.data_range) == (model.run, model.step, model.data_range)
    condition = model.task.dataset("test0", size=1).fields
    assert torch.equal(model.sample(3, condition, 4), again.sample(3, condition, 4))
    assert torch.equal(sapc.load(path, "cpu").sample(3, condition, 4), again.sample(3, condition, 4))


def test_half_precision_is_half_the_size_and_rounds_once(trained, tmp_path):
    model = sapc.load(trained, "cpu")
    whole, half = (model.save_pretrained(tmp_path / str(h), half=h) for h in (False, True))
    sizes = [(path / "model.safetensors").stat().st_size for path in (whole, half)]
    assert sizes[1] - 4000 < sizes[0] / 2
    once, _ = load_tensors(half / "model.safetensors")
    twice, _ = load_tensors(
        sapc.load(half, "cpu").save_pretrained(tmp_path / "twice", half=True) / "model.safetensors"
    )
    for name, value in model.network.state_dict().items():
        assert torch.equal(once[name], value.half())
        assert torch.equal(once[name], twice[name])


def test_weights_beyond_half_precision_are_refused(trained, tmp_path):
    model = sapc.load(trained, "cpu")
    model.network.project_out.bias.fill_(1e6)
    with pytest.raises(sapc.SapcError, match=r"project_out\.bias has numbers beyond the range of half"):
        model.save_pretrained(tmp_path / "x", half=True)
    assert not (tmp_path / "x").exists()


def test_an_unfinished_model_is_refused(trained, tmp_path):
    model = sapc.load(trained, "cpu")
    model.step = 7
    with pytest.raises(sapc.SapcError, match="not trained to its end: step 7 of 20"):
        model.save_pretrained(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_scores_go_along_with_what_they_were_measured_on(trained, tmp_path):
    model = sapc.load(trained, "cpu")
    scores = sapc.evaluate(model, ["test0"], samples=2, reference=4, steps=1, floor_repeats=0)
    whole = model.save_pretrained(tmp_path / "whole", scores=scores)
    half = model.save_pretrained(tmp_path / "half", half=True, scores=scores)
    kept = [json.loads((path / "scores.json").read_text()) for path in (whole, half)]
    assert kept[0]["weights"] == sapc._files.sha256(whole / "model.safetensors")
    assert "weights" not in kept[1]
    assert [
        (p / "README.md").read_text().count("before the weights were rounded") for p in (whole, half)
    ] == [0, 1]
    with pytest.raises(sapc.SapcError, match="what `evaluate` returns"):
        model.save_pretrained(tmp_path / "x", scores={})
    assert not (tmp_path / "x").exists()


def test_a_folder_in_use_is_refused(trained, tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine").write_text("")
    with pytest.raises(sapc.SapcError, match="not an empty folder"):
        sapc.load(trained, "cpu").save_pretrained(tmp_path / "x")
    assert [file.name for file in (tmp_path / "x").iterdir()] == ["mine"]


@pytest.mark.slow
def test_the_cache_of_the_hub_is_read(trained, tmp_path, monkeypatch):
    """A repository in the layout of the hub's cache on this disk is found by its name, without the network."""
    pytest.importorskip("huggingface_hub")
    commit = "0" * 40
    home = tmp_path / "models--someone--heat"
    sapc.load(trained, "cpu").save_pretrained(home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    code = (
        "import sapc\n"
        "print(sapc.Model.from_pretrained('someone/heat', 'cpu').run.task)\n"
        "print(sapc.load('someone/heat', 'cpu', revision='main').run.task)\n"
        "try: sapc.load('someone/else', 'cpu')\n"
        "except sapc.SapcError as error: print(error)\n"
    )
    import os

    env = {**os.environ, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second, message = done.stdout.splitlines()
    assert first == second == "heat"
    assert message.startswith("there is no folder someone/else, and the Hugging Face hub did not give one")


def test_load_asks_the_hub_for_what_can_be_a_repository_only(trained, tmp_path, monkeypatch):
    calls = []

    def download(name, revision):
        calls.append((name, revision))
        return trained

    monkeypatch.setattr("sapc.models.model.download", download)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert sapc.load("owner/name", "cpu").folder.path == trained
    sapc.load("owner/name", "cpu", revision="v1")
    # A folder of that name could have been meant, so a revision has to say that it was not.
    sapc.load("runs/name", "cpu", revision="v1")
    assert calls == [("owner/name", None), ("owner/name", "v1"), ("runs/name", "v1")]
    for path in ("runs/name", "name", "a/b/c", "./name", tmp_path / "name", Path("owner/name")):
        with pytest.raises(sapc.SapcError, match=r"no config\.json"):
            sapc.load(path, "cpu")
    with pytest.raises(sapc.SapcError, match="is on this machine"):
        sapc.load(trained, "cpu", revision="v1")
    assert len(calls) == 3


def test_what_is_neither_folder_nor_name(tmp_path):
    with pytest.raises(sapc.SapcError, match=r"no config\.json; .*sapc models"):
        sapc.load("heat-spac")


def test_a_card_says_what_was_changed_and_promises_nothing():
    run = sapc.training_config("heat", "cond_ffm", "tiny", lr=1e-3, seed=3)
    card = model_card(run, 7, {}, half=False)
    assert "None yet" in card
    assert "license" not in card
    assert re.search(r"it draws solutions\.\n", card)
    assert "--preset tiny` with other seed, lr (`config.json`)" in card
    assert "it draws solutions that satisfy them" in model_card(
        sapc.training_config("heat", "sapc", "tiny"), 7, {}, half=False
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_card_names_the_sampler_of_its_scores_and_what_samples_take(name, tmp_path):
    """In the words in which a card of these scores is written today."""
    expected = (
        "100 sampling steps (euler, as in the paper; `sample` takes fewer, of second order, unless told"
    )
    assert expected in RunFolder(pretrained.HOME / name).card.read_text()
    if name in ("heat-sapc", "heat-ffm"):
        written = sapc.load(name).save_pretrained(tmp_path / name, half=True) / "README.md"
        assert expected in written.read_text()


# -- on the command line --


def test_models_are_listed(call):
    code, out, _ = call("models")
    assert code == 0
    assert all(name in out for name in NAMES)
    assert max(map(len, out.splitlines()[:-1])) <= 80
    assert "scores: means over the test sets, of 100 euler steps" in out
    code, out, _ = call("models", "--json")
    rows = json.loads(out)
    assert [row["name"] for row in rows] == sorted(NAMES)
    assert all(Path(row["folder"]).is_dir() for row in rows)


def test_export_takes_scores_along(call, trained, folder):
    shutil.copytree(trained, folder / "run")
    assert (
        call("evaluate", "run", "--set", "test0", "--samples", "4", "--steps", "2", "--device", "cpu")[0] == 0
    )
    code, out, _ = call("export", "run", "passed", "--half")
    assert (code, out.startswith("wrote passed: heat sapc")) == (0, True)
    assert (
        "4 samples each against 1,225 solutions, 2 sampling steps"
        in (folder / "passed" / "README.md").read_text()
    )
    code, out, _ = call(
        "evaluate", "passed", "--set", "test0", "--samples", "4", "--steps", "2", "--device", "cpu"
    )
    assert (code, "wrote passed/scores" in out) == (0, True)


@pytest.mark.filterwarnings("default::sapc.SapcWarning")
def test_scores_of_other_weights_stay_behind(call, trained, folder):
    shutil.copytree(trained, folder / "run")
    assert (
        call("evaluate", "run", "--set", "test0", "--samples", "4", "--steps", "2", "--device", "cpu")[0] == 0
    )
    path = folder / "run" / "scores.json"
    path.write_text(path.read_text().replace('"weights": "', '"weights": "0'))
    code, _, err = call("export", "run", "passed")
    assert code == 0
    assert "is of other weights and stays behind" in err
    assert not (folder / "passed" / "scores.json").exists()
    path.write_text('{"format": "sapc-scores-1"}')
    code, _, err = call("export", "run", "again")
    assert (code, is_one_sentence(err), "run/scores.json cannot be used" in err) == (2, True, True)


def test_names_are_understood_where_folders_are(call, folder):
    assert "romoli2026source" in call("cite", "heat-sapc")[1]
    code, _, err = call("train", "--resume", "heat-sapc")
    assert (code, is_one_sentence(err), "comes with the package" in err) == (2, True, True)
    assert call("report", "heat-sapc", "heat-ffm", "--out", "r")[0] == 0
    assert "8.2(4.6)e-6" in (folder / "r" / "tables.md").read_text()


@pytest.mark.slow
def test_scores_of_a_shipped_model_are_not_written(call, folder):
    before = RunFolder(pretrained.resolve_model_path("heat-ffm")).scores.read_bytes()
    code, out, _ = call(
        "evaluate", "heat-ffm", "--set", "test0", "--samples", "2", "--steps", "1", "--device", "cpu"
    )
    assert code == 0
    assert "not written: heat-ffm comes with the package" in out
    assert RunFolder(pretrained.resolve_model_path("heat-ffm")).scores.read_bytes() == before


def test_an_unfinished_run_is_not_exported(call, trained, folder):
    (folder / "run").mkdir()
    shutil.copy(trained / "config.json", folder / "run")
    code, out, err = call("export", "run", "passed")
    assert (code, out) == (2, "")
    assert is_one_sentence(err)
    assert "not trained to its end" in err
    assert not (folder / "passed").exists()


# -- results in words --


def test_the_page_of_models_calls_those_unscored_that_have_no_scores():
    text = (ROOT / "docs" / "how-to" / "sample.md").read_text(encoding="utf-8")
    unscored = {
        name
        for name in pretrained.model_names()
        if not (pretrained.resolve_model_path(name) / "scores.json").is_file()
    }
    assert set(re.findall(r"`([a-z_]+-(?:sapc|ffm))` has not been scored", text)) == unscored


@pytest.mark.slow
def test_tables_in_readme_and_docs_are_those_of_the_scores():
    done = subprocess.run(
        [sys.executable, str(ROOT / "studies" / "results.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_task_stands_for_its_best_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for task in task_names():
        best = next(f"{task}-{method}" for method in ("cond_sapc", "sapc") if f"{task}-{method}" in NAMES)
        assert pretrained.resolve_model_path(task) == pretrained.HOME / best
    assert sapc.load("heat", "cpu").run.task == "heat"
    # A folder of that name comes first, as that of a study.
    (tmp_path / "burgers").mkdir()
    assert pretrained.resolve_model_path("burgers") == Path("burgers")
    shutil.copytree(pretrained.HOME / "burgers-ffm", tmp_path / "heat")
    assert sapc.load("heat", "cpu").run.task == "burgers"


@pytest.mark.parametrize(
    ("preset", "choice", "option"),
    [
        ("best", {}, ""),
        ("best", {"symmetries": False}, " --no-symmetries"),
        ("compact", {"symmetries": True}, " --symmetries"),
        ("compact", {}, ""),
    ],
)
def test_the_command_of_a_card_makes_the_same_run(preset, choice, option):
    run = sapc.training_config("heat", "cond_sapc", preset, **choice)
    command = f"sapc train heat --method cond_sapc --preset {preset}{option}`"
    assert command in model_card(run, 7, {}, half=False)
