"""The network as a sequence of kernels, and its derivative by hand.

Letters as in `block` and `lift_project`. With F the unitary transforms of the axes before the last, block l computes Y = F^H mix(F Z)
on the kept modes. So

    Z' = F^H mix^H(F Y'),      weights' = (F Z)^H (F Y'):

the same two transforms.

Kept for the way back are the lifting's input and output, the sums h of all blocks and the modes F Z: nothing else of the size of a field.

**Half precision** has 11 bits, as many as the factors of a TF32 product, but a short range. Activations and unitary spectra lie well inside
it. Gradients of a mean do not: they are multiplied by a power of two that brings the largest to `TOP`, found on the device without
waiting for it, and divided by it at the end, which changes no digit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from . import block as blocks
from . import lift_project as ends
from .plan import FUSED, Launch, Plan

TOP = 64.0  # below 65,504 by what a network can gain, and the square root of 100 x 100 points, which a coherent sum gains


class Ends(NamedTuple):
    """Parameters of lifting and projection: `us` (fields and last coordinate, H), A (C, H), a (C), B (H, C), b (H), o (1, H), o_0 (1)."""

    us: Tensor
    A: Tensor
    a: Tensor
    B: Tensor
    b: Tensor
    o: Tensor
    o0: Tensor

    def round_factors(self, dtype: torch.dtype) -> Ends:
        """Factors of products as they are multiplied: programs read them again and again."""
        return self._replace(A=self.A.to(dtype), B=self.B.to(dtype))


class BlockParameters(NamedTuple):
    """Weights of the modes (2, *modes, C, C), bias (C), weights of the channels (C, C)."""

    modes: Tensor
    bias: Tensor
    channels: Tensor


class ForwardState(NamedTuple):
    """For the way back: what went in, the lifting's output, sums of all blocks, modes of all blocks."""

    u: Tensor
    tau: Tensor
    line: Tensor
    x: Tensor
    sums: list[Tensor]
    modes: list[Tensor]


def run(
    p: Plan, u: Tensor, tau: Tensor, line: Tensor, e: Ends, layers: Sequence[BlockParameters], keep: bool
) -> tuple[Tensor, ForwardState | None]:
    """The velocity `(batch, *grid)` of fields `(batch, *lines, inputs, T)`; with `keep`, also what the way back needs."""
    e = e.round_factors(p.dtype)
    x, z = _lift(p, u, tau, line, e)
    saved, enters = ForwardState(u, tau, line, x, [], []), False
    for i, layer in enumerate(layers):
        m = p.how.to_modes(z)
        y = p.how.from_modes(_mix(p, m, layer.modes))
        last = i == len(layers) - 1
        if last:
            v, h = _project(p, x, y, layer, e, enters, keep)
        else:
            h, z = _block(p, x, y, layer, enters, keep)
        if keep:
            saved.sums.append(h)
            saved.modes.append(m)
        x, enters = h, keep
    return v, saved if keep else None


def _lift(p: Plan, u: Tensor, tau: Tensor, line: Tensor, e: Ends) -> tuple[Tensor, Tensor]:
    launch, rows = p.tuning.lift, len(u) * p.lines
    x, z = p.empty_rows(len(u))
    ends.lift_forward[(p.programs(launch, rows),)](
        u, e.us, p.place, tau, line, e.A, e.a, x, z, p.matrices(launch)[1], rows, p.lines,
        INPUTS=p.inputs, **p.lift_chunk(launch), **p.sizes(launch),
    )  # fmt: skip
    return x, z


