"""What a projection costs between two network passes of a sampler.

    PYTHONPATH=src python3 benchmarks/project_gpu.py [--device cuda] [--json FILE]
    PYTHONPATH=src python3 benchmarks/project_gpu.py --device cpu --tiny      smoke check

For every task: milliseconds per call of `H.project(u, check=False)` step by step and compiled, from white
noise and from an endpoint estimate (the truth plus a smooth perturbation of size 0.01), trial points used,
kernels launched, seconds to compile; and the time of `H.rebind(fields)`. On a GPU every call follows some 5
ms in which the device waits, as it follows a network pass in a sampler, so the host is ahead when the
projection begins; the time is taken by events, median of 20 calls (of 5 step by step).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import torch
from _measure import Results, Row, arguments, make_timer, milliseconds

import sapc

CURVED = ("reaction_diffusion", "stokes_ic", "stokes_bc")
NAMES = ("heat", "burgers", *CURVED, "navier_stokes")
# Cycles, some 5 ms.
AHEAD = 10_000_000
TINY = {"navier_stokes": (8, 8, 6)}


def smooth(shape: tuple[int, ...], device: str, seed: int = 5) -> torch.Tensor:
    """Random fields of order one from four cosines per axis."""
    g = torch.Generator().manual_seed(seed)
    k = torch.arange(4, dtype=torch.float64)
    out = torch.randn(shape[0], *(4,) * (len(shape) - 1), generator=g, dtype=torch.float64)
    for n in shape[
        1:
        # One axis at a time; it ends up last, so after all of them the order is the original one.
    ]:
        wave = torch.cos(torch.pi * k[:, None] * torch.linspace(0, 1, n, dtype=torch.float64)) / (
            1 + k[:, None]
        )
        out = torch.tensordot(out, wave, dims=([1], [0]))
    return out.to(device)


def conditions(task: sapc.tasks.Task, batch: int, device: str) -> torch.Tensor:
    if (
        task.name == "navier_stokes"
        # Its solver takes minutes, and a projection does not ask where a field comes from.
    ):
        return smooth((batch, *task.grid.shape), device, 7)
    size = min(batch, 16)
    fields = task.dataset("train", size=size, seed=0).fields.double().to(device)
    return fields[torch.arange(batch, device=device) % size]


def kernels(call: Callable[[], object], device: str) -> int | None:
    if device != "cuda":
        return None
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    return sum(e.device_type == torch.autograd.DeviceType.CUDA for e in profile.events())


def measure(name: str, device: str, tiny: bool, repeats: int, passes: int) -> list[Row]:
    task = sapc.get_task(name, grid=TINY.get(name, (20, 16)) if tiny else None)
    batch = (4 if tiny else 32) if name == "navier_stokes" else (8 if tiny else 256)
    fields = conditions(task, batch, device)
    starts = {
        "white noise": smooth(fields.shape, device).normal_(generator=torch.Generator(device).manual_seed(0)),
        "endpoint": fields + 1e-2 * smooth(tuple(fields.shape), device),
    }
    rows = []
    for compiled in (False, True) if name in CURVED else (False,):
        H = task.manifold(
            fields, solver=sapc.FeasiblePoint(passes=passes, execution=sapc.Execution(compiled=compiled))
        )
        rebind = milliseconds(lambda H=H: H.rebind(fields), device, repeats, 2, AHEAD)
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
                "ms": milliseconds(call, device, repeats if compiled else max(3, repeats // 4), 2, AHEAD),
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
    parser = arguments(__doc__, device="cuda")
    parser.add_argument("--tiny", action="store_true", help="small grids and batches")
    parser.add_argument("--tasks", nargs="*", default=list(NAMES))
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--passes", type=int, default=80, help="trial points per attempt")
    options = parser.parse_args()
    warnings.simplefilter("always", sapc.SapcWarning)
    results = Results(make_timer(options.device), options.json)
    for name in options.tasks:
        results.add("rows", measure(name, options.device, options.tiny, options.repeats, options.passes))
    results.finish()


if __name__ == "__main__":
    main()
