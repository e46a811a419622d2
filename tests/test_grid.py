"""Grids: points, quadrature and differences by their conventions and orders."""

import math

import pytest
import torch

import sapc
from sapc import Axis, Grid

pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st

F64 = torch.float64
KINDS = ("periodic", "closed", "cells")


def test_points_follow_their_convention():
    assert torch.equal(
        Axis("x", 4, 0.0, 2.0, "periodic").points, torch.tensor([0.0, 0.5, 1.0, 1.5], dtype=F64)
    )
    assert torch.equal(
        Axis("x", 5, 0.0, 2.0, "closed").points, torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0], dtype=F64)
    )
    assert torch.equal(
        Axis("x", 4, 0.0, 2.0, "cells").points, torch.tensor([0.25, 0.75, 1.25, 1.75], dtype=F64)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_weights_add_up_to_the_length(kind):
    assert math.isclose(float(Axis("x", 17, -1.0, 2.5, kind).weights.sum()), 3.5, rel_tol=1e-14)


@pytest.mark.parametrize(("kind", "order"), [("closed", 2), ("cells", 2)])
def test_quadrature_converges_at_second_order(kind, order):
    def error(n):
        axis = Axis("x", n, 0.0, 1.0, kind)
        return abs(float((axis.weights * axis.points.exp()).sum()) - (math.e - 1))

    assert math.log2(error(40) / error(80 if kind == "cells" else 79)) == pytest.approx(order, abs=0.05)


def test_periodic_quadrature_is_spectral():
    axis = Axis("x", 24, 0.0, 2 * math.pi, "periodic")
    assert float((axis.weights * axis.points.cos().exp()).sum()) == pytest.approx(
        2 * math.pi * float(torch.special.i0(torch.tensor(1.0, dtype=F64))), rel=1e-13
    )


@pytest.mark.parametrize("kind", KINDS)
def test_differences_converge_at_second_order_inside(kind):
    def error(n):
        axis = Axis("x", n, 0.0, 2 * math.pi, kind)
        slope = axis.derivative(axis.points.sin()[None], 1)[0]
        inside = slice(None) if kind == "periodic" else slice(1, -1)
        return float((slope - axis.points.cos())[inside].abs().max())

    assert math.log2(error(50) / error(100)) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("dim", [1, 2])
def test_differences_equal_torch_gradient(dim):
    axis = Axis("x", 9, 0.0, 3.0)
    u = torch.randn(2, 9, 9, dtype=F64, generator=torch.Generator().manual_seed(0))
    (want,) = torch.gradient(u, spacing=axis.spacing, dim=dim, edge_order=1)
    assert torch.allclose(axis.derivative(u, dim), want, atol=1e-13)
    assert torch.allclose(axis.derivative(u, dim - 3), want, atol=1e-13)


@settings(max_examples=20, deadline=None)
@given(n=st.integers(3, 12), dim=st.integers(1, 2), seed=st.integers(0, 99))
def test_the_transposed_difference_is_the_transpose(n, dim, seed):
    axis = Axis("x", n)
    u, w = torch.randn(2, 2, n, n, dtype=F64, generator=torch.Generator().manual_seed(seed))
    u.requires_grad_()
    out = axis.derivative(u, dim)
    (slope,) = torch.autograd.grad((out * w).sum(), u)
    assert torch.allclose((slope * u).sum(), (out * w).sum(), atol=1e-10)


def test_differences_differentiate_twice_and_under_vmap():
    axis = Axis("x", 5)
    u = torch.randn(2, 5, 3, dtype=F64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: axis.derivative(v, 1) ** 2, u)
    assert torch.autograd.gradgradcheck(lambda v: axis.derivative(v, 1) ** 3, u)
    one_by_one = torch.stack([axis.derivative(v[None], 1)[0] for v in u])
    assert torch.allclose(torch.vmap(lambda v: axis.derivative(v, 0))(u), one_by_one)
    batched = torch.func.jacrev(lambda v: axis.derivative(v, 1).sum((0, 2)))(u.detach())
    assert torch.allclose(
        batched, torch.autograd.functional.jacobian(lambda v: axis.derivative(v, 1).sum((0, 2)), u.detach())
    )


def test_grid_integral_and_total():
    grid = Grid((Axis("x", 5, 0.0, 2.0), Axis("y", 4, 0.0, 1.0, "periodic"), Axis("t", 3)))
    ones = torch.ones(2, *grid.shape)
    assert torch.allclose(grid.integral()(ones), torch.full((2, 3), 2.0))
    assert torch.allclose(grid.total()(ones), torch.full((2, 3), 20.0))
    assert grid.integral()(ones).dtype == torch.float32


def test_grid_survives_its_description_and_resizes():
    grid = sapc.get_task("reaction_diffusion").grid
    assert Grid.from_dict(grid.to_dict()) == grid
    assert grid.resize(32, 20).shape == (32, 20)
    assert grid.resize(32, 20)["x"].stop == grid["x"].stop


BAD = [
    (lambda: Axis("x", 2), "at least 3"),
    (lambda: Axis("x", 5, 1.0, 1.0), "the end must be the larger one"),
    (lambda: Axis("x", 5, 0.0, 1.0, "open"), "unknown kind 'open'"),
    (lambda: Grid((Axis("t", 5),)), "at least one spatial axis"),
    (lambda: Grid((Axis("t", 5), Axis("t", 5))), "names must differ"),
    (lambda: sapc.get_task("heat").grid["y"], "no axis 'y'; it has x, t"),
    (lambda: sapc.get_task("heat").grid.resize(5), "2 axes"),
    (
        lambda: sapc.get_task("heat").grid.derivative(torch.zeros(1, 5, 5), "x"),
        r"this grid needs \(batch, 100, 100\)",
    ),
    (
        lambda: sapc.get_task("heat").grid.integral()(torch.zeros(1, 5, 5)),
        r"expected \(batch, \*space, time\)",
    ),
    (lambda: Grid.from_dict({"axis": []}), "not a grid description"),
    (lambda: Grid.from_dict({"axes": 5}), "not a grid description"),
    (lambda: Axis("x", 5, 0.0, math.inf), "finite numbers"),
    (lambda: Axis("x", 5, 0, 10**400), "finite numbers"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_grids_are_refused_in_one_sentence(call, message):
    with pytest.raises(sapc.SapcError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["x", "y", "z", "Y", "x2", "r", "theta", "lat", "lon", "longitude"])
def test_an_axis_of_space_is_not_taken_for_time_without_a_word(name):
    axes = (Axis("s", 5), Axis(name, 4))
    with pytest.raises(sapc.SapcError, match=f"called {name!r}: write steady=True") as caught:
        Grid(axes, ("u",))
    assert "\n" not in str(caught.value)
    assert Grid(axes, ("u",), steady=True).space == axes
    moving = Grid(axes, ("u",), steady=False)
    assert moving.time == axes[1]
    assert Grid.from_dict(moving.to_dict()) == moving
    assert moving.resize(9, 8).steady is False


@pytest.mark.parametrize("name", ["t", "time", "Time", "day", "tau"])
def test_the_last_axis_is_time_otherwise(name):
    grid = Grid((Axis("x", 5), Axis("y", 4), Axis(name, 3)))
    assert (grid.steady, grid.time.name) == (False, name)


def test_descriptions_of_version_0_1_0_are_read_as_they_were_meant():
    """They do not say steady where it is False, whatever the axes are called."""
    axes = [{"name": n, "n": 4, "start": 0.0, "stop": 1.0, "kind": "closed"} for n in ("x", "y")]
    assert Grid.from_dict({"axes": axes}).time.name == "y"
    assert Grid.from_dict({"axes": axes, "steady": True}).steady


def test_attributes_by_their_old_names():
    grid = Grid((Axis("x", 5), Axis("t", 4)), ("h", "u"))
    u = torch.rand(2, *grid.shape)
    with pytest.warns(DeprecationWarning, match=r"is now Grid\.points_per_axis"):
        assert grid.lattice == (5, 4)
    with pytest.warns(DeprecationWarning, match=r"is now Grid\.n_channels"):
        assert grid.width == 2
    with pytest.warns(DeprecationWarning, match=r"Grid\.take is now channel_values"):
        assert torch.equal(grid.take(u, "u"), u[:, 1])
