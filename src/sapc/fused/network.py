"""The network as a sequence of kernels, and its derivative by hand.

Letters as in `blocks`, `ends` and `mixing`. With F the transforms of the axes before the last, N the number of lines they run over and
F^-1 = F^H / N on the kept modes, block l computes Y = F^-1 mix(F Z). Its derivative needs F^-H = F / N and F^H = N F^-1, so

    Z' = F^-1 mix^H(F Y'),      weights' = (F Z)^H (F Y') / N:

the same two transforms, and the factors cancel.

Kept for the way back are the lifting's input and output, the sums h of all blocks and the modes F Z: nothing else of the size of a field.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..dft import Transforms
from . import blocks, ends, interpreted, mixing

SLOTS = 4  # programs per multiprocessor, at most; more rows are taken one after the other


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched: points of a row at a time, warps, loads in flight, programs per multiprocessor."""

    points: int = 64
    warps: int = 4
    stages: int = 1
    programs: int = 4


@dataclass(frozen=True)
class Tuning:
    """Launches of all kernels; `hidden` is how many hidden channels are on the chip at a time."""

    block: Launch = Launch()
    block_back: Launch = Launch()
    lift: Launch = Launch()
    lift_back: Launch = Launch()
    project: Launch = Launch()
    project_back: Launch = Launch(warps=8, programs=1)
    hidden: int = 64
    batch: int = 64  # samples at a time in the mixing
    mix_warps: int = 4


TUNED = {torch.bfloat16: Tuning(), torch.float32: Tuning()}


class Ends(NamedTuple):
    """Parameters of lifting and projection: `us` (fields and last coordinate, H), A (C, H), a (C), B (H, C), b (H), o (1, H), o_0 (1)."""

    us: Tensor
    A: Tensor
    a: Tensor
    B: Tensor
    b: Tensor
    o: Tensor
    o0: Tensor


class BlockParameters(NamedTuple):
    """Weights of the modes (2, *modes, C, C), bias (C), weights of the channels (C, C)."""

    modes: Tensor
    bias: Tensor
    channels: Tensor


