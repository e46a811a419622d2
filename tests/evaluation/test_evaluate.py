"""Evaluation: every test set generated, scored and timed, as plain JSON."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace

import pytest
import torch

import sapc
from sapc.errors import SapcError
from sapc.evaluation.evaluate import TEST_SETS, evaluate, is_costly, worst_residuals, write_scores

SMALL = {"samples": 6, "reference": 8, "steps": 3}


@pytest.fixture(scope="module", params=["heat", "stokes_ic"])
def folder(request, tmp_path_factory):
    run = sapc.training_config(request.param, "sapc", "tiny")
    return sapc.training.loop.train(run, tmp_path_factory.mktemp("run") / request.param, device="cpu").path


@pytest.fixture(scope="module")
def ffm(tmp_path_factory):
    run = sapc.training_config("heat", "ffm", "tiny")
    path = sapc.training.loop.train(run, tmp_path_factory.mktemp("run") / "ffm", device="cpu").path
    return sapc.load(path, device="cpu")


def numbers(tree):
    if isinstance(tree, dict | list):
        return [n for part in (tree.values() if isinstance(tree, dict) else tree) for n in numbers(part)]
    return [tree] if isinstance(tree, float) else []


@pytest.mark.slow
def test_from_folder_to_scores(folder):
    result = evaluate(folder, device="cpu", floor_repeats=2, **SMALL)
    path = write_scores(folder, result)
    assert path == folder / "scores.json"
    read = json.loads(path.read_text())
    weights = read.pop("weights")
    assert read == json.loads(json.dumps(result.to_dict()))
    assert weights == hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()
    assert read["format"] == "sapc-scores-1"
    assert set(read) == {"format", "run", "settings", "environment", "sets", "mean"}
    assert (read["run"]["method"], read["run"]["seed"], read["run"]["steps"]) == ("sapc", 0, 20)
    assert read["settings"]["samples"] == 6
    assert list(read["sets"]) == list(TEST_SETS)
    assert all(map(math.isfinite, numbers(read)))
    for scores in read["sets"].values():
        assert set(scores["metrics"]) == {*sapc.metrics.DISTRIBUTION, "ce_local", "ce_global"}
        assert {name: len(values) for name, values in scores["floor"].items()} == dict.fromkeys(
            sapc.metrics.DISTRIBUTION, 2
        )
        assert scores["evaluations"] == 3
        assert scores["metrics"]["ce_local"] == 0
        assert scores["metrics"]["ce_global"] < 1e-10
        assert max(scores["worst_residual"].values()) < 1e-10
        assert scores["seconds_per_sample"] > 0
        assert scores["peak_memory"] > 2**20
    each = [s["metrics"]["w2"] for s in read["sets"].values()]
    assert read["mean"]["metrics"]["w2"] == pytest.approx(sum(each) / 4)


def test_the_metrics_are_those_of_what_is_sampled(folder):
    model = sapc.load(folder, device="cpu")
    scores = evaluate(model, ["test2"], floor_repeats=1, seed=5, **SMALL)["sets"]["test2"]
    truth = model.task.dataset("test2", size=8).fields
    fields = model.sample(6, truth[:1], steps=3, seed=5)
    assert scores["metrics"]["mmse"] == sapc.metrics.mmse(fields, truth)
    draws = [model.task.dataset("test2", size=size, seed=seed).fields for seed, size in ((1, 6), (2, 8))]
    assert scores["floor"]["w2"] == [sapc.metrics.w2(*draws)]


def test_worst_residuals_are_the_largest(ffm):
    own = ffm.task.dataset("train", size=5).fields
    fields = ffm.sample(5, own, steps=2)
    H = ffm.manifold(own)
    worst = worst_residuals(H, fields)
    assert worst == {
        "local": float(H.local(fields).abs().max()),
        "balance": float(H.balance(fields).abs().max()),
    }
    assert worst["local"] > 1e-2


def test_a_method_without_constraints_is_scored_too(ffm):
    metrics = evaluate(ffm, ["test0"], floor_repeats=0, **SMALL)["sets"]["test0"]
    assert metrics["metrics"]["ce_local"] > 1e-2
    assert metrics["floor"] == {}
    assert metrics["floor_left_out"] == "not asked for"


def test_another_sampler_has_a_file_of_its_own(tmp_path, ffm):
    result = evaluate(ffm, ["test0"], floor_repeats=0, **SMALL)
    result = replace(result, settings=replace(result.settings, method="other"))
    (tmp_path / "run").mkdir()
    assert write_scores(tmp_path / "run", result) == tmp_path / "run" / "scores-other.json"


def test_an_unfinished_run_keeps_no_scores(tmp_path, ffm):
    early = sapc.Model(ffm.run, ffm.network, ffm.device, step=3)
    result = evaluate(early, ["test0"], floor_repeats=0, **SMALL)
    with pytest.raises(SapcError, match="step 3 of 20"):
        write_scores(tmp_path, result)
    assert list(tmp_path.iterdir()) == []


def test_stages_are_reported(ffm):
    seen: list[str] = []
    evaluate(ffm, ["test0"], floor_repeats=1, progress=lambda what, done, total: seen.append(what), **SMALL)
    assert list(dict.fromkeys(seen)) == [
        "test0: solving", "test0: sampling", "test0: scoring", "test0: sampling floor 1/1"
    ]  # fmt: skip


def test_the_floor_that_takes_minutes_is_left_out():
    task, cpu = sapc.get_task("navier_stokes"), torch.device("cpu")
    assert is_costly(task, cpu, 1325)
    assert not is_costly(task, torch.device("cuda"), 1325)
    assert not is_costly(sapc.get_task("burgers"), cpu, 2450)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"splits": ["train"]}, "unknown test set 'train'"),
        ({"splits": []}, "give test sets as a list"),
        ({"splits": "test0"}, "give test sets as a list"),
        ({"samples": 1}, "number of samples must be a whole number of at least 2"),
        ({"reference": 0}, "reference size must be"),
        ({"steps": 0}, "sampling steps must be"),
        ({"seed": -1}, "seed must be"),
        ({"floor_repeats": -1}, "floor repeats must be"),
        ({"method": "frob"}, "unknown method"),
        ({"method": "sapc"}, "weights of sapc"),
        ({"reference": 10**12}, "not enough memory"),
    ],
)
def test_bad_calls_are_one_sentence(ffm, changes, message):
    with pytest.raises(SapcError, match=message) as error:
        evaluate(ffm, **{**SMALL, **changes})
    assert "\n" not in str(error.value)


def test_broken_samples_are_counted(ffm):
    model = sapc.Model(ffm.run, ffm.run.make_network(), torch.device("cpu"))
    model.network.project_out.bias.fill_(torch.nan)
    with pytest.raises(SapcError, match="6 of 6 samples contain NaN"):
        evaluate(model, ["test0"], **SMALL)


def test_a_fuller_result_is_not_replaced(tmp_path, ffm):
    (tmp_path / "run").mkdir()
    small = {"samples": 4, "reference": 8, "steps": 2, "floor_repeats": 0}
    full = evaluate(ffm, ["test0", "test1"], **small)
    part = evaluate(ffm, ["test1"], **small)
    kept = tmp_path / "run" / "scores.json"
    assert write_scores(tmp_path / "run", part) == kept
    assert write_scores(tmp_path / "run", full) == kept
    before = kept.read_bytes()
    assert write_scores(tmp_path / "run", part).name == "scores-part.json"
    assert kept.read_bytes() == before
    # The same again is.
    assert write_scores(tmp_path / "run", full) == kept


def test_the_fields_are_handed_over(ffm):
    seen = {}
    evaluate(ffm, ["test0"], samples=4, reference=8, steps=2, floor_repeats=0, on_fields=seen.__setitem__)
    assert seen["test0"].shape == (4, *ffm.task.grid.shape)
