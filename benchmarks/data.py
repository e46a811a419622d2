"""Data benchmark: seconds to solve a training set of every task.

python benchmarks/data.py [--device cuda] [--size N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import time

import torch
from rich.console import Console
from rich.table import Table

import sapc


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--size", type=int, help="solutions per task; the published training set unless given"
    )
    parser.add_argument("--json", help="write the figures here as well")
    options = parser.parse_args()
    cuda = options.device == "cuda"
    hardware = (
        torch.cuda.get_device_name() if cuda else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    table = Table("task", "solutions", "seconds", "peak GiB on the device")
    rows = []
    for name in sapc.task_names():
        task = sapc.get_task(name)
        size = options.size or task.sizes["train"]
        task.dataset("validation", size=2, device=options.device, cache=False)  # warm-up: plans, kernels
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        task.dataset("train", size=size, device=options.device, cache=False)
        took = time.perf_counter() - start
        peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else None
        rows.append({"task": name, "solutions": size, "seconds": took, "peak_gib": peak})
        table.add_row(name, str(size), f"{took:.3g}", "" if peak is None else f"{peak:.2f}")
    Console().print(table)
    if options.json:
        result = {"hardware": hardware, "torch": torch.__version__, "sapc": sapc.__version__, "rows": rows}
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
