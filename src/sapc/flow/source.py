"""The source: a Gaussian process with a Matern kernel, variance 1 and full rank, exact at every length scale.

On the unit cube, `linspace(0, 1, n)` along every axis, two points at distance `r` have the covariance
(with `z = sqrt(2 nu) r / length`)

    nu = 0.5   K = exp(-z)
    nu = 1.5   K = (1 + z) exp(-z)
    nu = 2.5   K = (1 + z + z^2 / 3) exp(-z).

A draw is `root(w)`: independent normals `w` through a square root of the kernel matrix, kept per grid shape,
length, nu and device. The kernel on the grid decides which root it is:

**White noise**, `u = w`, when even the closest neighbours correlate by less than WHITE = 1e-6.

**A moving average**, when K is nearly white: at length 1e-3 on a hundred points neighbours correlate by 4e-5.
On the endless lattice K has a spectrum s; with c_h the Fourier coefficients of log s, and c_+ the series of
those at lags h > 0 (in lexicographic order, so one of +-h), Kolmogorov's factor is

    s = exp(c_0) |exp(c_+)|^2,   so   u(x) = w(x) + sum_{h > 0} b_h w(x + h),   Var w = exp(c_0),

b_h the coefficients of exp(c_+): half the passes over memory of a symmetric root. The grid is a window on the
lattice; w is drawn as far beyond its edges as the b_h see. Those below NEAR / 2 are dropped. If a covariance
is then off by more than NEAR = 1e-8 (1e16 values would show it), or a lag exceeds REACH, the torus serves.

**Circulant embedding**, when the kernel has died out across the cube. A torus of period 2 or a little more
holds every lag of the cube; K wrapped around it is diagonal in Fourier space, and its eigenvalues `s` are
positive for short lengths. Since s is even, real waves `cas = cos - sin` serve as well: on N points,

    u(x) = sum_k sqrt(s_k / N) w_k cas(k . x)   has covariance   sum_k s_k / N cos(k . (x - y)) = K(x - y).

**Embedding and wide Gaussians**, when some s < 0, as long lengths have it whatever the (affordable) padding.
A Matern kernel is a mixture of Gaussians,

    K(r) = E exp(-r^2 / (2 sigma^2)),   sigma^2 = length^2 g / nu,   g ~ Gamma(nu, 1),

so it falls at any width into two positive definite kernels. Those narrower than SIGMA = 0.14 are below 1e-11
at r = 1, and their sum embeds. The wider ones are taken as `sum_q w_q exp(-r^2 / (2 sigma_q^2))`, a
quadrature with positive weights; each term is a smooth product over the axes, so its field `A_x w A_y^T`
needs thin matrices only (some twenty columns). The narrow part is K minus this very sum: together, K.

What is lost: eigenvalues below zero count as zero, which changes no covariance by more than their sum over N.
Measured on 100 x 100 and 64 x 64 x 50 for the three nu: the plain embedding is positive up to length 0.1
(clipped, it would err by up to 0.15 at length 1); with wide Gaussians the bound is below 1e-12 for every
longer length tried, up to 1e9. Should it ever exceed CLIP = 1e-9, there is an error and no sample. On small
grids the root can be squared: that is K to 1e-12 in float64, to NEAR for a moving average, to WHITE for white
noise.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import SupportsIndex

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .._old_names import find_renamed
from ..errors import SapcError, explain_misuse
from ..grid import Grid

# Neighbour correlation below which the field is drawn as white noise.
WHITE = 1e-6
# Largest covariance error of a moving average.
NEAR = 1e-8
# Longest lag of a moving average along any axis: at most 12 neighbours in 2D, 62 in 3D.
REACH = 2
# Of the lattice where it is found: its covariances, up to 2 REACH, do not wrap around.
PERIOD = 16
# Below this, what clipping loses is rounding and the plain embedding stands.
ROUNDING = 1e-12
# Largest covariance error that clipping negative eigenvalues may cause.
CLIP = 1e-9
# Widest Gaussian left to the embedding: exp(-1 / (2 SIGMA^2)) = 8e-12 where the torus wraps.
SIGMA = 0.14
# Quadrature nodes for the wide Gaussians.
NODES = 48
# Normals drawn at a time on an accelerator.
BATCH = 2**25
# Normals that torch makes at a time on a CPU.
FILL = 16


@explain_misuse
def sample(
    grid: Grid,
    n: SupportsIndex,
    generator: torch.Generator | None = None,
    *,
    length: float | int = 1e-3,
    nu: float = 0.5,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, " n *grid"]:
    """Draw fields of the Matern Gaussian process on a grid, taken as the unit cube; channels are independent.

    The same call from the same generator state gives the same bits. On the CPU fields are drawn one by one,
    and field i does not depend on `n`. An accelerator calls its generator once for a batch (a launch per
    field would cost far more); there it may depend on `n`. With a generator of the CPU it gets the fields of
    the CPU, to rounding, which takes a quarter of the time.

    Args:
        grid: Grid of the fields.
        n: Number of fields.
        generator: Generator of random numbers; None: that of torch.
        length: Length scale, relative to the unit cube.
        nu: Smoothness: 0.5, 1.5 or 2.5.
        device: Device of the fields; None: that of the generator. Another one only in float64, and from a
            generator of the CPU.
        dtype: Precision of the fields.

    Returns:
        Fields `(n, *grid)`.
    """
    target_device = _device(device, generator, dtype)
    length, nu = float(length), float(nu)
    n = _check(n, length, nu, dtype)
    work = dtype if dtype == torch.float64 else torch.float32
    root = kernel_root(grid.points_per_axis, length, nu, target_device, work)
    size = sum(root.sizes)
    batch = 1 if target_device.type == "cpu" else max(1, BATCH // size)

    def draw(count: int) -> Tensor:
        if generator is not None and generator.device != target_device and generator.device.type == "cpu":
            w = cpu_normals(count, size, generator, target_device) * root.deviation
        else:
            w = torch.empty(count, size, device=target_device, dtype=work)
            w = w.normal_(0, root.deviation, generator=generator)
        return root(w).to(dtype).contiguous()

    count = n * grid.n_channels
    if count <= batch:
        # Saves a copy.
        return draw(count).reshape(n, *grid.shape)
    out = torch.empty(count, *grid.points_per_axis, device=target_device, dtype=dtype)
    for chunk in torch.split(out, batch):
        chunk.copy_(draw(len(chunk)))
    return out.reshape(n, *grid.shape)


def cpu_normals(
    count: int, size: int, generator: torch.Generator, device: torch.device
) -> Float[Tensor, "count size"]:
    """Return the normals that `normal_` draws on the CPU row by row, to rounding, on another device.

    Most of its time there goes into logarithms and cosines. The CPU draws uniform numbers alone, the device
    does the rest: torch makes normals of FILL uniform numbers at a time, and where these do not fill a row,
    the last FILL of it are drawn anew.

    Args:
        count: Number of rows.
        size: Normals in a row.
        generator: A generator of the CPU, which is then in the state that `normal_` leaves.
        device: The device.

    Returns:
        The normals, in float64.
    """
    # Fewer are made one by one.
    if size < FILL:
        rows = [torch.empty(size, dtype=torch.float64).normal_(generator=generator) for _ in range(count)]
        return torch.stack(rows).to(device)
    is_pinned, tail = device.type == "cuda", FILL if size % FILL else 0
    uniform = torch.empty(count, size + tail, dtype=torch.float64, pin_memory=is_pinned)
    for row in uniform:
        row.uniform_(generator=generator)
    uniform = uniform.to(device, non_blocking=True)
    if not tail:
        return _box_muller(uniform)
    head = _box_muller(uniform[:, : size // FILL * FILL])
    return torch.cat((head[:, : size - FILL], _box_muller(uniform[:, size:])), 1)


def _box_muller(uniform: Tensor) -> Tensor:
    """Turn every FILL uniform numbers of a row into normals."""
    a, b = uniform.reshape(len(uniform), -1, 2, FILL // 2).unbind(2)
    radius, angle = torch.sqrt(-2 * torch.log(1 - a)), 2 * math.pi * b
    return torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), 2).flatten(1)


def matern(r: Float[Tensor, "*lags"], length: float, nu: float) -> Float[Tensor, "*lags"]:
    """Evaluate the kernel K.

    Args:
        r: Distances.
        length: Length scale.
        nu: Smoothness: 0.5, 1.5 or 2.5.

    Returns:
        Covariances.
    """
    # exp(-1000) is zero already; inf * 0 would not be.
    z = (math.sqrt(2 * nu) * (r / length)).clamp(max=1e3)
    return {0.5: torch.ones_like(z), 1.5: 1 + z, 2.5: 1 + z + z * z / 3}[nu] * torch.exp(-z)


@dataclass(frozen=True, eq=False)
class Average:
    """Normals on a lattice seen through a window, and a moving average of them.

    Attributes:
        lattice: Shape of the lattice.
        grid: The window.
        taps: Pairs of the window shifted by h, and b_h.
        deviation: Standard deviation of the normals.
    """

    lattice: tuple[int, ...]
    grid: tuple[slice, ...] = ()
    taps: tuple[tuple[tuple[slice, ...], float], ...] = ()
    deviation: float = 1.0

    @property
    def sizes(self) -> list[int]:
        """Numbers of normals for one field."""
        return [math.prod(self.lattice)]

    def __call__(self, w: Float[Tensor, "batch size"]) -> Float[Tensor, " batch *shape"]:
        """Apply the root: one pass over memory per tap.

        Args:
            w: Normals, one row per field.

        Returns:
            The fields.
        """
        w = w.reshape(-1, *self.lattice)
        u = w[self.grid]
        for i, (window, b) in enumerate(self.taps):
            # In place once u is not part of w.
            u = torch.add(u, w[window], alpha=b, out=u if i else None)
        return u


@dataclass(frozen=True, eq=False)
class Torus:
    """Waves on a torus, and products of thin matrices for the wide Gaussians.

    Attributes:
        shape: Shape of one field.
        spectrum: Amplitudes of the waves, sqrt(s / N).
        wide: For each wide Gaussian, one thin matrix per axis.
        deviation: Standard deviation of the normals.
    """

    shape: tuple[int, ...]
    spectrum: Float[Tensor, "*torus"]
    wide: tuple[tuple[Tensor, ...], ...]
    deviation: float = 1.0

    @property
    def sizes(self) -> list[int]:
        """Numbers of normals for one field: for the torus, then for each wide Gaussian."""
        return [self.spectrum.numel(), *(math.prod(a.shape[1] for a in axes) for axes in self.wide)]

    def __call__(self, w: Float[Tensor, "batch size"]) -> Float[Tensor, " batch *shape"]:
        """Apply the root; what lies outside the grid is dropped axis by axis.

        Args:
            w: Normals, one row per field.

        Returns:
            The fields.
        """
        torus, *gaussian_parts = torch.split(w, self.sizes, dim=1)
        y = torus.reshape(-1, *self.spectrum.shape) * self.spectrum
        f = torch.fft.rfft(y, dim=-1)[..., : self.shape[-1]]
        for dim in range(len(self.shape) - 1, 0, -1):
            f = torch.fft.fft(f, dim=dim).narrow(dim, 0, self.shape[dim - 1])
        # sum_k y_k cas(k . x).
        u = torch.real(f) + torch.imag(f)
        for axes, part in zip(self.wide, gaussian_parts, strict=True):
            v = part.reshape(-1, *(a.shape[1] for a in axes))
            # Takes the first grid axis away, appends it as the last: in the end all in order.
            for a in axes:
                v = torch.tensordot(v, a, dims=([1], [1]))
            u = u + v
        return u


@lru_cache(maxsize=8)
# Kept for training too, whoever asks first.
@torch.inference_mode(False)
def kernel_root(
    shape: tuple[int, ...], length: float, nu: float, device: torch.device, dtype: torch.dtype
) -> Average | Torus:
    """Compute the root of the kernel in float64 on the CPU, and keep it.

    Args:
        shape: Shape of the grid.
        length: Length scale.
        nu: Smoothness.
        device: Device where it is needed.
        dtype: Precision in which it is needed.

    Returns:
        The root: normals to fields.

    Raises:
        SapcError: The kernel cannot be drawn exactly.
    """
    nearest = torch.tensor(1 / (max(shape) - 1), dtype=torch.float64)
    if float(matern(nearest, length, nu)) < WHITE:
        return Average(shape)
    if (average := _moving_average(shape, length, nu)) is not None:
        return average
    lags = _torus_lags(shape)
    k = matern(_outer([x.square() for x in lags], torch.add).sqrt(), length, nu)
    s = torch.fft.fftn(k).real
    gaussians = _wide_gaussians(length, nu) if _clipping_error(s) > ROUNDING else []
    for weight, sigma in gaussians:
        k -= weight * _outer([torch.exp(-((x / sigma) ** 2) / 2) for x in lags], torch.mul)
    s = torch.fft.fftn(k).real if gaussians else s
    if (error := _clipping_error(s)) > CLIP:
        raise SapcError(
            f"the source with length {length:g} and nu {nu:g} cannot be drawn exactly on {shape} points: its "
            f"covariance would be off by {error:.1e}, above {CLIP:.0e}; choose a shorter length"
        )
    spectrum = (s.clamp(min=0) / s.numel()).sqrt().to(device=device, dtype=dtype)
    wide = (_thin_roots(shape, weight, sigma) for weight, sigma in gaussians)
    return Torus(shape, spectrum, tuple(tuple(a.to(spectrum) for a in axes) for axes in wide))


def _moving_average(shape: tuple[int, ...], length: float, nu: float) -> Average | None:
    """Return Kolmogorov's factor, if a few lags of it are enough."""
    # 0, 1, ..., -2, -1.
    h = torch.fft.fftfreq(PERIOD, 1 / PERIOD, dtype=torch.float64)
    k = matern(_outer([(h / (n - 1)).square() for n in shape], torch.add).sqrt(), length, nu)
    # Below zero for longer K, which the error then rules out.
    s = torch.fft.fftn(k).real.clamp(min=1e-12)
    # Its sign is lexicographic.
    order = _outer([h / (2 * PERIOD) ** i for i in range(len(shape))], torch.add)
    c = torch.fft.ifftn(s.log()).real * (order.sign() + 1) / 2
    # Of exp(c_0 / 2 + c_+).
    b = torch.fft.ifftn(torch.fft.fftn(c).exp()).real
    b = torch.where(b.abs() > NEAR / 2, b, 0)
    # at lags beyond half the period b has no covariance, and K is smaller than at half the period
    error = (torch.fft.ifftn(torch.fft.fftn(b).abs().square()).real - k).abs().max()
    # The origin comes first.
    lags = (b.nonzero() + PERIOD // 2) % PERIOD - PERIOD // 2
    if not float(error) <= NEAR or int(lags.abs().max()) > REACH:
        return None
    lattice = torch.tensor(shape) + lags.amax(0) - lags.amin(0)
    starts = (lags - lags.amin(0)).tolist()
    windows = [
        (slice(None), *(slice(i, i + n) for i, n in zip(start, shape, strict=True))) for start in starts
    ]
    deviation = float(b.flatten()[0])
    taps = list(zip(windows, (b[b != 0] / deviation).tolist(), strict=True))
    return Average(tuple(lattice.tolist()), windows[0], tuple(taps[1:]), deviation)


def _torus_lags(shape: tuple[int, ...]) -> list[Tensor]:
    """Return distances from the origin, by axis, on a torus that holds the cube's lags and suits the FFT."""
    lags = []
    for n in shape:
        # Factors 2, 3 and 5 only.
        m = next(m for m in range(2 * (n - 1), 4 * n) if 30**16 % m == 0)
        j = torch.arange(m, dtype=torch.float64)
        lags.append(torch.minimum(j, m - j) / (n - 1))
    return lags


def _outer(factors: list[Tensor], combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Combine one vector per axis by broadcasting into a tensor on the torus."""
    return reduce(lambda a, b: combine(a[..., None], b), factors)


def _clipping_error(s: Tensor) -> float:
    """Bound how far setting the negative eigenvalues to zero can move any covariance."""
    return float(-s.clamp(max=0).sum() / s.numel())


def _wide_gaussians(length: float, nu: float) -> list[tuple[float, float]]:
    """Return weights and widths of the Gaussians with sigma >= SIGMA.

    They are those of Gauss-Legendre quadrature in log g.
    """
    # The law has less than 1e-9 below 1e-20.
    start = max(nu * (SIGMA / length) ** 2, 1e-20)
    x, dx = np.polynomial.legendre.leggauss(NODES)
    half = math.log(max(50.0, 2 * start) / start) / 2
    g = start * np.exp(half * (x + 1))
    weights = dx * half * g**nu * np.exp(-g) / math.gamma(nu)
    keep = weights > 1e-14
    g, weights = g[keep], weights[keep]
    mass = torch.special.gammaincc(*torch.tensor([nu, start], dtype=torch.float64))
    weights *= float(mass) / weights.sum()
    return [(float(weight), length * math.sqrt(v / nu)) for weight, v in zip(weights, g, strict=True)]


def _thin_roots(shape: tuple[int, ...], weight: float, sigma: float) -> tuple[Tensor, ...]:
    """Return a thin root per axis of the Gaussian of width `sigma`; sqrt(weight) goes first."""
    roots = []
    for n in shape:
        x = torch.linspace(0, 1, n, dtype=torch.float64) / sigma
        values, vectors = torch.linalg.eigh(torch.exp(-((x[:, None] - x) ** 2) / 2))
        keep = values > 1e-13 * n
        roots.append(vectors[:, keep] * values[keep].sqrt())
    roots[0] = roots[0] * math.sqrt(weight)
    return tuple(roots)


def _device(
    device: torch.device | str | None, generator: torch.Generator | None, dtype: torch.dtype
) -> torch.device:
    """Return where to draw: as asked, else where the generator is, else on the CPU."""
    try:
        target_device = torch.device("cpu" if device is None else device)
        torch.empty(0, device=target_device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise SapcError(
            f"the source cannot be drawn on {str(device)!r} ({reason}); use 'cpu' or 'cuda'"
        ) from error
    if generator is None:
        return target_device
    generator_device = generator.device
    if device is not None and generator_device.type == "cpu" and dtype == torch.float64:
        return target_device
    if device is not None and target_device not in (generator_device, torch.device(generator_device.type)):
        raise SapcError(
            f"the source is asked for on {target_device}, but its generator is on {generator_device}; make "
            "it there, or leave out the device"
        )
    return generator_device


def _check(n: SupportsIndex, length: float, nu: float, dtype: torch.dtype) -> int:
    """Return the number of fields as a plain integer; refuse what cannot be drawn."""
    try:
        count = 0 if isinstance(n, bool) else operator.index(n)
    except TypeError:
        count = 0
    if count < 1:
        raise SapcError(f"the source was asked for {n!r} fields; the number must be an integer of at least 1")
    if not (length > 0 and math.isfinite(length)):
        raise SapcError(f"the length scale of the source is {length}; it must be positive and finite")
    if nu not in (0.5, 1.5, 2.5):
        raise SapcError(f"the source has no Matern kernel with nu = {nu}; choose 0.5, 1.5 or 2.5")
    if not dtype.is_floating_point:
        raise SapcError(f"the source is real and cannot return {dtype}; choose a floating-point dtype")
    return count


def derive_seed(*description: object) -> int:
    """Derive the seed of a generator from a description.

    Args:
        *description: Anything whose `repr` is the same in every process.

    Returns:
        A seed.
    """
    return int.from_bytes(hashlib.sha256(repr(description).encode()).digest()[:8]) >> 1


__getattr__ = find_renamed(__name__)
