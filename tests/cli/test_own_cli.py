"""The command line on data of one's own, from a file of simulations to an ensemble; and bad input."""

import json
import math
import re

import numpy as np
import pytest
import torch

pytest.importorskip("xarray")
pytest.importorskip("h5py")
pytest.importorskip("rich")
pytest.importorskip("typer")
import h5py
import xarray as xr

import sapc
from commands import is_one_sentence, run_command
from sapc.cli import main

PHYSICS = """
import sapc

def physics(grid):
    mass = sapc.Balance(grid.integral("h"), times=grid.time.points)
    return sapc.Pin.frame(0, grid=grid, channel="h") & mass
"""


def simulations(n=20, x=12, t=6):
    """Travelling waves of height h, and their velocity."""
    rng = np.random.default_rng(0)
    at, time = np.arange(x) / x, np.linspace(0, 3, t)
    phase, speed = rng.random((2, n, 1, 1))
    h = 5 + np.sin(2 * math.pi * (at[:, None] - speed * time) + 6 * phase)
    return at, time, h, 1e3 * (2 * h - 9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("own")
    at, time, h, u = simulations()
    with h5py.File(path / "my.h5", "w") as file:
        for name, values, unit in (("x", at, "m"), ("time", time, "s")):
            file[name] = values
            file[name].make_scale(name)
            file[name].attrs["units"] = unit
        file["x"].attrs["periodic"] = 1
        for name, values, unit in (("h", h, "m"), ("u", u, "m s-1")):
            file[name] = values
            file[name].attrs["units"] = unit
            for i, axis in ((1, "x"), (2, "time")):
                file[name].dims[i].label = axis
                file[name].dims[i].attach_scale(file[axis])
    (path / "my_physics.py").write_text(PHYSICS)
    np.savez(path / "bare.npz", h=h)
    return path


@pytest.fixture(scope="module")
def trained_run(folder):
    out = folder / "run"
    run(
        "train",
        "--data",
        folder / "my.h5",
        "--physics",
        folder / "my_physics.py",
        "--preset",
        "tiny",
        "--steps",
        "4",
        "--out",
        out,
    )
    return out


def run(*words):
    with pytest.raises(SystemExit) as exit_info:
        main([str(word) for word in words])
    return exit_info.value.code


def test_check_reports_in_words_and_json(folder, capsys):
    assert run("check", folder / "my_physics.py", "--data", folder / "my.h5") == 0
    text = capsys.readouterr().out
    assert "channel h [m]" in text
    assert "closed form" in text
    assert "no problem found" in text
    assert run("check", folder / "my_physics.py", "--data", folder / "my.h5", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["converged"] == report["noise"] == 16
    assert report["laws"][0]["residual"] < 1e-6


def test_a_law_that_the_data_do_not_keep_ends_with_1(folder, tmp_path, capsys):
    file = tmp_path / "wrong.py"
    file.write_text(PHYSICS.replace("times=", "rate=grid.integral('h'), times="))
    assert run("check", file, "--data", folder / "my.h5") == 1
    assert "law and data disagree" in capsys.readouterr().out


def test_data_of_ones_own_are_learned_by_cond_sapc_unless_told_otherwise(
    folder, trained_run, tmp_path, capsys
):
    config = json.loads((trained_run / "config.json").read_text())
    assert config["method"] == "cond_sapc"
    assert "sensors" not in config
    data = ("--data", folder / "my.h5", "--physics", folder / "my_physics.py", "--preset", "tiny")
    line = ("train", *data, "--steps", 2)
    assert run(*line, "--method", "sapc", "--out", tmp_path / "old") == 0
    # Without a method it goes on as what it is, and weights are taken with theirs.
    assert run(*line, "--out", tmp_path / "old") == 0
    assert "already trained" in capsys.readouterr().out
    assert run(*line, "--from", tmp_path / "old", "--out", tmp_path / "next") == 0
    assert json.loads((tmp_path / "next" / "config.json").read_text())["method"] == "sapc"
    assert run(*line, "--sensors", 5, "--out", tmp_path / "shown") == 0
    assert json.loads((tmp_path / "shown" / "config.json").read_text())["sensors"] == 5
    capsys.readouterr()
    assert run(*line, "--sensors", 5, "--method", "sapc", "--out", tmp_path / "no") == 2
    assert "the network of sapc is not shown what is pinned" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_symmetries_are_checked_and_kept_by_the_run(folder, tmp_path, capsys):
    line = ("--data", folder / "my.h5", "--physics", folder / "my_physics.py")
    both = ("--symmetry", "shift:x", "--symmetry", "sign:h")
    check = ("check", folder / "my_physics.py", "--data", folder / "my.h5", *both)
    assert run(*check) == 1
    text = capsys.readouterr().out
    assert re.search(r"symmetry shift:x: \|R\| changes by .* standard errors at most \(p = ", text)
    assert "problem: the data do not have the symmetry sign:h: the mean of" in text
    assert run(*check[:-2], "--json") == 0
    assert [s["text"] for s in json.loads(capsys.readouterr().out)["symmetries"]] == ["shift:x"]
    out = tmp_path / "run"
    train = ("train", *line, "--preset", "tiny", "--steps", "2", "--out", out)
    assert run(*train, "--symmetry", "shift:x") == 0
    assert "symmetries shift:x in" in capsys.readouterr().out
    assert json.loads((out / "config.json").read_text())["symmetries"] == ["shift:x"]
    assert run("train", "--resume", out, "--steps", "3", *line) == 0
    assert json.loads((out / "config.json").read_text())["symmetries"] == ["shift:x"]
    assert run(*train, "--symmetry", "shift:x", "--no-symmetries") == 2
    for words, complaint in {
        ("train", "--resume", out, *line, "--symmetry", "shift:x"): "--symmetry cannot be given as well",
        ("train", "heat", "--symmetry", "shift:x"): "--symmetry goes with data of your own",
        ("check", folder / "my_physics.py", "--symmetry", "shift:x"): "--symmetry goes with --data",
        (
            *check[:-2],
            "--symmetry",
            "shift:time",
        ): "shifts along time, which is not periodic (closed); .* --periodic",
    }.items():
        capsys.readouterr()
        assert run(*words) == 2
        assert re.search(complaint.replace("(", r"\(").replace(")", r"\)"), capsys.readouterr().err), words


def test_symmetries_of_a_published_task_are_used_when_asked_for(tmp_path, capsys):
    train = ("train", "burgers", "--preset", "tiny", "--steps", "2", "--out")
    assert run(*train, tmp_path / "with", "--symmetries") == 0
    assert "symmetries shift:x reflect:x,sign in" in capsys.readouterr().out
    assert run(*train, tmp_path / "without") == 0
    assert "symmetries" not in json.loads((tmp_path / "without" / "config.json").read_text())
    with_symmetries = json.loads((tmp_path / "with" / "config.json").read_text())
    assert with_symmetries["symmetries"] == ["shift:x", "reflect:x,sign"]


def test_training_again_finds_it_trained_and_keeps_the_physics(folder, trained_run, capsys):
    assert (trained_run / "physics.py").read_text() == PHYSICS
    line = ("--data", folder / "my.h5", "--physics", folder / "my_physics.py")
    assert run("train", *line, "--preset", "tiny", "--steps", "4", "--out", trained_run) == 0
    assert "already trained" in capsys.readouterr().out
    assert run("train", "--resume", trained_run, *line) == 0


def test_an_ensemble_with_sensors_and_quantiles(folder, trained_run, tmp_path, capsys):
    (tmp_path / "sensors.csv").write_text("x,time,channel,value\n0.5,1.8,u,321.0\n0.25,3.0,h,5.5\n")
    line = (
        "--physics",
        folder / "my_physics.py",
        "--data",
        folder / "my.h5",
        "--members",
        2,
        "--n",
        2,
        "--steps",
        3,
    )
    line += ("--sensors", tmp_path / "sensors.csv", "--quantiles", "0.1,0.9", "--out", tmp_path / "out.nc")
    assert run("sample", trained_run, *line) == 0
    assert "pinned values 0.0e+00" in capsys.readouterr().out
    with xr.open_dataset(tmp_path / "out.nc") as out:
        assert dict(out.sizes) == {"condition": 1, "member": 2, "x": 12, "time": 6, "quantile": 2}
        assert (out.u.sel(x=0.5).isel(time=3) == 321).all()
        assert (out.h.sel(x=0.25).isel(time=5) == 5.5).all()
        mass = out.h.mean("x")
        assert float(abs(mass - mass.isel(time=0)).max()) < 1e-13
        assert out.h.attrs["units"] == "m"
        assert out.time.attrs["axis"] == "T"
        assert out.attrs["Conventions"].startswith("CF-")
        np.testing.assert_allclose(out.h_quantile.sel(quantile=0.9), out.h.quantile(0.9, "member"))


def test_conditions_from_a_file_need_only_what_is_pinned(folder, trained_run, tmp_path):
    at, time, h, _ = simulations(3)
    h[..., 1:] = np.nan
    dims, coords = ("sample", "x", "time"), {"x": ("x", at, {"periodic": 1}), "time": time}
    dataset = xr.Dataset({"h": (dims, h), "u": (dims, np.full_like(h, np.nan))}, coords)
    dataset.to_netcdf(tmp_path / "new.nc", engine="h5netcdf")
    line = ("--physics", folder / "my_physics.py", "--condition", tmp_path / "new.nc", "--steps", 2)
    assert run("sample", trained_run, *line, "--out", tmp_path / "s.npz") == 0
    with np.load(tmp_path / "s.npz") as file:
        fields = torch.from_numpy(file["fields"])
    assert fields.shape == (3, 2, 12, 6)
    # The file is read as float32.
    assert np.abs(fields[:, 0, :, 0].numpy() - h[..., 0]).max() < 1e-6


def test_one_field_of_each_condition_is_said_so(folder, trained_run, tmp_path, capsys):
    line = ("--physics", folder / "my_physics.py", "--data", folder / "my.h5", "--steps", 1)
    assert run("sample", trained_run, *line, "--n", 2, "--out", tmp_path / "two.npz") == 0
    assert "2 conditions, one field of each in a row" in capsys.readouterr().out


def test_more_fields_than_were_held_out_are_as_many_of_each(folder, trained_run, tmp_path, capsys):
    """Two were held out, so four fields are two of each; five are refused, not begun again with the first."""
    line = ("--physics", folder / "my_physics.py", "--data", folder / "my.h5", "--steps", 1)
    assert run("sample", trained_run, *line, "--n", 4, "--out", tmp_path / "four.npz") == 0
    assert "2 conditions, 2 fields of each in a row" in capsys.readouterr().out
    with np.load(tmp_path / "four.npz") as file:
        first, condition_index, member_index = (
            file["fields"][:, 0, :, 0],
            file["condition_index"],
            file["member_index"],
        )
        np.testing.assert_array_equal(file["condition"][condition_index, 0, :, 0], first)
    assert (condition_index.tolist(), member_index.tolist()) == ([0, 0, 1, 1], [0, 1, 0, 1])
    for options, message in {
        ("--n", 5): "validation has 2 conditions, of which --n 5 cannot draw equally many",
        ("--n", 6, "--members", 2): "--n 6 with --members 2 asks for 3 conditions, and validation has 2",
        ("--n", 5, "--members", 2): "--n 5 is not a multiple of --members 2",
    }.items():
        assert run("sample", trained_run, *line, *options, "--out", tmp_path / "five.npz") == 2
        err = capsys.readouterr().err
        assert is_one_sentence(err)
        assert message in err


@pytest.fixture(scope="module")
def samples_file(folder, trained_run):
    """Two members of each of two conditions, as NetCDF."""
    line = ("--physics", folder / "my_physics.py", "--data", folder / "my.h5", "--members", 2, "--steps", 2)
    assert (
        run("sample", trained_run, *line, "--n", 4, "--quantiles", "0.5", "--out", folder / "several.nc") == 0
    )
    return folder / "several.nc"


def test_a_file_of_several_conditions_says_which_is_which(folder, samples_file):
    held_out = sapc.Task.from_data(sapc.read_fields(folder / "my.h5"), folder / "my_physics.py").dataset(
        "validation"
    )
    with xr.open_dataset(samples_file) as out:
        assert out.h.dims == ("condition", "member", "x", "time")
        assert out.h.shape == (2, 2, 12, 6)
        # The conditions themselves: the initial height, and nothing else.
        np.testing.assert_array_equal(out.h_condition.isel(time=0), held_out.fields[:, 0, :, 0])
        assert np.isnan(out.h_condition.isel(time=slice(1, None))).all()
        assert np.isnan(out.u_condition).all()
        np.testing.assert_array_equal(out.h.isel(time=0, member=1), out.h_condition.isel(time=0))
        # Statistics are those of each condition.
        for name in ("h", "u"):
            np.testing.assert_allclose(out[f"{name}_mean"], out[name].mean("member"), rtol=1e-12)
            np.testing.assert_allclose(
                out[f"{name}_std"], out[name].std("member", ddof=1), rtol=1e-9, atol=1e-12
            )
            np.testing.assert_allclose(
                out[f"{name}_quantile"].isel(quantile=0), out[name].median("member"), rtol=1e-12
            )
        flat = out.h.values.reshape(4, 12, 6)
    fields = sapc.read_fields(samples_file, dtype=torch.float64)
    assert fields.grid.channels == ("h", "u")
    np.testing.assert_array_equal(fields.values[:, 0], flat)


def test_a_file_of_samples_gives_its_conditions_back(folder, trained_run, samples_file, tmp_path):
    line = ("--physics", folder / "my_physics.py", "--condition", samples_file, "--steps", 2, "--members", 2)
    assert run("sample", trained_run, *line, "--out", tmp_path / "again.nc") == 0
    with xr.open_dataset(samples_file) as first, xr.open_dataset(tmp_path / "again.nc") as second:
        xr.testing.assert_equal(first.drop_vars(["h_quantile", "u_quantile", "quantile"]), second)


FRAMES = {
    "a frame": (("x",), lambda h: h[0, :, 0]),
    "frames": (("case", "x"), lambda h: h[:, :, 0]),
    "a time of one entry": (("x", "time"), lambda h: h[0, :, :1]),
    "frames, sample last": (("x", "member"), lambda h: h[:, :, 0].T),
    "a whole field": (("x", "time"), lambda h: h[0]),
}


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_condition_may_be_the_pinned_part_alone(folder, trained_run, tmp_path, name, is_reversed):
    at, time, h, _ = simulations(3)
    dims, part = FRAMES[name]
    values = part(h)
    dataset = xr.Dataset(
        {"h": (dims, values)}, {"x": at, **({"time": time[: values.shape[-1]]} if "time" in dims else {})}
    )
    if is_reversed:
        dataset = dataset.isel(x=slice(None, None, -1))
    dataset.to_netcdf(tmp_path / "new.nc", engine="h5netcdf")
    line = (
        "--physics",
        folder / "my_physics.py",
        "--condition",
        tmp_path / "new.nc",
        "--steps",
        1,
        "--members",
        2,
    )
    assert run("sample", trained_run, *line, "--out", tmp_path / "s.npz") == 0
    k = 3 if "frames" in name else 1
    with np.load(tmp_path / "s.npz") as file:
        np.testing.assert_array_equal(file["fields"][:, 0, :, 0], np.repeat(h[:k, :, 0], 2, 0))


def test_a_frame_of_another_time_is_refused(folder, trained_run, tmp_path, capsys):
    """A frame that was cut out of whole fields says where it was by a coordinate without a dimension."""
    at, time, h, _ = simulations(1)
    dataset = xr.Dataset({"h": (("x",), h[0, :, 3])}, {"x": at, "time": time[3]})
    dataset.to_netcdf(tmp_path / "new.nc", engine="h5netcdf")
    line = ("--physics", folder / "my_physics.py", "--condition", tmp_path / "new.nc", "--steps", 1)
    assert run("sample", trained_run, *line, "--out", tmp_path / "s.npz") == 2
    assert f"is at time = {time[3]:g}, and pinned is time = 0" in " ".join(capsys.readouterr().err.split())


def test_channels_that_nothing_is_pinned_of_need_not_fit(folder, trained_run, tmp_path):
    """One frame of all channels, as `isel(time=0)` cuts it out; h is pinned, u is not."""
    at, _, h, u = simulations(1)
    dataset = xr.Dataset({"h": (("x",), h[0, :, 0]), "u": (("x",), u[0, :, 0])}, {"x": at})
    dataset.to_netcdf(tmp_path / "new.nc", engine="h5netcdf")
    line = ("--physics", folder / "my_physics.py", "--condition", tmp_path / "new.nc", "--steps", 1, "--n", 1)
    assert run("sample", trained_run, *line, "--out", tmp_path / "s.npz") == 0
    with np.load(tmp_path / "s.npz") as file:
        np.testing.assert_array_equal(file["fields"][:, 0, :, 0], h[:1, :, 0])


def test_frames_without_names_of_dimensions(folder, trained_run, tmp_path):
    h = simulations(3)[2]
    np.savez(tmp_path / "new.npz", h=h[:, :, 0])
    line = (
        "--physics",
        folder / "my_physics.py",
        "--condition",
        tmp_path / "new.npz",
        "--steps",
        1,
        "--n",
        6,
    )
    assert run("sample", trained_run, *line, "--out", tmp_path / "s.h5") == 0
    with h5py.File(tmp_path / "s.h5") as file:
        assert file["condition_index"][()].tolist() == [0, 0, 1, 1, 2, 2]
        np.testing.assert_array_equal(file["fields"][:, 0, :, 0], np.repeat(h[:, :, 0], 2, 0))


@pytest.mark.parametrize(
    ("values", "at", "message"),
    [
        ((11,), np.arange(11) / 11, "h (x: 11)"),
        ((12,), 3 + np.arange(12) / 12, "x has 12 points of [3, 4]"),
        ((12, 2, 2), np.arange(12) / 12, "expected (x: 12, time: 6), or (x: 12), what is pinned"),
    ],
)
def test_a_frame_that_does_not_fit_is_one_sentence(
    folder, trained_run, tmp_path, capsys, values, at, message
):
    dataset = xr.Dataset({"h": (("x", "y", "z")[: len(values)], np.ones(values))}, {"x": at})
    dataset.to_netcdf(tmp_path / "new.nc", engine="h5netcdf")
    line = ("--physics", folder / "my_physics.py", "--condition", tmp_path / "new.nc", "--n", 1)
    assert run("sample", trained_run, *line, "--out", tmp_path / "s.h5") == 2
    err = capsys.readouterr().err
    assert is_one_sentence(err)
    assert message in err


def test_a_coarse_condition_is_told_which_grid_is_sampled(folder, trained_run, tmp_path, capsys):
    line = (
        "--physics",
        folder / "my_physics.py",
        "--condition",
        folder / "my.h5",
        "--n",
        20,
        "--grid",
        "24x6",
    )
    assert run("sample", trained_run, *line, "--out", tmp_path / "s.h5") == 2
    err = capsys.readouterr().err
    assert "x has 12 points of [0, 1] (periodic), and 24 of [0, 1] (periodic) are sampled" in err
    assert "trained" not in err


def test_evaluate_on_the_validation_split(folder, trained_run, capsys):
    line = ("--physics", folder / "my_physics.py", "--data", folder / "my.h5", "--steps", 2)
    assert run("evaluate", trained_run, *line) == 0
    assert "validation" in capsys.readouterr().out
    assert json.loads((trained_run / "scores.json").read_text())["mean"]["metrics"]["ce_local"] == 0


def test_evaluate_measures_skill_per_condition(folder, trained_run, capsys):
    line = ("--physics", folder / "my_physics.py", "--data", folder / "my.h5", "--steps", 2)
    assert run("evaluate", trained_run, *line, "--members", 3) == 0
    out = capsys.readouterr().out
    # Of 2 x 12 x 6 values the 12 of h at the first time are pinned.
    assert "3 members for each of 2 held-out conditions, at 132 free points" in " ".join(out.split())
    assert "beside 18 training fields as climatology" in " ".join(out.split())
    rows = {line.split("  ")[0].strip(): line.split() for line in out.splitlines()}
    for label in ("CRPS", "energy score", "RMSE of the mean", "spread / skill", "coverage of 90 %"):
        assert label in rows
    # u is not known at the first time: no frame is pinned as a whole.
    assert [len(row) for label, row in rows.items() if label == "persistence"] == []
    assert run("evaluate", trained_run, *line, "--members", 3, "--json") == 0
    skill = json.loads(capsys.readouterr().out)["skill"]
    assert (skill["members"], skill["conditions"], skill["units"]) == (3, 2, "deviations")
    assert run("evaluate", trained_run, *line, "--conditions", 0) == 0
    assert "per condition" not in capsys.readouterr().out


def test_a_training_ends_with_skill_unless_told_otherwise(folder, tmp_path, capsys):
    line = ("train", "--data", folder / "my.h5", "--physics", folder / "my_physics.py", "--preset", "tiny")
    assert run(*line, "--steps", 3, "--out", tmp_path / "a") == 0
    out = capsys.readouterr().out
    assert "8 members for each of 2 held-out conditions" in " ".join(out.split())
    # After three steps samples are as good as noise.
    assert "climatology: CRPS" in " ".join(out.split())
    assert out.splitlines()[-1].startswith("next: sapc sample ")
    assert run(*line, "--steps", 3, "--out", tmp_path / "a") == 0
    assert "per condition" not in capsys.readouterr().out
    assert run(*line, "--steps", 3, "--out", tmp_path / "b", "--no-skill") == 0
    assert "per condition" not in capsys.readouterr().out
    assert run(*line, "--steps", 3, "--out", tmp_path / "c", "--json") == 0
    assert json.loads(capsys.readouterr().out)["skill"]["steps"] == 10


@pytest.mark.filterwarnings("always:skill was not measured")
def test_a_failure_to_measure_skill_is_a_warning(folder, tmp_path, capsys):
    """Of data whose every value is pinned there is nothing to foretell; the training is kept."""
    physics = tmp_path / "all.py"
    physics.write_text(
        "import sapc\n\n\ndef physics(grid):\n    return sapc.Pin(lambda shape: __import__('torch').ones(shape, dtype=bool))\n"
    )
    line = ("train", "--data", folder / "my.h5", "--physics", physics, "--preset", "tiny")
    assert run(*line, "--steps", 2, "--out", tmp_path / "a") == 0
    captured = capsys.readouterr()
    assert "skill was not measured: every point is pinned" in captured.err
    assert "trained: " in captured.out


@pytest.mark.slow
def test_methods_are_compared_on_own_data(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sapc.tasks.registry.TASKS", dict(sapc.tasks.registry.TASKS))
    line = ("compare", "--data", folder / "my.h5", "--physics", folder / "my_physics.py", "--preset", "tiny")
    line += (
        "--method",
        "sapc",
        "--method",
        "cond_ffm",
        "--steps",
        2,
        "--members",
        3,
        "--out",
        tmp_path / "c",
    )
    assert run(*line) == 0
    out = capsys.readouterr().out
    title = "Skill per condition: 3 members for each of 2 held-out conditions"
    assert title in " ".join(out.split())
    rows = [line.split() for line in out.split("Skill per condition")[1].splitlines()]
    assert [row[0] for row in rows if row and row[0] in ("climatology", "sapc", "cond_ffm")][:3] == [
        "climatology", "sapc", "cond_ffm"
    ]  # fmt: skip
    result = json.loads((tmp_path / "c" / "my-comparison.json").read_text())
    assert result["sets"] == ["validation"]
    assert {name: entry["skill"]["members"] for name, entry in result["methods"].items()} == {
        "sapc": 3, "cond_ffm": 3
    }  # fmt: skip
    assert run(*line) == 0
    assert "already scored: sapc, cond_ffm" in capsys.readouterr().out


BAD = {
    "no physics": ("train --data {f}/my.h5", "--data needs --physics FILE"),
    "no data": ("train --physics {f}/my_physics.py", "--physics goes with data of your own"),
    "both": ("train heat --data {f}/my.h5 --physics {f}/my_physics.py", "leave one of them out"),
    "no file": ("train --data {f}/no.h5 --physics {f}/my_physics.py", "no.h5"),
    "physics missing": ("check {f}/no.py --data {f}/my.h5", "there is no file"),
    "no such channel": ("check {f}/my_physics.py --data {f}/my.h5 --channels h,w", "w"),
    "channel left out": ("check {f}/my_physics.py --data {f}/my.h5 --channels u", "no channel 'h'; it has u"),
    "no such axis": ("check {f}/my_physics.py --data {f}/my.h5 --periodic z", "no axis 'z'"),
    "name": ("train --data {f}/my.h5 --physics {f}/my_physics.py --name a-b", "letters, digits and _"),
    "share": ("check {f}/my_physics.py --data {f}/my.h5 --validation-share 2", "between 0 and 1"),
    "no data for check": (
        "check {f}/my_physics.py",
        "give their file as well: sapc check {f}/my_physics.py --data FILE",
    ),
    "sample without physics": ("sample heat-sapc --data {f}/my.h5 --n 1", "is a task of this package"),
    "quantiles": ("sample heat-sapc --quantiles 0.5 --out {f}/x.h5", "name the file .nc"),
    "quantile": ("sample heat-sapc --quantiles 2 --out {f}/x.nc", "between 0 and 1"),
    "grid": ("train --data {f}/my.h5 --physics {f}/my_physics.py --grid 8x8", "has its grid"),
    "samples without data": ("train heat --samples-dim n", "--samples-dim goes with data of your own"),
    "unsteady without data": ("train heat --unsteady", "--unsteady goes with data of your own"),
    "steady with a time": ("check {f}/my_physics.py --data {f}/my.h5 --steady", "but --steady was said"),
    "steady and time": (
        "check {f}/my_physics.py --data {f}/my.h5 --steady --time x",
        "but --time x was given",
    ),
    "no such time": (
        "check {f}/my_physics.py --data {f}/my.h5 --time z",
        "no dimension 'z' for --time; choose one of",
    ),
    "no such samples": (
        "check {f}/my_physics.py --data {f}/my.h5 --samples-dim z",
        "'z' for --samples-dim; choose one of",
    ),
    "time is not said": (
        "check {f}/my_physics.py --data {f}/bare.npz",
        "Say --time last, --time first or --steady, or",
    ),
    "unknown": ("train wave", "name the file that defines it: sapc --plugin FILE; data of your own"),
    "compare without a task": ("compare", "sapc compare needs a task, as in `sapc compare heat`, or --data"),
    "compare with both": ("compare heat --data {f}/my.h5 --physics {f}/my_physics.py", "and not both"),
    "members": ("evaluate heat-sapc --members 0", "the number of members"),
    "train": (
        "train --data {f}/my.h5 --physics {f}/my_physics.py --train 99",
        "has 18 samples, and 99 were asked for",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_calls_end_in_one_sentence(folder, tmp_path, capsys, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    line, message = BAD[name]
    assert run(*line.format(f=folder).split()) == 2
    err = capsys.readouterr().err
    assert is_one_sentence(err), err
    assert message.format(f=folder) in err
    # Nobody has to know Python's words to use the command line.
    assert not re.search(
        r"\w=('|\(|True|False|\W)|in Python", err.replace("--data needs --physics FILE", "")
    ), err
    assert not list(tmp_path.iterdir())


def test_without_its_physics_a_model_cannot_be_used(trained_run, tmp_path, capsys):
    assert run("sample", trained_run, "--n", 1, "--out", tmp_path / "a.h5") == 2
    assert "it was my_physics.py; give it as --physics FILE" in capsys.readouterr().err


@pytest.mark.slow
def test_a_study_of_own_data_runs_in_worker_processes_and_has_a_report(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fields = f"sapc.read_fields({str(folder / 'my.h5')!r})"
    code = f"{PHYSICS}\nTASK = sapc.Task.from_data({fields}, physics, 'water')\n"
    (tmp_path / "my_task.py").write_text(code)
    study = 'import sapc\nfrom sapc.experiments import cells\nsapc.load_plugin("my_task.py")\n'
    (tmp_path / "own.py").write_text(
        study + 'runs = cells(["water"], ["sapc", "ffm"], preset="tiny", steps=2, sampling_steps=2)\n'
    )
    process = run_command("study", "run", "own.py", "--out", "study", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "2 cells: 2 done" in process.stdout
    assert run_command("report", "study", "--out", "report", cwd=tmp_path).returncode == 0
    assert "| water | MMSE | ours | " in (tmp_path / "report" / "tables.md").read_text()


# -- tasks as classes --


def test_a_task_of_ones_own_class(tmp_path, monkeypatch):
    # Known in this test only.
    monkeypatch.setattr("sapc.tasks.registry.TASKS", dict(sapc.tasks.registry.TASKS))
    heat = type(sapc.get_task("heat"))

    class Warm(sapc.Task):
        name = "warm"
        title, equation, pinned, law = heat.title, heat.equation, heat.pinned, heat.law
        parameters, paper_grid = heat.parameters, heat.paper_grid
        constraint = heat.constraint
        _draw, _solve = heat._draw, heat._solve

    sapc.register_task(Warm)
    assert sapc.register_task(Warm) is Warm
    run_ = sapc.training_config("warm", "sapc", "tiny", steps=1)
    sapc.training.loop.train(run_, tmp_path / "run")
    assert sapc.load(tmp_path / "run").task.name == "warm"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (sapc.Fields, "a subclass of sapc.Task, got <class"),
        (type("Half", (sapc.Task,), {"name": "half"}), "lacks _draw, _solve, constraint"),
        (type("Other", (type(sapc.get_task("heat")),), {}), "there is a task 'heat' already"),
        (type("Odd", (type(sapc.get_task("heat")),), {"name": "a-b"}), "letters, digits and _"),
    ],
)
def test_what_is_no_task_is_refused(kind, message):
    with pytest.raises(sapc.SapcError, match=message):
        sapc.register_task(kind)
