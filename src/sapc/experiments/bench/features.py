"""What FPD and FRD cost: features of as many images as a published test set has, and the Fréchet distance of two such sets.

The weights are random: they do not change what the work costs. On a CPU a few images are timed and scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...evaluation import frechet as poseidon
from ...evaluation import metrics
from .timer import Timer

IMAGES = 1225
FEW = 16
SIZES = ("T", "B")
POINTS = 100  # a side, as most of the published grids have


def features(timer: Timer, progress: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """A row per size: seconds for all images, milliseconds for one, seconds for one distance."""
    cuda = timer.device.type == "cuda"
    n = IMAGES if cuda else FEW
    fields = torch.randn(n, POINTS, POINTS, device=timer.device)
    for size in SIZES:
        progress(f"features: Poseidon-{size}, {n} images")
        encoder = poseidon.random_encoder(0, timer.device, size)
        short = replace(timer, repeats=3, warm_up=1)
        seconds = short(partial(poseidon.features, encoder, fields)) * IMAGES / n
        x, y = (torch.randn(IMAGES, encoder.dim, device=timer.device) for _ in range(2))
        yield {
            "size": size,
            "images": IMAGES,
            "timed": n,
            "points": POINTS,
            "features_s": seconds,
            "image_ms": 1e3 * seconds / IMAGES,
            "distance_s": short(partial(metrics.frechet, x, y)),
        }
