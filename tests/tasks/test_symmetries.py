"""Maps of indices against their definition, texts, the test of moments, and trainings with symmetries."""

import json
import math
import signal
from dataclasses import replace

import pytest
import torch

import sapc
from sapc import Affine, Axis, Balance, Constraint, Fields, Grid, Pin, SapcError
from sapc.data.normalizer import Identity, Normalizer
from sapc.tasks.index_maps import IndexMap, parse_map
from sapc.tasks.invariance import FALSE_ALARMS, compare_moments, moments, select_conditions
from sapc.tasks.symmetries import make_symmetry, transform_normalized
from sapc.training.config import TrainingConfig, training_config
from sapc.training.distributed import ProcessGroup
from sapc.training.loop import train
from sapc.training.run_folder import RunFolder, load_tensors
from sapc.training.step import Training
from variants import variant

pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st

RING = Grid((Axis("x", 12, kind="periodic"), Axis("y", 12, kind="periodic"), Axis("t", 5)), ("h", "u", "v"))
WALLS = Grid((Axis("x", 6), Axis("z", 7, kind="cells"), Axis("t", 4)))
TEXTS = (
    "shift:x",
    "shift:x,shift:-y",
    "shift:x=1/4",
    "shift:y=-5/12,sign:v",
    "reflect:x,sign:u",
    "reflect:x,reflect:y,sign:u,sign:v",
    "swap:x:y,swap:u:v",
    "swap:x:y,reflect:x,swap:u:v,sign:u",
    "swap:h:u,sign:h",
    "sign",
    "reflect:t",
)


def noise(grid, n, seed=0, dtype=torch.float32):
    return torch.randn(n, *grid.shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def definition(T, u):
    """(T u)[c, i] = s_c u[q_c, j], j_d = (a_d i_(p_d) + b_d) mod n_d, point by point."""
    u = u.reshape(len(u), len(T.channels), *T.points)
    image = torch.empty_like(u)
    for c in range(len(T.channels)):
        for i in torch.cartesian_prod(*(torch.arange(n) for n in T.points)).tolist():
            j = [(a * i[p] + b) % n for n, p, a, b in zip(T.points, T.axes, T.steps, T.offsets, strict=True)]
            image[(slice(None), c, *i)] = T.signs[c] * u[(slice(None), T.channels[c], *j)]
    return image


# -- maps of indices --


@pytest.mark.parametrize("text", TEXTS)
def test_a_map_is_as_defined(text):
    T, u = parse_map(text, RING), noise(RING, 2)
    assert torch.equal(T(u), definition(T, u))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(TEXTS[2:]), min_size=1, max_size=6))
def test_a_composition_is_one_map_after_the_other(texts):
    T, u = IndexMap.identity(RING), noise(RING, 2)
    image = u
    for text in texts:
        T, image = T.then(parse_map(text, RING)), parse_map(text, RING)(image)
    assert torch.equal(T(u), image)


def test_what_texts_mean():
    x, y, t = (axis.points for axis in RING.axes)
    f = lambda x, y: torch.sin(2 * math.pi * x + 0.3) + 2 * torch.cos(4 * math.pi * y - 0.2)
    field = lambda x, y: (f(x[:, None], y)[..., None] * torch.ones_like(t))[None]
    one = Grid(RING.axes)
    for text, (at_x, at_y) in {
        "shift:x=1/4": (x - 0.25, y),
        "reflect:x": (-x, y),
        "reflect:x,shift:x=1/4": (0.25 - x, y),
        "shift:x=1/4,reflect:x": (-x - 0.25, y),
        "shift:x=1/4,shift:y=-1/3": (x - 0.25, y + 1 / 3),
    }.items():
        torch.testing.assert_close(parse_map(text, one)(field(x, y)), field(at_x, at_y), rtol=0, atol=1e-13)
    swapped = parse_map("swap:x:y,sign,shift:x=1/2", one)(field(x, y))
    torch.testing.assert_close(swapped[0, ..., 0], -f(y, x[:, None] - 0.5), rtol=0, atol=1e-13)
    coupled = make_symmetry("shift:x,shift:-y", one).apply(field(x, y), torch.tensor([5]))
    torch.testing.assert_close(coupled, field(x - 5 / 12, y + 5 / 12), rtol=0, atol=1e-13)


