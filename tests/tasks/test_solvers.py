"""Solvers against exact solutions, finer references and their declared order."""

from __future__ import annotations

from itertools import pairwise
from math import log, pi

import pytest
import torch

from sapc.grid import Axis
from sapc.tasks import get_task
from sapc.tasks.burgers import advect
from sapc.tasks.etdrk4 import ETDRK4, ORDER, frames, phi
from sapc.tasks.navier_stokes import flow
from sapc.tasks.reaction_diffusion import DIFFUSIVITY, initial_profiles, neumann_basis, react
from sapc.tasks.sources import Streams

FLOAT32 = 2.0**-24


def cells(n: int) -> torch.Tensor:
    return Axis("x", n, kind="cells").points


def ring(n: int) -> torch.Tensor:
    return Axis("x", n, kind="periodic").points


def orders(errors: list[float], ratio: float) -> list[float]:
    return [log(a / b, ratio) for a, b in pairwise(errors)]


# -- the time stepper --


def test_phi_functions_are_accurate_near_zero_and_far():
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.dps = 40
    z = torch.cat(
        (
            -torch.logspace(-12, 4, 200, dtype=torch.float64),
            torch.tensor([0.0, 0.5, -0.99, -1.01], dtype=torch.float64),
        )
    )
    for k, values in enumerate(phi(z), 1):
        for x, value in zip(z.tolist(), values.tolist(), strict=True):
            exact = mpmath.hyp1f1(1, k + 1, x) / mpmath.factorial(k)
            assert value == pytest.approx(float(exact), rel=1e-14)


def test_the_stepper_has_its_declared_order():
    """Logistic equations with known solutions, one growing and one decaying in the linear part."""
    growth = torch.tensor([1.0, -2.0], dtype=torch.float64)
    u0 = torch.tensor([[0.2, 0.7]], dtype=torch.float64)
    exact = growth * u0 * growth.exp() / (growth + u0 * (growth.exp() - 1))

    def error(steps: int) -> float:
        step, u = ETDRK4(growth, lambda u: -(u**2), 1 / steps), u0
        for _ in range(steps):
            u = step(u)
        return float((u - exact).norm())

    for observed in orders([error(n) for n in (8, 16, 32)], 2):
        assert observed == pytest.approx(ORDER, abs=0.2)


def test_a_constant_source_is_integrated_exactly():
    L = torch.tensor([-1e4, -3.0, 0.0, -1e-9], dtype=torch.float64)
    u0 = torch.ones(1, 4, dtype=torch.float64)
    (u,) = frames(u0, L, lambda u: torch.full_like(u, 2.0), 0.5, 1, 0.1)
    growth = torch.where(L == 0, 0.5, torch.expm1(0.5 * L) / torch.where(L == 0, 1.0, L))
    torch.testing.assert_close(u, (0.5 * L).exp() * u0 + 2 * growth, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("spacing", "max_step", "steps"), [(1.0, 1 / 32, 32), (1 / 99, 1 / 99, 1), (0.5, 0.3, 2)]
)
def test_an_interval_takes_the_fewest_steps(spacing, max_step, steps):
    calls = []
    L = torch.zeros(1, dtype=torch.float64)
    list(
        frames(
            torch.ones(1, 1, dtype=torch.float64), L, lambda u: calls.append(0) or -u, spacing, 3, max_step
        )
    )
    assert len(calls) == 3 * steps * 4


# -- reaction and diffusion --


