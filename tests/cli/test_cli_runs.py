"""The commands around runs: train, sample, evaluate, methods."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import sapc
from commands import is_one_sentence, list_files, run_command
from sapc.training.run_folder import RunFolder, load_tensors

pytest.importorskip("h5py")
pytest.importorskip("rich")
pytest.importorskip("xarray")
import h5py
import xarray as xr
from rich.cells import cell_len

TINY = ("train", "heat", "--preset", "tiny", "--device", "cpu")


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    """A run folder that nobody writes to."""
    run = sapc.training_config("heat", "sapc", "tiny")
    return sapc.training.loop.train(run, tmp_path_factory.mktemp("runs") / "heat", device="cpu").path


@pytest.fixture
def run(trained_run, folder):
    """A run folder of one's own."""
    shutil.copytree(trained_run, folder / "run")
    return "run"


# -- methods --


def test_methods(call):
    code, out, err = call("methods")
    assert (code, err) == (0, "")
    assert max(map(cell_len, out.splitlines())) <= 80
    assert "…" not in out
    assert all(name in out for name in sapc.method_names(variants=True))
    # The last line of the table, one method alone.
    assert "Beyond the paper." in " ".join(out[out.index("cond_sapc") :].split())
    assert out.count("Beyond") == 1
    caption = " ".join(out.partition("NFE: ")[2].split())
    assert (
        "20 by sapc sample for sapc, sapc_s1, sapc_s2, sapc_s3, ffm, cond_ffm, pbfm and cond_sapc" in caption
    )


def test_methods_as_json(call):
    descriptions = json.loads(call("methods", "--json")[1])
    assert [m["name"] for m in descriptions] == sapc.method_names(variants=True)
    by_name = {m["name"]: m for m in descriptions}
    assert by_name["sapc"]["exact"] == "all"
    assert [name for name, m in by_name.items() if m["beyond_paper"]] == ["cond_sapc"]
    assert (by_name["eci"]["kind"], by_name["eci"]["evaluations"]) == ("zero-shot", 500)
    assert (by_name["eci"]["accepts_sampler"], by_name["sapc"]["accepts_sampler"]) == (False, True)
    assert (by_name["eci_stokes_bc"]["variant_of"], by_name["eci_stokes_bc"]["steps"]) == ("eci", 200)


# -- train, sample, evaluate --


def test_from_training_to_scores(call, folder):
    code, out, err = call(*TINY, "--method", "sapc", "--steps", "6", "--seed", "2")
    assert (code, err) == (0, "")
    first, second, third = out.splitlines()
    assert (
        first == "training sapc on heat, 16 x 16 points, 6 steps (preset tiny) in runs/heat-sapc-tiny-seed2"
    )
    assert second.startswith("trained: runs/heat-sapc-tiny-seed2/weights.safetensors (loss ")
    assert third == "next: sapc evaluate runs/heat-sapc-tiny-seed2"
    assert RunFolder("runs/heat-sapc-tiny-seed2").run().seed == 2
    assert call("sample", "runs/heat-sapc-tiny-seed2", "--n", "3", "--steps", "4")[0] == 0
    small = ("--samples", "4", "--reference", "5", "--steps", "3", "--floor-repeats", "1")
    code, out, err = call("evaluate", "runs/heat-sapc-tiny-seed2", *small)
    assert (code, err) == (0, "")
    assert all(word in out for word in ("mmse", "floor", "ce_global", "test0", "test3", "mean"))
    assert max(map(cell_len, [line for line in out.splitlines() if " evaluations and " not in line])) <= 80
    assert out.splitlines()[-1] == "wrote runs/heat-sapc-tiny-seed2/scores.json"
    assert sorted(json.loads(Path("runs/heat-sapc-tiny-seed2/scores.json").read_text())["sets"]) == [
        "test0", "test1", "test2", "test3"
    ]  # fmt: skip


