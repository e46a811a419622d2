"""The source: a Gaussian process with a Matern kernel, variance 1 and full rank, exact at every length scale.

On the unit cube, `linspace(0, 1, n)` along every axis, two points at distance `r` have the covariance
(with `z = sqrt(2 nu) r / length`)

    nu = 0.5   K = exp(-z)
    nu = 1.5   K = (1 + z) exp(-z)
    nu = 2.5   K = (1 + z + z^2 / 3) exp(-z).

A draw is `root(w)`: standard normals `w` through a square root of the kernel matrix, kept per grid shape,
length, nu and device. The kernel on the grid decides which root it is:

**White noise**, `u = w`, when even the closest neighbours correlate by less than WHITE = 1e-6.

**Circulant embedding**, when the kernel has died out across the cube. A torus of period 2 or a little more
holds every lag of the cube; K wrapped around it is diagonal in Fourier space, and its eigenvalues `s` are
positive for short lengths. Since s is even, real waves `cas = cos - sin` serve as well as complex ones: on N
points,

    u(x) = sum_k sqrt(s_k / N) w_k cas(k . x)   has covariance   sum_k s_k / N cos(k . (x - y)) = K(x - y).

**Embedding and wide Gaussians**, when some s < 0, as long lengths have it whatever the (affordable) padding.
A Matern kernel is a mixture of Gaussians,

    K(r) = E exp(-r^2 / (2 sigma^2)),   sigma^2 = length^2 g / nu,   g ~ Gamma(nu, 1),

so it falls at any width into two positive definite kernels. Those narrower than SIGMA = 0.14 are below 1e-11
at r = 1, and their sum embeds. The wider ones are taken as `sum_q w_q exp(-r^2 / (2 sigma_q^2))`, a
quadrature with positive weights; each term is a smooth product over the axes, so its field `A_x w A_y^T`
needs thin matrices only (at most some twenty columns). The narrow part is K minus this very sum, so that the
two add up to K whatever the quadrature's error.

What is lost: eigenvalues below zero count as zero, which changes no covariance by more than their sum over N.
Measured on 100 x 100 and 64 x 64 x 50 for the three nu: the plain embedding is positive up to length 0.1
(clipped, it would err by 3e-4 to 4e-3 at length 0.3 and by up to 0.15 at 1); with wide Gaussians the bound is
below 1e-13 for lengths 0.3, 1 and 3, and below 1e-12 for every longer one tried, up to 1e9. Should it ever
exceed CLIP = 1e-9, there is an error and no sample. On small grids, where the root can be squared, the
covariance equals the kernel matrix to 1e-12 in float64; white noise is within WHITE, and float32 adds its
rounding.
"""

from __future__ import annotations

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

from .errors import SapcError
from .grid import Grid

