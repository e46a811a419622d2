"""Files of strangers: the answer is one sentence that names the file, and nothing large is made first."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

import jaxtyping
import pytest
import torch

import sapc
from sapc._files import parse_json, read_json
from sapc.errors import SapcError
from sapc.evaluation.frechet.weights import _check_config
from sapc.experiments import open_study
from sapc.experiments.results.records import TrainedRun
from sapc.models.scores import Scores
from sapc.training.config import Backbone, TrainingConfig
from sapc.training.run_folder import RunFolder, load_tensors, read_description, save_tensors

DEEP = "[" * 100_000 + "]" * 100_000
DIGITS = "1" * 5000
RUN = sapc.training_config("heat", "ffm", "tiny")


@pytest.fixture(autouse=True)
def _as_users_have_it():
    """Without the type check of the tests, which would be first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def change(data, path, value):
    """A copy with another value at a path of keys, or without the key."""
    if not path:
        return value
    key, *rest = path
    if value is KeyError and not rest:
        return {k: v for k, v in data.items() if k != key}
    return {**data, key: change(data.get(key), rest, value)}


@pytest.fixture
def model_folder(tmp_path):
    """The folder of a trained run, without the training."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config.write_text(json.dumps(RUN.to_dict()))
    save_tensors(folder.weights, RUN.make_network().state_dict(), {"step": RUN.steps, "range": [0, 1]})
    return folder


def rewrite(folder, about):
    save_tensors(folder.weights, load_tensors(folder.weights)[0], about)


# -- JSON --


@pytest.mark.parametrize(
    "text",
    [DEEP, "[" * 100 + "]" * 100, '{"a": ' * 5000, DIGITS, "", "{", "nul", b"\xff\xfe{}", '"\\ud800"', "'a'"],
    ids=lambda text: str(text[:8]),
)
def test_what_cannot_be_read_as_json_is_one_sentence(tmp_path, text):
    with pytest.raises(SapcError, match="cannot be read as JSON"):
        parse_json(text)
    (tmp_path / "a.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SapcError, match=r"a\.json cannot be read as JSON"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("text", [DEEP, DIGITS, '{"a": ' * 5000 + "1" + "}" * 5000])
def test_every_file_of_a_folder_may_be_nested_deeply(model_folder, tmp_path, text):
    names = ("config.json", "environment.json", "study.json", "scores.json", "state.json", "log.jsonl")
    for name in names:
        (model_folder.path / name).write_text(text)
    with pytest.raises(SapcError, match=r"config\.json cannot be read as JSON"):
        model_folder.run()
    with pytest.raises(SapcError, match=r"study\.json cannot be read as JSON"):
        open_study(model_folder.path)
    with pytest.raises(SapcError, match="cannot be read as JSON"):
        Scores.read(model_folder.scores)
    with pytest.raises(SapcError, match=r"config\.json cannot be read as JSON.*get it anew"):
        _check_config(model_folder.config)
    assert model_folder.entries() == []
    assert TrainedRun(model_folder.path, RUN).training_time() == (None, "")
    with pytest.warns(sapc.SapcWarning, match="begins anew"):
        model_folder.record_start()
    assert len(read_json(model_folder.environment)["starts"]) == 1


def test_a_log_is_read_up_to_its_first_bad_line(model_folder):
    lines = ['{"step": 1, "loss": 2.0}', f'{{"step": {DIGITS}}}', '{"step": 3}']
    model_folder.log.write_text("\n".join(lines))
    assert model_folder.entries() == [{"step": 1, "loss": 2.0}]


# -- configurations --


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("backbone.modes", ["a", 4], r"one positive number of modes per axis .* got .*modes \('a', 4\)"),
        ("backbone.modes", [], "one positive number of modes per axis"),
        ("backbone.modes", [4], "modes on 1 axes"),
        ("backbone.modes", [4, True], "one positive number of modes per axis"),
        ("backbone.modes", 4, "modes must be a list of whole numbers"),
        ("backbone.hidden", 0, "positive widths; got .*hidden 0"),
        ("backbone.hidden", -4, "positive widths; got .*hidden -4"),
        ("backbone.hidden", 4.0, "positive widths"),
        ("backbone.hidden", True, "positive widths"),
        ("backbone.hidden", 10**30, "positive widths"),
        ("backbone.time_channels", "x", "time_channels must be a whole number"),
        ("backbone.hidden", 2**50, "cannot be stored anywhere"),
        ("backbone.blocks", 10**9, "of 1000000000 blocks, .* cannot be stored anywhere"),
        ("backbone", [4], "backbone of a run's configuration cannot be read"),
        ("backbone.more", 1, "backbone of a run's configuration cannot be read"),
        ("options", "x", "options must be a record of settings by name, got 'x'"),
        ("options", {"grid": [4]}, "'grid' is no option of a task"),
        ("options", {"own": "x"}, "description of own data"),
        ("options", {"own": {"grid": 3}}, "description of own data"),
        ("grid", 5, "grid must be a list in which every entry is a whole number of at least 1, got 5"),
        ("grid", [16, -16], "grid must be"),
        ("grid", [2**40, 2**40], "more points than can be counted"),
        ("method", {}, "method must be a word, got {}"),
        ("method", [], "method must be a word"),
        ("task", None, "task must be a word"),
        ("preset", 3, "preset must be a word"),
        ("lr", True, "lr must be a positive number"),
        ("lr", 10**400, "lr must be"),
        ("steps", 10**30, "steps must be below 2"),
        ("schedule", [], "schedule must be a word"),
    ],
)
def test_a_configuration_is_held_to_the_types_of_its_settings(model_folder, path, value, complaint):
    content = change(RUN.to_dict(), path.split("."), value)
    model_folder.config.write_text(json.dumps(content))
    with pytest.raises(SapcError, match=rf"config\.json: .*{complaint}"):
        sapc.load(model_folder.path, "cpu")


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("scale.mean", [], "mean and deviation are 1 finite numbers each, got"),
        ("scale.mean", 1, "its scale is"),
        ("scale.deviation", [None], "its scale is"),
        ("scale.deviation", [-1.0], "deviation of fields is positive"),
        ("scale", KeyError, "its scale is None"),
        ("split", 1, "its split is 1"),
        ("split", KeyError, "its split is None"),
        ("split.seed", 0.5, "seed of the split of own data"),
        ("sizes.validation", -0.5, "its sizes is"),
        ("sizes", KeyError, "its sizes is None"),
        ("physics", 0, "its physics is 0"),
        ("physics.sha256", KeyError, "its physics is"),
        ("reading", {"path": "x"}, "its reading is"),
        ("grid.axes", [], "a grid needs at least one spatial axis"),
    ],
)
def test_a_description_of_own_data_is_held_to_its_kinds(model_folder, path, value, complaint):
    axes = (sapc.Axis("x", 8), sapc.Axis("t", 6))
    values = torch.randn(6, 8, 6, generator=torch.Generator().manual_seed(0))
    task = sapc.Task.from_data(
        sapc.Fields(values, sapc.Grid(axes, ("u",)), {}, {}, {"path": "a.nc"}, None), sapc.Pin.frame(0)
    )
    content = json.loads(json.dumps(sapc.training_config(task, "ffm", "tiny").to_dict()))
    assert TrainingConfig.from_dict(content).options["own"]["sizes"] == {"train": 5, "validation": 1}
    model_folder.config.write_text(json.dumps(change(content, ["options", "own", *path.split(".")], value)))
    with pytest.raises(SapcError, match=rf"config\.json: .*{complaint}"):
        sapc.load(model_folder.path, "cpu")


def test_a_link_to_itself_is_no_folder(tmp_path, call):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for line in (("sample", "--out", "x.h5"), ("train", "--resume"), ("evaluate",)):
        code, _, err = call(*line, str(tmp_path / "loop"))
        assert (code, "is not a run folder" in err) == (2, True), err


@pytest.mark.parametrize("name", ["task", "method"])
def test_a_name_of_any_length_is_told_in_one_sentence(model_folder, name):
    model_folder.config.write_text(json.dumps({**RUN.to_dict(), name: "x" * 10**5}))
    with pytest.raises(SapcError, match=f"unknown {name} 'x+; choose") as told:
        sapc.load(model_folder.path, "cpu")
    assert len(str(told.value)) < 600


def test_a_configuration_comes_back_as_it_was(model_folder):
    assert model_folder.run() == RUN
    assert TrainingConfig.from_dict(json.loads(json.dumps(RUN.to_dict()))) == RUN
    assert replace(RUN, grid=[16, 16], backbone=Backbone([4, 4], 4, 8, 4, 2)) == RUN


# -- weights --


@pytest.mark.parametrize(
    ("about", "complaint"),
    [
        ({}, "does not say after how many steps its weights were: its step is None"),
        ({"step": "20"}, "its step is '20'"),
        ({"step": -1}, "its step is -1"),
        ({"step": 20, "range": []}, r"no usable range of the training data, two numbers, but \[\]"),
        ({"step": 20, "range": 5}, "no usable range"),
        ({"step": 20, "range": [0, "x"]}, "no usable range"),
        ({"step": 20, "range": [0, float("nan")]}, "no usable range"),
        ({"step": 20, "range": [0, 10**400]}, "no usable range"),
    ],
)
def test_a_description_of_weights_that_lacks_something_is_refused(model_folder, about, complaint):
    rewrite(model_folder, about)
    with pytest.raises(SapcError, match=rf"weights\.safetensors .*{complaint}"):
        sapc.load(model_folder.path, "cpu")


def test_a_description_of_weights_may_be_anything(model_folder):
    from safetensors.torch import save_file

    for about in (DEEP, DIGITS, "[]", "{"):
        save_file(
            load_tensors(model_folder.weights)[0] if about == DEEP else {},
            model_folder.weights,
            {"about": about},
        )
        with pytest.raises(SapcError, match=r"weights\.safetensors is damaged"):
            read_description(model_folder.weights)


@pytest.mark.parametrize("method", ["ffm", "cond_ffm"])
@pytest.mark.parametrize("task", ["heat", "navier_stokes"])
def test_shapes_are_those_of_the_network(task, method):
    run = sapc.training_config(task, method, "tiny", hidden=3, projection=5, blocks=3)
    made = {name: tuple(value.shape) for name, value in run.make_network().state_dict().items()}
    assert run.network_shapes() == made


def test_shapes_are_compared_before_any_memory_is_taken(model_folder):
    """A limit of the address space stands in for the gigabytes."""
    big = replace(RUN, backbone=replace(RUN.backbone, hidden=20_000))
    model_folder.config.write_text(json.dumps(big.to_dict()))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 500_000_000, before[1]))
    try:
        with pytest.raises(SapcError, match=r"of another network: .*is \[4, 4\] there and \[20000, 20000\]"):
            sapc.load(model_folder.path, "cpu")
        model_folder.weights.rename(model_folder.checkpoint)
        with pytest.raises(SapcError, match="of another network"):
            sapc.training.loop.train(big, model_folder.path, device="cpu")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# -- scores --


def test_scores_with_a_word_for_a_number_are_not_passed_on(model_folder, call, tmp_path):
    shipped = RunFolder(Path(sapc.__file__).parent / "models" / "pretrained" / "heat-ffm")
    scores = read_json(shipped.scores)
    model = sapc.load("heat-ffm", "cpu")
    for path in ("mean.metrics.mmse", "mean.floor.w2", "mean.worst_residual", "mean.metrics", "mean"):
        for value in ("", None, [], float("nan")):
            with pytest.raises(SapcError, match="scores must be what `evaluate` returns"):
                model.save_pretrained(tmp_path / "x", scores=change(scores, path.split("."), value))
    assert not (tmp_path / "x").exists()
    model_folder.scores.write_text(
        json.dumps(change(scores, ["mean", "metrics", "mmse"], "") | {"weights": None})
    )
    code, _, err = call("export", str(model_folder.path), "out")
    assert (code, err.count("\n")) == (2, 1)
    assert "scores.json cannot be used" in err


def test_values_of_any_length_leave_a_sentence_readable():
    with pytest.raises(
        SapcError, match=r"one positive number of modes per axis .* \.\.\. .*hidden 4"
    ) as caught:
        Backbone((4, "x" * 100_000), 4, 8, 4)
    assert len(str(caught.value)) < 900


def test_the_same_tensors_are_the_same_bytes(tmp_path):
    """One entry only: safetensors has metadata in a hash map, whose order varies from call to call."""
    contents = set()
    for i in range(16):
        save_tensors(tmp_path / f"{i}", {"a": torch.ones(3)}, {"step": 1, "range": [0.1, 1e-17]})
        contents.add((tmp_path / f"{i}").read_bytes())
    assert len(contents) == 1
    assert load_tensors(tmp_path / "0")[1] == {"step": 1, "range": [0.1, 1e-17]}
