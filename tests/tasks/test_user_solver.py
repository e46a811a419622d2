"""Solvers of one's own: where time is, one condition in each test set, the cache, and what `check` says of
them."""

import json
import math
from functools import cached_property
from pathlib import Path

import pytest
import torch

import sapc
from sapc.methods import registry

PLUGIN = """
import torch
from functools import cached_property
import sapc


class Wave(sapc.Task):
    name, title, equation = "wave", "Wave", "u_t = -u_x"
    pinned, law = "the start", "mass"
    parameters = {"shift": "s ~ U[0, 1]", "speed": "c ~ U[0, 1]"}
    paper_grid = sapc.Grid((sapc.Axis("x", 12, kind="periodic"), sapc.Axis("t", 12)))
    integrates = True

    @cached_property
    def constraint(self):
        return sapc.Pin.frame(0) & sapc.Balance(self.grid.integral(), grid=self.grid)

    def _draw(self, streams, size):
        i, j = streams.independent_pairs(size)
        shift = streams.condition.uniform("shift", 0, 1, size)[i]
        return {"shift": shift, "speed": streams.uniform("speed", 0, 1, size)}

    def _solve(self, parameters):
        s, c = (parameters[name][:, None, None] for name in ("shift", "speed"))
        x, t = (z.to(s) for z in self.grid.mesh())
        return torch.sin(2 * torch.pi * (x - c * t - s))


TASK = sapc.register_task(Wave)
"""


class Wave(sapc.Task):
    """A wave on as many points as times."""

    name, title, equation, pinned, law = "wave", "Wave", "u_t = -c u_x", "the start", "mass"
    parameters = {"shift": "s ~ U[0, 1]", "speed": "c ~ U[0, 1]"}  # noqa: RUF012
    paper_grid = sapc.Grid((sapc.Axis("x", 12, kind="periodic"), sapc.Axis("t", 12)))

    @cached_property
    def constraint(self):
        return sapc.Pin.frame(0) & sapc.Balance(self.grid.integral(), grid=self.grid)

    def _draw(self, streams, size):
        i, _ = streams.independent_pairs(size)
        shift = streams.condition.uniform("shift", 0, 1, size)[i]
        return {"shift": shift, "speed": streams.uniform("speed", 0, 1, size)}

    def _solve(self, parameters):
        s, c = (parameters[name][:, None, None] for name in ("shift", "speed"))
        x, t = (z.to(s) for z in self.grid.mesh())
        return torch.sin(2 * math.pi * (x - c * t - s))


class TimeFirst(Wave):
    """With its axes the other way round."""

    def _solve(self, parameters):
        return super()._solve(parameters).transpose(1, 2)


class Rigid(Wave):
    """Written for one grid, and time first; its parameter is the profile itself."""

    parameters = {"initial": "a sine"}  # noqa: RUF012

    def _draw(self, streams, size):
        x = self.grid["x"].points
        shift = streams.condition.uniform("shift", 0, 1, size)[streams.independent_pairs(size)[0]]
        return {"initial": torch.sin(2 * math.pi * (x - shift[:, None]))}

    def _solve(self, parameters):
        decay = torch.linspace(1, 0.5, 12, dtype=torch.float64)
        return decay[:, None] * parameters["initial"][:, None, :]


class Flat(Wave):
    """One field short of an axis."""

    def _solve(self, parameters):
        return super()._solve(parameters)[..., 0]


class ManyConditions(Wave):
    """Every sample of a test set has a profile of its own."""

    def _draw(self, streams, size):
        return {name: streams.uniform(name, 0, 1, size) for name in ("shift", "speed")}


@pytest.fixture(autouse=True)
def _no_traces(monkeypatch):
    monkeypatch.setattr("sapc.tasks.registry.TASKS", dict(sapc.tasks.registry.TASKS))
    monkeypatch.setattr(registry, "_digests", {})
    monkeypatch.setenv(registry.VARIABLE, "")


def run(*words):
    from sapc import cli

    with pytest.raises(SystemExit) as exit_info:
        cli.main([str(word) for word in words])
    return exit_info.value.code


def plugin(folder: Path, text: str = PLUGIN) -> Path:
    path = folder / "wave.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("kind", "grid"), [(TimeFirst, None), (TimeFirst, (12, 9)), (Rigid, None)])
def test_a_solver_that_returns_time_first_is_refused(kind, grid):
    with pytest.raises(sapc.SapcError, match=r"time is the last axis: return u\.movedim\(1, -1\)"):
        kind(grid).dataset("train", 4)


@pytest.mark.parametrize("grid", [None, (12, 9)])
def test_a_solver_with_time_last_is_not(grid):
    fields = Wave(grid).dataset("train", 4).fields
    assert fields.shape == (4, *(grid or (12, 12)))


