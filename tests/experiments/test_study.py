"""Studies: from a list of runs to scores; skipped, resumed after kill -9, failing without stopping."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from commands import is_one_sentence
from sapc import SapcError, training_config
from sapc._files import sha256
from sapc.evaluation.moments import EnsembleStatistics
from sapc.experiments import (
    Cell,
    Inline,
    Local,
    Study,
    cells,
    load_study,
    open_study,
    remaining_time,
    run_study,
    statuses,
)
from sapc.experiments.cell import scores_file
from sapc.experiments.engines import Handle, Job
from sapc.models.scores import fields_path
from sapc.training.run_folder import RunFolder, read_json, write_json
from studying import FILE, METHODS, scores_of, study_file, weights_of

QUICK = {
    "preset": "tiny",
    "sets": ("test0", "test1"),
    "samples": 4,
    "sampling_steps": 3,
    "reference": 8,
    "floor_repeats": 1,
}


def times_of_change(study: Study) -> dict[str, int]:
    return {
        str(p): p.stat().st_mtime_ns
        for p in study.out.glob("*/*")
        if p.name != ".lock" and "states" not in p.parts
    }


@pytest.fixture
def study_copy(finished_study, folder) -> Study:
    """One's own copy of a finished study."""
    shutil.copytree(finished_study.out, folder / "mini")
    study_file(folder)
    return open_study(folder / "mini")


# -- all of it --


@pytest.mark.slow
def test_a_study_becomes_run_folders_with_scores_and_fields(finished_study):
    assert sorted(finished_study.jobs()) == ["heat-ffm-seed0", "heat-sapc-seed0"]
    for cell in finished_study.cells:
        scores = cell.find_scores(finished_study.folder(cell))
        assert list(scores["sets"]) == ["test0", "test1"]
        assert scores["sets"]["test0"]["trajectory"]["samples"] == 3
        assert "trajectory" not in scores["sets"]["test1"]
        assert len(scores["sets"]["test1"]["floor"]["w2"]) == 1
        statistics = EnsembleStatistics.load(
            fields_path(scores_file(finished_study.folder(cell), cell.method))
        )
        assert list(statistics.sets) == ["test0", "test1"]
        assert finished_study.state(cell)["state"] == "done"
    eci = finished_study.cells[2].find_scores(finished_study.folder(finished_study.cells[2]))
    assert eci["mean"]["metrics"]["ce_local"] == 0.0
    floors = [c.find_scores(finished_study.folder(c))["mean"]["floor"] for c in finished_study.cells]
    assert floors[0] == floors[1] == floors[2]


def test_the_scores_are_those_of_an_evaluation(finished_study):
    from sapc.evaluation.evaluate import evaluate

    cell = finished_study.cells[2]
    evaluation = evaluate(
        finished_study.folder(cell).path, ("test0", "test1"), 4, 8, 3, 0, 1, method="eci", device="cpu"
    )
    scores = cell.find_scores(finished_study.folder(cell))
    for split in ("test0", "test1"):
        assert evaluation["sets"][split]["metrics"] == pytest.approx(
            scores["sets"][split]["metrics"], rel=1e-6
        )
        floor = scores["sets"][split]["floor"]
        assert {k: v[0] for k, v in evaluation["sets"][split]["floor"].items()} == pytest.approx(
            {k: v[0] for k, v in floor.items()}, rel=1e-6
        )


def test_what_is_done_is_skipped(study_copy):
    before = times_of_change(study_copy)
    statuses_after = run_study(study_copy, Local("cpu", workers=1))
    assert {s.state for s in statuses_after} == {"done"}
    assert times_of_change(study_copy) == before


def test_in_one_process_it_is_the_same(finished_study, folder):
    """No process is started; what happens is told as it happens."""
    study = load_study(study_file(folder), folder / "inline")
    reports, stages = [], set()
    engine = Inline("cpu", lambda cell, stage, count, total, losses: stages.add((cell.method, stage)))
    statuses_after = run_study(
        study, engine, on_change=lambda cell, record: reports.append((cell.method, record["state"]))
    )
    assert {s.state for s in statuses_after} == {"done"}
    assert weights_of(study) == weights_of(finished_study)
    assert scores_of(study) == scores_of(finished_study)
    expected = [(m, state) for m in ("sapc", "ffm") for state in ("training", "evaluating", "done")]
    assert reports == [*expected, ("eci", "evaluating"), ("eci", "done")]
    assert {("sapc", "training"), ("eci", "test0: sampling")} <= stages
    assert {study.state(cell)["process"] for cell in study.cells} == {os.getpid()}


