"""Projection benchmark: ratios measured in one run.

    python benchmarks/projection.py [--device cuda] [--task heat] [--preset published] [--draws 50]
                                    [--json FILE]

1. fast against dense   milliseconds per field of the projection by declared structure, beside the same solver
                        on a dense Jacobian: from a draw of the source and from an endpoint estimate half-way
                        along, with the residuals that both reached
2. Navier-Stokes        a batch of 16 full-size fields, and the peak memory it took over its input
3. O(grid)              seconds per field as the grid grows, and the observed exponent
4. convergence          Stokes: share of draws on the manifold, mean distance moved, beside the plain
                        iteration's

    python benchmarks/projection.py --busy [--json FILE]

times projections by several threads instead, on idle cores and beside programs that want every core, where
waiting threads of OpenMP look on (the default) and where they sleep (OMP_WAIT_POLICY=passive).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from _measure import (
    PEERS,
    Results,
    Row,
    arguments,
    jacobian_bytes,
    make_timer,
    measure_bounded,
    peak,
    show,
    unfit,
    weigh,
)
from torch import Tensor

import sapc
from sapc.experiments.timing import Data, Timer, make_problem, smooth_error, solutions
from sapc.training.config import TrainingConfig, training_config

LEVELS = (None, 1e-3, 1e-2, 1e-1)


def noise(shape: tuple[int, ...], device: torch.device, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)


@torch.no_grad()
def fast_against_dense(run: TrainingConfig, data: Data, timer: Timer) -> Iterator[Row]:
    """A row per solver and start; the solver that sampling uses comes first, and from both starts."""
    task = run.make_task()
    H, truth, draws = make_problem(run, data, timer.device)
    pins, rows = (part(truth[:1]).shape[1] for part in (H[:1].local, H[:1].balance))
    about = {
        "task": run.task,
        "grid": list(run.grid),
        "algorithm": H.algorithm,
        "pins": pins,
        "rows": rows,
        "jacobian_bytes": jacobian_bytes(H),
        "stacked_bytes": 8 * (pins + rows) * truth[0].numel(),
    }
    cases = [("of sampling", H, "noise", draws)]
    cases.append(("of sampling", H, "estimate", truth + smooth_error(task, truth) / 2))
    if task.published_solver is not None:
        cases.append(("nearest", H.with_solver(sapc.NearestPoint()), "noise", draws))
        cases.append(("paper", H.with_solver(task.published_solver), "noise", draws))
    for solver, M, start, u in cases:
        seconds, memory = weigh(timer, partial(M.project, u, check=False))
        row = about | {"solver": solver, "start": start, "ours_fields": len(u), "ours_peak_bytes": memory}
        row |= {
            "ours_ms": 1e3 * seconds / len(u),
            "ours_residual": _size(M.residual(M.project(u, check=False))),
        }
        yield row | _dense(M, u, timer, row["ours_ms"])


def _dense(H: sapc.Manifold, u: Tensor, timer: Timer, ours_ms: float) -> Row:
    if (reason := unfit(H, timer.device)) is not None:
        return {"dense_ms": None, "dense_fields": 0, "dense_left_out": reason, "ratio": None}

    def project_first(n: int) -> Callable[[], Tensor]:
        return partial(PEERS.manifold(H[:n]).project, u[:n], check=False)

    figure = measure_bounded(project_first, len(u), timer)
    row = figure.as_row("dense")
    if figure.seconds is None:
        return {**row, "ratio": None}
    H_part = H[: figure.fields]
    ours, dense = (M.project(u[: figure.fields], check=False) for M in (H_part, PEERS.manifold(H_part)))
    row |= {"ratio": row["dense_ms"] / ours_ms, "dense_residual": _size(H_part.residual(dense))}
    return row | {"apart": _size(ours - dense) / _size(ours)}


def _size(x: Tensor) -> float:
    return float(x.abs().max())


def navier_stokes(timer: Timer) -> Row:
    task = sapc.get_task("navier_stokes")
    fields = noise((16, *task.grid.shape), timer.device, 1)
    H = task.manifold(fields)
    u = noise(fields.shape, timer.device, 2).float()
    call = partial(H.project, u, check=False)
    seconds = timer(call)
    with peak(timer.device) as memory:
        call()
    return {
        "batch": 16,
        "seconds": seconds,
        "peak_over_field_float64": memory.bytes and memory.bytes / (u.numel() * 8),
        "residual": _size(H.residual(H.project(u.double()))),
    }


def against_grid(timer: Timer) -> list[Row]:
    rows = []
    for name, sizes in (("heat", (100, 200, 400, 800)), ("stokes_ic", (50, 100, 200, 400))):
        times = []
        for n in sizes:
            task = sapc.get_task(name, grid=(n, n))
            fields = task.dataset("test0", size=1, seed=0).fields.double().to(timer.device)
            H = task.manifold(fields, solver=sapc.GaussNewton(n_iter=4, mu=1e-8, tol=1e-300))
            u = fields + 1e-3 * noise((2, n, n), timer.device)
            times.append(timer(partial(H.project, u, check=False)) / 2)
        exponent = math.log(times[-1] / times[-3]) / math.log((sizes[-1] / sizes[-3]) ** 2)
        rows.append({"task": name, "sizes": sizes, "seconds": times, "exponent": exponent})
    return rows


def convergence(device: torch.device, draws: int) -> list[Row]:
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
                plain.append(H.with_solver(task.published_solver).solve(u)[1])
            summaries = {
                kind: _summary(reports) for kind, reports in (("default", default), ("plain", plain))
            }
            rows.append({"task": name, "noise": level, **summaries})
    return rows


def _summary(reports: list[sapc.constraints.ProjectionInfo]) -> dict[str, float]:
    def collect(name: str) -> torch.Tensor:
        return torch.cat([getattr(r, name).double() for r in reports])

    return {
        "draws": len(collect("residual")),
        "on_manifold": float((collect("residual") <= 1e-10).double().mean()),
        "worst_residual": float(collect("residual").max()),
        "moved": float(collect("distance").mean()),
        "nearest": float((collect("tangential_fraction") <= 1e-6).double().mean()),
        "iterations": float(collect("iterations").mean()),
    }


# -- threads on busy cores --


def project_repeatedly(name: str, count: int, fields: int = 8) -> None:
    """Print the seconds of each of `count` projections."""
    task = sapc.get_task(name)
    H = task.manifold(task.dataset("train", size=fields, cache=False).fields.double())
    u, times = noise((fields, *task.grid.shape), torch.device("cpu")), []
    for _ in range(count + 1):
        start = time.perf_counter()
        H.project(u, check=False)
        times.append(time.perf_counter() - start)
    print(json.dumps(times[1:]))


def on_busy_cores(name: str, count: int) -> Iterator[Row]:
    """Project in processes of their own, as the environment is read once; one program per core is the load."""
    threads = str(torch.get_num_threads())
    settings = {
        "default": {"OMP_NUM_THREADS": threads},
        "passive": {"OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "passive"},
        "one thread": {"OMP_NUM_THREADS": "1"},
    }
    for busy, (setting, environment) in itertools.product((False, True), settings.items()):
        load = [
            subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy * int(threads))
        ]
        try:
            line = [sys.executable, __file__, "--loop", name, str(count)]
            done = subprocess.run(line, env={**os.environ, **environment}, capture_output=True, check=True)
        finally:
            for program in load:
                program.kill()
                program.wait()
        times = sorted(json.loads(done.stdout))
        about = {"task": name, "busy": busy, "setting": setting, "load": os.getloadavg()[0]}
        yield about | {"median_ms": 1e3 * statistics.median(times), "least_ms": 1e3 * times[0]}


def compare_threads(path: str | None, names: Sequence[str] | None) -> None:
    results = Results(make_timer("cpu"), path)
    rows = [row for name in names or ("heat", "reaction_diffusion") for row in on_busy_cores(name, 40)]
    show("Eight fields, milliseconds", results.add("threads", rows))
    results.finish()


def main() -> None:
    parser = arguments(__doc__, device="cpu")
    parser.add_argument(
        "--task", action="append", help="of the first table; may be repeated; all unless given"
    )
    parser.add_argument("--preset", default="published", help="sizes of the first table")
    parser.add_argument(
        "--draws", type=int, default=8, help="draws per task and noise level for the convergence table"
    )
    parser.add_argument("--busy", action="store_true", help="threads on busy cores, instead of the tables")
    parser.add_argument("--loop", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loop:
        return project_repeatedly(options.loop[0], int(options.loop[1]))
    if options.busy:
        return compare_threads(options.json, options.task)
    warnings.simplefilter("ignore", sapc.SapcWarning)
    timer = make_timer(options.device)
    results = Results(timer, options.json)
    short_timer = replace(timer, repeats=2, warm_up=1)
    for name in options.task or sapc.task_names():
        run = training_config(name, "sapc", options.preset)
        rows = results.add(
            "fast_against_dense", fast_against_dense(run, solutions(run, timer.device), short_timer)
        )
    show(
        "per field, and dense / ours",
        rows,
        [n for n in rows[0] if n not in ("grid", "jacobian_bytes", "stacked_bytes")],
    )
    show("Navier-Stokes", results.add("navier_stokes", [navier_stokes(short_timer)]))
    title = "seconds per field against grid size n x n; exponent in the number of points"
    show(title, results.add("against_grid", against_grid(timer)))
    names = [
        f"{a} {b}" for a in ("on_manifold", "moved", "nearest", "iterations") for b in ("default", "plain")
    ]
    flat = [
        {"task": row["task"], "noise": row["noise"] or "white"}
        | {name: row[name.split()[1]][name.split()[0]] for name in names}
        for row in results.add("convergence", convergence(timer.device, options.draws))
    ]
    show("convergence: shares at 1e-10, mean distance, shares at the nearest point, iterations", flat)
    results.finish()


if __name__ == "__main__":
    main()
