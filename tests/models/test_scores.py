"""The record of scores: nothing is lost between file and record, and arithmetic of averages and merges is exact."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from hand_made import one_set, scores
from sapc.errors import SapcError
from sapc.evaluation.config import EvaluationConfig
from sapc.experiments import Cell, cells
from sapc.methods import get_method
from sapc.models.scores import FORMAT, MeanScores, Scores

ROOT = Path(__file__).parents[2]
PLACES = (
    ROOT / "results",
    ROOT / "src" / "sapc" / "models" / "pretrained",
    ROOT / "tests" / "golden" / "v0_1_0",
)
FILES = [
    path
    for place in PLACES
    for path in sorted(place.rglob("*.json"))
    if json.loads(path.read_text()).get("format") == FORMAT
]


def sets(**values: float) -> dict:
    return {f"test{i}": {"mmse": value, **values} for i, value in enumerate((1.0, 3.0))}


def test_every_file_of_the_repository_survives_reading_and_writing(tmp_path):
    assert len(FILES) > 75
    for path in FILES:
        content = json.loads(path.read_text())
        found = Scores.read(path)
        found.write(tmp_path / "scores.json")
        again = json.loads((tmp_path / "scores.json").read_text())
        # What an old file lacks is averaged now; everything that is there stays, in its order.
        assert again == content | {"mean": again["mean"]}
        assert again["mean"] == again["mean"] | content["mean"]
        if set(again["mean"]) == set(content["mean"]):
            assert json.dumps(again) == json.dumps(content)


def test_unknown_entries_are_kept_everywhere():
    content = scores()
    for part in (content, content["run"], content["settings"], content["sets"]["test0"]):
        part["later"] = {"of": "a newer version"}
    found = Scores.from_dict(content)
    assert found.to_dict() == content | {"mean": found.mean.to_dict()}


def test_a_file_may_name_the_preset_paper():
    """It is the same training as by the new name, and the file stays as it is."""
    content = scores()
    content["run"]["preset"] = "paper"
    run = Scores.from_dict(content).run
    assert (run.preset, run.to_dict()["preset"]) == ("published", "paper")
    content["run"]["preset"] = "published"
    assert run == Scores.from_dict(content).run
    assert run.to_dict() | {"preset": "published"} == Scores.from_dict(content).run.to_dict()


def test_the_record_reads_as_the_dictionary_of_its_file():
    found = Scores.from_dict(scores(sets=sets()))
    assert found["mean"]["metrics"]["mmse"] == found.mean.metrics["mmse"] == 2.0
    assert json.loads(json.dumps(found)) == found.to_dict() == {**found}
    assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found


def test_averages_by_hand():
    first = one_set(floor={"mmse": [1.0, 2.0]}, mmse=1.0, seconds_per_sample=1.0, peak_memory=5)
    second = one_set(floor={"mmse": [6.0]}, mmse=4.0, seconds_per_sample=3.0, peak_memory=4)
    second["worst_residual"] = {"local": 2.0, "balance": 0.0}
    content = scores()
    content["sets"] = {"test0": first, "test1": second, "test2": one_set(mmse=1.0, peak_memory=0)}
    mean = MeanScores.average(Scores.from_dict(content).sets.values())
    assert mean.metrics["mmse"] == 2.0
    assert mean.floor == {"mmse": 3.0}
    assert mean.worst_residual == {"local": 2.0, "balance": 0.0}
    assert (mean.seconds_per_sample, mean.peak_memory) == (1.5, 5)


@pytest.mark.parametrize("change", [{"samples": 64}, {"reference": 8}, {"sets": {"test0": {}}}])
def test_smaller_scores_do_not_replace_larger_ones(change):
    whole, small = (Scores.from_dict(scores(**more)) for more in ({}, change))
    assert small.merge(whole) is None
    assert whole.merge(small) is whole
    assert small.merge(replace(whole, weights="of others")) is small


def test_metrics_of_the_same_samples_are_taken_over():
    plain, more = (Scores.from_dict(scores(sets=sets(**values))) for values in ({}, {"frd": 5.0}))
    merged = plain.merge(more)
    assert merged is not None
    assert merged.mean.metrics == more.mean.metrics
    other = replace(more, settings=replace(more.settings, seed=1))
    assert plain.merge(other) is None


def test_a_floor_is_taken_for_the_metrics_that_are_there():
    floor = {"test0": {"floor": {"mmse": [1.0], "frd": [2.0]}}, "test1": {"floor": {"mmse": [3.0]}}}
    found = Scores.from_dict(scores(floor_repeats=0)).with_floor_of(Scores.from_dict(scores(sets=floor)))
    assert found.sets["test0"].floor == {"mmse": [1.0]}
    assert found.mean.floor == {"mmse": 2.0}
    assert found.settings.floor_repeats == 3


def test_a_config_is_completed_by_method_and_grid():
    config = EvaluationConfig(trajectory_samples=2000)
    flat, deep = (config.resolve(get_method("sapc"), axes) for axes in (2, 3))
    assert (flat.samples, deep.samples, flat.steps) == (1225, 100, get_method("sapc").steps)
    assert flat.sets == ("test0", "test1", "test2", "test3")
    assert (flat.trajectory_samples, config.resolve(get_method("dflow"), 2).trajectory_samples) == (1225, 0)
    own = config.resolve(get_method("sapc"), 2, validation_size=40)
    assert (own.sets, own.samples, own.reference) == (("validation",), 40, 40)


def test_settings_by_old_names_and_by_position():
    new = EvaluationConfig(("test0",), 8, steps=3, trajectory_samples=2)
    assert EvaluationConfig.from_settings(["test0", "test0"], 8, sampling_steps=3, watch=2) == new
    assert (
        EvaluationConfig.from_settings(EvaluationConfig(samples=8), splits=("test0",), steps=3, watch=2)
        == new
    )
    with pytest.raises(SapcError, match="give test sets as a list"):
        EvaluationConfig("test0")
    with pytest.raises(SapcError, match="unknown test set 'test9'"):
        EvaluationConfig(["test9"]).check_sets(("test0",))


def test_a_cell_is_the_same_after_its_file():
    for cell in cells(["heat"], ["sapc", "dflow"], preset="tiny", watch=4):
        assert Cell.from_dict(json.loads(json.dumps(cell.to_dict()))) == cell
