"""A step of the network, by path and precision, beside neuraloperator's FNO where that is installed.

    python benchmarks/backbone.py [--task heat] [--preset small] [--path fft --path fused] [--no-peers] [--json FILE]

The first row is what all are compared with: full FFTs run eagerly, the way this is usually written. Then products with DFT matrices in
every precision, compiled where there is a GPU, and the kernels. neuraloperator's FNO gets the same sizes and, as channels of its input,
the same time embedding and coordinates. It is no dependency of this package, and imported only here.

    python benchmarks/backbone.py --device cpu --batch 1 --batch 8 [--preset compact] [--json FILE]

compares paths without a gradient instead, as samples take them, by batch and number of threads: lines (a few at a time), products with all
lines at once, full FFTs. They are timed in turns, and the least of several times is taken: others may use the machine.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import get_args

import torch
from _measure import Results, Row, announce, arguments, make_timer, show, weigh
from torch import Tensor, nn

from sapc.experiments.timing import Timer
from sapc.nn.fno import LARGEST_TIME, Precision, matmul_precision
from sapc.nn.kernels import kernels_unavailable_reason
from sapc.tasks import task_names
from sapc.training.config import TrainingConfig, training_config

PATHS = ("fft", "dft", "fused")
# What a network is told, by the path that it takes on a CPU without a gradient.
INFERENCE = {"lines": "auto", "dft": "dft", "fft": "fft"}
TURNS = 12


def kinds(
    run: TrainingConfig, device: torch.device, paths: Sequence[str] = PATHS
) -> list[tuple[str, str, bool]]:
    """Path, precision and whether it is compiled: the plain one, then every other one that there is here for such a network."""
    found = [("fft", "float32", False)]
    if device.type != "cuda":
        return found + [("dft", "float32", False)] * ("dft" in paths)
    if "fft" in paths:
        found.append(("fft", "tf32", False))
    if "dft" in paths:
        found += [("dft", p, True) for p in get_args(Precision) if p != "fp16"]  # which is tf32 there
    if "fused" in paths and not kernels_unavailable_reason(
        device, torch.float16, run.backbone.hidden, run.backbone.projection
    ):
        found += [("fused", p, False) for p in get_args(Precision) if p != "float32"]
    return found


def backbone(
    run: TrainingConfig,
    timer: Timer,
    peers: bool = True,
    paths: Sequence[str] = PATHS,
) -> Iterator[Row]:
    """Forward pass, and step with backward pass; the first row is the plain path that all are compared with."""
    first = 0.0
    for transform, precision, compiled in kinds(run, timer.device, paths):
        how = "kernels" if transform == "fused" else "compiled" if compiled else "eager"
        label = f"{transform}, {precision}, {how}"
        announce(f"backbone {'x'.join(map(str, run.grid))}: {label}")
        network = replace(run, precision=precision).make_network().to(timer.device)
        network.transform = transform
        if compiled:
            network.compile_core()
        row = _row(run, label, network, precision, timer)
        first = first or row["step_ms"]
        yield {**row, "of_plain": row["step_ms"] / first}
        torch.compiler.reset()
    if peers:
        announce(f"backbone {'x'.join(map(str, run.grid))}: neuraloperator")
        row = _published_row(run, timer)
        yield {**row, "of_plain": row["step_ms"] / first if row["step_ms"] else None}


def _row(run: TrainingConfig, label: str, network: nn.Module, precision: str, timer: Timer) -> Row:
    u = torch.randn(run.batch, *run.grid, device=timer.device)
    t = torch.rand(run.batch, device=timer.device)
    with matmul_precision(precision):
        step, memory = weigh(timer, partial(_learn, network, u, t))
        with torch.no_grad():
            forward = timer(partial(network, u, t))
    return {
        "grid": list(run.grid), "batch": run.batch, "path": label, "step_ms": 1e3 * step, "forward_ms": 1e3 * forward,
        "peak_bytes": memory,
    }  # fmt: skip


@torch.no_grad()
def inference(run: TrainingConfig, timer: Timer, batches: Sequence[int]) -> Iterator[Row]:
    """Milliseconds per field of a forward pass, by path, batch and number of threads."""
    network, once = run.make_network().to(timer.device), replace(timer, repeats=1, warm_up=0)
    most = torch.get_num_threads()
    for threads, batch in itertools.product(sorted({1, most}), batches):
        announce(f"inference {run.preset}: {threads} threads, batch {batch}")
        torch.set_num_threads(threads)
        u, t = torch.randn(batch, *run.grid, device=timer.device), torch.rand(batch, device=timer.device)
        seconds: dict[str, list[float]] = {path: [] for path in INFERENCE}
        for _, path in itertools.product(range(TURNS), INFERENCE):
            network.transform = INFERENCE[path]
            seconds[path].append(once(partial(network, u, t)))
        ms = {path: 1e3 * min(times) / batch for path, times in seconds.items()}
        ratios = {f"{path}_of_lines": ms[path] / ms["lines"] for path in ("dft", "fft")}
        about = {
            "preset": run.preset,
            "grid": list(run.grid),
            "threads": threads,
            "clock": once.clock,
            "batch": batch,
        }
        yield about | {f"{path}_ms": value for path, value in ms.items()} | ratios
    torch.set_num_threads(most)


def _learn(network: nn.Module, u: Tensor, t: Tensor) -> None:
    network.zero_grad(set_to_none=True)
    torch.autograd.backward((network(u, t) - u).square().mean())


def _published_row(run: TrainingConfig, timer: Timer) -> Row:
    """neuraloperator's, or why there is none."""
    missing = {
        "grid": list(run.grid),
        "batch": run.batch,
        "path": "neuraloperator",
        "step_ms": None,
        "forward_ms": None,
    }
    try:
        network = Published(run).to(timer.device)
        return _row(run, f"neuraloperator {network.version}", network, "float32", timer)
    except ImportError as error:
        reason = "not installed" if error.name == "neuralop" else f"cannot be imported ({error})"
    except (
        Exception
    ) as error:  # another project's code, with any version of torch: no reason to lose our own figures
        reason = f"fails here ({type(error).__name__}: {str(error).partition(chr(10))[0][:80]})"
    return {**missing, "left_out": reason}


