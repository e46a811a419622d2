"""Skill per condition: fair estimators against exact expectations, calibration, edges, and what is refused."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import sapc
from sapc.errors import SapcError
from sapc.evaluation import skill
from sapc.evaluation.config import EvaluationConfig
from sapc.evaluation.evaluate import evaluate
from sapc.evaluation.held_out import Conditions, compare, make_record, measure_residual, measure_skill
from sapc.evaluation.skill import curves, interval_weights, persistence, summarize, verify
from sapc.models.scores import Scores
from sapc.models.skill import Skill

LEVELS = (0.1, 0.5, 0.8, 0.9, 0.99)


def normals(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def verify_all(members, truth):
    """Every point is free; the last axis is time."""
    return verify(members, truth, torch.ones(truth.shape[1:], dtype=torch.bool))


def every_ensemble(values, m: int) -> torch.Tensor:
    """All ensembles of m members with these values, one at each point of a grid of one frame."""
    return torch.tensor(list(itertools.product(values, repeat=m)), dtype=torch.float64).T[None, :, :, None]


def every_order(values) -> tuple[torch.Tensor, torch.Tensor]:
    """Members and truth in every order of some values: exchangeable, with every order equally often."""
    orders = torch.tensor(list(itertools.permutations(values)), dtype=torch.float64)
    return orders[:, 1:].T[None, :, :, None], orders[None, :, :1]


# -- fair: the expectation is the same for any number of members --


@pytest.mark.parametrize("m", [2, 3, 5])
def test_expectations_over_all_ensembles_are_those_of_the_distribution(m):
    """Members are uniform on four values; the mean over points is the mean over all 4^m ensembles."""
    values, y = torch.tensor([-1.0, 0.0, 0.5, 3.0], dtype=torch.float64), 0.7
    x = every_ensemble(values.tolist(), m)
    v = verify_all(x, torch.full((1, x.shape[2], 1), y, dtype=torch.float64))
    spread = (values[:, None] - values).abs().mean()
    assert float(v.mean(v.crps)) == pytest.approx(float((values - y).abs().mean() - spread / 2), rel=1e-13)
    assert float(v.mean(v.variance)) == pytest.approx(float(values.var(correction=0)), rel=1e-13)
    assert float(v.mean(v.fair_square_error)) == pytest.approx(float((values.mean() - y) ** 2), rel=1e-12)
    finite = (values.mean() - y) ** 2 + values.var(correction=0) / m
    assert float(v.mean(v.square_error)) == pytest.approx(float(finite), rel=1e-13)


@pytest.mark.parametrize("y", [0.0, -1.3])
@pytest.mark.parametrize("m", [2, 7])
def test_the_crps_of_a_gaussian_is_its_closed_form(m, y):
    points = 40_000
    v = verify_all(normals(1, m, points, 1), torch.full((1, points, 1), y, dtype=torch.float64))
    density, below = math.exp(-(y**2) / 2) / math.sqrt(2 * math.pi), (1 + math.erf(y / math.sqrt(2))) / 2
    exact = y * (2 * below - 1) + 2 * density - 1 / math.sqrt(math.pi)
    # Measured: the standard deviation at a point is at most 0.8, so that of the mean is 0.004.
    assert float(v.mean(v.crps)) == pytest.approx(exact, abs=0.012)


def test_scores_are_those_of_two_loops():
    x, y = normals(3, 4, 5, 6), normals(3, 5, 6, seed=1)
    v, m = verify_all(x, y), 4
    norm = lambda u: u.square().mean().sqrt()
    for i in range(3):
        for name, size in (("crps", lambda u: u.abs().mean()), ("energy_score", norm)):
            distance = sum(size(x[i, j] - y[i]) for j in range(m)) / m
            pairs = sum(size(x[i, j] - x[i, l]) for j in range(m) for l in range(m)) / (2 * m * (m - 1))
            found = v.energy_score[i] if name == "energy_score" else v.mean(v.crps)[i]
            assert float(found) == pytest.approx(float(distance - pairs), rel=1e-13)


def test_members_that_are_almost_the_same_are_told_apart():
    """About their mean, so that the distance of members does not cancel against the distance to the truth."""
    x, y = 1e-6 * normals(1, 5, 4, 3), 1e3 + normals(1, 4, 3, seed=1)
    v = verify_all(x, y)
    to_truth = (x - y[:, None]).square().mean((2, 3)).sqrt().mean()
    pairs = float(to_truth - v.energy_score[0])
    exact = sum((x[0, j] - x[0, l]).square().mean().sqrt() for j in range(5) for l in range(5)) / 40
    # The sum of both is rounded to 1e-13.
    assert pairs == pytest.approx(float(exact), abs=2e-12)


def test_the_order_of_members_and_of_conditions_does_not_matter():
    x, y = normals(4, 5, 6, 7), normals(4, 6, 7, seed=1)
    order, conditions = [3, 0, 4, 1, 2], [2, 0, 3, 1]
    a, b = verify_all(x, y), verify_all(x[conditions][:, order], y[conditions])
    for name in ("square_error", "variance", "crps", "energy_score", "ranks"):
        torch.testing.assert_close(getattr(b, name), getattr(a, name)[conditions], rtol=1e-12, atol=1e-14)


def test_one_ensemble_serves_all_conditions():
    x, y = normals(1, 5, 6, 7), normals(3, 6, 7, seed=1)
    a, b = verify_all(x, y), verify_all(x.expand(3, -1, -1, -1), y)
    for name in ("square_error", "variance", "crps", "energy_score", "ranks"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=1e-12, atol=1e-14)


# -- calibrated: truth and members are exchangeable --


@pytest.mark.parametrize("values", [(0, 1, 2), (5, 1, 3, 2), (0, 1, 2, 3, 4, 5), (0, 0, 1, 2, 2), (1, 1, 1)])
def test_exchangeable_members_cover_exactly(values):
    """Over all orders, with ties or without: ranks are uniform, and coverage is the level to rounding."""
    v = verify_all(*every_order(values))
    torch.testing.assert_close(v.ranks, torch.full_like(v.ranks, 1 / len(values)), rtol=0, atol=1e-14)
    for level in LEVELS:
        assert float(v.coverage(level)) == pytest.approx(level, abs=1e-14)


@pytest.mark.parametrize("values", [(0.0, 1.0, 5.0), (-2.0, 0.3, 1.0, 7.0, 8.0)])
def test_exchangeable_members_spread_as_far_as_they_err(values):
    v = verify_all(*every_order(values))
    assert summarize(v)["spread_skill"].value == pytest.approx(1, abs=1e-13)
    # The mean square error of infinitely many such members is the variance.
    assert float(v.mean(v.fair_square_error)) == pytest.approx(float(v.mean(v.variance)), rel=1e-12)


@pytest.mark.parametrize("m", [1, 2, 8, 19, 20])
def test_weights_of_ranks(m):
    for level in LEVELS:
        w = interval_weights(m, level)
        assert w.shape == (m + 1,)
        assert float(w.mean()) == pytest.approx(level)
        assert bool(((w >= 0) & (w <= 1 + 1e-12)).all())
        torch.testing.assert_close(w, w.flip(0))
    if m >= 19:
        # The interval ends at members: a truth beyond all of them is outside.
        assert float(interval_weights(m, 0.9)[0]) == pytest.approx(0, abs=1e-12)


def test_rank_histograms_are_flat_or_a_valley():
    k, m = 3000, 9
    truth = normals(k, 1, 1, seed=1)
    flat, valley = (verify_all(s * normals(k, m, 1, 1), truth).ranks.sum(0) for s in (1.0, 0.5))
    expected = k / (m + 1)
    chi2 = float(((flat - expected) ** 2 / expected).sum())
    # 99.9 % of a chi-squared variable with 9 degrees of freedom are below 27.9.
    assert chi2 < 27.9
    assert float(valley[[0, -1]].min()) > 2 * float(valley[1:-1].max())
    v = verify_all(0.5 * normals(k, m, 1, 1), truth)
    # E variance = 1/4 and E mse = 1 + 1/4m: the ratio is sqrt(10/9 (1/4) / (1 + 1/36)) = 0.520.
    assert summarize(v)["spread_skill"].value == pytest.approx(0.520, abs=3 * 0.008)
    # The two outer tenths belong to a 90 % interval by one half.
    assert summarize(v)["coverage_90"].value == pytest.approx(1 - float(valley[[0, -1]].sum()) / (2 * k))


def test_standard_errors_are_those_of_repeats():
    """The scatter of a summary over repeats is the error that each of them names."""
    k, m, repeats = 60, 6, 200
    found = [
        summarize(verify_all(normals(k, m, 1, 1, seed=2 * i), normals(k, 1, 1, seed=2 * i + 1)))
        for i in range(repeats)
    ]
    for name in ("crps", "rmse", "spread_skill", "coverage_50", "energy_score"):
        values = torch.tensor([f[name].value for f in found])
        errors = torch.tensor([f[name].error for f in found])
        # The scatter of 200 values is known to a twentieth.
        assert float(values.std()) == pytest.approx(float(errors.square().mean().sqrt()), rel=0.2)


# -- which points count, and how many at a time --


def test_pinned_points_do_not_count():
    x, y = normals(3, 4, 5, 6), normals(3, 5, 6, seed=1)
    free = torch.ones(5, 6, dtype=torch.bool)
    free[:, 0] = free[2, 3] = False
    a = verify(x, y, free)
    x[:, :, ~free], y[:, ~free] = math.nan, 7.0
    b = verify(x, y, free)
    assert a.points.tolist() == b.points.tolist() == [0, 5, 5, 4, 5, 5]
    for name in ("square_error", "variance", "crps", "energy_score", "ranks"):
        assert torch.equal(getattr(a, name), getattr(b, name))
    assert len(curves(a)["rmse"]) == 5


def test_curves_are_scores_of_single_frames():
    x, y = normals(8, 4, 5, 3), normals(8, 5, 3, seed=1)
    found = curves(verify_all(x, y))
    for t in range(3):
        frame = summarize(verify_all(x[..., t : t + 1], y[..., t : t + 1]))
        assert found["rmse"][t] == pytest.approx(frame["rmse"].value)
        assert found["crps"][t] == pytest.approx(frame["crps"].value)


def test_channels_and_steady_fields():
    x, y = normals(2, 4, 3, 5, 6), normals(2, 3, 5, 6, seed=1)
    free = torch.ones(3, 5, 6, dtype=torch.bool)
    with_time, without = verify(x, y, free), verify(x, y, free, steady=True)
    assert with_time.points.tolist() == [15] * 6
    assert without.points.tolist() == [90]
    torch.testing.assert_close(with_time.mean(with_time.crps), without.mean(without.crps))


class _LargestTensor(TorchDispatchMode):
    """Watch the largest tensor that is made; views of what was given do not count."""

    def __init__(self, *given: torch.Tensor) -> None:
        super().__init__()
        self.given, self.largest = {u.untyped_storage().data_ptr() for u in given}, 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        out = function(*arguments, **(keywords or {}))
        for u in out if isinstance(out, tuple | list) else (out,):
            if isinstance(u, torch.Tensor) and u.untyped_storage().data_ptr() not in self.given:
                self.largest = max(self.largest, u.untyped_storage().nbytes())
        return out


def test_chunks_give_the_same_and_no_pair_of_fields_is_made(monkeypatch):
    x, y = normals(6, 16, 30, 20), normals(6, 30, 20, seed=1)
    free = torch.rand(30, 20, generator=torch.Generator().manual_seed(2)) < 0.9
    whole = verify(x, y, free)
    monkeypatch.setattr(skill, "BUDGET", 2**20)
    with _LargestTensor(x, y) as watch:
        parts = verify(x, y, free)
    # A chunk has 1 / COPIES of the budget; the fields are 0.5 MB, their pairs would be 7 MB.
    assert watch.largest <= 2**20 / skill.COPIES
    assert x.untyped_storage().nbytes() > 3 * watch.largest
    for name in ("square_error", "variance", "crps", "energy_score", "ranks"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-12, atol=1e-13)


# -- edges and bad input --


def test_one_member_has_an_error_and_no_spread():
    x, y = normals(5, 1, 4, 3), normals(5, 4, 3, seed=1)
    v = verify_all(x, y)
    assert (v.variance, v.crps, v.energy_score) == (None, None, None)
    assert set(summarize(v)) == {"rmse", "ensemble_rmse", "coverage_50", "coverage_90"}
    exact = float((x[:, 0] - y).square().mean().sqrt())
    assert summarize(v)["rmse"].value == summarize(v)["ensemble_rmse"].value == pytest.approx(exact)
    # One member and the truth: each is the larger one half of the time, and half of both intervals is inside.
    assert summarize(v)["coverage_50"].value == pytest.approx(0.5)


def test_one_condition_has_no_errors():
    found = summarize(verify_all(normals(1, 4, 3, 2), normals(1, 3, 2, seed=1)))
    assert len(found) == 8
    assert all(e.error is None for e in found.values())


def test_a_perfect_forecast_without_spread():
    y = normals(3, 4, 5)
    found = summarize(verify_all(y[:, None].expand(-1, 6, -1, -1), y))
    assert found["crps"].value == found["rmse"].value == found["energy_score"].value == 0
    assert found["coverage_90"].value == pytest.approx(0.9)
    assert "spread_skill" not in found


def test_bad_input_is_refused_in_one_sentence():
    x, y, free = normals(3, 4, 5, 6), normals(3, 5, 6), torch.ones(5, 6, dtype=torch.bool)
    holed = x.clone()
    holed[1, 2, 3, 4] = math.nan
    for arguments, words in (
        ((holed, y, free), "1 values of the members are NaN"),
        ((x, y / 0, free), "90 values of the truths are NaN"),
        ((x, y, ~free), "every point is pinned"),
        ((x, y, free[1:]), "boolean mask of the grid"),
        ((x, y, free.double()), "boolean mask of the grid"),
        ((x[:2], y, free), "for the same conditions"),
        ((x[..., 1:], y, free), "on one grid"),
        ((x[:, :0], y, free), "at least one condition"),
    ):
        with pytest.raises(SapcError, match=words):
            verify(*arguments)


# -- persistence --


def test_persistence_keeps_the_last_frame_that_is_known():
    fields = normals(2, 3, 6)
    pinned = torch.zeros(3, 6, dtype=torch.bool)
    assert persistence(fields, pinned) is None
    pinned[0] = True
    # A boundary at all times is no frame.
    assert persistence(fields, pinned) is None
    pinned[:, 0] = True
    assert torch.equal(persistence(fields, pinned), fields[..., :1].expand(-1, -1, 6))
    assert persistence(fields, pinned, steady=True) is None
    pinned[:, 0], pinned[:, 2], pinned[:, 4] = False, True, True
    assert torch.equal(persistence(fields, pinned), fields[..., [2, 2, 2, 2, 4, 4]])


def test_persistence_of_channels_needs_all_of_them():
    fields, pinned = normals(2, 2, 3, 4), torch.zeros(2, 3, 4, dtype=torch.bool)
    pinned[0, :, 0] = True
    assert persistence(fields, pinned) is None
    pinned[1, :, 0] = True
    assert torch.equal(persistence(fields, pinned), fields[..., :1].expand(-1, -1, -1, 4))


@pytest.mark.parametrize(
    "name", ["heat", "reaction_diffusion", "stokes_ic", "burgers", "navier_stokes", "stokes_bc"]
)
def test_tasks_with_an_initial_frame_have_persistence(name):
    task = sapc.get_task(name)
    pinned = sapc.models.sampling.pinned_mask(task)
    kept = persistence(torch.zeros(1, *task.grid.shape), pinned)
    assert (kept is None) == (name == "stokes_bc")


# -- on the law of a task, where the right members are known --


@pytest.fixture(scope="module")
def heat():
    """Truths, members of the right law, and draws that know no condition, of 40 conditions."""
    task = sapc.get_task("heat", grid=(12, 10))
    k, m = 40, 10
    draw = task.draw("validation", k)
    truth = task.solve(draw)
    free = task.draw("train", k * m, seed=3)["diffusivity"]
    members = task.solve({"diffusivity": free, "phase": draw["phase"].repeat_interleave(m)})
    unaware = task.solve(task.draw("train", k * m, seed=4))
    reference = task.solve(task.draw("train", 300, seed=5))
    return task, truth, members.reshape(k, m, 12, 10), unaware.reshape(k, m, 12, 10), reference


def record(task, members, truth, reference) -> Skill:
    found = compare(task, members, truth, reference)
    origin = {"method": "exact", "sampler": "none", "steps": 1, "seed": 0, "reference": len(reference)}
    return make_record(task, found, found.estimates(), **origin)


def test_members_of_the_right_law_are_calibrated_and_beat_both(heat):
    task, truth, members, _, reference = heat
    found = record(task, members, truth, reference)
    for name, ideal in (("spread_skill", 1.0), ("coverage_50", 0.5), ("coverage_90", 0.9)):
        value, error = found.estimate(name)
        assert abs(value - ideal) < 3 * error
    assert (found.beats("climatology"), found.beats("persistence"), found.verdicts) == (True, True, [])
    assert found.metrics["skill_score"] > 0.5
    assert found.points == 12 * 9
    assert found.times == task.grid.time.points[1:].tolist()
    assert len(found.each["crps"]) == found.conditions == 40
    assert sum(found.ranks) == pytest.approx(1)


def test_members_that_know_no_condition_are_no_better_than_climatology(heat):
    task, truth, _, unaware, reference = heat
    found = record(task, unaware, truth, reference)
    assert found.beats("climatology") is False
    assert abs(found.metrics["skill_score"]) < 3 * found.errors["skill_score"]
    (sentence,) = found.verdicts
    assert sentence.startswith("samples do no better than climatology: CRPS ")
    worse = record(task, 3 * unaware, truth, reference)
    assert worse.verdicts[0].startswith("samples do worse than climatology: ")


def test_climatology_and_persistence_are_those_of_the_tensors(heat):
    task, truth, members, _, reference = heat
    found = record(task, members, truth, reference).metrics
    inner = truth[..., 1:]
    kept = (truth[..., :1] - inner).square().mean().sqrt()
    assert found["persistence_rmse"] == pytest.approx(float(kept))
    mean, variance = reference.mean(0)[:, 1:], reference.var(0)[:, 1:]
    square = (mean - inner).square().mean() - variance.mean() / len(reference)
    assert found["climatology_rmse"] == pytest.approx(float(square.sqrt()))
    crps = sum(sapc.metrics.crps(reference[..., 1:], y[None, :, 1:]) for y in truth) / len(truth)
    assert found["climatology_crps"] == pytest.approx(crps)


def test_records_of_all_sizes_are_plain_json(heat):
    task, truth, members, _, reference = heat
    for k, m in ((40, 10), (1, 10), (5, 1), (1, 1)):
        found = record(task, members[:k, :m], truth[:k], reference)
        text = json.dumps(found.to_dict(), allow_nan=False)
        assert Skill.from_dict(json.loads(text), "skill") == found
        assert ("crps" in found.metrics, "spread_skill" in found.metrics) == (m > 1, m > 1)
        assert bool(found.errors) == (k > 1)
        if k == 1:
            assert found.beats("climatology") is None
            assert "one condition does not tell" in found.verdicts[0]


def test_samples_beyond_all_bounds_are_refused(heat):
    task, truth, members, _, reference = heat
    with pytest.raises(SapcError, match="too large to be scored"):
        record(task, 1e200 * members, truth, reference)


def test_the_residual_of_the_pde(heat):
    task, truth, members, _, _ = heat
    found = measure_residual(task, members, truth)
    assert found["pde_residual"].value < 1e-10
    noise = measure_residual(task, members + 0.1 * normals(*members.shape), truth)
    assert noise["pde_residual"].value > 0.1
    assert noise["truth_pde_residual"] == found["truth_pde_residual"]
    flow = sapc.get_task("navier_stokes")
    assert measure_residual(flow, torch.zeros(1, 2, *flow.grid.shape), torch.zeros(1, *flow.grid.shape)) == {}


# -- of a model --


@pytest.fixture(scope="module", params=["heat"])
def model(request, tmp_path_factory):
    run = sapc.training_config(request.param, "sapc", "tiny")
    folder = sapc.training.loop.train(run, tmp_path_factory.mktemp("run") / request.param, device="cpu")
    return sapc.load(folder.path, device="cpu")


SMALL = {"sets": ["test0"], "samples": 3, "reference": 4, "steps": 2, "floor_repeats": 0}


@pytest.mark.parametrize("model", ["reaction_diffusion"], indirect=True)
def test_conditions_are_all_different(model):
    """The first solutions of a split share conditions, where these are combined with all free parameters."""
    conditions = Conditions(model, seed=0)
    truth = conditions.truths(6)
    assert len({tuple(u[:, 0].tolist()) for u in truth}) == 6
    assert torch.equal(truth[:4], conditions.truths(4))
    assert not torch.equal(truth, Conditions(model, seed=1).truths(6))
    assert len(model.task.dataset("validation", size=6).fields[:, :, 0].unique(dim=0)) < 6


def test_published_tasks_are_asked_for_skill(model):
    plain = evaluate(model, **SMALL)
    assert plain.skill is None
    assert "skill" not in plain.to_dict()
    found = evaluate(model, **SMALL, conditions=3, members=2)
    assert found.skill is not None
    assert (found.skill.conditions, found.skill.members, found.skill.steps) == (3, 2, 2)
    assert found.skill.units == "fields"
    assert {name: s.metrics for name, s in found.sets.items()} == {
        n: s.metrics for n, s in plain.sets.items()
    }
    assert Scores.from_dict(json.loads(json.dumps(found))).skill == found.skill
    again = measure_skill(model, EvaluationConfig(conditions=3, members=2, steps=2))
    assert again.metrics.keys() == found.skill.metrics.keys()


def test_sizes_that_are_none_are_refused(model):
    for settings, words in (
        ({"conditions": -1}, "number of conditions"),
        ({"members": 0}, "number of members"),
    ):
        with pytest.raises(SapcError, match=words):
            evaluate(model, **SMALL, **settings)


def test_scores_of_the_same_weights_keep_their_skill(model):
    plain, rich = evaluate(model, **SMALL), evaluate(model, **SMALL, conditions=3, members=2)
    assert plain.merge(rich).skill == rich.skill
    assert rich.merge(plain).skill == rich.skill
    small = evaluate(model, **SMALL, conditions=2, members=2)
    assert small.merge(rich).skill == rich.skill
    assert rich.merge(small).skill == rich.skill
