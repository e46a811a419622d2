"""Costs: the figures exist, fit together and are printed whole. How large they are is no test's business."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("rich")
pytest.importorskip("typer")
from rich.cells import cell_len

import sapc
from commands import is_one_sentence, list_files
from sapc.experiments.timing import Timer, make_velocity, solutions
from sapc.training.step import Training

# The scripts of the repository, which are no package.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import _measure
import backbone
import projection
from _measure import OURS, PEERS

import methods
from methods import Sampler

CPU = torch.device("cpu")
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


@pytest.mark.slow
def test_all_parts(call, folder):
    code, out, err = call(*QUICK, "--out", "new/b.json")
    assert (code, err) == (0, "")
    assert max(map(cell_len, out.splitlines())) <= 80
    assert out.splitlines()[-1] == "wrote new/b.json"
    result = json.loads(Path("new/b.json").read_text())
    assert (result["format"], result["preset"], result["complete"]) == ("sapc-bench-1", "tiny", True)
    assert result["clock"] == ("process" if result["threads"] == 1 else "wall")
    assert (result["threads"], len(result["load"])) in ((torch.get_num_threads(), n) for n in (0, 2))
    for part in ("training", "sampling"):
        assert [row["task"] for row in result[part]] == ["heat", "stokes_ic"]
        for row in result[part]:
            assert 0 < row["ffm_ms"] < math.inf
            assert math.isclose(row["ratio"], row["sapc_ms"] / row["ffm_ms"])
    starts = [(row["task"], row["start"]) for row in result["projection"]]
    assert starts == [(task, start) for task in ("heat", "stokes_ic") for start in ("noise", "estimate")]
    assert max(row["ours_residual"] for row in result["projection"]) < 1e-11


def test_kernels_are_timed_where_they_know_the_networks_sizes(monkeypatch):
    monkeypatch.setattr("sapc.nn.kernels.triton_unavailable_reason", lambda: "")
    monkeypatch.setattr("sapc.nn.kernels._gpu_unusable_reason", lambda device: "")
    for preset, has_kernels in (("published", True), ("tiny", False)):
        run = sapc.training_config("heat", "ffm", preset)
        assert ("fused" in {path for path, *_ in backbone.kinds(run, torch.device("cuda"))}) == has_kernels


def test_one_part_of_one_task_as_json(call, folder):
    code, out, err = call(*QUICK[:-2], "--part", "training", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert [row["task"] for row in result["training"]] == ["heat"]
    assert not {"projection", "sampling"} & set(result)
    assert list_files(folder) == []


with _measure.peak(CPU) as _peak:
    pass
# Whether this system says how much memory a call took.
REPORTS_MEMORY = _peak.bytes is not None


def costs(task, names, timer=None, peers=True):
    timer = timer or Timer(CPU, repeats=3, warm_up=1)
    data = solutions(sapc.training_config(task, "sapc", "tiny"), CPU)
    return methods.method_costs("tiny", task, names, data, timer, 1, peers)


@pytest.fixture(scope="module")
def every_method():
    """All methods on two tasks."""
    return [row for task in ("heat", "stokes_ic") for row in costs(task, sapc.method_names(), peers=False)]


@pytest.mark.long
def test_every_method_of_every_task(every_method):
    names = ["ffm", *(name for name in sapc.method_names() if name != "ffm")]
    assert [(r["task"], r["method"]) for r in every_method] == [
        (task, name) for task in ("heat", "stokes_ic") for name in names
    ]
    for row in every_method:
        method = sapc.get_method(row["method"])
        assert (row["step_ms"] is None) == (not method.trains)
        assert (row["nfe"], row["steps"]) == (method.evaluations(), 100)
        assert (row["batch"], row["sampled"]) == (4, 4)
        assert (row["peak_bytes"] is None) == (not REPORTS_MEMORY)
        assert (row["step_peak_bytes"] is None) == (not REPORTS_MEMORY or not method.trains)
        assert "peers" not in row
        assert 0 < row["sample_ms"] < math.inf


def test_figures_are_written_one_by_one(folder):
    results = _measure.Results(Timer(CPU), "b.json", preset="tiny")
    existence = []
    rows = ({"n": n} for n in range(3) if existence.append(Path("b.json").exists()) is None)
    assert results.add("some", rows) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert existence == [False, True, True]
    assert not json.loads(Path("b.json").read_text())["complete"]
    results.finish()
    content = json.loads(Path("b.json").read_text())
    assert (content["format"], content["complete"], len(content["some"])) == ("sapc-bench-1", True, 3)


@pytest.mark.long
def test_every_method_beside_ffm(every_method):
    for row in every_method:
        ffm = next(r for r in every_method if (r["task"], r["method"]) == (row["task"], "ffm"))
        assert math.isclose(row["sample_of_ffm"], row["sample_ms"] / ffm["sample_ms"])
        if row["step_ms"] is None:
            assert row["step_of_ffm"] is None
        else:
            assert math.isclose(row["step_of_ffm"], row["step_ms"] / ffm["step_ms"])


@pytest.mark.long
def test_a_training_in_stages_is_timed_in_each(every_method):
    for row in every_method:
        assert len(row["stages_ms"]) == (0 if row["step_ms"] is None else 4 if row["method"] == "pbfm" else 1)
        if row["stages_ms"]:
            assert math.isclose(row["step_ms"], sum(row["stages_ms"]) / len(row["stages_ms"]))


def test_stages_are_those_of_the_training(monkeypatch):
    """One unrolled step more in each, also where more steps are timed than a stage has."""
    shares = []
    advance = Training.advance

    def record_stage(state):
        shares.append(state.step / state.run.steps)
        return advance(state)

    monkeypatch.setattr(Training, "advance", record_stage)
    run = sapc.training_config("heat", "pbfm", "tiny")
    timer = Timer(torch.device("cpu"), repeats=7, warm_up=1)
    methods.step_cost(run, solutions(run, timer.device), timer)
    assert shares == [stage / 4 for stage in range(4) for _ in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize("task", sapc.task_names())
def test_the_velocity_of_a_bench_takes_the_declared_evaluations(task):
    """D-Flow above all: its optimiser would stop at once if the end did not depend on the source."""
    run = sapc.training_config(task, "ffm", "tiny")
    timer = Timer(torch.device("cpu"), repeats=1, warm_up=0)
    data = solutions(run, timer.device)
    for name, steps in (("dflow", 1), ("eci", 1), ("eci_stokes_bc", 6)):
        method = sapc.get_method(name)
        sampler = Sampler(run, data, timer, joint=method.couples_batch)
        assert sampler.time_batch(method, steps)[1] == method.evaluations(steps)


def test_the_networks_work_is_part_of_the_gradient():
    run = sapc.training_config("heat", "ffm", "tiny")
    task = run.make_task()
    truth = solutions(run, CPU)[0].double()
    v = make_velocity(run.make_network(), task, truth, pull=0.9)
    vt, t = torch.randn_like(truth).requires_grad_(), torch.full((len(truth),), 0.5, dtype=torch.float64)
    (slope,) = torch.autograd.grad(v(vt, t).sum(), vt)
    # What the replaced velocity does not explain is the network's.
    remainder = slope - 0.9 / 0.5
    assert 0 < remainder.abs().max() < 1e-4
    assert len(remainder.unique()) > remainder.numel() // 2


def test_a_method_too_large_for_memory_is_a_gap_and_not_an_end(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Training, "advance", full)
    monkeypatch.setattr(Sampler, "time_batch", full)
    rows = list(costs("heat", ["pbfm"], peers=False))
    assert [row["step_ms"] for row in rows] == [None, None]
    assert [row["sample_of_ffm"] for row in rows] == [None, None]


# -- beside the peers' style --

PROJECTION_METHODS = ("sapc", "eci", "cafm")
STYLE_METHODS = ["ffm", "sapc", "cond_ffm", "cafm", "pbfm", "dflow"]


@pytest.fixture(scope="module")
def both_styles():
    return list(costs("heat", STYLE_METHODS))


@pytest.mark.slow
def test_methods_in_both_styles(both_styles):
    assert [row["method"] for row in both_styles] == STYLE_METHODS
    for row in both_styles:
        theirs = row["peers"]
        assert math.isclose(theirs["sample_of_ours"], theirs["sample_ms"] / row["sample_ms"])
        assert 1 <= theirs["sample_fields"] <= row["sampled"]
        if row["step_ms"] is None:
            assert (theirs["step_ms"], theirs["step_of_ours"], theirs["step_fields"]) == (None, None, 0)
        else:
            assert math.isclose(theirs["step_of_ours"], theirs["step_ms"] / row["step_ms"])
            assert 1 <= theirs["step_fields"] <= row["batch"]
        for activity in ("step", "sample"):
            assert f"{activity}_left_out" not in theirs
            is_known = REPORTS_MEMORY and theirs[f"{activity}_ms"] is not None
            assert (theirs[f"{activity}_peak_bytes"] is not None) == is_known


def same_networks(run: sapc.training.config.TrainingConfig) -> list[torch.nn.Module]:
    ours, theirs = (style.network(run, CPU).eval().requires_grad_(False) for style in (OURS, PEERS))
    theirs.load_state_dict(ours.state_dict())
    assert (ours.transform, theirs.transform, theirs.precision) == ("auto", "fft", "float32")
    return [ours, theirs]


@pytest.mark.parametrize("name", ["ffm", "cond_ffm", *PROJECTION_METHODS])
def test_both_styles_sample_the_same_fields(name):
    method = sapc.get_method(name)
    run = sapc.training_config("heat", method.weights, "tiny")
    task, truth = run.make_task(), solutions(run, CPU)[0].double()
    H = task.manifold(truth, solver=run.solver(task))
    v1 = sapc.source.sample(task.grid, len(truth), dtype=torch.float64)
    assert (H.affine, PEERS.manifold(H).algorithm) == (True, "dense Gauss-Newton")
    fields = []
    for network, style in zip(same_networks(run), (OURS, PEERS), strict=True):
        v = method.velocity(
            lambda vt, t, *conditions, n=network: n(vt.float(), t, *(x.float() for x in conditions)), H
        )
        fields.append(method.sample(v, v1, style.manifold(H), 3))
    assert float((fields[0] - v1).abs().max()) > 1e-3
    torch.testing.assert_close(fields[1], fields[0], rtol=0, atol=2e-5 * float(fields[0].abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["heat", "stokes_ic"])
@pytest.mark.parametrize("name", ["ffm", "cond_ffm", "sapc", "cafm", "pbfm"])
def test_both_styles_train_the_same(task, name):
    run = sapc.training_config(task, name, "tiny")
    ours, theirs = (style.training(run, solutions(run, CPU), CPU) for style in (OURS, PEERS))
    assert theirs._manifold(theirs.data).algorithm == "dense Gauss-Newton"
    for _ in range(2):
        a, b = ours.advance(), theirs.advance()
        torch.testing.assert_close(b.loss, a.loss, rtol=1e-4, atol=0)
        torch.testing.assert_close(b.norm, a.norm, rtol=1e-3, atol=0)


def dense_rows(run, data):
    return list(projection.fast_against_dense(run, data, Timer(CPU, repeats=1, warm_up=0)))


@pytest.fixture(scope="module")
def projections():
    runs = [sapc.training_config(task, "sapc", "tiny") for task in sapc.task_names()]
    return [row for run in runs for row in dense_rows(run, solutions(run, CPU))]


@pytest.mark.long
def test_projections_of_every_task_agree(projections):
    starts = ("noise", "estimate")
    rows = [row for row in projections if row["solver"] == "of sampling"]
    assert [(r["task"], r["start"]) for r in rows] == [(t, s) for t in sapc.task_names() for s in starts]
    for row in rows:
        assert math.isclose(row["ratio"], row["dense_ms"] / row["ours_ms"])
        assert max(row["ours_residual"], row["dense_residual"]) < 1e-11
        # The same solver on the same rows takes the same way.
        assert row["apart"] < 1e-9
        assert 1 <= row["dense_fields"] <= row["ours_fields"] == 4
        assert row["jacobian_bytes"] == 24 * row["rows"] * math.prod(row["grid"])
        assert row["stacked_bytes"] == 8 * (row["rows"] + row["pins"]) * math.prod(row["grid"])
        assert {row[f"{whose}_peak_bytes"] is not None for whose in ("ours", "dense")} == {REPORTS_MEMORY}


def test_a_jacobian_too_large_is_left_out_with_the_reason():
    run = sapc.training_config("heat", "sapc", "tiny", grid=(1000, 1000), batch=1)
    zero = torch.zeros(1, *run.grid)
    rows = dense_rows(run, (zero, zero))
    assert {row["dense_left_out"] for row in rows} == {"memory: a Jacobian takes 22.3 GiB"}
    assert all(row["ratio"] is None and row["ours_ms"] > 0 for row in rows)


@pytest.mark.parametrize("fits", [0, 1, 4, 9])
def test_as_many_fields_as_fit(fits):
    def make(n):
        if n > fits:
            raise torch.OutOfMemoryError
        return lambda: None

    figure = _measure.measure_bounded(make, 9, Timer(CPU))
    assert figure.fields == {0: 0, 1: 1, 4: 4, 9: 9}[fits]
    assert (figure.left_out is None) == (fits > 0)


def test_what_takes_too_long_is_left_out_with_the_reason():
    assert _measure.too_long(_measure.LIMIT) is None
    assert _measure.too_long(123.4) == "time: one field takes about 123 s"


def test_an_error_that_is_not_memory_goes_on():
    def broken():
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        _measure.unless_full(broken)
    assert _measure.unless_full(lambda: torch.empty(2**55, dtype=torch.float64)) is None


@pytest.mark.skipif(not REPORTS_MEMORY, reason="this system does not tell")
@pytest.mark.parametrize("pieces", [1, 64, 1024])
def test_memory_is_what_was_held_at_once(pieces):
    size = 2**26
    # What the first one freed has to count for the second.
    for _ in range(2):
        with _measure.peak(CPU) as peak:
            tensors = [torch.ones(size // 4 // pieces) for _ in range(pieces)]
            del tensors
        assert 0.9 * size < peak.bytes < 1.2 * size
    assert _measure.free(CPU) > size


def published_row(run: sapc.training.config.TrainingConfig) -> dict:
    return list(backbone.backbone(run, Timer(CPU, repeats=1, warm_up=0)))[-1]


def test_the_published_network_if_it_is_missing():
    if importlib.util.find_spec("neuralop") is not None:
        pytest.skip("neuraloperator is installed")
    row = published_row(sapc.training_config("heat", "ffm", "tiny"))
    assert (row["path"], row["step_ms"], row["left_out"]) == ("neuraloperator", None, "not installed")


# Warnings of that package.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", ["heat", "navier_stokes"])
def test_the_published_network_if_it_is_there(task):
    neuralop = pytest.importorskip("neuralop")
    run = sapc.training_config(task, "ffm", "tiny")
    row = published_row(run)
    assert row["path"] == f"neuraloperator {neuralop.__version__}"
    assert row["step_ms"] > 0
    network = backbone.Published(run)
    count = sum(p.numel() * (2 if p.is_complex() else 1) for p in network.parameters())
    assert count == run.make_network().parameter_count
    assert network(torch.zeros(2, *run.grid), torch.rand(2)).shape == (2, *run.grid)


def test_help_shows_an_example(call):
    code, out, _ = call("bench", "--help")
    assert code == 0
    assert "Example: sapc bench" in " ".join(out.split())


BAD = {
    "unknown task": (["--task", "haet"], "unknown task 'haet'"),
    "unknown preset": (["--preset", "huge"], "unknown preset 'huge'"),
    "unknown part": (["--part", "all"], "unknown part 'all'"),
    "a part that left": (["--part", "methods"], "benchmarks/ has more of them"),
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
    assert is_one_sentence(err), err
    assert message in err
    assert list_files(folder) == ["mine.json"]
    assert Path("mine.json").read_text() == "mine"
