"""The source has the covariance it claims: the root is squared and compared with the kernel matrix."""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sapc import source
from sapc.errors import SapcError
from sapc.grid import Axis, Grid

pytest.importorskip("scipy")
from scipy.spatial.distance import cdist
from scipy.special import gamma, kv

CPU = torch.device("cpu")
LENGTHS = [1e-3, 1e-2, 0.05, 0.1, 0.3, 1.0, 3.0, 1e3]
NUS = [0.5, 1.5, 2.5]


def cube(*shape):
    return Grid(tuple(Axis(name, n) for name, n in zip("xyt"[-len(shape) :], shape, strict=True)))


def make_generator(seed=0):
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
    b = root(torch.eye(sum(root.sizes), dtype=dtype) * root.deviation).flatten(1)
    return b.T @ b


def kind(shape, length, nu=0.5):
    root = source.kernel_root(shape, length, nu, CPU, torch.float32)
    return "torus" if isinstance(root, source.Torus) else "average" if root.taps else "white"


@pytest.mark.parametrize("nu", NUS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("shape", [(9, 7), (3, 13), (4, 3, 5)])
def test_covariance_is_the_kernel_matrix(shape, length, nu):
    k = kernel_matrix(shape, length, nu)
    bound = {"white": source.WHITE, "average": source.NEAR, "torus": 1e-9}[kind(shape, length, nu)]
    assert (implied_covariance(shape, length, nu) - k).abs().max() <= bound


@pytest.mark.parametrize(
    ("shape", "length", "nu", "taps"),
    [
        # As 1e-3 on a hundred points, the published source: 11 * 9e-3 = 99 * 1e-3.
        ((12, 12), 9e-3, 0.5, 4),
        ((23, 12), 4.5e-3, 0.5, 1),
        ((12, 23), 4.5e-3, 0.5, 1),
        ((11, 12), 9e-3, 0.5, 4),
        ((12, 12), 13e-3, 0.5, 10),
        ((2, 2), 0.1, 0.5, 4),
        ((10, 11), 14.5e-3, 1.5, 4),
        ((10, 11), 20e-3, 2.5, 5),
        ((6, 6, 6), 0.0198, 0.5, 13),
        ((6, 7, 5), 0.0198, 0.5, 14),
        ((40,), 2.5e-3, 0.5, 1),
    ],
)
def test_a_moving_average_has_the_covariance_everywhere_to_the_edges(shape, length, nu, taps):
    root = source.kernel_root(shape, length, nu, CPU, torch.float64)
    assert isinstance(root, source.Average)
    assert len(root.taps) == taps
    error = (implied_covariance(shape, length, nu) - kernel_matrix(shape, length, nu)).abs()
    assert error.max() <= source.NEAR
    assert error.diagonal().max() < 1e-14, "dropped taps change the variance by their squares only"


def test_a_moving_average_is_chosen_between_white_noise_and_the_torus():
    lengths = [1e-4, 7e-4, 8e-4, 1e-3, 1.2e-3, 1.5e-3, 1.7e-3, 2e-3, 1e-2, 0.1, 1.0]
    assert [kind((100, 100), x) for x in lengths] == ["white"] * 2 + ["average"] * 4 + ["torus"] * 5
    assert len(source.kernel_root((100, 100), 1e-3, 0.5, CPU, torch.float32).taps) == 4


def test_a_moving_average_out_of_bounds_leaves_it_to_the_torus(monkeypatch):
    monkeypatch.setattr(source, "REACH", 0)
    assert source._moving_average((100, 100), 1e-3, 0.5) is None
    monkeypatch.undo()
    assert source._moving_average((100, 100), 1e-3, 0.5) is not None
    for length in [5e-3, 0.1, 1.0, 1e9, 1.7e308]:
        assert source._moving_average((100, 100), length, 0.5) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neighbours_in_a_moving_average_correlate_as_they_should(dtype):
    length, n = 1.5e-3, 500
    u = source.sample(cube(100, 100), n, make_generator(), length=length, dtype=dtype).double()
    assert kind((100, 100), length) == "average"
    # 1.2e-3, with a standard error of 3.2e-4 in ten million pairs.
    expected = math.exp(-1 / 99 / length)
    pairs = torch.stack([(u[:, 1:] * u[:, :-1]).mean(), (u[..., 1:] * u[..., :-1]).mean()])
    assert (pairs.mean() - expected).abs() < 4 * 3.2e-4
    assert pairs.mean() > 2 * 3.2e-4
    assert u.square().mean().item() == pytest.approx(1, abs=5 * math.sqrt(2 / u.numel()))
    edge = torch.cat([u[:, 0], u[:, -1], u[:, :, 0], u[:, :, -1]])
    assert edge.square().mean().item() == pytest.approx(1, abs=5 * math.sqrt(2 / edge.numel()))


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
    u = source.sample(cube(*shape), n, make_generator(), length=length).double()
    # one standard error of a variance is sqrt(2 / n) = 4.5 %; of a covariance at most that
    points = [(0, 0), (0, 1), (shape[0] // 2, shape[1] // 3), (-1, -1)]
    v = torch.stack([u[(slice(None), *p, *([0] * (len(shape) - 2)))] for p in points], 1)
    x = [[(i % n) / (n - 1) for i, n in zip(p, shape, strict=False)] for p in points]
    expected = source.matern(torch.cdist(torch.tensor(x).double(), torch.tensor(x).double()), length, 0.5)
    assert (v.T @ v / n - expected).abs().max() < 5 * math.sqrt(2 / n)
    # Many independent values per field: the overall variance is known well.
    if length < 0.2:
        assert u.square().mean().item() == pytest.approx(1, abs=0.01)
    assert abs(u.mean().item()) < 5 / math.sqrt(n)


def test_white_noise_on_the_navier_stokes_grid_but_not_on_a_hundred_points():
    assert kind((64, 64, 50), 1e-3) == "white"
    assert kind((100, 100), 1e-3) == "average"
    u = source.sample(cube(64, 64, 50), 4, make_generator())
    assert u.shape == (4, 64, 64, 50)
    assert u.dtype == torch.float32
    assert u.var().item() == pytest.approx(1, abs=0.01)
    assert abs((u[:, 1:] * u[:, :-1]).mean().item()) < 0.01


@pytest.mark.parametrize("length", [1e-6, 5e-3, 0.05, 1.0])
def test_seeds(length):
    grid = cube(20, 16)
    draw = lambda n, seed=0: source.sample(grid, n, make_generator(seed), length=length)
    assert torch.equal(draw(5), draw(5))
    assert torch.equal(draw(5)[:3], draw(3)), "field i must not depend on the number of fields"
    assert not torch.equal(draw(5), draw(5, seed=1))
    g = make_generator()
    assert torch.equal(torch.cat([source.sample(grid, k, g, length=length) for k in (2, 3)]), draw(5))


def test_a_draw_without_a_generator_follows_the_global_seed():
    torch.manual_seed(3)
    first = source.sample(cube(8, 8), 2)
    torch.manual_seed(3)
    assert torch.equal(first, source.sample(cube(8, 8), 2))


@pytest.mark.parametrize("length", [5e-3, 1.0])
def test_a_root_takes_batches(length):
    root = source.kernel_root((20, 16), length, 0.5, CPU, torch.float64)
    w = torch.randn(7, sum(root.sizes), generator=make_generator(), dtype=torch.float64)
    assert torch.allclose(root(w), torch.cat([root(row[None]) for row in w]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [1e-6, 1e-3, 0.05])
@pytest.mark.parametrize("n", [1, 256, 5000])
def test_an_accelerator_calls_the_generator_once_a_batch(length, n):
    """On the meta device, which has no numbers but takes the path of an accelerator."""
    calls = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.normal_.default:
                calls.append(args[0].numel())
            return func(*args, **(kwargs or {}))

    with Count():
        u = source.sample(cube(100, 100), n, length=length, device="meta")
    assert u.shape == (n, 100, 100)
    assert u.is_contiguous()
    size = sum(source.kernel_root((100, 100), length, 0.5, CPU, torch.float32).sizes)
    assert sum(calls) == n * size
    assert len(calls) == -(-n // (source.BATCH // size))
    assert max(calls) <= source.BATCH


def test_only_the_number_of_points_matters():
    physical_grid = Grid((Axis("x", 20, 0.0, 6.28, "periodic"), Axis("t", 16, 0.0, 49.0)))
    assert torch.equal(
        source.sample(physical_grid, 2, make_generator(), length=1),
        source.sample(cube(20, 16), 2, make_generator(), length=1),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes(dtype):
    u = source.sample(cube(20, 16), 2, make_generator(), length=1.0, dtype=dtype)
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
    u = source.sample(cube(9, 8), 3, make_generator(), length=length, nu=nu)
    assert u.isfinite().all()
    if length > 1:
        # Nearly constant over the cube.
        assert (u - u[:, :1, :1]).abs().max() < 1e-2


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
        ({"device": "meta", "generator": make_generator()}, "asked for on meta, but its generator is on cpu"),
    ],
)
def test_bad_input_is_one_sentence(bad, message):
    with pytest.raises(SapcError, match=message) as error:
        source.sample(**{"grid": cube(8, 8), "n": 2, **bad})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", [7, 16, 17, 100, 10_000, 10_302])
def test_normals_from_uniform_numbers_are_those_of_torch(size):
    """In the same state of the generator, and leaving it in the same one."""
    one, other = make_generator(), make_generator()
    want = torch.stack([torch.empty(size, dtype=torch.float64).normal_(generator=one) for _ in range(5)])
    got = source.cpu_normals(5, size, other, torch.device("cpu"))
    # A few units in the last place of values up to 5.
    assert (got - want).abs().max() < 4e-15
    assert torch.equal(one.get_state(), other.get_state())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_missing_device_is_one_sentence():
    with pytest.raises(SapcError, match="cannot be drawn on 'cuda'") as error:
        source.sample(cube(8, 8), 2, device="cuda")
    assert "\n" not in str(error.value)


def test_any_whole_number_counts_fields():
    assert torch.equal(
        source.sample(cube(8, 8), np.int64(2), make_generator()),
        source.sample(cube(8, 8), 2, make_generator()),
    )


def test_an_inexact_root_is_refused(monkeypatch):
    monkeypatch.setattr(source, "CLIP", -1.0)
    with pytest.raises(SapcError, match=r"cannot be drawn exactly on .* its covariance"):
        source.sample(cube(9, 13), 1, length=0.77)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("length", [1e-6, 1e-3, 1.5e-3, 0.05, 1.0])
def test_cuda(length):
    grid = cube(100, 100)
    draw = lambda n: source.sample(grid, n, torch.Generator("cuda").manual_seed(0), length=length)
    u = draw(600)
    assert u.is_cuda
    assert torch.equal(u, draw(600))
    assert draw(5).shape == (5, 100, 100)
    root = source.kernel_root(grid.shape, length, 0.5, u.device, torch.float32)
    w = torch.randn(3, sum(root.sizes), generator=make_generator())
    on_cpu = source.kernel_root(grid.shape, length, 0.5, CPU, torch.float32)(w)
    assert torch.allclose(root(w.cuda()).cpu(), on_cpu, atol=1e-5)
    assert u[:, 50, 50].var().item() == pytest.approx(1, abs=0.3)
    with pytest.raises(SapcError, match="generator is on cpu"):
        source.sample(grid, 1, make_generator(), device="cuda")
