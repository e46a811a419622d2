"""Projection benchmark: ratios measured in one run.

    python benchmarks/projection.py [--device cuda] [--draws 50] [--json FILE]

1. fast against dense   seconds per field of the structured projection (a batch of 256) over the dense one, the same solver settings
2. Navier-Stokes        a batch of 16 full-size fields, and the peak memory it took over its input
3. O(grid)              seconds per field as the grid grows, and the observed exponent
4. convergence          Stokes: share of draws on the manifold, mean distance moved, beside the plain iteration's
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
import warnings
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

import sapc

LEVELS = (None, 1e-3, 1e-2, 1e-1)
CONSOLE = Console(width=max(130, Console().width))  # the tables are wider than 80 columns


def seconds(call: Callable[[], object], device: str, repeats: int = 3) -> float:
    """The fastest of a few runs after one warm-up."""
    times = []
    for i in range(repeats + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        if i:
            times.append(time.perf_counter() - start)
    return min(times)


def noise(shape: tuple[int, ...], device: str, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)


def fast_against_dense(device: str, batch: int = 256, dense_batch: int = 4) -> list[dict[str, object]]:
    rows = []
    for name in ("heat", "reaction_diffusion", "stokes_ic", "stokes_bc", "burgers"):
        task = sapc.get_task(name)
        fields = task.dataset("test1", size=2, seed=0).fields[:1].double().to(device)
        for label, solver in (
            ("default", sapc.Globalised()),
            ("feasible only", sapc.Globalised(nearest=0)),
            ("paper", task.plain),
        ):
            if solver is None or (task.plain is None and label != "default"):
                continue
            H = task.manifold(fields, solver=solver)
            u = noise((batch, *task.grid.shape), device)
            fast = seconds(lambda H=H, u=u: H.project(u, check=False), device, 2) / batch
            dense = H.dense()
            slow = (
                seconds(lambda D=dense, u=u: D.project(u[:dense_batch], check=False), device, 1) / dense_batch
            )
            rows.append(
                {
                    "task": name,
                    "solver": label,
                    "algorithm": H.algorithm,
                    "fast_s": fast,
                    "dense_s": slow,
                    "ratio": slow / fast,
                }
            )
    return rows


def navier_stokes(device: str) -> dict[str, object]:
    task = sapc.get_task("navier_stokes")
    fields = noise((16, *task.grid.shape), device, 1)
    H = task.manifold(fields)
    u = noise(fields.shape, device, 2).float()
    took = seconds(lambda: H.project(u, check=False), device)
    peak = None
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        H.project(u, check=False)
        peak = (torch.cuda.max_memory_allocated() - before) / (u.numel() * 8)
    return {
        "batch": 16,
        "seconds": took,
        "peak_over_field_float64": peak,
        "residual": float(H.residual(H.project(u.double())).abs().max()),
    }


def against_grid(device: str) -> list[dict[str, object]]:
    rows = []
    for name, sizes in (("heat", (100, 200, 400, 800)), ("stokes_ic", (50, 100, 200, 400))):
        times = []
        for n in sizes:
            task = sapc.get_task(name, grid=(n, n))
            fields = task.dataset("test0", size=1, seed=0).fields.double().to(device)
            H = task.manifold(fields, solver=sapc.Plain(n_iter=4, mu=1e-8, tol=1e-300))
            u = fields + 1e-3 * noise((2, n, n), device)
            times.append(seconds(lambda H=H, u=u: H.project(u, check=False), device) / 2)
        exponent = math.log(times[-1] / times[-3]) / math.log((sizes[-1] / sizes[-3]) ** 2)
        rows.append({"task": name, "sizes": sizes, "seconds": times, "exponent": exponent})
    return rows


def convergence(device: str, draws: int) -> list[dict[str, object]]:
    rows = []
    for name in ("reaction_diffusion", "stokes_ic", "stokes_bc"):
        task = sapc.get_task(name)
        for level in LEVELS:
            default, plain = [], []
            for k in range(4):
                fields = task.dataset(f"test{k}", size=max(1, draws // 4), seed=1).fields.double().to(device)
                z = noise(fields.shape, device, k)
                u = z if level is None else fields + level * z
                H = task.manifold(fields)
                default.append(H.solve(u)[1])
                plain.append(H.with_solver(task.plain).solve(u)[1])
            both = {kind: _summary(reports) for kind, reports in (("default", default), ("plain", plain))}
            rows.append({"task": name, "noise": level, **both})
    return rows


def _summary(reports: list[sapc.constraints.Report]) -> dict[str, float]:
    def every(name: str) -> torch.Tensor:
        return torch.cat([getattr(r, name).double() for r in reports])

    return {
        "draws": len(every("residual")),
        "on_manifold": float((every("residual") <= 1e-10).double().mean()),
        "worst_residual": float(every("residual").max()),
        "moved": float(every("moved").mean()),
        "nearest": float((every("tangential") <= 1e-6).double().mean()),
        "iterations": float(every("iterations").mean()),
    }


def show(title: str, rows: list[dict[str, object]]) -> None:
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(_text(v) for v in row.values()))
    CONSOLE.print(table)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, tuple | list):
        return " ".join(_text(v) for v in value)
    return str(value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--draws", type=int, default=8, help="draws per task and noise level for the convergence table"
    )
    parser.add_argument("--json", help="write the figures here as well")
    options = parser.parse_args()
    warnings.simplefilter("ignore", sapc.SapcWarning)
    device = options.device
    hardware = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    result = {"hardware": hardware, "torch": torch.__version__, "sapc": sapc.__version__}
    result["fast_against_dense"] = fast_against_dense(device)
    show("seconds per field, and dense / fast", result["fast_against_dense"])
    result["navier_stokes"] = navier_stokes(device)
    show("Navier-Stokes", [result["navier_stokes"]])
    result["against_grid"] = against_grid(device)
    show(
        "seconds per field against grid size n x n; exponent in the number of points", result["against_grid"]
    )
    result["convergence"] = convergence(device, options.draws)
    flat = [
        {
            "task": r["task"],
            "noise": r["noise"] or "white",
            **{
                f"{a} {b}": r[b][a]
                for a in ("on_manifold", "moved", "nearest", "iterations")
                for b in ("default", "plain")
            },
        }
        for r in result["convergence"]
    ]
    show(
        "convergence (share on the manifold at 1e-10, mean distance moved, share at the nearest point, iterations)",
        flat,
    )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
