"""Tasks of one's own: channels, steady fields, units, physics from files, and models trained on them."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sapc
from sapc import Affine, Axis, Balance, Constraint, Fields, Grid, Pin, SapcError
from sapc.constraints import WithGradient
from sapc.data.normalizer import Normalizer
from sapc.tasks.physics import load_physics
from sapc.tasks.rescale import rescale

pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st

GRID = Grid((Axis("lon", 6, kind="periodic"), Axis("lat", 5), Axis("time", 4, 0.0, 2.0)), ("h", "u"))
STEADY = Grid((Axis("x", 8), Axis("y", 7)), ("p", "q"), steady=True)


def draws(grid, n, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    u = torch.randn(n, *grid.shape, generator=g, dtype=dtype)
    return u * torch.tensor([3.0, 1e4], dtype=dtype).reshape(-1, *(1,) * len(grid.axes)) + 100


def fields(grid=GRID, n=20, seed=0, **more):
    return Fields(
        draws(grid, n, seed).float(), grid, {}, {}, {"path": "made.nc", "sha256": f"{seed}"}, None, **more
    )


def waves(n=24, conserve=True):
    """Two channels on a ring: h travels and keeps its mean, u is its double in other units."""
    grid = Grid((Axis("x", 12, kind="periodic"), Axis("t", 6)), ("h", "u"))
    x, t = grid.mesh()
    g = torch.Generator().manual_seed(0)
    phase, speed = torch.rand(2, n, 1, 1, generator=g, dtype=torch.float64)
    h = 5 + torch.sin(2 * math.pi * (x - speed * t) + 6 * phase)
    values = torch.stack((h, 1e3 * (2 * h - 9)), 1).float()
    return Fields(values, grid, {"h": "m"}, {}, {"path": "waves.nc", "sha256": "waves"}, None)


def law(grid):
    return Pin.frame(0, grid=grid, channel="h") & Balance(grid.integral("h"), times=grid.time.points)


# -- grids with channels --


def test_shapes_with_channels_and_without_time():
    assert GRID.shape == (2, 6, 5, 4)
    assert GRID.points_per_axis == (6, 5, 4)
    assert STEADY.shape == (2, 8, 7)
    assert Grid((Axis("x", 5), Axis("t", 4)), ("u",)).shape == (5, 4)
    assert [a.name for a in STEADY.space] == ["x", "y"]
    with pytest.raises(SapcError, match="no time axis"):
        _ = STEADY.time
    for grid in (GRID, STEADY):
        assert Grid.from_dict(grid.to_dict()) == grid
        assert grid.resize(*(n + 1 for n in grid.points_per_axis)).channels == grid.channels


def test_integral_and_derivative_of_one_channel():
    u = draws(GRID, 3)
    whole = GRID.integral("u")(u)
    torch.testing.assert_close(whole, GRID.integral()(GRID.channel_values(u, "u")))
    assert whole.shape == (3, 4)
    torch.testing.assert_close(GRID.derivative(u, "lat")[:, 1], GRID.derivative(u[:, 1], "lat"))
    assert STEADY.integral("q")(draws(STEADY, 3)).shape == (3, 1)


def test_channels_of_the_source_are_independent_and_of_unit_variance():
    v = sapc.source.sample(GRID, 400, torch.Generator().manual_seed(0))
    assert v.shape == (400, *GRID.shape)
    flat = v.transpose(0, 1).flatten(1)
    torch.testing.assert_close(torch.cov(flat), torch.eye(2), atol=0.03, rtol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Grid((Axis("x", 5),)), "steady=True"),
        (lambda: Grid((Axis("x", 5), Axis("t", 4)), ("x",)), "must differ"),
        (lambda: GRID.channel_values(draws(GRID, 1), "w"), "no channel 'w'; it has h, u"),
        (lambda: GRID.integral("w"), "no channel 'w'"),
        (lambda: Pin.at(GRID, x=0), "no axis 'x'; the grid has lon, lat, time"),
        (lambda: Pin.at(GRID, lon=9), "outside a grid of 6 x 5 x 4 points"),
        (lambda: Pin.at(channel="h", x=0), "needs the grid"),
        (lambda: Pin.frame(0, channel="h"), "needs the grid"),
        (lambda: Pin.frame(9).mask(GRID.shape), "outside fields of 4 frames"),
        (
            lambda: Pin.at(GRID, lon=0, value=torch.ones(3)).on(draws(GRID, 1)),
            "must be a number or broadcast",
        ),
    ],
)
def test_bad_names(call, message):
    with pytest.raises(SapcError, match=message):
        call()


# -- pins --


def test_pins_by_name_coordinate_and_value():
    mask = Pin.at(GRID, lon=slice(0, 2), channel="u").mask(GRID.shape)
    assert mask.sum() == 2 * 5 * 4
    assert not mask[0].any()
    near = Pin.near(GRID, lon=0.34, lat=0.49, channel="h").mask(GRID.shape)
    assert near.nonzero()[:, 1:3].unique(dim=0).tolist() == [[2, 2]]
    u = draws(GRID, 3)
    wall = Pin.at(GRID, lat=0, channel="u", value=-2.5)
    with pytest.raises(SapcError, match=r"'t\[0\]' and 'u, lat\[0\]' prescribe different values at 6 points"):
        (Pin.frame(0) & wall).on(u)
    u[:, 1, :, 0] = -2.5000001
    H = (Pin.frame(0) & wall).on(u)
    v = H.project(torch.zeros_like(u))
    assert (v[:, 1, :, 0] == -2.5).all()
    assert (v[:, 0, ..., 0] == u[:, 0, ..., 0]).all()
    assert (H.rebind(u + 1).project(u)[:, 1, :, 0] == -2.5).all()


def test_a_manifold_takes_further_constraints():
    u = draws(GRID, 2)
    sensors = torch.zeros(GRID.shape, dtype=torch.bool)
    sensors[0, 3, 2, 1:] = True
    H = law(GRID).on(u) & Pin(sensors)
    v = H.project(torch.randn_like(u))
    assert (v[:, sensors] == u[:, sensors]).all()
    assert H.residual(v).abs().max() < 1e-10


# -- units --


def mixed(grid):
    """One of every kind of constraint that time allows."""
    h = lambda u: grid.channel_values(u, "h")
    energy = WithGradient(
        lambda u: grid.integral()(h(u) ** 2),
        lambda u: (
            grid.integral()(h(u) ** 2),
            torch.stack((2 * h(u) * grid.weights[..., None], 0 * h(u)), 1),
        ),
    )
    return {
        "linear": Pin.frame(0) & Balance(grid.integral("u")),
        "rate": Pin.frame(0, grid=grid, channel="h")
        & Balance(grid.integral("h"), rate=lambda u: 0.1 * grid.integral("h")(u), grid=grid),
        "integral rate": Pin.frame(0) & Balance(grid.integral("h"), rate=grid.integral("h"), grid=grid),
        "gradient": Pin.frame(0) & Balance(energy),
        "affine": Pin.at(grid, lon=0) & Affine(lambda u: u.flatten(1)[:, 25::40], value=50.0),
        "matrix": Affine(
            torch.eye(2, math.prod(grid.shape), dtype=torch.float64), value=torch.tensor([99.0, 101.0])
        ),
        "field": Affine(lambda u: grid.total("h")(u), value="field"),
        "free": Constraint(lambda u: (h(u).square().mean((1, 2, 3)) * 1e-4)[:, None], value=1.1),
        "value": Pin.at(grid, lat=-1, channel="u", value=7.0) & Balance(grid.total("u")),
    }


@pytest.mark.parametrize("kind", list(mixed(GRID)))
def test_scaled_constraints_hold_where_the_given_ones_do(kind):
    """Projected in the network's units, fields are on the manifold in their own; and by the same
    algorithm."""
    u, constraint = draws(GRID, 3), mixed(GRID)[kind]
    scale = Normalizer.fit(u, GRID)
    H = constraint.on(u)
    inner = rescale(constraint, scale).on(scale.normalize(u))
    assert inner.algorithm == H.algorithm
    w = sapc.source.sample(GRID, 3, torch.Generator().manual_seed(1), dtype=torch.float64)
    v = scale.denormalize(inner.project(w))
    size = H.residual(scale.denormalize(w)).abs().max()
    assert H.residual(v).abs().max() < 1e-9 * size
    torch.testing.assert_close(inner.project(w), inner.dense().project(w), atol=1e-7, rtol=0)


@pytest.mark.parametrize("mean", [0.0, 300.0, 1e6])
def test_a_linear_law_of_fields_with_a_large_mean_is_met(mean):
    """As that of temperatures in kelvin: the mean is no part of what rounding is measured by."""
    u = draws(GRID, 3) + mean
    scale = Normalizer.fit(u, GRID)
    law = rescale(Affine(lambda u: GRID.total("h")(u), value="field"), scale)
    w = sapc.source.sample(GRID, 3, torch.Generator().manual_seed(1), dtype=torch.float64)
    v, report = law.on(scale.normalize(u)).solve(w)
    assert report.converged.all()
    totals = [GRID.total("h")(fields) for fields in (scale.denormalize(v), u)]
    torch.testing.assert_close(*totals, rtol=1e-12, atol=0)


@given(st.integers(0, 99), st.floats(-5, 5), st.floats(-4, 4))
@settings(max_examples=20, deadline=None)
def test_units_come_back(seed, shift, power):
    u = draws(GRID, 4, seed) * 10**power + shift
    scale = Normalizer.fit(u, GRID)
    w = scale.normalize(u)
    flat = w.transpose(0, 1).flatten(1)
    torch.testing.assert_close(flat.mean(1), torch.zeros(2, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(flat.std(1, correction=0), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(scale.denormalize(w), u, rtol=1e-12, atol=1e-9 * float(u.abs().max()))
    assert Normalizer.from_dict(scale.to_dict(), GRID) == scale


def test_a_constant_channel_is_refused():
    u = draws(GRID, 2)
    u[:, 1] = 4
    with pytest.raises(SapcError, match="all values of u are 4"):
        Normalizer.fit(u, GRID)


# -- physics from files --


def test_physics_from_a_file(tmp_path):
    file = tmp_path / "my.py"
    file.write_text(
        "import sapc\ndef physics(grid):\n    return sapc.Pin.frame(0) & sapc.Balance(grid.integral('h'))\n"
    )
    known = load_physics(file)
    assert [type(p).__name__ for p in known.on(GRID).parts] == ["Pin", "Balance"]
    assert len(known.sha256) == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def physics(grid)\n", "SyntaxError in line 1"),
        ("\0\n", r"cannot be run as Python: SyntaxError: source code"),
        ("x = 1\n", "defines no function `physics`"),
        ("1 / 0\n", r"ZeroDivisionError.*\(line 1\)"),
        ("def physics(grid):\n    return 3\n", "returned int"),
        ("def physics(grid):\n    return grid.integral('w')\n", "no channel 'w'.*line 2"),
        ("def physics(grid):\n    return undefined\n", r"NameError.*\(line 2\)"),
        ("raise SystemExit(3)\n", r"SystemExit: 3 \(line 1\)"),
        ("def physics(grid):\n    exit()\n", r"SystemExit.*\(line 2\)"),
    ],
)
def test_mistakes_in_physics_are_told_with_their_line(tmp_path, text, message):
    file = tmp_path / "my.py"
    file.write_text(text)
    with pytest.raises(SapcError, match=message):
        sapc.Task.from_data(fields(), file)


def test_other_physics_is_refused(tmp_path):
    with pytest.raises(SapcError, match="there is no file"):
        sapc.Task.from_data(fields(), tmp_path / "no.py")
    with pytest.raises(SapcError, match="got int"):
        sapc.Task.from_data(fields(), 3)
    with pytest.raises(SapcError, match="name is made of letters"):
        sapc.Task.from_data(fields(), law, "a-b")
    with pytest.raises(SapcError, match=r"these fields are steady; use Affine"):
        sapc.Task.from_data(fields(STEADY), lambda grid: Balance(grid.integral("p")))


def test_data_that_violate_a_prescribed_value_are_refused():
    wall = lambda grid: Pin.at(grid, lat=0, channel="u", value=0.0)
    with pytest.raises(
        SapcError, match=r"violate the pin 'u, lat\[0\]' by up to .* deviation, at most in sample"
    ):
        sapc.Task.from_data(fields(), wall)
    data = fields()
    data.values[:, 1, :, 0] = 0
    assert sapc.Task.from_data(data, wall).pinned == "u, lat[0]"


# -- from data to samples --


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "run"
    task = sapc.Task.from_data(waves(), law)
    run = sapc.training_config(task, "sapc", "tiny", steps=4)
    sapc.training.loop.train(run, path)
    return path


def test_samples_keep_law_and_pins_in_their_units(trained):
    data = waves()
    model = sapc.load(trained, physics=law, data=data)
    condition = data.values[:3].clone()
    condition[:, 1] = torch.nan
    condition[:, 0, :, 1:] = torch.nan
    u = model.sample(3, condition, steps=3)
    H = model.manifold(condition)
    assert (H.local(u) == 0).all()
    assert H.balance(u).abs().max() < 1e-13
    assert u[:, 1].abs().max() > 100  # in its own units
    assert model.task.dataset("train", size=2).fields.shape == (2, 2, 12, 6)


def test_sensors_after_training(trained):
    model, data = sapc.load(trained, physics=law), waves()
    sensors = Pin.near(data.grid, x=0.5, channel="u")
    u = model.sample(2, data.values[:1], steps=3, extra_constraints=sensors)
    mask = sensors.mask(data.grid.shape)
    assert (u[:, mask] == data.values[:1, mask].double()).all()
    assert model.manifold(data.values[:1], extra_constraints=sensors).residual(u).abs().max() < 1e-13
    with pytest.raises(SapcError, match="pinned values are NaN"):
        model.sample(2, torch.where(mask, torch.nan, data.values[:1]), steps=1, extra_constraints=sensors)
    with pytest.raises(SapcError, match="give one"):
        model.sample(2, steps=1, extra_constraints=sensors)


def test_a_model_of_own_data_asks_for_its_physics(trained):
    with pytest.raises(SapcError, match="physics of its own, which is code"):
        sapc.load(trained)
    model = sapc.load(trained, physics=law)
    with pytest.raises(SapcError, match="data of waves are not loaded"):
        model.task.dataset("train")
    with pytest.warns(sapc.SapcWarning, match="its text has changed"):
        sapc.load(trained, physics=lambda grid: law(grid))
    with pytest.raises(SapcError, match="on another grid than waves"):
        sapc.load(trained, physics=law, data=fields())
    with pytest.raises(SapcError, match="heat is a task of this package"):
        sapc.load("heat-sapc", physics=law)


def test_every_method_trains_and_samples_on_own_data(tmp_path):
    task = sapc.Task.from_data(waves(), law)
    for method in ("ffm", "cond_ffm", "cafm", "pbfm"):
        run = sapc.training_config(task, method, "tiny", steps=1)
        sapc.training.loop.train(run, tmp_path / method)
        model = sapc.load(tmp_path / method, physics=law)
        for sampler in ("ffm", "pcfm", "eci", "sapc_s1") if method == "ffm" else (method,):
            u = model.sample(2, waves().values[:1], steps=2, method=sampler)
            assert u.shape == (2, 2, 12, 6)


def test_evaluation_is_on_the_validation_split(trained):
    model = sapc.load(trained, physics=law, data=waves())
    scores = sapc.evaluate(model, steps=2)
    assert set(scores["sets"]) == {"validation"}
    assert scores["settings"]["samples"] == model.task.sizes["validation"]
    assert scores["mean"]["metrics"]["ce_local"] == 0
    with pytest.raises(SapcError, match="choose from validation"):
        sapc.evaluate(model, ["test0"])


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_steady_fields_of_one_to_three_dimensions(tmp_path, axes):
    names = ("x", "y", "z")[:axes]
    grid = Grid(tuple(Axis(n, 6 + i, kind="cells") for i, n in enumerate(names)), ("c",), steady=True)
    g = torch.Generator().manual_seed(0)
    values = torch.rand(12, *grid.shape, generator=g)
    data = Fields(values, grid, {}, {}, {"path": "s.npz", "sha256": f"steady{axes}"}, None)
    total = lambda grid: Pin.at(grid, x=0) & Affine(grid.integral("c"), value="field")
    run = sapc.training_config(sapc.Task.from_data(data, total), "sapc", "tiny", steps=2)
    sapc.training.loop.train(run, tmp_path / "run")
    model = sapc.load(tmp_path / "run", physics=total)
    u = model.sample(4, values[:4], steps=2)
    torch.testing.assert_close(
        grid.integral("c")(u), grid.integral("c")(values[:4].double()), rtol=1e-12, atol=0
    )
    with pytest.raises(SapcError, match="Affine takes its value from them"):
        model.sample(1, torch.full((1, *grid.shape), torch.nan), steps=1)


def test_four_axes_and_a_quadratic_invariant_of_two_channels(tmp_path):
    """Three dimensions and time; a constraint without structure goes the dense way with the same code."""
    grid = Grid((*(Axis(n, 4, kind="periodic") for n in "xyz"), Axis("t", 3)), ("a", "b"))
    values = torch.randn(8, *grid.shape, generator=torch.Generator().manual_seed(0))
    data = Fields(values, grid, {}, {}, {"path": "q.h5", "sha256": "four"}, None)
    both = lambda u: u.square().mean((1, 2, 3, 4))  # a^2 + b^2, one number per frame
    circle = lambda grid: Constraint(both, value="field")
    task = sapc.Task.from_data(data, circle)
    report = sapc.check(task, noise=4)
    assert report.algorithm == "dense Gauss-Newton"
    assert "declares no structure" in report.explanation
    assert report.converged == 4
    sapc.training.loop.train(sapc.training_config(task, "sapc", "tiny", steps=1), tmp_path / "run")
    model = sapc.load(tmp_path / "run", physics=circle)
    u = model.sample(2, values[:2], steps=2)
    torch.testing.assert_close(both(u), both(values[:2].double()), rtol=1e-10, atol=0)


def test_check_tells_a_law_that_the_data_do_not_keep():
    fine = sapc.check(sapc.Task.from_data(waves(), law))
    assert fine.problems == []
    assert fine.algorithm == "closed form"
    assert "no problem found" in fine.text()
    wrong = lambda grid: Pin.frame(0) & Balance(grid.integral("h"), rate=lambda u: grid.integral("h")(u))
    bad = sapc.check(sapc.Task.from_data(waves(), wrong))
    assert "law and data disagree" in bad.text()
    assert bad.to_dict()["problems"]


def test_the_settings_of_own_data_are_those_of_the_page():
    """What docs/how-to/train.md says of own data in the presets of a CPU."""
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "train.md").read_text(encoding="utf-8")
    text = " ".join(text.split())
    task = sapc.Task.from_data(waves(), law)
    for name in ("small", "tiny"):
        run = sapc.training_config(task, "sapc", name)
        floor = f"{run.min_lr:g}".replace("e-0", "e-")
        rate = f"{run.lr:.1e}".replace("e-0", "e-")
        assert run.lr == 2.4e-2
        rates = f"from rate {rate} to the floor {floor}"
        assert (
            f"schedule `{run.schedule}` {rates} with the largest gradient norm {run.max_grad_norm:g};" in text
        )
    assert "scaled channel by channel to mean 0 and deviation 1" in text
    seen = task.normalize(task.dataset("train").fields.double())
    torch.testing.assert_close(seen.mean((0, 2, 3)), torch.zeros(2).double(), rtol=0, atol=1e-5)
    assert "without normalisation" not in text


def test_resuming_takes_the_same_steps(tmp_path):
    task = sapc.Task.from_data(waves(), law)
    run = sapc.training_config(task, "sapc", "tiny", steps=6)
    sapc.training.loop.train(run, tmp_path / "whole")

    def stop(step, steps, seen):
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sapc.training.loop.train(run, tmp_path / "parts", progress=stop, save_seconds=0)
    sapc.training.loop.train(run, tmp_path / "parts")
    one, two = (sapc.load(tmp_path / p, physics=law).network.state_dict() for p in ("whole", "parts"))
    assert all(torch.equal(one[name], two[name]) for name in one)


# -- what newcomers did --


def test_pins_without_a_grid_mean_the_axes_of_the_data():
    task = sapc.Task.from_data(waves(), lambda grid: Pin.at(x=0) & Pin.frame(0))
    mask = sapc.models.sampling.pinned_mask(task)
    assert mask.sum() == 2 * (6 + 12 - 1)
    with pytest.raises(SapcError, match="steady and have no frames"):
        sapc.Task.from_data(fields(STEADY), Pin.frame(0))
    with pytest.raises(SapcError, match="holds no point"):
        sapc.Task.from_data(waves(), lambda grid: Pin.at(grid, x=slice(5, 5)))


def test_two_conserved_integrals_are_factorised():
    both = lambda grid: Balance(grid.integral("h")) & Balance(grid.integral("u")) & Pin.frame(0)
    report = sapc.check(sapc.Task.from_data(waves(), both), noise=4)
    assert report.algorithm == "factorised"
    assert report.residual < 1e-12
    assert not report.problems


def test_a_forgotten_period_is_a_problem():
    data = waves()
    closed = Grid((Axis("x", 12), data.grid.time), data.grid.channels)
    found = sapc.check(
        sapc.Task.from_data(Fields(data.values, closed, origin={"sha256": "closed", "path": "c"}), law)
    )
    assert any("is an axis periodic" in problem for problem in found.problems)


def _divergence(grid):
    """du/dx + dv/dy at every point of a doubly periodic grid but one, which follows from the others."""

    def function(w):
        u, v = grid.channel_values(w, "u"), grid.channel_values(w, "v")
        return (u.roll(-1, 1) - u.roll(1, 1) + v.roll(-1, 2) - v.roll(1, 2)).flatten(1)[:, 1:]

    return Affine(function)


def _net_flux(grid):
    """What flows out through the last column less what flows in through the first."""
    return Affine(
        lambda w: (
            grid.channel_values(w, "u")[:, -1].sum(1, keepdim=True)
            - grid.channel_values(w, "u")[:, 0].sum(1, keepdim=True)
        )
    )


@pytest.mark.parametrize("law", [_divergence, _net_flux])
@pytest.mark.parametrize("broken", [0.0, 0.1])
def test_a_law_whose_value_is_zero_is_judged_by_its_terms(law, broken):
    """The curl of a stream function has no divergence, and on a ring as much leaves as enters; float32 leaves
    rounding."""
    grid = Grid((Axis("x", 7, kind="periodic"), Axis("y", 7, kind="periodic")), ("u", "v"), steady=True)
    s = torch.randn(6, 7, 7, generator=torch.Generator().manual_seed(0))
    u, v = s.roll(-1, 2) - s.roll(1, 2), s.roll(1, 1) - s.roll(-1, 1)
    u[:, -1] += broken * u.abs().max()
    values = torch.stack((u, v), 1)
    report = sapc.check(
        sapc.Task.from_data(Fields(values, grid, origin={"path": "f", "sha256": f"{broken}"}), law), noise=2
    )
    assert report.laws[0].residual > 0
    told = [problem for problem in report.problems if "the data break the linear constraint" in problem]
    assert len(told) == (broken > 0)
    assert report.laws[0].typical > 1


def test_a_mass_is_judged_beside_itself():
    """All of its terms have one sign, so their size is the quantity."""
    (mass,) = sapc.check(sapc.Task.from_data(waves(), law), noise=2).laws
    h = waves().grid.integral("h")(waves().values.double()[:8])
    assert mass.typical == pytest.approx(float(h.max()), rel=1e-12)


def test_a_law_without_a_gradient_is_judged_by_its_value():
    cut = lambda grid: Affine(lambda u: grid.integral("h")(u).detach())
    (mass,) = sapc.check(sapc.Task.from_data(waves(), cut), noise=2).laws
    h = waves().grid.integral("h")(waves().values.double()[:8])
    assert mass.typical == pytest.approx(float(h.max()), rel=1e-12)


def test_mistakes_inside_a_law_are_told_with_their_line(tmp_path):
    file = tmp_path / "my.py"
    file.write_text("import sapc\ndef physics(grid):\n    return sapc.Balance(lambda u: u.foo)\n")
    with pytest.raises(SapcError, match=r"a law of the physics .*AttributeError.*\(line 3\)"):
        sapc.Task.from_data(waves(), file)


def sensors(grid, value, **where):
    mask = Pin.at(grid, **where).mask(grid.shape)
    values = torch.full((1, *grid.shape), torch.nan, dtype=torch.float64)
    values[:, mask] = value
    return sapc.data.Sensors(mask, values, 0.0)


def test_sensors_that_contradict_are_told(trained):
    model, data = sapc.load(trained, physics=law), waves()
    u = model.sample(
        2, data.values[:1], steps=2, extra_constraints=sensors(data.grid, 5.5, x=3, t=4, channel="h")
    )
    assert (u[:, 0, 3, 4] == 5.5).all()
    with pytest.raises(
        SapcError, match="already pins 1 of the sensors' points, and differs there by up to 9"
    ):
        model.sample(
            2, data.values[:1], steps=2, extra_constraints=sensors(data.grid, 99.0, x=3, t=0, channel="h")
        )
    with pytest.warns(sapc.SapcWarning, match="2 of 2 samples are off the laws by up to"):
        model.sample(
            2, data.values[:1], steps=2, extra_constraints=sensors(data.grid, 50.0, t=4, channel="h")
        )


WRONG = {
    "sapc.read_fields(torch.zeros(3))": "given by its path, got Tensor",
    "sapc.Task.from_data(law, data)": "got function first",
    "sapc.Task.from_data(data, lambda grid: None)": "returned NoneType",
    "sapc.check(sapc.get_task('heat'))": "a task of your own",
    "sapc.Pin.near(grid, t=99.0)": "is not on the grid, which has t from 0 to 1; check the units",
    "sapc.Pin.near(grid, x='a')": "is a number, got 'a'",
    "sapc.Pin.at(grid, x='0')": "takes indices or slices",
    "sapc.Pin.at(x=0.5)": "got 0.5; places in the units of an axis go to Pin.near",
    "sapc.Pin.at(grid, x=0.5)": "got 0.5; places in the units of an axis go to Pin.near",
    "law(grid).on(data.values).project(data)": "got Fields; give its .values",
    "sapc.Pin(None).on(data.values)": "must be a boolean tensor",
    "sapc.Grid(grid.axes, 'hu')": "a sequence of names",
    "sapc.Grid((64, 50))": "sapc.Axis",
    "grid.channel_values(data.values.numpy(), 'h')": "use torch.as_tensor",
    "sapc.Balance('p')": "is a function of fields",
    "sapc.Balance(grid.integral('h'), grid=(12, 6))": "is a sapc.Grid, got tuple",
    "sapc.Axis(5, 4)": "named by text",
    "sapc.Axis('x', 4, 0.0, '1')": "finite numbers",
    "sapc.Grid(grid.axes, (1, 2))": "a sequence of names",
    "sapc.Grid.from_dict(5)": "not a grid description",
    "sapc.Grid.from_dict([])": "not a grid description",
    "sapc.Grid.from_dict({'axes': [{'name': 'x', 'n': 12, 'stop': '1'}]})": "finite numbers",
    "sapc.load_dataset(None)": "a dataset is given by its path",
    "sapc.training_config(data, 'sapc', 'small')": "got Fields",
    "sapc.load(None)": "a model is given by its path",
    "sapc.load_plugin(3)": "a plug-in is given by its path",
    "sapc.data.write_netcdf('x.nc', torch.zeros(3))": "writes an xarray dataset",
    "sapc.to_xarray(data.values, data)": "must be a Grid, as task.grid",
    "sapc.to_xarray(data.values, grid, conditions=data)": "is a Fields; give its .values",
    "sapc.to_xarray(data.values.mT, grid)": "the axes are in another order",
    "sapc.load('heat-sapc').sample(1, 'new.nc')": "got str; give a tensor",
    "sapc.load('heat-sapc').sample(1, torch.zeros(1, 100))": "whole fields, NaN where nothing is pinned",
    "sapc.to_xarray(data.values, grid, quantiles=(2,))": "between 0 and 1",
    "sapc.to_xarray(data.values, grid, quantiles='0.5')": "between 0 and 1",
    "sapc.load('heat-sapc').sample(1, torch.zeros(1, 100, 100), extra_constraints='x')": "extra_constraints= takes constraints",
}
SCRIPT = """
import json, sys, sapc, torch
grid = sapc.Grid((sapc.Axis("x", 12, kind="periodic"), sapc.Axis("t", 6)), ("h", "u"))
data = sapc.Fields(torch.randn(4, 2, 12, 6), grid, origin={"path": "d", "sha256": "d"})
def law(grid):
    return sapc.Pin.frame(0)
