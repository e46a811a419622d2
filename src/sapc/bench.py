"""What a training step and a sampling run cost, every figure beside the one it is to be compared with, measured in one run.

    backbone    a step of the network at the preset's size: full FFTs run eagerly, the way this is usually written, and products with DFT
                matrices in every precision, compiled where there is a GPU
    training    a whole step of FFM and of SAPC, drawing and projecting included, for every task
    sampling    seconds per field of both, for every task

Weights are fresh. A fresh network would give the sampler endpoint estimates that no trained one gives, so its velocity is replaced, after
it was computed, by one that points at a solution with a smooth error of a few per cent, as a trained one does; the network's work stays.
Times are medians; on a GPU by its own clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, get_args

import torch
from torch import Tensor

from . import source
from .checkpoint import environment
from .config import Run, preset
from .distributed import Team, find_device
from .fno import FNO, Precision, matmul_precision
from .methods import get_method
from .tasks import Task, get_task, task_names
from .training import Training

PAIRS = ("ffm", "sapc")
ERROR = 0.05  # of the endpoint estimate at t = 1, relative to the solution's spread


@dataclass(frozen=True)
class Timer:
    """Median seconds of a call."""

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

    def _host(self, call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start


def bench(
    tasks: list[str] | None = None,
    size: str = "paper",
    device: str = "auto",
    steps: int = 10,
    parts: tuple[str, ...] = ("backbone", "training", "sampling"),
    progress: Callable[[str], None] = lambda _: None,
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """All figures, as JSON can hold them; `steps` sampling steps are timed, scaled to a hundred. After each `keep` gets what there is."""
    place = find_device(device)
    names = tasks or task_names()
    timer = Timer(place, *((20, 5) if place.type == "cuda" else (3, 1)))
    result: dict[str, Any] = {
        "format": "sapc-bench-1",
        "preset": size,
        "environment": environment(),
        "complete": False,
    }
    if "backbone" in parts:
        shapes = {len(get_task(name).grid.shape): preset(size, name, "ffm") for name in reversed(names)}
        for row in (row for run in shapes.values() for row in backbone(run, timer, progress)):
            result.setdefault("backbone", []).append(row)
            keep(result)
    for name in names:
        if "training" in parts or "sampling" in parts:
            progress(f"{name}: data")
            run = preset(size, name, "sapc")
            data = _data(run, place)
        if "training" in parts:
            progress(f"{name}: training steps")
            result.setdefault("training", []).append(training(run, data, timer))
            keep(result)
        if "sampling" in parts:
            progress(f"{name}: sampling")
            result.setdefault("sampling", []).append(sampling(run, data, timer, steps))
            keep(result)
        torch.compiler.reset()
    result["complete"] = True
    keep(result)
    return result


def backbone(run: Run, timer: Timer, progress: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Forward pass, and step with backward pass, by path and precision."""
    cuda = timer.device.type == "cuda"
    kinds: list[tuple[str, str, bool]] = [("fft", "float32", False)]
    kinds += [("dft", p, cuda) for p in (get_args(Precision) if cuda else ("float32",))]
    u = torch.randn(run.batch, *run.grid, device=timer.device)
    t = torch.rand(run.batch, device=timer.device)
    first = 0.0
    for transform, precision, compiled in kinds:
        label = f"{transform}, {precision}, {'compiled' if compiled else 'eager'}"
        progress(f"backbone {'x'.join(map(str, run.grid))}: {label}")
        network = replace(run, precision=precision).make_network().to(timer.device)
        network.transform = transform
        if compiled:
            network.compile_core()
        with matmul_precision(precision):
            step = timer(partial(_learn, network, u, t))
            with torch.no_grad():
                forward = timer(partial(network, u, t))
        first = first or step
        yield {
            "grid": list(run.grid), "batch": run.batch, "path": label, "step_ms": 1e3 * step, "forward_ms": 1e3 * forward,
            "of_plain": step / first,
        }  # fmt: skip
        torch.compiler.reset()


def _learn(network: FNO, u: Tensor, t: Tensor) -> None:
    network.zero_grad(set_to_none=True)
    torch.autograd.backward((network(u, t) - u).square().mean())


def training(run: Run, data: tuple[Tensor, Tensor], timer: Timer) -> dict[str, Any]:
    """A step of FFM and of SAPC."""
    row: dict[str, Any] = {"task": run.task, "batch": run.batch, "precision": run.precision}
    with matmul_precision(run.precision):
        for method in PAIRS:
            state = Training(replace(run, method=method), Team(timer.device), data=data)
            row[f"{method}_ms"] = 1e3 * timer(state.advance)
    return {**row, "ratio": row["sapc_ms"] / row["ffm_ms"]}


def sampling(run: Run, data: tuple[Tensor, Tensor], timer: Timer, steps: int) -> dict[str, Any]:
    """Seconds per field with FFM and with SAPC, in one batch of the training's size."""
    task = run.make_task()
    truth = data[0][: run.batch].to(timer.device, torch.float64)
    H = task.manifold(truth, solver=run.solver(task))
    v = _like_trained(run, task, truth, compiled=timer.device.type == "cuda")
    v1 = source.sample(task.grid, len(truth), dtype=torch.float64, device=timer.device)
    row: dict[str, Any] = {"task": run.task, "batch": len(truth), "precision": run.precision}
    short = replace(timer, repeats=3, warm_up=1)
    with torch.inference_mode(), matmul_precision(run.precision):
        for name in PAIRS:
            method = get_method(name)
            seconds = short(partial(method.sample, v, v1, H, steps))
            row[f"{name}_ms"] = 1e3 * seconds / len(truth) * 100 / steps
    return {**row, "ratio": row["sapc_ms"] / row["ffm_ms"]}


def _like_trained(run: Run, task: Task, truth: Tensor, compiled: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """A network's work, a trained network's answer: `(vt - u) / t` for a solution u with a smooth error that fades with t."""
    network = run.make_network(compiled=compiled).to(truth.device).eval()
    mesh = (torch.linspace(0, 1, n, dtype=truth.dtype, device=truth.device) for n in task.grid.shape)
    waves = torch.stack([torch.cos(3 * x + i) for i, x in enumerate(torch.meshgrid(*mesh, indexing="ij"))])
    error = ERROR * truth.std() * waves.prod(0)

    def velocity(vt: Tensor, t: Tensor) -> Tensor:
        idle: Tensor = network(vt.float(), t) * 1e-6
        t = t.reshape(-1, *(1,) * len(task.grid.shape))
        return (vt - truth) / t - error + idle

    return velocity


def _data(run: Run, device: torch.device) -> tuple[Tensor, Tensor]:
    """A batch of solutions, repeated; few are solved where that takes long."""
    task = run.make_task()
    few = task.dataset(
        "train", size=min(run.batch, 64 if len(run.grid) == 2 else 4), device=device
    ).fields.to(device)
    fields = few[torch.arange(run.batch, device=device) % len(few)]
    return fields, fields[: max(1, run.batch // 4)]
