"""How a model samples by default, and the times that are kept beside its weights."""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest
import torch

import sapc
from commands import is_one_sentence
from sapc.errors import SapcError, SapcWarning
from sapc.flow import EULER, STEPPERS, Curve, Sampler, Shift
from sapc.models import times
from sapc.training.run_folder import RunFolder, model_names, resolve_model_path

MULTISTEP, HEUN = STEPPERS["multistep"], STEPPERS["heun"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run folder with a few steps of training, and times."""
    return sapc.train(
        "heat", "sapc", "tiny", tmp_path_factory.mktemp("run") / "heat", device="cpu"
    ).folder.path


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it."""
    return shutil.copytree(trained, tmp_path / "copy")


def condition(model, n=1):
    return model.task.dataset("test1", size=n).fields


# -- what a call without a sampler does --


def test_twenty_steps_of_second_order_at_measured_times(trained):
    model = sapc.load(trained, "cpu")
    fields, info = model.sample(2, condition(model), return_info=True)
    assert (info.sampler, info.steps, info.evaluations) == ("multistep", 20, 20)
    assert torch.equal(fields, model.sample(2, condition(model), 20, sampler="multistep"))
    assert torch.equal(fields, model.sample(2, condition(model), 20, sampler=Sampler(MULTISTEP, model.times)))
    assert not torch.equal(fields, model.sample(2, condition(model), 20, sampler=Sampler(MULTISTEP)))


def test_the_sampler_of_the_paper(trained):
    model = sapc.load(trained, "cpu")
    fields, info = model.sample(2, condition(model), sampler="euler", return_info=True)
    assert (info.sampler, info.steps, info.evaluations) == ("euler", 100, 100)
    assert torch.equal(fields, model.sample(2, condition(model), 100, sampler=EULER))


def test_heun_evaluates_twice(trained):
    model = sapc.load(trained, "cpu")
    fields, info = model.sample(2, condition(model), 5, sampler="heun", return_info=True)
    assert (info.sampler, info.steps, info.evaluations) == ("heun", 5, 9)
    assert torch.equal(fields, model.sample(2, condition(model), 5, sampler=Sampler(HEUN, model.times)))


def test_samplers_that_are_none(trained):
    model = sapc.load(trained, "cpu")
    for sampler in ("rk4", 4):
        with pytest.raises(SapcError):
            model.sample(1, condition(model), sampler=sampler)
    with pytest.raises(SapcError, match="unknown sampler 'rk4'; choose from euler, multistep, heun"):
        model.sample(1, condition(model), sampler="rk4")


def test_published_steps_stay_where_a_method_has_its_own(tmp_path):
    model = sapc.train("heat", "ffm", "tiny", tmp_path / "run", device="cpu")
    _, info = model.sample(1, condition(model), method="eci", return_info=True)
    assert (info.sampler, info.steps) == ("euler", 100)
    with pytest.raises(SapcError, match="eci samples by its own steps"):
        model.sample(1, condition(model), method="eci", sampler="multistep")
    with pytest.raises(SapcError, match="pcfm samples by its own steps"):
        times.measure_times(model_with(model, "pcfm"))


def model_with(model, method):
    """Return a model of the same weights that samples with another method."""
    other = sapc.load(model.folder.path, "cpu")
    other.method = sapc.get_method(method)
    return other


# -- measuring --


def test_a_training_ends_with_its_times(trained):
    content = json.loads((trained / "times.json").read_text())
    assert content["format"] == "sapc-times-1"
    assert content["choice"] == min(content["distances"], key=content["distances"].__getitem__)
    assert sapc.load(trained, "cpu").times == Curve(content["times"])


def test_measured_twice_the_times_are_the_same(trained):
    one, other = (times.measure_times(sapc.load(trained, "cpu")) for _ in range(2))
    assert one == other
    assert list(one.distances) == [f"bend {p} {q}" for p in ("0.33", "0.5", "0.75") for q in (0, 1)] + [
        "shift 1",
        "shift 4",
        "shift 16",
    ]


def test_measured_times_are_nearer_to_a_fine_run_than_eulers_steps(trained):
    model = sapc.load(trained, "cpu")
    fine = model.sample(8, condition(model), 400, sampler=Sampler(MULTISTEP, Shift(4.0)))
    distance = lambda sampler, steps: (
        model.sample(8, condition(model), steps, sampler=sampler) - fine
    ).norm()
    assert distance("multistep", 10) < distance("euler", 10)


# -- the file --


def test_a_model_without_times_says_so(run):
    (run / "times.json").unlink()
    model = sapc.load(run, "cpu")
    with pytest.warns(SapcWarning, match=rf"no times were measured.* shifted by 4 .*sapc tune {run}"):
        fields = model.sample(2, condition(model), 10)
    assert torch.equal(fields, model.sample(2, condition(model), 10, sampler=Sampler(MULTISTEP, Shift(4.0))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = sapc.load(run, "cpu")
        model.sample(2, condition(model), 10, sampler="euler")


def test_times_of_other_weights_do_not_count(run):
    content = json.loads((run / "times.json").read_text())
    (run / "times.json").write_text(json.dumps(content | {"weights": "0" * 64}))
    model = sapc.load(run, "cpu")
    with pytest.warns(SapcWarning, match="no times were measured"):
        assert model.times == Shift(4.0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:40],
        lambda text: "[]",
        lambda text: text.replace("sapc-times-1", "sapc-times-9"),
        lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "times"}),
        lambda text: json.dumps(json.loads(text) | {"times": [1.0, 0.5, 0.6, 0.0]}),
        lambda text: json.dumps(json.loads(text) | {"times": [1.0, float("nan"), 0.0]}),
    ],
)
def test_damaged_files_are_one_sentence(run, damage):
    path = run / "times.json"
    path.write_text(damage(path.read_text()))
    model = sapc.load(run, "cpu")
    with pytest.raises(SapcError) as error:
        model.sample(1, condition(model), 2)
    assert is_one_sentence(f"sapc: error: {error.value}\n")
    assert "times.json" in str(error.value)
    # It stands in the way of nothing else, and is written anew when asked for.
    assert model.sample(1, condition(model), 2, sampler="euler").isfinite().all()
    times.tune(model)
    assert model.times == sapc.load(run, "cpu").times


