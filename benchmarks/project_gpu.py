"""What a projection costs between two network passes of a sampler.

    PYTHONPATH=src python3 benchmarks/project_gpu.py [--device cuda] [--json FILE]
    PYTHONPATH=src python3 benchmarks/project_gpu.py --device cpu --tiny      smoke check

For every task: milliseconds per call of `H.project(u, check=False)` step by step and compiled, from white noise and from an endpoint
estimate (the truth plus a smooth perturbation of size 0.01), trial points used, kernels launched, seconds to compile; and the time of
`H.on(fields)`. On a GPU every call follows 5 ms of matrix products, as it follows a network pass in a sampler, so the host is ahead
when the projection begins; the time is taken by events from the end of the products to the end of the projection, median of 20 calls
(of 5 step by step).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable

import torch

import sapc

CURVED = ("reaction_diffusion", "stokes_ic", "stokes_bc")
NAMES = ("heat", "burgers", *CURVED, "navier_stokes")
TINY = {"navier_stokes": (8, 8, 6)}


def smooth(shape: tuple[int, ...], device: str, seed: int = 5) -> torch.Tensor:
    """Random fields of order one from four cosines per axis."""
    g = torch.Generator().manual_seed(seed)
    k = torch.arange(4, dtype=torch.float64)
    out = torch.randn(shape[0], *(4,) * (len(shape) - 1), generator=g, dtype=torch.float64)
    for n in shape[
        1:
    ]:  # one axis at a time; it ends up last, so after all of them the order is the original one
        wave = torch.cos(torch.pi * k[:, None] * torch.linspace(0, 1, n, dtype=torch.float64)) / (
            1 + k[:, None]
        )
        out = torch.tensordot(out, wave, dims=([1], [0]))
    return out.to(device)


def conditions(task: sapc.tasks.Task, batch: int, device: str) -> torch.Tensor:
    if (
        task.name == "navier_stokes"
    ):  # its solver takes minutes, and a projection does not ask where a field comes from
        return smooth((batch, *task.grid.shape), device, 7)
    size = min(batch, 16)
    fields = task.dataset("train", size=size, seed=0).fields.double().to(device)
    return fields[torch.arange(batch, device=device) % size]


class Busy:
    """Keeps the device busy for about 5 ms, and times what follows."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        if self.cuda:
            self.a = torch.randn(4096, 4096, device=device)
            self.products = max(1, round(5.0 / self._once(lambda: [self.a @ self.a for _ in range(10)]) * 10))

    def _once(self, call: Callable[[], object]) -> float:
        for _ in range(2):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
        return start.elapsed_time(end)

    def milliseconds(self, call: Callable[[], object], repeats: int) -> float:
        """The median over the repeats."""
        times = []
        for i in range(repeats + 2):
            if self.cuda:
                torch.cuda.synchronize()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                for _ in range(self.products):
                    self.a @ self.a
                start.record()
                call()
                end.record()
                end.synchronize()
                took = start.elapsed_time(end)
            else:
                begin = time.perf_counter()
                call()
                took = 1e3 * (time.perf_counter() - begin)
            if i > 1:
                times.append(took)
        return statistics.median(times)


def kernels(call: Callable[[], object], device: str) -> int | None:
    if device != "cuda":
        return None
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    return sum(e.device_type == torch.autograd.DeviceType.CUDA for e in profile.events())


def measure(
    name: str, device: str, tiny: bool, busy: Busy, repeats: int, passes: int
) -> list[dict[str, object]]:
    task = sapc.get_task(name, grid=TINY.get(name, (20, 16)) if tiny else None)
    batch = (4 if tiny else 32) if name == "navier_stokes" else (8 if tiny else 256)
    fields = conditions(task, batch, device)
    starts = {
        "white noise": smooth(fields.shape, device).normal_(generator=torch.Generator(device).manual_seed(0)),
        "endpoint": fields + 1e-2 * smooth(tuple(fields.shape), device),
    }
    rows = []
    for compiled in (False, True) if name in CURVED else (False,):
        H = task.manifold(fields, solver=sapc.Globalised(nearest=0, passes=passes, compiled=compiled))
        rebind = busy.milliseconds(lambda H=H: H.on(fields), repeats)
        begin = time.perf_counter()
        H.project(starts["white noise"], check=False)
        if device == "cuda":
            torch.cuda.synchronize()
        first = time.perf_counter() - begin
        for start, u in starts.items():

            def call(H: sapc.Manifold = H, u: torch.Tensor = u) -> torch.Tensor:
                return H.project(u, check=False)

            used = H.solve(u)[1]
            row = {
                "task": name,
                "batch": batch,
                "start": start,
                "compiled": compiled,
                "ms": busy.milliseconds(call, repeats if compiled else max(3, repeats // 4)),
                "passes_mean": float(used.iterations.double().mean()),
                "passes_max": int(used.iterations.max()),
                "converged": float(used.converged.double().mean()),
                "kernels": kernels(call, device),
                "first_call_s": first,
                "on_ms": rebind,
            }
            rows.append(row)
            print(
                " ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()),
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small grids and batches")
    parser.add_argument("--tasks", nargs="*", default=list(NAMES))
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--passes", type=int, default=80, help="trial points per attempt")
    parser.add_argument("--json", help="write the figures here as well")
    options = parser.parse_args()
    warnings.simplefilter("always", sapc.SapcWarning)
    busy = Busy(options.device)
    rows = []
    for name in options.tasks:
        rows += measure(name, options.device, options.tiny, busy, options.repeats, options.passes)
    hardware = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    result = {"hardware": hardware, "torch": torch.__version__, "sapc": sapc.__version__, "rows": rows}
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
