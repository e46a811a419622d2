"""Kernels of a block's spectral half: on every mode, channels are mixed by one complex matrix W = R + i I.

With z = a + i b as rows of channels,  z W = (a R - b I) + i (a I + b R),  and backward, from y' = c + i d,

    a' = c R^T + d I^T,   b' = d R^T - c I^T,   R' = sum over samples of a^T c + b^T d,   I' = sum of a^T d - b^T c.

Spectra lie in memory as `(batch, 2, modes, C)`, weights as `(2, modes, C, C)` in float32, rounded on the chip.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from .device_functions import add_product, load_matrix, product


@triton.jit
@no_type_check
def load_mode(p, n, mode, part, modes, batch, C: tl.constexpr):
    """One part of one mode of some samples, `(n, C)`."""
    at = (n.to(tl.int64)[:, None] * 2 + part) * modes * C + mode * C + tl.arange(0, C)[None, :]
    return tl.load(p + at, mask=n[:, None] < batch, other=0.0)


@triton.jit
@no_type_check
def store_mode(p, z, n, mode, part, modes, batch, C: tl.constexpr):
    """The same, back."""
    at = (n.to(tl.int64)[:, None] * 2 + part) * modes * C + mode * C + tl.arange(0, C)[None, :]
    tl.store(p + at, z.to(p.dtype.element_ty), mask=n[:, None] < batch)


@triton.jit(do_not_specialize=["modes", "batch"])
@no_type_check
def mix_forward(z_p, w_p, y_p, modes, batch, C: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr):
    """A program has one mode and NB samples."""
    kind = z_p.dtype.element_ty
    mode, c = tl.program_id(0), tl.arange(0, C)
    n = tl.program_id(1) * NB + tl.arange(0, NB)
    at = w_p + mode.to(tl.int64) * C * C
    R, I = load_matrix(at, c, c, C, 1, kind), load_matrix(at + modes * C * C, c, c, C, 1, kind)
    a, b = load_mode(z_p, n, mode, 0, modes, batch, C), load_mode(z_p, n, mode, 1, modes, batch, C)
    real = product(a, R, PRECISION) - product(b, I, PRECISION)
    imag = add_product(b, R, product(a, I, PRECISION), PRECISION)
    store_mode(y_p, real, n, mode, 0, modes, batch, C)
    store_mode(y_p, imag, n, mode, 1, modes, batch, C)


@triton.jit(do_not_specialize=["modes", "batch"])
@no_type_check
def mix_backward(
    g_p, z_p, w_p, gz_p, gw_p, scale_p, modes, batch,
    C: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A program has one mode and goes through all samples; the weights' gradient is multiplied by the number at `scale`."""
    kind = z_p.dtype.element_ty
    mode, i = tl.program_id(0), tl.arange(0, C)
    at = w_p + mode.to(tl.int64) * C * C
    R, I = load_matrix(at, i, i, 1, C, kind), load_matrix(at + modes * C * C, i, i, 1, C, kind)  # transposed
    gR = tl.zeros([C, C], tl.float32)
    gI = tl.zeros([C, C], tl.float32)
    for first in range(0, batch, NB):
        n = first + tl.arange(0, NB)
        c, d = load_mode(g_p, n, mode, 0, modes, batch, C), load_mode(g_p, n, mode, 1, modes, batch, C)
        ga = add_product(d, I, product(c, R, PRECISION), PRECISION)
        gb = product(d, R, PRECISION) - product(c, I, PRECISION)
        store_mode(gz_p, ga, n, mode, 0, modes, batch, C)
        store_mode(gz_p, gb, n, mode, 1, modes, batch, C)
        a, b = load_mode(z_p, n, mode, 0, modes, batch, C), load_mode(z_p, n, mode, 1, modes, batch, C)
        gR = add_product(tl.trans(b), d, add_product(tl.trans(a), c, gR, PRECISION), PRECISION)
        gI = add_product(tl.trans(a), d, gI, PRECISION) - product(tl.trans(b), c, PRECISION)
    scale = tl.load(scale_p)
    out = gw_p + mode.to(tl.int64) * C * C + i[:, None] * C + i[None, :]
    tl.store(out, gR * scale)
    tl.store(out + modes * C * C, gI * scale)
