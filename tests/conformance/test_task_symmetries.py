"""What a declared symmetry promises: images of solutions are solutions, satisfy the laws, and are as likely."""

from __future__ import annotations

from math import pi

import pytest
import torch

from sapc.grid import Axis, Grid
from sapc.tasks import get_task, task_names
from sapc.tasks.burgers import MODES
from sapc.tasks.initial_profiles import rescale_profile, sines
from sapc.tasks.invariance import compare_moments
from sapc.tasks.navier_stokes import gaussian_field
from sapc.tasks.reaction_diffusion import initial_profiles
from sapc.tasks.sources import Streams
from sapc.tasks.symmetries import make_symmetry
from variants import variant

DECLARED = {
    "heat": ("reflect:x",),
    "reaction_diffusion": ("reflect:x",),
    "stokes_ic": (),
    "stokes_bc": (),
    "burgers": ("shift:x", "reflect:x,sign"),
    "navier_stokes": (
        "shift:x(phase)",
        "shift:x,shift:-y",
        "swap:x:y,sign,shift:x=1/2",
        "reflect:x,reflect:y,shift:x=1/4",
    ),
}
CASES = [(name, text) for name, texts in DECLARED.items() for text in texts]


def small(name):
    """The task on a grid that is solved in a moment."""
    if name == "navier_stokes":
        axes = (Axis("x", 16, kind="periodic"), Axis("y", 16, kind="periodic"), Axis("t", 5, 0.0, 4.0))
        return get_task(name, grid=Grid(axes))
    if name == "burgers":
        return get_task(name, grid=Grid((Axis("x", 20, kind="periodic"), Axis("t", 5, 0.0, 0.5))))
    return get_task(name, grid=(20, 9))


def find(name, text):
    task = small(name)
    (symmetry,) = task.find_symmetries([text])
    return task, symmetry


def move(name, text, p, k, image):
    """The parameters of the images: the derivations of the modules' docstrings, once more."""
    odd = k % 2 == 1
    moved = dict(p) if name == "heat" else {**p, "initial": image[..., 0]}
    if name == "heat":
        moved["phase"] = torch.where(odd, pi - p["phase"], p["phase"])
    if name == "reaction_diffusion":
        moved["flux_left"] = torch.where(odd, -p["flux_right"], p["flux_left"])
        moved["flux_right"] = torch.where(odd, -p["flux_left"], p["flux_right"])
    if text == "shift:x(phase)":
        moved["phase"] = p["phase"] + torch.where(k < 8, k, k - 16).double() * (2 * pi / 16)
    if text == "reflect:x,reflect:y,shift:x=1/4":
        moved["phase"] = torch.where(odd, pi / 2 - p["phase"], p["phase"])
    return moved


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch):
    monkeypatch.setenv("SAPC_CACHE", "off")


def test_every_task_declares_what_it_has():
    assert {
        name: tuple(s.text for s in get_task(name).find_symmetries()) for name in task_names()
    } == DECLARED


@pytest.mark.parametrize(("name", "text"), CASES)
def test_elements_form_a_group_to_the_last_bit(name, text):
    task, symmetry = find(name, text)
    g = torch.Generator().manual_seed(0)
    u = torch.randn(12, *task.grid.shape, generator=g)
    k, j = (torch.randint(symmetry.order, (12,), generator=g) for _ in range(2))
    assert torch.equal(symmetry.apply(u, torch.zeros_like(k)), u)
    assert torch.equal(symmetry.apply(symmetry.apply(u, k), j), symmetry.apply(u, (k + j) % symmetry.order))
    assert torch.equal(symmetry.apply(symmetry.apply(u, k), -k % symmetry.order), u)
    repeated = u
    for i in range(symmetry.order):
        assert torch.equal(symmetry.apply(u, torch.full_like(k, i)), repeated)
        repeated = symmetry.generator(repeated)
        assert i == symmetry.order - 1 or not torch.equal(repeated, u)
    assert torch.equal(repeated, u)


@pytest.mark.parametrize(("name", "text"), CASES)
def test_the_image_of_a_solution_is_a_solution(name, text):
    task, symmetry = find(name, text)
    p = task.draw("train", 6, seed=1)
    u = task.solve(p)
    k = symmetry.draw(6, torch.Generator().manual_seed(3), p)
    assert len(k.unique()) > 1
    image = symmetry.apply(u, k)
    again = task.solve(move(name, text, p, k, image))
    torch.testing.assert_close(image, again, rtol=0, atol=1e-13)
    assert (image - u).abs().max() > 1e-2


@pytest.mark.parametrize(("name", "text"), CASES)
def test_the_projection_commutes_with_it(name, text):
    """Laws and pins of the image are those of the field: the nearest point to an image is the image."""
    task, symmetry = find(name, text)
    p = task.draw("train", 4, seed=1)
    u, g = task.solve(p), torch.Generator().manual_seed(3)
    k = symmetry.draw(4, g, p)
    noise = torch.randn(u.shape, generator=g, dtype=torch.float64)
    H, H_image = task.manifold(u), task.manifold(symmetry.apply(u, k))
    v = u + 0.01 * noise
    torch.testing.assert_close(
        H_image.balance(symmetry.apply(v, k)).abs(), H.balance(v).abs(), rtol=0, atol=1e-12
    )
    torch.testing.assert_close(
        H_image.project(symmetry.apply(v, k)), symmetry.apply(H.project(v), k), rtol=0, atol=1e-9
    )
    assert torch.equal(H_image.pinned, symmetry.generator(H.pinned[None].double())[0].abs() > 0)


# -- what is random is as likely --


