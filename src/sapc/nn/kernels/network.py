"""The network as a sequence of kernels, and its derivative by hand.

Letters as in `block` and `lift_project`. With F the unitary transforms of the axes before the last, block l
computes Y = F^H mix(F Z) on the kept modes. So

    Z' = F^H mix^H(F Y'),      weights' = (F Z)^H (F Y'):

the same two transforms.

Kept for the way back are the lifting's input and output, the sums h of all blocks and the modes F Z: nothing
else of the size of a field.

**Half precision** has 11 bits, as many as the factors of a TF32 product, but a short range. Activations and
unitary spectra lie well inside it. Gradients of a mean do not: they are multiplied by a power of two that
brings the largest to `TOP`, found on the device without waiting for it, and divided by it at the end, which
changes no digit.
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
from .plan import FP_FUSION, Launch, Plan

# Below 65,504 by what a network can gain, and the square root of 100 x 100 points, which a coherent sum
# gains.
TOP = 64.0


class Ends(NamedTuple):
    """Parameters of lifting and projection.

    `us` (fields and last coordinate, H), A (C, H), a (C), B (H, C), b (H), o (1, H), o_0 (1).
    """

    us: Tensor
    A: Tensor
    a: Tensor
    B: Tensor
    b: Tensor
    o: Tensor
    o0: Tensor

    def round_factors(self, dtype: torch.dtype) -> Ends:
        """Round the factors of products as they are multiplied: programs read them again and again."""
        return self._replace(A=self.A.to(dtype), B=self.B.to(dtype))


class BlockParameters(NamedTuple):
    """Weights of the modes `(2, *modes, C, C)`, bias `(C)`, weights of the channels `(C, C)`."""

    modes: Tensor
    bias: Tensor
    channels: Tensor


class ForwardState(NamedTuple):
    """What the way back needs: inputs, the lifting's output, sums and modes of all blocks."""

    u: Tensor
    tau: Tensor
    line: Tensor
    x: Tensor
    sums: list[Tensor]
    modes: list[Tensor]


def run(
    p: Plan, u: Tensor, tau: Tensor, line: Tensor, e: Ends, layers: Sequence[BlockParameters], keep: bool
) -> tuple[Tensor, ForwardState | None]:
    """Evaluate fields `(batch, *lines, inputs, T)`; return the velocity, and with `keep` the state."""
    e = e.round_factors(p.dtype)
    x, z = _lift(p, u, tau, line, e)
    state, pending_gelu = ForwardState(u, tau, line, x, [], []), False
    for i, layer in enumerate(layers):
        m = p.transforms.to_modes(z)
        y = p.transforms.from_modes(_mix(p, m, layer.modes))
        if i == len(layers) - 1:
            v, h = _project(p, x, y, layer, e, pending_gelu, keep)
        else:
            h, z = _block(p, x, y, layer, pending_gelu, keep)
        if keep:
            state.sums.append(h)
            state.modes.append(m)
        x, pending_gelu = h, keep
    return v, state if keep else None


def _lift(p: Plan, u: Tensor, tau: Tensor, line: Tensor, e: Ends) -> tuple[Tensor, Tensor]:
    launch, rows = p.tuning.lift, len(u) * p.lines
    x, z = p.empty_rows(len(u))
    ends.lift_forward[(p.programs(launch, rows),)](
        u, e.us, p.place, tau, line, e.A, e.a, x, z, p.matrices(launch)[1], rows, p.lines,
        INPUTS=p.inputs, **p.lift_chunk(launch), **p.sizes(launch),
    )  # fmt: skip
    return x, z


