"""Functions that the kernels share: GELU with its slope, and the spectrum of a row.

**GELU.** `x Phi(x)`, Phi the normal distribution. `GELU = "exact"`: by the error function. Where factors are
rounded to 11 bits or fewer, Phi = (1 + tanh Q) / 2 with Q an odd polynomial of degree five, 5e-5 off at most,
and the tanh of the special function unit (`"unit"`), whose error is another 2.5e-4: a third of the
instructions of the error function, which would cost more than the memory traffic of a layer. The slope is
that of the function computed. (`"plain"` is the same without the unit, for the interpreter.)

**Spectrum of a row.** A row is one line along the last axis, `(T, C)`. Its kept modes lie in memory as `(2,
M, C)`: real and imaginary part, modes k = 0 .. M-1, channels; transforms are unitary. On the way in, the
mean, k = 0, is a vector that joins the bias, and the other 2 (M - 1) rows are padded to 2 MP, MP a power of
two, for the matrix units: with the 17 modes of the published network nothing is lost to padding there. On the
way out the mean is one more row of a product padded to R rows; the matrix that makes it is zero beyond the
end of the row, so nothing else has to be.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

C0: tl.constexpr = tl.constexpr(7.97507478e-01)
C1: tl.constexpr = tl.constexpr(3.70060209e-02)
C2: tl.constexpr = tl.constexpr(-3.51586127e-04)
# The square of a distance where Phi is 0 or 1 to all digits and Q still grows.
GELU_CUTOFF: tl.constexpr = tl.constexpr(36.0)


@triton.jit
@no_type_check
def tanh(x, GELU: tl.constexpr):
    """Compute the hyperbolic tangent, by the special function unit if there is one."""
    if GELU == "unit":
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1 - 2 / (1 + tl.exp(2 * x))


@triton.jit
@no_type_check
def gelu(x, GELU: tl.constexpr):
    """Compute x Phi(x)."""
    half = 0.5 * x
    if GELU == "exact":
        return half + half * tl.math.erf(x * 0.7071067811865476)
    else:
        y = tl.minimum(x * x, GELU_CUTOFF)
        return half + half * tanh(x * (C0 + y * (C1 + y * C2)), GELU)


@triton.jit
@no_type_check
def gelu_and_slope(x, GELU: tl.constexpr):
    """Compute x Phi(x) and its derivative."""
    half = 0.5 * x
    if GELU == "exact":
        p = 0.5 + 0.5 * tl.math.erf(x * 0.7071067811865476)
        return x * p, p + x * (tl.exp(x * x * -0.5) * 0.3989422804014327)
    else:
        y = tl.minimum(x * x, GELU_CUTOFF)
        h = tanh(x * (C0 + y * (C1 + y * C2)), GELU)
        slope = C0 + y * (3 * C1 + y * (5 * C2))
        return half + half * h, 0.5 + 0.5 * h + (half - half * h * h) * slope


@triton.jit
@no_type_check
def product(a, b, PRECISION: tl.constexpr):
    """Compute a b, summed in float32; `widened`: in float32 from rounded factors, for the interpreter."""
    if PRECISION == "widened":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
@no_type_check
def add_product(a, b, sum, PRECISION: tl.constexpr):
    """Compute sum + a b."""
    if PRECISION == "widened":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), sum, input_precision="ieee")
    else:
        return tl.dot(a, b, sum, input_precision=PRECISION)


@triton.jit
@no_type_check
def row_offset(row, size: tl.constexpr):
    """Compute where a row begins, in 64 bits: large batches have more than 2^31 numbers."""
    return tl.full([], size, tl.int64) * row


@triton.jit
@no_type_check
def load_row(p, row, t, T: tl.constexpr, C: tl.constexpr):
    """Load some points of a row, zero beyond its end: `(t, C)`."""
    c = tl.arange(0, C)
    return tl.load(p + row_offset(row, T * C) + t[:, None] * C + c[None, :], mask=t[:, None] < T, other=0.0)


@triton.jit
@no_type_check
def store_row(p, x, row, t, T: tl.constexpr, C: tl.constexpr):
    """Store some points of a row."""
    c = tl.arange(0, C)
    address = p + row_offset(row, T * C) + t[:, None] * C + c[None, :]
    tl.store(address, x.to(p.dtype.element_ty), mask=t[:, None] < T)


@triton.jit
@no_type_check
def load_spectrum(p, row, T: tl.constexpr, C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr):
    """Load the modes of a row but its mean, `(2 MP, C)`, and what the mean adds to every point, `(C,)`."""
    c, r = tl.arange(0, C), tl.arange(0, 2 * MP)
    k = 1 + r % MP
    start = p + row_offset(row, 2 * M * C)
    address = start + ((r // MP) * M + k)[:, None] * C + c[None, :]
    return tl.load(address, mask=k[:, None] < M, other=0.0), tl.load(start + c).to(tl.float32) * (T**-0.5)


@triton.jit
@no_type_check
def store_spectrum(p, z, row, C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, R: tl.constexpr):
    """Store modes `(R, C)`, with the mean in row 2 MP and its imaginary part, zero, in the next."""
    c, r = tl.arange(0, C), tl.arange(0, R)
    k = tl.where(r < 2 * MP, 1 + r % MP, 0)
    part = tl.where(r < 2 * MP, r // MP, r - 2 * MP)
    address = p + row_offset(row, 2 * M * C) + (part * M + k)[:, None] * C + c[None, :]
    tl.store(address, z.to(p.dtype.element_ty), mask=((k < M) & (part < 2))[:, None])


@triton.jit
@no_type_check
def load_matrix(p, i, j, stride_i, stride_j, kind: tl.constexpr):
    """Load entries of a small matrix, in the dtype of the products."""
    return tl.load(p + i[:, None] * stride_i + j[None, :] * stride_j).to(kind)


@triton.jit
@no_type_check
def load_out(p, i, TB: tl.constexpr, MP: tl.constexpr):
    """Load the matrix from a spectrum to the i-th piece of a row, `(TB, 2 MP)`."""
    return tl.load(p + (i * TB + tl.arange(0, TB))[:, None] * (2 * MP) + tl.arange(0, 2 * MP)[None, :])


@triton.jit
@no_type_check
def load_into(p, i, TB: tl.constexpr, R: tl.constexpr, LENGTH: tl.constexpr):
    """Load the matrix from the i-th piece of a row to its spectrum, `(R, TB)`."""
    return tl.load(p + tl.arange(0, R)[:, None] * LENGTH + (i * TB + tl.arange(0, TB))[None, :])
