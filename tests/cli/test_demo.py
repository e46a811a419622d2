"""Demonstrations: two methods side by side, from training to a picture; noise on all manifolds."""

from __future__ import annotations

import io
import json
import math
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("rich")
pytest.importorskip("typer")
from rich.cells import cell_len

import sapc
from commands import is_one_sentence, list_files
from sapc import cli
from sapc.cli.demo import METHODS, METRICS, Demo
from sapc.tasks import task_names
from sapc.training.run_folder import RunFolder, load_tensors

QUICK = ("demo", "--preset", "tiny", "--samples", "8", "--steps", "3", "--device", "cpu", "--out", "d")


def size_of(picture: Path) -> tuple[int, int]:
    """Width and height of a PNG that is whole."""
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", content[16:24])


@pytest.fixture(scope="module")
def finished_demo(tmp_path_factory):
    """A demonstration that nobody writes to, and its result."""
    plan = Demo(preset="tiny", samples=8, steps=3, device="cpu", out=tmp_path_factory.mktemp("demo") / "d")
    plan.check()
    plan.train(quiet=True)
    return plan.out, plan.compare()


@pytest.fixture
def demo_folder(finished_demo, folder):
    """A finished demonstration of one's own."""
    shutil.copytree(finished_demo[0], folder / "d")
    return folder / "d"


# -- two methods --


@pytest.mark.slow
def test_models_that_come_with_the_package_need_no_training(call, folder):
    code, out, err = call("demo", "--samples", "4", "--steps", "2", "--device", "cpu", "--out", "d")
    assert (code, err) == (0, "")
    assert list_files(folder) == ["d", "d/heat.png"]
    assert "models: heat-ffm, heat-sapc, which come with the package" in out
    assert "heat, test1: 4 samples in 2 multistep steps" in out
    assert "training:" not in out
    code, out, err = call("demo", "--task", "navier_stokes", "--out", "e")
    assert (code, is_one_sentence(err), "3 axes" in err) == (2, True, True)
    assert list_files(folder) == ["d", "d/heat.png"]


def test_from_training_to_a_table_and_a_picture(call, folder):
    code, out, err = call(*QUICK)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "training ffm on heat, 16 x 16 points, 20 steps in d/heat-ffm"
    assert lines[1] == "training sapc on heat, 16 x 16 points, 20 steps in d/heat-sapc"
    assert max(map(cell_len, lines)) <= 80
    assert "…" not in out
    rows = {words[0]: words[1:] for words in map(str.split, lines) if words}
    assert all(name in rows for name in METRICS)
    assert [len(rows[name]) for name in ("mmse", "smse", "w2", "ce_local", "ce_global")] == [4, 4, 4, 2, 3]
    assert rows["ce_local"][1] == "0"
    assert [rows[name][0::3] for name in ("training:", "sampling:")] == [["FFM", "SAPC"]] * 2
    assert lines[-2:] == ["picture: d/heat.png", "next: sapc sample d/heat-sapc --set test1"]
    assert RunFolder("d/heat-ffm").scores.is_file()
    assert RunFolder("d/heat-sapc").scores.is_file()
    width, height = size_of(Path("d/heat.png"))
    assert 800 <= width <= 2000
    assert 300 <= height <= 1000
    assert Path("d/heat.png").stat().st_size < 500_000
    assert sorted(path.name for path in Path("d").iterdir()) == ["heat-ffm", "heat-sapc", "heat.png"]


@pytest.mark.slow
def test_what_is_trained_is_used_and_the_result_is_the_same(call, demo_folder, finished_demo):
    modification_times = lambda: [
        (demo_folder / f"heat-{m}" / "weights.safetensors").stat().st_mtime_ns for m in METHODS
    ]
    before = modification_times()
    (demo_folder / "heat.png").unlink()
    code, out, err = call(*QUICK, "--json")
    assert (code, err) == (0, "")
    result, expected_result = json.loads(out), finished_demo[1]
    assert modification_times() == before
    assert (result["factor"], result["floor"]) == (expected_result["factor"], expected_result["floor"])
    assert all(result["methods"][m]["metrics"] == expected_result["methods"][m]["metrics"] for m in METHODS)
    assert size_of(demo_folder / "heat.png")
    assert "already trained: d/heat-ffm\nalready trained: d/heat-sapc\n" in call(*QUICK)[1]


