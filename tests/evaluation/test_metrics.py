"""Metrics against closed forms, brute force, and what must hold for any data."""

import math

import numpy as np
import pytest
import torch

from sapc import metrics
from sapc.errors import SapcError

pytest.importorskip("hypothesis")
pytest.importorskip("scipy")
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import energy_distance, wasserstein_distance

ALL = list(metrics.DISTRIBUTION.items())
DISTANCES = [(name, metrics.DISTRIBUTION[name]) for name in ("mmse", "smse", "w2")]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def w2_by_quantiles(x, y):
    """The integral on a grid of levels that contains every step: lcm(n, m) midpoints."""
    levels = (np.arange(math.lcm(len(x), len(y))) + 0.5) / math.lcm(len(x), len(y))
    quantile = lambda z: np.sort(z, 0)[np.ceil(levels * len(z)).astype(int) - 1]
    return float(np.sqrt(((quantile(x) - quantile(y)) ** 2).mean(0)).mean())


def score_by_pairs(x, y, norm):
    """E|x - y| - 1/2 E|x - x'| over all pairs."""
    n, m = len(x), len(y)
    across = sum(norm(a - b) for a in x for b in y) / (n * m)
    within = sum(norm(x[i] - x[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    return float(across - within / 2)


# closed forms


@pytest.mark.parametrize("c", [0.3, -2.0])
def test_shifted_ensemble(c):
    x = normal(20, 5, 4)
    assert metrics.mmse(x + c, x) == pytest.approx(c * c)
    assert metrics.smse(x + c, x) == pytest.approx(0, abs=1e-28)
    assert metrics.w2(x + c, x) == pytest.approx(abs(c))


@pytest.mark.parametrize("name_metric", DISTANCES)
def test_equal_ensembles_are_at_distance_zero(name_metric):
    x = normal(20, 5, 4)
    assert name_metric[1](x, x[torch.randperm(20)]) == pytest.approx(0, abs=1e-30)


def test_bessel_correction():
    x, y = torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [0.0], [3.0]])
    assert metrics.smse(x, y) == pytest.approx((math.sqrt(2) - math.sqrt(3)) ** 2)


@pytest.mark.parametrize("m", [20_000, 15_000])
def test_w2_of_two_gaussians(m):
    """W2(N(a, s), N(b, r))^2 = (a - b)^2 + (s - r)^2; the samples are the quantile midpoints of both laws."""
    level = lambda k: torch.special.ndtri((torch.arange(k, dtype=torch.float64) + 0.5) / k)[:, None]
    x, y = 1 + 2 * level(20_000), 0.5 + 0.7 * level(m)
    assert metrics.w2(x, y) == pytest.approx(math.hypot(0.5, 1.3), rel=2e-3)


def test_crps_and_energy_score_of_a_gaussian():
    """Half the mean distance of two draws: 1 / sqrt(pi) on the line, mean of a chi law / sqrt(2) in 3D."""
    x, y = normal(4000, 3, seed=1), normal(4000, 3, seed=2)
    assert metrics.crps(x, y) == pytest.approx(1 / math.sqrt(math.pi), rel=0.02)
    chi = math.sqrt(2) * math.gamma(2) / math.gamma(1.5)
    assert metrics.energy_score(x, y) == pytest.approx(chi * math.sqrt(2) / 2, rel=0.02)


def test_ce_is_one_for_ffm_and_averages_the_fractions():
    assert metrics.ce(6.7, 0.3, 6.7, 0.3) == 1
    assert metrics.ce(0.0, 0.3, 6.7, 0.6) == pytest.approx(0.25)


def test_constraint_error_is_the_mean_norm():
    assert metrics.constraint_error(torch.tensor([[3.0, 4.0], [0.0, 0.0]])) == pytest.approx(2.5)


# brute force


@pytest.mark.parametrize(("n", "m"), [(7, 7), (4, 6), (6, 4), (5, 3), (1, 4), (12, 8)])
def test_w2_by_brute_force(n, m):
    x, y = normal(n, 3, 2, seed=1), 2 * normal(m, 3, 2, seed=2)
    assert metrics.w2(x, y) == pytest.approx(w2_by_quantiles(x.numpy(), y.numpy()), rel=1e-12)


def test_w2_of_equal_counts_is_the_sorted_formula():
    x, y = normal(9, 30, seed=1), normal(9, 30, seed=2)
    expected = (x.sort(0).values - y.sort(0).values).square().mean(0).sqrt().mean()
    assert metrics.w2(x, y) == pytest.approx(float(expected), rel=1e-12)


def test_w2_bounds_scipys_w1():
    x, y = normal(9, 1, seed=1), normal(7, 1, seed=2)
    assert metrics.w2(x, y) >= wasserstein_distance(x[:, 0], y[:, 0])


@pytest.mark.parametrize(("n", "m"), [(7, 7), (2, 5), (6, 1)])
def test_scores_by_brute_force(n, m):
    x, y = normal(n, 3, 2, seed=1), 3 + normal(m, 3, 2, seed=2)
    assert metrics.crps(x, y) == pytest.approx(score_by_pairs(x, y, lambda d: d.abs().mean()), rel=1e-12)
    assert metrics.energy_score(x, y) == pytest.approx(
        score_by_pairs(x, y, torch.linalg.vector_norm), rel=1e-12
    )


def test_crps_against_scipys_energy_distance():
    """scipy's squared distance is 2 E|x - y| - E|x - x'| - E|y - y'|, all pairs counted."""
    x, y = normal(9, 1, seed=1), normal(7, 1, seed=2)
    mean_gap = lambda z: float((z - z.T).abs().mean())
    biased = metrics.crps(x, y) + mean_gap(x) * (9 / 8 - 1) / 2
    assert 2 * biased - mean_gap(y) == pytest.approx(energy_distance(x[:, 0], y[:, 0]) ** 2, rel=1e-10)


def test_crps_keeps_its_digits_far_from_zero():
    x, y = normal(50, 4, seed=1), normal(40, 4, seed=2)
    assert metrics.crps(x + 1e6, y + 1e6) == pytest.approx(metrics.crps(x, y), rel=1e-8)
    assert metrics.energy_score(x + 1e6, y + 1e6) == pytest.approx(metrics.energy_score(x, y), rel=1e-8)


@pytest.mark.parametrize("score", [metrics.crps, metrics.energy_score])
def test_scores_are_proper_and_unbiased(score):
    y = normal(1000, 4, seed=2)
    right = score(normal(400, 4, seed=1), y)
    assert right < score(normal(400, 4, seed=1) + 0.4, y)
    assert right < score(normal(400, 4, seed=1) * 0.6, y)
    assert right < score(normal(400, 4, seed=1) * 1.6, y)
    # Ensembles of two: noisy, but not off on average.
    few = [score(x, y) for x in normal(200, 2, 4, seed=3)]
    assert np.mean(few) == pytest.approx(right, abs=5 * np.std(few) / math.sqrt(200))


def test_the_energy_score_sees_dependence_that_the_marginals_hide():
    y = normal(300, 1, seed=2).expand(300, 20)
    tied, independent = normal(300, 1, seed=1).expand(300, 20), normal(300, 20, seed=1)
    assert metrics.energy_score(tied, y) < 0.95 * metrics.energy_score(independent, y)


# properties

values = st.floats(-100, 100, width=32)
ensembles = st.tuples(st.integers(2, 6), st.integers(2, 6)).flatmap(
    lambda sizes: st.tuples(*(arrays(np.float64, (k, 2, 3), elements=values) for k in sizes))
)


@settings(max_examples=40, deadline=None)
@given(ensembles, st.randoms(use_true_random=False), st.sampled_from([-2.0, 0.25, 3.0]))
def test_any_data(pair, random, scale):
    x, y = map(torch.from_numpy, pair)
    px, py = random.sample(range(len(x)), len(x)), random.sample(range(len(y)), len(y))
    for name, metric in ALL:
        value, size = metric(x, y), 1 + float(x.abs().max() + y.abs().max())
        power = 2 if name in ("mmse", "smse") else 1
        close = {"rel": 1e-7, "abs": 1e-7 * size**power}
        assert metric(x[px], y[py]) == pytest.approx(value, **close)
        assert metric(scale * x, scale * y) == pytest.approx(abs(scale) ** power * value, **close)
        assert metric(x.flip(1), y.flip(1)) == pytest.approx(value, **close)
    assert metrics.w2(x, y) == pytest.approx(metrics.w2(y, x))
    assert metrics.w2(x, y) == pytest.approx(w2_by_quantiles(*pair), rel=1e-9, abs=1e-9)
    # By Jensen's inequality.
    assert metrics.w2(x, y) >= float((x.mean(0) - y.mean(0)).abs().mean()) - 1e-9


@pytest.mark.parametrize("name_metric", ALL)
@pytest.mark.parametrize("budget", [1, 2000, 10_000])
def test_chunks_do_not_matter(name_metric, budget, monkeypatch):
    x, y = normal(6, 7, 5, seed=1), normal(4, 7, 5, seed=2)
    whole = name_metric[1](x, y)
    monkeypatch.setattr(metrics, "BUDGET", budget)
    assert name_metric[1](x, y) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("name_metric", ALL)
def test_float32_and_strided_fields_are_taken_in_float64(name_metric):
    x, y = normal(6, 7, 5, seed=1).float() + 100, normal(4, 7, 5, seed=2).float() + 100
    expected = name_metric[1](x.double(), y.double())
    assert isinstance(expected, float)
    assert name_metric[1](x, y) == expected
    strided = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert name_metric[1](strided, y) == expected


# constraint errors


class Zero:
    """u = target in the first row, sum over the last axis zero."""

    def __init__(self, target, seen=None):
        self.target, self.seen = target, [] if seen is None else seen

    def local(self, u):
        self.seen.append(u.shape[0])
        assert u.dtype == torch.float64
        return u[:, 0] - self.target

    def balance(self, u):
        return u.sum(2)


class Sliceable(Zero):
    def __getitem__(self, part):
        return Sliceable(self.target[part], self.seen)

    def __len__(self):
        return len(self.target)


@pytest.mark.parametrize("kind", [Zero, Sliceable])
def test_constraint_errors_of_a_manifold(kind, monkeypatch):
    u, target = normal(10, 4, 3).float(), normal(10, 3, seed=1)
    H = kind(target)
    # A chunk is four samples.
    monkeypatch.setattr(metrics, "BUDGET", 8 * metrics.COPIES * 12 * 4)
    assert metrics.ce_local(H, u) == pytest.approx(float((u[:, 0] - target).norm(dim=1).mean()))
    assert metrics.ce_global(H, u) == pytest.approx(float(u.double().sum(2).norm(dim=1).mean()))
    assert H.seen == ([10] if kind is Zero else [4, 4, 2])


def test_one_condition_serves_all_samples(monkeypatch):
    u, target = normal(10, 4, 3), normal(1, 3, seed=1)
    monkeypatch.setattr(metrics, "BUDGET", 1)
    assert metrics.ce_local(Sliceable(target), u) == pytest.approx(
        float((u[:, 0] - target).norm(dim=1).mean())
    )


# the sampling floor


def heat(phi):
    """Solutions of the heat equation with phase `phi` and random diffusivity, as in the task's test sets."""
    x = torch.arange(100, dtype=torch.float64) * 2 * math.pi / 100
    t = torch.linspace(0, 1, 100, dtype=torch.float64)

    def draw(seed, size):
        g = torch.Generator().manual_seed(seed)
        a = 1 + 4 * torch.rand(size, 1, 1, generator=g, dtype=torch.float64)
        return (torch.exp(-a * t) * torch.sin(x + phi)[:, None]).float()

    return draw


@pytest.mark.slow
def test_sampling_floor_of_heat():
    """A pair of draws scatters: the mean's floor is almost a chi-square of one degree, on average 1.25e-5."""
    floor = metrics.sampling_floor(heat(math.pi / 4), 1225, 1225, dict(DISTANCES), repeats=2)
    for name, expected in {"mmse": 7.6e-6, "smse": 2.4e-6, "w2": 3.9e-3}.items():
        assert expected / 2 < floor[name] < 2 * expected


def test_sampling_floor_of_the_mean_is_known():
    """The mean of n draws has variance s^2 / n, so the floor is s^2 (1 / n + 1 / m) on average."""
    draw = lambda seed, size: 2 * normal(size, 50, seed=seed)
    floor = metrics.sampling_floor(draw, 20, 30, {"mmse": metrics.mmse}, repeats=100)
    assert floor["mmse"] == pytest.approx(4 * (1 / 20 + 1 / 30), rel=0.1)


def test_sampling_floor_averages_independent_pairs():
    seeds = []

    def draw(seed, size):
        seeds.append((seed, size))
        return normal(size, 3, 4, seed=seed)

    floor = metrics.sampling_floor(draw, 8, 5, repeats=2)
    assert seeds == [(0, 8), (1, 5), (2, 8), (3, 5)]
    assert set(floor) == set(metrics.DISTRIBUTION)
    pairs = [(normal(8, 3, 4, seed=s), normal(5, 3, 4, seed=s + 1)) for s in (0, 2)]
    assert floor["w2"] == pytest.approx(np.mean([metrics.w2(*pair) for pair in pairs]))


# bad input


@pytest.mark.parametrize("name_metric", ALL)
def test_other_grids_and_broken_fields_are_refused(name_metric):
    metric, x = name_metric[1], normal(5, 4, 3)
    with pytest.raises(SapcError, match=r"generated one has shape \(5, 4, 3\), the reference \(5, 4, 2\)"):
        metric(x, x[..., :2])
    with pytest.raises(SapcError, match="same grid"):
        metric(x[:, 0, 0], x[:, 0, 0])
    broken = x.clone()
    broken[1, 2, 0], broken[3, 0, 0] = math.nan, math.inf
    with pytest.raises(SapcError, match="2 of the 5 samples in the generated ensemble"):
        metric(broken, x)
    with pytest.raises(SapcError, match="2 of the 5 samples in the reference ensemble"):
        metric(x, broken)
    with pytest.raises(SapcError, match="in the reference ensemble, got 0"):
        metric(x, x[:0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: metrics.smse(x[:1], x), "standard deviation needs at least 2 samples in the generated"),
        (lambda x: metrics.smse(x, x[:1]), "standard deviation needs at least 2 samples in the reference"),
        (lambda x: metrics.crps(x[:1], x), "unbiased score needs at least 2 samples in the generated"),
        (lambda x: metrics.ce(1.0, 1.0, 0.0, 1.0), "must be positive; got 0.0 and 1.0"),
        (lambda x: metrics.ce_local(Zero(x[:, 0]), x * math.nan), "5 of the 5 samples in the generated"),
        (lambda x: metrics.ce_local(Zero(x[:, 0]), x[:0]), "at least 1 sample, got 0"),
        (lambda x: metrics.ce_local(Sliceable(x[:3, 0]), x), "5 fields for 3 conditions"),
        (lambda x: metrics.mmse(x[:, :0], x[:, :0]), r"needs grid points, got fields of shape \(5, 0, 3\)"),
        (lambda x: metrics.energy_score(x[..., :0], x[..., :0]), "needs grid points"),
        (lambda x: metrics.ce_local(Zero(x[:, 0]), x[:, :0]), "needs grid points"),
        (lambda x: metrics.sampling_floor(lambda seed, size: x, 5, 0), "n=5, m=0, repeats=1"),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    with pytest.raises(SapcError, match=message) as error:
        call(normal(5, 4, 3))
    assert "\n" not in str(error.value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name_metric", ALL)
def test_cuda(name_metric):
    x, y = normal(60, 70, 50, seed=1), normal(40, 70, 50, seed=2)
    expected = name_metric[1](x, y)
    assert name_metric[1](x.cuda(), y.cuda()) == pytest.approx(expected, rel=1e-10)
    assert name_metric[1](x.cuda(), y) == pytest.approx(expected, rel=1e-10)