def test_axes_are_reflected_by_their_kind():
    u = noise(WALLS, 2)
    assert torch.equal(parse_map("reflect:x", WALLS)(u), u.flip(1))
    assert torch.equal(parse_map("reflect:z", WALLS)(u), u.flip(2))
    ring = noise(RING, 2)
    assert torch.equal(parse_map("reflect:x", RING)(ring), ring.flip(2).roll(1, 2))
    for grid, name in ((WALLS, "x"), (WALLS, "z"), (RING, "x")):
        axis, d = grid[name], grid.names.index(name)
        points = axis.points.reshape(-1, *(1,) * (len(grid.axes) - 1 - d)).expand(grid.points_per_axis)
        image = parse_map(f"reflect:{name}", Grid(grid.axes))(points[None])[0]
        away = (points + image - axis.start - axis.stop).abs()
        away = torch.minimum(away, (away - axis.length).abs()) if axis.kind == "periodic" else away
        assert away.max() < 1e-14


@pytest.mark.parametrize(
    ("text", "order"), list(zip(TEXTS, (12, 12, 4, 12, 2, 2, 2, 4, 4, 2, 2), strict=True))
)
def test_orders_and_powers(text, order):
    symmetry, u = make_symmetry(text, RING), noise(RING, 13)
    assert symmetry.order == order
    k = torch.arange(13) % order
    image = symmetry.apply(u, k)
    for i in range(13):
        row = u[i : i + 1]
        for _ in range(int(k[i])):
            row = symmetry.generator(row)
        assert torch.equal(image[i : i + 1], row)
    drawn = symmetry.draw(4000, torch.Generator().manual_seed(0))
    # Five standard errors of a share.
    assert (drawn.bincount() / 4000 - 1 / order).abs().max() < 5 / math.sqrt(4000 * order)
    assert len(drawn.unique()) == order


def test_shifts_of_axes_with_other_numbers_of_points_go_by_the_same_share():
    grid = Grid((Axis("x", 12, kind="periodic"), Axis("y", 8, 0, 3, kind="periodic"), Axis("t", 3)))
    symmetry, u = make_symmetry("shift:x,shift:-y", grid), noise(grid, 4)
    assert symmetry.order == 4
    want = torch.stack([u[i].roll((3 * i, -2 * i), (0, 1)) for i in range(4)])
    assert torch.equal(symmetry.apply(u, torch.arange(4)), want)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("turn:x", "has a part 'turn:x'; parts are shift:AXIS"),
        ("", "has a part ''"),
        ("shift", "has a part 'shift'"),
        ("reflect:q", "is along 'q'; the grid has x, z, t"),
        ("shift:x", r"shifts along x, which is not periodic \(closed\)"),
        ("shift:t=1/2", "not periodic"),
        ("swap:x:z", r"as many points along x as along z, and axes of one kind; they have 6 \(closed\)"),
        ("sign:u", "no channel 'u'; it has one channel without a name"),
        ("swap:x:x", "leaves every field as it is"),
        ("reflect:x,reflect:x", "leaves every field as it is"),
    ],
)
def test_texts_that_cannot_be_read(text, message):
    with pytest.raises(SapcError, match=message):
        make_symmetry(text, WALLS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shift:x=1/5", "would move 12 points along x by 2.4; nothing is interpolated"),
        ("shift:x=half", "is a share of the period, as shift:x=1/2, got 'half'"),
        ("shift:x=1/0", "is a share of the period"),
        ("shift:x=1", "leaves every field as it is"),
        ("shift:x,sign:u", "stands beside other maps; name each as a symmetry of its own"),
        (5, "a symmetry is a text, as shift:x or reflect:x,sign:u, or a function .* got int"),
    ],
)
def test_shifts_that_cannot_be(text, message):
    with pytest.raises(SapcError, match=message):
        make_symmetry(text, RING)


