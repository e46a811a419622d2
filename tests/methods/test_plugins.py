"""Methods of one's own: registered, from a file, from an installed package; in studies and reports; and what
is said of bad ones."""

from __future__ import annotations

import csv
import json
import math
import os
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sapc
from commands import is_one_sentence
from sapc import Method, Pin, SapcError, SapcWarning, get_method, method_names
from sapc.experiments import Local, cells, load_study, run_study
from sapc.experiments.report.data import ReportData, method_label, order_methods, short_label
from sapc.experiments.report.figures.style import LINE_STYLES, line_style
from sapc.experiments.report.tables import report_tables
from sapc.experiments.results import collect
from sapc.methods import METHODS, SOURCES, ffm, find_method, registry

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_method.py"
PLAIN = """
import sapc
from sapc.methods.ffm import FFM, loss, sample  # FFM is there, and not this file's

METHOD = sapc.Method(name="{name}", title="{title}", loss=loss, sample=sample, weights="{weights}", exact="none")
"""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    """No method, file or variable of one test is there in the next."""
    monkeypatch.setenv(registry.VARIABLE, "")
    known, loaded = set(SOURCES), dict(registry._digests)
    yield
    registry.forget(set(SOURCES) - known)
    registry._digests.clear()
    registry._digests.update(loaded)


def anew() -> None:
    """As in a process that has loaded nothing."""
    registry.forget(list(SOURCES))
    registry._digests.clear()


def own(name="mine", **changes) -> Method:
    method = replace(get_method("ffm"), name=name, weights=name, title="Mine", reference=None)
    for part, value in changes.items():
        object.__setattr__(method, part, value)  # past the tests' checks of types, which a user does not have
    return method


def written(folder: Path, name="mine", title="Mine, all mine", weights=None, file="plug.py") -> Path:
    path = folder / file
    path.write_text(PLAIN.format(name=name, title=title, weights=weights or name))
    return path


# -- registering --


def test_a_registered_method_is_found_by_its_name_after_the_published_ones():
    before = method_names()
    mine = own()
    assert sapc.register_method(mine) is mine
    assert get_method("mine") is mine
    assert method_names() == [*before, "mine"]
    assert method_names(user_defined=False) == before
    assert SOURCES["mine"] == str(Path(__file__).resolve())
    assert sapc.training_config("heat", "mine", "tiny").make_method() is mine


def test_the_same_source_may_replace_its_method_and_another_may_not(tmp_path):
    sapc.register_method(own())
    newer = sapc.register_method(own(title="Newer"))
    assert get_method("mine") is newer
    with pytest.raises(SapcError, match=r"there is a method 'mine' already, from .*test_plugins\.py"):
        sapc.load_plugin(written(tmp_path))
    assert get_method("mine") is newer
    assert str(tmp_path) not in os.environ[registry.VARIABLE]


def test_a_study_without_a_list_of_methods_is_of_the_published_ones():
    sapc.register_method(own())
    assert "mine" not in {cell.method for cell in cells(["heat"], preset="tiny")}
    assert [cell.method for cell in cells(["heat"], ["mine"], preset="tiny")] == ["mine"]


def test_weights_may_be_those_of_a_method_that_is_registered_together_with_it(tmp_path):
    path = tmp_path / "two.py"
    text = PLAIN.format(name="first", title="First", weights="second")
    path.write_text(text + text.replace("METHOD", "OTHER").replace('"first"', '"second"').split("\n\n", 1)[1])
    assert [m.name for m in sapc.load_plugin(path)] == ["first", "second"]
    assert not get_method("first").trains


