"""Studies and costs on a GPU: jobs see their own device and give what the CPU gives.

Every part of the bench runs there.
"""

from __future__ import annotations

import pytest
import torch

from sapc import SapcError
from sapc.experiments import Local, load_study, run_study
from sapc.experiments.timing import Timer, measure
from studying import study_file

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_a_study_runs_on_the_gpu_and_its_scores_are_those_of_the_cpu(tmp_path):
    """float32 in both cases; training amplifies rounding, over twenty steps only a little."""
    found = {}
    for device in ("cuda", "cpu"):
        study = load_study(study_file(tmp_path), tmp_path / device)
        states = run_study(study, Local(device, workers=1))
        assert [s.state for s in states] == ["done"] * 3, [s.error for s in states]
        found[device] = [cell.find_scores(study.folder(cell)) for cell in study.cells]
    for gpu, cpu in zip(*found.values(), strict=True):
        assert gpu["settings"]["device"].startswith("cuda")
        assert gpu["mean"]["metrics"]["w2"] == pytest.approx(cpu["mean"]["metrics"]["w2"], rel=1e-2)
        assert gpu["mean"]["metrics"]["mmse"] == pytest.approx(cpu["mean"]["metrics"]["mmse"], rel=2e-2)


def test_a_job_that_asks_for_a_gpu_that_is_not_there_fails_with_a_sentence(tmp_path):
    with pytest.raises(SapcError, match="cannot be used"):
        Local(f"cuda:{torch.cuda.device_count()}").__enter__()


@pytest.mark.parametrize("task", ["heat", "stokes_bc", "navier_stokes"])
def test_every_part_of_the_bench_runs(task):
    result = measure(Timer(torch.device("cuda"), 3, 1), [task], "tiny", steps=2)
    assert result["complete"]
    assert all(row["sapc_ms"] > 0 for part in ("training", "sampling") for row in result[part])
    assert [row["task"] for row in result["projection"]] == [task, task]
