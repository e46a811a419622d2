"""What a training step and a sampling run cost, every figure beside the one it is to be compared with, measured in one run.

    backbone    a step of the network at the preset's size: full FFTs run eagerly, the way this is usually written, and products with DFT
                matrices in every precision, compiled where there is a GPU
    training    a whole step of FFM and of SAPC, drawing and projecting included, for every task
    sampling    seconds per field of both, for every task
    features    what FPD and FRD cost: features by an encoder of each size, and the distance; on request only
    methods     training and sampling for every method, with its evaluations and the memory of sampling; takes long, so on request only

Weights are fresh. A fresh network would give the sampler endpoint estimates that no trained one gives, so its velocity is replaced, after
it was computed, by one that points at a solution with a smooth error of a few per cent, as a trained one does; the network's work stays.
Times are medians; on a GPU by its own clock.

Where a training has stages (PBFM unrolls one step more in each quarter), a step is timed in each, and their mean stands for the whole.
Samples are timed in few steps and scaled by evaluations of the network; what a sampler does once, at its end, is scaled with them. D-Flow
has the batch of its publication: 20 integrations forwards and back, and one more.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from .. import source
from ..checkpoint import environment
from ..config import Run, preset
from ..distributed import Team, find_device
from ..fno import FNO, Precision, matmul_precision
from ..methods import Method, get_method, method_names
from ..model import JOINT
from ..tasks import Task, get_task, task_names
from ..training import Training
from .features import features
from .timer import Timer

PAIRS = ("ffm", "sapc")
ERROR = 0.05  # of the endpoint estimate at t = 1, relative to the solution's spread
PULL = 0.9  # of the way to the solution, where the end has to depend on the source
STAGES = 4  # parts of a training with a second objective; no published one has more


def bench(
    tasks: list[str] | None = None,
    size: str = "paper",
    device: str = "auto",
    steps: int = 10,
    parts: tuple[str, ...] = ("backbone", "training", "sampling"),
    progress: Callable[[str], None] = lambda _: None,
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
    methods: list[str] | None = None,
) -> dict[str, Any]:
    """All figures, as JSON can hold them. After each `keep` gets what there is.

    steps      sampling steps that are timed; scaled to a hundred, in the part `methods` to each one's own number
    methods    which ones that part times, all eleven unless given; FFM, which the others are compared with, comes first in any case
    """
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
        if {"training", "sampling", "methods"} & set(parts):
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
        if "methods" in parts:
            costs = method_costs(size, name, methods or method_names(), data, timer, steps, progress)
            for row in costs:
                result.setdefault("methods", []).append(row)
                keep(result)
        torch.compiler.reset()
    if "features" in parts:
        for row in features(timer, progress):
            result.setdefault("features", []).append(row)
            keep(result)
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


def method_costs(
    size: str,
    task: str,
    names: list[str],
    data: tuple[Tensor, Tensor],
    timer: Timer,
    steps: int,
    progress: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """A row per method: a training step of those that train, a sample, evaluations, memory, and both times as multiples of FFM's."""
    first: dict[str, Any] = {}
    samplers: dict[tuple[bool, bool], _Sampler] = {}
    for method in map(get_method, dict.fromkeys(("ffm", *names))):
        run = preset(size, task, method.weights)
        progress(f"{task}: {method.name}")
        row: dict[str, Any] = {
            "task": task, "method": method.name, "weights": method.weights, "precision": run.precision, "batch": run.batch,
            "steps": method.steps, "nfe": method.evaluations(),
        }  # fmt: skip
        with matmul_precision(run.precision):
            row |= step_cost(run, data, timer) if method.trains else {"step_ms": None, "stages_ms": []}
            kind = (method.shows is not None, method.joint)
            if kind not in samplers:  # a network is compiled once for all methods that can share it
                samplers[kind] = _Sampler(run, data, timer, joint=method.joint)
            row |= samplers[kind].cost(method, steps)
        first = first or row
        yield {**row, **{f"{what}_of_ffm": _ratio(row, first, f"{what}_ms") for what in ("step", "sample")}}


def _ratio(row: dict[str, Any], first: dict[str, Any], key: str) -> float | None:
    return row[key] / first[key] if row[key] and first[key] else None