def _block(
    p: Plan, x: Tensor, y: Tensor, layer: BlockParameters, pending_gelu: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    launch, rows = p.tuning.block_training if keep else p.tuning.block, len(x) * p.lines
    h, z = p.empty_rows(len(x))
    blocks.block_forward[(p.programs(launch, rows),)](
        x, y, h, z, layer.channels, layer.bias, *p.matrices(launch), rows, PENDING_GELU=pending_gelu,
        STORE_GELU=not keep, **p.sizes(launch)
    )  # fmt: skip
    return h, z


def _project(
    p: Plan, x: Tensor, y: Tensor, layer: BlockParameters, e: Ends, pending_gelu: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    launch, rows = p.tuning.project, len(x) * p.lines
    h, v = torch.empty_like(x) if keep else x, p.empty(len(x), *p.transforms.grid)
    ends.project_forward[(p.programs(launch, rows),)](
        x, y, h, v, layer.channels, layer.bias, p.matrices(launch)[0], e.B, e.b, e.o, e.o0, rows,
        PENDING_GELU=pending_gelu, STORE_H=keep, **p.chunk(launch), **_without(p.sizes(launch), "R"),
    )  # fmt: skip
    return v, h


def _mix(p: Plan, m: Tensor, weight: Tensor) -> Tensor:
    y, batch = torch.empty_like(m), len(m)
    modes, NB = m[0, 0, ..., 0].numel(), p.samples(batch)
    blocks.mix_forward[(modes, -(-batch // NB))](
        m, weight, y, modes, batch, C=p.hidden, NB=NB, PRECISION=p.precision, num_warps=p.tuning.mix_warps,
        **FP_FUSION
    )  # fmt: skip
    return y


# -- the way back --


def backward_pass(
    p: Plan, gv: Tensor, state: ForwardState, e: Ends, layers: Sequence[BlockParameters], needs_u_grad: bool
) -> tuple[Tensor | None, Tensor, Tensor, Ends, list[BlockParameters]]:
    """Compute gradients of the first field (if `needs_u_grad`), of tau, of line and of all parameters."""
    gv, unscale = _scale_gradient(p, gv.contiguous())
    e = e.round_factors(p.dtype)
    gB, gb, go = _project_weights(p, gv, state.sums[-1], e)
    g, gy = _project_back(p, gv, state.sums[-1], e)
    layer_gradients: list[BlockParameters] = []
    for i in reversed(range(len(layers))):
        gm, g_modes = _mix_back(p, p.transforms.to_modes(gy), state.modes[i], layers[i].modes, unscale)
        before = state.sums[i - 1] if i else state.x
        g_bias = _over_points(p, gy)
        g, gy, g_channels = _block_back(p, g, p.transforms.from_modes(gm), before, layers[i], first=i == 0)
        layer_gradients.insert(0, BlockParameters(g_modes, g_bias, g_channels))
    gu, g_tau, g_line, g_us, gA = _lift_back(p, g, state, e, needs_u_grad)
    g_ends = Ends(g_us, gA, _over_points(p, gy), gB, gb, go, gv.sum().reshape(1))
    if unscale is not p.unit:
        gradients = [g_tau, g_line, *g_ends, *([] if gu is None else [gu])]
        torch._foreach_mul_(gradients + [x for layer in layer_gradients for x in layer[1:]], unscale[0])
    return gu, g_tau, g_line, g_ends, layer_gradients


def _scale_gradient(p: Plan, gv: Tensor) -> tuple[Tensor, Tensor]:
    """Scale the gradient into the range of the dtype; return it and the number that undoes it."""
    if p.dtype != torch.float16:
        return gv, p.unit
    top = TOP * min(1.0, 100 / math.sqrt(math.prod(p.transforms.grid)))
    power = torch.log2(top / gv.abs().amax()).floor().clamp(-100, 100).reshape(1)
    return gv * torch.exp2(power), torch.exp2(-power)


def _over_points(p: Plan, gy: Tensor) -> Tensor:
    """Sum over all points, per channel: the means of the rows are in their spectra."""
    means = gy[..., 0, 0, :].flatten(0, -2)
    return means.sum(0, dtype=torch.float32) * math.sqrt(p.transforms.grid[-1])


def _project_back(p: Plan, gv: Tensor, h: Tensor, e: Ends) -> tuple[Tensor, Tensor]:
    launch, rows = p.tuning.project_back, len(gv) * p.lines
    gh, gy = p.empty_rows(len(gv))
    Bo = (e.B.float() * e.o[0, :, None]).to(p.dtype)
    ends.project_backward[(p.programs(launch, rows),)](
        gv, h, gh, gy, e.B, Bo, e.b, p.matrices(launch, is_backward=True)[1], rows, **p.chunk(launch),
        **p.sizes(launch)
    )  # fmt: skip
    return gh, gy


def _project_weights(p: Plan, gv: Tensor, h: Tensor, e: Ends) -> tuple[Tensor, Tensor, Tensor]:
    launch, rows, H, C = p.tuning.project_weights, len(gv) * p.lines, p.projection, p.hidden
    n, parts = _split_programs(p, launch, rows)
    gB, gb, go = p.empty(n, H, C), p.empty(n, H), p.empty(n, H)
    ends.project_weights[(n, parts)](
        gv, h, e.B, e.b, gB, gb, go, rows, **p.chunk(launch), **_without(p.sizes(launch), "M", "MP", "R")
    )
    return gB.sum(0) * e.o[0, :, None], gb.sum(0) * e.o[0], go.sum(0)[None]


def _split_programs(p: Plan, launch: Launch, rows: int) -> tuple[int, int]:
    """Return how many programs share the rows, and how many parts the hidden channels."""
    parts = p.projection // p.chunk(launch)["HB"]
    return max(1, p.programs(launch, rows * parts) // parts), parts


def _without(sizes: dict[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in sizes.items() if k not in names}


def _mix_back(p: Plan, g: Tensor, m: Tensor, weight: Tensor, unscale: Tensor) -> tuple[Tensor, Tensor]:
    gm, gw, modes = torch.empty_like(m), torch.empty_like(weight), m[0, 0, ..., 0].numel()
    blocks.mix_backward[(modes,)](
        g, m, weight, gm, gw, unscale, modes, len(m),
        C=p.hidden, NB=p.samples(len(m)), PRECISION=p.precision, num_warps=p.tuning.mix_warps, **FP_FUSION,
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
        g, gz, before, gh, gy, layer.channels, share, *p.matrices(launch, is_backward=True), rows,
        FIRST=first, **p.sizes(launch)
    )  # fmt: skip
    return gh, gy, share.sum(0)


def _lift_back(
    p: Plan, gx: Tensor, state: ForwardState, e: Ends, needs_u_grad: bool
) -> tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor]:
    launch, rows, H, C = p.tuning.lift_back, len(gx) * p.lines, p.projection, p.hidden
    n, parts = _split_programs(p, launch, rows)
    ga, gus = p.empty(n, H, C), p.empty(n, p.inputs + 1, H)
    g_base = p.empty(len(gx), p.lines, H)
    gu = p.empty(parts, len(gx), *p.transforms.grid) if needs_u_grad else g_base
    ends.lift_backward[(n, parts)](
        state.u, e.us, p.place, state.tau, state.line, e.A, gx, ga, gus, g_base, gu, rows, p.lines,
        INPUTS=p.inputs, NEEDS_U_GRAD=needs_u_grad, **p.chunk(launch),
        **_without(p.sizes(launch), "M", "MP", "R"),
    )  # fmt: skip
    u_gradient = gu.sum(0) if needs_u_grad else None
    return u_gradient, g_base.sum(1), g_base.sum(0), gus.sum(0), ga.sum(0).T


class NetworkFunction(torch.autograd.Function):
    """`run`, with `backward_pass` as its derivative."""

    @staticmethod
    def forward(ctx: Any, p: Plan, u: Tensor, tau: Tensor, line: Tensor, *parameters: Tensor) -> Tensor:
        """Evaluate; the parameters are those of the ends, then those of the blocks, one after the other."""
        e, layers = _unpack(parameters)
        v, state = run(p, u, tau, line, e, layers, keep=True)
        assert state is not None
        ctx.plan, ctx.depth = p, len(layers)
        ctx.save_for_backward(u, tau, line, state.x, *state.sums, *state.modes, *parameters)
        return v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gv: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients, in the order of the inputs."""
        u, tau, line, x, *gradients = ctx.saved_tensors
        n = ctx.depth
        e, layers = _unpack(gradients[2 * n :])
        state = ForwardState(u, tau, line, x, gradients[:n], gradients[n : 2 * n])
        with torch.cuda.device_of(u):  # type: ignore[no-untyped-call]
            gu, g_tau, g_line, g_ends, g_layers = backward_pass(
                ctx.plan, gv, state, e, layers, needs_u_grad=ctx.needs_input_grad[1]
            )
        # Condition fields, if there are any, need none.
        if gu is not None:
            gu = torch.stack((gu, *[torch.zeros_like(gu)] * (ctx.plan.inputs - 1)), -2)
        return None, gu, g_tau, g_line, *g_ends, *(g for layer in g_layers for g in layer)


def _unpack(parameters: Sequence[Tensor]) -> tuple[Ends, list[BlockParameters]]:
    n = len(Ends._fields)
    blocks = [BlockParameters(*parameters[i : i + 3]) for i in range(n, len(parameters), 3)]
    return Ends(*parameters[:n]), blocks


def velocity(p: Plan, u: Tensor, tau: Tensor, line: Tensor, *parameters: Tensor) -> Tensor:
    """Evaluate the velocity, differentiable if gradients are needed; otherwise nothing is kept."""
    # Kernels are launched on the current device.
    with torch.cuda.device_of(u):  # type: ignore[no-untyped-call]
        inputs = (u, tau, line, *parameters)
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(u).tangent is not None:  # type: ignore[no-untyped-call]
            raise NotImplementedError("the network has no forward-mode derivative; use reverse mode")
        if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
            if u.is_cuda:
                check_backward(p, *inputs)
            return NetworkFunction.apply(p, *inputs)  # type: ignore[no-untyped-call, no-any-return]
        return run(p, u, tau, line, *_unpack(parameters), keep=False)[0]


def check_backward(p: Plan, u: Tensor, tau: Tensor, line: Tensor, *parameters: Tensor) -> None:
    """Try the way back once, with one sample, before anybody relies on it."""
    if u.requires_grad in p.checked_backward:
        return
    with torch.no_grad():
        e, layers = _unpack(parameters)
        v, state = run(p, u[:1], tau[:1], line, e, layers, keep=True)
        assert state is not None
        backward_pass(p, torch.ones_like(v), state, e, layers, needs_u_grad=u.requires_grad)
    p.checked_backward.add(u.requires_grad)