def _block(
    p: Plan, x: Tensor, y: Tensor, layer: BlockParameters, enters: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    launch, rows = p.tuning.block_training if keep else p.tuning.block, len(x) * p.lines
    h, z = p.empty_rows(len(x))
    blocks.block_forward[(p.programs(launch, rows),)](
        x, y, h, z, layer.channels, layer.bias, *p.matrices(launch), rows, PENDING_GELU=enters, STORE_GELU=not keep, **p.sizes(launch)
    )  # fmt: skip
    return h, z


def _project(
    p: Plan, x: Tensor, y: Tensor, layer: BlockParameters, e: Ends, enters: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    launch, rows = p.tuning.project, len(x) * p.lines
    h, v = torch.empty_like(x) if keep else x, p.empty(len(x), *p.how.grid)
    ends.project_forward[(p.programs(launch, rows),)](
        x, y, h, v, layer.channels, layer.bias, p.matrices(launch)[0], e.B, e.b, e.o, e.o0, rows,
        PENDING_GELU=enters, STORE_H=keep, **p.chunk(launch), **_without(p.sizes(launch), "R"),
    )  # fmt: skip
    return v, h


def _mix(p: Plan, m: Tensor, weight: Tensor) -> Tensor:
    y, batch = torch.empty_like(m), len(m)
    modes, NB = m[0, 0, ..., 0].numel(), p.samples(batch)
    blocks.mix_forward[(modes, -(-batch // NB))](
        m, weight, y, modes, batch, C=p.hidden, NB=NB, PRECISION=p.precision, num_warps=p.tuning.mix_warps, **FUSED
    )  # fmt: skip
    return y


# -- the way back --


def back(
    p: Plan, gv: Tensor, saved: ForwardState, e: Ends, layers: Sequence[BlockParameters], wanted: bool
) -> tuple[Tensor | None, Tensor, Tensor, Ends, list[BlockParameters]]:
    """Gradients of the first field (if `wanted`), of tau, of line and of all parameters."""
    gv, unscale = _scaled(p, gv.contiguous())
    e = e.round_factors(p.dtype)
    gB, gb, go = _project_weights(p, gv, saved.sums[-1], e)
    g, gy = _project_back(p, gv, saved.sums[-1], e)
    found: list[BlockParameters] = []
    for i in reversed(range(len(layers))):
        gm, g_modes = _mix_back(p, p.how.to_modes(gy), saved.modes[i], layers[i].modes, unscale)
        before = saved.sums[i - 1] if i else saved.x
        g_bias = _over_points(p, gy)
        g, gy, g_channels = _block_back(p, g, p.how.from_modes(gm), before, layers[i], first=i == 0)
        found.insert(0, BlockParameters(g_modes, g_bias, g_channels))
    gu, g_tau, g_line, g_us, gA = _lift_back(p, g, saved, e, wanted)
    g_ends = Ends(g_us, gA, _over_points(p, gy), gB, gb, go, gv.sum().reshape(1))
    if unscale is not p.one:
        rest = [g_tau, g_line, *g_ends, *([] if gu is None else [gu])]
        torch._foreach_mul_(rest + [x for layer in found for x in layer[1:]], unscale[0])
    return gu, g_tau, g_line, g_ends, found


def _scaled(p: Plan, gv: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient within the range of the dtype, and the number that undoes it."""
    if p.dtype != torch.float16:
        return gv, p.one
    top = TOP * min(1.0, 100 / math.sqrt(math.prod(p.how.grid)))
    power = torch.log2(top / gv.abs().amax()).floor().clamp(-100, 100).reshape(1)
    return gv * torch.exp2(power), torch.exp2(-power)


def _over_points(p: Plan, gy: Tensor) -> Tensor:
    """A sum over all points, per channel: the means of the rows are in their spectra."""
    means = gy[..., 0, 0, :].flatten(0, -2)
    return means.sum(0, dtype=torch.float32) * math.sqrt(p.how.grid[-1])


def _project_back(p: Plan, gv: Tensor, h: Tensor, e: Ends) -> tuple[Tensor, Tensor]:
    launch, rows = p.tuning.project_back, len(gv) * p.lines
    gh, gy = p.empty_rows(len(gv))
    Bo = (e.B.float() * e.o[0, :, None]).to(p.dtype)
    ends.project_backward[(p.programs(launch, rows),)](
        gv, h, gh, gy, e.B, Bo, e.b, p.matrices(launch, back=True)[1], rows, **p.chunk(launch), **p.sizes(launch)
    )  # fmt: skip
    return gh, gy


def _project_weights(p: Plan, gv: Tensor, h: Tensor, e: Ends) -> tuple[Tensor, Tensor, Tensor]:
    launch, rows, H, C = p.tuning.project_weights, len(gv) * p.lines, p.projection, p.hidden
    n, parts = _shared(p, launch, rows)
    gB, gb, go = p.empty(n, H, C), p.empty(n, H), p.empty(n, H)
    ends.project_weights[(n, parts)](
        gv, h, e.B, e.b, gB, gb, go, rows, **p.chunk(launch), **_without(p.sizes(launch), "M", "MP", "R")
    )
    return gB.sum(0) * e.o[0, :, None], gb.sum(0) * e.o[0], go.sum(0)[None]


def _shared(p: Plan, launch: Launch, rows: int) -> tuple[int, int]:
    """Programs that go through the rows, each as often as there are parts of the hidden channels."""
    parts = p.projection // p.chunk(launch)["HB"]
    return max(1, p.programs(launch, rows * parts) // parts), parts


def _without(sizes: dict[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in sizes.items() if k not in names}


def _mix_back(p: Plan, g: Tensor, m: Tensor, weight: Tensor, unscale: Tensor) -> tuple[Tensor, Tensor]:
    gm, gw, modes = torch.empty_like(m), torch.empty_like(weight), m[0, 0, ..., 0].numel()
    blocks.mix_backward[(modes,)](
        g, m, weight, gm, gw, unscale, modes, len(m),
        C=p.hidden, NB=p.samples(len(m)), PRECISION=p.precision, num_warps=p.tuning.mix_warps, **FUSED,
    )  # fmt: skip
    return gm, gw


def _block_back(
    p: Plan, g: Tensor, gz: Tensor, before: Tensor, layer: BlockParameters, first: bool
) -> tuple[Tensor, ...]:
    launch, rows, C = p.tuning.block_back, len(g) * p.lines, p.hidden
    n = p.programs(launch, rows)
    gh, gy = p.empty_rows(len(g))
    share = p.empty(n, C, C)
    blocks.block_backward[(n,)](
        g, gz, before, gh, gy, layer.channels, share, *p.matrices(launch, back=True), rows, FIRST=first, **p.sizes(launch)
    )  # fmt: skip
    return gh, gy, share.sum(0)


def _lift_back(
    p: Plan, gx: Tensor, saved: ForwardState, e: Ends, wanted: bool
) -> tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor]:
    launch, rows, H, C = p.tuning.lift_back, len(gx) * p.lines, p.projection, p.hidden
    n, parts = _shared(p, launch, rows)
    ga, gus = p.empty(n, H, C), p.empty(n, p.inputs + 1, H)
    g_base = p.empty(len(gx), p.lines, H)
    gu = p.empty(parts, len(gx), *p.how.grid) if wanted else g_base
    ends.lift_backward[(n, parts)](
        saved.u, e.us, p.place, saved.tau, saved.line, e.A, gx, ga, gus, g_base, gu, rows, p.lines,
        INPUTS=p.inputs, NEEDS_U_GRAD=wanted, **p.chunk(launch), **_without(p.sizes(launch), "M", "MP", "R"),
    )  # fmt: skip
    to_u = gu.sum(0) if wanted else None
    return to_u, g_base.sum(1), g_base.sum(0), gus.sum(0), ga.sum(0).T


class Fused(torch.autograd.Function):
    """`run` with `back` as its derivative."""

    @staticmethod
    def forward(ctx: Any, p: Plan, u: Tensor, tau: Tensor, line: Tensor, *parameters: Tensor) -> Tensor:
        """Parameters: those of the ends, then those of the blocks, one after the other."""
        e, layers = _sorted(parameters)
        v, saved = run(p, u, tau, line, e, layers, keep=True)
        assert saved is not None
        ctx.plan, ctx.depth = p, len(layers)
        ctx.save_for_backward(u, tau, line, saved.x, *saved.sums, *saved.modes, *parameters)
        return v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gv: Tensor) -> tuple[Tensor | None, ...]:
        """In the order of the inputs."""
        u, tau, line, x, *rest = ctx.saved_tensors
        n = ctx.depth
        e, layers = _sorted(rest[2 * n :])
        saved = ForwardState(u, tau, line, x, rest[:n], rest[n : 2 * n])
        with torch.cuda.device_of(u):  # type: ignore[no-untyped-call]
            gu, g_tau, g_line, g_ends, g_layers = back(
                ctx.plan, gv, saved, e, layers, wanted=ctx.needs_input_grad[1]
            )
        if gu is not None:  # the condition, if there is one, is given
            gu = gu[..., None, :] if ctx.plan.inputs == 1 else torch.stack((gu, torch.zeros_like(gu)), -2)
        return None, gu, g_tau, g_line, *g_ends, *(g for layer in g_layers for g in layer)


def _sorted(parameters: Sequence[Tensor]) -> tuple[Ends, list[BlockParameters]]:
    n = len(Ends._fields)
    rest = parameters[n:]
    return Ends(*parameters[:n]), [BlockParameters(*rest[i : i + 3]) for i in range(0, len(rest), 3)]


def velocity(p: Plan, u: Tensor, tau: Tensor, line: Tensor, *parameters: Tensor) -> Tensor:
    """The velocity, differentiable where gradients are wanted; otherwise nothing is kept."""
    with torch.cuda.device_of(u):  # type: ignore[no-untyped-call]  # kernels are launched on the current one
        inputs = (u, tau, line, *parameters)
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(u).tangent is not None:  # type: ignore[no-untyped-call]
            raise NotImplementedError("the network has no forward-mode derivative; use reverse mode")
        if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
            if u.is_cuda:
                check_backward(p, *inputs)
            return Fused.apply(p, *inputs)  # type: ignore[no-untyped-call, no-any-return]
        return run(p, u, tau, line, *_sorted(parameters), keep=False)[0]


def check_backward(p: Plan, u: Tensor, tau: Tensor, line: Tensor, *parameters: Tensor) -> None:
    """Once, with one sample: whether there is a way back shows before anybody relies on it."""
    if u.requires_grad in p.checked_backward:
        return
    with torch.no_grad():
        e, layers = _sorted(parameters)
        v, saved = run(p, u[:1], tau[:1], line, e, layers, keep=True)
        assert saved is not None
        back(p, torch.ones_like(v), saved, e, layers, wanted=u.requires_grad)
    p.checked_backward.add(u.requires_grad)
