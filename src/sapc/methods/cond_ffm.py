"""FFM with the condition as an input.

The pinned values, zero elsewhere, are one more input channel of the network.

Trained and sampled as FFM. It learns the conditional distribution, and nothing makes its samples meet the
condition or a law exactly. The paper has it in its ablation, as what the condition alone is worth.
"""

from __future__ import annotations

from torch import Tensor

from ..constraints import Manifold
from . import references
from .base import Method
from .ffm import loss, sample


def pinned_values(H: Manifold) -> Tensor:
    """Spread the pinned values of every condition over the whole grid, zero where nothing is pinned."""
    return H.fields * H.pinned


COND_FFM = Method(
    name="cond_ffm",
    title="FFM with the condition as an input",
    reference=references.SAPC,
    further_references=(references.FFM,),
    loss=loss,
    sample=sample,
    weights="cond_ffm",
    exact="none",
    accepts_sampler=True,
    loss_uses_manifold=True,
    sampler_uses_manifold=True,
    conditioning_input=pinned_values,
)
