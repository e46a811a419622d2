"""Kernels of the two ends: lifting into the channels and projection out of them.

Their wide hidden layers never reach memory.

Lifting, for each row: `p = u w_u + t w_t + base`, the base one vector per row (flow time, the other
coordinates, bias); `x = gelu(p) A + a`; and the row's transform `Z = IN x`. Projection, after the last
block's sum h: `q = h B + b`, `v = gelu(q) . o + o_0`.

Backward both hidden layers are made again from what went in, which is sixteen times narrower or more:

    h' = v' gelu'(q) o B^T,     B' = (v' h)^T gelu'(q) o,
                                b' = o sum of v' gelu'(q),     o' = sum of v' gelu(q)
    d = gelu'(p) (x' A^T),      A' = gelu(p)^T x',     base' = sum of d,
                                w_u' = sum of d u,     w_t' = sum of d t

For the gradients of weights they lie transposed, hidden channels first: so a sum over points stays within a
few threads, and what the products with h and x' need is where the matrix units take it from.
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
    row_offset,
    store_row,
    store_spectrum,
)


@triton.jit
@no_type_check
def point_values(p, row, t, T: tl.constexpr):
    """Load a field at some points of a row, zero beyond its end."""
    return tl.load(p + row_offset(row, T) + t, mask=t < T, other=0.0)


@triton.jit(do_not_specialize=["rows", "lines"])
@no_type_check
def lift_forward(
    u_p, us_p, place_p, tau_p, line_p, a_p, a0_p, x_p, z_p, in_p, rows, lines,
    T: tl.constexpr, C: tl.constexpr, H: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, R: tl.constexpr,
    TB: tl.constexpr, NT: tl.constexpr, HB: tl.constexpr, INPUTS: tl.constexpr, GELU: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Lift fields to channels, and compute their spectrum.

    `us`: weights of the INPUTS fields, then of the last coordinate, each H long.
    """
    kind = x_p.dtype.element_ty
    c = tl.arange(0, C)
    a0 = tl.load(a0_p + c)
    into = load_into(in_p, 0, TB, R, NT * TB)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        z = tl.zeros([R, C], tl.float32)
        for i in tl.static_range(NT):
            t = i * TB + tl.arange(0, TB)
            if NT > 1:
                into = load_into(in_p, i, TB, R, NT * TB)
            place, u = point_values(place_p, 0, t, T), point_values(u_p, row * INPUTS, t, T)
            x = tl.zeros([TB, C], tl.float32) + a0[None, :]
            for first in tl.static_range(0, H, HB):
                j = first + tl.arange(0, HB)
                base = tl.load(tau_p + (row // lines) * H + j) + tl.load(line_p + (row % lines) * H + j)
                p = base[None, :] + place[:, None] * tl.load(us_p + INPUTS * H + j)[None, :]
                p += u[:, None] * tl.load(us_p + j)[None, :]
                for n in tl.static_range(1, INPUTS):
                    shown = point_values(u_p, row * INPUTS + n, t, T)
                    p += shown[:, None] * tl.load(us_p + n * H + j)[None, :]
                # (channels, hidden)
                a = load_matrix(a_p, c, j, H, 1, kind)
                x = add_product(gelu(p, GELU).to(kind), tl.trans(a), x, PRECISION)
            store_row(x_p, x, row, t, T, C)
            z = add_product(into, x.to(kind), z, PRECISION)
        store_spectrum(z_p, z, row, C, M, MP, R)


@triton.jit(do_not_specialize=["rows", "lines"])
@no_type_check
def lift_backward(
    u_p, us_p, place_p, tau_p, line_p, a_p, gx_p, ga_p, gus_p, gbase_p, gu_p, rows, lines,
    T: tl.constexpr, C: tl.constexpr, H: tl.constexpr, TB: tl.constexpr, NT: tl.constexpr, HB: tl.constexpr,
    INPUTS: tl.constexpr, NEEDS_U_GRAD: tl.constexpr, GELU: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Differentiate the lifting; a program has HB of the hidden channels and some of the rows.

    `INPUTS`: one to three. `NEEDS_U_GRAD`: the first field's gradient is asked for, a share per HB.
    """
    kind = gx_p.dtype.element_ty
    c, part = tl.arange(0, C), tl.program_id(1)
    j = part * HB + tl.arange(0, HB)
    # (hidden, channels)
    a = load_matrix(a_p, j, c, 1, H, kind)
    first, w_t = tl.load(us_p + j), tl.load(us_p + INPUTS * H + j)
    ga = tl.zeros([HB, C], tl.float32)
    gw_t = tl.zeros([HB], tl.float32)
    g_first = tl.zeros([HB], tl.float32)
    if INPUTS > 1:
        second, g_second = tl.load(us_p + H + j), tl.zeros([HB], tl.float32)
    if INPUTS > 2:
        third, g_third = tl.load(us_p + 2 * H + j), tl.zeros([HB], tl.float32)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        base = tl.load(tau_p + (row // lines) * H + j) + tl.load(line_p + (row % lines) * H + j)
        g_base = tl.zeros([HB], tl.float32)
        for i in tl.static_range(NT):
            t = i * TB + tl.arange(0, TB)
            gx = load_row(gx_p, row, t, T, C)
            place, u = point_values(place_p, 0, t, T), point_values(u_p, row * INPUTS, t, T)
            p = base[:, None] + place[None, :] * w_t[:, None] + u[None, :] * first[:, None]
            if INPUTS > 1:
                condition = point_values(u_p, row * INPUTS + 1, t, T)
                p += condition[None, :] * second[:, None]
            if INPUTS > 2:
                mask = point_values(u_p, row * INPUTS + 2, t, T)
                p += mask[None, :] * third[:, None]
            d = product(a, tl.trans(gx), PRECISION)
            # Where the matrix units have d, so that nothing is made twice.
            x, slope = gelu_and_slope(p + 0.0 * d, GELU)
            ga = add_product(x.to(kind), gx, ga, PRECISION)
            # Zero beyond the row's end, as gx is.
            d *= slope
            g_base += tl.sum(d, 1)
            gw_t += tl.sum(d * place[None, :], 1)
            g_first += tl.sum(d * u[None, :], 1)
            if INPUTS > 1:
                g_second += tl.sum(d * condition[None, :], 1)
            if INPUTS > 2:
                g_third += tl.sum(d * mask[None, :], 1)
            if NEEDS_U_GRAD:
                gu = tl.sum(d * first[:, None], 0)
                tl.store(gu_p + row_offset(part * rows + row, T) + t, gu, mask=t < T)
        tl.store(gbase_p + row_offset(row, H) + j, g_base)
    program = tl.program_id(0)
    tl.store(ga_p + (program * H + j)[:, None] * C + c[None, :], ga)
    address = gus_p + program * (INPUTS + 1) * H + j
    tl.store(address, g_first)
    if INPUTS > 1:
        tl.store(address + H, g_second)
    if INPUTS > 2:
        tl.store(address + 2 * H, g_third)
    tl.store(address + INPUTS * H, gw_t)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def project_forward(
    x_p, y_p, h_p, v_p, w_p, b_p, out_p, B_p, b0_p, o_p, o0_p, rows,
    T: tl.constexpr, C: tl.constexpr, H: tl.constexpr, M: tl.constexpr, MP: tl.constexpr,
    TB: tl.constexpr, NT: tl.constexpr, HB: tl.constexpr, PENDING_GELU: tl.constexpr, STORE_H: tl.constexpr,
    GELU: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Evaluate the last block and the projection; `STORE_H`: store h, too, for the way back."""
    kind = x_p.dtype.element_ty
    c = tl.arange(0, C)
    w, b, o0 = load_matrix(w_p, c, c, C, 1, kind), tl.load(b_p + c), tl.load(o0_p)
    out = load_out(out_p, 0, TB, MP)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        y, mean = load_spectrum(y_p, row, T, C, M, MP)
        base = b + mean
        for i in tl.static_range(NT):
            t = i * TB + tl.arange(0, TB)
            if NT > 1:
                out = load_out(out_p, i, TB, MP)
            x = load_row(x_p, row, t, T, C)
            if PENDING_GELU:
                x = gelu(x.to(tl.float32), GELU).to(kind)
            h = product(x, tl.trans(w), PRECISION)
            h = add_product(out, y, h, PRECISION) + base[None, :]
            if STORE_H:
                store_row(h_p, h, row, t, T, C)
            v = tl.zeros([TB], tl.float32) + o0
            for first in tl.static_range(0, H, HB):
                j = first + tl.arange(0, HB)
                q = product(h.to(kind), tl.trans(load_matrix(B_p, j, c, C, 1, kind)), PRECISION)
                q = gelu(q + tl.load(b0_p + j)[None, :], GELU)
                v += tl.sum(q * tl.load(o_p + j)[None, :], 1)
            tl.store(v_p + row_offset(row, T) + t, v, mask=t < T)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def project_backward(
    gv_p, h_p, gh_p, gy_p, B_p, Bo_p, b0_p, in_p, rows,
    T: tl.constexpr, C: tl.constexpr, H: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, R: tl.constexpr,
    TB: tl.constexpr, NT: tl.constexpr, HB: tl.constexpr, GELU: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Differentiate from v' to h' and Y' of the last block.

    `Bo`: B with its columns multiplied by o, both (hidden, channels).
    """
    kind = h_p.dtype.element_ty
    c = tl.arange(0, C)
    into = load_into(in_p, 0, TB, R, NT * TB)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        gy = tl.zeros([R, C], tl.float32)
        for i in tl.static_range(NT):
            t = i * TB + tl.arange(0, TB)
            if NT > 1:
                into = load_into(in_p, i, TB, R, NT * TB)
            h = load_row(h_p, row, t, T, C)
            gh = tl.zeros([TB, C], tl.float32)
            for first in tl.static_range(0, H, HB):
                j = first + tl.arange(0, HB)
                q = product(h, tl.trans(load_matrix(B_p, j, c, C, 1, kind)), PRECISION)
                _, slope = gelu_and_slope(q + tl.load(b0_p + j)[None, :], GELU)
                gh = add_product(slope.to(kind), load_matrix(Bo_p, j, c, C, 1, kind), gh, PRECISION)
            # Zero beyond the row's end.
            gh *= point_values(gv_p, row, t, T)[:, None]
            store_row(gh_p, gh, row, t, T, C)
            gy = add_product(into, gh.to(kind), gy, PRECISION)
        store_spectrum(gy_p, gy, row, C, M, MP, R)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def project_weights(
    gv_p, h_p, B_p, b0_p, gB_p, gb0_p, go_p, rows,
    T: tl.constexpr, C: tl.constexpr, H: tl.constexpr, TB: tl.constexpr, NT: tl.constexpr, HB: tl.constexpr,
    GELU: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute B' / o, b' / o and o', all (hidden, ..).

    A program has HB of the hidden channels and some of the rows.
    """
    kind = h_p.dtype.element_ty
    c, j = tl.arange(0, C), tl.program_id(1) * HB + tl.arange(0, HB)
    B, b0 = load_matrix(B_p, j, c, C, 1, kind), tl.load(b0_p + j)
    gB = tl.zeros([HB, C], tl.float32)
    gb0, go = tl.zeros([HB], tl.float32), tl.zeros([HB], tl.float32)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        for i in tl.static_range(NT):
            t = i * TB + tl.arange(0, TB)
            gv, h = point_values(gv_p, row, t, T), load_row(h_p, row, t, T, C)
            q, slope = gelu_and_slope(product(B, tl.trans(h), PRECISION) + b0[:, None], GELU)
            go += tl.sum(q * gv[None, :], 1)
            gb0 += tl.sum(slope * gv[None, :], 1)
            gB = add_product(slope.to(kind), (gv[:, None] * h).to(kind), gB, PRECISION)
    address = tl.program_id(0) * H + j
    tl.store(gB_p + address[:, None] * C + c[None, :], gB)
    tl.store(gb0_p + address, gb0)
    tl.store(go_p + address, go)
