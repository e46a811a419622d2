"""The backbone as Triton kernels: each activation is read and written once per block, forward and backward.

    lifting      lift_project.lift_forward      u -> x, Z                  hidden layer on the chip
    four blocks  cuBLAS, block.mix_forward      Z -> modes -> mixed -> Y   transforms of the other axes
                 block.block_forward            x, Y -> h, Z               along a row; product, bias, GELU
    projection   lift_project.project_forward   x, Y -> v                  with the last block

`network` puts them together and derives the way back, `plan` holds what depends on the grid alone, and
`kernels_unavailable_reason` says where they cannot be used. Nothing here is imported without Triton.
"""

from __future__ import annotations

import torch

from ..._triton import is_interpreted, triton_unavailable_reason

# Hidden layer of the lifting and the projection, all of it on the chip at once.
LARGEST_HIDDEN = 256
# Condition fields beside the state.
LARGEST_CONDITIONS = 2
CHANNELS = (16, 32, 64, 128)
KINDS = (torch.float32, torch.bfloat16, torch.float16)


def kernels_unavailable_reason(device: torch.device, dtype: torch.dtype, hidden: int, projection: int) -> str:
    """Explain why the kernels cannot be used.

    Args:
        device: Device of the fields.
        dtype: Dtype of the activations.
        hidden: Channels of the blocks.
        projection: Channels of the hidden layers.

    Returns:
        The reason, or an empty text if they can be used.
    """
    if device.type != "cuda" and not is_interpreted():
        return f"Triton needs a GPU, and the fields are on {device.type}"
    if reason := triton_unavailable_reason() or _gpu_unusable_reason(device):
        return reason
    if dtype not in KINDS:
        names = ", ".join(str(kind).removeprefix("torch.") for kind in KINDS)
        return f"the kernels know {names}, not {str(dtype).removeprefix('torch.')}"
    if hidden not in CHANNELS or projection & (projection - 1) or not 16 <= projection <= LARGEST_HIDDEN:
        return (
            f"the kernels need hidden in {CHANNELS} and projection a power of two "
            f"from 16 to {LARGEST_HIDDEN}, not {hidden} and {projection}"
        )
    return ""


def _gpu_unusable_reason(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    if torch.version.hip is not None:
        return "some instructions in the kernels are NVIDIA's"
    major, minor = torch.cuda.get_device_capability(device)
    return "" if major >= 8 else f"the kernels need compute capability 8.0, and this GPU has {major}.{minor}"
