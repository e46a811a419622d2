"""SAPC whose network is also shown the condition. This goes beyond the paper.

SAPC's network sees a condition only through the pinned values inside its noisy state, and its samples follow
the condition less than those of condFFM. Here two more fields enter the network, the values g and the mask m
of what H pins:

    m = 1 and g = the pinned value where H pins one,     m = g = 0 elsewhere

The mask tells a pinned zero from nothing pinned. All else is SAPC (see `sapc`): the source is anchored,
estimates are projected, and so samples lie on H whatever the network. Constraints that are added when
sampling, as sensors, are in H, and so in both fields.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..constraints import Manifold
from . import references
from .base import Method
from .cond_ffm import pinned_values
from .sapc import loss, sample


def pinned_values_and_mask(H: Manifold) -> Tensor:
    """Stack the pinned values of every condition and the mask of where they are: `(condition, 2, *grid)`."""
    g = pinned_values(H)
    return torch.stack((g, H.pinned.to(g).expand_as(g)), 1)


COND_SAPC = Method(
    name="cond_sapc",
    title="SAPC with the condition as an input",
    reference=references.SAPC,
    loss=loss,
    sample=sample,
    weights="cond_sapc",
    exact="all",
    accepts_sampler=True,
    loss_uses_manifold=True,
    sampler_uses_manifold=True,
    conditioning_input=pinned_values_and_mask,
    condition_fields=2,
)