def test_settings_reach_the_run(call):
    code, out, _ = call(
        *TINY, "--method", "ffm", "--grid", "12x10", "--batch", "2", "--lr", "1e-3", "--train", "5",
        "--validation", "3",
        "--steps", "2", "--modes", "3", "--hidden", "5", "--projection", "6", "--time-channels", "8",
        "--blocks", "1",
        "--precision", "tf32", "--projector", "nearest", "--out", "here", "--json",
    )  # fmt: skip
    assert code == 0
    summary = json.loads(out)
    assert (summary["folder"], summary["weights"]) == ("here", "here/weights.safetensors")
    assert {"loss", "validation", "seconds", "step"} <= set(summary)
    config = RunFolder("here").run()
    assert (config.method, config.grid, config.batch, config.lr, config.train, config.validation) == (
        "ffm",
        (12, 10),
        2,
        1e-3,
        5,
        3,
    )
    assert config.backbone == sapc.training.config.Backbone((3, 3), 5, 6, 8, blocks=1)
    assert (config.precision, config.projector) == ("tf32", "nearest")


def test_options_of_the_task_reach_the_run(call):
    arguments = ("train", "burgers", "--preset", "tiny", "--steps", "1", "--option", "initial_range=0,1")
    assert call(*arguments, "--out", "b")[0] == 0
    assert RunFolder("b").run().options == {"initial_range": (0.0, 1.0)}
    assert call(*arguments, "--out", "b")[1].startswith("already trained")


def test_a_trained_run_is_left_alone(call, run):
    before = Path("run/weights.safetensors").read_bytes()
    code, out, _ = call(*TINY, "--out", run)
    assert code == 0
    assert out.startswith("already trained: run/weights.safetensors")
    assert call("train", "--resume", run)[1] == out
    assert Path("run/weights.safetensors").read_bytes() == before


def test_a_finished_run_goes_on_and_another_begins_with_its_weights(call):
    assert call(*TINY, "--steps", "3", "--out", "run")[0] == 0
    Path("run/scores.json").write_text("{}")
    code, out, err = call("train", "--resume", "run", "--steps", "5", "--device", "cpu")
    assert (code, err) == (0, "")
    assert out.startswith("continuing sapc on heat, 16 x 16 points, 5 steps")
    assert "\ntrained: run/weights.safetensors" in out
    assert not Path("run/scores.json").exists()
    assert RunFolder("run").run().stages == (3,)
    assert call("train", "--resume", "run", "--steps", "5")[1].startswith("already trained")
    code, out, _ = call(*TINY, "--from", "run", "--steps", "2", "--seed", "1")
    assert code == 0
    assert "with the weights of run in runs/heat-sapc-tiny-seed1-from-run" in out
    assert RunFolder("runs/heat-sapc-tiny-seed1-from-run").run().parent["step"] == 5


@pytest.mark.slow
def test_an_interrupted_training_is_continued_to_the_same_bits(call, folder):
    """Stopped in the middle and resumed, it ends where an undisturbed one does."""
    settings = ("--steps", "150", "--out")
    line = [sys.executable, "-m", "sapc", *TINY, *settings, "stopped"]
    take_interrupts = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(line, preexec_fn=take_interrupts, **pipes) as process:
        try:
            # It has made a step.
            assert process.stdout.readline().startswith("training sapc on heat")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert err.startswith("sapc: training stopped at step ")
    assert is_one_sentence(err)
    assert not Path("stopped/weights.safetensors").exists()
    code, out, _ = call("train", "--resume", "stopped")
    assert code == 0
    assert out.startswith("continuing sapc on heat")
    assert call(*TINY, *settings, "whole")[0] == 0
    weights, expected_weights = (load_tensors(RunFolder(name).weights)[0] for name in ("stopped", "whole"))
    assert all(torch.equal(weights[name], expected_weights[name]) for name in expected_weights)


@pytest.mark.slow
def test_two_processes_train_as_one(call, folder):
    settings = ("--steps", "4", "--out")
    process = run_command(*TINY, *settings, "two", "--devices", "2")
    assert (process.returncode, process.stderr) == (0, "")
    assert [line.split()[0] for line in process.stdout.splitlines()] == ["training", "trained:", "next:"]
    assert call(*TINY, *settings, "one")[0] == 0
    weights, expected_weights = (load_tensors(RunFolder(name).weights)[0] for name in ("two", "one"))
    assert all(torch.allclose(weights[name], expected_weights[name], atol=1e-5) for name in expected_weights)