def test_weights_are_read_once_for_all_cells(study_copy, monkeypatch):
    read: list[str] = []
    monkeypatch.setattr(
        "sapc.experiments.cell.sha256", lambda path: read.append(path.parent.name) or sha256(path)
    )
    for _ in range(2):
        assert {s.state for s in statuses(study_copy)} == {"done"}
    assert sorted(read) == ["heat-ffm-seed0", "heat-sapc-seed0"]
    weights = study_copy.folder(study_copy.cells[0]).weights
    weights.write_bytes(weights.read_bytes() + b"x")
    assert [s.state for s in statuses(study_copy)] == ["waiting", "done", "done"]


@pytest.mark.slow
def test_only_what_is_missing_is_done_again(study_copy):
    before = times_of_change(study_copy)
    scores_file(study_copy.folder(study_copy.cells[2]), "eci").unlink()
    assert [s.state for s in statuses(study_copy)] == ["done", "done", "waiting"]
    statuses_after = run_study(study_copy, Local("cpu", workers=1, threads=1))
    assert {s.state for s in statuses_after} == {"done"}
    after = times_of_change(study_copy)
    rewritten = {Path(p).name for p in after if after[p] != before.get(p)}
    assert rewritten == {"scores-eci.json", "fields-eci.safetensors", "heat-ffm-seed0.log"}


@pytest.mark.slow
def test_other_settings_are_evaluated_again_and_others_weights_refused(study_copy):
    larger_cell = replace(study_copy.cells[0], reference=9)
    study = Study("mini", (larger_cell, *study_copy.cells[1:]), study_copy.out)
    assert [s.state for s in statuses(study)] == ["waiting", "done", "done"]
    other_cell = replace(study_copy.cells[0], run=replace(study_copy.cells[0].run, steps=21))
    statuses_after = run_study(
        Study("mini", (other_cell,), study_copy.out), Local("cpu", workers=1, threads=1)
    )
    assert statuses_after[0].state == "failed"
    assert "holds another run: its steps is 20, not 21" in statuses_after[0].error


# -- interruptions --