def test_reaction_diffusion_draws_the_mirror_image_of_a_profile_as_often():
    """A map of the 13 uniform numbers of a profile that keeps their measure gives its mirror image."""
    r = Streams("reaction_diffusion", "train", 0).uniforms("initial", 400, 13)
    moved = r.clone()
    moved[:, 5:8] = (0.5 - r[:, 5:8]) % 1
    moved[:, 11], moved[:, 12] = 1 - r[:, 12], 1 - r[:, 11]
    x = get_task("reaction_diffusion").grid["x"].points
    torch.testing.assert_close(initial_profiles(moved)(x), initial_profiles(r)(x).flip(1), rtol=0, atol=1e-10)
    assert (r[:, 10] < 0.1).any()
    assert (r[:, 8] < 0.1).any()


@pytest.mark.parametrize("text", DECLARED["burgers"])
def test_burgers_draws_the_image_of_a_profile_as_often(text):
    """Phases move by 2 pi k s, or change sign: uniform ones stay uniform. Extremes are right to about 1e-6."""
    task, symmetry = find("burgers", text)
    r = Streams("burgers", "train", 0).uniforms("initial", 200, 2 * MODES)
    modes = torch.arange(1.0, MODES + 1, dtype=torch.float64).expand(200, MODES)
    j = 7 if text == "shift:x" else 1
    p = 2 * pi * r[:, MODES:]
    moved = p - 2 * pi * modes * j / 20 if text == "shift:x" else -p
    x, amplitudes = task.grid["x"].points, r[:, :MODES]
    profile, image = (rescale_profile(sines(modes, amplitudes, q), -1.0, 1.0)(x) for q in (p, moved))
    fields = profile[..., None].expand(-1, -1, 5).contiguous()
    expected = symmetry.apply(fields, torch.full((200,), j))[..., 0]
    torch.testing.assert_close(image, expected, rtol=0, atol=1e-5 if text == "shift:x" else 1e-12)


def test_burgers_on_another_range_has_no_change_of_sign():
    task = get_task("burgers", initial_range=(0.0, 1.0))
    assert task.symmetries == ("shift:x",)
    fields = task.dataset("train", 64).fields
    assert not compare_moments(make_symmetry("reflect:x,sign", task.grid), fields, task.grid).is_passed
    assert compare_moments(make_symmetry("shift:x", task.grid), fields, task.grid).is_passed


@pytest.mark.parametrize("text", DECLARED["navier_stokes"][1:])
def test_navier_stokes_draws_the_image_of_a_vorticity_as_often(text):
    """Its covariance is a function of |k| alone; here is a test of moments of it."""
    task, symmetry = find("navier_stokes", text)
    w0 = gaussian_field(Streams("navier_stokes", "train", 5), 256, task.grid.space)
    grid = Grid((*task.grid.space, Axis("t", 3)))
    symmetry = make_symmetry(text, grid)
    assert compare_moments(symmetry, w0[..., None].expand(-1, -1, -1, 3), grid).is_passed
    forced = w0 + 0.1 * torch.sin(2 * pi * task.grid["x"].points)[:, None]
    assert not compare_moments(symmetry, forced[..., None].expand(-1, -1, -1, 3), grid).is_passed


@pytest.mark.parametrize("n", [16, 20, 64])
def test_a_ranged_shift_leaves_its_parameter_uniform(n):
    task = get_task("navier_stokes", grid=(n, n, 3))
    symmetry = task.find_symmetries()[0]
    phase = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000 * (pi / 2)
    k = symmetry.draw(20_000, torch.Generator().manual_seed(0), {"phase": phase})
    moved = (phase + k.double() * (2 * pi / n) + pi) % (2 * pi) - pi
    assert moved.min() > -1e-12
    assert moved.max() < pi / 2 + 1e-12
    # The distance of Kolmogorov and Smirnov between 20,000 uniform numbers and their law is 0.0138 in one of 1,000.
    shares = moved.sort().values / (pi / 2) - (torch.arange(20_000) + 0.5) / 20_000
    assert shares.abs().max() < 0.0138
    assert len(k.unique()) == 2 * -(-n // 4) - 1


@pytest.mark.parametrize("name", ["stokes_ic", "stokes_bc"])
def test_stokes_has_none(name):
    """Solutions decay with x, and all of them begin with u(0, 0) = 2."""
    task = get_task(name)
    fields = task.dataset("train", 200).fields
    assert torch.equal(fields[:, 0, 0], torch.full((200,), 2.0))
    for text in ("reflect:x", "reflect:t", "sign", "reflect:x,sign", "reflect:x,reflect:t"):
        assert not compare_moments(make_symmetry(text, task.grid), fields, task.grid).is_passed


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("heat", "shift:x"),
        ("heat", "sign"),
        variant("burgers", "reflect:x", long=False),
        ("burgers", "sign"),
    ],
)
def test_what_is_not_declared_shows_in_the_moments(name, text):
    task = small(name)
    fields = task.dataset("train", 256).fields
    assert not compare_moments(make_symmetry(text, task.grid), fields, task.grid).is_passed


@pytest.mark.parametrize("shape", [(10, 10, 3), (12, 18, 3), (9, 9, 3), (15, 15, 3)])
def test_navier_stokes_declares_what_its_points_allow(shape):
    task = get_task("navier_stokes", grid=shape)
    texts = [s.text for s in task.find_symmetries()]
    nx, ny, _ = shape
    assert ("swap:x:y,sign,shift:x=1/2" in texts) == (nx == ny and nx % 2 == 0)
    assert ("reflect:x,reflect:y,shift:x=1/4" in texts) == (nx % 4 == 0)
    assert texts[:2] == ["shift:x(phase)", "shift:x,shift:-y"]
