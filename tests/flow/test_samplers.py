"""Times and steppers. With data N(0, sigma^2) the exact velocity is known, so samplers are verified without training."""

import math
from itertools import pairwise

import pytest
import torch

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st

import sapc
from sapc import flow
from sapc.errors import SapcError
from sapc.flow.time_grids import log_ratio, time_at
from sapc.models.times import EXTENT, BendRecorder, density_curve

MULTISTEP = flow.STEPPERS["multistep"]


@given(st.floats(-30, 30))
def test_lambda_and_time_are_inverse(x):
    assert log_ratio(time_at(x)) == pytest.approx(x, abs=1e-2 if x < -20 else 1e-6)
    assert time_at(x) + time_at(-x) == pytest.approx(1, abs=1e-15)


def test_lambda_at_both_ends():
    assert (log_ratio(1.0), log_ratio(0.5), log_ratio(0.0)) == (-math.inf, 0.0, math.inf)
    assert (time_at(-math.inf), time_at(math.inf)) == (1.0, 0.0)


@given(st.integers(1, 200), st.floats(1e-2, 1e2))
def test_shifted_times_fall_and_are_shifted_in_lambda(steps, a):
    times, uniform = flow.Shift(a)(steps), flow.UNIFORM(steps)
    assert len(times) == steps + 1
    assert (times[0], times[-1]) == (1.0, 0.0)
    assert all(t > s for t, s in pairwise(times))
    for t, s in zip(times[1:-1], uniform[1:-1], strict=True):
        assert log_ratio(t) == pytest.approx(log_ratio(s) - math.log(a), abs=1e-9)


def test_uniform_times_are_those_of_the_loop_to_the_bit():
    assert list(pairwise(flow.UNIFORM(7))) == list(flow.time_pairs(7))
    assert flow.UNIFORM(7) == tuple(i / 7 for i in range(7, -1, -1))


def test_a_curve_gives_its_own_times_and_interpolates_between_them():
    curve = flow.Curve((1.0, 0.9, 0.5, 0.2, 0.0))
    assert curve(4) == (1.0, pytest.approx(0.9), pytest.approx(0.5), pytest.approx(0.2), 0.0)
    assert curve(2) == (1.0, pytest.approx(0.5), 0.0)
    times = curve(1000)
    assert all(t > s for t, s in pairwise(times))
    assert log_ratio(times[375]) == pytest.approx((log_ratio(0.9) + log_ratio(0.5)) / 2)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ((1.0,), "from 1 to 0"),
        ((0.9, 0.0), "from 1 to 0"),
        ((1.0, 0.5, 0.5, 0.0), "must fall"),
        ((1.0, float("nan"), 0.0), "finite"),
    ],
)
def test_curves_that_are_none(times, message):
    with pytest.raises(SapcError, match=message):
        flow.Curve(times)


@pytest.mark.parametrize("a", [0.0, -1.0, float("inf")])
def test_shifts_that_are_none(a):
    with pytest.raises(SapcError, match="shift of times"):
        flow.Shift(a)


@pytest.mark.parametrize("steps", [0, -1, True])
@pytest.mark.parametrize("times", [flow.UNIFORM, flow.Curve((1.0, 0.5, 0.0))])
def test_bad_numbers_of_steps(times, steps):
    with pytest.raises(SapcError, match="at least 1"):
        times(steps)


@pytest.mark.parametrize("stepper", flow.STEPPERS.values(), ids=flow.STEPPERS)
@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_a_constant_estimate_is_reached(stepper, steps):
    data = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(1, 6)
    calls = []

    def v(vt, t):
        calls.append(float(t[0]))
        return (vt - data) / t[:, None]

    sampler = flow.Sampler(stepper, flow.Shift(3.0))
    end = sampler.run(v, torch.randn(1, 6, dtype=torch.float64), steps)
    assert (end - data).abs().max() < 1e-14
    assert len(calls) == sampler.evaluations(steps)


# -- Gaussian data --


def exact_velocity(sigma):
    def v(vt, t):
        t = flow.expand_like(t, vt)
        estimate = (1 - t) * sigma**2 / ((1 - t) ** 2 * sigma**2 + t**2) * vt
        return (vt - estimate) / t

    return v


def deviation(sigma, sampler, steps):
    """Return the deviation of the samples over that of the data: the sampler multiplies a draw by it."""
    return float(sampler.run(exact_velocity(sigma), torch.ones(1, 1, dtype=torch.float64), steps)) / sigma


def bend_curves(sigma):
    recorder = BendRecorder()
    v1 = torch.randn(4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sampler = flow.Sampler(MULTISTEP, lambda steps: recorder.times)
    fields = sampler.run(recorder.wrap(exact_velocity(sigma)), v1, len(recorder.times) - 1)
    recorder.finish(fields, sapc.Pin.frame(0).on(fields))
    return recorder.curves()


@pytest.mark.parametrize("sigma", [1, 0.1, 0.01])
def test_measured_times_keep_the_variance_of_narrow_data(sigma):
    for curve in bend_curves(sigma).values():
        assert deviation(sigma, flow.Sampler(MULTISTEP, curve), 20) ** 2 == pytest.approx(1, abs=0.05)
        assert deviation(sigma, flow.Sampler(MULTISTEP, curve), 10) ** 2 == pytest.approx(1, abs=0.12)


def test_what_other_times_make_of_narrow_data():
    assert deviation(0.1, flow.Sampler(MULTISTEP, flow.Shift(16.0)), 20) ** 2 < 0.02
    assert deviation(0.1, flow.EULER, 100) ** 2 == pytest.approx(0.91, abs=0.01)


@pytest.mark.parametrize("sigma", [1, 0.1])
def test_second_order_on_measured_times(sigma):
    curve = bend_curves(sigma)["bend 0.33 1"]
    errors = [abs(deviation(sigma, flow.Sampler(MULTISTEP, curve), n) - 1) for n in (15, 30, 60)]
    assert all(coarse / fine > 3 for coarse, fine in pairwise(errors))


def test_times_are_dense_where_the_estimate_bends():
    """Of N(0, sigma^2) it bends where noise and data are of a size: at lambda = -log(sigma)."""
    for sigma in (1, 0.1, 0.01):
        x = [log_ratio(t) for t in bend_curves(sigma)["bend 0.75 0"](20)[1:-1]]
        _, centre = min((end - start, (start + end) / 2) for start, end in pairwise(x))
        assert centre == pytest.approx(-math.log(sigma), abs=1.0)


def test_times_of_a_density_are_equal_shares():
    lattice = torch.linspace(-EXTENT, EXTENT, 81, dtype=torch.float64).numpy()
    times = density_curve(lattice, 0 * lattice + 2.0)(8)
    assert [log_ratio(t) for t in times[1:-1]] == pytest.approx(
        [2 * EXTENT * (i / 8 - 0.5) for i in range(1, 8)]
    )
    # Where nothing bends at all, too.
    assert density_curve(lattice, 0 * lattice)(8) == pytest.approx(times)
