"""The time convention and the samplers, without training: with Gaussian data the exact velocity is known."""

import math
from itertools import pairwise

import pytest
import torch

import sapc
from sapc import flow, get_method
from sapc.errors import SapcError


def test_the_two_ends_and_the_way():
    v0, v1 = torch.zeros(3, 2, 2), torch.ones(3, 2, 2)
    t = torch.tensor([0.0, 0.25, 1.0])
    assert torch.equal(flow.interpolate(v0, v1, t)[:, 0, 0], t)
    vt = flow.interpolate(v0, v1, t)
    assert torch.equal(flow.predict_data(vt[1:2], 0.25, (v1 - v0)[1:2]), v0[1:2])


def test_a_step_with_the_plain_estimate_is_eulers():
    g = torch.Generator().manual_seed(0)
    vt, v = (torch.randn(2, 5, 4, generator=g, dtype=torch.float64) for _ in range(2))
    step = flow.step_toward(vt, flow.predict_data(vt, 0.7, v), 0.7, 0.6)
    assert (step - (vt - 0.1 * v)).abs().max() < 1e-14
    v0 = flow.predict_data(vt, 0.1, v)
    assert torch.equal(flow.step_toward(vt, v0, 0.1, 0.0), v0)


def test_times_run_from_one_to_zero():
    pairs = list(flow.time_pairs(4))
    assert pairs == [(1.0, 0.75), (0.75, 0.5), (0.5, 0.25), (0.25, 0.0)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("at", "evaluate_velocity"),
        ("endpoint", "predict_data"),
        ("per_field", "expand_like"),
        ("times", "time_pairs"),
        ("toward", "step_toward"),
        ("within", "clip_endpoint"),
    ],
)
def test_functions_by_their_old_names(old, new):
    with pytest.warns(DeprecationWarning, match=rf"sapc\.flow\.{new}"):
        assert getattr(flow, old) is getattr(flow, new)


def test_the_source_derives_seeds_by_the_old_name():
    with pytest.warns(DeprecationWarning, match=r"sapc\.flow\.source\.derive_seed"):
        assert sapc.source.seed_of("heat", 1) == sapc.source.derive_seed("heat", 1)


def test_the_loop_takes_every_step_once():
    pairs = []
    end = flow.integrate(lambda vt, t, s: (pairs.append((t, s)), vt - (t - s))[1], torch.ones(1, 2, 2), 8)
    assert pairs == list(flow.time_pairs(8))
    assert torch.equal(end, torch.zeros(1, 2, 2))


@pytest.mark.parametrize("steps", [0, -1, True])
def test_bad_steps(steps):
    with pytest.raises(SapcError, match="at least 1"):
        flow.time_pairs(steps)


class Gaussian:
    """Data N(m, C) on the affine manifold of heat, source N(p, Q) or N(0, I), and the exact velocity between
    them.

    v_t is Gaussian, so v(x, t) = E[v1 - v0 | v_t = x] = (p - m) + (t S - (1-t) C) (t^2 S + (1-t)^2 C)^+ (x -
    t p - (1-t) m), S the source's covariance.
    """

    def __init__(self, is_anchored):
        task = sapc.get_task("heat", grid=(6, 5))
        g = torch.Generator().manual_seed(0)
        self.shape = task.grid.shape
        condition = task.dataset("test1", size=1).fields.double()
        self.H = task.manifold(condition)
        n = condition.numel()
        tangent = self.H.project(torch.eye(n, dtype=torch.float64).reshape(n, *self.shape)).flatten(1)
        self.p = self.H.project(torch.zeros(1, *self.shape, dtype=torch.float64)).flatten()
        # Symmetric: the projection's linear part.
        self.Q = tangent - self.p
        B = self.Q @ torch.randn(n, n, generator=g, dtype=torch.float64) / n**0.5
        self.C = B @ B.T
        self.m = self.H.project(torch.randn(1, *self.shape, generator=g, dtype=torch.float64)).flatten()
        self.S, self.at_source = (
            (self.Q, self.p) if is_anchored else (torch.eye(n).double(), torch.zeros(n).double())
        )
        self.n = n

    def velocity(self, vt, t):
        t = float(t[0])
        total = t**2 * self.S + (1 - t) ** 2 * self.C
        gain = (t * self.S - (1 - t) * self.C) @ torch.linalg.pinv(total, hermitian=True, rtol=1e-12)
        x = vt.flatten(1) - t * self.at_source - (1 - t) * self.m
        return (self.at_source - self.m + x @ gain.T).reshape(vt.shape)

    def errors(self, name, steps, sampler=flow.EULER):
        """Of mean and covariance of the generated fields, exactly: the sampler is an affine map of the source
        draw.
        """
        unit = torch.cat((torch.zeros(1, self.n), torch.eye(self.n))).double().reshape(-1, *self.shape)
        out = get_method(name).sample(self.velocity, unit, self.H, steps, sampler=sampler)
        mean, A = out[0].flatten(), (out[1:] - out[0]).flatten(1)
        residual = self.H.residual(out).abs().max()
        return (mean - self.m).abs().max(), (A.T @ A - self.C).norm() / self.C.norm(), residual


