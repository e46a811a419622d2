"""What things cost: the figures are there, fit together and are printed whole. How large they are is no test's business."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

import sapc
from commands import contents, one_sentence
from sapc import bench, cli

QUICK = (
    "bench",
    "--preset",
    "tiny",
    "--device",
    "cpu",
    "--steps",
    "1",
    "--task",
    "heat",
    "--task",
    "stokes_ic",
)


def test_all_parts(call, folder):
    code, out, err = call(*QUICK, "--out", "new/b.json")
    assert (code, err) == (0, "")
    assert max(map(cell_len, out.splitlines())) <= 80
    assert all(word in out for word in ("fft, float32, eager", "dft, float32, eager", "heat", "stokes_ic"))
    assert out.splitlines()[-1] == "wrote new/b.json"
    result = json.loads(Path("new/b.json").read_text())
    assert (result["format"], result["preset"]) == ("sapc-bench-1", "tiny")
    assert [row["path"] for row in result["backbone"]] == ["fft, float32, eager", "dft, float32, eager"]
    assert result["backbone"][0]["of_plain"] == 1.0
    assert "methods" not in result  # only when asked for
    for part in ("training", "sampling"):
        assert [row["task"] for row in result[part]] == ["heat", "stokes_ic"]
        for row in result[part]:
            assert 0 < row["ffm_ms"] < math.inf
            assert math.isclose(row["ratio"], row["sapc_ms"] / row["ffm_ms"])


def test_one_part_of_one_task_as_json(call, folder):
    code, out, err = call(*QUICK[:-2], "--part", "training", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert [row["task"] for row in result["training"]] == ["heat"]
    assert not {"backbone", "sampling"} & set(result)
    assert contents(folder) == []


METHODS = ("bench", "--preset", "tiny", "--device", "cpu", "--steps", "1", "--part", "methods")


@pytest.fixture(scope="module")
def every_method():
    """All methods on two tasks, and what was kept after each."""
    kept = []
    keep = lambda result: kept.append(json.loads(json.dumps(result)))
    result = bench.bench(["heat", "stokes_ic"], "tiny", "cpu", 1, ("methods",), keep=keep)
    return result, kept


def test_every_method_of_every_task(every_method):
    result, kept = every_method
    names = ["ffm", *(name for name in sapc.method_names() if name != "ffm")]
    rows = result["methods"]
    assert [(r["task"], r["method"]) for r in rows] == [
        (task, name) for task in ("heat", "stokes_ic") for name in names
    ]
    assert [len(each.get("methods", [])) for each in kept] == [*range(1, 23), 22]
    assert [each["complete"] for each in kept] == [False] * 22 + [True]
    for row in rows:
        method = sapc.get_method(row["method"])
        assert (row["step_ms"] is None) == (not method.trains)
        assert (row["nfe"], row["steps"]) == (method.evaluations(), 100)
        assert (row["batch"], row["sampled"], row["peak_bytes"]) == (4, 4, 0)
        assert 0 < row["sample_ms"] < math.inf


def test_every_method_beside_ffm(every_method):
    rows = every_method[0]["methods"]
    for row in rows:
        ffm = next(r for r in rows if (r["task"], r["method"]) == (row["task"], "ffm"))
        assert math.isclose(row["sample_of_ffm"], row["sample_ms"] / ffm["sample_ms"])
        if row["step_ms"] is None:
            assert row["step_of_ffm"] is None
        else:
            assert math.isclose(row["step_of_ffm"], row["step_ms"] / ffm["step_ms"])


def test_a_training_in_stages_is_timed_in_each(every_method):
    for row in every_method[0]["methods"]:
        assert len(row["stages_ms"]) == (0 if row["step_ms"] is None else 4 if row["method"] == "pbfm" else 1)
        if row["stages_ms"]:
            assert math.isclose(row["step_ms"], sum(row["stages_ms"]) / len(row["stages_ms"]))


def test_stages_are_those_of_the_training(monkeypatch):
    """One unrolled step more in each, also where more steps are timed than a stage has."""
    seen = []
    advance = bench.Training.advance

    def watched(state):
        seen.append(state.step / state.run.steps)
        return advance(state)

    monkeypatch.setattr(bench.Training, "advance", watched)
    run = sapc.preset("tiny", "heat", "pbfm")
    timer = bench.Timer(torch.device("cpu"), repeats=7, warm_up=1)
    bench.step_cost(run, bench._data(run, timer.device), timer)
    assert seen == [stage / 4 for stage in range(4) for _ in range(8)]


@pytest.mark.parametrize("task", sapc.task_names())
def test_the_velocity_of_a_bench_takes_the_declared_evaluations(task):
    """D-Flow above all: its optimiser would stop at once if the end did not depend on the source."""
    run = sapc.preset("tiny", task, "ffm")
    timer = bench.Timer(torch.device("cpu"), repeats=1, warm_up=0)
    data = bench._data(run, timer.device)
    for name, steps in (("dflow", 1), ("eci", 1), ("eci_stokes_bc", 6)):
        method = sapc.get_method(name)
        sampler = bench._Sampler(run, data, timer, joint=method.joint)
        assert sampler._timed(method, steps)[1] == method.evaluations(steps)


def test_the_networks_work_is_part_of_the_gradient():
    run = sapc.preset("tiny", "heat", "ffm")
    task = run.make_task()
    truth = bench._data(run, torch.device("cpu"))[0].double()
    v = bench._like_trained(run, task, truth, compiled=False, pull=0.9)
    vt, t = torch.randn_like(truth).requires_grad_(), torch.full((len(truth),), 0.5, dtype=torch.float64)
    (slope,) = torch.autograd.grad(v(vt, t).sum(), vt)
    rest = slope - 0.9 / 0.5  # what the replaced velocity does not explain is the network's
    assert 0 < rest.abs().max() < 1e-4
    assert len(rest.unique()) > rest.numel() // 2


def test_a_method_too_large_for_memory_is_a_gap_and_not_an_end(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(bench.Training, "advance", full)
    monkeypatch.setattr(bench._Sampler, "_timed", full)
    result = bench.bench(["heat"], "tiny", "cpu", 1, ("methods",), methods=["pbfm"])
    assert [row["step_ms"] for row in result["methods"]] == [None, None]
    assert [row["sample_of_ffm"] for row in result["methods"]] == [None, None]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*cli.bench.tables(result))
    assert console.export_text().count("memory") == 4


def test_chosen_methods_come_with_ffm(call, folder):
    code, out, err = call(
        *METHODS, "--task", "heat", "--method", "pcfm", "--method", "cond_ffm", "--method", "pcfm"
    )
    assert (code, err) == (0, "")
    assert max(map(cell_len, out.splitlines())) <= 80
    assert [line.split()[0] for line in out.splitlines()[4:7]] == ["ffm", "pcfm", "cond_ffm"]
    assert not {"The network", "A training step"} & set(out.splitlines())


def test_tables_of_methods_are_whole_at_80_columns():
    row = {
        "task": "reaction_diffusion", "method": "eci_stokes_bc", "precision": "float32", "batch": 256, "sampled": 256, "nfe": 2100,
        "step_ms": 123456.7, "step_of_ffm": 123.456, "sample_ms": 1234567.8, "sample_of_ffm": 1234.56, "peak_bytes": 139 * 2**30,
    }  # fmt: skip
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*cli.bench.tables({"methods": [row]}))
    text = console.export_text()
    assert "…" not in text
    words = (
        "reaction_diffusion",
        "eci_stokes_bc",
        "123457",
        "123.46",
        "1234568",
        "1234.56",
        "142336",
        "2100",
    )
    assert all(word in text for word in words)
    assert len(text.splitlines()) == 6  # title and head are one line each


def test_tables_are_whole_at_80_columns():
    times = {"ffm_ms": 12345.6, "sapc_ms": 0.0123, "ratio": 123.4}
    row = {"task": "reaction_diffusion", "batch": 256, "precision": "float32", **times}
    network = {
        "grid": [64, 64, 50], "batch": 32, "path": "dft, float32, compiled", "step_ms": 12345.6, "forward_ms": 0.5,
        "of_plain": 1.0,
    }  # fmt: skip
    console = Console(width=80, record=True, file=io.StringIO())
    for table in cli.bench.tables({"backbone": [network], "training": [row], "sampling": [row]}):
        console.print(table)
    text = console.export_text()
    assert "…" not in text
    assert all(word in text for word in ("dft, float32, compiled", "reaction_diffusion", "12346", "123.40"))


def test_help_shows_an_example(call):
    code, out, _ = call("bench", "--help")
    assert code == 0
    assert "Example: sapc bench" in " ".join(out.split())


BAD = {
    "unknown task": (["--task", "haet"], "unknown task 'haet'"),
    "unknown preset": (["--preset", "huge"], "unknown preset 'huge'"),
    "unknown part": (["--part", "all"], "unknown part 'all'"),
    "unknown method": (["--part", "methods", "--method", "ecci"], "unknown method 'ecci'"),
    "methods of another part": (["--method", "eci"], "add --part methods"),
    "no steps": (["--steps", "0"], "at least 1, got 0"),
    "bad device": (["--device", "tpu"], "device 'tpu' cannot be used"),
    "existing file": (["--out", "mine.json"], "exists already"),
    "a folder": (["--out", "."], "is a folder"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_is_one_sentence_and_creates_nothing(call, folder, name):
    Path("mine.json").write_text("mine")
    arguments, message = BAD[name]
    code, out, err = call(*QUICK, *arguments)
    assert (code, out) == (2, "")
    assert one_sentence(err), err
    assert message in err
    assert contents(folder) == ["mine.json"]
    assert Path("mine.json").read_text() == "mine"
