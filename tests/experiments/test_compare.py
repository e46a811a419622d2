"""Methods side by side: from training to tables, continued after an interruption, refused before the work."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("rich")
pytest.importorskip("typer")
from rich.cells import cell_len
from rich.console import Console

from commands import is_one_sentence, list_files
from hand_made import one_skill
from sapc import cli
from sapc.errors import SapcError
from sapc.evaluation.evaluate import evaluate
from sapc.experiments import Study, statuses
from sapc.experiments.comparison import Comparison, markdown, notes, tables
from sapc.methods import get_method, method_names
from sapc.training.run_folder import RunFolder, read_json, write_json

QUICK = (
    "compare", "heat", "--preset", "tiny", "--samples", "4", "--steps", "2", "--reference", "8", "--device",
    "cpu",
    "--out", "c",
)  # fmt: skip
SETTINGS = {"preset": "tiny", "samples": 4, "steps": 2, "reference": 8, "device": "cpu"}
EXACT = ("sapc", "eci", "pcfm", "cafm", "sapc_s1", "sapc_s2")
TRAINED_METHODS = ("sapc", "ffm", "sapc_s2", "cond_ffm", "cafm", "pbfm")


@pytest.fixture(scope="module")
def finished_comparison(tmp_path_factory):
    """A comparison of all methods that nobody writes to, and its result."""
    plan = Comparison("heat", out=tmp_path_factory.mktemp("compare") / "c", **SETTINGS)
    return plan, plan.compare()


@pytest.fixture
def comparison_folder(finished_comparison, folder):
    """A finished comparison of one's own."""
    shutil.copytree(finished_comparison[0].out, folder / "c")
    return folder / "c"


def scores_by_method(plan: Comparison) -> dict:
    """The scores of every method that is done."""
    results = statuses(plan.study, plan.cells)
    return {status.cell.method: status.scores for status in results if status.state == "done"}


def scores_in(out: Path) -> dict[str, int]:
    """When every file of scores was written."""
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in out.glob("*/scores*.json")}


def rows_of(lines: list[str]) -> list[list[str]]:
    """The words of a table's rows: those that begin with a method or with the floor."""
    words = [line.split() for line in lines]
    return [row for row in words if row and row[0] in ("floor", *method_names(variants=True))]


# -- all of it --


@pytest.mark.slow
def test_all_methods_in_one_command(call, folder):
    code, out, err = call(*QUICK)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert sorted(line for line in lines if line.startswith("training ")) == sorted(
        f"training {name} on heat, 16 x 16 points, 20 steps in c/heat-{name}" for name in TRAINED_METHODS
    )
    assert sorted(line.split()[1].strip(",") for line in lines if line.startswith("scored: ")) == sorted(
        method_names(extensions=False)
    )
    assert max(map(cell_len, lines)) <= 80
    assert "…" not in out
    rows = rows_of(lines)
    assert [row[0] for row in rows] == [
        "floor",
        *method_names(extensions=False),
        *method_names(extensions=False),
    ]
    assert {len(row) for row in rows[:12]} == {6}
    assert {len(row) for row in rows[12:] if get_method(row[0]).trains} == {7}
    assert [row[6:] for row in rows[12:] if row[0] == "eci"] == [["of", "ffm"]]
    assert lines[-1] == "runs and scores: c"
    assert sorted(p.name for p in Path("c").iterdir()) == sorted(
        [
            *(f"heat-{name}" for name in TRAINED_METHODS),
            *("heat-comparison.json", "heat-comparison.md", "logs", "states", "study.json"),
        ]
    )
    zero_shot = sorted(p.name for p in Path("c/heat-ffm").glob("scores*.json"))
    assert zero_shot == sorted(
        ["scores.json", *(f"scores-{m}.json" for m in ("sapc_s1", "sapc_s3", "eci", "pcfm", "dflow"))]
    )


@pytest.mark.slow
def test_exact_methods_are_exact_and_ce_is_that_of_ffm(finished_comparison):
    methods = finished_comparison[1]["methods"]
    assert list(methods) == method_names(extensions=False)
    for name in EXACT:
        assert methods[name]["metrics"]["ce_local"] == 0.0
        assert methods[name]["metrics"]["ce_global"] < 1e-12
        assert methods[name]["ce"] < 1e-12
    assert methods["ffm"]["ce"] == 1.0
    assert all(about["ce"] > 1e-3 for name, about in methods.items() if name not in EXACT)
    assert {name: about["evaluations"] for name, about in methods.items()} == {
        name: get_method(name).evaluations(2) for name in method_names(extensions=False)
    }