@dataclass(frozen=True, eq=False)
class Plan:
    """What depends on grid, sizes and precision alone."""

    how: Transforms
    hidden: int
    projection: int
    inputs: int
    precision: str  # of products: tf32 or ieee for float32 numbers
    tuning: Tuning
    place: Tensor  # the last coordinate (T,)
    lead: Tensor  # the others, (lines, axes - 1)
    out: dict[int, Tensor] = field(default_factory=dict)  # OUT and IN, padded, by points at a time
    into: dict[int, Tensor] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """Of the activations."""
        return self.how.analyse[-1].dtype

    @property
    def lines(self) -> int:
        """Rows of a sample."""
        return math.prod(self.how.grid[:-1])

    def sizes(self, launch: Launch) -> dict[str, Any]:
        """What every row kernel is told."""
        T, M = self.how.grid[-1], self.how.kept[-1].stop
        TB = min(launch.points, max(16, triton.next_power_of_2(T)))
        return {
            "T": T, "C": self.hidden, "M": M, "MP": max(8, triton.next_power_of_2(M - 1)), "TB": TB, "NT": -(-T // TB),
            "FAST": self.dtype == torch.bfloat16, "PRECISION": self.precision, "STAGES": launch.stages, "num_warps": launch.warps,
        }  # fmt: skip

    def matrices(self, launch: Launch) -> tuple[Tensor, Tensor]:
        """OUT `(T, 2 MP)` and IN `(2 MP, T)` without the mean, zero in the padding."""
        s = self.sizes(launch)
        T, M, MP, length = s["T"], s["M"], s["MP"], s["NT"] * s["TB"]
        if length not in self.out:
            for given, kept in ((self.how.synthesise[-1].T, self.out), (self.how.analyse[-1], self.into)):
                padded = given.new_zeros(2, MP, length)
                padded[:, : M - 1, :T] = given.reshape(2, M, T)[:, 1:]
                flat = padded.reshape(2 * MP, length)
                kept[length] = flat.T.contiguous() if kept is self.out else flat
        return self.out[length], self.into[length]

    def programs(self, launch: Launch, rows: int) -> int:
        """As many as run at the same time."""
        return min(rows, launch.programs * _multiprocessors(self.place.device))


@lru_cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@lru_cache(maxsize=16)
def plan(
    how: Transforms, hidden: int, projection: int, inputs: int, tf32: bool, tuning: Tuning | None = None
) -> Plan:
    """The plan of a grid and a network, kept; `tf32`: whether products of float32 numbers may be rounded to it."""
    precision = "tf32" if tf32 else "ieee"
    if interpreted() and how.analyse[-1].dtype == torch.bfloat16:
        precision = "widened"
    with torch.inference_mode(False), torch.no_grad():
        axes = len(how.grid)
        place = how.place.reshape(-1, how.grid[-1], axes + 1)
        last, lead = place[0, :, axes - 1].contiguous(), place[:, 0, : axes - 1].contiguous()
        tuning = tuning or TUNED[how.analyse[-1].dtype]
        return Plan(how, hidden, projection, inputs, precision, tuning, last, lead)


class Saved(NamedTuple):
    """For the way back: what went in, the lifting's output, sums of all blocks, modes of all blocks."""

    u: Tensor
    tau: Tensor
    line: Tensor
    x: Tensor
    sums: list[Tensor]
    modes: list[Tensor]


def run(
    p: Plan, u: Tensor, tau: Tensor, line: Tensor, e: Ends, layers: Sequence[BlockParameters], keep: bool
) -> tuple[Tensor, Saved | None]:
    """The velocity `(batch, *grid)` of fields `(batch, *lines, inputs, T)`; with `keep`, also what the way back needs."""
    x, z = _lift(p, u, tau, line, e)
    saved, enters = Saved(u, tau, line, x, [], []), False
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
    x, z = _row_like(p, len(u))
    s = p.sizes(launch)
    ends.lift_forward[(p.programs(launch, rows),)](
        u, e.us, p.place, tau, line, e.A, e.a, x, z, p.matrices(launch)[1], rows, p.lines,
        H=p.projection, HB=min(p.tuning.hidden, p.projection), INPUTS=p.inputs, **s,
    )  # fmt: skip
    return x, z


def _block(
    p: Plan, x: Tensor, y: Tensor, layer: BlockParameters, enters: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    launch, rows = p.tuning.block, len(x) * p.lines
    h, z = _row_like(p, len(x))
    blocks.block_forward[(p.programs(launch, rows),)](
        x,
        y,
        h,
        z,
        layer.channels,
        layer.bias,
        *p.matrices(launch),
        rows,
        ENTERS=enters,
        LEAVES=not keep,
        **p.sizes(launch),
    )
    return h, z


def _project(
    p: Plan, x: Tensor, y: Tensor, layer: BlockParameters, e: Ends, enters: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    launch, rows = p.tuning.project, len(x) * p.lines
    h = torch.empty_like(x) if keep else x
    v = torch.empty(len(x), *p.how.grid, dtype=torch.float32, device=x.device)
    ends.project_forward[(p.programs(launch, rows),)](
        x, y, h, v, layer.channels, layer.bias, p.matrices(launch)[0], e.B, e.b, e.o, e.o0, rows,
        H=p.projection, HB=min(p.tuning.hidden, p.projection), ENTERS=enters, KEEP=keep, **p.sizes(launch),
    )  # fmt: skip
    return v, h


def _mix(p: Plan, m: Tensor, weight: Tensor) -> Tensor:
    y, batch = torch.empty_like(m), len(m)
    modes, NB = m[0, 0, ..., 0].numel(), _samples(p, batch)
    mixing.mix_forward[(modes, -(-batch // NB))](
        m, weight, y, modes, batch, C=p.hidden, NB=NB, PRECISION=p.precision, num_warps=p.tuning.mix_warps
    )
    return y


def _samples(p: Plan, batch: int) -> int:
    return min(p.tuning.batch, max(16, triton.next_power_of_2(batch)))


def _row_like(p: Plan, batch: int) -> tuple[Tensor, Tensor]:
    """An activation and the spectrum of its rows, unwritten."""
    lead, T, M = p.how.grid[:-1], p.how.grid[-1], p.how.kept[-1].stop
    kind = {"dtype": p.dtype, "device": p.place.device}
    x = torch.empty(batch, *lead, T, p.hidden, **kind)  # type: ignore[arg-type]
    return x, torch.empty(batch, *lead, 2, M, p.hidden, **kind)  # type: ignore[arg-type]


# -- the way back --


def back(
    p: Plan, gv: Tensor, saved: Saved, e: Ends, layers: Sequence[BlockParameters], wanted: bool
) -> tuple[Tensor | None, Tensor, Tensor, Ends, list[BlockParameters]]:
    """Gradients of the first field (if `wanted`), of tau, of line and of all parameters."""
    g, gy, gB, gb, go, g_bias = _project_back(p, gv.contiguous(), saved.sums[-1], e)
    found: list[BlockParameters] = []
    for i in reversed(range(len(layers))):
        gm, g_modes = _mix_back(p, p.how.to_modes(gy), saved.modes[i], layers[i].modes)
        before = saved.sums[i - 1] if i else saved.x
        g, gy, g_channels, g_bias_before = _block_back(
            p, g, p.how.from_modes(gm), before, layers[i], first=i == 0
        )
        found.insert(0, BlockParameters(g_modes, g_bias, g_channels))
        g_bias = g_bias_before
    gu, g_tau, g_line, g_us, gA, ga = _lift_back(p, g, saved, e, wanted)
    return gu, g_tau, g_line, Ends(g_us, gA, ga, gB, gb, go, gv.sum().reshape(1)), found


def _shares(p: Plan, programs: int, *sizes: tuple[int, ...]) -> list[Tensor]:
    """Room for each program's sums."""
    return [torch.empty(programs, *size, dtype=torch.float32, device=p.place.device) for size in sizes]


def _project_back(p: Plan, gv: Tensor, h: Tensor, e: Ends) -> tuple[Tensor, ...]:
    launch, rows, H, C = p.tuning.project_back, len(gv) * p.lines, p.projection, p.hidden
    n = p.programs(launch, rows)
    gh, gy = _row_like(p, len(gv))
    shares = _shares(p, n, (H, C), (H,), (H,), (C,))
    ends.project_backward[(n,)](
        gv, h, gh, gy, e.B, e.b, e.o, *shares, p.matrices(launch)[0], rows, H=H, **p.sizes(launch)
    )
    gB, gb, go, g_bias = (s.sum(0) for s in shares)
    return gh, gy, gB, gb, go[None], g_bias


def _mix_back(p: Plan, g: Tensor, m: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    gm, gw, modes = torch.empty_like(m), torch.empty_like(weight), m[0, 0, ..., 0].numel()
    mixing.mix_backward[(modes,)](
        g, m, weight, gm, gw, modes, len(m), 1 / p.lines,
        C=p.hidden, NB=_samples(p, len(m)), PRECISION=p.precision, num_warps=p.tuning.mix_warps,
    )  # fmt: skip
    return gm, gw


def _block_back(
    p: Plan, g: Tensor, gz: Tensor, before: Tensor, layer: BlockParameters, first: bool
) -> tuple[Tensor, ...]:
    launch, rows, C = p.tuning.block_back, len(g) * p.lines, p.hidden
    n = p.programs(launch, rows)
    gh, gy = _row_like(p, len(g))
    shares = _shares(p, n, (C, C), (C,))
    blocks.block_backward[(n,)](
        g,
        gz,
        before,
        gh,
        gy,
        layer.channels,
        *shares,
        *p.matrices(launch),
        rows,
        FIRST=first,
        **p.sizes(launch),
    )
    return gh, gy, *(s.sum(0) for s in shares)


def _lift_back(p: Plan, gx: Tensor, saved: Saved, e: Ends, wanted: bool) -> tuple[Tensor | None, ...]:
    launch, rows, H, C = p.tuning.lift_back, len(gx) * p.lines, p.projection, p.hidden
    HB = min(p.tuning.hidden, H)
    n = max(1, p.programs(launch, rows) * HB // H)
    ga, ga0, gus = _shares(p, n, (H, C), (C,), (p.inputs + 1, H))
    (g_base,) = _shares(p, rows, (H,))
    gu = (
        torch.empty(H // HB, len(gx), *p.how.grid, dtype=torch.float32, device=gx.device)
        if wanted
        else g_base
    )
    sizes = p.sizes(launch)
    for name in ("M", "MP"):
        del sizes[name]
    ends.lift_backward[(n, H // HB)](
        saved.u, e.us, p.place, saved.tau, saved.line, e.A, gx, ga, ga0, gus, g_base, gu, rows, p.lines,
        H=H, HB=HB, INPUTS=p.inputs, WANTED=wanted, **sizes,
    )  # fmt: skip
    g_base = g_base.reshape(len(gx), p.lines, H)
    to_u = gu.sum(0) if wanted else None
    return to_u, g_base.sum(1), g_base.sum(0), gus.sum(0), ga.sum(0).T, ga0.sum(0)


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
        saved = Saved(u, tau, line, x, rest[:n], rest[n : 2 * n])
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
    if torch.is_grad_enabled() and any(x.requires_grad for x in (u, tau, line, *parameters)):
        return Fused.apply(p, u, tau, line, *parameters)  # type: ignore[no-untyped-call, no-any-return]
    return run(p, u, tau, line, *_sorted(parameters), keep=False)[0]
