"""What things cost: the figures are there, fit together and are printed whole. How large they are is no test's business."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from commands import contents, one_sentence
from sapc import cli

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