def test_fields_of_another_shape_are_refused():
    with pytest.raises(
        sapc.SapcError, match=r"returned shape \(4, 12\) for 4 samples; expected \(4, 12, 12\)"
    ):
        Flat().dataset("train", 4)


def test_a_test_set_with_several_conditions_is_told():
    with pytest.warns(sapc.SapcWarning, match="test set test1 of wave has several conditions"):
        ManyConditions().dataset("test1", 4)
    ManyConditions().dataset("train", 4)
    Wave().dataset("test1", 4)


def test_solutions_are_cached_by_the_text_of_their_file(tmp_path):
    """A class that has changed is solved again, without a new `solver_version`."""
    cache = tmp_path / "cache"
    file = plugin(tmp_path)
    sapc.load_plugin(file)
    data = sapc.get_task("wave").dataset("train", 4, cache=cache)
    assert len(list(cache.glob("*.h5"))) == 1
    again = sapc.get_task("wave").dataset("train", 4, cache=cache)
    assert again.provenance["created"] == data.provenance["created"]
    assert len(list(cache.glob("*.h5"))) == 1
    plugin(tmp_path, PLUGIN.replace("torch.sin(", "2 * torch.sin("))
    sapc.load_plugin(file)
    changed = sapc.get_task("wave").dataset("train", 4, cache=cache)
    assert torch.equal(changed.fields, 2 * data.fields)
    assert len(list(cache.glob("*.h5"))) == 2


@pytest.mark.parametrize(
    ("law", "kind"),
    [
        (lambda grid: sapc.Balance(grid.integral(), grid=grid), "balance law"),
        (lambda grid: sapc.Affine(lambda u: u[:, 0]), "linear constraint"),
        (lambda grid: sapc.Constraint(lambda u: u[:, 0].square()), "constraint"),
        (
            lambda grid: sapc.Balance(grid.integral(), grid=grid) & sapc.Constraint(lambda u: u[:, 0]),
            "balance law and constraint",
        ),
    ],
)
def test_laws_are_named_by_what_they_are(law, kind):
    task = Wave()
    task.__dict__["constraint"] = sapc.Pin.frame(0) & law(task.grid)
    assert task.law_kind == kind


def test_check_looks_at_solvers():
    report = sapc.check(Wave(), noise=4)
    assert report.problems == []
    assert report.samples == 4
    assert report.data_distance < 1e-6
    assert "has several conditions" in " ".join(sapc.check(ManyConditions(), noise=4).problems)


def test_the_command_checks_a_file_that_defines_a_task(tmp_path, capsys):
    file = plugin(tmp_path)
    assert run("check", file) == 0
    assert "wave: 16 samples" in capsys.readouterr().out
    # A class alone is enough.
    plugin(tmp_path, PLUGIN.replace("TASK = sapc.register_task(Wave)", ""))
    assert run("check", file) == 0
    plugin(tmp_path, PLUGIN.replace("- s))", "- s)).transpose(1, 2)"))
    assert run("check", file) == 2
    assert "time is the last axis" in " ".join(capsys.readouterr().err.split())


def test_runs_notice_that_the_text_of_a_plug_in_has_changed(tmp_path):
    file = plugin(tmp_path)
    sapc.load_plugin(file)
    run_folder = tmp_path / "run"
    sapc.train("wave", preset="tiny", out=run_folder, steps=2, train=4, validation=4, batch=2)
    sapc.load(run_folder)
    environment = run_folder / "environment.json"
    (start,) = json.loads(environment.read_text())["starts"]
    assert start["plugins"] == {"task": dict(type(sapc.get_task("wave")).class_file)}
    assert start["plugins"]["task"]["file"] == "wave.py"
    plugin(tmp_path, PLUGIN + "# changed\n")
    sapc.load_plugin(file)
    with pytest.warns(sapc.SapcWarning, match=r"wave\.py, which defines the task wave, has another text"):
        sapc.load(run_folder)
    # Runs of version 0.1.0 say nothing of it.
    del start["plugins"]
    environment.write_text(json.dumps({"starts": [start]}))
    sapc.load(run_folder)


def test_a_test_set_without_its_value_is_named():
    class TwoValues(Wave):
        def _draw(self, streams, size):
            return super()._draw(streams, size) | {
                "shift": streams.uniform_condition("shift", 0, 1, (0.2, 0.4), size)
            }

    assert len(TwoValues().dataset("test1", size=2)) == 2
    with pytest.raises(sapc.SapcError, match="'shift' has 2 values for test sets, and there is a test2"):
        TwoValues().dataset("test2", size=2)
