"""The FNO on a CPU where no gradient is wanted: the same products, a few lines of the grid at a time.

With x an activation, each block is

    Z = IN x                       every line of the last axis by itself
    Y = F^-1 M F Z                 all lines; few modes, so it is small. F are the other axes' transforms
    x = gelu(OUT Y + x W^T)        every line by itself, no GELU after the last block

and lifting, projecting and the next block's Z act on single lines as well. So lines go through all of it in
groups that fit into a core's cache. An activation is read and written once per block, in one place of
memory. Taken whole, it would go to memory and back with every operation, and most of the time would be spent
on waiting for it.

M mixes channels by a complex matrix R + i I per mode. With z = a + i b as rows of channels,

    z (R + i I) = (a R - b I) + i (a I + b R),

two real products with the weights as they are stored. Nothing is kept from call to call.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from .dft import Block, Spectral, Transforms, multiply

if TYPE_CHECKING:
    from .fno import FNO

# Numbers in an activation of a group of lines, and in one of all fields at a time; `benchmarks/backbone.py
# --device cpu --batch 8` compares the paths.
GROUP = 2**18
WHOLE = 2**23


def velocity(network: FNO, inputs: Tensor, t: Tensor, transforms: Transforms) -> Tensor:
    """Evaluate a network in its own dtype, without a gradient.

    Args:
        network: The network, on a CPU.
        inputs: State's channels, coordinates and a one, `(batch, points, in)`.
        t: Flow times, one per sample.
        transforms: Matrices of the grid.

    Returns:
        The velocity `(batch, points, channels)`.
    """
    hidden = network.lift_out.out_features
    count = max(1, WHOLE // (inputs.shape[1] * hidden))
    if len(t) > count:
        parts = zip(torch.split(inputs, count), torch.split(t, count), strict=True)
        return torch.cat([velocity(network, *part, transforms) for part in parts])
    n, IN = transforms.grid[-1], transforms.analyse[-1]
    lines = len(t) * math.prod(transforms.grid[:-1])
    x, z = inputs.new_empty(lines, n, hidden), inputs.new_empty(lines, len(IN), hidden)
    for group, h in _lift(network, inputs.reshape(len(t), -1, n, inputs.shape[-1]), t):
        x[group] = h
        multiply(IN, h, out=z[group])
    blocks = [cast(Block, block) for block in network.blocks]
    for block in blocks[:-1]:
        y = _mix(block.spectral, z, transforms)
        for group in _groups(lines, n * hidden):
            x[group] = h = torch.ops.aten.gelu_(_add(block, y[group], x[group], transforms))
            multiply(IN, h, out=z[group])
    y = _mix(blocks[-1].spectral, z, transforms)
    v = inputs.new_empty(lines, n, network.channels)
    for group in _groups(lines, n * network.project_in.out_features):
        h = network.project_in(_add(blocks[-1], y[group], x[group], transforms))
        v[group] = network.project_out(torch.ops.aten.gelu_(h))
    return v.view(len(t), -1, network.channels)


def _groups(lines: int, numbers: int) -> Iterator[slice]:
    """Divide lines into groups, by the numbers that an activation has on each line."""
    step = max(1, GROUP // numbers)
    return (slice(first, min(first + step, lines)) for first in range(0, lines, step))


def _lift(network: FNO, inputs: Tensor, t: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Lift `(batch, lines, n, in)` to groups `(lines, n, hidden)`: some fields, or some lines of one."""
    batch, lines, n, _ = inputs.shape
    maps = network.lift_maps(t)
    numbers = n * maps.shape[-1]
    for fields, part in itertools.product(_groups(batch, lines * numbers), _groups(lines, numbers)):
        h = torch.bmm(inputs[fields, part].flatten(1, 2), maps[fields])
        h = network.lift_out(torch.ops.aten.gelu_(h)).view(-1, n, network.lift_out.out_features)
        first = fields.start * lines + part.start
        yield slice(first, first + len(h)), h


def _add(block: Block, y: Tensor, x: Tensor, transforms: Transforms) -> Tensor:
    """Compute `OUT y + x W^T` on a group of lines."""
    h = multiply(transforms.synthesise[-1], y)
    h.view(-1, h.shape[-1]).addmm_(x.reshape(-1, x.shape[-1]), block.pointwise.weight.T)
    return h


def _mix(spectral: Spectral, z: Tensor, transforms: Transforms) -> Tensor:
    """Transform the lines' modes along the other axes, mix channels on each mode, and transform back."""
    c = z.shape[-1]
    z = transforms.to_modes(z.reshape(-1, *transforms.grid[:-1], 2, z.shape[1] // 2, c))
    batch, modes = len(z), z.shape[2:-1]
    R, I = spectral.weight[(slice(None), *transforms.mode_slices)].reshape(2, -1, c, c)
    # (modes, real and imaginary part, batch)
    rows = z.reshape(batch, 2, -1, c).permute(2, 1, 0, 3).reshape(-1, 2 * batch, c)
    (aR, bR), (aI, bI) = (torch.bmm(rows, w).view(-1, 2, batch, c).unbind(1) for w in (R, I))
    # The bias is that of the mean's mode.
    mean = transforms.constant[:, None, None] * spectral.bias
    mixed = torch.stack((aR - bI + mean, aI + bR)).permute(2, 0, 1, 3)
    y = transforms.from_modes(mixed.reshape(batch, 2, *modes, c))
    return y.reshape(-1, y.shape[-3] * y.shape[-2], c)
