"""Cost of FPD and FRD: features of as many images as a published test set has, and one distance.

    python benchmarks/features.py [--device cuda] [--json FILE]

The weights are random: they do not change what the work costs. On a CPU a few images are timed and scaled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from _measure import Results, Row, announce, arguments, make_timer, show

from sapc.evaluation import frechet, metrics
from sapc.experiments.timing import Timer

IMAGES = 1225
CPU_IMAGES = 16
SIZES = ("T", "B")
POINTS = 100
"""Points a side, as most of the published grids have."""


def features(timer: Timer) -> Iterator[Row]:
    """Yield a row per size: seconds for all images, milliseconds for one, seconds for one distance."""
    cuda = timer.device.type == "cuda"
    n = IMAGES if cuda else CPU_IMAGES
    fields = torch.randn(n, POINTS, POINTS, device=timer.device)
    for size in SIZES:
        announce(f"features: Poseidon-{size}, {n} images")
        encoder = frechet.random_encoder(0, timer.device, size)
        short = replace(timer, repeats=3, warm_up=1)
        seconds = short(partial(frechet.features, encoder, fields)) * IMAGES / n
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


def main() -> None:
    options = arguments(__doc__).parse_args()
    timer = make_timer(options.device)
    results = Results(timer, options.json)
    show("Features and distances", results.add("features", features(timer)))
    results.finish()


if __name__ == "__main__":
    main()
