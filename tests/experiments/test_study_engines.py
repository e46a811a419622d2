"""The engines: a real Ray with two workers, submitit's local executor, and the batch script for SLURM."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from commands import is_one_sentence
from sapc import SapcError
from sapc.experiments import Slurm, load_study, make_engine, open_study, run_study, statuses
from sapc.experiments.engines.local import _places, threads_per_worker
from studying import FILE, scores_of, study_file, weights_of


@pytest.mark.slow
def test_ray_with_two_workers_gives_the_same_numbers(call, folder, finished_study, monkeypatch):
    """To the bit; and a cell that fails does so alone.

    Ray is started here, whatever cluster the environment names.
    """
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    path = study_file(folder)
    (folder / "sapc.py").write_text("raise SystemExit('imported from the current folder')")
    bad = FILE.format(methods=["ffm"], options=', lr=1e30, min_lr=1e29, label="wild"')
    path.write_text(path.read_text() + bad.replace("runs = ", "runs += "))
    code, out, err = _command(
        "study", "run", "mini.py", "--engine", "ray", "--workers", "2", "--device", "cpu", "--out", "r"
    )
    assert code == 1
    assert "heat-ffm-wild-seed0 failed, going on with the others: step " in err
    assert "4 cells: 3 done, 1 failed" in out
    study = load_study(study_file(folder), folder / "r")
    assert weights_of(study) == weights_of(finished_study)
    assert scores_of(study) == scores_of(finished_study)


def _command(*arguments: str) -> tuple[int, str, str]:
    """A process of its own: Ray would leave threads behind in this one."""
    process = subprocess.run(
        [sys.executable, "-P", "-m", "sapc", *arguments], capture_output=True, text=True, timeout=240
    )
    return process.returncode, process.stdout, process.stderr


@pytest.mark.slow
def test_submitit_runs_the_jobs_and_gives_the_same_numbers(folder, finished_study):
    pytest.importorskip("submitit")
    study = load_study(study_file(folder), folder / "s")
    (folder / "sapc.py").write_text("raise SystemExit('imported from the current folder')")
    parameters = {"cluster": "local", "timeout_min": 5, "cpus_per_task": 1}
    statuses = run_study(study, Slurm("cpu", threads=1, parameters=parameters))
    assert [s.state for s in statuses] == ["done"] * 3
    assert weights_of(study) == weights_of(finished_study)
    assert scores_of(study) == scores_of(finished_study)
    assert len(list((folder / "s" / "slurm").glob("*_result.pkl"))) == 2


@pytest.mark.slow
def test_a_job_whose_time_is_over_is_requeued_and_goes_on(folder):
    """submitit's signal of the approaching time limit, in the middle of a training."""
    pytest.importorskip("submitit")
    study = load_study(study_file(folder, ["ffm"], ", steps=400"), folder / "s")
    signals = []

    def tell(cell, record):
        if record["state"] == "training" and not signals:
            signals.append(record["process"])
            os.kill(record["process"], signal.SIGUSR2)

    parameters = {"cluster": "local", "timeout_min": 5, "cpus_per_task": 1}
    statuses = run_study(study, Slurm("cpu", threads=1, parameters=parameters), on_change=tell)
    assert signals
    assert [s.state for s in statuses] == ["done"]
    assert study.state(study.cells[0])["process"] != signals[0]


# -- SLURM as seen from here --

SBATCH = """#!/bin/sh
for last; do :; done
cp "$last" "{seen}"
echo "Submitted batch job 4711"
"""


def test_slurm_gets_one_array_with_a_gpu_each(call, folder, monkeypatch):
    """Stand-ins for SLURM's own programs note what they are given."""
    pytest.importorskip("submitit")
    study_file(folder)
    programs = folder / "bin"
    programs.mkdir()
    for name in ("sbatch", "srun", "sacct"):
        (programs / name).write_text(
            SBATCH.format(seen=folder / "script.sh") if name == "sbatch" else "#!/bin/sh\n"
        )
        (programs / name).chmod(0o700 | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    options = ("--slurm", "slurm_partition=gpu", "--slurm", "timeout_min=90", "--workers", "8")
    code, out, err = call("study", "run", "mini.py", "--engine", "slurm", "--detach", "--out", "s", *options)
    assert (code, err) == (0, "")
    assert "3 cells: 3 waiting" in out
    script = (folder / "script.sh").read_text()
    for line in ("--array=0-1%2", "--gpus-per-node=1", "--partition=gpu", "--time=90", "--job-name=sapc"):
        assert f"#SBATCH {line}" in script
    assert not list((folder / "s").glob("heat-*"))
    assert f"{sys.executable} -P -u -m submitit" in script


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"cluster": "slurm"}, "SLURM did not take the jobs|submitit refuses this"),
        (
            {"cluster": "nonsense"},
            "submitit refuses this: AutoExecutor doesn't know any executor named nonsense",
        ),
        ({"cluster": "local", "nonsense": 1}, "submitit refuses this"),
    ],
)
def test_what_submitit_refuses_is_told(folder, parameters, complaint, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    study = load_study(study_file(folder), folder / "s")
    with pytest.raises(SapcError, match=complaint):
        run_study(study, Slurm("cpu", parameters=parameters))
    assert {s.state for s in statuses(open_study(folder / "s"))} == {"waiting"}


# -- libraries that are not there --


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_library_is_named(call, folder, monkeypatch, engine, package):
    study_file(folder)
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = call("study", "run", "mini.py", "--engine", engine, "--out", "s")
    assert code == 2
    assert is_one_sentence(err)
    assert f"needs the package {package}; install it with: pip install 'sapc[{engine}]'" in err


# -- this machine --


def test_every_gpu_is_a_place_and_cores_are_shared(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    visible = lambda *a: [env.get("CUDA_VISIBLE_DEVICES") for _, env in _places(*a)]
    assert visible("cuda", None) == ["0", "1", "2"]
    assert visible("cuda", 2) == ["0", "1"]
    assert visible("cuda:2", None) == ["2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-abc")
    assert visible("auto", None) == ["5", "GPU-abc"]
    assert visible("cuda:1", None) == ["GPU-abc"]
    assert visible("cpu", 3) == [None] * 3
    assert threads_per_worker(10_000) == 1


def test_engines_by_name():
    assert make_engine("local", "cpu", 2).workers == 2
    assert make_engine("inline", "cpu").workers == 1
    with pytest.raises(SapcError, match="inline has one worker"):
        make_engine("inline", "cpu", 2)
    assert make_engine("slurm", "cpu", 2).is_attended is False
    assert make_engine("ray", "cpu", 2, address="ray://head:10001").is_attended
