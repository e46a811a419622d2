"""An encoder with random weights: features without a download, for a distance of another name (`sapc.fpd`).

A fresh model of Poseidon has all gains zero, and with them all features. Here the gains are about one (1 +
N(0, 0.1^2)), the shifts zero, and every matrix N(0, 1 / inputs), so that what a layer gives is as large as
what it takes. The norm that follows the patches removes their size, and with it the amplitude of the field,
but for the constant added before; it is N(0, 1/4), half of what a field of height one adds, so amplitudes
around one are told apart best.

The numbers are drawn in float64 and rounded to multiples of 2^-16: drawn in float32 their last bits, and with
them the sha256, depend on the vector instructions of the processor.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from .encoder import Encoder

SIZE = "T"
SEEDS = (0, 1, 2)


def random_encoder(seed: int, device: str | torch.device = "cpu", size: str = SIZE) -> Encoder:
    """Make an encoder with random weights, frozen.

    Args:
        seed: Seed of the weights.
        device: Where the encoder works.
        size: Size, one of `SIZES`: that of Poseidon-T by default.

    Returns:
        The encoder.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.device("cpu"):
        encoder = Encoder(size).float().requires_grad_(False)
    digest = hashlib.sha256()
    for name, weight in encoder.named_parameters():
        weight.copy_(_draw(name, weight, generator))
        digest.update(weight.numpy().tobytes())
    encoder.provenance = {"size": f"random {size}", "seed": str(seed), "sha256": digest.hexdigest()}
    return encoder.to(device).eval()


def _draw(name: str, weight: Tensor, generator: torch.Generator) -> Tensor:
    normal = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    normal = (normal * 2**16).round() / 2**16
    if name.endswith("logit_scale"):
        return torch.full_like(weight, math.log(10.0))
    is_gain = name.endswith(".weight.bias")
    if is_gain:
        return 1 + 0.1 * normal
    is_shift_or_effect_of_time = name.endswith((".weight.weight", ".bias.weight", ".bias.bias"))
    if is_shift_or_effect_of_time:
        return torch.zeros_like(weight)
    if name.endswith("projection.bias"):
        return 0.5 * normal
    return normal / math.sqrt(weight[0].numel()) if weight.ndim > 1 else torch.zeros_like(weight)
