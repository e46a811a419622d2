"""Kernels of a block.

**Physical half**: one pass over the activation forward, one backward. Forward, for each row, with the mixed
spectrum Y of this block and the row x:

    h = OUT Y + x W^T + b,     Z = IN gelu(h)       OUT, IN: inverse and forward transform along the row

h and Z leave, x and Y enter, everything between stays on the chip. A network that will be differentiated
keeps h, and the next kernel takes gelu(h) again; one that will not keeps gelu(h).

Backward, from the gradients h' of the next block's sum and Z' of its spectrum:

    x' = h' W + IN^T Z',   h'_before = gelu'(h) x',   Y' = OUT^T h'_before,   W' = h'^T gelu(h),

so one pass reads h' and h and writes h'_before. The gradients of weights are summed by each program over its
rows and added up afterwards: the order of all sums is fixed.

**Spectral half**: on every mode, channels are mixed by one complex matrix W = R + i I.
With z = a + i b as rows of channels,  z W = (a R - b I) + i (a I + b R),  and backward, from y' = c + i d,

    a' = c R^T + d I^T,                          b' = d R^T - c I^T,
    R' = sum over samples of a^T c + b^T d,      I' = sum over samples of a^T d - b^T c.

Spectra lie in memory as `(batch, 2, modes, C)`, weights as `(2, modes, C, C)` in float32, rounded on the
chip.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from .device_functions import (
    add_product,
    gelu,
    gelu_and_slope,
    load_into,
    load_matrix,
    load_out,
    load_row,
    load_spectrum,
    product,
    store_row,
    store_spectrum,
)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def block_forward(
    x_p, y_p, h_p, z_p, w_p, b_p, out_p, in_p, rows,
    T: tl.constexpr, C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, R: tl.constexpr, TB: tl.constexpr,
    NT: tl.constexpr, PENDING_GELU: tl.constexpr, STORE_GELU: tl.constexpr, GELU: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Evaluate a block; `PENDING_GELU`: x is a sum before its gelu; `STORE_GELU`: store gelu(h), not h."""
    kind = x_p.dtype.element_ty
    c = tl.arange(0, C)
    # (out, in)
    w, b = load_matrix(w_p, c, c, C, 1, kind), tl.load(b_p + c)
    out, into = load_out(out_p, 0, TB, MP), load_into(in_p, 0, TB, R, NT * TB)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        y, mean = load_spectrum(y_p, row, T, C, M, MP)
        base = b + mean
        z = tl.zeros([R, C], tl.float32)
        for i in tl.static_range(NT):
            t = i * TB + tl.arange(0, TB)
            if NT > 1:
                out, into = load_out(out_p, i, TB, MP), load_into(in_p, i, TB, R, NT * TB)
            x = load_row(x_p, row, t, T, C)
            if PENDING_GELU:
                x = gelu(x.to(tl.float32), GELU).to(kind)
            h = product(x, tl.trans(w), PRECISION)
            h = add_product(out, y, h, PRECISION) + base[None, :]
            a = gelu(h, GELU)
            if STORE_GELU:
                store_row(h_p, a, row, t, T, C)
            else:
                store_row(h_p, h, row, t, T, C)
            z = add_product(into, a.to(kind), z, PRECISION)
        store_spectrum(z_p, z, row, C, M, MP, R)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def block_backward(
    g_p, gz_p, h_p, gh_p, gy_p, w_p, gw_p, out_p, in_p, rows,
    T: tl.constexpr, C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, R: tl.constexpr, TB: tl.constexpr,
    NT: tl.constexpr, FIRST: tl.constexpr, GELU: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Differentiate a block: `g`, `gz` are h' and Z' of the next block; `out`, `into` IN^T and OUT^T.

    `FIRST`: what enters the block is the lifting's sum, without gelu. The mean of Y' is needed for the bias.
    """
    kind = h_p.dtype.element_ty
    c = tl.arange(0, C)
    # (out, in)
    w = load_matrix(w_p, c, c, C, 1, kind)
    gw = tl.zeros([C, C], tl.float32)
    out, into = load_out(out_p, 0, TB, MP), load_into(in_p, 0, TB, R, NT * TB)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        gz, mean = load_spectrum(gz_p, row, T, C, M, MP)
        gy = tl.zeros([R, C], tl.float32)
        for i in tl.static_range(NT):
            t = i * TB + tl.arange(0, TB)
            if NT > 1:
                out, into = load_out(out_p, i, TB, MP), load_into(in_p, i, TB, R, NT * TB)
            g = load_row(g_p, row, t, T, C)
            a = load_row(h_p, row, t, T, C)
            gx = product(g, w, PRECISION)
            gx = add_product(out, gz, gx, PRECISION) + mean[None, :]
            if not FIRST:
                # Where the matrix units have gx, so that it is made once.
                x, slope = gelu_and_slope(a.to(tl.float32) + 0.0 * gx, GELU)
                a, gx = x.to(kind), gx * slope
            gw = add_product(tl.trans(g), a, gw, PRECISION)
            store_row(gh_p, gx, row, t, T, C)
            gy = add_product(into, gx.to(kind), gy, PRECISION)
        store_spectrum(gy_p, gy, row, C, M, MP, R)
    tl.store(gw_p + (tl.program_id(0) * C + c[:, None]) * C + c[None, :], gw)


@triton.jit
@no_type_check
def load_mode(p, n, mode, part, modes, batch, C: tl.constexpr):
    """Load one part of one mode of some samples, `(n, C)`."""
    address = (n.to(tl.int64)[:, None] * 2 + part) * modes * C + mode * C + tl.arange(0, C)[None, :]
    return tl.load(p + address, mask=n[:, None] < batch, other=0.0)


@triton.jit
@no_type_check
def store_mode(p, z, n, mode, part, modes, batch, C: tl.constexpr):
    """Store what `load_mode` loads."""
    address = (n.to(tl.int64)[:, None] * 2 + part) * modes * C + mode * C + tl.arange(0, C)[None, :]
    tl.store(p + address, z.to(p.dtype.element_ty), mask=n[:, None] < batch)


@triton.jit(do_not_specialize=["modes", "batch"])
@no_type_check
def mix_forward(z_p, w_p, y_p, modes, batch, C: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr):
    """Mix channels; a program has one mode and NB samples."""
    kind = z_p.dtype.element_ty
    mode, c = tl.program_id(0), tl.arange(0, C)
    n = tl.program_id(1) * NB + tl.arange(0, NB)
    address = w_p + mode.to(tl.int64) * C * C
    R, I = load_matrix(address, c, c, C, 1, kind), load_matrix(address + modes * C * C, c, c, C, 1, kind)
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
    """Differentiate the mixing; the weights' gradient is multiplied by the number at `scale`.

    A program has one mode and goes through all samples.
    """
    kind = z_p.dtype.element_ty
    mode, i = tl.program_id(0), tl.arange(0, C)
    address = w_p + mode.to(tl.int64) * C * C
    # Transposed.
    R, I = load_matrix(address, i, i, 1, C, kind), load_matrix(address + modes * C * C, i, i, 1, C, kind)
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
