"""Whole sampling runs on a GPU: one CUDA graph for all of a run beside one for each evaluation.

    python benchmarks/runs.py [--tasks heat burgers] [--json FILE]

A single field in 10 steps is the median of repeated calls of `model.sample`, from the call to the field on the
CPU, with another seed and another condition each time. Many fields are 1,024 in batches of the default size:
20 steps of second order, one graph a run, beside the paper's 100 of Euler's, one graph an evaluation, as both
were before.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from _measure import Results, Row, arguments, make_timer

import sapc

FIELDS = {2: 1024, 3: 128}


def seconds(model: sapc.Model, n: int, repeats: int, **options: Any) -> float:
    """Return the median time of a call, after three that are not counted."""
    wait = torch.cuda.synchronize if model.device.type == "cuda" else lambda: None
    conditions = [model.bind(f[None]) for f in model.task.dataset("validation", size=4).fields]
    times = []
    for seed in range(3 + repeats):
        wait()
        start = time.perf_counter()
        model.sample(n, conditions[seed % 4], seed=seed, **options)
        times.append(time.perf_counter() - start)
    return statistics.median(times[3:])


def row(task: str, device: str) -> Row:
    """Return the figures of a task, in milliseconds a field."""
    recorded, plain = (sapc.load(f"{task}-sapc", device) for _ in range(2))
    if plain.execution._recorded is not None:
        plain.execution._recorded.has_run_failed = True
    n = FIELDS[len(recorded.task.grid.shape)]
    euler = {"steps": 100, "sampler": "euler"}
    result = {
        "one field, 10 steps": seconds(recorded, 1, 30, steps=10),
        "without": seconds(plain, 1, 30, steps=10),
        "Euler 100, without": seconds(plain, 1, 5, **euler),
        f"{n} fields, 20 steps": seconds(recorded, n, 3, steps=20) / n,
        f"{n}, Euler 100, without": seconds(plain, n, 3, **euler) / n,
    }
    *_, new, old = result.values()
    return {"task": task, **{name: 1e3 * value for name, value in result.items()}, "times faster": old / new}


def main() -> None:
    """Run the command line."""
    parser = arguments(__doc__)
    parser.add_argument("--tasks", nargs="+", default=sapc.task_names())
    options = parser.parse_args()
    results = Results(make_timer(options.device), options.json)
    rows = results.add("runs", (row(task, options.device) for task in options.tasks))
    results.finish()
    for one in rows:
        print("  ".join(f"{k}: {v:.3g}" if isinstance(v, float) else str(v) for k, v in one.items()))


if __name__ == "__main__":
    main()