def test_the_floor_is_computed_once_and_in_every_file(finished_comparison):
    """A file of scores is what `evaluate` would have written, and the fingerprint of the weights."""
    plan, result = finished_comparison
    by_method = scores_by_method(plan)
    assert set(by_method) == set(method_names(extensions=False))
    assert all(s["mean"]["floor"] == by_method["sapc"]["mean"]["floor"] for s in by_method.values())
    assert len(by_method["eci"]["sets"]["test1"]["floor"]["w2"]) == 3
    assert result["floors"] == [{"samples": 4, "metrics": by_method["sapc"]["mean"]["floor"], "left_out": ""}]
    repetition = evaluate(Path(plan.out) / "heat-ffm", ("test1",), 4, 8, 2, 0, 3, method="eci", device="cpu")
    assert set(by_method["eci"]) - set(repetition) == {"weights"}
    assert repetition["settings"] == by_method["eci"]["settings"]
    assert repetition["sets"]["test1"].keys() == by_method["eci"]["sets"]["test1"].keys()
    for entry in ("metrics", "floor"):
        assert repetition["sets"]["test1"][entry] == by_method["eci"]["sets"]["test1"][entry]
        assert repetition["mean"][entry] == by_method["eci"]["mean"][entry]


def test_json_and_markdown_say_the_same(finished_comparison):
    plan, result = finished_comparison
    as_json, as_markdown = plan.files
    assert read_json(as_json) == result
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    text = as_markdown.read_text()
    assert text == markdown(result)
    cells = [line.strip("|").replace("*", "").split("|") for line in text.splitlines() if line[:1] == "|"]
    first = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in cells[2:14]}
    for name, about in result["methods"].items():
        numbers = [float(cell) for cell in first[name]]
        metrics = [about["metrics"][k] for k in ("mmse", "smse", "w2", "crps", "energy_score")]
        assert all(math.isclose(*pair, rel_tol=6e-3) for pair in zip(numbers, metrics, strict=True))
    best = [min(result["methods"].values(), key=lambda a, k=k: a["metrics"][k]) for k in ("mmse", "w2")]
    assert all(
        f"**{about['metrics'][k]:.2e}**" in text for about, k in zip(best, ("mmse", "w2"), strict=True)
    )
    assert not any("*" in line for line in text.splitlines() if line.startswith("| floor"))


# -- continued --


@pytest.mark.slow
def test_a_second_call_samples_nothing_and_gives_the_same(call, comparison_folder):
    before, text = scores_in(comparison_folder), (comparison_folder / "heat-comparison.md").read_text()
    code, out, err = call(*QUICK)
    assert (code, err) == (0, "")
    assert scores_in(comparison_folder) == before
    assert out.count("already trained: ") == len(TRAINED_METHODS)
    assert all(
        name in out[out.index("already scored: ") : out.index("Distribution")]
        for name in method_names(extensions=False)
    )
    assert (comparison_folder / "heat-comparison.md").read_text() == text
    code, output, _ = call(*QUICK, "--json")
    assert code == 0
    assert json.loads(output) == read_json(comparison_folder / "heat-comparison.json")
    assert scores_in(comparison_folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["deleted", "damaged", "other weights"])
def test_only_what_is_missing_is_done_again(call, comparison_folder, finished_comparison, harm):
    before, path = scores_in(comparison_folder), comparison_folder / "heat-ffm/scores-eci.json"
    if harm == "deleted":
        path.unlink()
    elif harm == "damaged":
        path.write_text("{")
    else:
        write_json(path, read_json(path) | {"weights": "0"})
    code, _, err = call(*QUICK)
    assert (code, err) == (0, "")
    after = scores_in(comparison_folder)
    assert [name for name in after if after[name] != before[name]] == ["heat-ffm/scores-eci.json"]
    result = read_json(comparison_folder / "heat-comparison.json")
    assert result["methods"]["eci"]["metrics"] == finished_comparison[1]["methods"]["eci"]["metrics"]
    assert result["floors"] == finished_comparison[1]["floors"]


