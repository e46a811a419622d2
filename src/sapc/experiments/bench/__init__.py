"""What a training step, a sample and a projection cost, every figure beside the one it is to be compared with, measured in one run.

    backbone    a step of the network at the preset's size: full FFTs run eagerly, the way this is usually written, products with DFT
                matrices in every precision, compiled where there is a GPU, the kernels of `sapc.fused`, and neuraloperator's FNO where
                that is installed
    training    a whole step of FFM and of SAPC, drawing and projecting included, for every task
    sampling    milliseconds per field of both, for every task, and for SAPC of a single field in a batch of its own
    projection  milliseconds per field of the projection that sampling uses, beside the same solver on a dense Jacobian, for every task
    features    what FPD and FRD cost: features by an encoder of each size, and the distance
    methods     training and sampling for every method, with its evaluations and its memory, beside the same method in the peers' style:
                FFTs run eagerly in float32 and dense Jacobians; takes long

The last three on request only. Weights are fresh; the velocity that a sampler gets is made to point at a solution, nearly, as a trained
one does (see `trained`), and the network's work stays. Times are medians, on a GPU by its own clock, on one CPU thread by that of the
process. Memory is what a call held at most beyond what was there before it, on a GPU and on Linux, and None elsewhere. What the peers'
style would need minutes or too much memory for is timed on fewer fields, whose number stands in the row, or left out, with the reason in
the row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ...methods import method_names
from ...tasks import get_task, task_names
from ...training.config import preset
from ...training.distributed import find_device
from ...training.run_folder import environment
from .backbone import PATHS, backbone
from .features import features
from .memory import young_garbage
from .methods import method_costs
from .pairs import sampling, training
from .projection import projection
from .timer import Timer
from .trained import solutions

Row = dict[str, Any]
NEED_DATA = {"training", "sampling", "projection", "methods"}


@young_garbage()
def bench(
    tasks: list[str] | None = None,
    size: str = "paper",
    device: str = "auto",
    steps: int = 10,
    parts: tuple[str, ...] = ("backbone", "training", "sampling"),
    progress: Callable[[str], None] = lambda _: None,
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
    methods: list[str] | None = None,
    peers: bool = True,
    paths: Sequence[str] = PATHS,
) -> dict[str, Any]:
    """All figures, as JSON can hold them. After each `keep` gets what there is.

    steps      sampling steps that are timed; scaled to a hundred, in the part `methods` to each one's own number
    methods    which ones that part times, all eleven unless given; FFM, which the others are compared with, comes first in any case
    paths      of the backbone, beside the plain one
    peers      whether the peers' style is timed as well: dense projections, neuraloperator's network, every method in both styles
    """
    place = find_device(device)
    names = tasks or task_names()
    timer = Timer(place, *((20, 5) if place.type == "cuda" else (3, 1)))
    result: dict[str, Any] = {
        "format": "sapc-bench-1",
        "preset": size,
        "environment": environment(),
        "threads": torch.get_num_threads(),
        "clock": timer.clock,
        "load": _load(),
        "complete": False,
    }

    def add(part: str, rows: Iterator[Row]) -> None:
        if part in parts:
            for row in rows:  # measured here, one by one
                result.setdefault(part, []).append(row)
                keep(result)

    shapes = {len(get_task(name).grid.shape): preset(size, name, "ffm") for name in reversed(names)}
    add("backbone", (row for run in shapes.values() for row in backbone(run, timer, progress, peers, paths)))
    for name in names if NEED_DATA & set(parts) else []:
        progress(f"{name}: data")
        run = preset(size, name, "sapc")
        data = solutions(run, place)
        add("training", _single(training, progress, run, data, timer))
        add("sampling", _single(sampling, progress, run, data, timer, steps))
        add("projection", projection(run, data, timer, progress, peers))
        costs = method_costs(size, name, methods or method_names(), data, timer, steps, progress, peers)
        add("methods", costs)
        torch.compiler.reset()
    add("features", features(timer, progress))
    result["load"] += _load()
    result["complete"] = True
    keep(result)
    return result


def _load() -> list[float]:
    """Programs that wanted a core in the last minute; whoever shares the machine is in the figures."""
    return [os.getloadavg()[0]] if hasattr(os, "getloadavg") else []


def _single(measure: Callable[..., Row], progress: Callable[[str], None], *about: Any) -> Iterator[Row]:
    """One row, when it is asked for."""
    progress(f"{about[0].task}: {measure.__name__}")
    yield measure(*about)
