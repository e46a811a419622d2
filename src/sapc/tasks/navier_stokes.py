"""Forced flow in a periodic square:  w_t + u . grad w = nu lap w + f,  div u = 0,  t in [0, 49].

The equation is Eq. ns, div u = 0 and the initial vorticity Eq. ns_bc, the manifold Eq. ns_H; the force has no
mean, so the law has no rate. Here w is the vorticity, nu = 1e-3 and f = 0.1 sqrt(2) sin(2 pi (x + y) + phi).
The pinned condition is the initial vorticity; the free parameter is the phase phi of the force. Total
vorticity is conserved.

Initial vorticity: the Gaussian random field with covariance C = 2 s^2 (-lap + tau^2)^(-alpha), alpha = 5/2,
tau = 7, s = tau^(3/2), and no mean,

    w0 = Re sum_k sqrt(2) s (4 pi^2 |k|^2 + tau^2)^(-alpha/2) z_k e^(2 pi i k.x),   z_k = N(0,1) + i N(0,1)

with a standard deviation of about 0.256. Its modes are drawn for |k_x|, |k_y| < 64 whatever the grid, which
takes those it can represent.

Symmetries, of which each leaves the distribution of w0 and phi as it is:

    w(x - s, y + s)     any s; the force depends on x + y
    w(x + s, y)         phi becomes phi + 2 pi s: those s that leave it in its range
    -w(y, x - 1/2)      a reflection changes the signs of vorticity and force; the shift undoes the latter
    w(1/4 - x, -y)      a half turn; phi becomes pi/2 - phi

Solver: Fourier pseudo-spectral with 2/3 dealiasing, ETDRK4 in time. With the stream function psi = -lap^-1
w, velocity (u, v) = (psi_y, -psi_x), and because div u = 0 the advection needs four transforms only,

    u . grad w = (d_xx - d_yy)(u v) + d_xy (v^2 - u^2)

The internal grid is the least multiple of the output grid with at least 64 points per axis. Measured on 200
initial vorticities over all 50 frames against 128 x 128 points with steps of 1/100: the error of 64 x 64
points is 4e-8 at most, and with steps of 1/32, order 4, 1e-7 in all, while |w| reaches 2; that is below the
rounding of float32.
"""

from __future__ import annotations

from functools import cached_property
from math import gcd, pi, prod, sqrt
from typing import ClassVar, final

import torch
from jaxtyping import Complex, Float
from torch import Tensor
from torch.fft import irfft2, rfft2

from ..constraints.terms import Balance, ConstraintTerm, Pin
from ..grid import Axis, Grid
from .base import Task
from .etdrk4 import frames, trajectory
from .index_maps import parse_map
from .sources import Parameters, Streams
from .symmetries import Declaration, RangedShift

VISCOSITY = 1e-3
FORCE = 0.1 * sqrt(2)
ALPHA, TAU = 2.5, 7.0
BAND = 63
INTERNAL_POINTS = 64
MAX_STEP = 1 / 32

Vorticity = Float[Tensor, "n x y"]
Spectrum = Complex[Tensor, "n k l"]


@final
class NavierStokes(Task):
    """Two-dimensional forced flow."""

    name = "navier_stokes"
    title = "Navier-Stokes equations"
    equation = "∂w/∂t + u·∇w = ν Δw + f,  ∇·u = 0,  ν = 0.001,  f = 0.1√2 sin(2π(x + y) + φ)"
    pinned = "initial vorticity w(x, y, 0)"
    law = "vorticity: ∫w dx dy is constant"
    parameters: ClassVar = {
        "initial": "w₀ ~ Gaussian random field (α = 2.5, τ = 7); one per test set",
        "phase": "φ ~ U[0, π/2]",
    }
    paper_grid = Grid(
        (Axis("x", 64, kind="periodic"), Axis("y", 64, kind="periodic"), Axis("t", 50, 0.0, 49.0))
    )
    train_size = 10_000
    integrates = True
    solver = f"Fourier pseudo-spectral, ETDRK4, steps of at most {MAX_STEP:g}"
    block: ClassVar = {"cpu": 4, "cuda": 1000}

    @property
    def symmetries(self) -> tuple[Declaration, ...]:
        """Shifts, a reflection and a half turn, as far as they are whole numbers of points."""
        nx, ny = self.grid["x"].n, self.grid["y"].n
        step = parse_map("shift:-x", self.grid)
        declared: list[Declaration] = [RangedShift("shift:x(phase)", step, "phase", 2 * pi / nx, 0.0, pi / 2)]
        declared += ["shift:x,shift:-y"] if gcd(nx, ny) > 1 else []
        declared += ["swap:x:y,sign,shift:x=1/2"] if nx == ny and nx % 2 == 0 else []
        return (*declared, *(["reflect:x,reflect:y,shift:x=1/4"] if nx % 4 == 0 else []))

    @cached_property
    def constraint(self) -> ConstraintTerm:
        """The initial frame, and total vorticity."""
        return Pin.frame(0) & Balance(self.grid.integral())

    def _draw(self, streams: Streams, size: int) -> dict[str, Tensor]:
        i, j = streams.product_pairs(size)
        w0 = gaussian_field(streams.condition, int(i.max()) + 1, self.grid.space)
        return {"initial": w0[i], "phase": streams.uniform("phase", 0.0, pi / 2, int(j.max()) + 1)[j]}

    def _solve(self, parameters: Parameters) -> Tensor:
        return flow(parameters["initial"], parameters["phase"], self.grid.time)

    def _workspace(self, block: int) -> int:
        return 20 * block * prod(max(n, INTERNAL_POINTS) for n in self.grid.shape[:-1])