def test_the_result_is_what_the_folders_hold(finished_demo):
    out, result = finished_demo
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert (result["task"], result["set"], result["samples"], result["steps"]) == ("heat", "test1", 8, 3)
    for method in METHODS:
        about, scores = (
            result["methods"][method],
            json.loads((out / f"heat-{method}/scores.json").read_text()),
        )
        assert about["metrics"] == {name: scores["mean"]["metrics"][name] for name in METRICS}
        assert list(scores["sets"]) == ["test1"]
        assert scores["settings"]["floor_repeats"] == 3
        assert about["training_seconds"] > 0
        assert math.isclose(about["sampling_seconds"], 8 * scores["mean"]["seconds_per_sample"])
    ffm, exact = (result["methods"][m]["metrics"] for m in METHODS)
    assert result["factor"]["w2"] == ffm["w2"] / exact["w2"]
    assert (exact["ce_local"], result["factor"]["ce_local"]) == (0.0, None)
    assert exact["ce_global"] < 1e-12 < ffm["ce_global"]
    assert set(result["floor"]) == {"mmse", "smse", "w2"}


def test_options_reach_the_result(call, demo_folder):
    code, out, _ = call(*QUICK, "--set", "test3", "--samples", "5", "--steps", "2", "--json")
    assert code == 0
    result = json.loads(out)
    assert (result["set"], result["samples"], result["steps"], result["preset"]) == ("test3", 5, 2, "tiny")
    sets = {
        name: list(json.loads((demo_folder / f"heat-sapc/{name}.json").read_text())["sets"])
        for name in ("scores", "scores-part")
    }
    # Scores of other sets are not lost.
    assert sets == {"scores": ["test1"], "scores-part": ["test3"]}


@pytest.mark.slow
def test_another_task_and_seed(call, folder):
    code, out, _ = call(*QUICK, "--task", "stokes_bc", "--seed", "4", "--json")
    assert code == 0
    assert json.loads(out)["picture"] == "d/stokes_bc.png"
    assert size_of(Path("d/stokes_bc.png"))
    assert RunFolder("d/stokes_bc-sapc").run().seed == 4


def interrupted_after(start: str, *arguments: str) -> str:
    """Run the real command, interrupt it once it has said a line, and return what it says to that."""
    line = [sys.executable, "-m", "sapc", *arguments]
    take_interrupts = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(line, preexec_fn=take_interrupts, **pipes) as process:
        try:
            assert any(text.startswith(start) for text in process.stdout)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert is_one_sentence(err), err
    return err


@pytest.mark.slow
def test_an_interrupted_training_is_continued_to_the_same_bits(call, folder, finished_demo):
    """Stopped in the training of FFM, then finished by the same command."""
    # Printed after a step.
    err = interrupted_after("training ffm on heat", *QUICK)
    assert "training stopped at step " in err
    assert "the same command continues" in err
    assert not Path("d/heat.png").exists()
    code, _, _ = call(*QUICK)
    assert code == 0
    assert size_of(Path("d/heat.png"))
    for method in METHODS:
        weights, expected_weights = (
            load_tensors(RunFolder(d / f"heat-{method}").weights)[0] for d in (Path("d"), finished_demo[0])
        )
        assert all(torch.equal(weights[name], expected_weights[name]) for name in expected_weights)


@pytest.mark.slow
def test_interrupted_sampling_leaves_what_is_there(folder, demo_folder):
    before = list_files(folder), Path("d/heat-ffm/scores.json").read_text()
    err = interrupted_after("already trained: d/heat-sapc", *QUICK, "--samples", "9999", "--steps", "999")
    assert "the same command continues" in err
    assert (list_files(folder), Path("d/heat-ffm/scores.json").read_text()) == before


