"""Features of fields: the output of the encoder's bottleneck, averaged over its tokens.

A field is one image, in raw units, in the first of four channels, the others zero, at time zero; as Cheng et
al. (2025) do. An axis
that has not 128 points is resampled as if it were periodic, by its Fourier coefficients: with fewer points
(n) they are framed by (128 - n) // 2 zeros on either side, with more only -64..63 are kept, and the real part
is taken. An odd n gives 127 points, and a zero is put behind them. Poseidon's own code looks at the first
axis only, and cannot take 128 x 100; here each axis is treated by itself, which on squares is the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from ...errors import SapcError
from ...nn.fno import matmul_precision
from .encoder import CHANNELS, IMAGE, Encoder

BATCH = {"cpu": 8, "cuda": 128}
"""Images at a time, by kind of device."""

Progress = Callable[[int, int], None]


def features(
    encoder: Encoder,
    fields: Float[Tensor, "n height width"],
    batch: int | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, "n dim"]:
    """Compute one feature vector per field.

    Args:
        encoder: The encoder.
        fields: Fields of two axes, or frames, `(n, height, width)`.
        batch: Number of images at a time; chosen by the device unless given.
        progress: Called with fields done, fields in all.

    Returns:
        Features `(n, dim)` on the encoder's device.

    Raises:
        SapcError: The fields have another shape, are not finite, or too large for float32.
    """
    if fields.ndim != 3 or 0 in fields.shape:
        raise SapcError(
            f"features are of images (n, height, width), got shape {tuple(fields.shape)}; give a field with "
            "three axes frame by frame, as fields[..., k]"
        )
    size = batch or BATCH.get(encoder.device.type, 32)
    vectors = []
    with matmul_precision("float32"):
        for first in range(0, len(fields), size):
            part = fields[first : first + size].to(encoder.device)
            if not part.isfinite().all():
                raise SapcError(
                    "a field contains NaN or infinity and has no features; leave it out, or find out why"
                )
            vectors.append(encoder(images(part)).mean(1))
            if not vectors[-1].isfinite().all():
                raise SapcError(
                    f"a field with values up to {float(part.abs().max()):.1e} is too large for the encoder, "
                    "which works in float32"
                )
            if progress is not None:
                progress(first + len(part), len(fields))
    return torch.cat(vectors)


def images(fields: Float[Tensor, "n height width"]) -> Float[Tensor, "n 4 128 128"]:
    """Turn fields into images for the encoder.

    Args:
        fields: Fields of two axes `(n, height, width)`.

    Returns:
        Images `(n, 4, 128, 128)`, with the field in the first channel.
    """
    u = fields.double()
    for axis in (1, 2):
        u = _resample(u, axis)
    u = F.pad(u.real.float(), (0, IMAGE - u.shape[2], 0, IMAGE - u.shape[1]))
    return F.pad(u[:, None], (0, 0, 0, 0, 0, CHANNELS - 1))


def _resample(u: Tensor, axis: int) -> Tensor:
    """Resample an axis to 128 or 127 points by Fourier coefficients; complex unless nothing is to do."""
    n = u.shape[axis]
    if n == IMAGE:
        return u
    c = torch.fft.fftshift(torch.fft.fft(u, dim=axis, norm="forward"), dim=axis)
    if n > IMAGE:
        c = c.narrow(axis, n // 2 - IMAGE // 2, IMAGE)
    else:
        side = (IMAGE - n) // 2
        zeros = c.new_zeros([side if i == axis else k for i, k in enumerate(c.shape)])
        c = torch.cat((zeros, c, zeros), axis)
    images: Tensor = torch.fft.ifft(torch.fft.ifftshift(c, dim=axis), dim=axis, norm="forward")
    return images
