"""Kernels of the two ends: lifting into the channels and projection out of them. Their wide hidden layers never reach memory.

Lifting, for each row: `p = u w_u + t w_t + base`, the base one vector per row (flow time, the other coordinates, bias); `x = gelu(p) A + a`;
and the row's transform `Z = IN x`. Projection, after the last block's sum h: `q = h B + b`, `v = gelu(q) . o + o_0`.

Backward both hidden layers are made again from what went in, which is sixteen times narrower or more.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from .pieces import (
    add_product,
    far,
    gelu,
    gelu_and_slope,
    load_matrix,
    load_row,
    load_spectrum,
    load_transforms,
    product,
    store_row,
    store_spectrum,
)


@triton.jit
@no_type_check
def hidden_of(u_p, us_p, place_p, base, row, t, j, T: tl.constexpr, H: tl.constexpr, INPUTS: tl.constexpr):
    """The lifting's hidden sums `(t, j)`; `us`: weights of the INPUTS fields, then of the last coordinate, each H long."""
    inside = t < T
    p = (
        base[None, :]
        + tl.load(place_p + t, mask=inside, other=0.0)[:, None] * tl.load(us_p + INPUTS * H + j)[None, :]
    )
    for k in tl.static_range(INPUTS):
        u = tl.load(u_p + far(row, INPUTS * T) + k * T + t, mask=inside, other=0.0)
        p += u[:, None] * tl.load(us_p + k * H + j)[None, :]
    return p