def test_the_picture_shows_what_was_scored(finished_demo):
    """The scored fields are those a model gives again for the seed."""
    out, result = finished_demo
    model = sapc.load(out / "heat-sapc", device="cpu")
    truth = model.task.dataset("test1", size=1225).fields
    samples = model.sample(8, truth[:1], steps=3, seed=0)
    assert sapc.metrics.w2(samples, truth) == result["methods"]["sapc"]["metrics"]["w2"]


BAD = {
    "unknown task": (["--task", "haet"], "unknown task 'haet'"),
    "three axes": (["--task", "navier_stokes"], "navier_stokes has 3 axes"),
    "unknown set": (["--set", "test9"], "unknown test set 'test9'"),
    "not a test set": (["--set", "train"], "unknown test set 'train'"),
    "one sample": (["--samples", "1"], "at least 2, got 1"),
    "no steps": (["--steps", "0"], "at least 1, got 0"),
    "too many": (["--samples", "9" * 12], "GiB"),
    "unknown preset": (["--preset", "huge"], "unknown preset 'huge'"),
    "bad seed": (["--seed", "-1"], "at least 0, got -1"),
    "bad device": (["--device", "tpu"], "device 'tpu' cannot be used"),
    "another run": (["--seed", "1"], "holds another run: its seed is 0, not 1"),
    "below a file": (["--out", f"{__file__}/n"], "cannot create the folder"),
    "steps of a projection": (["--projection"], "has no meaning with --projection"),
    "size of a comparison": (["--size", "2"], "has no meaning with --projection or --size"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_is_one_sentence_and_changes_nothing(call, demo_folder, folder, name):
    before = list_files(folder.parent)
    arguments, message = BAD[name]
    code, out, err = call(*QUICK, *arguments)
    assert (code, out) == (2, "")
    assert is_one_sentence(err), err
    assert message in err
    assert list_files(folder.parent) == before


def test_the_folder_of_something_else_is_left_alone(call, folder):
    (folder / "d/heat-sapc").mkdir(parents=True)
    (folder / "d/heat-sapc/mine").write_text("mine")
    before = list_files(folder)
    code, _, err = call(*QUICK)
    assert code == 2
    assert "is not a run folder" in err
    assert list_files(folder) == before


# -- the projection alone --


@pytest.mark.slow
def test_projection_of_every_task(tmp_path, capfd):
    pictures = tmp_path / "pictures"
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["demo", "--projection", "--size", "1", "--json", "--out", str(pictures)])
    assert not exit_info.value.code
    out, err = capfd.readouterr()
    assert err == ""
    rows = json.loads(out)
    assert [row["task"] for row in rows] == list(task_names())
    for row in rows:
        assert row["local_after"] < 1e-10 < row["local_before"]
        assert row["balance_after"] < 1e-10 < row["balance_before"]
    files = sorted(path.name for path in pictures.iterdir())
    assert files == sorted([*(f"{name}.png" for name in task_names()), "overview.png"])
    assert all(size_of(pictures / name) for name in files)


def test_the_table_is_whole_at_80_columns():
    from rich.console import Console

    row = {
        "task": "reaction_diffusion",
        "algorithm": "dense Gauss-Newton",
        "local_before": 1e-10,
        "local_after": 1e-10,
        "balance_before": 1e10,
        "balance_after": 1e-16,
        "milliseconds": 12345.6,
    }
    console = Console(width=80, record=True, file=io.StringIO())
    cli.app.print_table(cli.demo.residual_table([row]), console=console)
    text = console.export_text()
    assert "…" not in text
    assert "reaction_diffusion" in text
    assert "1.0e-10 → 1e-10" in text
    assert "1.0e+10 → 1e-16" in text
    assert "12346" in text