def _start(out: Path, folder: Path, *options: str) -> subprocess.Popen[bytes]:
    line = [
        sys.executable,
        "-m",
        "sapc",
        "study",
        "run",
        "mini.py",
        "--out",
        str(out),
        "--device",
        "cpu",
        "--workers",
        "2",
    ]
    return subprocess.Popen(
        [*line, *options],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(folder, finished_study):
    """SIGKILL to the study, which ends its workers too, or to all processes at once, at random moments."""
    study_file(folder)
    chance = random.Random()
    for attempt in range(3):
        process = _start(folder / "killed", folder)
        time.sleep(chance.uniform(2, 9))
        if attempt % 2:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
    process = _start(folder / "killed", folder)
    assert process.wait(timeout=120) == 0
    study = open_study(folder / "killed")
    assert {s.state for s in statuses(study)} == {"done"}
    assert weights_of(study) == weights_of(finished_study)
    assert scores_of(study) == scores_of(finished_study)
    assert not list((folder / "killed").rglob("*.partial"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "is_ignored"), [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False)]
)
def test_an_interrupt_stops_the_workers_and_says_how_to_go_on(folder, number, is_ignored):
    """Also where it was started with Ctrl-C ignored, as shells start what runs in the background."""
    study_file(folder, ["ffm"], ", train=64")
    process = subprocess.Popen(
        [sys.executable, "-m", "sapc", "study", "run", "mini.py", "--out", "c", "--device", "cpu"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_IGN if is_ignored else signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(folder.glob("c/states/*.lock")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.endswith("sapc: stopped; what is done is kept, and the same command goes on\n")
    study = open_study(folder / "c")
    assert not any(study.is_busy(name) for name in study.jobs())


# -- failures --


@pytest.mark.slow
def test_a_cell_that_fails_does_not_stop_the_others_and_is_tried_again(call, folder):
    path = folder / "mini.py"
    bad = FILE.format(methods=["ffm", "eci"], options=', lr=1e30, min_lr=1e29, label="wild"').replace(
        "runs = ", "runs += "
    )
    path.write_text(FILE.format(methods=["sapc"], options="") + bad)
    code, out, err = call("study", "run", "mini.py", "--device", "cpu", "--workers", "2", "--out", "c")
    assert code == 1
    assert "sapc: warning: heat-ffm-wild-seed0 failed, going on with the others: " in err
    assert "training cannot go on" in err
    assert "3 cells: 1 done, 2 failed" in out
    study = open_study(folder / "c")
    by_name = {s.cell.name: s for s in statuses(study)}
    assert by_name["heat-sapc-seed0"].state == "done"
    assert by_name["heat-eci-wild-seed0"].state == "failed"
    assert "training cannot go on" in by_name["heat-eci-wild-seed0"].error
    code, out, _ = call("study", "status", "mini.py", "--out", "c")
    assert code == 0
    assert "FAILED" in out
    assert "failed: heat-ffm-wild-seed0, heat-eci-wild-seed0: " in out
    assert max(map(len, out.splitlines())) <= 80 or "holds" in out
    path.write_text(FILE.format(methods=["sapc"], options=""))
    assert call("study", "run", "mini.py", "--device", "cpu", "--out", "c")[0] == 0


@pytest.mark.slow
def test_a_worker_that_is_killed_fails_its_cell_only(study_copy, folder):
    """Its evaluation's process gets SIGKILL, as without memory; the next cell of the same job is done."""
    slow = [
        replace(c, sampling_steps=400, watch=0, samples=64, reference=80)
        if c.method == "ffm"
        else replace(c, watch=0)
        for c in study_copy.cells[1:]
    ]
    study = Study("mini", tuple(slow), study_copy.out)
    victims = []

    def tell(cell: Cell, record: dict) -> None:
        if cell.method == "ffm" and record["state"] == "evaluating" and not victims:
            victims.append(record["process"])
            os.kill(record["process"], signal.SIGKILL)

    scores_file(study.folder(slow[1]), "eci").unlink()
    statuses_after = run_study(study, Local("cpu", workers=1, threads=1), on_change=tell)
    assert victims
    assert [s.state for s in statuses_after] == ["failed", "done"]
    assert "was ended by signal SIGKILL" in statuses_after[0].error
    assert "heat-ffm-seed0.log" in statuses_after[0].error


@pytest.mark.slow
def test_damaged_scores_states_and_weights_are_found(study_copy):
    sapc, ffm, _ = study_copy.cells
    scores_file(study_copy.folder(sapc), "sapc").write_text("{")
    (study_copy.out / "states" / f"{ffm.name}.json").write_bytes(b"\xff\x00")
    assert study_copy.state(ffm) == {}
    assert [s.state for s in statuses(study_copy)] == ["waiting", "done", "done"]
    weights = study_copy.folder(ffm).weights
    weights.write_bytes(weights.read_bytes()[:-4])
    statuses_after = run_study(study_copy, Local("cpu", workers=2, threads=1))
    assert [s.state for s in statuses_after] == ["done", "failed", "failed"]
    assert "weights.safetensors is damaged" in statuses_after[1].error


@pytest.mark.parametrize("part", ["run", "settings", "sets", "mean"])
def test_scores_that_lack_a_part_are_as_if_not_there(study_copy, part):
    path = scores_file(study_copy.folder(study_copy.cells[0]), "sapc")
    for wrong in (None, 1):
        write_json(path, {**read_json(path), part: wrong})
        assert [s.state for s in statuses(study_copy)] == ["waiting", "done", "done"]
    assert list(study_copy.scores_of_task(study_copy.cells[0])) == [
        c.find_scores(study_copy.folder(c)) for c in study_copy.cells[1:]
    ]


def test_a_worker_that_breaks_before_its_work_is_a_failure(study_copy):
    """An error of its own ends Python with exit code 1, which is not that of a recorded reason."""
    scores_file(study_copy.folder(study_copy.cells[0]), "sapc").unlink()
    state = study_copy.out / "states" / f"{study_copy.cells[0].name}.json"
    study_copy.record(study_copy.cells[0], "waiting")
    unknown = Job(str(study_copy.out), "heat-sapc-seed0", ("heat-sapc-seed0", "heat-sapc-seed1"))
    with Local("cpu", workers=1, threads=1) as engine:
        engine.start([unknown])[0].result(timeout=60)
    assert "its process ended with exit code 1; see " in read_json(state)["error"]
    log = study_copy.log("heat-sapc-seed0").read_text()
    assert "has no cell heat-sapc-seed1 in heat-sapc-seed0 any more: its list was changed" in log


class Idle:
    """An engine whose jobs end at once with nothing done, as where another process works on them."""

    workers, is_attended = 1, True

    def __enter__(self) -> Idle:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self, jobs: Sequence[Job]) -> list[Handle]:
        handles: list[Future[None]] = [Future() for _ in jobs]
        for future in handles:
            future.set_result(None)
        return list(handles)


def test_what_is_not_done_is_told_by_the_exit_code(study_copy, call, monkeypatch):
    scores_file(study_copy.folder(study_copy.cells[0]), "sapc").unlink()
    monkeypatch.setattr("sapc.cli.study.make_engine", lambda *_: Idle())
    code, out, err = call("study", "run", str(study_copy.out))
    assert code == 1
    assert "3 cells: 2 done, 1 waiting" in out
    assert "1 cells are not done, as heat-sapc-seed0" in err
    assert call("study", "run", str(study_copy.out), "--method", "eci")[0] == 0


def test_a_study_that_is_worked_on_keeps_its_cells(study_copy):
    smaller, larger = (
        Study("mini", cells_, study_copy.out)
        for cells_ in (
            study_copy.cells[:2],
            (*study_copy.cells, *cells(["heat"], ["ffm"], seeds=(7,), **QUICK)),
        )
    )
    with study_copy.lock("heat-ffm-seed0") as is_locked:
        assert is_locked
        with pytest.raises(SapcError, match="a process works on heat-ffm-seed0 of the study mini"):
            smaller.write()
        assert open_study(study_copy.out).cells == study_copy.cells
        larger.write()
    smaller.write()
    assert open_study(study_copy.out).cells == study_copy.cells[:2]


# -- where it stands --


def test_the_grid_and_the_time_left(study_copy, call):
    runs = [
        *study_copy.cells,
        *cells(["heat"], METHODS, seeds=(1,), **QUICK),
        *cells(["burgers"], ["sapc"], **QUICK),
    ]
    study = Study("mini", tuple(runs), study_copy.out)
    statuses_after = statuses(study)
    assert [s.state for s in statuses_after] == ["done"] * 3 + ["waiting"] * 4
    rates = {c.method: study_copy.state(c)["seconds"] for c in study_copy.cells}
    from sapc.training.run_folder import load_tensors

    training_seconds = {
        m: load_tensors(study_copy.out / f"heat-{m}-seed0" / "weights.safetensors")[1]["seconds"]
        for m in ("sapc", "ffm")
    }
    seconds_left = {s.cell.name: s.seconds for s in statuses_after}
    assert seconds_left["heat-sapc-seed1"] == pytest.approx(rates["sapc"] + training_seconds["sapc"])
    assert seconds_left["heat-ffm-seed1"] == pytest.approx(rates["ffm"] + training_seconds["ffm"])
    assert seconds_left["heat-eci-seed1"] == pytest.approx(rates["eci"])  # the training counts once
    assert all(s.is_estimate_complete for s in statuses_after)  # of Burgers by a task with as many axes
    total = sum(seconds_left.values())
    assert remaining_time(statuses_after, 1) == (pytest.approx(total), 0)
    assert remaining_time(statuses_after, 100)[0] == pytest.approx(
        max(
            seconds_left["heat-ffm-seed1"] + seconds_left["heat-eci-seed1"],
            seconds_left["heat-sapc-seed1"],
            seconds_left["burgers-sapc-seed0"],
        )
    )
    study.write()
    code, out, _ = call("study", "status", str(study_copy.out))
    assert code == 0
    assert "mini, seed 1" in out
    assert "7 cells: 3 done, 4 waiting" in out
    assert "left" in out
    code, out, _ = call("study", "status", str(study_copy.out), "--seed", "0", "--method", "eci", "--json")
    about = json.loads(out)
    assert [c["name"] for c in about["cells"]] == ["heat-eci-seed0"]
    assert about["counts"]["done"] == 1


def test_nothing_known_no_estimate(tmp_path):
    study = Study("new", tuple(cells(["heat"], METHODS, **QUICK)), tmp_path / "new")
    statuses_after = statuses(study)
    assert {(s.seconds, s.is_estimate_complete) for s in statuses_after} == {(0.0, False)}
    assert remaining_time(statuses_after, 2) == (0.0, 3)


def test_a_running_training_shows_its_step(study_copy):
    cell = cells(["heat"], ["sapc"], seeds=(3,), **QUICK)[0]
    study = Study("mini", (cell,), study_copy.out)
    folder = study.folder(cell)
    folder.path.mkdir()
    write_json(folder.config, cell.run.to_dict())
    folder.append(step=5, loss=1.0, seconds=2.0)
    study.record(cell, "training")
    assert [s.state for s in statuses(study)] == ["stopped"]
    with study.lock(cell.folder) as is_locked:
        assert is_locked
        # A lock belongs to an open file, so another one sees it.
        status = statuses(study)[0]
    assert (status.state, status.part) == ("running", "step 5 of 20")
    assert (status.seconds, status.is_estimate_complete) == (
        pytest.approx(15 * 2 / 5),
        False,
    )  # the training's rest, by its own rate


# -- bad studies --


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("runs = [", "cannot be run: SyntaxError: '[' was never closed (bad.py, line 1)\n"),
        ("1 / 0", "cannot be run: ZeroDivisionError: division by zero (line 1)"),
        ("import json\n\njson.loads('{')", "line 1 column 2 (char 1) (line 3)"),
        ("import sys\nsys.exit(0)", "cannot be run: SystemExit: 0 (line 2)"),
        ("import nonsense_module", "cannot be run: ModuleNotFoundError"),
        ("x = 1", "has no list `runs`"),
        ("runs = [1]", "has no list `runs`"),
        ("runs = []", "is empty"),
        (
            "from sapc.experiments import cells\nruns = cells(['heat'], ['nonsense'])",
            "unknown method 'nonsense'",
        ),
        ("from sapc.experiments import cells\nruns = cells('heat')", "give tasks as a list"),
        (
            "from sapc.experiments import cells\nruns = cells(['heat'], ['sapc'], samples=1)",
            "number of samples",
        ),
        (
            "from sapc.experiments import cells\nruns = cells(['heat'], ['sapc'], sets=('train',))",
            "unknown test set 'train'",
        ),
        (
            "from sapc.experiments import cells\nruns = 2 * cells(['heat'], ['sapc'])",
            "lists heat-sapc-seed0 twice",
        ),
        (
            "from sapc.experiments import cells\n"
            "runs = cells(['heat'], ['ffm']) + cells(['heat'], ['eci'], lr=1.0)",
            "two different runs for the folder heat-ffm-seed0",
        ),
        (
            "from sapc.experiments import cells\nruns = cells(['heat'], ['ffm'], label='../../mine')",
            "a label is part of file names: at most 64 letters, digits and . _ + -, got '../../mine'",
        ),
    ],
)
def test_a_bad_study_is_refused_in_one_sentence(call, folder, text, complaint):
    (folder / "bad.py").write_text(text)
    code, _, err = call("study", "run", "bad.py", "--device", "cpu")
    assert code == 2
    assert is_one_sentence(err)
    assert complaint in err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("run", "none.py"), "there is no study none.py"),
        (("status", "."), "holds no study"),
        (("status", "mini.py", "--poseidon", "nowhere"), "nowhere"),
        (("run", "mini.py", "--engine", "magic"), "unknown engine 'magic'"),
        (("run", "mini.py", "--task", "burgers"), "has no task 'burgers'; it has heat"),
        (("run", "mini.py", "--workers", "0"), "number of workers"),
        (("run", "mini.py", "--device", "abacus"), "the device 'abacus' cannot be used"),
        (("run", "mini.py", "--address", "ray://x:1"), "--address is Ray's"),
        (("run", "mini.py", "--slurm", "a=b"), "add --engine slurm"),
        (("run", "mini.py", "--engine", "slurm", "--slurm", "ab"), "--slurm takes name=value"),
        (("run", "mini.py", "--detach"), "--detach leaves jobs"),
        (("run", "mini.py", "--out", "mini.py"), "is not a folder"),
        (("run", "mini.py", "--out", "full"), "is not empty and holds no study"),
    ],
)
def test_a_bad_call_is_refused_in_one_sentence(call, folder, arguments, complaint):
    study_file(folder)
    (folder / "full").mkdir()
    (folder / "full" / "letter.txt").write_text("mine")
    code, _, err = call("study", *arguments)
    assert code == 2
    assert is_one_sentence(err)
    assert complaint in err
    assert [p.name for p in (folder / "full").iterdir()] == ["letter.txt"]


