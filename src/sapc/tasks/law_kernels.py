"""The laws of the curved tasks as functions of a block of points, for `sapc.LawKernel`.

Letters are those of the tasks' own files.

D is the difference of the neighbours, twice the one-sided one at the ends. With neighbours beyond an end
replaced by the end itself, i- = max(i - 1, 0) and i+ = min(i + 1, n - 1), and m = 2 at the ends and 1
elsewhere,

    (D u)_i = k m_i (u_{i+} - u_{i-}),        (D^T y)_i = +- z_{i-} -+ z_{i+},   z = k m y,

with the lower signs for the term that was replaced.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def reaction_diffusion(u, i, t, data, X: tl.constexpr, T: tl.constexpr):
    """Compute mass `w u` and its supply: `rho w u (1 - u)` and the fluxes through both ends.

    `data` holds nu / dx, rho and w.

    Returns:
        Mass and supply, and their gradients.
    """
    v, w = tl.load(u + i * T + t), tl.load(data + 2 + i)
    edge = ((i == 0).to(tl.int32) + (i == X - 1).to(tl.int32)).to(tl.float64)
    neighbour = ((i == 1).to(tl.int32) + (i == X - 2).to(tl.int32)).to(tl.float64)
    flux, growth = (edge - neighbour) * tl.load(data), tl.load(data + 1) * w
    return w * v, (flux + growth * (1.0 - v)) * v, w + 0.0 * v, flux + growth * (1.0 - 2.0 * v)


@triton.jit
@no_type_check
def end_factor(i, n: tl.constexpr):
    """m_i."""
    return 1.0 + ((i == 0) | (i == n - 1)).to(tl.float64)


@triton.jit
@no_type_check
def differences_along_first(u, i, t, k, X: tl.constexpr, T: tl.constexpr):
    """U at i and `D u` along the first axis at i-, i and i+."""
    left_row, right_row = tl.maximum(i - 1, 0), tl.minimum(i + 1, X - 1)
    v = tl.load(u + i * T + t)
    one_before, one_after = tl.load(u + left_row * T + t), tl.load(u + right_row * T + t)
    two_before, two_after = (
        tl.load(u + tl.maximum(i - 2, 0) * T + t),
        tl.load(u + tl.minimum(i + 2, X - 1) * T + t),
    )
    first = k * end_factor(left_row, X) * (tl.where(i == 0, one_after, v) - two_before)
    last = k * end_factor(right_row, X) * (two_after - tl.where(i == X - 1, one_before, v))
    return v, first, k * end_factor(i, X) * (one_after - one_before), last


@triton.jit
@no_type_check
def difference_along_last(u, i, t, k, T: tl.constexpr):
    """`D u` along the last axis."""
    next_u, last_u = (
        tl.load(u + i * T + tl.minimum(t + 1, T - 1)),
        tl.load(u + i * T + tl.maximum(t - 1, 0)),
    )
    return k * end_factor(t, T) * (next_u - last_u)


@triton.jit
@no_type_check
def stokes(u, i, t, data, X: tl.constexpr, T: tl.constexpr):
    """Compute energy `w u^2` and power `2 (b u u_x - w u_x^2)`, b = -1, 0 .., 0, 1.

    `data` holds k of x, k of t and w. The power's gradient is `2 (D^T (b u - 2 w u_x) + b u_x)`.

    Returns:
        Energy and power, and their gradients.
    """
    k, w = tl.load(data), tl.load(data + 2 + i)
    v, first, u_x, last = differences_along_first(u, i, t, k, X, T)
    left_row, right_row = tl.maximum(i - 1, 0), tl.minimum(i + 1, X - 1)
    b = (i == X - 1).to(tl.float64) - (i == 0).to(tl.float64)
    left_part, right_part = (
        -2.0 * tl.load(data + 2 + left_row) * first,
        -2.0 * tl.load(data + 2 + right_row) * last,
    )
    # b u at i- and i+, which is zero except at the ends
    left_part -= tl.where(left_row == 0, tl.load(u + left_row * T + t), 0.0)
    right_part += tl.where(right_row == X - 1, tl.load(u + right_row * T + t), 0.0)
    left_part, right_part = k * end_factor(left_row, X) * left_part, k * end_factor(right_row, X) * right_part
    adjoint = tl.where(i == 0, -left_part, left_part) - tl.where(i == X - 1, -right_part, right_part)
    return w * v * v, 2.0 * (b * v - w * u_x) * u_x, 2.0 * w * v, 2.0 * (adjoint + b * u_x)


@triton.jit
@no_type_check
def viscosity(u, i, t, data, X: tl.constexpr, T: tl.constexpr):
    """Return the terms of <u_t, u_xx> and of <u_xx, u_xx>, whose quotient is the viscosity, and u_xx."""
    k = tl.load(data)
    _, first, _, last = differences_along_first(u, i, t, k, X, T)
    u_xx = k * end_factor(i, X) * (last - first)
    return difference_along_last(u, i, t, tl.load(data + 1), T) * u_xx, u_xx * u_xx, u_xx


@triton.jit
@no_type_check
def residual_slope(u, u_xx, i, t, k, l, nu, X: tl.constexpr, T: tl.constexpr):
    """`z = k m (u_t - 2 nu u_xx)` at row i."""
    return (
        k * end_factor(i, X) * (difference_along_last(u, i, t, l, T) - 2.0 * nu * tl.load(u_xx + i * T + t))
    )


@triton.jit
@no_type_check
def viscosity_slope(u, u_xx, i, t, data, numerator, denominator, X: tl.constexpr, T: tl.constexpr):
    """`(D^T D^T (u_t - 2 nu u_xx) + D_t^T u_xx) / <u_xx, u_xx>`."""
    k, l, nu = tl.load(data), tl.load(data + 1), numerator / denominator
    left_row, right_row = tl.maximum(i - 1, 0), tl.minimum(i + 1, X - 1)
    z = residual_slope(u, u_xx, i, t, k, l, nu, X, T)
    z_before, z_after = (
        residual_slope(u, u_xx, left_row, t, k, l, nu, X, T),
        residual_slope(u, u_xx, right_row, t, k, l, nu, X, T),
    )
    first = residual_slope(u, u_xx, tl.maximum(i - 2, 0), t, k, l, nu, X, T)
    last = residual_slope(u, u_xx, tl.minimum(i + 2, X - 1), t, k, l, nu, X, T)
    # D^T at i- and i+, then once more
    first = tl.where(left_row == 0, -first, first) - tl.where(i == 0, z_after, z)
    last = tl.where(i == X - 1, z_before, z) - tl.where(right_row == X - 1, -last, last)
    first, last = k * end_factor(left_row, X) * first, k * end_factor(right_row, X) * last
    adjoint = tl.where(i == 0, -first, first) - tl.where(i == X - 1, -last, last)
    last_frame, next_frame = tl.maximum(t - 1, 0), tl.minimum(t + 1, T - 1)
    y_earlier = l * end_factor(last_frame, T) * tl.load(u_xx + i * T + last_frame)
    y_later = l * end_factor(next_frame, T) * tl.load(u_xx + i * T + next_frame)
    adjoint += tl.where(t == 0, -y_earlier, y_earlier) - tl.where(t == T - 1, -y_later, y_later)
    return adjoint / denominator
