"""Where methods must agree, and what the paper proves of SAPC's way."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

import sapc
from sapc import flow, get_method
from sapc.constraints import Manifold
from sapc.methods import cafm, eci, ffm, pcfm

AFFINE = ("heat", "burgers", "navier_stokes")
one_mix = partial(eci.sample, n_mix=1)


class Case:
    """A task, noise, and a velocity with errors that keeps every state it was asked at."""

    def __init__(self, name: str, n: int = 2) -> None:
        self.task = sapc.get_task(name, grid=(12, 12, 6) if name == "navier_stokes" else (16, 14))
        self.u = self.task.dataset("train", size=n).fields.double()
        self.H = self.task.manifold(self.u, solver=sapc.FeasiblePoint())
        g = torch.Generator().manual_seed(3)
        self.v1 = sapc.source.sample(self.task.grid, n, g, dtype=torch.float64)
        self.states: list[torch.Tensor] = []

    def v(self, vt, t):
        self.states.append(vt)
        return (vt - self.u) / t.reshape(-1, *(1,) * (vt.ndim - 1)) + 0.3 * torch.sin(5 * vt)

    def seen(self, sample, H: Manifold, steps: int = 6) -> list[torch.Tensor]:
        self.states = []
        end = sample(self.v, self.v1, H, steps)
        return [*self.states, end]


@pytest.mark.parametrize("name", AFFINE)
def test_eci_with_one_mix_is_pcfm_on_affine_manifolds(name):
    case = Case(name)
    a, b = case.seen(one_mix, case.H), case.seen(pcfm.sample, case.H)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", ["reaction_diffusion", "stokes_ic", "stokes_bc"])
def test_eci_with_one_mix_is_pcfm_where_their_projectors_agree(name):
    """Given PCFM's single step as its projection, ECI visits the same states; only the last projection
    differs."""
    case = Case(name)
    with pytest.warns(sapc.SapcWarning, match="did not reach the manifold"):  # a single step is no projection
        a = case.seen(one_mix, case.H.with_solver(pcfm.ONE_STEP))
    b = case.seen(pcfm.sample, case.H)
    assert all(torch.equal(x, y) for x, y in zip(a[:-1], b[:-1], strict=True))
    c = case.seen(one_mix, case.H)
    assert not torch.equal(a[2], c[2])


def test_eci_mixes_at_the_same_time_and_moves_on_at_the_last():
    """Every state by the formula: (1 - t) P(v0^) + t v1 after inner mixes, at s after the last; every third
    evaluation has a new v1."""
    case, calls, draws = Case("heat"), [], []
    g = torch.Generator().manual_seed(8)

    def v(vt, t):
        calls.append((float(t[0]), vt))
        return case.v(vt, t)

    def redraw():
        draws.append((len(calls), torch.randn(case.v1.shape, generator=g, dtype=torch.float64)))
        return draws[-1][1]

    end = eci.sample(v, case.v1, case.H, 4, redraw, n_mix=3, redraw_interval=3)
    assert [n + 1 for n, _ in draws] == [3, 6, 9, 12]  # counted from one, drawn before the evaluation
    assert [t for t, _ in calls] == [t for t in (1.0, 0.75, 0.5, 0.25) for _ in range(3)]
    vt, v1 = case.v1, case.v1
    for i, (t, seen) in enumerate(calls):
        assert (seen - vt).abs().max() < 1e-13
        v1 = dict(draws).get(i, v1)
        s = t if i % 3 < 2 else t - 0.25
        v0 = case.H.project(vt - t * case.v(vt, torch.full((2,), t, dtype=torch.float64)))
        vt = (1 - s) * v0 + s * v1
    assert (end - vt).abs().max() < 1e-13


def test_ecis_own_settings_redraw_at_every_fifth_evaluation():
    case, at_call, count = Case("stokes_bc"), [], [0]

    def v(vt, t):
        count[0] += 1
        return case.v(vt, t)

    redraw = lambda: (at_call.append(count[0] + 1), torch.randn_like(case.v1))[1]
    get_method("eci_stokes_bc").sample(v, case.v1, case.H, 12, redraw)
    assert at_call == [5, 10]


def test_mixing_with_the_initial_draw_does_not_sample_gaussian_data():
    """Data N(0, 1), source N(0, 1/4), the exact velocity: at t = 1/2 the mixes converge to twice the data's
    spread, times the draw.

    u <- D ((1 - t) u + t n) has the fixed point S n / sd(n) with S = (1 - t) / (t sd(n)); going on from the
    state gives the data's spread.
    """
    n = 0.5 * torch.randn(4000, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    H = nowhere(n[:1])

    def v(vt, t):
        s = float(t[0])
        return (vt - (1 - s) / ((1 - s) ** 2 + s**2 / 4) * vt) / s

    end = eci.sample(v, n, H, 2, n_mix=400)
    assert torch.allclose(end, 4 * n, rtol=1e-9)
    follow = get_method("sapc_s1").sample(v, n, H, 400)
    assert float(follow.std()) == pytest.approx(1.0, abs=0.03)


def test_step_of_pcfm_with_pins_first_is_the_root_step():
    """`u - J^T (J J^T + 1e-6 I)^-1 R(u)` with the dense Jacobian, the pins in place."""
    case = Case("stokes_ic", 1)
    u = case.H.project(case.u + 0.05 * torch.sin(7 * case.v1))
    u = torch.where(case.H.pinned, case.u, u + 0.03 * torch.cos(case.v1))
    free = (~case.H.pinned).flatten()
    R = lambda x: case.H.balance(x.reshape(1, *u.shape[1:]))[0]
    J = torch.autograd.functional.jacobian(R, u.flatten())[:, free]
    gram = J @ J.T + 1e-6 * torch.eye(len(J), dtype=torch.float64)
    want = u.flatten().clone()
    want[free] -= J.T @ torch.cholesky_solve(R(u)[:, None], torch.linalg.cholesky(gram))[:, 0]
    got = case.H.with_solver(replace(pcfm.ONE_STEP, pin_rows=False)).project(u, check=False).flatten()
    assert (got - want).abs().max() < 1e-9 * (want - u.flatten()).abs().max()


def nowhere(u: torch.Tensor) -> Manifold:
    """No constraints: its projection is the identity."""
    return sapc.Pin(torch.zeros(u.shape[1:], dtype=torch.bool)).on(u)


@pytest.mark.parametrize("name", ["sapc", "sapc_s1", "sapc_s3"])
def test_sapc_with_an_identity_projector_is_ffm(name):
    case = Case("heat")
    H = nowhere(case.u)
    assert torch.equal(H.project(case.v1), case.v1)
    a, b = case.seen(get_method(name).sample, H), case.seen(ffm.sample, H)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_losses_with_an_identity_projector_are_ffms():
    case = Case("heat")
    H, t = nowhere(case.u), torch.tensor([0.3, 0.8], dtype=torch.float64)
    want = float(ffm.loss(case.v, case.u, case.v1, t, H))
    for name in ("sapc", "sapc_s2", "cafm", "pbfm", "cond_ffm"):
        assert float(get_method(name).loss(case.v, case.u, case.v1, t, H)) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("name", sapc.task_names())
def test_s1_from_an_anchored_source_is_sapcs_sampler(name):
    case = Case(name)
    want = case.seen(get_method("sapc").sample, case.H)
    case.v1 = want[0]  # P(v1)
    got = case.seen(get_method("sapc_s1").sample, case.H)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


def test_s3_is_ffm_from_the_anchored_source():
    case = Case("reaction_diffusion")
    got = case.seen(get_method("sapc_s3").sample, case.H)
    case.v1 = got[0]
    assert case.H.residual(got[0]).abs().max() < 1e-12
    assert all(torch.equal(x, y) for x, y in zip(got, case.seen(ffm.sample, case.H), strict=True))


def test_s2_is_cafm_without_its_second_term():
    """With a projection that misses, one Gauss-Newton step on Stokes, so that the term is there to be
    seen."""
    case = Case("stokes_ic")
    H = case.H.with_solver(sapc.GaussNewton(n_iter=1, mu=1e-8, tol=1e-14))
    t = torch.tensor([0.02, 0.7], dtype=torch.float64)
    v = lambda vt, t: 0.5 * vt
    both = get_method("cafm").loss(v, case.u, case.v1, t, H)
    alone = get_method("sapc_s2").loss(v, case.u, case.v1, t, H)
    vt = flow.interpolate(case.u, case.v1, t)
    projected = H.project(vt - flow.expand_like(t, vt) * 0.5 * vt, check=False)
    term = H.residual(projected).square().sum(1).mean()
    assert term > 1e-3
    assert float(both - alone) == pytest.approx(1e-3 * float(term), rel=1e-9)
    velocity = (vt - projected) / flow.expand_like(t, vt)
    assert float(alone) == pytest.approx(float((velocity - (case.v1 - case.u)).square().mean()), rel=1e-9)
    assert (get_method("cafm").t_min, get_method("sapc_s2").t_min) == (0.05, 0.0)


def test_no_smaller_time_than_a_thousandth_is_divided_by():
    case = Case("heat")
    t = torch.full((2,), 1e-6, dtype=torch.float64)
    v = lambda vt, t: 0.5 * vt
    vt = flow.interpolate(case.u, case.v1, t)
    velocity = (vt - case.H.project(vt - 1e-6 * 0.5 * vt)) / 1e-3
    want = float((velocity - (case.v1 - case.u)).square().mean())
    assert float(cafm.fit(v, case.u, case.v1, t, case.H)[0]) == pytest.approx(want, rel=1e-9)


# -- the paper's statements about the way --


@pytest.mark.parametrize("name", AFFINE)
def test_on_affine_manifolds_every_iterate_lies_on_it(name):
    case = Case(name)
    for vt in case.seen(get_method("sapc").sample, case.H, 25):
        assert case.H.residual(vt).abs().max() < 1e-13


def curvature(task: sapc.tasks.Task) -> float:
    """L of reaction-diffusion: the largest |R''[d, d]| over unit d.

    Only growth is quadratic: R_T'' [d, d] = 2 rho dx sum_k w_Tk |d_k|^2 with the trapezoid's weights w_Tk of
    the frames k <= T. A unit d puts shares |d_k|^2 on the frames, and the norm of a mixture of columns is at
    most that of the longest.
    """
    n, dx, dt = task.grid.shape[-1], task.grid["x"].spacing, task.grid.time.spacing
    w = torch.zeros(n - 1, n, dtype=torch.float64)
    for T in range(1, n):
        w[T - 1, :T] += dt / 2
        w[T - 1, 1 : T + 1] += dt / 2
    return 2 * 0.01 * dx * float(w.norm(dim=0).max())


def test_on_reaction_diffusion_the_residual_obeys_the_papers_bound():
    """|R(v_t)| <= t (1 - t) L |v0 - P(v1)|^2 / 2 on a straight way, and it vanishes at both ends."""
    case = Case("reaction_diffusion", 3)
    v0 = case.H.project(case.u)
    v = lambda vt, t: (case.states.append(vt), (vt - v0) / flow.expand_like(t, vt))[1]
    ends = get_method("sapc").sample(v, 5 * case.v1, case.H, 40)
    states, L = case.states, curvature(case.task)
    far = (states[0] - v0).flatten(1).square().sum(1)
    size = lambda x: case.H.residual(x).norm(dim=1)
    for (t, _), vt in zip(flow.time_pairs(40), states, strict=True):
        assert (size(vt) <= t * (1 - t) * L * far / 2 + 1e-12).all()
    middle = size(states[20])
    assert (middle > 1e-6).all()
    assert (middle > 0.1 * L * far / 8).all()  # the bound is not idle
    assert size(states[0]).max() < 1e-11
    assert size(ends).max() < 1e-11