WHITE = 1e-6  # neighbour correlation below which the field is drawn as white noise
ROUNDING = 1e-12  # below this, what clipping loses is rounding and the plain embedding stands
CLIP = 1e-9  # largest covariance error that clipping negative eigenvalues may cause
SIGMA = 0.14  # widest Gaussian left to the embedding: exp(-1 / (2 SIGMA^2)) = 8e-12 where the torus wraps
NODES = 48  # quadrature nodes for the wide Gaussians
BATCH = 2**25  # normals drawn at a time on an accelerator


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
    """Draw `n` fields of the Matern Gaussian process on `grid`, taken as the unit cube.

    The fields lie on `device`, by default the generator's. The same generator state gives the same bits. Each
    field takes its normals from the generator in turn, so field i does not depend on `n`: to the bit on the
    CPU, where fields are transformed one by one, and to rounding on an accelerator, which works in batches.
    """
    where = _device(device, generator)
    length, nu = float(length), float(nu)
    n = _check(n, length, nu, dtype)
    work = dtype if dtype == torch.float64 else torch.float32
    root = kernel_root(grid.shape, length, nu, where, work)
    batch = 1 if where.type == "cpu" else min(n, max(1, BATCH // root.size))
    out = torch.empty(n, *grid.shape, device=where, dtype=dtype)
    for some in torch.split(out, batch):
        w = torch.empty(len(some), root.size, device=where, dtype=work)
        for row in w:
            row.normal_(generator=generator)
        some.copy_(root(w))
    return out


def matern(r: Float[Tensor, "*lags"], length: float, nu: float) -> Float[Tensor, "*lags"]:
    """The kernel K at distances `r`, for nu = 0.5, 1.5 or 2.5."""
    z = (math.sqrt(2 * nu) * (r / length)).clamp(max=1e3)  # exp(-1000) is zero already; inf * 0 would not be
    factor = {0.5: torch.ones_like(z), 1.5: 1 + z, 2.5: 1 + z + z * z / 3}[nu]
    return factor * torch.exp(-z)


@dataclass(frozen=True, eq=False)
class Root:
    """A square root of the kernel matrix: standard normals `(batch, size)` become fields with covariance K.

    `spectrum` holds sqrt(s / N) on the torus, or nothing for white noise; `wide` holds for each wide Gaussian
    one thin matrix `(points, columns)` per axis.
    """

    shape: tuple[int, ...]
    spectrum: Float[Tensor, "*torus"] | None = None
    wide: tuple[tuple[Tensor, ...], ...] = ()

    @property
    def sizes(self) -> list[int]:
        """Normals for the torus, then for each wide Gaussian."""
        torus = math.prod(self.shape) if self.spectrum is None else self.spectrum.numel()
        return [torus, *(math.prod(a.shape[1] for a in axes) for axes in self.wide)]

    @property
    def size(self) -> int:
        """Normals for one field."""
        return sum(self.sizes)

    def __call__(self, w: Float[Tensor, "batch size"]) -> Float[Tensor, " batch *shape"]:
        """Apply the root."""
        if self.spectrum is None:
            return w.reshape(-1, *self.shape)
        torus, *rest = torch.split(w, self.sizes, dim=1)
        u = _cas(torus.reshape(-1, *self.spectrum.shape) * self.spectrum, self.shape)
        for axes, part in zip(self.wide, rest, strict=True):
            v = part.reshape(-1, *(a.shape[1] for a in axes))
            for a in (
                axes
            ):  # takes the first grid axis away and appends it as the last: in the end all are in order
                v = torch.tensordot(v, a, dims=([1], [1]))
            u = u + v
        return u


def _cas(y: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`sum_k y_k cas(k . x)` at the points of the cube; the rest of the torus is dropped axis by axis."""
    f = torch.fft.rfft(y, dim=-1)[..., : shape[-1]]
    for dim in range(len(shape) - 1, 0, -1):
        f = torch.fft.fft(f, dim=dim).narrow(dim, 0, shape[dim - 1])
    return torch.real(f) + torch.imag(f)


@lru_cache(maxsize=8)
def kernel_root(
    shape: tuple[int, ...], length: float, nu: float, device: torch.device, dtype: torch.dtype
) -> Root:
    """The root for a grid of this shape, computed in float64 on the CPU and kept."""
    nearest = torch.tensor(1 / (max(shape) - 1), dtype=torch.float64)
    if float(matern(nearest, length, nu)) < WHITE:
        return Root(shape)
    lags = _torus_lags(shape)
    k = matern(_outer([x.square() for x in lags], torch.add).sqrt(), length, nu)
    s = torch.fft.fftn(k).real
    gaussians = _wide_gaussians(length, nu) if _clipped(s) > ROUNDING else []
    for weight, sigma in gaussians:
        k -= weight * _outer([torch.exp(-((x / sigma) ** 2) / 2) for x in lags], torch.mul)
    s = torch.fft.fftn(k).real if gaussians else s
    if (lost := _clipped(s)) > CLIP:
        raise SapcError(
            f"the source with length {length:g} and nu {nu:g} cannot be drawn exactly on {shape} points: its "
            f"covariance would be off by {lost:.1e}, above {CLIP:.0e}; choose a shorter length"
        )
    spectrum = (s.clamp(min=0) / s.numel()).sqrt().to(device=device, dtype=dtype)
    wide = (_thin_roots(shape, weight, sigma) for weight, sigma in gaussians)
    return Root(shape, spectrum, tuple(tuple(a.to(spectrum) for a in axes) for axes in wide))


def _torus_lags(shape: tuple[int, ...]) -> list[Tensor]:
    """Distances from the origin along each axis of a torus that holds the cube's lags and suits the FFT."""
    lags = []
    for n in shape:
        m = next(m for m in range(2 * (n - 1), 4 * n) if 30**16 % m == 0)  # factors 2, 3 and 5 only
        j = torch.arange(m, dtype=torch.float64)
        lags.append(torch.minimum(j, m - j) / (n - 1))
    return lags


def _outer(factors: list[Tensor], combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """One vector per axis, combined by broadcasting into a tensor on the torus."""
    return reduce(lambda a, b: combine(a[..., None], b), factors)


def _clipped(s: Tensor) -> float:
    """How far setting the negative eigenvalues to zero can move any covariance."""
    return float(-s.clamp(max=0).sum() / s.numel())


def _wide_gaussians(length: float, nu: float) -> list[tuple[float, float]]:
    """Weights and widths of the Gaussians with sigma >= SIGMA, by Gauss-Legendre quadrature in log g."""
    start = max(nu * (SIGMA / length) ** 2, 1e-20)  # the law has less than 1e-9 below 1e-20
    end = max(50.0, 2 * start)
    x, dx = np.polynomial.legendre.leggauss(NODES)
    half = math.log(end / start) / 2
    g = start * np.exp(half * (x + 1))
    weights = dx * half * g**nu * np.exp(-g) / math.gamma(nu)
    keep = weights > 1e-14
    g, weights = g[keep], weights[keep]
    mass = torch.special.gammaincc(*torch.tensor([nu, start], dtype=torch.float64))
    weights *= float(mass) / weights.sum()
    return [(float(weight), length * math.sqrt(v / nu)) for weight, v in zip(weights, g, strict=True)]


def _thin_roots(shape: tuple[int, ...], weight: float, sigma: float) -> tuple[Tensor, ...]:
    """Per axis a thin root of the Gaussian of width `sigma`; sqrt(weight) goes first."""
    roots = []
    for n in shape:
        x = torch.linspace(0, 1, n, dtype=torch.float64) / sigma
        values, vectors = torch.linalg.eigh(torch.exp(-((x[:, None] - x) ** 2) / 2))
        keep = values > 1e-13 * n
        roots.append(vectors[:, keep] * values[keep].sqrt())
    roots[0] = roots[0] * math.sqrt(weight)
    return tuple(roots)


def _device(device: torch.device | str | None, generator: torch.Generator | None) -> torch.device:
    """Where to draw: as asked, else where the generator is, else the CPU."""
    try:
        where = torch.device("cpu" if device is None else device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise SapcError(
            f"the source cannot be drawn on {str(device)!r} ({str(error).splitlines()[0]}); "
            "use 'cpu', or 'cuda' where there is one"
        ) from error
    if generator is None:
        return where
    own = generator.device
    if device is not None and where not in (own, torch.device(own.type)):
        raise SapcError(
            f"the source is asked for on {where}, but its generator is on {own}; make the generator there, "
            "or leave out the device"
        )
    return own


def _check(n: SupportsIndex, length: float, nu: float, dtype: torch.dtype) -> int:
    """The number of fields as a plain integer; refuse what cannot be drawn."""
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
        raise SapcError(
            f"the source draws real numbers and cannot return {dtype}; choose a floating-point dtype"
        )
    return count
