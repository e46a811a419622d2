"""Data benchmark: seconds to solve a training set of every task.

python benchmarks/data.py [--device cuda] [--size N] [--json FILE]
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from _measure import Results, Row, arguments, make_timer, peak, show

import sapc


def solve(device: torch.device, size: int | None) -> Iterator[Row]:
    for name in sapc.task_names():
        task = sapc.get_task(name)
        count = size or task.sizes["train"]
        # Warm up: plans, kernels.
        task.dataset("validation", size=2, device=device, cache=False)
        with peak(device) as memory:
            start = time.perf_counter()
            task.dataset("train", size=count, device=device, cache=False)
            seconds = time.perf_counter() - start
        yield {
            "task": name,
            "solutions": count,
            "seconds": seconds,
            "peak_gib": memory.bytes and memory.bytes / 2**30,
        }


def main() -> None:
    parser = arguments(__doc__, device="cpu")
    parser.add_argument(
        "--size", type=int, help="solutions per task; the published training set unless given"
    )
    options = parser.parse_args()
    timer = make_timer(options.device)
    results = Results(timer, options.json)
    show("Training sets", results.add("rows", solve(timer.device, options.size)))
    results.finish()


if __name__ == "__main__":
    main()
