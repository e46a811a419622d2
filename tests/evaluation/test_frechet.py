"""The squared Fréchet distance against closed forms and roots of matrices, and its invariances."""

import math

import jaxtyping
import numpy as np
import pytest
import torch

from sapc.errors import SapcError
from sapc.evaluation.metrics import frechet

pytest.importorskip("hypothesis")
pytest.importorskip("scipy")
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigvalsh, helmert, sqrtm


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(dim, seed=0):
    return torch.linalg.qr(normal(dim, dim, seed=seed)).Q


def white(n, dim, seed=0):
    """Samples with mean zero and covariance one, both to rounding."""
    x = normal(n, dim, seed=seed)
    return torch.linalg.qr(x - x.mean(0)).Q * math.sqrt(n - 1)


def trace(x):
    """Of the covariance."""
    return float(x.var(0).sum())


@pytest.fixture
def unchecked():
    """Without the run-time type checks, as users run the package."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


# closed forms


@pytest.mark.parametrize(("n", "m"), [(30, 30), (30, 50), (200, 7)])
def test_gaussians_with_commuting_covariances(n, m):
    """|a - b|^2 + sum (s - r)^2 for diagonal covariances s^2 and r^2, and the same in any other basis."""
    dim = 6
    s, r = torch.linspace(0.1, 3, dim).double(), torch.tensor([2.0, 0.0, 1.0, 1e-3, 5.0, 0.7]).double()
    a, b = normal(dim, seed=3), normal(dim, seed=4)
    expected = float((a - b).square().sum() + (s - r).square().sum())
    x, y = a + s * white(n, dim, seed=1), b + r * white(m, dim, seed=2)
    assert frechet(x, y) == pytest.approx(expected, rel=1e-12)
    Q = rotation(dim)
    assert frechet(x @ Q, y @ Q) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("n", "dim"), [(40, 5), (5, 40)])
def test_a_shift_alone_counts_its_square(n, dim):
    x, c = normal(n, dim), normal(dim, seed=1)
    assert frechet(x + c, x) == pytest.approx(float(c.square().sum()), rel=1e-10)


@pytest.mark.parametrize(("n", "dim"), [(40, 5), (5, 40)])
@pytest.mark.parametrize("a", [0.0, 0.5, 3.0, -1.0])
def test_scaling_about_the_mean(n, dim, a):
    """(|a| - 1)^2 tr S; what -1 does to a covariance cannot be seen."""
    x = normal(n, dim)
    x -= x.mean(0)
    assert frechet(a * x, x) == pytest.approx((abs(a) - 1) ** 2 * trace(x), rel=1e-10, abs=1e-12 * trace(x))


def test_one_dimension_with_bessels_correction():
    x, y = torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [0.0], [3.0]])
    assert frechet(x, y) == pytest.approx((math.sqrt(2) - math.sqrt(3)) ** 2, rel=1e-12)


def test_features_in_orthogonal_subspaces_have_nothing_in_common():
    x, y = torch.zeros(6, 20, dtype=torch.float64), torch.zeros(8, 20, dtype=torch.float64)
    x[:, :10], y[:, 10:] = white(6, 5).repeat(1, 2), normal(8, 10, seed=1)
    between = float((x.mean(0) - y.mean(0)).square().sum())
    assert frechet(x, y) == pytest.approx(between + trace(x) + trace(y), rel=1e-12)


# other ways to compute it


@pytest.mark.parametrize(("n", "m"), [(40, 40), (60, 30), (500, 25)])
def test_against_the_root_of_a_matrix(n, m):
    dim = 12
    x, y = normal(n, dim, seed=1) @ normal(dim, dim, seed=2), 1 + normal(m, dim, seed=3)
    S, R = np.cov(x.numpy(), rowvar=False), np.cov(y.numpy(), rowvar=False)
    root = sqrtm(S @ R)
    mean = x.mean(0).numpy() - y.mean(0).numpy()
    expected = mean @ mean + np.trace(S) + np.trace(R) - 2 * np.trace(root).real
    assert frechet(x, y) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize(
    ("n", "m", "dim"), [(6, 9, 40), (9, 6, 40), (6, 100, 40), (100, 6, 40), (6, 6, 6), (2, 2, 3)]
)
def test_fewer_samples_than_dimensions(n, m, dim):
    """Nonzero eigenvalues of S R are those of A R A^T, with A of as many rows as S has directions."""
    x, y = normal(n, dim, seed=1), 0.3 + 2 * normal(m, dim, seed=2)
    small, other = (x, y) if n <= m else (y, x)
    A = helmert(len(small)) @ small.numpy() / math.sqrt(len(small) - 1)
    R = np.atleast_2d(np.cov(other.numpy(), rowvar=False))
    cross = np.sqrt(eigvalsh(A @ R @ A.T)).sum()
    mean = float((x.mean(0) - y.mean(0)).square().sum())
    assert frechet(x, y) == pytest.approx(mean + trace(x) + trace(y) - 2 * cross, rel=1e-9)


@pytest.mark.parametrize(("n", "expected"), [(1225, 243), (100, 1008)])
def test_floor_between_draws_of_the_same_gaussian(n, expected):
    """Of N(0, 1) in 768 dimensions, against 1225 samples: far from zero."""
    x, y = normal(n, 768, seed=1), normal(1225, 768, seed=2)
    assert frechet(x, y) == pytest.approx(expected, rel=0.03)


# properties


@pytest.mark.parametrize(("n", "dim"), [(50, 8), (8, 50), (20, 20)])
def test_equal_ensembles_are_at_distance_zero(n, dim):
    x = 5 + normal(n, dim) @ normal(dim, dim, seed=1)
    value = frechet(x, x[torch.randperm(n, generator=torch.Generator().manual_seed(0))])
    assert 0 <= value <= 1e-9 * trace(x)


def test_constant_features_are_at_the_distance_of_their_means():
    x, y = torch.zeros(4, 3), torch.ones(5, 3)
    assert frechet(x, x) == 0
    assert frechet(x, y) == pytest.approx(3)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 12),
    st.integers(2, 12),
    st.integers(1, 8),
    st.integers(0, 2**31),
    st.randoms(use_true_random=False),
    st.sampled_from([-3.0, 0.01, 1e3]),
)
def test_any_features(n, m, dim, seed, random, scale):
    """Symmetric, invariant under permutation, rotation and shift, and scaled by the square of a scale."""
    x, y, Q, c = (
        normal(n, dim, seed=seed),
        0.5 + 2 * normal(m, dim, seed=seed + 1),
        rotation(dim, seed),
        normal(dim),
    )
    value = frechet(x, y)
    close = {"rel": 1e-9, "abs": 1e-9 * (trace(x) + trace(y))}
    assert value >= float((x.mean(0) - y.mean(0)).square().sum()) - close["abs"]
    assert frechet(y, x) == pytest.approx(value, **close)
    px, py = random.sample(range(n), n), random.sample(range(m), m)
    assert frechet(x[px], y[py]) == pytest.approx(value, **close)
    assert frechet(x @ Q, y @ Q) == pytest.approx(value, **close)
    assert frechet(x + c, y + c) == pytest.approx(value, **close)
    square = scale**2
    assert frechet(scale * x, scale * y) == pytest.approx(square * value, rel=1e-9, abs=square * close["abs"])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31))
def test_its_root_obeys_the_triangle_inequality(seed):
    x, y, z = (k * normal(7, 4, seed=seed + k) for k in (1, 2, 3))
    root = lambda a, b: math.sqrt(frechet(a, b))
    assert root(x, z) <= root(x, y) + root(y, z) + 1e-9


def test_float32_features_are_taken_in_float64():
    x, y = (normal(30, 5, seed=1) + 100).float(), (normal(20, 5, seed=2) + 100).float()
    assert frechet(x, y) == frechet(x.double(), y.double())
    assert frechet(x.T.contiguous().T, y) == pytest.approx(frechet(x, y), rel=1e-12)


# bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: frechet(x[:1], x), "covariance needs at least 2 samples in the generated ensemble, got 1"),
        (lambda x: frechet(x, x[:1]), "covariance needs at least 2 samples in the reference ensemble, got 1"),
        (lambda x: frechet(x, x[:0]), "in the reference ensemble, got 0"),
        (lambda x: frechet(x, x[:, :3]), r"shape \(5, 4\), the reference \(5, 3\)"),
        (lambda x: frechet(x[:, :0], x[:, :0]), r"shape \(5, 0\)"),
        (
            lambda x: frechet(x[:, None], x[:, None]),
            r"one vector per sample, \(n, dim\), got shape \(5, 1, 4\)",
        ),
        (lambda x: frechet(x, x[:, None]), r"shape \(5, 4\), the reference \(5, 1, 4\)"),
        (lambda x: frechet(x[:, 0], x[:, 0]), r"one vector per sample, \(n, dim\), got shape \(5,\)"),
        (
            lambda x: frechet(x.index_fill(0, torch.tensor(2), math.nan), x),
            "1 of the 5 samples in the generated",
        ),
        (lambda x: frechet(x, x / 0), "5 of the 5 samples in the reference"),
    ],
)
def test_bad_input_is_one_sentence(unchecked, call, message):
    with pytest.raises(SapcError, match=message) as error:
        call(normal(5, 4))
    assert "\n" not in str(error.value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda():
    x, y = normal(60, 40, seed=1), normal(30, 40, seed=2)
    expected = frechet(x, y)
    assert frechet(x.cuda(), y.cuda()) == pytest.approx(expected, rel=1e-10)
    assert frechet(x.cuda(), y) == pytest.approx(expected, rel=1e-10)
