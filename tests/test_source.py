"""The source has the covariance it claims: the root is squared and compared with the kernel matrix."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import gamma, kv

from sapc import source
from sapc.errors import SapcError
from sapc.grid import Axis, Grid

CPU = torch.device("cpu")
LENGTHS = [1e-3, 1e-2, 0.05, 0.1, 0.3, 1.0, 3.0, 1e3]
NUS = [0.5, 1.5, 2.5]


def cube(*shape):
    return Grid(tuple(Axis(name, n) for name, n in zip("xyt"[-len(shape) :], shape, strict=True)))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def kernel_matrix(shape, length, nu):
    """The Matern kernel from its Bessel function: shares nothing with the code under test."""
    axes = np.meshgrid(*(np.linspace(0, 1, n) for n in shape), indexing="ij")
    points = np.stack([a.ravel() for a in axes], 1)
    z = math.sqrt(2 * nu) * cdist(points, points) / length
    np.fill_diagonal(z, 1.0)
    k = 2 ** (1 - nu) / gamma(nu) * z**nu * kv(nu, z)
    np.fill_diagonal(k, 1.0)
    return torch.from_numpy(k)


def implied_covariance(shape, length, nu, dtype=torch.float64):
    root = source.kernel_root(shape, length, nu, CPU, dtype)
    b = root(torch.eye(root.size, dtype=dtype)).flatten(1)
    return b.T @ b


@pytest.mark.parametrize("nu", NUS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("shape", [(9, 7), (3, 13), (4, 3, 5)])
def test_covariance_is_the_kernel_matrix(shape, length, nu):
    k = kernel_matrix(shape, length, nu)
    white = (k - torch.eye(len(k))).abs().max() < source.WHITE
    error = (implied_covariance(shape, length, nu) - k).abs().max()
    assert error < (source.WHITE if white else 1e-9)


@pytest.mark.parametrize("length", [0.1, 1.0])
def test_float32_adds_rounding_only(length):
    k = kernel_matrix((11, 8), length, 0.5)
    assert (implied_covariance((11, 8), length, 0.5, torch.float32) - k).abs().max() < 1e-6


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("shape", [(9, 7), (4, 3, 5)])
def test_full_rank(shape, length):
    smallest = torch.linalg.eigvalsh(implied_covariance(shape, length, 0.5))[0]
    expected = torch.linalg.eigvalsh(kernel_matrix(shape, length, 0.5))[0]
    assert smallest > 0.9 * expected > 0


@pytest.mark.parametrize("nu", NUS)
@pytest.mark.parametrize("length", [1e-2, 0.1, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("shape", [(100, 100), (64, 64, 50)])
def test_covariance_on_the_grids_of_the_tasks(shape, length, nu):
    """Covariances with the middle of the grid, from the spectrum and the thin roots: too large to square."""
    root = source.kernel_root(shape, length, nu, CPU, torch.float64)
    s = root.spectrum.square() * root.spectrum.numel()
    torus = torch.fft.ifftn(s).real
    middle = [n // 2 for n in shape]
    lags = [(torch.arange(n) - i).abs() for n, i in zip(shape, middle, strict=True)]
    total = torus[torch.meshgrid(*lags, indexing="ij")]
    for axes in root.wide:
        rows = [a @ a[i] for a, i in zip(axes, middle, strict=True)]
        total += source._outer(rows, torch.mul)
    r = source._outer(
        [(j.double() / (n - 1)) ** 2 for j, n in zip(lags, shape, strict=True)], torch.add
    ).sqrt()
    assert (total - source.matern(r, length, nu)).abs().max() < 1e-10
    assert bool(root.wide) == (length > 0.1)


@pytest.mark.parametrize(
    ("shape", "length"), [((100, 100), 1e-3), ((32, 24), 0.1), ((32, 24), 2.0), ((16, 12, 10), 0.7)]
)
def test_draws_have_unit_variance_and_the_kernel_correlations(shape, length):
    n = 1000
    u = source.sample(cube(*shape), n, seeded(), length=length).double()
    # one standard error of a variance is sqrt(2 / n) = 4.5 %; of a covariance at most that
    points = [(0, 0), (0, 1), (shape[0] // 2, shape[1] // 3), (-1, -1)]
    v = torch.stack([u[(slice(None), *p, *([0] * (len(shape) - 2)))] for p in points], 1)
    x = [[(i % n) / (n - 1) for i, n in zip(p, shape, strict=False)] for p in points]
    expected = source.matern(torch.cdist(torch.tensor(x).double(), torch.tensor(x).double()), length, 0.5)
    assert (v.T @ v / n - expected).abs().max() < 5 * math.sqrt(2 / n)
    if length < 0.2:  # many independent values per field: the overall variance is known well
        assert u.square().mean().item() == pytest.approx(1, abs=0.01)
    assert abs(u.mean().item()) < 5 / math.sqrt(n)


def test_white_noise_on_the_navier_stokes_grid_but_not_on_a_hundred_points():
    assert source.kernel_root((64, 64, 50), 1e-3, 0.5, CPU, torch.float32).spectrum is None
    assert source.kernel_root((100, 100), 1e-3, 0.5, CPU, torch.float32).spectrum is not None
    u = source.sample(cube(64, 64, 50), 4, seeded())
    assert u.shape == (4, 64, 64, 50)
    assert u.dtype == torch.float32
    assert u.var().item() == pytest.approx(1, abs=0.01)
    assert abs((u[:, 1:] * u[:, :-1]).mean().item()) < 0.01


@pytest.mark.parametrize("length", [1e-6, 0.05, 1.0])
def test_seeds(length):
    grid = cube(20, 16)
    draw = lambda n, seed=0: source.sample(grid, n, seeded(seed), length=length)
    assert torch.equal(draw(5), draw(5))
    assert torch.equal(draw(5)[:3], draw(3)), "field i must not depend on the number of fields"
    assert not torch.equal(draw(5), draw(5, seed=1))
    g = seeded()
    assert torch.equal(torch.cat([source.sample(grid, k, g, length=length) for k in (2, 3)]), draw(5))


def test_a_draw_without_a_generator_follows_the_global_seed():
    torch.manual_seed(3)
    first = source.sample(cube(8, 8), 2)
    torch.manual_seed(3)
    assert torch.equal(first, source.sample(cube(8, 8), 2))


def test_a_draw_does_not_depend_on_the_batches_of_an_accelerator():
    root = source.kernel_root((20, 16), 1.0, 0.5, CPU, torch.float64)
    w = torch.randn(7, root.size, generator=seeded(), dtype=torch.float64)
    assert torch.allclose(root(w), torch.cat([root(row[None]) for row in w]), rtol=0, atol=1e-12)


def test_only_the_number_of_points_matters():
    other = Grid((Axis("x", 20, 0.0, 6.28, "periodic"), Axis("t", 16, 0.0, 49.0)))
    assert torch.equal(
        source.sample(other, 2, seeded(), length=1), source.sample(cube(20, 16), 2, seeded(), length=1)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes(dtype):
    u = source.sample(cube(20, 16), 2, seeded(), length=1.0, dtype=dtype)
    assert u.dtype == dtype
    assert u.isfinite().all()


def test_roots_are_kept():
    source.sample(cube(21, 16), 1, length=0.3)
    hits = source.kernel_root.cache_info().hits
    source.sample(cube(21, 16), 1, length=0.3)
    assert source.kernel_root.cache_info().hits == hits + 1


@pytest.mark.parametrize("length", [5e-324, 1e-30, 1e9, 1e200, 1.7e308])
@pytest.mark.parametrize("nu", NUS)
def test_extreme_lengths_stay_finite(length, nu):
    u = source.sample(cube(9, 8), 3, seeded(), length=length, nu=nu)
    assert u.isfinite().all()
    if length > 1:
        assert (u - u[:, :1, :1]).abs().max() < 1e-2  # nearly constant over the cube


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"n": 0}, "asked for 0 fields"),
        ({"n": -3}, "asked for -3 fields"),
        ({"n": True}, "asked for True fields"),
        ({"device": "nowhere"}, "cannot be drawn on 'nowhere'"),
        ({"length": 0.0}, "length scale of the source is 0.0"),
        ({"length": -1.0}, "length scale of the source is -1.0"),
        ({"length": math.nan}, "length scale of the source is nan"),
        ({"length": math.inf}, "length scale of the source is inf"),
        ({"nu": 1.0}, "nu = 1.0; choose 0.5, 1.5 or 2.5"),
        ({"dtype": torch.int64}, "cannot return torch.int64"),
        ({"device": "meta", "generator": seeded()}, "asked for on meta, but its generator is on cpu"),
    ],
)
def test_bad_input_is_one_sentence(bad, message):
    with pytest.raises(SapcError, match=message) as error:
        source.sample(**{"grid": cube(8, 8), "n": 2, **bad})
    assert "\n" not in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_missing_device_is_one_sentence():
    with pytest.raises(SapcError, match="cannot be drawn on 'cuda'") as error:
        source.sample(cube(8, 8), 2, device="cuda")
    assert "\n" not in str(error.value)


def test_any_whole_number_counts_fields():
    assert torch.equal(
        source.sample(cube(8, 8), np.int64(2), seeded()), source.sample(cube(8, 8), 2, seeded())
    )


def test_an_inexact_root_is_refused(monkeypatch):
    monkeypatch.setattr(source, "CLIP", -1.0)
    with pytest.raises(SapcError, match=r"cannot be drawn exactly on .* its covariance"):
        source.sample(cube(9, 13), 1, length=0.77)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("length", [1e-6, 1e-3, 0.05, 1.0])
def test_cuda(length):
    grid = cube(100, 100)
    draw = lambda n: source.sample(grid, n, torch.Generator("cuda").manual_seed(0), length=length)
    u = draw(600)
    assert u.is_cuda
    assert torch.equal(u, draw(600))
    assert torch.allclose(u[:5], draw(5), atol=1e-5)
    assert u[:, 50, 50].var().item() == pytest.approx(1, abs=0.3)
    with pytest.raises(SapcError, match="generator is on cpu"):
        source.sample(grid, 1, seeded(), device="cuda")
