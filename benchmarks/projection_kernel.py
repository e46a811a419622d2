"""Restoration as one kernel against compiled passes: milliseconds per projection between network passes.

    PYTHONPATH=src python3 benchmarks/projection_kernel.py [--warps 2 4 8 16] [--entries 2 4 8]
    TRITON_INTERPRET=1 PYTHONPATH=src python3 benchmarks/projection_kernel.py --device cpu --tiny

Times `H.approximate(ahead=True).project(u)` from the truth plus noise of size 0.05 and from a draw of the
source, in float64 and batches of 256 on the published grids: median of 20 calls after 3. For every number of
warps and of entries per thread a table; the last one holds the fastest of them against the passes, with the
largest difference of the fields.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from _measure import milliseconds

import sapc
from sapc.constraints.projection.gpu.launch import use_tuning

CURVED = ("reaction_diffusion", "stokes_ic", "stokes_bc")
Case = tuple[str, str]


def cases(device: str, batch: int, tiny: bool) -> dict[Case, tuple[sapc.Manifold, torch.Tensor]]:
    """Manifolds, and fields off them, near and far."""
    fields_by_case = {}
    for name in CURVED:
        task = sapc.get_task(name, grid=(9, 7) if tiny else None)
        size = min(batch, 16)
        fields = task.dataset("train", size=size, seed=0).fields.double()[torch.arange(batch) % size]
        g = torch.Generator().manual_seed(0)
        near = fields + 0.05 * torch.randn(fields.shape, generator=g, dtype=fields.dtype)
        H = task.manifold(fields.to(device), solver=sapc.FeasiblePoint()).approximate(ahead=True)
        fields_by_case[name, "near"] = H, near.to(device)
        fields_by_case[name, "source"] = (
            H,
            sapc.source.sample(task.grid, batch, generator=g).double().to(device),
        )
    return fields_by_case


def make_call(H: sapc.Manifold, u: torch.Tensor, fused: bool) -> Callable[[], torch.Tensor]:
    solver = H.solver
    assert isinstance(solver, sapc.FeasiblePoint)
    H_run = H.with_solver(replace(solver, execution=replace(solver.execution, fused=fused)))
    return lambda: H_run.project(u, check=False)


def measure(options: argparse.Namespace) -> None:
    repeats, before = (1, 0) if options.tiny else (options.repeats, 3)
    fields_by_case = cases(options.device, 2 if options.tiny else options.batch, options.tiny)
    passes: dict[Case, float] = {}
    fastest: dict[Case, tuple[float, int, int]] = {}
    differences: dict[Case, float] = {}
    expected = {}
    for case, (H, u) in fields_by_case.items():
        call = make_call(H, u, fused=False)
        expected[case], passes[case] = (
            call(),
            milliseconds(call, options.device, repeats, before, ahead=1_000_000),
        )
        used = H.solve(u)[1].iterations
        print(f"{case}: passes {used.double().mean():.2f} on average, {used.max()} at most", flush=True)
    for warps in options.warps:
        for entries in options.entries:
            print(f"warps {warps}, entries {entries}", flush=True)
            for case, (H, u) in fields_by_case.items():
                with use_tuning(warps=warps, entries=entries):
                    call = make_call(H, u, fused=True)
                    begin = time.perf_counter()
                    difference = float((call() - expected[case]).abs().max())
                    first = time.perf_counter() - begin
                    ms = milliseconds(call, options.device, repeats, before, ahead=1_000_000)
                differences[case] = max(differences.get(case, 0.0), difference)
                fastest[case] = min(fastest.get(case, (ms, warps, entries)), (ms, warps, entries))
                print(
                    f"  {case[0]:20s} {case[1]:8s} {ms:8.3f} ms   first call {first:6.2f} s   apart "
                    f"{difference:.1e}",
                    flush=True,
                )
    print(f"\n{'task':20s} {'start':8s} {'passes':>9s} {'kernel':>9s}  {'warps':>5s} {'entries':>7s}  apart")
    for case, (ms, warps, entries) in fastest.items():
        print(
            f"{case[0]:20s} {case[1]:8s} {passes[case]:6.3f} ms {ms:6.3f} ms  {warps:5d} {entries:7d}  "
            f"{differences[case]:.1e}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small grids, two samples, one call")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--warps", type=int, nargs="*", default=[2, 4, 8, 16])
    parser.add_argument("--entries", type=int, nargs="*", default=[2, 4, 8])
    warnings.simplefilter("always", sapc.SapcWarning)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
