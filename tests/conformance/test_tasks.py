"""What a task promises: its contract, the purity of its data, and one clear sentence for bad input."""

from __future__ import annotations

from math import pi

import jaxtyping
import pytest
import torch

from sapc.errors import SapcError
from sapc.grid import Axis, Grid
from sapc.tasks import SPLITS, Task, get_task, task_names
from sapc.tasks.navier_stokes import gaussian_field
from sapc.tasks.reaction_diffusion import initial_profiles
from sapc.tasks.sources import Streams, blocks, square_shells

NAMES = ("heat", "reaction_diffusion", "stokes_ic", "stokes_bc", "burgers", "navier_stokes")
TESTS = ("test0", "test1", "test2", "test3")
SHAPES = {
    "heat": (100, 100),
    "reaction_diffusion": (128, 100),
    "stokes_ic": (100, 100),
    "stokes_bc": (100, 100),
    "burgers": (100, 100),
    "navier_stokes": (64, 64, 50),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SAPC_CACHE", str(tmp_path))


@pytest.fixture
def unchecked():
    """Without the run-time type checks, as users run the package."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def small(name: str) -> Task:
    """The task on a grid that is solved in a moment."""
    if name == "navier_stokes":
        axes = (Axis("x", 16, kind="periodic"), Axis("y", 16, kind="periodic"), Axis("t", 3, 0.0, 0.5))
        return get_task(name, grid=Grid(axes))
    if name == "burgers":
        return get_task(name, grid=Grid((Axis("x", 20, kind="periodic"), Axis("t", 5, 0.0, 0.05))))
    return get_task(name, grid=(20, 5))


def pinned(task: Task, fields: torch.Tensor) -> torch.Tensor:
    """The pinned values of every sample, `(n, points)`."""
    return fields[:, task.constraint.parts[0].mask(task.grid.shape)]


def test_the_six_tasks_are_there():
    assert task_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_task_describes_itself(name):
    task = get_task(name)
    assert task.name == name
    assert task.grid.shape == SHAPES[name]
    for text in (task.title, task.equation, task.pinned, task.law, *task.parameters.values()):
        assert text
        assert "\n" not in text
    assert task.sizes == {
        s: (10_000 if name == "navier_stokes" else 6400) if s == "train" else 1225 for s in SPLITS
    }
    assert (task.published_solver is not None) == (name in ("reaction_diffusion", "stokes_ic", "stokes_bc"))
    assert repr(task).startswith(f"get_task('{name}'")


@pytest.mark.parametrize("name", NAMES)
def test_a_dataset_has_fields_and_parameters(name):
    task = small(name)
    data = task.dataset("train", size=3, seed=0)
    assert data.fields.shape == (3, *task.grid.shape)
    assert data.fields.dtype == torch.float32
    assert set(data.parameters) == set(task.parameters)
    assert all(p.shape[0] == 3 and p.dtype == torch.float64 for p in data.parameters.values())
    assert len(data) == 3
    assert (data.task, data.split, data.seed, data.grid) == (name, "train", 0, task.grid)


@pytest.mark.parametrize("name", NAMES)
def test_a_smaller_dataset_is_a_prefix_to_the_last_bit(name):
    task = small(name)
    block = task.block["cpu"]
    large = task.dataset("train", size=block + 3)
    for size in (1, 2, block - 1, block + 1):
        part = task.dataset("train", size=size)
        assert torch.equal(part.fields, large.fields[:size])
        assert all(torch.equal(part.parameters[k], large.parameters[k][:size]) for k in part.parameters)


@pytest.mark.parametrize("name", NAMES)
def test_data_does_not_depend_on_the_block(name, monkeypatch):
    task = small(name)
    parameters = task.draw("train", 7)
    fields = task.solve(parameters)
    monkeypatch.setattr(type(task), "block", {"cpu": 3})
    torch.testing.assert_close(task.solve(parameters), fields, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_block_of_a_sample_follows_from_its_index_alone(name, device):
    task = get_task(name)
    every = list(blocks(task, 20_000, device))
    most = task.block[device]
    assert [start for start, _ in every[1:]] == [end for _, end in every[:-1]]
    assert max(end - start for start, end in every) == most
    for size in (1, 10, 100, 999, 6400):
        some = list(blocks(task, size, device))
        assert some == every[: len(some)]
        solved, least = some[-1][1], max(task.block["cpu"], most // 16)
        assert size <= solved <= max(least, 2 * size, size + most)
        if size < most:
            assert solved <= max(least, 2 * size)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "navier_stokes"])
def test_solutions_keep_the_equation_as_far_as_differences_do(name):
    """Twice as many points leave a quarter of it where solutions are smooth; noise is explained by nothing."""
    found = []
    for factor in (1, 2):
        task = get_task(name)
        points = [a.n * factor if a.kind != "closed" else (a.n - 1) * factor + 1 for a in task.grid.axes]
        task = task.resize(points)
        u = task.solve(task.draw("validation", 4, seed=1))
        residual = task.residual(u)
        assert residual is not None
        found.append(float(residual.square().mean().sqrt()))
        noise = torch.randn(u.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        rough = task.residual(noise)
        assert rough is not None
        assert float(rough.square().mean().sqrt()) > 0.9
    coarse, fine = found
    # Reaction-diffusion begins with a jump of its fluxes; of a single mode of heat differences leave nothing.
    assert coarse < {"heat": 1e-10, "reaction_diffusion": 0.08}.get(name, 0.05)
    assert fine < {"heat": 1e-10, "reaction_diffusion": coarse}.get(name, 0.35 * coarse)


def test_a_field_that_does_not_change_has_no_residual():
    task = small("heat")
    assert torch.equal(task.residual(torch.ones(2, 20, 5).double()), torch.zeros(2, 20, 3).double())
    assert small("navier_stokes").residual(torch.ones(1, 16, 16, 3)) is None


def test_blocks_of_fine_grids_hold_no_more_points():
    fine = get_task("navier_stokes", grid=(256, 256, 50))
    assert next(blocks(fine, 10_000, "cpu")) == (0, 1)
    assert max(end - start for start, end in blocks(fine, 10_000, "cuda")) == 1000 // 16
    coarse = get_task("navier_stokes", grid=(16, 16, 5))
    assert next(blocks(coarse, 10_000, "cpu")) == (0, coarse.block["cpu"])


def test_growing_blocks_keep_the_prefix_to_the_last_bit(monkeypatch):
    """What a device with large blocks does, on the CPU."""
    task = small("burgers")
    grow = [(0, 2), (2, 4), (4, 8), (8, 16)]
    monkeypatch.setattr("sapc.tasks.sources.blocks", lambda task, n, device: (b for b in grow if b[0] < n))
    parameters = task.draw("train", 11)
    fields = task.solve(parameters)
    for size in (1, 3, 4, 5, 9):
        assert torch.equal(task.solve({k: p[:size] for k, p in parameters.items()}), fields[:size])


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_a_wrong_shape_are_refused(name):
    task = small(name)
    parameters = task.draw("train", 2)
    for key, p in parameters.items():
        with pytest.raises(SapcError, match=rf"parameter '{key}' of {name} has shape") as caught:
            task.solve({**parameters, key: p[..., None]})
        assert "\n" not in str(caught.value)


def test_what_does_not_fit_into_memory_is_refused_before_the_work():
    with pytest.raises(SapcError, match=r"about .* GiB needed, .* GiB available"):
        get_task("heat").dataset("train", size=10**20)
    with pytest.raises(SapcError, match="not enough memory"):
        get_task("heat").draw("train", size=10**20)
    with pytest.raises(SapcError, match="GiB needed"):
        get_task("heat", grid=(10**9, 10**9)).dataset("train", size=1)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory"), RuntimeError("shapes")])
def test_a_failed_allocation_is_one_sentence(error, monkeypatch):
    task = small("heat")

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(task, "_solve", fail)
    ours = "shapes" not in str(error)
    with pytest.raises(SapcError if ours else RuntimeError, match="not enough memory" if ours else "shapes"):
        task.dataset("train", size=2, cache=False)


def test_a_bad_device_is_refused_even_if_the_data_is_cached():
    task = small("burgers")
    task.dataset("train", size=2)
    with pytest.raises(SapcError, match="'meta' cannot be used"):
        task.dataset("train", size=2, device="meta")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_data_does_not_depend_on_the_device(name):
    task = small(name)
    parameters = task.draw("train", 5)
    torch.testing.assert_close(task.solve(parameters, "cuda"), task.solve(parameters), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_seeds_and_splits_are_streams_of_their_own(name):
    task = small(name)
    draws = [task.draw(split, 4, seed) for split in ("train", "validation") for seed in (0, 1)]
    for parameter in task.parameters:
        for i in range(len(draws)):
            for j in range(i):
                assert not (draws[i][parameter] == draws[j][parameter]).all()
    again = task.draw("train", 4, 0)
    assert all(torch.equal(again[p], draws[0][p]) for p in again)


@pytest.mark.parametrize("name", NAMES)
def test_a_test_set_shares_one_condition_over_samples_and_seeds(name):
    task = small(name)
    conditions = []
    for split in TESTS:
        first, second = (task.dataset(split, size=4, seed=seed) for seed in (0, 1))
        values = pinned(task, torch.cat((first.fields, second.fields)))
        assert torch.equal(values, values[:1].expand_as(values))
        assert len(first.fields.flatten(1).unique(dim=0)) == 4
        assert not torch.equal(first.fields, second.fields)
        conditions.append(values[0])
    assert len(torch.stack(conditions).unique(dim=0)) == 4


@pytest.mark.parametrize("name", NAMES)
def test_a_manifold_is_pinned_to_each_samples_own_values(name):
    task = small(name)
    fields = task.dataset("train", size=3).fields[::2]  # in a product the first two share their condition
    H = task.manifold(fields)
    assert torch.equal(H.local(fields), torch.zeros_like(H.local(fields)))
    assert H.balance(fields).shape == (2, task.grid.shape[-1] - 1)
    assert H.local(fields.flip(0)).norm(dim=1).min() > 0


def test_pinned_parameters_are_the_published_ones():
    def values(name, parameter):
        return [get_task(name).draw(split, 2)[parameter].unique().tolist() for split in TESTS]

    assert values("heat", "phase") == [[pi / 4], [pi / 2], [3 * pi / 4], [pi]]
    assert values("stokes_ic", "decay") == [[4.0], [8.0], [12.0], [16.0]]
    assert values("stokes_bc", "frequency") == [[3.0], [4.5], [6.0], [7.5]]


@pytest.mark.parametrize(
    ("name", "parameter", "low", "high"),
    [
        ("heat", "diffusivity", 1, 5),
        ("heat", "phase", 0, pi),
        ("reaction_diffusion", "initial", 0, 1),
        ("reaction_diffusion", "flux_left", 0, 0.05),
        ("reaction_diffusion", "flux_right", -0.05, 0),
        ("stokes_ic", "decay", 2, 20),
        ("stokes_bc", "frequency", 2, 8),
        ("burgers", "initial", -1, 1),
        ("burgers", "viscosity", 0.01, 0.05),
        ("navier_stokes", "phase", 0, pi / 2),
    ],
)
def test_parameters_fill_their_range(name, parameter, low, high):
    values = get_task(name).draw("train", 1600)[parameter]
    assert values.min() >= low - 1e-6
    assert values.max() <= high + 1e-6
    assert values.max() - values.min() > 0.9 * (high - low)


@pytest.mark.parametrize(("m", "n"), [(80, 6400), (35, 1225), (100, 10_000), (3, 9)])
def test_square_shells_hold_full_products(m, n):
    i, j = square_shells(n)
    assert sorted(zip(i.tolist(), j.tolist(), strict=True)) == [(a, b) for a in range(m) for b in range(m)]


def test_product_splits_combine_every_condition_with_every_free_parameter():
    for name, free in (("reaction_diffusion", "flux_left"), ("navier_stokes", "phase")):
        p = small(name).draw("train", 25)
        assert len(p["initial"].flatten(1).unique(dim=0)) == 5
        assert len(p[free].unique()) == 5
        assert len(torch.cat((p["initial"].flatten(1), p[free][:, None]), 1).unique(dim=0)) == 25


@pytest.mark.parametrize(("name", "coarse", "fine"), [("reaction_diffusion", 40, 120), ("burgers", 20, 80)])
def test_random_profiles_are_the_same_function_on_every_grid(name, coarse, fine):
    u, v = (get_task(name, grid=(n, 5)).draw("train", 200)["initial"] for n in (coarse, fine))
    step = fine // coarse
    torch.testing.assert_close(
        u, v[:, step // 2 if name == "reaction_diffusion" else 0 :: step], rtol=0, atol=1e-12
    )


def test_initial_vorticity_is_the_same_field_on_every_grid():
    def modes(n, keep):
        w = get_task("navier_stokes", grid=(n, n, 3)).draw("train", 4)["initial"]
        kx = torch.arange(-keep, keep + 1)
        return torch.fft.rfft2(w, norm="forward")[:, kx % n][..., : keep + 1]

    torch.testing.assert_close(modes(32, 15), modes(128, 15), rtol=0, atol=1e-14)


def test_initial_vorticity_has_the_published_spread():
    w = gaussian_field(Streams("navier_stokes", "train", 0), 400, get_task("navier_stokes").grid.space)
    assert w.mean((1, 2)).abs().max() < 1e-15
    assert w.square().mean().sqrt() == pytest.approx(0.256, rel=0.03)
    spectrum = torch.fft.rfft2(w[:1], norm="forward")
    assert spectrum[:, 32].abs().max() < 1e-15
    assert spectrum[..., 32].abs().max() < 1e-15


def test_burgers_range_is_an_option():
    task = get_task("burgers", initial_range=(0.0, 1.0))
    assert task.options == {"initial_range": (0.0, 1.0)}
    u, v = task.draw("train", 50)["initial"], get_task("burgers").draw("train", 50)["initial"]
    torch.testing.assert_close(2 * u - 1, v, rtol=0, atol=1e-12)


def test_waves_may_be_counted_between_the_outer_cell_centres():
    """Then a profile is the same function of a coordinate that is 128/127 times as long, before it is rescaled."""
    task = get_task("reaction_diffusion", wave_span="centres")
    assert (task.options, get_task("reaction_diffusion").options) == ({"wave_span": "centres"}, {})
    r = torch.rand(40, 13, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # No window, which is not stretched.
    r[:, 10] = 1.0
    x = task.grid["x"].points
    u, v = initial_profiles(r)(x), initial_profiles(r, 127 / 128)(127 / 128 * x)
    a, b = (w - w.mean(1, keepdim=True) for w in (u, v))
    slope = (a * b).sum(1) / a.square().sum(1)
    assert (b - slope[:, None] * a).abs().max() < 1e-12
    initial, other = (t.draw("train", 40)["initial"] for t in (task, get_task("reaction_diffusion")))
    assert 0.1 < (initial - other).abs().max() < 0.2


def test_progress_counts_samples():
    seen = []
    get_task("heat", grid=(10, 10)).dataset(
        "train", size=600, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(256, 600), (512, 600), (600, 600)]


def test_a_stream_is_not_the_global_generator():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first = Streams("heat", "train", 3).uniforms("phase", 5, 2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first, Streams("heat", "train", 3).uniforms("phase", 5, 2))


# -- bad input --


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: get_task("wave"), "unknown task 'wave'; choose one of heat, "),
        (lambda: get_task("heat", colour="red"), "unknown option 'colour'.*has no options"),
        (lambda: get_task("burgers", colour="red"), "unknown option 'colour'.*takes initial_range"),
        (lambda: get_task("burgers", initial_range=(1.0, 0.0)), "low < high between"),
        (lambda: get_task("reaction_diffusion", wave_span="points"), "wave_span.*domain, centres"),
        (lambda: get_task("burgers", grid=(8, 5)), "at least 9 points"),
        (lambda: get_task("heat", grid=(10,)), "2 axes"),
        (lambda: get_task("heat", grid=(10, 1)), "at least 3"),
        (lambda: get_task("heat", grid=get_task("burgers").grid), r"heat is posed on axes x \(periodic"),
        (
            lambda: get_task("heat").dataset("test4"),
            "unknown split 'test4'; choose one of train, validation, test0",
        ),
        (
            lambda: get_task("heat").dataset("train", size=0),
            "size must be a whole number of at least 1, got 0",
        ),
        (lambda: get_task("heat").dataset("train", size=-3), "got -3"),
        (
            lambda: get_task("heat").draw("train", 3, seed=-1),
            "seed must be a whole number of at least 0, got -1",
        ),
        (
            lambda: get_task("heat").dataset("train", size=2, device="nowhere"),
            "device 'nowhere' cannot be used",
        ),
        (
            lambda: get_task("heat").solve({"phase": torch.zeros(2)}),
            "solved for the parameters diffusivity, phase",
        ),
        (
            lambda: get_task("heat").solve({"phase": torch.zeros(2), "diffusivity": torch.zeros(3)}),
            "same number of rows",
        ),
        (
            lambda: get_task("heat").solve(
                {"phase": torch.tensor([torch.nan]), "diffusivity": torch.ones(1)}
            ),
            "'phase' of heat holds NaN",
        ),
        (
            lambda: get_task("burgers").solve({"initial": torch.zeros(1, 7), "viscosity": torch.ones(1)}),
            r"expected \(1, 100\)",
        ),
        (lambda: get_task("heat").manifold(torch.zeros(2, 100, 99)), r"shape \(2, 100, 99\)"),
        (
            lambda: get_task("heat").manifold(torch.full((1, 100, 100), torch.nan)),
            "10000 of 10000 field values",
        ),
    ],
)
def test_bad_calls_get_one_sentence(call, message):
    with pytest.raises(SapcError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [2.5, "many", True])
def test_a_size_that_is_not_a_whole_number_is_refused(unchecked, size):
    with pytest.raises(SapcError, match="size must be a whole number"):
        get_task("heat").dataset("train", size=size)


def test_a_grid_that_is_not_whole_numbers_is_refused(unchecked):
    with pytest.raises(SapcError, match="2 whole numbers"):
        get_task("heat", grid=(10, 2.5))


def test_a_solution_that_blows_up_names_its_parameters():
    task = get_task("burgers", grid=(20, 5))
    parameters = task.draw("train", 3)
    parameters["viscosity"][1] = -1.0
    with pytest.raises(SapcError, match=r"no finite solution for sample 1 \(viscosity = -1\)"):
        task.solve(parameters)