BAD = {
    "capitals": (lambda: own("Mine"), "small letters, digits and _, .* got 'Mine'"),
    "a path": (lambda: own("../up"), r"small letters, .* got '\.\./up'"),
    "too long": (lambda: own("m" * 41), "at most 40 small letters"),
    "the ending of a file of scores": (lambda: own("part"), "not floor or part"),
    "published": (lambda: own("eci"), "'eci' is that of a published method"),
    "beyond the paper": (lambda: own("cond_sapc"), "'cond_sapc' is that of a method of this package"),
    "unknown weights": (lambda: own(weights="theirs"), "those of 'theirs', which is not known; write weights='mine'"),
    "weights of none": (lambda: own(weights=None), "those of None, which is not known"),
    "borrowed weights": (lambda: own(weights="eci"), "uses those of 'ffm' itself; write weights='ffm'"),
    "no title": (lambda: own(title=" "), "`title` of the method 'mine' must be one line"),
    "a formula": (lambda: own(title="$x$"), "without \\$, got"),
    "two lines": (lambda: own(title="a\nb"), "must be one line"),
    "loss of four": (lambda: own(loss=lambda v, v0, v1, t: 0), r"`loss` of the method 'mine' must be a function of \(v, v0, v1, t, H\)"),
    "no sampler": (lambda: own(sample=None), r"`sample` of the method 'mine' must be a function of \(v, v1, H, steps, sampler=\.\.\.\)"),
    "no redraw": (lambda: own(redraws_source=True), r"\(v, v1, H, steps, redraw\)"),
    "no sampler to choose": (lambda: own(sample=lambda v, v1, H, steps: v1), r"\(v, v1, H, steps, sampler=\.\.\.\)"),
    "exact": (lambda: own(exact=True), "`exact` of the method 'mine' must be one of none, affine, all, got True"),
    "reference": (lambda: own(reference="me"), "`reference` of the method 'mine' must be a .*Reference, or None"),
    "evaluations": (lambda: own(nfe=0), "nfe of the method 'mine' must be a whole number of at least 1"),
    "steps": (lambda: own(steps=0), "number of steps of the method 'mine' must be a whole"),
    "condition fields": (lambda: own(condition_fields=0), "condition_fields of the method 'mine' must be a whole"),
    "variant": (lambda: own(variant_of="x"), "is a variant of 'x', which is not known"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_method_is_refused_in_one_line_and_changes_nothing(case):
    make, wanted = BAD[case]
    before = dict(METHODS)
    with pytest.raises(SapcError, match=wanted) as error:
        sapc.register_method(make())
    assert "\n" not in str(error.value)
    assert before == METHODS


# -- files --


def test_a_file_is_used_once_and_told_to_processes_that_come_later(tmp_path):
    path = written(tmp_path)
    (method,) = sapc.load_plugin(path)
    assert (method.name, get_method("mine")) == ("mine", method)
    assert sapc.load_plugin(str(path)) == (method,)
    assert get_method("mine") is method  # not run again
    assert os.environ[registry.VARIABLE] == str(path.resolve())
    anew()
    assert "mine" not in METHODS
    assert get_method("mine").title == method.title  # by the variable alone


def test_a_file_that_was_changed_is_run_again(tmp_path):
    sapc.load_plugin(written(tmp_path))
    (second,) = sapc.load_plugin(written(tmp_path, name="other"))
    assert get_method("other") is second
    assert find_method("mine") is None
    path = written(tmp_path, title="$")
    for _ in range(2):  # the second time too
        with pytest.raises(SapcError, match="without"):
            sapc.load_plugin(path)
    assert get_method("other") is second


def test_a_relative_path_is_looked_up_here_and_then_beside_the_file_that_asks(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    written(tmp_path / "there")
    study = tmp_path / "there" / "study.py"
    study.write_text(
        'import sapc\nfrom sapc.experiments import cells\nsapc.load_plugin("plug.py")\nruns = cells(["heat"], ["mine"], preset="tiny")\n'
    )
    for name in (study, Path("../there/study.py")):
        anew()
        assert [cell.method for cell in load_study(name, "out").cells] == ["mine"]
        assert SOURCES["mine"] == str((tmp_path / "there" / "plug.py").resolve())
    anew()
    written(tmp_path / "here", title="From here")
    load_study(study, "out")
    assert get_method("mine").title == "From here"


FILES = {
    "syntax": ("x = 1\ndef f(:\n", r"bad\.py, line 2, cannot be used: SyntaxError"),
    "exception": ("x = 1\n\ny = 1 / 0\n", r"bad\.py, line 3, cannot be used: ZeroDivisionError: division by zero"),
    "inside a call": ("def f():\n    raise KeyError('k')\nf()\n", r"bad\.py, line 2, cannot be used: KeyError"),
    "import": ("import not_there\n", r"bad\.py, line 1, cannot be used: ModuleNotFoundError: No module named 'not_there'"),
    "exit": ("raise SystemExit(3)\n", r"bad\.py, line 1, cannot be used: SystemExit: 3"),
    "nothing": ("x = 1\n", r"bad\.py defines no method of its own; write METHOD = sapc\.Method"),
    "not a method": ("METHOD = {'name': 'x'}\n", r"defines no method of its own \(METHOD is \{'name': 'x'\}\)"),
    "one of ours": ("from sapc.methods.sapc import SAPC\n", "defines no method of its own"),
    "one too few": ("import sapc\nMETHOD = sapc.Method(name='x')\n", r"bad\.py, line 2, cannot be used: TypeError"),
    "a bad one": (PLAIN.format(name="eci", title="Mine", weights="ffm"), r"bad\.py: the name 'eci' is that of a published"),
    "bytes": ("x = '\0'\n", r"bad\.py.* cannot be used"),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file_is_one_line_with_its_number(case, tmp_path):
    text, wanted = FILES[case]
    (tmp_path / "bad.py").write_text(text)
    before = dict(METHODS)
    with pytest.raises(SapcError, match=wanted) as error:
        sapc.load_plugin(tmp_path / "bad.py")
    assert "\n" not in str(error.value)
    assert before == METHODS
    assert not os.environ[registry.VARIABLE]


def test_a_file_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        SapcError, match=rf"there is no file plug\.py in {tmp_path} and .*methods; give a Python file"
    ):
        sapc.load_plugin("plug.py")
    with pytest.raises(SapcError, match="is a folder; give the Python file in it"):
        sapc.load_plugin(tmp_path)
    (tmp_path / "a:b").mkdir()
    with pytest.raises(SapcError, match="has a ':' in its path"):
        sapc.load_plugin(written(tmp_path / "a:b"))


def test_a_broken_file_in_the_variable_is_a_warning_once_and_the_next_is_loaded(tmp_path, monkeypatch):
    (tmp_path / "bad.py").write_text("1 / 0\n")
    listed = [tmp_path / "bad.py", tmp_path / "gone.py", written(tmp_path)]
    monkeypatch.setenv(registry.VARIABLE, os.pathsep.join(map(str, listed)))
    assert get_method("sapc").name == "sapc"  # a known name loads nothing
    assert "mine" not in METHODS
    with pytest.warns(SapcWarning) as told:
        assert get_method("mine").name == "mine"
    texts = [str(one.message) for one in told]
    assert len(texts) == 2
    assert "bad.py (from SAPC_PLUGINS) is left out" in texts[0]
    assert "line 1, cannot be used: ZeroDivisionError" in texts[0]
    assert "gone.py cannot be read: No such file" in texts[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            SapcError, match=r"unknown method 'yours'; choose one of .*mine, or name the file"
        ):
            get_method("yours")


# -- entry points --


def installed(site: Path, **points: str) -> None:
    """A package that is installed, with entry points."""
    site.mkdir()
    info = site / "plugged-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[sapc.methods]\n" + "".join(f"{k} = {v}\n" for k, v in points.items())
    )
    module = PLAIN.format(name="sampler", title="Theirs", weights="theirs")
    more = 'THEIRS = sapc.Method(name="theirs", title="Theirs", loss=loss, sample=sample, weights="theirs", exact="none")\n'
    (site / "plugged_methods.py").write_text(module + more + "PUBLISHED = FFM\n")
    (site / "plugged_broken.py").write_text("import sapc\nsapc.no_such_name\n")


def test_methods_of_an_installed_package_are_found_and_broken_ones_told(tmp_path, monkeypatch):
    installed(
        tmp_path / "site", a_sampler="plugged_methods:METHOD", theirs="plugged_methods:THEIRS", broken="plugged_broken:METHOD",
        gone="plugged_gone:METHOD", ours="plugged_methods:PUBLISHED", number="plugged_methods:__name__",
    )  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path / "site")
    anew()
    with pytest.warns(SapcWarning) as told:
        names = method_names()
    assert names[-2:] == ["theirs", "sampler"]  # the one that the other's weights are of, first
    assert get_method("sampler").weights == "theirs"
    assert "package plugged 1.2" in SOURCES["theirs"]
    texts = sorted(str(one.message) for one in told)
    assert len(texts) == 4
    assert (
        "plug-in broken (plugged_broken:METHOD, package plugged 1.2) is left out: AttributeError" in texts[0]
    )
    assert "plug-in gone" in texts[1]
    assert "No module named 'plugged_gone'" in texts[1]
    assert "plug-in number" in texts[2]
    assert "must be a sapc.Method, got 'plugged_methods'" in texts[2]
    assert "'ffm' is that of a published method" in texts[3]
    assert method_names() == names  # and no further warning


# -- the example's mathematics --


def error(method: Method, steps: int) -> float:
    """Of sampling along a velocity, cos(t) vt, whose flow is known: the source times exp(-sin 1), and zero
    where that is pinned."""
    v = lambda vt, t: t.cos()[:, None, None] * vt
    v1 = torch.randn(2, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    H = Pin.frame(0).on(torch.zeros_like(v1))
    exact = v1 * math.exp(-math.sin(1))
    exact[..., 0] = 0
    return float((method.sample(v, v1, H, steps) - exact).abs().max())


def test_the_example_is_of_second_order_where_sapc_is_of_first():
    (midpoint,), euler = sapc.load_plugin(EXAMPLE), get_method("sapc")
    assert error(midpoint, 20) / error(midpoint, 40) == pytest.approx(4, rel=0.1)
    assert error(euler, 20) / error(euler, 40) == pytest.approx(2, rel=0.1)
    assert error(midpoint, 20) < error(euler, 40) / 5  # for as many evaluations


@pytest.mark.parametrize("task", ["heat", "burgers"])
def test_the_example_is_exact_and_counts_its_evaluations(task):
    (midpoint,) = sapc.load_plugin(EXAMPLE)
    task = sapc.get_task(task, grid=(16, 16))
    u = task.dataset("test1", size=3).fields.double()
    H, v1 = task.manifold(u), sapc.source.sample(task.grid, 3, dtype=torch.float64)
    calls = 0

    def v(vt, t):
        nonlocal calls
        calls += 1
        return (vt - u) / t[:, None, None] + 0.1 * vt.cos()

    fields = midpoint.sample(v, v1, H, steps=6)
    assert calls == midpoint.evaluations(6)
    assert H.residual(fields).abs().max() < 1e-9
    t = torch.rand(3, dtype=torch.float64)
    assert float(midpoint.loss(lambda vt, t: torch.zeros_like(vt), u, v1, t, H)) == pytest.approx(
        float(((1.5 - t)[:, None, None] * (H.project(v1) - u).square()).mean())
    )


# -- commands, studies, reports --


def test_commands_take_a_plug_in_and_mark_it_as_own(call, folder):
    written(folder)
    code, out, err = call("--plugin", "plug.py", "methods")
    assert (code, err) == (0, "")
    assert "Mine, all mine. Own method, from" in " ".join(out.split())
    described = json.loads(call("methods", "--json")[1])
    assert described[-1] | {"reference": None, "source": str(folder / "plug.py")} == described[-1]
    assert [m["source"] for m in described[:-1]] == [None] * (len(described) - 1)
    code, out, _ = call("cite", "--method", "mine", "--method", "eci")
    assert code == 0
    assert out.startswith("% MINE: your own method, without a reference\n\n% ECI")
    for name in ("gone.py", "train.py"):  # the second is the name of a file of ours
        code, out, err = call("--plugin", name, "methods")
        assert (code, out) == (2, "")
        assert is_one_sentence(err)
        assert f"there is no file {name}" in err


STUDY = """
import sapc
from sapc.experiments import cells

sapc.load_plugin("plug.py")
runs = cells(["heat"], ["mine", "zero_shot"], preset="tiny", sets=("test1",), samples=4, sampling_steps=3, reference=8,
             floor_repeats=1)
"""


@pytest.fixture
def study(folder) -> Path:
    """A study of two methods of one's own, done by a worker process."""
    path = written(folder, title="Mine | 50% & more")
    other = 'ZERO = sapc.Method(name="zero_shot", title="Zero", loss=loss, sample=sample, weights="mine", exact="none")\n'
    path.write_text(path.read_text() + other)
    (folder / "study.py").write_text(STUDY)
    found = run_study(load_study("study.py", "out"), Local("cpu", workers=1, threads=1))
    assert [(s.cell.name, s.state) for s in found] == [
        ("heat-mine-seed0", "done"),
        ("heat-zero_shot-seed0", "done"),
    ]
    return folder / "out"


def test_a_study_of_own_methods_is_reported_with_and_without_their_file(study, folder, call, monkeypatch):
    tables = {table.name: table for table in report_tables(ReportData(collect([study])))}
    assert tables["generation"].columns == ("task", "metric", "whose", "Mine | 50% & more", "Zero", "floor")
    assert r"50\% \& more" in tables["generation"].latex()
    rows = [row for row in tables["generation"].records if row.metric == "mmse"]
    assert [row.method for row in rows] == ["mine", "zero_shot"]
    assert all(row.mean > 0 and row.paper_mean is None for row in rows)
    assert "of Mine | 50% & more" in {cell for row in tables["cost"].rows for cell in row}

    anew()
    monkeypatch.setenv(registry.VARIABLE, "")
    code, out, err = call("report", "out", "--out", "bare", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["problems"] == []
    with open(folder / "bare" / "generation.csv") as file:
        assert {row["method"] for row in csv.DictReader(file)} == {"mine", "zero_shot"}
    assert "| mine | zero_shot |" in (folder / "bare" / "tables.md").read_text().replace("\\_", "_")
    assert "zero_shot" in (folder / "bare" / "index.html").read_text()

    code, _, err = call("study", "status", "out")
    assert code == 2
    assert is_one_sentence(err)
    assert "unknown method 'mine'" in err
    code, out, _ = call("--plugin", "plug.py", "study", "status", "out", "--json")
    assert code == 0
    assert out.count('"state": "done"') == 2


def test_own_methods_have_titles_for_labels_and_looks_of_their_own():
    sapc.register_method(own("sapc_heun", title="A title that is too long for a figure's legend"))
    sapc.register_method(own("second", title="Second"))
    assert method_label("sapc_heun") == "A title that is too long for a figure's legend"
    assert [short_label(m) for m in ("sapc_heun", "second", "sapc_s2", "new")] == [
        "A title that is too long …",
        "Second",
        "S2",
        "new",
    ]
    assert order_methods(["new", "second", "sapc_heun", "ffm"]) == ["ffm", "sapc_heun", "second", "new"]
    mine = [line_style("sapc_heun"), line_style("second")]
    assert len({one.marker for one in (*LINE_STYLES.values(), *mine)}) == len(LINE_STYLES) + 2
    assert mine[0].line != mine[1].line
    assert ffm.FFM.reference is not None


OLD_FIELDS = {
    "also": ("further_references", (1,)), "constrained": ("loss_uses_manifold", True), "conditioned": ("sampler_uses_manifold", True),
    "shows": ("conditioning_input", len), "penalty": ("second_objective", None), "bounded": ("clips_endpoint", True),
    "joint": ("couples_batch", True), "redraws": ("redraws_source", True),
}  # fmt: skip


@pytest.mark.parametrize("old", OLD_FIELDS)
def test_plug_ins_of_version_0_1_0_give_fields_by_their_old_names(old):
    new, value = OLD_FIELDS[old]
    if old == "also":
        value = (get_method("sapc").reference,)
    with pytest.warns(DeprecationWarning, match=rf"Method\.{old} is now Method\.{new}"):
        method = Method("mine", "Mine", ffm.loss, ffm.sample, "mine", "none", **{old: value})
    assert getattr(method, new) is value
    with pytest.warns(DeprecationWarning, match=rf"Method\.{old} is now Method\.{new}"):
        assert getattr(method, old) is value
    plain = get_method("ffm")
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(replace(plain, **{old: value}), new) is value


def test_plug_ins_are_loaded_by_the_old_name_of_the_function(tmp_path):
    path = written(tmp_path)
    with pytest.warns(DeprecationWarning, match=r"sapc\.use is now sapc\.load_plugin"):
        (method,) = sapc.use(path)
    assert method is get_method("mine")
    for owner, old in ((sapc, "when_unknown"), (sapc.tasks, "when_unknown"), (sapc.methods, "Penalty")):
        with pytest.warns(DeprecationWarning, match=f"{old} is now"):
            getattr(owner, old)


def test_a_loss_that_does_not_depend_on_the_network_is_refused_in_one_sentence(tmp_path):
    sapc.register_method(own(loss=lambda v, v0, v1, t, H: v0.mean()))
    with pytest.raises(
        SapcError, match="loss of method mine must return one number that depends on the network"
    ):
        sapc.train("heat", "mine", preset="tiny", steps=1, out=tmp_path / "run", device="cpu")