def test_the_neumann_basis_diagonalises_the_finite_volume_laplacian():
    n = 12
    C, eigenvalues = neumann_basis(n)
    laplacian = torch.diag(torch.full((n - 1,), 1.0), 1) + torch.diag(torch.full((n - 1,), 1.0), -1)
    laplacian = (laplacian - torch.diag(laplacian.sum(1))).double() * n**2
    torch.testing.assert_close(C @ C.T, torch.eye(n, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(C.T @ torch.diag(eigenvalues) @ C, laplacian, rtol=0, atol=1e-11)


def test_reaction_diffusion_has_order_four_in_time():
    """Smooth data, and growth exaggerated: at the published rate the error is near rounding at once."""
    x = cells(64)
    u0 = torch.stack((0.5 + 0.4 * torch.cos(pi * x), 0.3 + 0.2 * torch.cos(3 * pi * x)))
    none, time = torch.zeros(2, dtype=torch.float64), Axis("t", 3)
    reference = react(u0, none, none, time, rho=5.0, max_step=1 / 512)
    errors = [
        float((react(u0, none, none, time, rho=5.0, max_step=1 / n) - reference).norm()) for n in (8, 16, 32)
    ]
    for observed in orders(errors, 2):
        assert observed == pytest.approx(ORDER, abs=0.25)


def test_reaction_diffusion_is_converged_in_time():
    task = get_task("reaction_diffusion")
    p = task.draw("train", 64)
    arguments = (p["initial"], p["flux_left"], p["flux_right"], task.grid.time)
    assert (react(*arguments) - react(*arguments, max_step=1 / 396)).abs().max() < FLOAT32


def test_reaction_diffusion_has_order_two_in_space():
    """Refining by 3 keeps the cell centres."""
    profile = initial_profiles(Streams("reaction_diffusion", "train", 0).uniforms("initial", 8, 13))
    g, time = torch.full((8,), 0.03, dtype=torch.float64), Axis("t", 3)
    coarse = 15
    u = {
        n: react(profile(cells(n)), g, -g, time)[..., 1:]
        for n in (coarse, 3 * coarse, 9 * coarse, 81 * coarse)
    }
    shared = {n: v[:, (n // coarse) // 2 :: n // coarse] for n, v in u.items()}
    reference = shared.pop(81 * coarse)
    for observed in orders([float((v - reference).norm()) for v in shared.values()], 3):
        assert observed == pytest.approx(2, abs=0.25)


def test_fluxes_and_growth_are_all_that_changes_the_mass():
    task = get_task("reaction_diffusion")
    p = task.draw("train", 16)
    u = react(p["initial"], p["flux_left"], p["flux_right"], task.grid.time, rho=0.0)
    inflow = (p["flux_left"] - p["flux_right"])[:, None] * task.grid.time.points
    torch.testing.assert_close(u.mean(1), u[:, :, 0].mean(1)[:, None] + inflow, rtol=0, atol=1e-13)


def test_the_end_fluxes_are_those_prescribed():
    """Long after the start and without growth u_t is uniform: the flux is linear between its end values."""
    g_left, g_right = torch.tensor([0.03], dtype=torch.float64), torch.tensor([-0.01], dtype=torch.float64)
    n = 128
    u = react(
        torch.zeros(1, n, dtype=torch.float64),
        g_left,
        g_right,
        Axis("t", 3, 0.0, 400.0),
        rho=0.0,
        max_step=10.0,
    )[0, :, -1]
    faces = torch.arange(1, n, dtype=torch.float64) / n
    flux = -DIFFUSIVITY * u.diff() * n
    torch.testing.assert_close(flux, g_left + (g_right - g_left) * faces, rtol=0, atol=1e-10)


# -- Burgers --

AMPLITUDES, PHASES, MEAN = (0.55, 0.3), (0.3, 1.1), 0.15


def start(x: torch.Tensor) -> torch.Tensor:
    return MEAN + sum(
        a * torch.sin(2 * pi * k * x + p) for k, a, p in zip((1, 2), AMPLITUDES, PHASES, strict=True)
    )


def cole_hopf(x: torch.Tensor, time: float, nu: float) -> torch.Tensor:
    """`u = int s/t e^(-G/2nu) ds / int e^(-G/2nu) ds`, `G = s^2/2t + int_0^(x-s) u0`, by quadrature."""
    s = torch.linspace(-4, 4, 16001, dtype=torch.float64)
    y = x[:, None] - s
    primitive = MEAN * y
    for k, a, p in zip((1, 2), AMPLITUDES, PHASES, strict=True):
        primitive = primitive - a * torch.cos(2 * pi * k * y + p) / (2 * pi * k)
    weight = torch.softmax(-(s**2 / (2 * time) + primitive) / (2 * nu), 1)
    return (weight * s / time).sum(1)


def test_burgers_matches_cole_hopf():
    x, time = ring(100), Axis("t", 5)
    nu = torch.tensor([0.01, 0.02, 0.05], dtype=torch.float64)
    u = advect(start(x).expand(3, -1), nu, time)
    for i, viscosity in enumerate(nu.tolist()):
        for j in (1, 2, 4):
            exact = cole_hopf(x, float(time.points[j]), viscosity)
            assert (u[i, :, j] - exact).abs().max() < FLOAT32


def test_burgers_matches_a_four_times_finer_reference():
    task = get_task("burgers")
    p = task.draw("train", 4)
    p["viscosity"][:] = 0.01
    time = Axis("t", 4, 0.0, 0.3)
    u = advect(p["initial"], p["viscosity"], time)
    finer = advect(p["initial"], p["viscosity"], time, points=1600, max_step=1 / 3960)
    assert (u - finer).abs().max() < FLOAT32


def test_burgers_has_order_four_in_time():
    u0, nu, time = start(ring(100))[None], torch.tensor([0.02], dtype=torch.float64), Axis("t", 3, 0.0, 0.4)
    reference = advect(u0, nu, time, max_step=1 / 2000)
    errors = [float((advect(u0, nu, time, max_step=1 / n) - reference).norm()) for n in (125, 250, 500)]
    for observed in orders(errors, 2):
        assert observed == pytest.approx(ORDER, abs=0.3)


def test_burgers_keeps_its_mass():
    p = get_task("burgers", grid=(400, 3)).draw("train", 8)
    u = advect(p["initial"], p["viscosity"], Axis("t", 4, 0.0, 0.5))
    assert (u.mean(1) - u[:, :, :1].mean(1)).abs().max() < 1e-14


# -- Navier-Stokes --


def vortices(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    task = get_task("navier_stokes", grid=(n, n, 3))
    p = task.draw("train", 4)
    return p["initial"][::3], p["phase"][::3]


def test_taylor_green_vortices_decay_exactly():
    x = ring(32)
    w0 = 2 * torch.cos(2 * pi * x)[:, None] * torch.cos(2 * pi * x)[None]
    time = Axis("t", 8, 0.0, 49.0)
    w = flow(w0[None], torch.zeros(1, dtype=torch.float64), time, force=0.0, max_step=0.5)
    exact = w0[..., None] * torch.exp(-8 * pi**2 * 1e-3 * time.points)
    torch.testing.assert_close(w[0], exact, rtol=0, atol=1e-12)


def test_the_forced_mode_grows_as_it_must():
    """From rest the force excites one mode only, which does not advect itself."""
    x, phase, time = ring(16), torch.tensor([0.4], dtype=torch.float64), Axis("t", 4, 0.0, 6.0)
    w = flow(torch.zeros(1, 16, 16, dtype=torch.float64), phase, time, max_step=0.25)
    rate = 8 * pi**2 * 1e-3
    force = 0.1 * 2**0.5 * torch.sin(2 * pi * (x[:, None] + x) + phase)
    exact = force[..., None] * (1 - torch.exp(-rate * time.points)) / rate
    torch.testing.assert_close(w[0], exact, rtol=0, atol=1e-12)


def test_a_drifting_flow_solves_the_equation():
    """All terms at once: the difference quotient of frames against the right-hand side, spectrally."""
    w0, phase = vortices(64)
    h = 1 / 64
    w0 = flow(w0, phase, Axis("t", 3, 0.0, 2.0))[..., -1]  # away from the rough start
    w = flow(w0, phase, Axis("t", 3, 0.0, 2 * h), max_step=h)
    k = 2 * pi * torch.fft.fftfreq(64, 1 / 64, dtype=torch.float64)
    kx, ky = k[:, None], k[None]
    middle = torch.fft.fft2(w[..., 1])
    square = kx**2 + ky**2
    psi = middle / torch.where(square > 0, square, 1.0)

    def real(spectrum: torch.Tensor) -> torch.Tensor:
        return torch.fft.ifft2(spectrum).real

    advection = real(1j * ky * psi) * real(1j * kx * middle) - real(1j * kx * psi) * real(1j * ky * middle)
    x = ring(64)
    force = 0.1 * 2**0.5 * torch.sin(2 * pi * (x[:, None] + x) + phase[:, None, None])
    right = force + 1e-3 * real(-square * middle) - advection
    left = (w[..., 2] - w[..., 0]) / (2 * h)
    assert (left - right).abs().max() < 1e-4 * right.abs().max()


def test_navier_stokes_has_order_four_in_time():
    w0, phase = vortices(32)
    time = Axis("t", 3, 0.0, 4.0)
    reference = flow(w0, phase, time, max_step=1 / 64)
    errors = [float((flow(w0, phase, time, max_step=1 / n) - reference).norm()) for n in (4, 8, 16)]
    for observed in orders(errors, 2):
        assert observed == pytest.approx(ORDER, abs=0.3)


def test_navier_stokes_converges_in_space_faster_than_any_power():
    w0, phase = vortices(16)
    time = Axis("t", 3, 0.0, 6.0)
    reference = flow(w0, phase, time, points=96)
    errors = [float((flow(w0, phase, time, points=n) - reference).abs().max()) for n in (16, 32, 64)]
    assert errors[0] > 100 * errors[1]
    assert errors[1] > 1000 * errors[2]


def test_navier_stokes_is_converged_to_float32():
    w0, phase = vortices(64)
    time = Axis("t", 3, 0.0, 4.0)
    w, finer = flow(w0, phase, time), flow(w0, phase, time, points=128, max_step=1 / 64)
    assert (w - finer).abs().max() < FLOAT32 * finer.abs().max()


def test_total_vorticity_stays_zero():
    w0, phase = vortices(64)
    w = flow(w0, phase, Axis("t", 3, 0.0, 2.0))
    assert w.mean((1, 2)).abs().max() < 1e-15