def test_two_processes_refuse_as_one(folder, run):
    process = run_command(*TINY, "--seed", "1", "--out", run, "--devices", "2")
    assert (process.returncode, process.stdout) == (2, "")
    assert is_one_sentence(process.stderr), process.stderr
    assert "holds another run: its seed is 0, not 1" in process.stderr


def test_a_long_training_says_a_line_now_and_then(capsys):
    from sapc.cli.progress import TrainingBar

    with TrainingBar("heat sapc") as bar:
        bar(1, 100, {})
        bar.last_line_time -= 3600
        bar.start -= 10
        bar(11, 100, {"loss": 0.5, "validation": 0.25, "lr": 1.0})
        bar(12, 100, {"loss": 0.5})
    line = capsys.readouterr().err
    assert line.startswith("heat sapc: step 11 of 100, loss 0.5, validation 0.25, 1 steps/s, 0:01:")
    assert line.count("\n") == 1


# -- files of samples and conditions --


@pytest.mark.parametrize("name", ["new/s.h5", "s.npz"])
def test_samples_are_written_with_where_they_came_from(call, run, name):
    code, out, err = call(
        "sample", run, "--n", "3", "--steps", "4", "--seed", "5", "--set", "test2", "--out", name
    )
    assert (code, err) == (0, "")
    assert out.startswith(
        f"wrote {name}: 3 fields of heat (sapc, test2, 4 multistep steps, seed 5) on 16 x 16 points\n"
    )
    assert "largest residual: pinned values 0.0e+00, balance law " in out
    if name.endswith("npz"):
        with np.load(name) as file:
            fields, condition, header = file["fields"], file["condition"], str(file["header"])
    else:
        with h5py.File(name) as file:
            fields, condition, header = file["fields"][()], file["condition"][()], file.attrs["header"]
    model = sapc.load(run, device="cpu")
    truth = model.task.dataset("test2", size=1).fields
    assert np.array_equal(fields, model.sample(3, truth, steps=4, seed=5).numpy())
    assert np.array_equal(condition[0, :, 0], truth[0, :, 0].double().numpy())
    assert np.isnan(condition[0, :, 1:]).all()
    about = json.loads(header)
    assert (about["format"], about["seed"], about["steps"]) == ("sapc-samples-1", 5, 4)
    assert sapc.TrainingConfig.from_dict(about["run"]) == model.run


def _npz(path: str, **arrays) -> str:
    np.savez(path, **arrays)
    return path


def _hdf5(path: str, **arrays) -> str:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


@pytest.mark.parametrize("write", [_npz, _hdf5])
@pytest.mark.parametrize("names", [("condition", "fields"), ("fields", "noise"), ("anything",)])
def test_a_condition_from_a_file(call, run, write, names):
    """Named, or the only one; without a batch axis; NaN where nothing is pinned."""
    truth = sapc.get_task("heat", grid=(16, 16)).dataset("test3", size=1).fields[0].double().numpy()
    truth[:, 1:] = np.nan
    path = write(
        "c.npz" if write is _npz else "c.h5", **{names[0]: truth, **dict.fromkeys(names[1:], np.ones(3))}
    )
    code, out, _ = call(
        "sample", run, "--n", "2", "--steps", "3", "--condition", path, "--out", "s.npz", "--json"
    )
    assert code == 0
    assert max(json.loads(out)["worst_residual"].values()) < 1e-12
    with np.load("s.npz") as file:
        assert np.array_equal(file["fields"][:, :, 0], np.stack([truth[:, 0]] * 2))


def test_a_dataset_and_samples_are_conditions(call, run):
    assert call("data", "heat", "--grid", "16x16", "--size", "3", "--out", "d.h5")[0] == 0
    code, out, _ = call("sample", run, "--steps", "3", "--condition", "d.h5", "--out", "s.h5", "--json")
    assert (code, json.loads(out)["shape"]) == (0, [3, 16, 16])
    code, second_out, _ = call(
        "sample", run, "--steps", "3", "--condition", "s.h5", "--out", "t.npz", "--json"
    )
    assert (code, json.loads(second_out)["shape"]) == (0, [3, 16, 16])
    with np.load("t.npz") as file, h5py.File("s.h5") as hdf5_file:
        assert np.array_equal(file["fields"], hdf5_file["fields"][()])


