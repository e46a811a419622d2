"""From a study to its report: complete, the same after a kill, and made despite missing or damaged files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from commands import is_one_sentence
from sapc.experiments import Local, Study, load_study, open_study, run_study
from sapc.experiments.cell import scores_file
from sapc.experiments.results import read_rows
from studying import study_file

TIMES = ("seconds_per_sample", "training_seconds", "peak_memory")


@pytest.fixture
def study_copy(finished_study, folder):
    shutil.copytree(finished_study.out, folder / "mini")
    return open_study(folder / "mini")


def numbers(report: Path) -> list:
    """Every number of a report that is not a time."""
    return [row for row in read_rows(report / "results.csv") if row.metric not in TIMES]


@pytest.mark.slow
def test_a_study_is_reported_whole(call, study_copy):
    code, out, err = call("report", "mini", "--out", "report")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "page: report/index.html"
    keys = {(row.method, row.seed, row.set) for row in numbers(Path("report"))}
    assert keys == {(m, 0, s) for m in ("sapc", "ffm", "eci") for s in ("test0", "test1")}
    figures = {path.stem for path in Path("report/figures").iterdir()}
    assert figures == {f"heat-{what}" for what in ("ensembles", "examples", "tradeoff", "trajectories")}


@pytest.mark.slow
def test_done_again_after_a_loss_the_report_is_the_same(call, study_copy):
    call("report", "mini", "--out", "before")
    shutil.rmtree(study_copy.out / "heat-ffm-seed0")
    run_study(study_copy, Local("cpu", workers=1, threads=1))
    call("report", "mini", "--out", "after")
    assert numbers(Path("after")) == numbers(Path("before"))
    for name in ("heat-ensembles.png", "heat-examples.png", "heat-trajectories.svg"):
        assert (Path("after/figures") / name).read_bytes() == (Path("before/figures") / name).read_bytes()


@pytest.mark.slow
def test_what_is_missing_failed_or_damaged_is_told_and_the_rest_reported(call, study_copy, folder):
    """Of four cells one is complete, one was never begun, one has failed, one is damaged."""
    larger_study = load_study(study_file(folder, ("sapc", "ffm", "eci", "pcfm", "cafm")), study_copy.out)
    larger_study.write()
    sapc, _, eci, pcfm, _ = larger_study.cells
    larger_study.record(pcfm, "failed", error="1 of 4 samples contain NaN")
    path = scores_file(study_copy.folder(eci), "eci")
    path.write_bytes(path.read_bytes()[:200])
    (study_copy.out / "heat-ffm-seed0" / "fields.safetensors").write_bytes(b"nothing")
    (study_copy.out / "heat-sapc-seed9").mkdir()
    (study_copy.out / "heat-sapc-seed9" / "config.json").write_bytes(b"\xff\xfe")
    code, out, _ = call("report", "mini", "--out", "report")
    assert code == 0
    assert "page: report/index.html" in out
    page = Path("report/index.html").read_text()
    assert "1 of 4 samples contain NaN" in page
    assert "Not all is there: 1 failed, 1 missing, 2 damaged" in page
    for words in (
        "heat pcfm seed 0",
        "mini/heat-ffm-seed0/scores-eci.json",
        "mini/heat-sapc-seed9/config.json",
    ):
        assert words in page
    tables = Path("report/tables.md").read_text()
    line = next(line for line in tables.splitlines() if line.startswith("| Heat | MMSE | ours"))
    cells = dict(zip(("SAPC", "PCFM", "ECI", "CAFM"), (c.strip() for c in line.split("|")[4:8]), strict=True))
    assert cells["PCFM"] == "failed"
    assert cells["CAFM"] == "missing"
    assert cells["ECI"] == "missing"
    assert sapc.find_scores(study_copy.folder(sapc)) is not None
    assert {row.method for row in numbers(Path("report"))} == {"sapc", "ffm"}


@pytest.mark.slow
def test_runs_that_the_study_no_longer_asks_for_do_not_pass_for_its_own(call, study_copy, folder):
    """After a change of the file: another run in the folder fails; dropped scores count, with a note."""
    larger_study = load_study(study_file(folder, options=", steps=40"), study_copy.out)
    cells = [
        cell if cell.method == "sapc" else old
        for cell, old in zip(larger_study.cells, study_copy.cells, strict=True)
    ]
    changed_study = Study("mini", tuple(cells[:2]), study_copy.out)  # without ECI, and SAPC trained longer
    statuses = run_study(changed_study, Local("cpu", workers=1, threads=1))
    assert [s.state for s in statuses] == ["failed", "done"]
    code, _, _ = call("report", "mini", "--out", "report")
    assert code == 0
    page = Path("report/index.html").read_text()
    assert "1 failed" in page
    assert "its run&#39;s steps is 20, the study asks for 40" in page
    tables = Path("report/tables.md").read_text()
    assert (
        "1 of the scores are in a study's folder, but not in its list, and count: "
        "mini/heat-ffm-seed0/scores-eci.json" in tables
    )
    assert {row.method for row in numbers(Path("report"))} == {"ffm", "eci"}


def test_only_methods_that_are_asked_for_have_columns(call, study_copy):
    call("report", "mini", "--out", "report")
    lines = Path("report/tables.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("## ")] == [
        "## Generation",
        "## Generation, further metrics",
        "## Inference cost",
    ]
    assert "| task | metric | whose | SAPC | ECI | FFM | floor |" in lines


@pytest.mark.slow
def test_a_study_of_ablations_alone_and_tables_of_an_earlier_report(call, study_copy, folder):
    other_study = load_study(study_file(folder, ["sapc_s1"], name="other"), folder / "other")
    other_study.write()
    shutil.copytree(study_copy.folder(study_copy.cells[1]).path, other_study.out / "heat-ffm-seed0")
    for path in (other_study.out / "heat-ffm-seed0").glob("scores*"):
        path.unlink()
    assert [s.state for s in run_study(other_study, Local("cpu", workers=1, threads=1))] == ["done"]
    Path("report").mkdir()
    for name in ("generation.csv", "generation.tex", "mine.tex"):
        (Path("report") / name).write_text("old")
    code, _, err = call("report", "other", "--out", "report")
    assert (code, err) == (0, "")
    assert sorted(p.name for p in Path("report").glob("*.tex")) == ["ablation.tex", "cost.tex", "mine.tex"]
    assert sorted(p.stem for p in Path("report").glob("*.csv")) == ["ablation", "cost", "results"]


def test_a_study_without_any_scores_is_refused_in_one_sentence(call, folder):
    study = load_study(study_file(folder), folder / "mini")
    study.write()
    code, _, err = call("report", "mini", "--out", "report")
    assert code == 2
    assert is_one_sentence(err)
    assert "there are no scores that count in mini; 3 problems" in err
    assert not Path("report").exists()