@triton.jit(do_not_specialize=["rows", "lines"])
@no_type_check
def lift_forward(
    u_p, us_p, place_p, tau_p, line_p, a_p, a0_p, x_p, z_p, out_p, in_p, rows, lines,
    T: tl.constexpr, C: tl.constexpr, H: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, R: tl.constexpr,
    TB: tl.constexpr, NT: tl.constexpr, HB: tl.constexpr, INPUTS: tl.constexpr, HOW: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Fields to channels, and their spectrum."""
    kind = x_p.dtype.element_ty
    c = tl.arange(0, C)
    a0 = tl.load(a0_p + c)
    out, into = load_transforms(out_p, in_p, 0, TB, MP, R, NT * TB)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        z = tl.zeros([R, C], tl.float32)
        for i in tl.static_range(NT):
            t = i * TB + tl.arange(0, TB)
            if NT > 1:
                out, into = load_transforms(out_p, in_p, i, TB, MP, R, NT * TB)
            x = tl.zeros([TB, C], tl.float32)
            for first in tl.static_range(0, H, HB):
                j = first + tl.arange(0, HB)
                base = tl.load(tau_p + (row // lines) * H + j) + tl.load(line_p + (row % lines) * H + j)
                p = hidden_of(u_p, us_p, place_p, base, row, t, j, T, H, INPUTS)
                x = add_product(gelu(p, HOW).to(kind), load_matrix(a_p, j, c, 1, H, kind), x, PRECISION)
            x += a0[None, :]
            store_row(x_p, x, row, t, T, C)
            z = add_product(into, x.to(kind), z, PRECISION)
        store_spectrum(z_p, z, row, C, M, MP, R)


@triton.jit(do_not_specialize=["rows", "lines"])
@no_type_check
def lift_backward(
    u_p, us_p, place_p, tau_p, line_p, a_p, gx_p, ga_p, ga0_p, gus_p, gbase_p, gu_p, rows, lines,
    T: tl.constexpr, C: tl.constexpr, H: tl.constexpr, TB: tl.constexpr, NT: tl.constexpr, HB: tl.constexpr,
    INPUTS: tl.constexpr, WANTED: tl.constexpr, HOW: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program has HB of the hidden channels and some of the rows; `WANTED`: the first field's gradient is asked for, a share per HB."""
    kind = gx_p.dtype.element_ty
    c, block = tl.arange(0, C), tl.program_id(1)
    j = block * HB + tl.arange(0, HB)
    a = load_matrix(a_p, c, j, H, 1, kind)  # (channels, hidden)
    ga = tl.zeros([HB, C], tl.float32)
    ga0 = tl.zeros([C], tl.float32)
    g_place = tl.zeros([HB], tl.float32)
    g_first = tl.zeros([HB], tl.float32)
    g_second = tl.zeros([HB], tl.float32)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        base = tl.load(tau_p + (row // lines) * H + j) + tl.load(line_p + (row % lines) * H + j)
        g_base = tl.zeros([HB], tl.float32)
        for i in tl.static_range(NT):
            t = i * TB + tl.arange(0, TB)
            inside = t < T
            gx = load_row(gx_p, row, t, T, C)
            x, slope = gelu_and_slope(hidden_of(u_p, us_p, place_p, base, row, t, j, T, H, INPUTS), HOW)
            ga = add_product(tl.trans(x.to(kind)), gx, ga, PRECISION)
            ga0 += tl.sum(gx.to(tl.float32), 0)
            d = product(gx, a, PRECISION) * slope  # zero beyond the row's end, as gx is
            g_base += tl.sum(d, 0)
            g_place += tl.sum(d * tl.load(place_p + t, mask=inside, other=0.0)[:, None], 0)
            at = far(row, INPUTS * T) + t
            g_first += tl.sum(d * tl.load(u_p + at, mask=inside, other=0.0)[:, None], 0)
            if INPUTS > 1:
                g_second += tl.sum(d * tl.load(u_p + at + T, mask=inside, other=0.0)[:, None], 0)
            if WANTED:
                gu = tl.sum(d * tl.load(us_p + j)[None, :], 1)
                tl.store(gu_p + far(block * rows + row, T) + t, gu, mask=inside)
        tl.store(gbase_p + far(row, H) + j, g_base)
    program = tl.program_id(0)
    tl.store(ga_p + (program * H + j)[:, None] * C + c[None, :], ga)
    if block == 0:
        tl.store(ga0_p + program * C + c, ga0)
    at = gus_p + program * (INPUTS + 1) * H + j
    tl.store(at, g_first)
    if INPUTS > 1:
        tl.store(at + H, g_second)
    tl.store(at + INPUTS * H, g_place)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def project_forward(
    x_p, y_p, h_p, v_p, w_p, b_p, out_p, in_p, B_p, b0_p, o_p, o0_p, rows,
    T: tl.constexpr, C: tl.constexpr, H: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, R: tl.constexpr,
    TB: tl.constexpr, NT: tl.constexpr, HB: tl.constexpr, ENTERS: tl.constexpr, KEEP: tl.constexpr, HOW: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The last block and the projection; `KEEP`: h leaves too, for the way back."""
    kind = x_p.dtype.element_ty
    c = tl.arange(0, C)
    w = load_matrix(w_p, c, c, 1, C, kind)
    b = tl.load(b_p + c)
    o0 = tl.load(o0_p)
    out, into = load_transforms(out_p, in_p, 0, TB, MP, R, NT * TB)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        y, mean = load_spectrum(y_p, row, T, C, M, MP)
        base = b + mean
        for i in tl.static_range(NT):
            t = i * TB + tl.arange(0, TB)
            if NT > 1:
                out, into = load_transforms(out_p, in_p, i, TB, MP, R, NT * TB)
            x = load_row(x_p, row, t, T, C)
            if ENTERS:
                x = gelu(x.to(tl.float32), HOW).to(kind)
            h = product(x, w, PRECISION)
            h = add_product(out, y, h, PRECISION) + base[None, :]
            if KEEP:
                store_row(h_p, h, row, t, T, C)
            v = tl.zeros([TB], tl.float32) + o0
            for first in tl.static_range(0, H, HB):
                j = first + tl.arange(0, HB)
                q = product(h.to(kind), load_matrix(B_p, c, j, 1, C, kind), PRECISION)
                q = gelu(q + tl.load(b0_p + j)[None, :], HOW)
                v += tl.sum(q * tl.load(o_p + j)[None, :], 1)
            tl.store(v_p + far(row, T) + t, v, mask=t < T)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def project_backward(
    gv_p, h_p, gh_p, gy_p, B_p, b0_p, o_p, gB_p, gb0_p, go_p, out_p, in_p, rows,
    T: tl.constexpr, C: tl.constexpr, H: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, R: tl.constexpr,
    TB: tl.constexpr, NT: tl.constexpr, HOW: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """From v' to h' and Y' of the last block; all hidden channels at once, because h' sums over them."""
    kind = h_p.dtype.element_ty
    c, j = tl.arange(0, C), tl.arange(0, H)
    b0, o = tl.load(b0_p + j), tl.load(o_p + j)
    B = load_matrix(B_p, j, c, C, 1, kind)  # (hidden, channels)
    gB = tl.zeros([H, C], tl.float32)
    gb0 = tl.zeros([H], tl.float32)
    go = tl.zeros([H], tl.float32)
    out, into = load_transforms(out_p, in_p, 0, TB, MP, R, NT * TB)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        gy = tl.zeros([R, C], tl.float32)
        for i in tl.static_range(NT):
            t = i * TB + tl.arange(0, TB)
            if NT > 1:
                out, into = load_transforms(out_p, in_p, i, TB, MP, R, NT * TB)
            gv = tl.load(gv_p + far(row, T) + t, mask=t < T, other=0.0)
            h = load_row(h_p, row, t, T, C)
            q = product(h, tl.trans(B), PRECISION) + b0[None, :]
            q, slope = gelu_and_slope(q, HOW)
            go += tl.sum(q * gv[:, None], 0)
            d = slope * (gv[:, None] * o[None, :])
            gb0 += tl.sum(d, 0)
            d = d.to(kind)
            gB = add_product(tl.trans(d), h, gB, PRECISION)
            gh = product(d, B, PRECISION)  # zero beyond the row's end, as v' is
            store_row(gh_p, gh, row, t, T, C)
            gy = add_product(into, gh.to(kind), gy, PRECISION)
        store_spectrum(gy_p, gy, row, C, M, MP, R)
    program = tl.program_id(0)
    tl.store(gB_p + (program * H + j)[:, None] * C + c[None, :], gB)
    tl.store(gb0_p + program * H + j, gb0)
    tl.store(go_p + program * H + j, go)
