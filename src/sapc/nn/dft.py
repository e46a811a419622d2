"""Truncated Fourier transforms as products with thin DFT matrices, and the blocks of the FNO that use them.

Fields have their channels last. So few modes are kept that a product beats a full FFT, and moves less memory.
With the real and imaginary part as an axis p of length two, a transform along one axis is one real matrix.
From the last axis to the first,

    (b, x, t, c) -> (b, x, p k_t, c) = (b, x p, k_t c) -> (b, p k_x, k_t c),

each arrow a product from the left, no transposition anywhere; the way back runs the same arrows in reverse.

`modes` counts k = -m/2 .. m/2-1 on every axis but the last, and k = 0 .. m-1 on the last, whose transform is
that of real data. Norm: none forward, 1/n back; `unitary`: n^-1/2 both ways, which keeps spectra near the
size of fields, within the range of half precision. What is done to the modes between the two is linear, so
the result is the same. A grid too coarse for some of the modes keeps those it has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


@dataclass(frozen=True, eq=False)
class Transforms:
    """What depends on a grid alone, first axis first.

    Attributes:
        grid: Points per axis.
        analyse: Matrices from fields to modes.
        synthesise: Matrices from modes to fields.
        mode_slices: Which of the stored modes the grid has.
        constant: Transform of the constant 1, `(modes,)`, zero but for the mean's entry.
        place: The points' coordinates in the unit cube, and a one, `(points, axes + 1)`; at least float32.
    """

    grid: tuple[int, ...]
    analyse: tuple[Tensor, ...]
    synthesise: tuple[Tensor, ...]
    mode_slices: tuple[slice, ...]
    constant: Tensor
    place: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Transform `(batch, *grid, channels)` to `(batch, 2, *modes, channels)`."""
        *lead, n, channels = x.shape
        z = multiply(self.analyse[-1], x.reshape(math.prod(lead), n, channels))
        return self.to_modes(z.reshape(*lead, 2, -1, channels))

    def to_modes(self, z: Tensor) -> Tensor:
        """Transform `(batch, *lines, 2, last modes, channels)` to `(batch, 2, *modes, channels)`."""
        batch, channels, modes = z.shape[0], z.shape[-1], [s.stop - s.start for s in self.mode_slices]
        for axis in reversed(range(len(self.mode_slices) - 1)):
            lines = batch * math.prod(self.grid[:axis])
            z = multiply(self.analyse[axis], z.reshape(lines, 2 * self.grid[axis], -1))
        return z.reshape(batch, 2, *modes, channels)

    def inverse(self, z: Tensor) -> Tensor:
        """Transform `(batch, 2, *modes, channels)` back to `(batch, *grid, channels)`."""
        z = self.from_modes(z)
        *lead, two, n, channels = z.shape
        return multiply(self.synthesise[-1], z.reshape(-1, two * n, channels)).reshape(
            *lead, self.grid[-1], channels
        )

    def from_modes(self, z: Tensor) -> Tensor:
        """Invert `to_modes`, on fields that have no other modes."""
        batch, channels, last = z.shape[0], z.shape[-1], z.shape[-2]
        for axis, n in enumerate(z.shape[2:-2]):
            z = multiply(self.synthesise[axis], z.reshape(batch * math.prod(self.grid[:axis]), 2 * n, -1))
        return z.reshape(batch, *self.grid[:-1], 2, last, channels)


