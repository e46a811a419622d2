"""Time a training step, a sample and a projection on this machine, SAPC beside FFM, with fresh weights.

A fresh network would give the sampler endpoint estimates that no trained one gives. So its velocity is
replaced, after it was computed, by one that points at a solution u with a smooth error that fades with t:
`(vt - u) / t - error`, so that the endpoint estimate at t is `u + t error`. The network's work stays. Times
are medians, on a GPU by its own clock, on one CPU thread by that of the process.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..constraints import Manifold
from ..flow import source
from ..methods import get_method
from ..nn.fno import matmul_precision
from ..nn.network import make_execution
from ..tasks import Task
from ..training.config import TrainingConfig, training_config
from ..training.distributed import ProcessGroup
from ..training.run_folder import environment
from ..training.step import Training

Data = tuple[Tensor, Tensor]
"""Solutions for training and for validation."""

PARTS = ("training", "sampling", "projection")
METHODS = ("ffm", "sapc")
# Of the endpoint estimate at t = 1, relative to the standard deviation of the solution.
ERROR = 0.05


@dataclass(frozen=True)
class Timer:
    """Median seconds of a call.

    Attributes:
        device: The device that works.
        repeats: How often a call is timed.
        warm_up: How often it is called before that.
    """

    device: torch.device
    repeats: int = 20
    warm_up: int = 3

    def __call__(self, call: Callable[[], object]) -> float:
        """Warm up, then time each call."""
        for _ in range(self.warm_up):
            call()
        if self.device.type != "cuda":
            return statistics.median(self._host(call) for _ in range(self.repeats))
        marks: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(self.repeats + 1)]  # type: ignore[no-untyped-call]
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        torch.cuda.synchronize(self.device)
        return float(statistics.median(a.elapsed_time(b) for a, b in pairwise(marks))) / 1e3

    @property
    def clock(self) -> str:
        """Name of the clock: the device's, with a single thread the process's, else the one on the wall."""
        if self.device.type == "cuda":
            return "device"
        return "process" if torch.get_num_threads() == 1 else "wall"

    def _host(self, call: Callable[[], object]) -> float:
        now = time.process_time if self.clock == "process" else time.perf_counter
        start = now()
        call()
        return now() - start


def measure(
    timer: Timer,
    tasks: Sequence[str],
    size: str,
    steps: int = 10,
    parts: Sequence[str] = PARTS,
    progress: Callable[[str], None] = lambda stage: None,
    save: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Measure training, sampling and projection.

    Args:
        timer: Device, and number of repeats.
        tasks: Names of tasks.
        size: Preset of networks and grids.
        steps: Sampling steps that are timed.
        parts: What is measured: training, sampling, projection.
        progress: Called with the name of every stage.
        save: Called with the result so far, after every task.

    Returns:
        The result, as JSON can hold it.
    """
    result = describe(timer) | {"preset": size, "complete": False} | {part: [] for part in parts}
    for task in tasks:
        progress(f"{task}: data")
        run = training_config(task, "sapc", size)
        data = solutions(run, timer.device)
        for part in parts:
            progress(f"{task}: {part}")
            result[part] += _MEASURES[part](run, data, timer, steps)
        torch.compiler.reset()
        save(result)
    result |= {"load": result["load"] + _load(), "complete": True}
    save(result)
    return result


def describe(timer: Timer) -> dict[str, Any]:
    """Describe the machine and how it is measured."""
    threads = torch.get_num_threads()
    description = {"format": "sapc-bench-1", "environment": environment(), "threads": threads}
    return description | {"clock": timer.clock, "load": _load()}


def _load() -> list[float]:
    """Return how many programs wanted a core in the last minute: other users make the figures worse."""
    return [os.getloadavg()[0]] if hasattr(os, "getloadavg") else []


