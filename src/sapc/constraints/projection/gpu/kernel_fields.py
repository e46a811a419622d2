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
def at(vectors, slot: tl.constexpr, t, TB: tl.constexpr, first: tl.constexpr, end: tl.constexpr):
    """Load entries t of a vector over frames, zero outside [first, end)."""
    return tl.load(vectors + slot * TB + t, mask=(t >= first) & (t < end), other=0.0)


@triton.jit
@no_type_check
def copy(a, b, X: tl.constexpr, T: tl.constexpr, XB: tl.constexpr, TB: tl.constexpr):
    """Copy field a to b."""
    for k in range((X + XB - 1) // XB):
        i, t, inside = points(k, X, T, XB, TB)
        tl.store(b + i * T + t, tl.load(a + i * T + t), mask=inside)


@triton.jit
@no_type_check
def gradients(u, i, t, inside, free, data, X: tl.constexpr, T: tl.constexpr, LOCAL: tl.constexpr):
    """Return the terms of e and s, and E and S, at some points.

    E and S are zero where a point is pinned or repeated.
    """
    e, s, E, S = LOCAL(u, i, t, data, X, T)
    moves = inside & (tl.load(free + i * T + t) != 0)
    return (
        tl.where(inside, e, 0.0),
        tl.where(inside, s, 0.0),
        tl.where(moves, E, 0.0),
        tl.where(moves, S, 0.0),
    )


@triton.jit
@no_type_check
def move(
    u, w, g, alpha, theta, drag, small, free, c, data,
    X: tl.constexpr, T: tl.constexpr, XB: tl.constexpr, TB: tl.constexpr,
    LOCAL: tl.constexpr, RATE: tl.constexpr, FITTED: tl.constexpr,
):  # fmt: skip
    """Write w = u - alpha d."""
    t = tl.arange(0, TB)[None, :]
    l, after = at(small, L_, t, TB, 1, T), at(small, L_, t + 1, TB, 1, T)
    cl = theta * (at(c, 0, t, TB, 1, T) * l + at(c, 0, t + 1, TB, 1, T) * after)
    for k in range((X + XB - 1) // XB):
        i, t, inside = points(k, X, T, XB, TB)
        _, _, E, S = gradients(u, i, t, inside, free, data, X, T, LOCAL)
        d = E * (l - after)
        if RATE:
            d -= S * cl
        if FITTED:
            d -= tl.load(g + i * T + t) * drag
        tl.store(w + i * T + t, tl.load(u + i * T + t) - alpha * d, mask=inside)


@triton.jit
@no_type_check
def measure(
    w, kept, small, free, data,
    X: tl.constexpr, T: tl.constexpr, XB: tl.constexpr, TB: tl.constexpr,
    LOCAL: tl.constexpr, FIT: tl.constexpr, RATE: tl.constexpr, FITTED: tl.constexpr,
):  # fmt: skip
    """Write e, s, E.E, E.S and S.S of every frame into `small`; return the sums whose quotient is theta."""
    zero = tl.zeros([XB, TB], tl.float64)
    e, s, ee, es, ss, above, below = zero, zero, zero, zero, zero, zero, zero
    for k in range((X + XB - 1) // XB):
        i, t, inside = points(k, X, T, XB, TB)
        e_part, s_part, E, S = gradients(w, i, t, inside, free, data, X, T, LOCAL)
        e += e_part
        ee += E * E
        if RATE:
            s += s_part
            es += E * S
            ss += S * S
        if FITTED:
            a, b, keep = FIT(w, i, t, data, X, T)
            above += tl.where(inside, a, 0.0)
            below += tl.where(inside, b, 0.0)
            tl.store(kept + i * T + t, keep, mask=inside)
    t = tl.arange(0, TB)
    tl.store(small + E_ * TB + t, tl.sum(e, 0))
    tl.store(small + EE * TB + t, tl.sum(ee, 0))
    if RATE:
        tl.store(small + S_ * TB + t, tl.sum(s, 0))
        tl.store(small + ES * TB + t, tl.sum(es, 0))
        tl.store(small + SS * TB + t, tl.sum(ss, 0))
    if FITTED:
        return tl.sum(tl.sum(above, 1), 0), tl.sum(tl.sum(below, 1), 0)
    else:
        return wide(1.0), wide(1.0)


@triton.jit
@no_type_check
def increments(small, c, theta, T: tl.constexpr, TB: tl.constexpr, RATE: tl.constexpr):
    """Return the rows and q.

    Entry T belongs to the row between frames T - 1 and T, entry zero to none.
    """
    t = tl.arange(0, TB)
    rows = tl.where(t > 0, at(small, E_, t, TB, 0, T) - at(small, E_, t - 1, TB, 0, T - 1), 0.0)
    rows = tl.where(t < T, rows, 0.0)
    q = tl.zeros([TB], tl.float64)
    if RATE:
        q = at(c, 0, t, TB, 1, T) * (at(small, S_, t, TB, 0, T) + at(small, S_, t - 1, TB, 0, T))
    return rows - theta * q, q


@triton.jit
@no_type_check
def tolerances(
    w, kept, solver_tol, theta, above, below, small, c, q, data,
    X: tl.constexpr, T: tl.constexpr, XB: tl.constexpr, TB: tl.constexpr,
    LOCAL: tl.constexpr, SLOPE: tl.constexpr, RATE: tl.constexpr, FITTED: tl.constexpr,
):  # fmt: skip
    """Return tol_i of every row (see `tolerance`), zero where an entry is no row.

    It is NaN where what a row adds up is not finite. It runs after `measure`, whose e, s and field `kept` it
    reads, and it writes the slot of l.
    """
    zero = tl.zeros([XB, TB], tl.float64)
    stored, supplied, fitted = zero, zero, zero
    for k in range((X + XB - 1) // XB):
        i, t, inside = points(k, X, T, XB, TB)
        _, _, E, S = LOCAL(w, i, t, data, X, T)
        size = tl.abs(tl.load(w + i * T + t))
        stored += tl.where(inside, tl.abs(E) * size, 0.0)
        if RATE:
            supplied += tl.where(inside, tl.abs(S) * size, 0.0)
        if FITTED:
            slope = SLOPE(w, kept, i, t, data, above, below, X, T)
            fitted += tl.where(inside, tl.abs(slope) * size, 0.0)
    t = tl.arange(0, TB)
    row = (t > 0) & (t < T)
    terms = tl.sum(stored, 0) + tl.abs(at(small, E_, t, TB, 0, T))
    terms += tl.sum(tl.where(t == 0, terms, 0.0), 0)
    if RATE:
        rates = tl.sum(supplied, 0) + tl.abs(at(small, S_, t, TB, 0, T))
        tl.store(small + L_ * TB + t, rates)
        tl.debug_barrier()
        rates += at(small, L_, t - 1, TB, 0, T)
        terms += tl.cumsum(tl.where(row, tl.abs(theta * at(c, 0, t, TB, 1, T)) * rates, 0.0), 0)
        if FITTED:
            terms += tl.abs(tl.cumsum(q, 0)) * tl.sum(tl.sum(fitted, 1), 0)
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
    w, kept, g, above, below, small, free, data,
    X: tl.constexpr, T: tl.constexpr, XB: tl.constexpr, TB: tl.constexpr,
    LOCAL: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Write the gradient g of theta, and E.g and S.g of every frame into `small`; return |g|^2."""
    zero = tl.zeros([XB, TB], tl.float64)
    eg, sg, gg = zero, zero, zero
    for k in range((X + XB - 1) // XB):
        i, t, inside = points(k, X, T, XB, TB)
        _, _, E, S = gradients(w, i, t, inside, free, data, X, T, LOCAL)
        slope = SLOPE(w, kept, i, t, data, above, below, X, T)
        slope = tl.where(inside & (tl.load(free + i * T + t) != 0), slope, 0.0)
        eg += E * slope
        sg += S * slope
        gg += slope * slope
        tl.store(g + i * T + t, slope, mask=inside)
    t = tl.arange(0, TB)
    tl.store(small + EG * TB + t, tl.sum(eg, 0))
    tl.store(small + SG * TB + t, tl.sum(sg, 0))
    return tl.sum(tl.sum(gg, 1), 0)