def gaussian_field(streams: Streams, n: int, space: tuple[Axis, ...]) -> Vorticity:
    """`n` initial vorticities on a periodic grid."""
    k = torch.arange(-BAND, BAND + 1, dtype=torch.float64)
    scale = sqrt(2) * TAU ** (ALPHA - 1) * (4 * pi**2 * (k[:, None] ** 2 + k**2) + TAU**2) ** (-ALPHA / 2)
    scale[BAND, BAND] = 0
    width = len(k)
    z = scale * torch.view_as_complex(streams.normals("initial", n, 2 * width**2).reshape(n, width, width, 2))
    # Those of the real part.
    modes = (z + z.flip(1, 2).conj()) / 2
    nx, ny = (axis.n for axis in space)
    kx = torch.arange(-min(BAND, (nx - 1) // 2), min(BAND, (nx - 1) // 2) + 1)
    ky = torch.arange(min(BAND, (ny - 1) // 2) + 1)
    spectrum = torch.zeros(n, nx, ny // 2 + 1, dtype=torch.complex128)
    spectrum[:, (kx % nx)[:, None], ky] = modes[:, (kx + BAND)[:, None], ky + BAND]
    # One by one: the rounding of a batched transform depends on its batch, and a draw must not.
    return torch.stack([irfft2(modes, s=(nx, ny), norm="forward") for modes in spectrum])


def flow(
    w0: Vorticity,
    phase: Float[Tensor, " n"],
    time: Axis,
    nu: float = VISCOSITY,
    force: float = FORCE,
    points: int = INTERNAL_POINTS,
    max_step: float = MAX_STEP,
) -> Float[Tensor, "n x y t"]:
    """Solve for the vorticity with at least `points` points per axis, and return all times of the axis."""
    nx, ny = w0.shape[1:]
    rx, ry = -(-points // nx), -(-points // ny)
    shape = (rx * nx, ry * ny)
    kx, ky = (2 * pi * k for k in wave_numbers(shape, w0.device))
    x, y = (torch.arange(m, dtype=torch.float64, device=w0.device) / m for m in shape)
    f = force * torch.sin(2 * pi * (x[:, None] + y) + phase[:, None, None])
    f = rfft2(f, norm="forward") * dealiasing_mask(shape, w0.device)
    w0_hat = refine(rfft2(w0.contiguous(), norm="forward"), (nx, ny), shape) * dealiasing_mask(
        shape, w0.device
    )
    L = -nu * (kx**2 + ky**2)
    states = frames(w0_hat, L, Advection(f, shape), time.spacing, time.n - 1, max_step)
    return trajectory(w0, states, time, lambda w: irfft2(w, s=shape, norm="forward")[:, ::rx, ::ry])


class Advection:
    """`N(w) = f - u . grad w` in Fourier space."""

    def __init__(self, f: Spectrum, shape: tuple[int, int]) -> None:
        kx, ky = (2 * pi * k for k in wave_numbers(shape, f.device))
        square = kx**2 + ky**2
        square[0, 0] = 1
        self.f, self.shape = f, shape
        self.velocity = torch.stack((1j * ky / square, -1j * kx / square))[:, None]
        mask = dealiasing_mask(shape, f.device)
        self.products = torch.stack((mask * (kx**2 - ky**2), mask * kx * ky))

    def __call__(self, w: Spectrum) -> Spectrum:
        """One evaluation: two transforms there and two back."""
        u, v = irfft2(self.velocity * w, s=self.shape, norm="forward")
        uv = rfft2(u * v, norm="forward")
        vv_uu = rfft2((v - u) * (v + u), norm="forward")
        return torch.addcmul(torch.addcmul(self.f, self.products[0], uv), self.products[1], vv_uu)


def wave_numbers(shape: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the wave numbers of a half spectrum, `(nx, 1)` and `(ny // 2 + 1,)`."""
    kx = torch.fft.fftfreq(shape[0], 1 / shape[0], dtype=torch.float64, device=device)[:, None]
    return kx, torch.arange(shape[1] // 2 + 1, dtype=torch.float64, device=device)


def dealiasing_mask(shape: tuple[int, int], device: torch.device) -> Tensor:
    """1 for the lower two thirds of the wave numbers of a half spectrum, else 0."""
    kx, ky = wave_numbers(shape, device)
    return ((kx.abs() < shape[0] / 3) & (ky < shape[1] / 3)).double()


def refine(
    w: Spectrum, shape: tuple[int, int], finer: tuple[int, int]
) -> Complex[Tensor, "n finer_k finer_l"]:
    """Move a half spectrum to a finer grid, without the Nyquist modes, whose phase is unknown."""
    (nx, ny), (mx, my) = shape, finer
    kx = torch.arange(-((nx - 1) // 2), (nx - 1) // 2 + 1, device=w.device)
    ky = torch.arange((ny - 1) // 2 + 1, device=w.device)
    out = w.new_zeros(w.shape[0], mx, my // 2 + 1)
    out[:, (kx % mx)[:, None], ky] = w[:, (kx % nx)[:, None], ky]
    return out