def test_a_folder_is_its_own_place(study_copy, call):
    code, _, err = call("study", "run", str(study_copy.out), "--out", "elsewhere")
    assert code == 2
    assert is_one_sentence(err)
    assert "is a study's folder already" in err
    assert load_study(study_copy.out, study_copy.out).cells == study_copy.cells


def test_damaged_descriptions_of_a_study_are_refused(study_copy):
    path = study_copy.out / "study.json"
    for text in ("{", '{"format": "other"}', '{"format": "sapc-study-1", "name": "x", "cells": [{}]}', "[]"):
        path.write_text(text)
        with pytest.raises(SapcError, match=r"study|cells"):
            open_study(study_copy.out)


def test_cells_know_their_numbers():
    flat, deep = cells(["heat", "navier_stokes"], ["sapc"], preset="tiny")
    assert (flat.settings.samples, deep.settings.samples) == (1225, 100)
    dflow = cells(["heat"], ["dflow"], preset="tiny", watch=5)[0]
    assert (dflow.settings.samples, dflow.settings.trajectory_samples, dflow.folder) == (
        64,
        0,
        "heat-ffm-seed0",
    )
    assert cells(["heat"], ["dflow"], preset="tiny", samples=8)[0].settings.samples == 8
    assert cells(["heat"], ["sapc"], preset="tiny", samples=8, watch=20)[0].settings.trajectory_samples == 8
    # A study's file names skill only where it is asked for.
    assert "conditions" not in flat.to_dict()
    asked = cells(["heat"], ["sapc"], preset="tiny", conditions=5, members=3)[0]
    assert Cell.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked
    assert (asked.settings.conditions, asked.settings.members, flat.settings.conditions) == (5, 3, 0)
    with pytest.raises(SapcError, match="samples with the weights of ffm, not of sapc"):
        Cell(training_config("heat", "sapc", "tiny"), "eci")


