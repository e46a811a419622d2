"""How a program of `kernel` goes through a whole field: in blocks of some points of space by all frames.

E and S are computed wherever they are needed instead of kept: a law is a function of few points, and
arithmetic is cheaper than memory. Sums over space are added up block by block and reduced at the end, in a
fixed order, into vectors over frames; those lie in `small`, one after the other, each padded to TB entries.
Constants are made float64 by `wide`; a bare one could be rounded to float32.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

# Vectors over frames in `small`.
SLOTS = 18

# The first of them: e, s, then inner products of gradients over space, then l; the other ten belong to
# `reduce_cyclically`.
E_, S_, EE, ES, SS, EG, SG, L_, FIRST = (tl.constexpr(k) for k in range(9))


@triton.jit
@no_type_check
def wide(x: tl.constexpr):
    """Make a float64 constant."""
    return tl.full([], x, tl.float64)


@triton.jit
@no_type_check
def finite(x):
    """Tell whether numbers are neither infinite nor NaN."""
    return tl.abs(x) < float("inf")


@triton.jit
@no_type_check
def sup(x):
    """Return |x|_inf; infinite where anything is not finite."""
    wrong = tl.sum((tl.abs(x) < float("inf")).to(tl.int32) - 1, 0)
    return tl.where(wrong < 0, wide(float("inf")), tl.max(tl.where(finite(x), tl.abs(x), 0.0), 0))


@triton.jit
@no_type_check
def points(k, X: tl.constexpr, T: tl.constexpr, XB: tl.constexpr, TB: tl.constexpr):
    """Return the points of block k: indices that always lie on the grid, and which are not repetitions."""
    i = k * XB + tl.arange(0, XB)[:, None]
    t = tl.arange(0, TB)[None, :]
    return tl.minimum(i, X - 1), tl.minimum(t, T - 1), (i < X) & (t < T)


@triton.jit
@no_type_check
def load(vectors, slot: tl.constexpr, t, TB: tl.constexpr, first: tl.constexpr, end: tl.constexpr):
    """Load entries t of a vector over frames, zero outside [first, end)."""
    return tl.load(vectors + slot * TB + t, mask=(t >= first) & (t < end), other=0.0)


@triton.jit
@no_type_check
def copy(a, b, X: tl.constexpr, T: tl.constexpr, XB: tl.constexpr, TB: tl.constexpr):
    """Copy field a to b."""
    for k in range((X + XB - 1) // XB):
        i, t, in_range = points(k, X, T, XB, TB)
        tl.store(b + i * T + t, tl.load(a + i * T + t), mask=in_range)


@triton.jit
@no_type_check
def gradients(u, i, t, in_range, free, data, X: tl.constexpr, T: tl.constexpr, LOCAL: tl.constexpr):
    """Return the terms of e and s, and E and S, at some points.

    E and S are zero where a point is pinned or repeated.
    """
    e, s, E, S = LOCAL(u, i, t, data, X, T)
    moves = in_range & (tl.load(free + i * T + t) != 0)
    return (
        tl.where(in_range, e, 0.0),
        tl.where(in_range, s, 0.0),
        tl.where(moves, E, 0.0),
        tl.where(moves, S, 0.0),
    )


@triton.jit
@no_type_check
def move(
    u, w, g, alpha, theta, drag, small, free, c, data,
    X: tl.constexpr, T: tl.constexpr, XB: tl.constexpr, TB: tl.constexpr,
    LOCAL: tl.constexpr, RATE: tl.constexpr, WITH_FIT: tl.constexpr,
):  # fmt: skip
    """Write w = u - alpha d."""
    t = tl.arange(0, TB)[None, :]
    l, l_right = load(small, L_, t, TB, 1, T), load(small, L_, t + 1, TB, 1, T)
    cl = theta * (load(c, 0, t, TB, 1, T) * l + load(c, 0, t + 1, TB, 1, T) * l_right)
    for k in range((X + XB - 1) // XB):
        i, t, in_range = points(k, X, T, XB, TB)
        _, _, E, S = gradients(u, i, t, in_range, free, data, X, T, LOCAL)
        d = E * (l - l_right)
        if RATE:
            d -= S * cl
        if WITH_FIT:
            d -= tl.load(g + i * T + t) * drag
        tl.store(w + i * T + t, tl.load(u + i * T + t) - alpha * d, mask=in_range)


@triton.jit
@no_type_check
def measure(
    w, work, small, free, data,
    X: tl.constexpr, T: tl.constexpr, XB: tl.constexpr, TB: tl.constexpr,
    LOCAL: tl.constexpr, FIT: tl.constexpr, RATE: tl.constexpr, WITH_FIT: tl.constexpr,
):  # fmt: skip
    """Write e, s, E.E, E.S and S.S of every frame into `small`; return the sums whose quotient is theta."""
    zero = tl.zeros([XB, TB], tl.float64)
    e, s, ee, es, ss, numerator, denominator = zero, zero, zero, zero, zero, zero, zero
    for k in range((X + XB - 1) // XB):
        i, t, in_range = points(k, X, T, XB, TB)
        e_part, s_part, E, S = gradients(w, i, t, in_range, free, data, X, T, LOCAL)
        e += e_part
        ee += E * E
        if RATE:
            s += s_part
            es += E * S
            ss += S * S
        if WITH_FIT:
            a, b, keep = FIT(w, i, t, data, X, T)
            numerator += tl.where(in_range, a, 0.0)
            denominator += tl.where(in_range, b, 0.0)
            tl.store(work + i * T + t, keep, mask=in_range)
    t = tl.arange(0, TB)
    tl.store(small + E_ * TB + t, tl.sum(e, 0))
    tl.store(small + EE * TB + t, tl.sum(ee, 0))
    if RATE:
        tl.store(small + S_ * TB + t, tl.sum(s, 0))
        tl.store(small + ES * TB + t, tl.sum(es, 0))
        tl.store(small + SS * TB + t, tl.sum(ss, 0))
    if WITH_FIT:
        return tl.sum(tl.sum(numerator, 1), 0), tl.sum(tl.sum(denominator, 1), 0)
    else:
        return wide(1.0), wide(1.0)


@triton.jit
@no_type_check
def increments(small, c, theta, T: tl.constexpr, TB: tl.constexpr, RATE: tl.constexpr):
    """Return the rows and q.

    Entry T belongs to the row between frames T - 1 and T, entry zero to none.
    """
    t = tl.arange(0, TB)
    rows = tl.where(t > 0, load(small, E_, t, TB, 0, T) - load(small, E_, t - 1, TB, 0, T - 1), 0.0)
    rows = tl.where(t < T, rows, 0.0)
    q = tl.zeros([TB], tl.float64)
    if RATE:
        q = load(c, 0, t, TB, 1, T) * (load(small, S_, t, TB, 0, T) + load(small, S_, t - 1, TB, 0, T))
    return rows - theta * q, q


@triton.jit
@no_type_check
def tolerances(
    w, work, solver_tol, theta, numerator, denominator, small, c, q, data,
    X: tl.constexpr, T: tl.constexpr, XB: tl.constexpr, TB: tl.constexpr,
    LOCAL: tl.constexpr, SLOPE: tl.constexpr, RATE: tl.constexpr, WITH_FIT: tl.constexpr,
):  # fmt: skip
    """Return tol_i of every row (see `tolerance`), zero where an entry is no row.

    It is NaN where what a row adds up is not finite. It runs after `measure`, whose e, s and field `work` it
    reads, and it writes the slot of l.
    """
    zero = tl.zeros([XB, TB], tl.float64)
    storage, supply, fit = zero, zero, zero
    for k in range((X + XB - 1) // XB):
        i, t, in_range = points(k, X, T, XB, TB)
        _, _, E, S = LOCAL(w, i, t, data, X, T)
        size = tl.abs(tl.load(w + i * T + t))
        storage += tl.where(in_range, tl.abs(E) * size, 0.0)
        if RATE:
            supply += tl.where(in_range, tl.abs(S) * size, 0.0)
        if WITH_FIT:
            slope = SLOPE(w, work, i, t, data, numerator, denominator, X, T)
            fit += tl.where(in_range, tl.abs(slope) * size, 0.0)
    t = tl.arange(0, TB)
    row = (t > 0) & (t < T)
    terms = tl.sum(storage, 0) + tl.abs(load(small, E_, t, TB, 0, T))
    terms += tl.sum(tl.where(t == 0, terms, 0.0), 0)
    if RATE:
        rates = tl.sum(supply, 0) + tl.abs(load(small, S_, t, TB, 0, T))
        tl.store(small + L_ * TB + t, rates)
        tl.debug_barrier()
        rates += load(small, L_, t - 1, TB, 0, T)
        terms += tl.cumsum(tl.where(row, tl.abs(theta * load(c, 0, t, TB, 1, T)) * rates, 0.0), 0)
        if WITH_FIT:
            terms += tl.abs(tl.cumsum(q, 0)) * tl.sum(tl.sum(fit, 1), 0)
        tl.debug_barrier()
    rounding = wide(16 * 2.0**-52) * terms
    solver_limit = solver_tol * tl.where(terms < 1.0, terms, 1.0)
    limit = tl.where(rounding > solver_limit, rounding, solver_limit)
    limit = tl.where(limit > wide(2.0**-1022), limit, wide(2.0**-1022))
    return tl.where(row, tl.where(finite(terms), limit, wide(float("nan"))), 0.0)


@triton.jit
@no_type_check
def excess_of(r, limit, T: tl.constexpr, TB: tl.constexpr):
    """Return the largest |R_i| / tol_i; NaN where a tolerance is, infinite where a residual is not finite."""
    t = tl.arange(0, TB)
    row = (t > 0) & (t < T)
    unknown = tl.sum((row & (limit != limit)).to(tl.int32), 0)
    ratio = tl.abs(r) / tl.where(row & (limit == limit), limit, 1.0)
    return tl.where(unknown > 0, wide(float("nan")), sup(tl.where(row, ratio, 0.0)))


@triton.jit
@no_type_check
def fit_slope(
    w, work, g, numerator, denominator, small, free, data,
    X: tl.constexpr, T: tl.constexpr, XB: tl.constexpr, TB: tl.constexpr,
    LOCAL: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Write the gradient g of theta, and E.g and S.g of every frame into `small`; return |g|^2."""
    zero = tl.zeros([XB, TB], tl.float64)
    eg, sg, gg = zero, zero, zero
    for k in range((X + XB - 1) // XB):
        i, t, in_range = points(k, X, T, XB, TB)
        _, _, E, S = gradients(w, i, t, in_range, free, data, X, T, LOCAL)
        slope = SLOPE(w, work, i, t, data, numerator, denominator, X, T)
        slope = tl.where(in_range & (tl.load(free + i * T + t) != 0), slope, 0.0)
        eg += E * slope
        sg += S * slope
        gg += slope * slope
        tl.store(g + i * T + t, slope, mask=in_range)
    t = tl.arange(0, TB)
    tl.store(small + EG * TB + t, tl.sum(eg, 0))
    tl.store(small + SG * TB + t, tl.sum(sg, 0))
    return tl.sum(tl.sum(gg, 1), 0)
