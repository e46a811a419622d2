"""The projection at work: solutions of every task, noise put on their manifolds, residuals before and after, a picture each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..._files import folder_for
from ...evaluation import metrics
from ...flow import source
from ...tasks import Task, get_task, task_names
from .figures.style import pyplot
from .pictures import overview, task_picture


@dataclass(frozen=True)
class Example:
    """One task's solutions, and noise before and after projection onto their manifolds."""

    task: Task
    solutions: Tensor
    noise: Tensor
    projected: Tensor
    before: Tensor  # |R_T| of the balance law per frame, mean over samples
    after: Tensor


def run_projection(
    out: Path, size: int = 4, seed: int = 0, on_task: Callable[[str], None] = lambda name: None
) -> Iterator[dict[str, Any]]:
    """Yield one row per task as it is done, and write `out/<task>.png` and `out/overview.png`."""
    tasks = [get_task(name) for name in task_names()]
    for task in tasks:
        task.check("test0", size, seed)
    pyplot()  # fails now where matplotlib is missing
    with folder_for(out):
        examples = []
        for task in tasks:
            on_task(task.name)
            example, row = _project(task, size, seed)
            task_picture(example, out / f"{task.name}.png")
            examples.append(example)
            yield row | {"picture": str(out / f"{task.name}.png")}
        overview(examples, out / "overview.png")


def _project(task: Task, size: int, seed: int) -> tuple[Example, dict[str, Any]]:
    """Project noise on one task; a row has mean l2 norms of the residual and the distance moved."""
    solutions = task.dataset("test0", size=size, seed=seed).fields.double()
    generator = torch.Generator().manual_seed(seed % 2**64)
    noise = source.sample(task.grid, size, generator=generator, dtype=torch.float64)
    H = task.manifold(solutions)
    start = time.perf_counter()
    projected, report = H.solve(noise)
    took = time.perf_counter() - start
    before, after = (H.balance(u).abs().mean(0) for u in (noise, projected))
    row = {
        "task": task.name,
        "algorithm": report.algorithm,
        "grid": task.grid.shape,
        "local_before": metrics.ce_local(H, noise),
        "local_after": metrics.ce_local(H, projected),
        "balance_before": metrics.ce_global(H, noise),
        "balance_after": metrics.ce_global(H, projected),
        "moved": float(report.moved.mean()),
        "milliseconds": 1e3 * took / size,
    }
    return Example(task, solutions, noise, projected, before, after), row
