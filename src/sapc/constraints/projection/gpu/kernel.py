"""Restoration of a whole sample in one program on the device, until it ends, without asking the host.

One program per sample runs the loop of `feasible`, `u <- u - alpha J^+ r(u)`, and leaves as soon as its
sample is done, so a batch costs what its samples need. A field is gone through in blocks of some points of
space by all frames. The letters are those of `banded`; with `small` a few vectors over frames, a pass is

    move         w = u - alpha d,  d = E_t (l_t - l_{t+1}) - S_t theta (c_t l_t + c_{t+1} l_{t+1}) - g (q . l)
    measure      e_t, s_t and theta at w, with the sums over space  E.E, E.S, S.S  that M is made of;
                 the test, which needs no more
    linearise    if the test was passed and w is still off the manifold:
                 g, E.g, S.g, and l by cyclic reduction and Woodbury

E and S are computed where they are needed instead of kept: a law is a function of few points, and arithmetic
is cheaper than memory. What is kept of a sample is two fields, u and w, which change places when a step is
accepted, and for a fitted coefficient two more.

A law is given by functions of a block, see `LawKernel`. Every sum has a fixed order, so a sample's result
depends on nothing but itself. Threads exchange through memory what they have computed, hence the barriers:
one after a write, before others read or write it again. All threads must also take the same branch. They all
have every sum, added up crosswise, so multiplications and additions must not be fused: `a a + b b` would be
rounded in another way by the thread that holds a than by the one that holds b. Constants are made float64 by
`wide`; a bare one could be rounded to float32.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from .. import tolerance
from .kernel_fields import (
    EE,
    EG,
    ES,
    FIRST,
    L_,
    SG,
    SS,
    copy,
    excess_of,
    finite,
    fit_slope,
    increments,
    load,
    measure,
    move,
    sup,
    tolerances,
    wide,
)

NEAR_RATIO = tl.constexpr(tolerance.NEAR_RATIO)


@triton.jit
@no_type_check
def neighbours(vector, t, k, TB: tl.constexpr):
    """Return the entries k before and k after each; zero outside."""
    earlier_entry = tl.load(vector + t - k, mask=t >= k, other=0.0)
    return earlier_entry, tl.load(vector + t + k, mask=t < TB - k, other=0.0)


@triton.jit
@no_type_check
def cyclic_reduction(
    small, lower, upper, x, y, z, TB: tl.constexpr, SWEEPS: tl.constexpr, WITH_FIT: tl.constexpr
):
    """Apply `T^-1` to x, y and z (unless fitted, to x), divided by the diagonal already; see `banded`."""
    t = tl.arange(0, TB)
    for j in range(SWEEPS):
        k = 1 << j
        # In turns, so that one barrier a sweep is enough.
        v = small + (FIRST + 5 * (j % 2)) * TB
        tl.store(v + t, lower)
        tl.store(v + TB + t, upper)
        tl.store(v + 2 * TB + t, x)
        if WITH_FIT:
            tl.store(v + 3 * TB + t, y)
            tl.store(v + 4 * TB + t, z)
        tl.debug_barrier()
        lower_before, lower_after = neighbours(v, t, k, TB)
        upper_before, upper_after = neighbours(v + TB, t, k, TB)
        x_before, x_after = neighbours(v + 2 * TB, t, k, TB)
        p = 1.0 / (1.0 - lower * upper_before - upper * lower_after)
        x = (x - lower * x_before - upper * x_after) * p
        if WITH_FIT:
            y_before, y_after = neighbours(v + 3 * TB, t, k, TB)
            z_before, z_after = neighbours(v + 4 * TB, t, k, TB)
            y = (y - lower * y_before - upper * y_after) * p
            z = (z - lower * z_before - upper * z_after) * p
        lower, upper = -lower * lower_before * p, -upper * upper_after * p
    return x, y, z


@triton.jit
@no_type_check
def newton(
    small, c, theta, rows, q, gg, jitter,
    T: tl.constexpr, TB: tl.constexpr, SWEEPS: tl.constexpr, RATE: tl.constexpr, WITH_FIT: tl.constexpr,
):  # fmt: skip
    """Solve `J J^T l = rows`, l into `small`; return |d| = sqrt(l . rows), and q . l."""
    t = tl.arange(0, TB)
    row = (t > 0) & (t < T)
    diagonal = load(small, EE, t, TB, 0, T) + load(small, EE, t - 1, TB, 0, T)
    lower, upper = -load(small, EE, t - 1, TB, 0, T), -load(small, EE, t, TB, 0, T)
    h = rows
    if RATE:
        c_left, c_here, c_right = (
            load(c, 0, t - 1, TB, 1, T),
            load(c, 0, t, TB, 1, T),
            load(c, 0, t + 1, TB, 1, T),
        )
        c_left, c_here, c_right = theta * c_left, theta * c_here, theta * c_right
        es, es_before = load(small, ES, t, TB, 0, T), load(small, ES, t - 1, TB, 0, T)
        ss, ss_before = load(small, SS, t, TB, 0, T), load(small, SS, t - 1, TB, 0, T)
        diagonal += 2.0 * c_here * (es_before - es) + c_here * c_here * (ss + ss_before)
        lower += (c_left - c_here) * es_before + c_left * c_here * ss_before
        upper += (c_here - c_right) * es + c_here * c_right * ss
        if WITH_FIT:
            h = load(small, EG, t, TB, 0, T) - load(small, EG, t - 1, TB, 0, T)
            h = tl.where(
                row,
                h - c_here * (load(small, SG, t, TB, 0, T) + load(small, SG, t - 1, TB, 0, T)),
                0.0,
            )
    # A row without any gradient cannot be met by moving: unit pivot. So have the entries that are no rows.
    diagonal = wide(1.0) / tl.where(row & (diagonal > 0.0), diagonal * (1.0 + jitter), 1.0)
    lower = tl.where(row & (t > 1), lower * diagonal, 0.0)
    upper = tl.where(row & (t < T - 1), upper * diagonal, 0.0)
    x, y, z = rows * diagonal, h * diagonal, q * diagonal
    l, mh, mq = cyclic_reduction(small, lower, upper, x, y, z, TB, SWEEPS, WITH_FIT)
    if WITH_FIT:
        k11, k12, k22 = tl.sum(h * mh, 0) - gg, tl.sum(h * mq, 0) - 1.0, tl.sum(q * mq, 0)
        b1, b2 = tl.sum(h * l, 0), tl.sum(q * l, 0)
        determinant = k11 * k22 - k12 * k12
        determinant = tl.where(determinant != 0.0, determinant, wide(1.0))
        l -= mh * ((k22 * b1 - k12 * b2) / determinant) + mq * ((k11 * b2 - k12 * b1) / determinant)
    tl.store(small + L_ * TB + t, l)
    square = tl.sum(l * rows, 0)
    return tl.sqrt(tl.where(square < 0.0, wide(0.0), square)), tl.sum(q * l, 0)


@triton.jit
@no_type_check
def bend_of(r, rt, alpha):
    """Return how far the residual is from its linear prediction, in shares of the step, |rt| and |r|.

    The bend grows in proportion to alpha.

    Args:
        r: Residual at the start of the step.
        rt: Residual at the trial point.
        alpha: Share of the step.

    Returns:
        The bend and the two norms.
    """
    size = tl.sqrt(tl.sum(r * r, 0))
    deviation = rt - (1.0 - alpha) * r
    # Before the first trial there is no residual.
    scale = tl.where(size > 0.0, alpha * size, wide(1.0))
    return tl.sqrt(tl.sum(deviation * deviation, 0)) / scale, tl.sqrt(tl.sum(rt * rt, 0)), size


@triton.jit
@no_type_check
def suggest_alpha(alpha, bend):
    """Return the share that the measured bend suggests; none where it is not a number.

    A bend of one is as much as is allowed.

    Args:
        alpha: Share that was tried.
        bend: Bend there.

    Returns:
        The share to try.
    """
    return alpha / tl.where(bend > wide(1e-3), bend, tl.where(bend == bend, wide(1e-3), wide(float("inf"))))


@triton.jit
@no_type_check
def shorten_alpha(alpha, bend):
    """Return the share to try after a refusal."""
    share = suggest_alpha(alpha, bend)
    share = tl.where(share > alpha / 8.0, share, alpha / 8.0)
    return tl.where(share < alpha / 2.0, share, alpha / 2.0)


@triton.jit
@no_type_check
def lengthen_alpha(alpha, bend, growth):
    """Return the share of the next step, which is `growth` times as long; bend grows with it."""
    growth = tl.where(growth > wide(1e-3), growth, tl.where(growth == growth, wide(1e-3), wide(1.0)))
    share = suggest_alpha(alpha, bend) / growth
    share = tl.where(share > alpha, share, alpha)
    return tl.where(share > 1.0, wide(1.0), share)


# One program for all addresses and limits, so that a captured launch never needs another than the one before
# it.
@triton.jit(do_not_specialize=["limit", "strict"], do_not_specialize_on_alignment=range(14))
@no_type_check
def restore(
    start, out, scratch, work, g, small, size_out, excess_out, passes_out,
    subset, free, c, data, settings, limit, strict,
    X: tl.constexpr, T: tl.constexpr, XB: tl.constexpr, TB: tl.constexpr,
    SLOTS: tl.constexpr, SWEEPS: tl.constexpr,
    LOCAL: tl.constexpr, FIT: tl.constexpr, SLOPE: tl.constexpr,
    RATE: tl.constexpr, WITH_FIT: tl.constexpr, HAS_SUBSET: tl.constexpr,
):  # fmt: skip
    """Try at most `limit` points from `start`.

    It writes the field reached, its |R|_inf, the excess of that and the number of trial points. With SOME,
    samples whose entry of `subset` is zero are copied. `strict`: the test of `gauss_newton`, otherwise any
    decrease.
    """
    sample = tl.program_id(0).to(tl.int64)
    out, scratch, small = out + sample * (X * T), scratch + sample * (X * T), small + sample * (SLOTS * TB)
    if WITH_FIT:
        work, g = work + sample * (X * T), g + sample * (X * T)
    solver_tol, kappa, jitter = tl.load(settings), tl.load(settings + 1), tl.load(settings + 2)
    copy(start + sample * (X * T), out, X, T, XB, TB)
    tl.debug_barrier()
    going = tl.full([], 1, tl.int32)
    if HAS_SUBSET:
        going = tl.load(subset + sample).to(tl.int32)
    current, n = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    alpha, length, theta, drag = wide(1.0), wide(1.0), wide(1.0), wide(0.0)
    size, excess = wide(float("inf")), wide(float("inf"))
    # The largest tolerance of the point where they were measured last.
    largest_tol = solver_tol
    r = tl.zeros([TB], tl.float64)
    while (going != 0) & (n <= limit):
        u = tl.where(current == 0, out, scratch)
        # The start is the first trial.
        trial = tl.where(n == 0, current, 1 - current)
        w = tl.where(trial == 0, out, scratch)
        if n > 0:
            move(u, w, g, alpha, theta, drag, small, free, c, data, X, T, XB, TB, LOCAL, RATE, WITH_FIT)
            tl.debug_barrier()
        numerator, denominator = measure(w, work, small, free, data, X, T, XB, TB, LOCAL, FIT, RATE, WITH_FIT)
        tl.debug_barrier()
        quotient = numerator / denominator
        rows, q = increments(small, c, quotient, T, TB, RATE)
        rt = tl.where(tl.arange(0, TB) < T, tl.cumsum(rows, 0), 0.0)
        largest = sup(rt)
        bend, size_trial, size_current = bend_of(r, rt, alpha)
        good = tl.where(strict != 0, bend <= kappa, size_trial <= (1.0 - wide(1e-4) * alpha) * size_current)
        if (n == 0) | (good & (largest < float("inf"))):
            current, r, size, theta = trial, rt, largest, quotient
            # Far away the field is off the manifold by any tolerance.
            excess = largest / largest_tol
            if (n == 0) | (largest <= wide(NEAR_RATIO) * largest_tol):
                tol = tolerances(
                    w, work, solver_tol, theta, numerator, denominator, small, c, q, data,
                    X, T, XB, TB, LOCAL, SLOPE, RATE, WITH_FIT,
                )  # fmt: skip
                excess = excess_of(rt, tol, T, TB)
                largest_tol = tl.where(excess == excess, tl.max(tol, 0), solver_tol)
                largest_tol = tl.where(largest_tol > solver_tol, largest_tol, solver_tol)
            going = (excess > 1.0).to(tl.int32)
            if excess > 1.0:
                gg = wide(0.0)
                if WITH_FIT:
                    gg = fit_slope(
                        w, work, g, numerator, denominator, small, free, data, X, T, XB, TB, LOCAL, SLOPE
                    )
                    tl.debug_barrier()
                new_length, drag = newton(small, c, theta, rows, q, gg, jitter, T, TB, SWEEPS, RATE, WITH_FIT)
                tl.debug_barrier()
                alpha = tl.where(n == 0, alpha, lengthen_alpha(alpha, bend / kappa, new_length / length))
                length = new_length
                going = finite(new_length).to(tl.int32)
        else:
            alpha = shorten_alpha(alpha, bend / kappa)
            # A shorter step is no progress. (Without `going` on the right side the loop would carry it for
            # its condition alone, on which Triton 3.6 fails.)
            going = tl.where(alpha > wide(2.0**-12), going, 0)
        n += 1
    if current != 0:
        copy(scratch, out, X, T, XB, TB)
    tl.store(size_out + sample, size)
    tl.store(excess_out + sample, excess)
    tl.store(passes_out + sample, tl.maximum(n - 1, 0).to(tl.int64))