@pytest.mark.slow
def test_other_settings_are_sampled(call, comparison_folder):
    before = scores_in(comparison_folder)
    methods_options = ("--method", "sapc", "--method", "eci_stokes_bc", "--method", "sapc")
    for options in (("--seed", "0", "--set", "test2"), ("--floor-repeats", "1"), ("--samples", "5")):
        code, out, _ = call(*QUICK, *methods_options, *options, "--json")
        assert code == 0
        result = json.loads(out)
        assert list(result["methods"]) == ["sapc", "eci_stokes_bc"]
        assert all(about["ce"] is None for about in result["methods"].values())
        after = scores_in(comparison_folder)
        assert {path.split("/")[0] for path in after if after[path] != before.get(path)} == {
            "heat-sapc",
            "heat-ffm",
        }
        before = after
    assert result["samples"] == 5


@pytest.mark.slow
def test_what_was_evaluated_alone_is_used(call, comparison_folder):
    for path in comparison_folder.glob("heat-sapc/scores*.json"):
        path.unlink()
    settings = ("--samples", "4", "--steps", "2", "--reference", "8", "--set", "test1", "--sampler", "euler")
    assert call("evaluate", str(comparison_folder / "heat-sapc"), *settings)[0] == 0
    before = scores_in(comparison_folder)
    code, out, _ = call(*QUICK)
    assert code == 0
    assert "already scored: sapc," in out
    assert scores_in(comparison_folder) == before


@pytest.mark.slow
def test_weights_trained_anew_are_scored_anew(call, comparison_folder):
    RunFolder(comparison_folder / "heat-pbfm").weights.write_bytes(
        RunFolder(comparison_folder / "heat-ffm").weights.read_bytes()
    )
    before = scores_in(comparison_folder)
    assert call(*QUICK)[0] == 0
    after = scores_in(comparison_folder)
    assert [name for name in after if after[name] != before[name]] == ["heat-pbfm/scores.json"]


@pytest.mark.slow
def test_an_interruption_loses_the_method_being_sampled_only(comparison_folder, folder):
    """The real command is interrupted once it has scored a method."""
    line = [sys.executable, "-m", "sapc", *QUICK, "--steps", "300"]
    take_interrupts = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(line, preexec_fn=take_interrupts, **pipes) as process:
        try:
            assert any(message.startswith("scored: sapc,") for message in process.stdout)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert is_one_sentence(err), err
    assert "what is trained and scored is kept, and the same command continues from there" in err
    plan = Comparison("heat", out="c", **SETTINGS | {"steps": 300})
    assert "sapc" in scores_by_method(plan)
    assert "pbfm" not in scores_by_method(plan)
    assert not list(folder.rglob("*.partial"))


# -- fewer samples, failures --


def test_fewer_samples_of_d_flow_are_said_and_have_their_own_floor(call, comparison_folder, monkeypatch):
    code, out, _ = call(*QUICK, "--dflow-samples", "3", "--method", "dflow", "--method", "ffm")
    assert code == 0
    assert [" ".join(row[:2]) for row in rows_of(out.splitlines())[1:3]] == ["floor (3)", "dflow (3)"]
    assert "(3): dflow with 3 samples, so with a higher floor" in out
    assert max(map(cell_len, out.splitlines())) <= 80
    result = read_json(comparison_folder / "heat-comparison.json")
    assert [floor["samples"] for floor in result["floors"]] == [4, 3]
    assert {name: about["samples"] for name, about in result["methods"].items()} == {"dflow": 3, "ffm": 4}
    bold = tables(result)[0].best
    assert bold == {(3, j) for j in range(1, 6)}  # FFM is alone with the full number


def test_how_many_samples():
    counts = lambda task, **options: [Comparison(task, **options).count(name) for name in ("sapc", "dflow")]
    assert counts("heat") == [256, 32]
    assert counts("navier_stokes") == [32, 32]
    assert counts("heat", samples=20) == [20, 20]
    assert counts("heat", samples=20, coupled_samples=40) == [20, 40]