said = {}
for call in json.loads(sys.argv[1]):
    try:
        eval(call)
        said[call] = "nothing"
    except sapc.SapcError as error:
        said[call] = str(error)
    except Exception as error:
        said[call] = f"not ours: {type(error).__name__}: {error}"
print(json.dumps(said))
"""


def test_wrong_things_in_the_right_place():
    """In a process of its own: here types are checked before our messages can be seen."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(list(WRONG))], capture_output=True, text=True, check=True
    )
    said = json.loads(done.stdout)
    assert {call: text for call, text in said.items() if WRONG[call] not in text} == {}
    assert all("\n" not in text for text in said.values())


def test_names_of_version_0_1_0_still_work_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"sapc\.own_task is now sapc\.Task\.from_data"):
        task = sapc.own_task(waves(), law, "older")
    with pytest.warns(DeprecationWarning, match=r"sapc\.OwnTask is now sapc\.Task"):
        assert isinstance(task, sapc.OwnTask)
    u = task.dataset("train", size=2).fields.double()
    with pytest.warns(DeprecationWarning, match="enter is now normalize"):
        w = task.enter(u)
    assert torch.equal(w, task.normalize(u))
    with pytest.warns(DeprecationWarning, match="inner is now normalized_manifold"):
        H = task.inner(w)
    assert torch.equal(H.fields, task.normalized_manifold(w).fields)


def test_an_old_name_calls_what_a_subclass_says():
    class Doubled(type(sapc.get_task("heat"))):
        def normalize(self, u):
            return 2 * u

    with pytest.warns(DeprecationWarning, match="enter is now normalize"):
        assert float(Doubled().enter(torch.ones(1))) == 2


@pytest.mark.parametrize("name", ["heat", "navier_stokes"])
def test_any_task_answers_the_same_questions(name):
    """Whoever uses a task need not know where its data come from."""
    for task in (sapc.get_task(name), sapc.Task.from_data(waves(), law)):
        split = task.test_sets[0]
        assert split in task.sizes
        assert task.condition_count(split) == (1 if task.can_draw else task.sizes[split])
        assert task.resize(task.grid) is task
        assert (task.symmetries == ()) == (task.physics is not None)
        assert set(task.units) | set(task.labels) <= set(task.grid.names) | set(task.grid.channels)
        assert (task.options == {}) == (task.physics is None) == task.normalizer.is_identity == task.can_draw