def step_cost(run: Run, data: tuple[Tensor, Tensor], timer: Timer) -> dict[str, Any]:
    """Milliseconds of a step; with a second objective those of each stage, and their mean. None where memory does not suffice."""
    state = Training(run, Team(timer.device), data=data)
    stages = STAGES if state.method.penalty is not None else 1

    def at(step: int) -> None:
        state.step = step  # the stage follows from it, and must not end while it is timed
        state.advance()

    try:
        times = [1e3 * timer(partial(at, k * run.steps // stages)) for k in range(stages)]
    except torch.OutOfMemoryError:  # the figures of the other methods are still wanted
        return {"step_ms": None, "stages_ms": [], "step_full": True}
    return {"step_ms": statistics.mean(times), "stages_ms": times}


class _Sampler:
    """What methods with one kind of network sample with: conditions, noise and a velocity that counts its calls."""

    def __init__(self, run: Run, data: tuple[Tensor, Tensor], timer: Timer, joint: bool) -> None:
        self.task, self.timer = run.make_task(), timer
        n = min(run.batch, JOINT[len(run.grid)]) if joint else run.batch
        truth = data[0][:n].to(timer.device, torch.float64)
        self.H = self.task.manifold(truth, solver=run.solver(self.task))
        # L-BFGS stops at once if the end does not depend on the source.
        cuda, pull = timer.device.type == "cuda", PULL if joint else 1.0
        self.v = _Counted(_like_trained(run, self.task, truth, compiled=cuda, pull=pull))
        self.draw = partial(source.sample, self.task.grid, n, dtype=torch.float64)
        self.v1 = self.draw().to(timer.device)

    def cost(self, method: Method, steps: int) -> dict[str, Any]:
        """Milliseconds per sample at the method's own number of steps, and the most memory that was allocated."""
        n = len(self.v1)
        try:
            seconds, evaluations, peak = self._timed(method, steps)
        except torch.OutOfMemoryError:
            return {"sampled": n, "sample_ms": None, "peak_bytes": None, "sample_full": True}
        scale = method.evaluations() / evaluations
        return {"sampled": n, "sample_ms": 1e3 * seconds / n * scale, "peak_bytes": peak}

    @torch.no_grad()
    def _timed(self, method: Method, steps: int) -> tuple[float, int, int]:
        """Seconds of a batch in few steps, evaluations it took, bytes at the peak (zero without a GPU)."""
        v, device = method.velocity(self.v, self.H), self.timer.device
        more = (lambda: self.draw().to(device),) if method.redraws else ()
        call = partial(method.sample, v, self.v1, self.H, steps, *more)
        self.v.calls = 0
        call()  # compiles, which takes memory of its own
        evaluations = self.v.calls
        if device.type == "cuda":
            gc.collect()  # a network refers to itself, so those that were trained before may still be there
            torch.cuda.reset_peak_memory_stats(device)
        # An optimisation of the source is a thousand evaluations, an average in itself.
        seconds = replace(self.timer, repeats=1 if method.joint else 3, warm_up=0)(call)
        return seconds, evaluations, torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


class _Counted:
    """A velocity that counts its evaluations; those repeated for a gradient do not count, as in `Method.nfe`."""

    def __init__(self, v: Callable[..., Tensor]) -> None:
        self.v, self.calls = v, 0

    def __call__(self, vt: Tensor, t: Tensor, *shown: Tensor) -> Tensor:
        self.calls += not torch.is_grad_enabled()
        return self.v(vt, t, *shown)


def _like_trained(
    run: Run, task: Task, truth: Tensor, compiled: bool, pull: float = 1.0
) -> Callable[..., Tensor]:
    """A network's work, a trained network's answer: `(vt - u) / t` for a solution u with a smooth error that fades with t.

    It can be differentiated, the network's work included. With `pull` below one its flow ends short of u, by more the farther it began.
    """
    network = run.make_network(compiled=compiled).to(truth.device).eval().requires_grad_(False)
    mesh = (torch.linspace(0, 1, n, dtype=truth.dtype, device=truth.device) for n in task.grid.shape)
    waves = torch.stack([torch.cos(3 * x + i) for i, x in enumerate(torch.meshgrid(*mesh, indexing="ij"))])
    error = ERROR * truth.std() * waves.prod(0)

    def velocity(vt: Tensor, t: Tensor, *shown: Tensor) -> Tensor:
        idle: Tensor = network(vt.float(), t, *(x.float() for x in shown)) * 1e-6
        t = t.reshape(-1, *(1,) * len(task.grid.shape))
        return pull * (vt - truth) / t - error + idle

    return velocity


def _data(run: Run, device: torch.device) -> tuple[Tensor, Tensor]:
    """A batch of solutions, repeated; few are solved where that takes long."""
    task = run.make_task()
    few = task.dataset(
        "train", size=min(run.batch, 64 if len(run.grid) == 2 else 4), device=device
    ).fields.to(device)
    fields = few[torch.arange(run.batch, device=device) % len(few)]
    return fields, fields[: max(1, run.batch // 4)]