# -- normalized fields --


def test_a_map_of_normalized_fields_is_that_of_the_fields():
    normalizer = Normalizer(RING, (5.0, -2.0, 300.0), (0.5, 3.0, 1.0))
    u = normalizer.denormalize(noise(RING, 16, dtype=torch.float64))
    w = normalizer.normalize(u)
    for text in TEXTS:
        symmetry = make_symmetry(text, RING)
        g, same = (torch.Generator().manual_seed(1) for _ in range(2))
        image = transform_normalized(symmetry, w, normalizer, g)
        want = symmetry.transform(u, same)
        torch.testing.assert_close(normalizer.denormalize(image), want, rtol=1e-13, atol=1e-12)
        single = transform_normalized(symmetry, w.float(), normalizer, same.manual_seed(1))
        assert single.dtype == torch.float32
        rounded = transform_normalized(symmetry, w.float().double(), normalizer, same.manual_seed(1))
        torch.testing.assert_close(single, rounded.float(), rtol=0, atol=0)
        if not symmetry.changes_values:
            assert torch.equal(single, symmetry.transform(w.float(), same.manual_seed(1)))


def test_without_a_normalizer_signs_are_exact():
    symmetry, w = make_symmetry("reflect:x,sign:u", RING), noise(RING, 8)
    image = transform_normalized(symmetry, w, Identity(), torch.Generator().manual_seed(0))
    assert torch.equal(image.abs().sort(2).values, w.abs().sort(2).values)
    again = transform_normalized(symmetry, image, Identity(), torch.Generator().manual_seed(0))
    assert torch.equal(again, w)
    assert not torch.equal(image, w)


# -- moments --


def waves(n, seed=0, force=0.0, speed=True):
    """Gaussian waves on a ring, statistically the same everywhere; and a force that depends on x."""
    grid = Grid((Axis("x", 16, kind="periodic"), Axis("t", 6)), ("h",))
    x, t = grid.mesh()
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(4, n, 1, 1, generator=g, dtype=torch.float64)
    c = torch.randn(n, 1, 1, generator=g, dtype=torch.float64) if speed else 1.0
    h = a[0] * torch.sin(2 * math.pi * (x - c * t)) + a[1] * torch.cos(2 * math.pi * (x - c * t))
    h = h + a[2] * torch.sin(4 * math.pi * (x - c * t)) + a[3] * torch.cos(4 * math.pi * (x - c * t))
    return grid, 3 + h + force * t * torch.sin(2 * math.pi * x)


def own(grid, values, physics=None, symmetries=(), **more):
    fields = Fields(values, grid, {}, {}, {"path": "own.nc", "sha256": "own"}, None)
    physics = physics or (lambda grid: Pin.frame(0) & Balance(grid.integral(), grid=grid))
    return sapc.Task.from_data(fields, physics, symmetries=symmetries, **more)


