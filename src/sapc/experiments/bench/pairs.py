"""SAPC beside FFM: a whole training step, drawing and projecting included, and a sample."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...flow import source
from ...methods import get_method
from ...nn.fno import matmul_precision
from ...training.config import Run
from .style import OURS
from .timer import Timer
from .trained import Data, like_trained

PAIRS = ("ffm", "sapc")


def training(run: Run, data: Data, timer: Timer) -> dict[str, Any]:
    """A step of FFM and of SAPC."""
    row: dict[str, Any] = {"task": run.task, "batch": run.batch, "precision": run.precision}
    with matmul_precision(run.precision):
        for method in PAIRS:
            state = OURS.training(replace(run, method=method), data, timer.device)
            row[f"{method}_ms"] = 1e3 * timer(state.advance)
    return {**row, "ratio": row["sapc_ms"] / row["ffm_ms"]}


def sampling(run: Run, data: Data, timer: Timer, steps: int) -> dict[str, Any]:
    """Milliseconds per field with FFM and with SAPC, in one batch of the training's size; with SAPC also of a field alone."""
    task = run.make_task()
    truth = data[0][: run.batch].to(timer.device, torch.float64)
    H = task.manifold(truth, solver=run.solver(task))
    v = like_trained(OURS.network(run, timer.device), task, truth, recorded=True)
    v1 = source.sample(task.grid, len(truth), dtype=torch.float64, device=timer.device)
    row: dict[str, Any] = {"task": run.task, "batch": len(truth), "precision": run.precision}
    short = replace(
        timer, repeats=3, warm_up=1 if steps > 10 else 2
    )  # a recording begins after a few evaluations
    with torch.inference_mode(), matmul_precision(run.precision):
        for name in PAIRS:
            method = get_method(name)
            seconds = short(partial(method.sample, v, v1, H, steps))
            row[f"{name}_ms"] = 1e3 * seconds / len(truth) * 100 / steps
        row["alone_ms"] = 1e3 * short(partial(method.sample, v, v1[:1], H[:1], steps)) * 100 / steps
    return {**row, "ratio": row["sapc_ms"] / row["ffm_ms"]}