def test_a_training_that_ended_is_not_measured_again(trained):
    before = (trained / "times.json").stat().st_mtime_ns
    sapc.train("heat", "sapc", "tiny", trained, device="cpu")
    assert (trained / "times.json").stat().st_mtime_ns == before


def test_no_weights_no_times(trained):
    model = sapc.load(trained, "cpu")
    model.folder = None
    with pytest.raises(SapcError, match="this model has none"):
        times.tune(model)


@pytest.mark.parametrize("half", [False, True])
def test_times_go_along(run, tmp_path, half):
    model = sapc.load(run, "cpu")
    path = model.save_pretrained(tmp_path / "on", half=half)
    assert sapc.load(path, "cpu").times == model.times
    (run / "times.json").unlink()
    assert not (sapc.load(run, "cpu").save_pretrained(tmp_path / "without") / "times.json").exists()


# -- the command --


def test_tune_writes_the_times_of_a_run(call, trained, folder):
    shutil.copytree(trained, folder / "run")
    before = (folder / "run" / "times.json").read_bytes()
    (folder / "run" / "times.json").unlink()
    code, out, _ = call("tune", "run")
    assert (code, "wrote run/times.json" in out) == (0, True)
    assert (folder / "run" / "times.json").read_bytes() == before
    code, out, _ = call("tune", "run", "--json")
    content = json.loads(out)
    assert (code, content["path"], len(content["distances"])) == (0, "run/times.json", 9)


@pytest.mark.parametrize("name", ["missing", "heat-sapc"])
def test_tune_refuses_in_one_sentence(call, name):
    code, out, err = call("tune", name)
    assert (code, out, is_one_sentence(err)) == (2, "", True)


def test_sample_takes_the_name_of_a_sampler(call, trained, folder):
    shutil.copytree(trained, folder / "run")
    written = {}
    for sampler in ("multistep", "euler"):
        options = ("--n", "2", "--steps", "5", "--sampler", sampler, "--out", f"{sampler}.npz")
        assert call("sample", "run", *options)[0] == 0
        with np.load(f"{sampler}.npz") as file:
            written[sampler] = file["fields"]
    assert call("sample", "run", "--n", "2", "--steps", "5", "--out", "default.npz")[0] == 0
    with np.load("default.npz") as file:
        assert np.array_equal(file["fields"], written["multistep"])
    assert not np.array_equal(*written.values())
    code, out, err = call("sample", "run", "--n", "2", "--sampler", "rk4")
    assert (code, out, is_one_sentence(err), "rk4" in err) == (2, "", True, True)


@pytest.mark.parametrize("name", model_names())
def test_shipped_models_have_their_times(name):
    record = times.read_record(RunFolder(resolve_model_path(name)))
    assert record is not None
    # A grid that was measured beats, or is, the best of the shifts.
    assert record["distances"][record["choice"]] == min(record["distances"].values())