def solutions(run: TrainingConfig, device: torch.device) -> Data:
    """Return a batch of solutions, repeated; few are solved where that takes long."""
    size = min(run.batch, 64 if len(run.grid) == 2 else 4)
    solutions = run.make_task().dataset("train", size=size, device=device).fields.to(device)
    fields = solutions[torch.arange(run.batch, device=device) % len(solutions)]
    return fields, fields[: max(1, run.batch // 4)]


def smooth_error(task: Task, truth: Tensor) -> Tensor:
    """Return the error of the endpoint estimate at t = 1, `(*grid)`."""
    mesh = (torch.linspace(0, 1, n, dtype=truth.dtype, device=truth.device) for n in task.grid.shape)
    waves = torch.stack([torch.cos(3 * x + i) for i, x in enumerate(torch.meshgrid(*mesh, indexing="ij"))])
    return ERROR * truth.std() * waves.prod(0)


def make_network(run: TrainingConfig, device: torch.device) -> nn.Module:
    """Make a fresh network that runs as a training's does."""
    execution = make_execution(run.make_network(), device, run.precision)
    execution.for_training(lambda network: network)
    return execution.network


def make_velocity(
    network: nn.Module, task: Task, truth: Tensor, pull: float = 1.0, for_sampling: bool = False
) -> Callable[..., Tensor]:
    """Make a velocity with the work of a network and the answer of a trained one.

    It can be differentiated, the network's work included.

    Args:
        network: The network.
        task: The task.
        truth: Solutions, at least as many as there will be states.
        pull: Below one the flow ends short of the solutions, by more the farther it began.
        for_sampling: Evaluate as a model does while it samples, by CUDA graphs where they are used.

    Returns:
        The velocity.
    """
    network, error = network.eval().requires_grad_(False), smooth_error(task, truth)
    evaluate: Callable[..., Tensor] = (
        make_execution(network, truth.device).for_sampling() if for_sampling else network
    )

    def velocity(vt: Tensor, t: Tensor, *condition: Tensor) -> Tensor:
        idle = evaluate(vt.float(), t, *(x.float() for x in condition)) * 1e-6
        t = t.reshape(-1, *(1,) * len(task.grid.shape))
        return pull * (vt - truth[: len(vt)]) / t - error + idle

    return velocity


def make_problem(run: TrainingConfig, data: Data, device: torch.device) -> tuple[Manifold, Tensor, Tensor]:
    """Return the manifolds of a batch of solutions, the solutions, and source draws for them, in float64."""
    task = run.make_task()
    truth = data[0][: run.batch].to(device, torch.float64)
    noise = source.sample(task.grid, len(truth), dtype=torch.float64, device=device)
    return task.manifold(truth, solver=run.solver(task)), truth, noise


def _time_training(run: TrainingConfig, data: Data, timer: Timer, steps: int) -> list[dict[str, Any]]:
    """Time a step of FFM and of SAPC, drawing and projecting included."""
    row: dict[str, Any] = {"task": run.task, "batch": run.batch, "precision": run.precision}
    with matmul_precision(run.precision):
        for method in METHODS:
            state = Training(replace(run, method=method), ProcessGroup(timer.device), data=data)
            row[f"{method}_ms"] = 1e3 * timer(state.advance)
    return [row | {"ratio": row["sapc_ms"] / row["ffm_ms"]}]


def _time_sampling(run: TrainingConfig, data: Data, timer: Timer, steps: int) -> list[dict[str, Any]]:
    """Time a field with FFM and SAPC in one batch, scaled to a hundred steps; with SAPC also alone."""
    H, truth, v1 = make_problem(run, data, timer.device)
    v = make_velocity(make_network(run, timer.device), run.make_task(), truth, for_sampling=True)
    row: dict[str, Any] = {"task": run.task, "batch": len(truth), "precision": run.precision}
    # A CUDA graph is captured after a few evaluations.
    short = replace(timer, repeats=3, warm_up=1 if steps > 10 else 2)
    scale = 1e3 * 100 / steps
    with torch.inference_mode(), matmul_precision(run.precision):
        for name in METHODS:
            method = get_method(name)
            row[f"{name}_ms"] = scale / len(truth) * short(partial(method.sample, v, v1, H, steps))
        row["alone_ms"] = scale * short(partial(method.sample, v, v1[:1], H[:1], steps))
    return [row | {"ratio": row["sapc_ms"] / row["ffm_ms"]}]


def _time_projection(run: TrainingConfig, data: Data, timer: Timer, steps: int) -> list[dict[str, Any]]:
    """Time the projection of sampling: of a source draw, and of an endpoint estimate at t = 1/2."""
    H, truth, noise = make_problem(run, data, timer.device)
    rows = []
    for start, u in (("noise", noise), ("estimate", truth + smooth_error(run.make_task(), truth) / 2)):
        with torch.no_grad():
            project = partial(H.project, u, check=False)
            rows.append({
                "task": run.task, "grid": list(run.grid), "algorithm": H.algorithm, "start": start,
                "ours_fields": len(u), "ours_ms": 1e3 * timer(project) / len(u),
                "ours_residual": float(H.residual(project()).abs().max()),
            })  # fmt: skip
    return rows


_MEASURES = {"training": _time_training, "sampling": _time_sampling, "projection": _time_projection}