def test_the_shipped_studies():
    root = Path(__file__).parents[2] / "studies"
    smoke, paper, ablation = (load_study(root / f"{name}.py") for name in ("smoke", "paper", "ablation"))
    assert (len(smoke.cells), len(smoke.jobs())) == (66, 36)
    assert (len(paper.cells), len(paper.jobs())) == (198, 108)
    assert (len(ablation.cells), len(ablation.jobs())) == (108, 72)
    assert {c.run.steps for c in paper.cells} == {20_000}
    names = {c.name: c for c in paper.cells}
    assert all(names[c.name] == c for c in ablation.cells)  # so both can share a folder
    for study in (smoke, paper, ablation):
        study.check()


def test_a_study_survives_its_file(finished_study):
    assert open_study(finished_study.out).cells == finished_study.cells
    assert read_json(finished_study.out / "study.json")["cells"][2]["folder"] == "heat-ffm-seed0"
    assert RunFolder(finished_study.out / "heat-ffm-seed0").run() == finished_study.cells[1].run


@pytest.mark.parametrize("name", ["ablation", "compact", "full", "paper", "smoke"])
def test_the_studies_of_the_repository_can_be_read(name):
    assert load_study(Path(__file__).parents[2] / "studies" / f"{name}.py").cells


def test_old_names(study_copy):
    cell = study_copy.cells[0]
    for name, old, new in (
        ("chosen", lambda: study_copy.chosen(methods=["eci"]), study_copy.select(methods=["eci"])),
        ("alike", lambda: list(study_copy.alike(cell)), list(study_copy.scores_of_task(cell))),
        ("is_worked_on", lambda: study_copy.is_worked_on(cell.folder), False),
        ("scored", lambda: cell.scored(study_copy.folder(cell)), cell.find_scores(study_copy.folder(cell))),
    ):
        with pytest.warns(DeprecationWarning, match=f"{name} is now"):
            assert old() == new
    with pytest.warns(DeprecationWarning, match="time_left is now"):
        from sapc.experiments import time_left
    assert time_left is remaining_time