class Published(nn.Module):
    """neuraloperator's FNO as `(fields, times) -> fields`, any of its versions."""

    place: Tensor

    def __init__(self, run: TrainingConfig) -> None:
        super().__init__()
        module = importlib.import_module("neuralop.models")
        self.version = str(importlib.import_module("neuralop").__version__)
        sizes, d = run.backbone, len(run.grid)
        wide, known = sizes.projection, inspect.signature(module.FNO.__init__).parameters
        # Versions name things differently; those from 1.0 on add coordinates and a channel MLP unless told not to.
        choices = {
            "lifting_channels": wide, "projection_channels": wide, "lifting_channel_ratio": wide / sizes.hidden,
            "projection_channel_ratio": wide / sizes.hidden, "positional_embedding": None, "use_channel_mlp": False,
        }  # fmt: skip
        self.network = module.FNO(
            n_modes=sizes.modes, hidden_channels=sizes.hidden, in_channels=1 + sizes.time_channels + d, out_channels=1,
            n_layers=sizes.blocks, **{name: value for name, value in choices.items() if name in known},
        )  # fmt: skip
        half = sizes.time_channels // 2
        self.rates = [LARGEST_TIME ** (1 - j / (half - 1)) for j in range(half)]
        place = torch.meshgrid(*(torch.linspace(0, 1, n) for n in run.grid), indexing="ij")
        self.register_buffer("place", torch.stack(place))

    def forward(self, u: Tensor, t: Tensor) -> Tensor:
        """State, time embedding and coordinates as channels."""
        grid = u.shape[1:]
        phase = t[:, None].double() * torch.tensor(self.rates, dtype=torch.float64, device=t.device)
        time = torch.cat((phase.sin(), phase.cos()), 1).float().reshape(len(u), -1, *(1 for _ in grid))
        place = self.place.expand(len(u), *self.place.shape)
        out: Tensor = self.network(torch.cat((u[:, None], time.expand(-1, -1, *grid), place), 1))
        return out[:, 0]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--task", action="append", help="may be repeated; one of each number of axes unless given"
    )
    parser.add_argument("--path", action="append", choices=PATHS, help="may be repeated; all unless given")
    parser.add_argument("--preset", help="published on a GPU, small without, unless given")
    parser.add_argument("--no-peers", action="store_true", help="without neuraloperator's")
    parser.add_argument(
        "--batch", action="append", type=int, help="paths without a gradient; may be repeated"
    )
    options = parser.parse_args()
    timer = make_timer(options.device)
    if options.batch:
        results = Results(timer, options.json)
        for preset in [options.preset] if options.preset else ["compact", "published"]:
            for task in options.task or ["heat"]:
                results.add(
                    "inference", inference(training_config(task, "ffm", preset), timer, options.batch)
                )
        results.finish()
        return show("Milliseconds per field, without a gradient", results.content["inference"])
    size = options.preset or ("published" if timer.device.type == "cuda" else "small")
    results = Results(timer, options.json, preset=size)
    runs = [training_config(name, "ffm", size) for name in reversed(options.task or task_names())]
    for run in {len(run.grid): run for run in runs}.values():
        results.add("backbone", backbone(run, timer, not options.no_peers, options.path or PATHS))
    results.finish()
    show("The network: a step is forward and backward", results.content["backbone"])


if __name__ == "__main__":
    main()