@pytest.mark.parametrize("stepper", flow.STEPPERS.values(), ids=flow.STEPPERS)
@pytest.mark.parametrize(("name", "is_anchored"), [("ffm", False), ("sapc", True)])
def test_steppers_have_the_order_that_they_declare(name, is_anchored, stepper):
    case = Gaussian(is_anchored)
    errors = [case.errors(name, steps, flow.Sampler(stepper)) for steps in (40, 80, 160, 320)]
    orders = [math.log2(coarse[1] / fine[1]) for coarse, fine in pairwise(errors)]
    assert orders[-1] == pytest.approx(stepper.order, abs=0.25)
    assert errors[-1][1] < 0.03**stepper.order
    # The mean moves on a straight line, so that all of them are exact.
    assert all(mean < 1e-12 for mean, _, _ in errors)


@pytest.mark.parametrize("stepper", flow.STEPPERS.values(), ids=flow.STEPPERS)
def test_sapc_stays_on_the_manifold(stepper):
    case, sampler = Gaussian(is_anchored=True), flow.Sampler(stepper, flow.Shift(4.0))
    assert all(case.errors("sapc", steps, sampler)[2] < 1e-13 for steps in (1, 2, 7, 100))
    states = []

    def record_states(vt, t):
        states.append(vt)
        # A network with errors of any size.
        return case.velocity(vt, t) + torch.sin(1e3 * vt)

    v1 = torch.randn(3, *case.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    get_method("sapc").sample(record_states, v1, case.H, 50, sampler=sampler)
    assert len(states) == sampler.evaluations(50)
    assert max(case.H.residual(vt).abs().max() for vt in states) < 1e-12


@pytest.mark.parametrize("task_name", sapc.task_names())
def test_sapc_ends_on_the_manifold_whatever_the_velocity(task_name):
    task = sapc.get_task(task_name, grid=(12, 12, 6) if task_name == "navier_stokes" else (16, 14))
    f = task.dataset("test0", size=2).fields.double()
    H = task.manifold(f, solver=sapc.FeasiblePoint())
    v1 = sapc.source.sample(task.grid, 2, torch.Generator().manual_seed(0), dtype=torch.float64)
    v = lambda vt, t: 0.9 * (vt - f) / t[:, None, None].reshape(-1, *(1,) * (vt.ndim - 1))
    out = get_method("sapc").sample(v, v1, H, 10)
    assert H.residual(out).abs().max() < 1e-11
    assert (out - f).abs().mean() < 0.2 * (v1 - f).abs().mean()


def test_the_state_keeps_the_dtype_of_the_source():
    case = Gaussian(is_anchored=True)
    v = lambda vt, t: case.velocity(vt.double(), t).float()
    for dtype in (torch.float32, torch.float64):
        v1 = torch.zeros(1, *case.shape, dtype=dtype)
        assert all(get_method(name).sample(v, v1, case.H, 3).dtype == dtype for name in ("ffm", "sapc"))


def test_losses_are_the_stated_means():
    case = Gaussian(is_anchored=True)
    g = torch.Generator().manual_seed(0)
    v0, v1 = (torch.randn(4, *case.shape, generator=g, dtype=torch.float64) for _ in range(2))
    t = torch.rand(4, generator=g, dtype=torch.float64)
    v = lambda vt, t: vt * t[:, None, None]
    for name, source in (("ffm", v1), ("sapc", case.H.project(v1))):
        vt = (1 - t[:, None, None]) * v0 + t[:, None, None] * source
        want = ((v(vt, t) - (source - v0)) ** 2).mean()
        assert get_method(name).loss(v, v0, v1, t, case.H) == pytest.approx(float(want), rel=1e-14)


def test_unknown_method():
    with pytest.raises(SapcError, match="choose one of sapc, sapc_s1"):
        get_method("ddpm")


def test_sapc_with_the_exact_velocity_samples_heat():
    """Not Gaussian: the posterior of the decay rate by quadrature. The samples are as close to solutions as
    other solutions are.
    """
    task = sapc.get_task("heat", grid=(20, 16))
    truth, draws = (task.dataset("test1", size=400, seed=seed).fields.double() for seed in (0, 1))
    H = task.manifold(truth[:1])
    a = torch.linspace(1, 5, 401, dtype=torch.float64)
    x, time = task.grid["x"].points, task.grid["t"].points
    solutions = (torch.exp(-a[:, None, None] * time) * torch.cos(x)[:, None]).flatten(1)
    # sin(x + pi/2).
    assert (solutions[100].reshape(20, 16)[:, 0] - truth[0, :, 0]).abs().max() < 1e-6
    p = H.project(torch.zeros(1, 20, 16, dtype=torch.float64)).flatten()

    def velocity(vt, t):
        s = float(t[0])
        means = (1 - s) * solutions + s * p
        far = (
            means.square().sum(1) - 2 * vt.flatten(1) @ means.T
            # Squared distances, but for what softmax takes out.
        )
        v0 = torch.softmax(-far / (2 * s * s), 1) @ solutions
        return (vt - v0.reshape(vt.shape)) / s

    v1 = sapc.source.sample(task.grid, 400, torch.Generator().manual_seed(0), dtype=torch.float64)
    fields = torch.cat([get_method("sapc").sample(velocity, part, H, 100) for part in v1.split(100)])
    assert H.residual(fields).abs().max() < 1e-12
    assert sapc.metrics.w2(fields, truth) < 2.5 * sapc.metrics.w2(draws, truth)
    assert (fields.std(0) / truth.std(0))[:, 4:].mean() == pytest.approx(1.0, abs=0.1)