@pytest.mark.slow
def test_a_method_that_fails_does_not_stop_the_others(call, comparison_folder, monkeypatch):
    Path("c/heat-ffm/scores-pcfm.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr("sapc.experiments.cell.evaluate", _fails)
        code, out, err = call(*QUICK)
    assert code == 1
    assert err == "sapc: warning: pcfm failed, going on with the others: no finite samples\n"
    assert "failed: pcfm: no finite samples" in out
    assert "pcfm" not in [row[0] for row in rows_of(out.splitlines())]
    assert "failed: pcfm: no finite samples" in (comparison_folder / "heat-comparison.md").read_text()
    assert call(*QUICK)[0] == 0
    assert read_json(comparison_folder / "heat-comparison.json")["failed"] == {}
    Path("c/heat-ffm/scores-pcfm.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr("sapc.experiments.cell.evaluate", _fails)
        code, _, err = call(*QUICK, "--method", "pcfm")
    assert (code, err) == (2, "sapc: no finite samples\n")


def _fails(*_, **__):
    raise SapcError("no finite samples")


def test_the_tables_are_whole_at_80_columns(finished_comparison):
    """With the longest names and numbers there are."""
    result = json.loads(json.dumps(finished_comparison[1]))
    about = result["methods"]["pbfm"]
    about |= {"samples": 3, "evaluations": 42_000, "seconds_per_sample": 1.234e-05, "training_seconds": 1e6}
    about["metrics"] = dict.fromkeys(about["metrics"], 1.234e-17)
    result["methods"]["eci_stokes_bc"] = about | {"weights": "cond_ffm", "ce": 1.2e-17}
    result["floors"] = [result["floors"][0], result["floors"][0] | {"samples": 3}]
    small = dict.fromkeys(one_skill()["metrics"], 1.234e-17) | {"skill_score": -12.3}
    for name in ("sapc", "eci_stokes_bc", "pbfm"):
        result["methods"][name]["skill"] = one_skill(**(small if name == "pbfm" else {}))
    console = Console(width=80, record=True)
    for table in tables(result):
        cli.app.print_table(table, console=console)
    text = console.export_text()
    assert "…" not in text
    assert max(map(cell_len, text.splitlines())) <= 80
    assert "eci_stokes_bc (3)" in text
    assert any(note.startswith("(3): pbfm, eci_stokes_bc with 3 samples") for note in notes(result))


def test_skill_of_methods_side_by_side(finished_comparison):
    """Below climatology and persistence; what is no better than these is said in a note."""
    result = json.loads(json.dumps(finished_comparison[1]))
    assert not any(table.title.startswith("Skill") for table in tables(result))
    result["methods"]["sapc"]["skill"] = one_skill()
    result["methods"]["ffm"]["skill"] = one_skill(crps=0.8, crps_over_climatology=0.0, skill_score=0.0)
    (table,) = [table for table in tables(result) if table.title.startswith("Skill")]
    assert table.title == "Skill per condition: 3 members for each of 8 held-out conditions"
    assert [row[0] for row in table.rows] == ["climatology", "persistence", "sapc", "ffm"]
    assert [row[1] for row in table.rows] == ["0.8", "", "0.4", "0.8"]
    # Of equal numbers all are the best.
    columns = {name: j for j, name in enumerate(table.columns)}
    assert (2, columns["CRPS"]) in table.best
    assert (3, columns["CRPS"]) not in table.best
    assert {(2, columns["RMSE"]), (3, columns["RMSE"])} <= table.best
    assert (2, columns["skill"]) in table.best
    assert not any(j == columns["spread"] for _, j in table.best)
    found = [note for note in notes(result) if "climatology" in note]
    assert len(found) == 1
    assert found[0].startswith("ffm: samples do no better than climatology: CRPS 0.8 beside 0.8")


def test_skill_is_asked_for_once_and_d_flow_has_none():
    plan = Comparison("heat", methods=("sapc", "dflow"), conditions=5, members=3, **SETTINGS)
    sapc, dflow = plan.cells
    assert (sapc.settings.conditions, sapc.settings.members) == (5, 3)
    assert dflow.settings.conditions == 0


def test_the_notes_name_the_sampler(finished_comparison):
    result = json.loads(json.dumps(finished_comparison[1]))
    assert any(note.endswith("sampling steps: 2 (euler)") for note in notes(result))
    result |= {"steps": None}
    result["methods"]["sapc"] |= {"sampler": "multistep"}
    # Results of earlier versions, which name none, are of Euler's steps.
    del result["methods"]["ffm"]["sampler"]
    expected = "sampling steps: each method's own number (euler; sapc: multistep)"
    assert any(note.endswith(expected) for note in notes(result))


def test_a_result_without_a_floor(call, comparison_folder):
    code, out, _ = call(*QUICK, "--method", "ffm", "--floor-repeats", "0")
    assert code == 0
    assert "no sampling floor: not asked for" in out
    assert [row[0] for row in rows_of(out.splitlines())] == ["ffm", "ffm"]


# -- bad calls --

BAD = {
    "unknown task": (["--method", "sapc"], "unknown task 'haet'"),
    "unknown method": (["--method", "sapc", "--method", "spac"], "unknown method 'spac'"),
    "unknown set": (["--set", "test1", "--set", "test9"], "unknown test set 'test9'"),
    "not a test set": (["--set", "train"], "unknown test set 'train'"),
    "unknown preset": (["--preset", "huge"], "unknown preset 'huge'"),
    "one sample": (["--samples", "1"], "number of samples must be a whole number of at least 2, got 1"),
    "one of D-Flow": (["--dflow-samples", "1"], "number of samples must be a whole number of at least 2"),
    "too many": (["--samples", "9" * 12], "GiB"),
    "no reference": (["--reference", "1"], "at least 2, got 1"),
    "no steps": (["--steps", "0"], "at least 1, got 0"),
    "floor repeats": (["--floor-repeats", "-1"], "at least 0, got -1"),
    "bad seed": (["--seed", "-1"], "at least 0, got -1"),
    "bad device": (["--device", "tpu"], "device 'tpu' cannot be used"),
    "another run": (["--seed", "1"], "holds another run: its seed is 0, not 1"),
    "below a file": (["--out", f"{__file__}/n"], "cannot create the folder"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_is_one_sentence_and_changes_nothing(call, comparison_folder, folder, name):
    before = list_files(folder.parent)
    arguments, message = BAD[name]
    line = [word if name != "unknown task" or word != "heat" else "haet" for word in QUICK]
    code, out, err = call(*line, *arguments)
    assert (code, out) == (2, "")
    assert is_one_sentence(err), err
    assert message in err
    assert list_files(folder.parent) == before


@pytest.mark.parametrize("name", ["heat-pbfm", "heat-comparison.md"])
def test_what_belongs_to_others_is_left_alone_before_any_training(call, folder, name):
    (folder / "c" / name).mkdir(parents=True)
    (folder / "c" / name / "mine").write_text("mine")
    before = list_files(folder)
    code, out, err = call(*QUICK)
    assert (code, out) == (2, "")
    assert is_one_sentence(err), err
    assert list_files(folder) == before


def test_bad_calls_from_python(finished_comparison):
    plan = finished_comparison[0]
    with pytest.raises(SapcError, match=r"give methods as a list, as \['sapc'\]"):
        replace(plan, methods="sapc").check()
    with pytest.raises(SapcError, match="give test sets as a list"):
        replace(plan, sets=()).check()


@pytest.mark.slow
def test_a_comparison_is_a_study(call, comparison_folder):
    """Its folder can be looked at and reported as any study's; what was compared there before stays in it."""
    assert call("compare", "burgers", *QUICK[2:], "--method", "ffm")[0] == 0
    code, out, _ = call("study", "status", "c", "--json")
    status = json.loads(out)
    assert (code, status["counts"]["done"]) == (0, len(method_names(extensions=False)) + 1)
    assert call("report", "c", "--out", "report")[0] == 0
    assert "| SAPC" in Path("report/tables.md").read_text()


def test_the_old_name():
    with pytest.warns(DeprecationWarning, match="sapc.compare is now"):
        from sapc.compare import Comparison as old
    assert old is Comparison
    with pytest.warns(DeprecationWarning, match=r"sapc.study(.plan)? is now"):
        from sapc.study.plan import Study as old_study
    assert old_study is Study  # the same class, not one that was loaded a second time
