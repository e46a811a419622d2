"""A short soak, always the same cases; and that the fuzzer finds faults that are planted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

for name in ("h5py", "rich", "typer"):
    pytest.importorskip(name)
import sapc
from soak import files, laws, projections
from soak.case import Case, cases
from soak.examples import waves

TESTS = Path(__file__).parent
CHEAP = "files,projections,commands"


def soak(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program itself: in a process that checks types, other errors would come first."""
    path = os.pathsep.join((str(TESTS), str(Path(sapc.__file__).parent.parent)))
    line = [sys.executable, "-m", "soak", "--workers", "1", *arguments]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment)


@pytest.mark.slow
def test_short_soak():
    process = soak("--cases", "120", "--kinds", CHEAP)
    assert process.returncode == 0, process.stdout + process.stderr
    assert re.search(r"^all +120 +0 ", process.stdout, re.MULTILINE)


def test_a_seed_means_the_same_cases():
    kinds = CHEAP.split(",")
    first = [next_case for next_case, _ in zip(cases(kinds, 3), range(50), strict=False)]
    assert first == [next_case for next_case, _ in zip(cases(kinds, 3), range(50), strict=False)]
    assert {case.kind for case in first} == set(kinds)
    assert [Case.parse(str(case)) for case in first] == first


@pytest.fixture
def examples(tmp_path):
    """The two examples that are needed here."""
    (tmp_path / "examples").mkdir()
    sapc.get_task("heat", grid=(12, 12)).dataset("test0", size=2).save(tmp_path / "examples" / "heat.h5")
    np.savez(tmp_path / "examples" / "waves.npz", u=waves())
    return tmp_path / "examples"


def findings(kind: str, numbers: range, folder: Path, examples: Path, monkeypatch) -> list[str]:
    """What is bad in some cases, run here."""
    monkeypatch.chdir(folder)
    reasons = []
    for number in numbers:
        (folder / str(number)).mkdir()
        reasons.append(Case(kind, number).check(folder / str(number), examples))
    return [reason for reason in reasons if reason]


def test_a_projection_that_is_off_by_little_is_found(tmp_path, examples, monkeypatch):
    original = sapc.Manifold.solve

    def solve_inexactly(self, u):
        end, report = original(self, u)
        return torch.where(self.pinned, end, end * (1 + 1e-3)), report

    monkeypatch.setattr(sapc.Manifold, "solve", solve_inexactly)
    monkeypatch.setattr(projections, "LAWS", [laws.no_law, laws.conserved_integral])
    reasons = findings("projections", range(12), tmp_path, examples, monkeypatch)
    assert any("not the nearest point" in reason for reason in reasons)
    assert any("converged is claimed" in reason for reason in reasons)


def test_a_reader_that_returns_other_values_is_found(tmp_path, examples, monkeypatch):
    original = sapc.load_dataset

    def read_wrongly(path):
        data = original(examples / "heat.h5")
        return (
            data if path.parent == examples else sapc.Dataset(**{**vars(data), "fields": data.fields + 1e-3})
        )

    monkeypatch.setattr(sapc, "load_dataset", read_wrongly)
    monkeypatch.setattr(files, "FORMATS", [files.Format("heat.h5", (), (files.load_data,))])
    reasons = findings("files", range(3), tmp_path, examples, monkeypatch)
    assert reasons == ["load_dataset returned other values than were written"] * 3


@pytest.mark.parametrize("error", [RecursionError("deep"), TypeError("odd"), SystemExit(3)])
def test_a_reader_that_raises_something_else_is_found(tmp_path, examples, monkeypatch, error):
    def fail(path):
        raise error

    monkeypatch.setattr(sapc, "read_fields", fail)
    monkeypatch.setattr(files, "FORMATS", [files.Format("waves.npz", (), (files.read_user_file,))])
    (reason,) = findings("files", range(1), tmp_path, examples, monkeypatch)
    assert reason.startswith(f"{type(error).__name__}: {error}")


def test_the_oracles_agree_with_the_package_where_nothing_is_wrong():
    """Quadrature, written a second time."""
    for kind in ("periodic", "closed", "cells"):
        grid = sapc.Grid((sapc.Axis("x", 5, 0.0, 3.0, kind), sapc.Axis("y", 4), sapc.Axis("t", 3)))
        assert np.allclose(laws.quadrature(grid), grid.weights.numpy(), rtol=1e-15)
