"""The backbone as Triton kernels: each activation is read once and written once per block, forward and backward.

    lifting          u -> x, Z                      hidden layer on the chip                              lift_project.lift_forward
    four blocks      Z -> modes -> mixed -> Y       transforms of the other axes, on the few kept modes   cuBLAS, block.mix_forward
                     x, Y -> h, Z                   transforms along a row, product, bias, GELU           block.block_forward
    projection       x, Y -> v                      with the last block; hidden layer on the chip         lift_project.project_forward

`network` puts them together and derives the way back, `plan` holds what depends on the grid alone, and
`kernels_unavailable_reason` says where they cannot be used. Nothing here is imported without Triton.
"""

from __future__ import annotations

import torch

from ..._triton import is_interpreted, triton_unavailable_reason

LARGEST_HIDDEN = 256  # of the lifting and the projection, all of it on the chip at once
CHANNELS = (16, 32, 64, 128)
KINDS = (torch.float32, torch.bfloat16, torch.float16)


def kernels_unavailable_reason(device: torch.device, dtype: torch.dtype, hidden: int, projection: int) -> str:
    """What stands against the kernels, empty if nothing does."""
    if device.type != "cuda" and not is_interpreted():
        return f"Triton needs a GPU, and the fields are on {device.type}"
    if missing := triton_unavailable_reason():
        return missing
    if device.type == "cuda" and (old := _too_old(device)):
        return old
    if dtype not in KINDS:
        known = ", ".join(str(kind).removeprefix("torch.") for kind in KINDS)
        return f"the kernels know {known}, not {str(dtype).removeprefix('torch.')}"
    if hidden not in CHANNELS or projection & (projection - 1) or not 16 <= projection <= LARGEST_HIDDEN:
        return (
            f"the kernels need hidden in {CHANNELS} and projection a power of two from 16 to {LARGEST_HIDDEN}, "
            f"not {hidden} and {projection}"
        )
    return ""


def _too_old(device: torch.device) -> str:
    if torch.version.hip is not None:
        return "some instructions in the kernels are NVIDIA's"
    major, minor = torch.cuda.get_device_capability(device)
    return "" if major >= 8 else f"the kernels need compute capability 8.0, and this GPU has {major}.{minor}"