def multiply(matrix: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    """Multiply a matrix with a batch of them; `matrix @ x` would transpose all of x first.

    Args:
        matrix: The matrix `(k, n)`.
        x: The batch `(lines, n, channels)`.
        out: Where the result goes, if that is given.

    Returns:
        The products `(lines, k, channels)`.
    """
    return torch.bmm(matrix.expand(len(x), -1, -1), x, out=out)


@torch.inference_mode(False)
@torch.no_grad()
def make_transforms(
    grid: tuple[int, ...],
    modes: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    unitary: bool = False,
) -> Transforms:
    """Make the matrices of a grid, in float64; they serve for training too, even if made in inference."""
    analyse, synthesise, mode_slices = [], [], []
    for n, m in zip(grid[:-1], modes[:-1], strict=True):
        low, high = -min(m // 2, n // 2), min((m + 1) // 2, (n + 1) // 2)
        c, s = _waves(torch.arange(low, high), n)
        # (c - i s)(re + i im), columns (x, p); and its conjugate transpose over n.
        forward = torch.stack((torch.stack((c, s), -1), torch.stack((-s, c), -1))).flatten(2).flatten(0, 1)
        scale = n**-0.5 if unitary else 1.0
        analyse.append(forward * scale)
        synthesise.append(forward.T / (n * scale))
        mode_slices.append(slice(low + m // 2, high + m // 2))
    n, m = grid[-1], min(modes[-1], grid[-1] // 2 + 1)
    c, s = _waves(torch.arange(m), n)
    forward = torch.cat((c, -s))
    # A wave and its conjugate, but for the mean and n/2.
    multiplicity = torch.full((m,), 2.0, dtype=torch.float64)
    multiplicity[0] = 1
    if 2 * (m - 1) == n:
        multiplicity[-1] = 1
    scale = n**-0.5 if unitary else 1.0
    analyse.append(forward * scale)
    synthesise.append((forward * multiplicity.repeat(2)[:, None]).T / (n * scale))
    mode_slices.append(slice(0, m))
    first, second = (tuple(a.contiguous().to(device, dtype) for a in side) for side in (analyse, synthesise))
    constant = torch.zeros([k.stop - k.start for k in mode_slices], dtype=dtype, device=device)
    mean = tuple(m // 2 - k.start for m, k in zip(modes[:-1], mode_slices[:-1], strict=True))
    constant[(*mean, 0)] = math.prod(grid) ** (0.5 if unitary else 1.0)
    return Transforms(
        grid, first, second, tuple(mode_slices), constant.flatten(), _place(grid, dtype, device)
    )


def _place(grid: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    lines = torch.meshgrid(*(torch.linspace(0, 1, n, dtype=torch.float64) for n in grid), indexing="ij")
    exact = dtype if dtype == torch.float64 else torch.float32
    return torch.stack((*lines, torch.ones(grid, dtype=torch.float64)), -1).flatten(0, -2).to(device, exact)


def _waves(k: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Compute `cos` and `sin` of `2 pi k x / n`, `(k, x)`; the phase, reduced in integers, is exact."""
    phase = (k[:, None] * torch.arange(n)).remainder(n).double() * (2 * math.pi / n)
    return phase.cos(), phase.sin()


# -- blocks --


class Spectral(nn.Module):
    """The Fourier half of a block: a complex channel matrix per mode, as a real pair, and a bias."""

    def __init__(self, hidden: int, modes: tuple[int, ...]) -> None:
        super().__init__()
        # Standard deviation of a complex entry: its square is 2 / (inputs + outputs).
        scale = math.sqrt(1 / hidden)
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(2, *modes, hidden, hidden) * (scale / math.sqrt(2)))
        self.bias = nn.Parameter(torch.randn(hidden) * scale)

    def forward(self, x: Tensor, transforms: Transforms) -> Tensor:
        """Evaluate by products with DFT matrices."""
        z = transforms.forward(x)
        batch, modes, c = z.shape[0], z.shape[2:-1], z.shape[-1]
        re, im = self.weight[(slice(None), *transforms.mode_slices)].to(x.dtype).reshape(2, -1, c, c)
        # (modes, 2c, 2c)
        mix = torch.cat((torch.cat((re, im), 2), torch.cat((-im, re), 2)), 1)
        z = z.reshape(batch, 2, -1, c).permute(2, 0, 1, 3).reshape(-1, batch, 2 * c)
        # The bias joins the mean's mode: as a sum over the wide tensor its gradient would cost as much as a
        # transform.
        bias = torch.cat((self.bias, torch.zeros_like(self.bias))).to(x.dtype)
        z = torch.baddbmm(transforms.constant[:, None, None] * bias, z, mix)
        z = z.reshape(-1, batch, 2, c).permute(1, 2, 0, 3).reshape(batch, 2, *modes, c)
        return transforms.inverse(z)

    def forward_fft(self, x: Tensor, transforms: Transforms) -> Tensor:
        """Evaluate by full FFTs: the oracle."""
        grid, axes = transforms.grid, tuple(range(1, x.ndim - 1))
        z = torch.fft.rfftn(x, dim=axes)
        rows = [
            torch.arange(k.start - m // 2, k.stop - m // 2, device=x.device) % n
            for n, m, k in zip(grid[:-1], self.modes[:-1], transforms.mode_slices[:-1], strict=True)
        ]
        last = torch.arange(transforms.mode_slices[-1].stop, device=x.device)
        index: tuple[slice | Tensor, ...] = (slice(None), *torch.meshgrid(*rows, last, indexing="ij"))
        weight = torch.complex(*self.weight[(slice(None), *transforms.mode_slices)].to(x.dtype))
        out = torch.zeros_like(z)
        out[index] = torch.einsum("b...i,...io->b...o", z[index], weight)
        result: Tensor = torch.fft.irfftn(out, s=grid, dim=axes)
        return result + self.bias


class Block(nn.Module):
    """`S(x) + W x`, the bias within S."""

    def __init__(self, hidden: int, modes: tuple[int, ...]) -> None:
        super().__init__()
        self.spectral = Spectral(hidden, modes)
        self.pointwise = nn.Linear(hidden, hidden, bias=False)

    def parameters_for(self, transforms: Transforms) -> tuple[Tensor, Tensor, Tensor]:
        """Select the weights of the modes that a grid has; return them, bias and pointwise weights."""
        s = self.spectral
        is_whole = all(k.stop - k.start == m for k, m in zip(transforms.mode_slices, s.modes, strict=True))
        weight = s.weight if is_whole else s.weight[(slice(None), *transforms.mode_slices)].contiguous()
        return weight, s.bias, self.pointwise.weight

    def forward(self, x: Tensor, transforms: Transforms, fft: bool) -> Tensor:
        """Evaluate, channels last, by matrices or by full FFTs."""
        spectral = self.spectral.forward_fft(x, transforms) if fft else self.spectral(x, transforms)
        if x.is_cuda or torch.is_grad_enabled():
            return spectral + linear(x, self.pointwise.weight.to(x.dtype))
        # Without a gradient the product is added in place: a pass over the activation less, and no new
        # memory.
        flat = spectral.reshape(-1, spectral.shape[-1])
        return flat.addmm_(x.reshape(flat.shape), self.pointwise.weight.to(x.dtype).T).view(spectral.shape)