def test_each_field_its_own_condition_from_the_training_split(call, run):
    code, _, _ = call("sample", run, "--n", "3", "--steps", "2", "--set", "train", "--out", "s.npz")
    truth = sapc.get_task("heat", grid=(16, 16)).dataset("train", size=3).fields
    with np.load("s.npz") as file:
        assert np.array_equal(file["fields"][:, :, 0], truth[:, :, 0].double().numpy())
    assert code == 0


@pytest.mark.parametrize("frames", [0, 1, 3])
def test_a_condition_may_be_initial_frames(call, run, frames):
    """One without a dimension of samples, or several; each is for as many fields."""
    truth = sapc.get_task("heat", grid=(16, 16)).dataset("train", size=3).fields[:, :, 0].double().numpy()
    np.savez("c.npz", condition=truth[:frames] if frames else truth[0])
    assert call("sample", run, "--n", "6", "--steps", "2", "--condition", "c.npz", "--out", "s.nc")[0] == 0
    k = max(1, frames)
    with xr.open_dataset("s.nc") as file:
        assert (file.sizes["condition"], file.sizes["member"]) == (k, 6 // k)
        np.testing.assert_array_equal(file.u_condition.isel(t=0), truth[:k])
        np.testing.assert_array_equal(file.u.isel(t=0, member=1), truth[:k])
    assert (
        call("sample", run, "--steps", "2", "--condition", "s.nc", "--out", "t.npz", "--members", "1")[0] == 0
    )
    with np.load("t.npz") as file:
        np.testing.assert_array_equal(file["fields"][:, :, 0], truth[:k])


@pytest.mark.filterwarnings("always:the condition of shape")
def test_as_many_frames_as_times_are_read_as_one_field_with_a_warning(call, run):
    frames = sapc.get_task("heat", grid=(16, 16)).dataset("train", size=16).fields[:, :, 0].double().numpy()
    line = (
        "sample",
        run,
        "--steps",
        "1",
        "--members",
        "1",
        "--condition",
        "c.npz",
        "--force",
        "--out",
        "s.npz",
    )
    np.savez("c.npz", condition=frames)
    code, out, err = call(*line)
    assert code == 0
    assert "1 fields of heat" in out
    assert is_one_sentence(err)
    assert "of shape (16, 16) is read as one field (x, t); if it is 16 conditions at one t" in err
    # The shape that the warning names is no longer ambiguous, and neither is a field with gaps.
    assert "give it the shape (16, 16, 1)" in err
    np.savez("c.npz", condition=frames[:, :, None])
    code, out, err = call(*line)
    assert (code, err) == (0, "")
    assert "16 fields of heat" in out
    frames[:, 1:] = np.nan
    np.savez("c.npz", condition=frames)
    code, out, err = call(*line)
    assert (code, err) == (0, "")
    assert "1 fields of heat" in out


def test_a_condition_of_a_single_number_is_refused(call, run):
    np.savez("c.npz", condition=np.float64(3))
    code, _, err = call("sample", run, "--n", "2", "--condition", "c.npz", "--out", "s.npz")
    assert code == 2
    assert "is a single number" in err


@pytest.mark.parametrize("name", ["s.npz", "s.h5"])
def test_samples_of_several_conditions_are_read_back(call, run, name):
    """Their numbers are no coordinates, even where there are as many fields as points."""
    assert (
        call("sample", run, "--n", "16", "--members", "8", "--set", "train", "--steps", "1", "--out", name)[0]
        == 0
    )
    samples = sapc.read_fields(name, channels=("fields",), time="last")
    assert samples.values.shape == (16, 16, 16)
    assert [(a.start, a.stop) for a in samples.grid.axes] == [(0, 1), (0, 1)]


def test_a_test_set_has_one_condition(call, run):
    code, _, err = call("sample", run, "--n", "6", "--members", "2", "--set", "test1")
    assert code == 2
    assert "asks for 3 conditions, and test1 has 1 condition; ask for --n 2 or less" in err


def test_another_resolution(call, run):
    code, out, _ = call(
        "sample", run, "--n", "2", "--steps", "2", "--grid", "20x24", "--out", "s.h5", "--json"
    )
    assert (code, json.loads(out)["shape"]) == (0, [2, 20, 24])


def test_an_existing_file_of_samples_is_kept_unless_forced(call, run):
    Path("s.npz").write_text("mine")
    arguments = ("sample", run, "--n", "1", "--steps", "1", "--out", "s.npz")
    code, _, err = call(*arguments)
    assert code == 2
    assert "exists already" in err
    assert Path("s.npz").read_text() == "mine"
    assert call(*arguments, "--force")[0] == 0


@pytest.mark.slow
def test_an_unfinished_run_is_used_with_a_warning_and_keeps_no_scores(run, folder):
    config = json.loads(Path("run/config.json").read_text())
    Path("run/config.json").write_text(json.dumps({**config, "steps": 30}))
    os.rename("run/weights.safetensors", "run/checkpoint.safetensors")
    before = list_files(folder)
    small = ("--samples", "2", "--reference", "2", "--steps", "1", "--floor-repeats", "0", "--set", "test0")
    process = run_command("evaluate", run, *small)
    assert process.returncode == 0
    assert is_one_sentence(process.stderr)
    assert "weights of step 20 of 30" in process.stderr
    assert process.stdout.splitlines()[-1] == "not written: training is at step 20 of 30"
    assert "no sampling floor: not asked for" in process.stdout
    assert list_files(folder) == before


def test_scores_as_json(call, run):
    small = ("--samples", "2", "--reference", "2", "--steps", "1", "--set", "test1", "--set", "test3")
    code, out, _ = call("evaluate", run, *small, "--json")
    assert code == 0
    scores = json.loads(Path("run/scores.json").read_text())
    assert {**json.loads(out), "weights": scores["weights"]} == scores
    assert list(json.loads(out)["sets"]) == ["test1", "test3"]


# -- bad calls --

SAMPLE = ("sample", "run", "--n", "2", "--steps", "1", "--out", "n/s.npz")
BAD = {
    "no task": (["train"], "sapc train needs a task"),
    "unknown task": (["train", "haet"], "unknown task 'haet'"),
    "unknown method": ([*TINY, "--method", "spac"], "unknown method 'spac'"),
    "unknown preset": (["train", "heat", "--preset", "huge"], "unknown preset 'huge'"),
    "no steps": ([*TINY, "--steps", "0"], "steps must be a whole number of at least 1"),
    "bad rate": ([*TINY, "--lr", "nan"], "lr must be a positive number"),
    "bad seed": ([*TINY, "--seed", "-1"], "seed must be a whole number of at least 0"),
    "bad precision": ([*TINY, "--precision", "fp8"], "unknown precision 'fp8'"),
    "bad projector": ([*TINY, "--projector", "x"], "unknown projector 'x'"),
    "bad width": ([*TINY, "--hidden", "0"], "positive widths"),
    "bad time channels": ([*TINY, "--time-channels", "5"], "even number"),
    "bad grid": ([*TINY, "--grid", "16"], "2 axes"),
    "bad option": ([*TINY, "--option", "x=1"], "unknown option 'x'"),
    "bad device": (["train", "heat", "--device", "tpu"], "device 'tpu' cannot be used"),
    "no devices": ([*TINY, "--devices", "0"], "at least 1, got 0"),
    "uneven": ([*TINY, "--devices", "3"], "cannot be shared evenly by 3"),
    "too much data": ([*TINY, "--train", "99999999999"], "GiB available"),
    "below a file": ([*TINY, "--out", f"{__file__}/n"], "cannot create the folder"),
    "not a run folder": ([*TINY, "--out", ".."], "not empty and is not a run folder"),
    "another run": ([*TINY, "--out", "run", "--lr", "0.1"], "holds another run: its lr is 0.003, not 0.1"),
    "resume nothing": (["train", "--resume", "nowhere"], "is not a run folder"),
    "resume with settings": (["train", "--resume", "run", "--steps", "3"], "so --steps cannot be given"),
    "resume from": (["train", "--resume", "run", "--from", "run"], "so --from cannot be given"),
    "more steps": (
        [*TINY, "--out", "run", "--steps", "30"],
        "`sapc train --resume run --steps 30` goes on from there",
    ),
    "from nothing": ([*TINY, "--from", "nowhere"], "nowhere is not a run folder"),
    "from another number of axes": (
        ["train", "navier_stokes", "--preset", "tiny", "--from", "run"],
        "the network of run has 2 axes, and navier_stokes has 3",
    ),
    "from another network": ([*TINY, "--from", "run", "--hidden", "8"], "the network of run does not fit"),
    "a shipped model": (
        ["train", "--resume", "heat-sapc", "--steps", "9999"],
        "--from heat-sapc begins a run",
    ),
    "resume a task": (["train", "heat", "--resume", "run"], "so TASK cannot be given"),
    "sample nowhere": (["sample", "nowhere"], "is not a run folder"),
    "sample nothing": ([*SAMPLE, "--n", "0"], "at least 1, got 0"),
    "sample no steps": ([*SAMPLE, "--steps", "0"], "at least 1, got 0"),
    "sample a bad seed": ([*SAMPLE, "--seed", "-1"], "at least 0, got -1"),
    "sample too many": ([*SAMPLE, "--n", "9" * 12], "not enough memory"),
    "sample a bad set": ([*SAMPLE, "--set", "test9"], "unknown set 'test9'"),
    "sample two conditions": ([*SAMPLE, "--set", "test0", "--condition", "x.npz"], "give one of them"),
    "sample without a file": ([*SAMPLE, "--condition", "x.npz"], "there is no file x.npz"),
    "sample another kind": ([*SAMPLE, "--condition", "run/config.json"], "not a readable npz or HDF5 file"),
    "sample a bad method": ([*SAMPLE, "--method", "ffm"], "ffm samples with the weights of ffm"),
    "sample a bad grid": ([*SAMPLE, "--grid", "8x8x8"], "2 axes"),
    "sample a bad device": ([*SAMPLE, "--device", "tpu"], "device 'tpu' cannot be used"),
    "sample a bad suffix": ([*SAMPLE, "--out", "s.txt"], "the suffix of --out picks the format"),
    "sample into a folder": ([*SAMPLE, "--out", "run"], "the suffix of --out"),
    "evaluate nowhere": (["evaluate", "nowhere"], "is not a run folder"),
    "evaluate a bad set": (["evaluate", "run", "--set", "train"], "unknown test set 'train'"),
    "evaluate one": (["evaluate", "run", "--samples", "1"], "at least 2, got 1"),
    "evaluate a bad method": (["evaluate", "run", "--method", "x"], "unknown method 'x'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_is_one_sentence_and_creates_nothing(call, run, folder, name):
    before = list_files(folder.parent)
    arguments, message = BAD[name]
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert is_one_sentence(err), err
    assert message in err
    assert list_files(folder.parent) == before


CONDITIONS = {
    "shape": ({"condition": np.zeros((2, 16, 15))}, "expected (1, 16, 16)"),
    "names": ({"a": np.zeros((16, 16)), "b": np.zeros((16, 16))}, "name the one to use `condition`"),
    "text": ({"condition": np.full((16, 16), "x")}, "expected real numbers"),
    "objects": ({"condition": np.full((16, 16), None)}, "not a readable npz"),
    "number": ({"condition": np.zeros((3, 16, 16))}, "3 conditions for 2 samples"),
    "nan": ({"condition": np.full((16, 16), np.nan)}, "16 of the condition's 16 pinned values are NaN"),
    "empty": ({}, "found: none"),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_bad_condition_is_one_sentence(call, run, name):
    arrays, message = CONDITIONS[name]
    np.savez("c.npz", **arrays)
    code, out, err = call(*SAMPLE, "--condition", "c.npz")
    assert (code, out) == (2, "")
    assert is_one_sentence(err), err
    assert message in err
    assert not Path("n").exists()


def test_a_dataset_of_another_task_is_no_condition(call, run):
    assert call("data", "stokes_ic", "--grid", "16x16", "--size", "1", "--out", "d.h5")[0] == 0
    code, _, err = call(*SAMPLE, "--condition", "d.h5")
    assert code == 2
    assert "d.h5 is a dataset of stokes_ic" in err
