"""Pins that contradict each other, and values that a dtype cannot hold, are errors; rounding is not."""

import math

import pytest
import torch

import sapc
from sapc import Axis, Balance, Grid, Pin, SapcError
from sapc.data.normalizer import Normalizer
from sapc.grid import FrameIntegral
from sapc.tasks.rescale import rescale

F64 = torch.float64


def noise(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        (
            Pin.at(x=0, value=7.0) & Pin.at(x=0, value=8.0),
            r"'x\[0\]' and 'x\[0\]'.* at 4 points, by up to 1;",
        ),
        (Pin.frame(0) & Pin.at(x=0, value=7.0), r"'t\[0\]' and 'x\[0\]'.* at 1 point, by up to"),
        (Pin.at(x=0, value=7.0) & Pin.frame(0), r"'x\[0\]' and 't\[0\]'.* at 1 point, by up to"),
        (
            Pin.at(x=0, value=torch.tensor([1.0, 2, 3, 4])) & Pin.at(t=3, value=3.0),
            r"at 1 point, by up to 1;",
        ),
    ],
)
def test_two_values_at_one_point_are_refused(pins, message):
    with pytest.raises(SapcError, match=message) as caught:
        pins.on(noise((3, 8, 4)))
    assert "\n" not in str(caught.value)


def test_a_pin_added_to_a_manifold_is_held_against_the_others():
    H = Pin.frame(0).on(noise((3, 8, 4)))
    with pytest.raises(SapcError, match="prescribe different values"):
        H & Pin.at(x=0, value=7.0)
    pinned_twice = H & Pin.at(x=0, t=slice(1, None), value=7.0)
    assert (pinned_twice.project(noise((3, 8, 4), 1))[:, 0, 1:] == 7).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_rounding_is_no_contradiction_and_the_value_counts(dtype):
    """0.1 in another dtype; and the zero of a wall, which a solver leaves at 1e-17."""
    u = noise((2, 8, 4)).to(dtype)
    u[:, 0], u[:, -1] = 0.1, math.cos(math.pi / 2)
    pins = (
        Pin.frame(0) & Pin.at(x=0, value=0.1) & Pin.at(x=0, value=torch.tensor(0.1)) & Pin.at(x=-1, value=0.0)
    )
    p = pins.on(u).project(u)
    assert (p[:, 0] == torch.tensor(0.1).to(dtype)).all()
    assert (p[:, -1] == 0).all()


def test_pins_without_a_value_agree_with_each_other():
    u = noise((2, 8, 4))
    assert torch.equal((Pin.frame(0) & Pin.at(x=0)).on(u).project(u), u)


def test_channels_of_other_units_hide_no_contradiction():
    grid = Grid((Axis("x", 6), Axis("t", 4)), channels=("p", "v"))
    u = torch.stack((1e5 + noise((2, 6, 4)), noise((2, 6, 4), 1)), 1)
    assert not bool(Pin.at(grid, x=0, channel="v", value=7.0).on(u).pinned[0].any())
    with pytest.raises(SapcError, match="at 1 point"):
        (Pin.frame(0) & Pin.at(grid, x=0, channel="v", value=7.0)).on(u)


def test_other_conditions_are_the_callers_to_know():
    """Nothing is read back in a training loop; the value counts there."""
    H = (Pin.frame(0) & Pin.at(x=0, value=7.0)).on(torch.full((1, 8, 4), 7.0))
    assert (H.rebind(noise((2, 8, 4))).project(noise((2, 8, 4)))[:, 0] == 7).all()


def test_the_units_of_a_network_make_no_contradiction():
    """Pressures of 101325 +- 10 in float32: scaled, their rounding is a thousandth of what is left."""
    grid = Grid((Axis("x", 6), Axis("t", 4)))
    u = (101325 + 10 * noise((3, 6, 4))).float()
    u[:, 0] = 101333.3
    pin_stack = Pin.frame(0) & Pin.at(x=0, value=101333.3)
    assert len(pin_stack.on(u)) == 3
    scale = Normalizer.fit(u, grid)
    H = sapc.constraints.Manifold(rescale(pin_stack, scale).parts, scale.normalize(u))
    assert bool(H.solve(noise((3, 6, 4)))[1].converged.all())


def test_a_condition_that_contradicts_a_pin_is_refused():
    """What a model samples with, `extra_constraints` too; a value that is not given contradicts nothing."""
    task = sapc.get_task("heat", grid=(8, 6))
    u = noise((1, 8, 6))
    with pytest.raises(SapcError, match=r"prescribe different values at 1 point"):
        sapc.models.sampling.pinned_values(u, task, Pin.at(x=0, value=7.0))
    u[:, 0, 0] = torch.nan
    assert (sapc.models.sampling.pinned_values(u, task, Pin.at(x=0, value=7.0))[:, 0] == 7).all()


def test_values_that_a_dtype_cannot_hold_are_refused():
    u = noise((2, 8, 4))
    with pytest.raises(SapcError, match=r"prescribes 1e\+06, more than torch.float16 can hold"):
        Pin.at(x=0, value=1e6).on(u.half())
    H = Pin.at(x=0, value=1e6).on(u)
    for call in (H.project, H.solve):
        with pytest.raises(SapcError, match=r"values up to 1e\+06, and torch.float16 holds up to 6.55e\+04"):
            call(u.half())
    assert bool(H.solve(u.float())[1].converged.all())
    mass = (Pin.frame(0, value=60000.0) & Balance(FrameIntegral(torch.tensor([1.0, 1.0, 1.0]).double()))).on(
        torch.full((1, 3, 2), 6e4, dtype=F64)
    )
    # The others have to make up for it.
    off = torch.tensor([[[0, 30000.0], [0, 0], [0, 0]]])
    with pytest.raises(SapcError, match=r"torch.float16 holds up to"):
        mass.project(off.half() + torch.tensor([[[0, 0], [0, 60000.0], [0, 60000.0]]]).half())
