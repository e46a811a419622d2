"""The backbone as Triton kernels: each activation is read once and written once per block, forward and backward.

    lifting          u -> x, Z                      hidden layer on the chip                              ends.lift_forward
    four blocks      Z -> modes -> mixed -> Y       transforms of the other axes, on the few kept modes   cuBLAS, mixing.mix_forward
                     x, Y -> h, Z                   transforms along a row, product, bias, GELU           blocks.block_forward
    projection       x, Y -> v                      with the last block; hidden layer on the chip         ends.project_forward

`network` puts them together and derives the way back; `fits` says where they can be used. Nothing here is imported without Triton.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache

import torch

LARGEST_HIDDEN = 256  # of the lifting and the projection, all of it on the chip at once
CHANNELS = (16, 32, 64, 128)


@cache
def has_triton() -> bool:
    """Whether the compiler of the kernels is installed."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on any device: for tests."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


def why_not(device: torch.device, dtype: torch.dtype, hidden: int, projection: int) -> str:
    """What stands against the kernels, empty if nothing does."""
    if not has_triton():
        return "Triton is not installed"
    if device.type != "cuda" and not interpreted():
        return f"Triton needs a GPU, and the fields are on {device.type}"
    if dtype not in (torch.float32, torch.bfloat16):
        return f"the kernels know float32 and bfloat16, not {str(dtype).removeprefix('torch.')}"
    if hidden not in CHANNELS or projection & (projection - 1) or not 16 <= projection <= LARGEST_HIDDEN:
        return (
            f"the kernels need hidden in {CHANNELS} and projection a power of two from 16 to {LARGEST_HIDDEN}, "
            f"not {hidden} and {projection}"
        )
    return ""
