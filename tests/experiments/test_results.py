"""From folders to one tidy table: exact arithmetic, like with like only, and nothing bad is an exception."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys

import pytest

from hand_made import collect_by_hand, one_set, per_set, scores, write
from sapc.errors import SapcError
from sapc.evaluation.evaluate import evaluate, write_scores
from sapc.experiments.results import (
    Collection,
    Problem,
    Row,
    collect,
    floors,
    notes,
    read_rows,
    rows,
    summary,
    write_rows,
)
from sapc.experiments.results.records import TrainedRun
from sapc.models.scores import Scores
from sapc.training.config import TrainingConfig, training_config
from sapc.training.loop import train
from sapc.training.run_folder import RunFolder

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def kinds(found) -> list[str]:
    return [problem.kind for problem in found.problems]


def one_line(found) -> None:
    """Every problem says in one line why."""
    for problem in found.problems:
        assert problem.reason
        assert "\n" not in str(problem)


def values(found, method: str, metric: str) -> list[float]:
    return [row.value for row in rows(found) if (row.method, row.metric) == (method, metric)]


# -- arithmetic --


def test_mean_error_and_median_by_hand():
    found = collect_by_hand(
        scores(seed=0, sets=per_set(1.0, 2.0)),
        scores(seed=7, sets=per_set(3.0, 6.0)),
    )
    result = summary(rows(found))["heat", "sapc", "mmse"]
    assert (result.mean, result.median, result.n) == (3.0, 2.5, 4)
    assert result.error == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3) / 2, rel=1e-15)
    assert (result.seeds, result.sets) == ((0, 7), ("test0", "test1"))


def test_one_value_has_no_error():
    result = summary(rows(collect_by_hand(scores(sets=per_set(5.0)))))["heat", "sapc", "mmse"]
    assert (result.mean, result.error, result.n) == (5.0, None, 1)


def test_ce_divides_by_ffm_pooled_over_seeds_and_sets():
    ffm = [
        scores(method="ffm", seed=k, sets={"test0": {"ce_local": a, "ce_global": b}})
        for k, a, b in ((0, 2.0, 1.0), (1, 4.0, 3.0))
    ]
    ours = scores(
        sets={"test0": {"ce_local": 0.3, "ce_global": 0.2}, "test1": {"ce_local": 3.0, "ce_global": 0.0}}
    )
    found = collect_by_hand(ours, *ffm)
    assert values(found, "sapc", "ce") == pytest.approx([0.1, 0.5], rel=1e-15)
    assert values(found, "ffm", "ce") == pytest.approx([7 / 12, 17 / 12], rel=1e-15)
    assert summary(rows(found))["heat", "ffm", "ce"].mean == pytest.approx(1.0, rel=1e-15)
    assert notes(found) == []


def test_ce_of_a_task_needs_its_own_ffm():
    found = collect_by_hand(scores(), scores(task="burgers"), scores(task="burgers", method="ffm"))
    assert {row.task for row in rows(found) if row.metric == "ce"} == {"burgers"}
    assert notes(found) == ["no CE for heat: it divides by the errors of ffm, and there are no scores of ffm"]
    zero = collect_by_hand(scores(method="ffm", sets=per_set(1.0, ce_global=0.0)))
    assert values(zero, "ffm", "ce") == []
    assert "must be positive" in notes(zero)[0]


def test_floors_are_pooled_over_sets_and_repeats_and_counted_once():
    own_values = {"test0": {"floor": {"mmse": [1.0, 2.0]}}, "test1": {"floor": {"mmse": [6.0]}}}
    longer = {"test0": {"floor": {"mmse": [1.0, 2.0, 3.0]}}}
    small = {"test0": {"floor": {"mmse": [40.0]}}}
    found = collect_by_hand(
        scores(sets=own_values), scores(seed=1, sets=own_values), scores(method="ffm", sets=longer),
        scores(method="dflow", samples=64, sets=small),
    )  # fmt: skip
    result = floors(found)
    assert set(result) == {("heat", "mmse", 1225), ("heat", "mmse", 64)}
    pooled_summary = result["heat", "mmse", 1225]
    assert (pooled_summary.mean, pooled_summary.n, pooled_summary.sets) == (3.0, 4, ("test0", "test1"))
    assert pooled_summary.error == pytest.approx(math.sqrt((4 + 1 + 9 + 0) / 3) / 2, rel=1e-15)
    assert (result["heat", "mmse", 64].mean, result["heat", "mmse", 64].error) == (40.0, None)


def test_rows_hold_what_is_there_and_no_more():
    found = collect_by_hand(
        scores(method="ffm", sets={"test0": {"fpd": 2.0, "frd": 3.0, "peak_memory": 0}}),
        scores(sets=per_set(1.0)),
    )
    assert values(found, "ffm", "fpd") == [2.0]
    assert values(found, "sapc", "fpd") == values(found, "sapc", "training_seconds") == []
    assert values(found, "ffm", "peak_memory") == []  # 0: the system does not tell
    assert values(found, "sapc", "peak_memory") == [2.0**30]
    assert (
        values(collect_by_hand(scores(device="cpu")), "sapc", "peak_memory") == []
    )  # its training may count too
    assert values(found, "sapc", "evaluations") == [100.0]
    assert values(found, "sapc", "seconds_per_sample") == [0.5]
    result = collect_by_hand(scores(), training_seconds=60.0)
    assert [r for r in rows(result) if r.metric == "training_seconds"] == [
        Row("heat", "sapc", 0, "", "training_seconds", 60.0)
    ]


def test_cost_is_of_one_device_and_fpd_of_one_encoder():
    by = lambda name: {"size": "B", "sha256": name}
    found = collect_by_hand(
        scores(method="ffm", sets=per_set(1.0, fpd=1.0)), scores(sets=per_set(1.0, fpd=2.0)),
        scores(method="eci", device="cpu", sets=per_set(1.0, fpd=3.0)),
    )  # fmt: skip
    for one, name in zip(found.files, "aab", strict=True):
        one.scores.settings.more["fpd_weights"] = [by(name)]
    assert values(found, "eci", "seconds_per_sample") == values(found, "eci", "fpd") == []
    assert values(found, "eci", "evaluations") == [100.0]
    assert (values(found, "ffm", "fpd"), values(found, "sapc", "fpd")) == ([1.0], [2.0])
    assert notes(found) == [
        "heat was sampled on NVIDIA H200, 16 CPU cores: cost is that on NVIDIA H200 only",
        "fpd of heat was made by several encoders: only the most frequent one counts",
    ]


# -- like with like --


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"grid": [50, 50]}, "grid is [50, 50]"),
        ({"options": {"initial_range": [0, 1]}}, "options"),
        ({"preset": "small"}, "preset is 'small'"),
        ({"steps": 500}, "training steps is 500"),
        ({"reference": 8}, "number of reference solutions is 8"),
    ],
)
def test_the_protocol_of_most_scores_counts(tmp_path, change, what):
    write(tmp_path, scores(seed=9, **change), scores(method="ffm"), scores(), scores(seed=1))
    found = collect([tmp_path])
    assert [(s.method, s.seed) for s in found.files] == [("ffm", 0), ("sapc", 0), ("sapc", 1)]
    (problem,) = found.problems
    assert (problem.kind, problem.task, problem.method, problem.seed) == ("left_out", "heat", "sapc", 9)
    assert what in problem.reason
    one_line(found)


def test_of_equally_many_the_longer_training_counts_per_task(tmp_path):
    write(
        tmp_path, scores(steps=500), scores(), scores(task="burgers", steps=500), scores(task="burgers",
        steps=500, seed=1),
        scores(task="burgers"),
    )  # fmt: skip
    found = collect([tmp_path])
    assert [(s.task, s.scores["run"]["steps"]) for s in found.files] == [
        ("heat", 20000), ("burgers", 500), ("burgers", 500),
    ]  # fmt: skip


def test_copies_do_not_make_a_majority(tmp_path):
    write(tmp_path, *[scores(steps=500)] * 3, scores(), scores(seed=1))
    assert [s.scores["run"]["steps"] for s in collect([tmp_path]).files] == [20000, 20000]


@pytest.mark.parametrize("name", ["samples", "settings_steps"])
def test_sampling_may_differ_between_methods_but_not_within_one(tmp_path, name):
    def other_scores(content):
        content["settings"][name.removeprefix("settings_")] = 64
        return content

    write(
        tmp_path, scores(), scores(seed=1), other_scores(scores(seed=2)),
        other_scores(scores(method="dflow")),
        other_scores(scores(method="dflow", seed=1)),
    )  # fmt: skip
    found = collect([tmp_path])
    assert [(s.method, s.seed) for s in found.files] == [
        ("sapc", 0),
        ("sapc", 1),
        ("dflow", 0),
        ("dflow", 1),
    ]
    assert [(p.kind, p.seed) for p in found.problems] == [("left_out", 2)]


def test_a_joint_batch_is_part_of_the_problem(tmp_path):
    write(tmp_path, *(scores(method="dflow", seed=k, batch=b) for k, b in ((0, 32), (1, 32), (2, 64))))
    write(tmp_path, *(scores(seed=k, batch=b) for k, b in ((0, 32), (1, 64))))
    found = collect([tmp_path])
    assert [(s.method, s.seed) for s in found.files] == [
        ("dflow", 0),
        ("dflow", 1),
        ("sapc", 0),
        ("sapc", 1),
    ]
    assert "batch" in found.problems[0].reason


def test_precision_counts_where_it_is_told(tmp_path):
    states = [
        {**scores(seed=k), "training": {"precision": p}} for k, p in ((0, "bf16"), (1, "tf32"), (2, "bf16"))
    ]
    write(tmp_path, *states, scores(method="eci"))
    found = collect([tmp_path])
    assert [(s.method, s.seed) for s in found.files] == [("sapc", 0), ("sapc", 2), ("eci", 0)]
    assert "precision is 'tf32'" in found.problems[0].reason


@pytest.mark.parametrize(
    "better",
    [
        {"sets": per_set(1.0, 2.0, 3.0)},
        {"sets": per_set(1.0, 2.0, fpd=1.0)},
        {"time": "2026-02-01T00:00:00+00:00"},
    ],
)
def test_of_the_same_scores_the_more_complete_or_newer_one_counts(tmp_path, better):
    first, second, third = write(tmp_path, scores(), scores(**better), scores())
    found = collect([tmp_path])
    assert [s.path for s in found.files] == [second]
    assert [p.path for p in found.problems] == [third, first]
    assert all(str(second) in p.reason for p in found.problems)


def test_seeds_of_a_method_share_their_test_sets(tmp_path):
    """Else a set that more seeds have would weigh more in the mean."""
    whole, part = per_set(1.0, 9.0, 9.0, 9.0), per_set(1.0)
    seeds = [scores(seed=k, sets=sets) for k, sets in ((0, whole), (42, part), (205, part))]
    write(tmp_path, *seeds, scores(method="ffm", sets=part))
    found = collect([tmp_path])
    assert [(s.method, s.seed) for s in found.files] == [("sapc", 0), ("ffm", 0)]
    assert [p.seed for p in found.problems] == [42, 205]
    assert found.problems[0].reason.startswith(
        "its list of test sets is ['test0'], that of the scores of sapc on heat that count"
    )
    assert summary(rows(found))["heat", "sapc", "mmse"].mean == 7.0


def test_a_file_given_twice_is_found_once(tmp_path):
    (path,) = write(tmp_path, scores())
    found = collect([tmp_path, path, tmp_path / "." / path.name, tmp_path])
    assert (len(found.files), found.problems) == (1, [])


def test_a_method_of_ones_own_is_no_problem(tmp_path):
    write(tmp_path, scores(method="mine", task="own"))
    assert [(s.task, s.method) for s in collect([tmp_path]).files] == [("own", "mine")]


# -- bad input --


def without(*path: str):
    def change(content):
        for name in path[:-1]:
            content = content[name]
        del content[path[-1]]

    return change


def insert(value, *path: str):
    def change(content):
        for name in path[:-1]:
            content = content[name]
        content[path[-1]] = value

    return change


BAD = {
    "no run": without("run"),
    "no seed": without("run", "seed"),
    "no settings": without("settings"),
    "no samples": without("settings", "samples"),
    "no sets": insert({}, "sets"),
    "sets of a list": insert([1], "sets"),
    "no metrics": without("sets", "test0", "metrics"),
    "no mmse": without("sets", "test0", "metrics", "mmse"),
    "no floor": without("sets", "test0", "floor"),
    "no time": without("sets", "test0", "seconds_per_sample"),
    "nan": insert(math.nan, "sets", "test0", "metrics", "w2"),
    "none": insert(None, "sets", "test1", "metrics", "w2"),
    "infinite": insert(math.inf, "sets", "test1", "metrics", "fpd"),
    "text": insert("1.0", "sets", "test1", "metrics", "ce_local"),
    "true": insert(True, "sets", "test1", "metrics", "ce_local"),
    "beyond floats": insert(10**400, "sets", "test1", "metrics", "ce_local"),
    "floor of nan": insert({"mmse": [math.nan]}, "sets", "test0", "floor"),
    "floor of a number": insert({"mmse": 1.0}, "sets", "test0", "floor"),
    "set of nothing": insert(None, "sets", "test0"),
    "seed of text": insert("0", "run", "seed"),
    "seed beyond": insert(2**63, "run", "seed"),
    "name of no letters": insert("", "run", "task"),
    "name of two lines": insert("a\rb", "settings", "method"),
    "set of two lines": insert({"a\nb": one_set()}, "sets"),
    "metric of a tab": insert(1.0, "sets", "test0", "metrics", "a\tb"),
    "seed below": insert(-1, "run", "seed"),
}


@pytest.mark.parametrize("name", BAD)
def test_damaged_scores_are_a_problem(tmp_path, name):
    content = scores()
    BAD[name](content)
    write(tmp_path, content, scores(method="ffm"))
    found = collect([tmp_path])
    assert [s.method for s in found.files] == ["ffm"]
    assert kinds(found) == ["corrupt"]
    one_line(found)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "corrupt"),
        (json.dumps(scores()).encode()[:-40], "corrupt"),
        (b"\x00\xff\xfe\x89PNG", "corrupt"),
        (b"[" * 100_000, "corrupt"),
        (b"null", "left_out"),
        (b"[1, 2]", "left_out"),
        (b'{"some": "thing"}', "left_out"),
        (b'{"format": "of others"}', "left_out"),
        (b'{"format": 3}', "left_out"),
    ],
)
def test_what_is_no_file_of_scores_is_a_problem(tmp_path, content, kind):
    (tmp_path / "bad.json").write_bytes(content)
    for place in (tmp_path, tmp_path / "bad.json"):
        found = collect([place])
        assert (found.files, kinds(found)) == ([], [kind])
        assert found.problems[0].path == tmp_path / "bad.json"
        one_line(found)


def test_other_files_of_the_package_are_no_problem(tmp_path):
    (tmp_path / "c.json").write_text('{"format": "sapc-comparison-1"}')
    (tmp_path / "note.txt").write_text("no JSON")
    (tmp_path / ".hidden.json").write_text("half-written")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.json").write_text("nothing of ours")
    assert collect([tmp_path]).problems == []


def test_what_is_not_even_a_readable_file(tmp_path):
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    os.mkfifo(tmp_path / "pipe.json")  # reading it would wait for ever
    found = collect([tmp_path])
    assert [(p.kind, p.path.name) for p in found.problems] == [
        ("corrupt", "gone.json"),
        ("corrupt", "loop.json"),
        ("corrupt", "pipe.json"),
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="everything is readable to root")
def test_unreadable_files_and_folders_are_problems(tmp_path):
    (path,) = write(tmp_path / "a", scores())
    path.chmod(0)
    (tmp_path / "b").mkdir(mode=0)
    found = collect([tmp_path])
    assert kinds(found) == ["corrupt", "corrupt"]


def test_a_path_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(SapcError, match=r"there is no .*nowhere"):
        collect([tmp_path, tmp_path / "nowhere"])


def test_nothing_at_all(tmp_path):
    for found in (collect([]), collect([tmp_path])):
        assert (found.files, found.problems, found.tasks) == ([], [], [])
        assert (rows(found), summary([]), floors(found), notes(found)) == ([], {}, {}, [])


def _places(content, path=()):
    """Where something stands in nested records and lists."""
    items = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for name, value in items:
        yield (*path, name)
        yield from _places(value, (*path, name))


PLACES = list(_places(scores(sets={"test0": {"floor": {"mmse": [1.0]}}})))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES), value=ANYTHING, cut=st.none() | st.integers(0, 900))
def test_whatever_stands_in_a_file_it_counts_or_is_told(tmp_path, place, value, cut):
    content = scores(sets={"test0": {"floor": {"mmse": [1.0]}}})
    inner = content
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    (tmp_path / "x.json").write_text(json.dumps(content)[:cut])
    found = collect([tmp_path])
    ours = str(content.get("format")).startswith("sapc-")
    assert len(found.files) + len(found.problems) == 1 or (ours and content["format"] != "sapc-scores-1")
    one_line(found)
    assert all(math.isfinite(row.value) for row in rows(found))
    summary(rows(found))
    floors(found)


# -- run folders --


@pytest.fixture(scope="module")
def trained_runs(tmp_path_factory):
    """Two small runs with three files of scores; nobody writes to it."""
    out = tmp_path_factory.mktemp("runs") / "c"
    for weights, users in (("ffm", ("ffm", "eci")), ("sapc", ("sapc",))):
        folder = train(
            training_config("heat", weights, "tiny", steps=10), out / f"heat-{weights}", device="cpu"
        ).path
        for method in users:
            found = evaluate(
                folder, ["test1"], 4, reference=8, steps=2, floor_repeats=1, method=method, device="cpu"
            )
            write_scores(folder, found)
    return out


@pytest.fixture
def runs(trained_runs, tmp_path):
    shutil.copytree(trained_runs, tmp_path / "c")
    return tmp_path / "c"


def test_run_folders_with_what_they_tell(runs):
    found = collect([runs])
    assert [(s.task, s.method, s.seed) for s in found.files] == [
        ("heat", "eci", 0),
        ("heat", "ffm", 0),
        ("heat", "sapc", 0),
    ]
    assert found.problems == []
    table = rows(found)
    assert {row.method for row in table if row.metric == "training_seconds"} == {"ffm", "sapc"}
    assert summary(table)["heat", "ffm", "ce"].mean == pytest.approx(1.0, rel=1e-14)
    states = json.loads((runs / "heat-ffm" / "scores-eci.json").read_text())["sets"]["test1"]["metrics"]
    assert values(found, "eci", "w2") == [states["w2"]]
    assert floors(found)["heat", "w2", 4].n == 1


def test_training_time_from_the_log_if_the_weights_are_gone(runs):
    for folder in ("heat-ffm", "heat-sapc"):
        (runs / folder / "weights.safetensors").unlink()
    last = RunFolder(runs / "heat-sapc").entries()[-1]
    assert values(collect([runs]), "sapc", "training_seconds") == [last["seconds"]]


def test_one_file_of_a_run_folder(runs):
    found = collect([runs / "heat-ffm" / "scores-eci.json"])
    assert [(s.method, s.training["precision"]) for s in found.files] == [("eci", "float32")]


def test_scores_of_other_weights_do_not_count(runs):
    weights = runs / "heat-ffm" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    found = collect([runs])
    assert [s.method for s in found.files] == ["sapc"]
    assert sorted((p.kind, p.method) for p in found.problems) == [("left_out", "eci"), ("left_out", "ffm")]
    assert all("other weights" in p.reason for p in found.problems)


def test_scores_of_another_run_do_not_count(runs):
    shutil.copy(runs / "heat-sapc" / "scores.json", runs / "heat-ffm" / "scores.json")
    found = collect([runs])
    assert sorted(s.method for s in found.files) == ["eci", "sapc"]
    assert "another run" in found.problems[0].reason


def test_parts_count_where_the_whole_is_missing(runs):
    folder = runs / "heat-ffm"
    shutil.copy(folder / "scores.json", folder / "scores-part.json")
    found = collect([runs])
    assert [(p.kind, p.path.name) for p in found.problems] == [("left_out", "scores-part.json")]
    (folder / "scores.json").write_text("{")
    found = collect([runs])
    assert sorted(s.path.name for s in found.files) == ["scores-eci.json", "scores-part.json", "scores.json"]
    (problem,) = found.problems
    assert (problem.kind, problem.task, problem.method, problem.seed) == ("corrupt", "heat", "ffm", 0)


def test_runs_without_scores(runs):
    for path in runs.glob("*/scores*.json"):
        path.unlink()
    (runs / "heat-sapc" / "weights.safetensors").unlink()
    found = collect([runs])
    assert sorted((p.kind, p.method) for p in found.problems) == [("missing", "ffm"), ("unfinished", "sapc")]
    assert "step 10 of 10" in next(p.reason for p in found.problems if p.kind == "unfinished")


def test_a_damaged_configuration_is_told_and_the_scores_still_count(runs):
    config = runs / "heat-sapc" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "steps": -1}))
    found = collect([runs])
    assert [(p.kind, p.path.name) for p in found.problems] == [("corrupt", "config.json")]
    assert len(found.files) == 3


def test_scores_of_an_unfinished_training_do_not_count(tmp_path):
    content = scores()
    content["run"]["trained"] = 50
    write(tmp_path, content)
    (problem,) = collect([tmp_path]).problems
    assert (problem.kind, problem.method) == ("unfinished", "sapc")
    assert "step 50 of 20000" in problem.reason


def test_a_study_and_scores_may_name_the_preset_paper(tmp_path):
    run = training_config("heat", "sapc", "published")
    old_scores = {**json.loads(json.dumps(run.to_dict())), "preset": "paper"}
    run_record = TrainedRun(tmp_path, TrainingConfig.from_dict(old_scores))
    assert run_record.find_difference(old_scores) == ""
    assert "preset" in run_record.find_difference({**old_scores, "preset": "full"})
    assert "projector" in run_record.find_difference({**old_scores, "projector": "paper"})
    content = scores(preset="paper")
    content["run"]["options"] = {}
    assert run_record.find_contradiction(Scores.from_dict(content)) == ""


# -- studies --


def cell(task: str, method: str, seed: int, folder: str) -> dict:
    return {
        "name": f"{task}-{method}-seed{seed}",
        "task": task,
        "method": method,
        "seed": seed,
        "folder": folder,
    }


@pytest.fixture
def study(runs):
    """A study of which something was done, something failed, and something was never begun."""
    (runs / "heat-unfinished").mkdir()
    run = training_config("heat", "sapc", "tiny", seed=3)
    (runs / "heat-unfinished" / "config.json").write_text(json.dumps(run.to_dict()))
    cells = [
        cell("heat", "sapc", 0, "heat-sapc"), cell("heat", "ffm", 0, "heat-ffm"), cell("heat", "eci", 0,
        "heat-ffm"),
        cell("heat", "pcfm", 0, "heat-ffm"), cell("heat", "cafm", 0, "heat-cafm"), cell("burgers", "sapc", 0,
        "burgers-sapc"),
        cell("heat", "sapc", 3, "heat-unfinished"), cell("heat", "pbfm", 0, "heat-pbfm"),
    ]  # fmt: skip
    (runs / "study.json").write_text(json.dumps({"format": "sapc-study-1", "name": "all", "cells": cells}))
    (runs / "states").mkdir()
    states = {
        "heat-pcfm-seed0": {"state": "failed", "error": "out of\nmemory"},
        "heat-cafm-seed0": {"state": "running"},
        "heat-sapc-seed0": {"state": "done"},
        "heat-eci-seed0": {"state": "failed", "error": "but scored before"},
    }
    for name, state in states.items():
        (runs / "states" / f"{name}.json").write_text(json.dumps(state))
    (runs / "states" / "heat-pbfm-seed0.json").write_text("{")
    return runs


@pytest.mark.parametrize("given_as", ["folder", "file"])
def test_studies_tell_what_is_missing(study, given_as):
    found = collect([study if given_as == "folder" else study / "study.json"])
    assert sorted(s.method for s in found.files) == ["eci", "ffm", "sapc"]
    assert found.studies == ["all"]
    states = {(p.task, p.method, p.seed): (p.kind, p.reason) for p in found.problems}
    assert len(states) == len(found.problems) == 5
    assert states["heat", "pcfm", 0] == ("failed", "out of memory")
    assert states["heat", "cafm", 0] == ("unfinished", "is running, or was killed meanwhile")
    assert states["burgers", "sapc", 0] == ("missing", "has no scores and was not begun")
    assert states["heat", "sapc", 3] == ("unfinished", "training stopped or is under way, step 0 of 20")
    assert states["heat", "pbfm", 0][0] == "missing"
    one_line(found)


def test_a_cell_with_damaged_scores_is_told_once(study):
    (study / "heat-ffm" / "scores-eci.json").write_text("{")
    assert [p.kind for p in collect([study]).problems if p.method == "eci"] == ["corrupt"]


def test_cells_outside_the_study_are_looked_at(study, tmp_path):
    content = json.loads((study / "study.json").read_text())
    for one in content["cells"]:
        one["folder"] = f"../c/{one['folder']}"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "study.json").write_text(json.dumps(content))
    assert len(collect([tmp_path / "elsewhere"]).files) == 3


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"format": "sapc-study-9", "cells": []}', '{"format": "sapc-study-1", "cells": 3}'],
)
def test_a_manifest_that_cannot_be_read(runs, content):
    (runs / "study.json").write_text(content)
    found = collect([runs])
    assert (len(found.files), kinds(found)) == (3, ["corrupt"])


def test_a_cell_that_cannot_be_read(runs):
    cells = [None, {"name": "x"}, cell("heat", "sapc", 0, "heat-sapc") | {"seed": "0"}]
    (runs / "study.json").write_text(json.dumps({"format": "sapc-study-1", "name": "s", "cells": cells}))
    assert kinds(collect([runs])) == ["corrupt"] * 3


# -- files --

ROWS = [
    Row("heat", "sapc", 0, "test0", "mmse", 0.1 + 0.2),
    Row("heat", 'a,"b"', 2**62, "", "training_seconds", 5e-324),
]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_rows_come_back_as_they_were(tmp_path, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    for table in (ROWS, []):
        write_rows(table, tmp_path / name)
        assert read_rows(tmp_path / name) == table
        assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.slow
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.text().filter(str.isprintable), min_size=4, max_size=4),
    seed=st.integers(0, 2**63 - 1),
    value=st.floats(allow_nan=False),
)
def test_csv_holds_every_word_and_number(tmp_path, words, seed, value):
    task, method, split, metric = words
    table = [Row(task, method, seed, split, metric, value)]
    write_rows(table, tmp_path / "t.csv")
    assert read_rows(tmp_path / "t.csv") == table


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
@pytest.mark.parametrize(
    "content", [b"", b"a,b\n1,2\n", b"\xff\x00\x01", b"task,method,seed,set,metric,value\nx,y,z\n"]
)
def test_other_files_are_refused(tmp_path, name, content):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SapcError, match="not a table of results"):
        read_rows(tmp_path / name)


def test_refused_names_and_a_missing_library(tmp_path, monkeypatch):
    with pytest.raises(SapcError, match="neither CSV nor Parquet"):
        write_rows(ROWS, tmp_path / "t.txt")
    with pytest.raises(SapcError, match="there is no file"):
        read_rows(tmp_path / "t.csv")
    with pytest.raises(SapcError, match="cannot write"):
        write_rows(ROWS, tmp_path / "nowhere" / "t.csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SapcError, match=r"pip install 'sapc\[report\]'"):
        write_rows(ROWS, tmp_path / "t.parquet")
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_was_found_is_changed():
    content = scores(method="ffm")
    found = collect_by_hand(content)
    rows(found)
    floors(found)
    assert found.files[0].scores == found.files[0].scores.from_dict(content)


def test_old_names(tmp_path):
    found = collect([tmp_path])
    with pytest.warns(DeprecationWarning, match=r"Collection.scored is now Collection.files"):
        assert found.scored is found.files
    with pytest.warns(DeprecationWarning, match=r"Problem.why is now Problem.reason"):
        assert Problem("missing", tmp_path, "gone").why == "gone"
    with pytest.warns(DeprecationWarning, match="collected= of rows is now collection="):
        assert rows(collected=found) == []
    with pytest.warns(DeprecationWarning, match="Collected is now"):
        from sapc.experiments.results import Collected
    assert Collected is Collection