def test_moments_are_means_in_boxes():
    u = noise(WALLS, 3, dtype=torch.float64)
    found = moments(u[:, None], WALLS)
    signals = [u, *(axis.derivative(u, i + 1) for i, axis in enumerate(WALLS.axes))]
    values = [
        *signals,
        *(a * b for i, a in enumerate(signals) for b in signals[i:]),
        *(a**3 for a in signals),
    ]
    want = []
    for value in values:
        boxes = torch.empty(3, 4, 4, 2, dtype=torch.float64)
        for i in range(4):
            for j in range(4):
                for k in range(2):
                    rows = [n * torch.arange(m) // m for n, m in ((4, 6), (4, 7), (2, 4))]
                    inside = value[:, rows[0] == i][:, :, rows[1] == j][:, :, :, rows[2] == k]
                    boxes[:, i, j, k] = inside.mean((1, 2, 3))
        want += [boxes.flatten(1), boxes.mean((1, 2))]
    torch.testing.assert_close(found, torch.cat(want, 1), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["shift:x", "reflect:x,shift:x=5/16"])
def test_a_true_symmetry_is_reported_no_more_often_than_stated(text):
    """200 sets of 20 samples: p is at most q with probability q, for any q, to four standard errors."""
    grid = waves(2)[0]
    symmetry = make_symmetry(text, grid)
    p = torch.tensor([compare_moments(symmetry, waves(20, seed)[1], grid, seed).p for seed in range(200)])
    for q in (FALSE_ALARMS, 0.01, 0.05, 0.2, 0.5):
        assert (p <= q).float().mean() <= q + 4 * math.sqrt(q * (1 - q) / 200)
    # And no less often: the test is exact, not cautious.
    assert (p <= 0.5).float().mean() >= 0.5 - 4 * math.sqrt(0.25 / 200)


def test_a_force_that_depends_on_x_shows_in_the_moments_alone():
    """The mass of each frame is kept by the image as by the data: only the moments tell."""
    grid, values = waves(120, force=2.0)
    report = sapc.check(own(grid, values, symmetries=["shift:x"]))
    (found,) = report.symmetries
    assert found.law_change < 1e-12
    assert found.moments.p == FALSE_ALARMS
    assert found.moments.difference > 5
    (problem,) = report.problems
    assert problem.startswith("the data do not have the symmetry shift:x: the mean of")
    assert "symmetry shift:x: |R| changes by" in report.text()
    still = sapc.check(own(*waves(120), symmetries=["shift:x", "reflect:x"]))
    assert still.problems == []
    assert [s["text"] for s in json.loads(json.dumps(still.to_dict()))["symmetries"]] == [
        "shift:x",
        "reflect:x",
    ]


@pytest.mark.parametrize("force", [0.8, 1.5])
def test_a_planted_force_is_found_in_nearly_every_set(force):
    """Of 100 fields of deviation sqrt(2), forced by 0.4 or 0.75 on average over time."""
    symmetry = make_symmetry("shift:x", waves(2)[0])
    found = [
        not compare_moments(symmetry, waves(100, s, force)[1], waves(2)[0], s).is_passed for s in range(20)
    ]
    assert sum(found) >= (20 if force > 1 else 16)


def test_a_direction_of_travel_shows():
    grid, values = waves(60, speed=False)
    assert compare_moments(make_symmetry("shift:x", grid), values, grid).is_passed
    found = compare_moments(make_symmetry("reflect:x", grid), values, grid)
    assert not found.is_passed
    assert found.moment == "dh/dx dh/dt"


def test_a_law_that_depends_on_the_place_is_not_kept():
    grid, values = waves(40)
    weights = 1 + torch.linspace(0, 1, 16, dtype=torch.float64)

    def physics(grid):
        return Pin.frame(0) & Constraint(lambda u: (u * weights[:, None].to(u)).sum(1))

    task = own(grid, values, physics, ["shift:x"])
    (found,) = sapc.check(task).symmetries
    assert found.law_change > 1e-3
    assert any("|R| of their images differs" in problem for problem in found.problems)


def test_prescribed_values_must_be_kept():
    grid = Grid((Axis("x", 9), Axis("t", 4)), ("h",))
    values = noise(grid, 40, dtype=torch.float64)
    values[:, 0], values[:, -1] = 0.0, 1.0

    def physics(grid):
        return Pin.at(grid, x=0, value=0.0) & Affine(lambda u: u[:, -1], 1.0)

    (found,) = sapc.check(own(grid, values, physics, ["reflect:x"])).symmetries
    assert found.pin_distance > 0.5
    assert any("off the prescribed values" in problem for problem in found.problems)


def test_of_fields_that_share_a_condition_one_is_taken():
    """Twenty futures of each of eight beginnings are eight samples: as 160 they would look like no symmetry."""
    grid, values = waves(160)
    values[:, :, 0] = values[:8, :, 0].repeat_interleave(20, 0)
    task = own(grid, values)
    chosen = select_conditions(task, values, seed=0)
    assert chosen.shape == (8, *grid.shape)
    assert len(chosen[:, :, 0].unique(dim=0)) == 8
    assert torch.equal(select_conditions(own(grid, values, lambda grid: Pin.at(x=0)), values, 0), values)
    values[:, :, 0] = values[:1, :, 0]
    assert len(select_conditions(task, values, seed=0)) == 160
    (found,) = sapc.check(own(*waves(10), symmetries=["shift:x"])).symmetries
    assert "too few to tell" in found.line()


# -- tasks of one's own --


def turn(u, g):
    """Shift by any number of points, as `shift:x` does."""
    k = torch.randint(u.shape[1], (len(u),), generator=g)
    return torch.stack([field.roll(int(s), 0) for field, s in zip(u, k, strict=True)])


def test_a_function_may_be_a_symmetry():
    grid, values = waves(80)
    task = own(grid, values, symmetries=[turn, " reflect:x , shift:x=1/2"])
    symmetry, text = task.find_symmetries()
    assert text.text == "reflect:x,shift:x=1/2"
    assert symmetry.text.startswith("function:turn:")
    assert sapc.check(task).problems == []
    forced = own(*waves(120, force=2.0), symmetries=[turn])
    assert len(sapc.check(forced).problems) == 1
    assert task.resize((16, 8)).symmetries == task.symmetries
    with pytest.raises(
        SapcError, match=r"function:<lambda>:.* takes fields .* and returns fields, .* got .*\(1, 16\)"
    ):
        own(grid, values, symmetries=[lambda u, g: u[..., 0]])
    with pytest.raises(SapcError, match=r"function:<lambda>:.* failed: ZeroDivisionError"):
        own(grid, values, symmetries=[lambda u, g: 1 / 0])
    with pytest.raises(SapcError, match="is along 'y'"):
        own(grid, values, symmetries="shift:y")


def test_a_run_keeps_the_symmetries_of_its_data(tmp_path):
    """Declared ones are used and written; the same data without them go on with those of the run."""
    grid, values = waves(20)
    physics = Pin.frame(0)
    task = own(grid, values, physics, ["shift:x", "reflect:x,sign:h"], name="rings")
    run = training_config(task, "sapc", "tiny", steps=6, validation_interval=3)
    assert run.symmetries == ("shift:x", "reflect:x,sign:h")
    train(run, tmp_path / "whole", device="cpu")
    folder = RunFolder(tmp_path / "whole")
    content = json.loads(folder.config.read_text())
    assert content["symmetries"] == ["shift:x", "reflect:x,sign:h"]
    assert TrainingConfig.from_dict(content).identity() == run.identity()
    stop_at(run, tmp_path / "part", 4)
    again = RunFolder(tmp_path / "part").run().attach(physics, task.source.fields)
    assert again.attached_task.symmetries == ()
    train(again, tmp_path / "part", device="cpu")
    assert same_bits(tmp_path / "whole", tmp_path / "part")
    without = training_config(task, "sapc", "tiny", steps=6, validation_interval=3, symmetries=False)
    with pytest.raises(SapcError, match=r"holds another run: its symmetries is .*, not None"):
        train(without, tmp_path / "whole", device="cpu")


def test_a_function_is_declared_again(tmp_path):
    grid, values = waves(20)
    task = own(grid, values, Pin.frame(0), [turn])
    run = training_config(task, "sapc", "tiny", steps=4, validation_interval=2)
    assert run.symmetries == (task.find_symmetries()[0].text,)
    stop_at(run, tmp_path / "run", 2)
    saved = RunFolder(tmp_path / "run").run()
    with pytest.raises(SapcError, match=r"function:turn:\w+ of this run is code, which no file holds"):
        train(saved.attach(Pin.frame(0), task.source.fields), tmp_path / "run", device="cpu")
    assert train(run, tmp_path / "run", device="cpu").is_trained


# -- trainings --


def stop_at(run, folder, last):
    def stop(step, steps, shown):
        if step == last:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(run, folder, device="cpu", save_seconds=0, progress=stop)


def images_of_step(training, v0, rows, step):
    return training.augmentation.transform(v0, rows, training._seed_generator("symmetry", step))


def same_bits(a, b):
    a, b = (load_tensors(RunFolder(folder).weights)[0] for folder in (a, b))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("task", ["burgers", variant("navier_stokes", long=True)])
def test_a_stopped_training_goes_on_to_the_same_bits(tmp_path, task):
    run = training_config(task, "sapc", "tiny", steps=6, validation_interval=3, symmetries=True)
    assert run.symmetries == tuple(s.text for s in run.make_task().find_symmetries())
    train(run, tmp_path / "whole", device="cpu")
    stop_at(run, tmp_path / "part", 4)
    train(run, tmp_path / "part", device="cpu")
    assert same_bits(tmp_path / "whole", tmp_path / "part")
    train(replace(run, symmetries=()), tmp_path / "without", device="cpu")
    assert not same_bits(tmp_path / "whole", tmp_path / "without")


def test_what_is_drawn_depends_on_seed_and_step_alone():
    run = training_config("burgers", "sapc", "tiny", symmetries=True)
    training, again = (Training(run, ProcessGroup(torch.device("cpu"))) for _ in range(2))
    rows = torch.arange(4)
    v0 = training.data[:4]
    images = [images_of_step(training, v0, rows, step) for step in (3, 7, 3)]
    assert torch.equal(images[0], images[2])
    assert not torch.equal(images[0], images[1])
    assert torch.equal(images_of_step(again, v0, rows, 7), images[1])
    other = Training(replace(run, seed=1), ProcessGroup(torch.device("cpu")))
    assert not torch.equal(images_of_step(other, v0, rows, 7), images[1])


def test_source_and_times_of_a_step_are_those_without_symmetries(monkeypatch):
    """Paths differ in the solutions alone; and the images are on the manifold of their own values."""
    seen = []

    def loss(self, v0, v1, t, *sensors):
        seen.append((v0, v1, t))
        return original(self, v0, v1, t, *sensors)

    original = Training.loss
    monkeypatch.setattr(Training, "loss", loss)
    run = training_config("burgers", "sapc", "tiny", symmetries=True)
    for symmetries in (run.symmetries, ()):
        Training(replace(run, symmetries=symmetries), ProcessGroup(torch.device("cpu"))).advance()
    (v0, v1, t), (plain, plain_v1, plain_t) = seen
    assert torch.equal(v1, plain_v1)
    assert torch.equal(t, plain_t)
    assert not torch.equal(v0, plain)
    assert torch.equal(v0.abs().sort(1).values, plain.abs().sort(1).values)


def test_shares_of_several_processes_make_up_the_batch():
    run = training_config("burgers", "sapc", "tiny", symmetries=True, batch=6)
    training = Training(run, ProcessGroup(torch.device("cpu")))
    rows = training._rows()

    def part(rank, size):
        training.group = ProcessGroup(torch.device("cpu"), rank, size)
        v0 = images_of_step(training, training.data[rows], rows, 0)
        return training._draw(v0, torch.Generator().manual_seed(0))[0]

    assert torch.equal(torch.cat([part(rank, 3) for rank in range(3)]), part(0, 1))


def test_the_validation_is_of_the_solutions_themselves():
    run = training_config("burgers", "sapc", "tiny", symmetries=True)
    cpu = ProcessGroup(torch.device("cpu"))
    assert Training(run, cpu).validate() == Training(replace(run, symmetries=()), cpu).validate()


def test_the_range_of_the_data_is_that_of_their_images():
    grid, values = waves(20)
    task = own(grid, values.abs(), symmetries=["sign"], physics=lambda grid: Pin.frame(0))
    training = Training(training_config(task, "sapc", "tiny"), ProcessGroup(torch.device("cpu")))
    low, high = training.augmentation.data_range(training.data)
    mean, deviation = (x[0] for x in (task.normalizer.mean, task.normalizer.deviation))
    assert high == float(training.data.max())
    assert low < -2 * mean / deviation
    plain = Training(
        training_config(task, "sapc", "tiny", symmetries=False), ProcessGroup(torch.device("cpu"))
    )
    assert plain.augmentation.data_range(plain.data) == [float(plain.data.min()), float(plain.data.max())]


@pytest.mark.slow
def test_a_parameter_that_a_symmetry_needs_is_that_of_the_solution():
    """After a shift that moves the phase, every image is forced as phases of the range force it."""
    few = {"train": 3, "validation": 1, "batch": 3}
    run = training_config("navier_stokes", "sapc", "tiny", symmetries=("shift:x(phase)",), **few)
    training = Training(run, ProcessGroup(torch.device("cpu")))
    phase, data = training.task.draw("train", 3, 0)["phase"], training.data
    assert len(phase.unique()) == 2
    shifts = set()
    for step in range(24):
        rows = torch.tensor([2, 0, 1]).roll(step)
        image = images_of_step(training, data[rows], rows, step)
        for i, row in enumerate(rows.tolist()):
            (k,) = (k for k in range(12) if torch.equal(image[i], data[row].roll(-k, 0)))
            moved = (float(phase[row]) + 2 * math.pi * k / 12 + 1) % (2 * math.pi) - 1
            assert 0 <= moved <= math.pi / 2
            shifts.add((row, k))
    # Three of twelve places lie in a quarter of the period.
    assert len(shifts) == 9


def test_a_parameter_is_not_known_of_other_solutions():
    run = training_config("navier_stokes", "sapc", "tiny", symmetries=("shift:x(phase)",))
    fields = torch.zeros(4, *run.grid)
    with pytest.raises(SapcError, match="depends on a parameter is for a run's own solutions"):
        Training(run, ProcessGroup(torch.device("cpu")), data=(fields, fields))
    (symmetry,) = run.make_task().find_symmetries(run.symmetries)
    with pytest.raises(SapcError, match=r"'shift:x\(phase\)' needs the parameter 'phase' of its fields"):
        symmetry.transform(fields, torch.Generator())


# -- settings --


def test_published_presets_use_none():
    for name in sapc.task_names():
        for preset in ("published", "full", "compact", "small", "tiny"):
            run = training_config(name, "sapc", preset)
            assert run.symmetries == ()
            assert "symmetries" not in run.to_dict()
    assert training_config("stokes_ic", "sapc", "tiny", symmetries=True).symmetries == ()


def test_the_recipe_that_goes_beyond_the_paper_uses_all():
    for name in sapc.task_names():
        best, full = training_config(name, preset="best"), training_config(name, preset="full")
        assert (best.method, full.method) == ("cond_sapc", "sapc")
        assert best.symmetries == tuple(symmetry.text for symmetry in best.make_task().find_symmetries())
        changes = {"preset": "best", "method": "cond_sapc", "symmetries": best.symmetries}
        assert replace(full, **changes) == best
    assert training_config("heat", "ffm", "best").method == "ffm"
    assert training_config("heat", preset="best", symmetries=False).symmetries == ()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("shift:x", r"symmetries is true, false, or texts as \('shift:x',\), got 'shift:x'"),
        ((5,), "symmetries is true, false, or texts"),
        (("shift:y",), "is along 'y'; the grid has x, t"),
        (("function:turn:abc",), "is code, which no file holds"),
    ],
)
def test_settings_that_cannot_be(choice, message):
    with pytest.raises(SapcError, match=message):
        training_config("burgers", "sapc", "tiny", symmetries=choice)


def test_other_texts_than_the_task_declares_may_be_chosen():
    run = training_config("heat", "sapc", "tiny", symmetries=["shift:x=1/2,sign"])
    assert run.symmetries == ("shift:x=1/2,sign",)
    with pytest.raises(SapcError, match="symmetries must be a list in which every entry is a word"):
        replace(run, symmetries=(True,))
