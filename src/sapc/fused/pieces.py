"""What the kernels are made of: GELU with its slope, and the spectrum of a row.

**GELU.** `x Phi(x)` with slope `Phi(x) + x phi(x)`, Phi and phi the normal distribution and its density. In float32 by the error function.
Where values are rounded to bfloat16 anyway (`FAST`), Phi is 1/2 + x P(x^2), P of degree seven, at most 1.5e-4 off and exactly 0 and 1 from
|x| = 4.25 on: fused multiply-adds only, while the error function costs more than the memory traffic of a layer.

**Spectrum of a row.** A row is one line along the last axis, `(T, C)`. Its kept modes lie in memory as `(2, M, C)`: real and imaginary part,
modes k = 0 .. M-1, channels. The mean, k = 0, is a sum over the row and travels as a vector; the other 2 (M - 1) rows are padded to
2 MP, MP a power of two, for the matrix units: with the 17 modes of the published network nothing is lost to padding.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def normal(x, FAST: tl.constexpr):
    """Phi(x)."""
    if FAST:
        c = tl.minimum(tl.maximum(x, -4.25), 4.25)
        y = c * c
        p = -8.46070108e-10 * y + 7.57103874e-08
        p = p * y - 2.93886134e-06
        p = p * y + 6.55279721e-05
        p = p * y - 0.00094045494
        p = p * y + 0.00925785716
        p = p * y - 0.0654535774
        p = p * y + 0.398420101
        return c * p + 0.5
    else:
        return 0.5 + 0.5 * tl.math.erf(x * 0.7071067811865476)


@triton.jit
@no_type_check
def gelu(x, FAST: tl.constexpr):
    """x Phi(x)."""
    return x * normal(x, FAST)


@triton.jit
@no_type_check
def gelu_and_slope(x, FAST: tl.constexpr):
    """x Phi(x) and its derivative."""
    p = normal(x, FAST)
    return x * p, p + x * (tl.math.exp2(x * x * -0.7213475204444817) * 0.3989422804014327)


@triton.jit
@no_type_check
def product(a, b, PRECISION: tl.constexpr):
    """a b, summed in float32. `widened`: rounded to bfloat16, multiplied in float32, for the interpreter, which has no bfloat16 products."""
    if PRECISION == "widened":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
@no_type_check
def add_product(a, b, sum, PRECISION: tl.constexpr):
    """sum + a b."""
    if PRECISION == "widened":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), sum, input_precision="ieee")
    else:
        return tl.dot(a, b, sum, input_precision=PRECISION)


@triton.jit
@no_type_check
def far(row, size: tl.constexpr):
    """Where a row begins, in 64 bits: large batches have more than 2^31 numbers."""
    return tl.full([], size, tl.int64) * row


@triton.jit
@no_type_check
def load_row(p, row, t, T: tl.constexpr, C: tl.constexpr):
    """Some points of a row, zero beyond its end: `(t, C)`."""
    c = tl.arange(0, C)
    return tl.load(p + far(row, T * C) + t[:, None] * C + c[None, :], mask=t[:, None] < T, other=0.0)


@triton.jit
@no_type_check
def store_row(p, x, row, t, T: tl.constexpr, C: tl.constexpr):
    """The same, back."""
    c = tl.arange(0, C)
    at = p + far(row, T * C) + t[:, None] * C + c[None, :]
    tl.store(at, x.to(p.dtype.element_ty), mask=t[:, None] < T)


@triton.jit
@no_type_check
def load_spectrum(p, row, C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr):
    """The modes of a row but its mean, `(2 MP, C)`, and the mean `(C,)` in float32."""
    c, r = tl.arange(0, C), tl.arange(0, 2 * MP)
    k = 1 + r % MP
    start = p + far(row, 2 * M * C)
    at = start + ((r // MP) * M + k)[:, None] * C + c[None, :]
    return tl.load(at, mask=k[:, None] < M, other=0.0), tl.load(start + c).to(tl.float32)


@triton.jit
@no_type_check
def store_spectrum(p, z, mean, row, C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr):
    """The same, back; the imaginary part of a mean is zero."""
    c, r = tl.arange(0, C), tl.arange(0, 2 * MP)
    k = 1 + r % MP
    kind = p.dtype.element_ty
    start = p + far(row, 2 * M * C)
    tl.store(start + ((r // MP) * M + k)[:, None] * C + c[None, :], z.to(kind), mask=k[:, None] < M)
    tl.store(start + c, mean.to(kind))
    tl.store(start + M * C + c, tl.zeros([C], tl.float32).to(kind))


@triton.jit
@no_type_check
def load_matrix(p, i, j, stride_i, stride_j, kind: tl.constexpr):
    """Entries of a small matrix, in the dtype of the products."""
    return tl.load(p + i[:, None] * stride_i + j[None, :] * stride_j).to(kind)
