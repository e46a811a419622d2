"""The projection by declared structure beside the same solver on a dense Jacobian, on the same fields.

    noise       from a draw of the source, as SAPC's sampling and training begin
    estimate    from an endpoint estimate half-way along, `u + error / 2` (see `trained`)

Both go on until they arrive, with the solver that sampling uses; on the way a sampler cuts its projections off earlier. The residual is
the largest there is after it, the difference the largest between the two results, relative to the largest value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...constraints import Manifold
from ...flow import source
from ...training.config import Run
from .peers import bounded, jacobian_bytes, unfit
from .style import PEERS
from .timer import Timer
from .trained import Data, smooth_error


def projection(
    run: Run, data: Data, timer: Timer, progress: Callable[[str], None], peers: bool = True
) -> Iterator[dict[str, Any]]:
    """A row per start."""
    task = run.make_task()
    truth = data[0][: run.batch].to(timer.device, torch.float64)
    H = task.manifold(truth, solver=run.solver(task))
    noise = source.sample(task.grid, len(truth), dtype=torch.float64, device=timer.device)
    pins, rows = (part(truth[:1]).shape[1] for part in (H[:1].local, H[:1].balance))
    about: dict[str, Any] = {
        "task": run.task, "grid": list(run.grid), "algorithm": H.algorithm, "pins": pins, "rows": rows,
        "jacobian_bytes": jacobian_bytes(H), "stacked_bytes": 8 * (pins + rows) * truth[0].numel(),
    }  # fmt: skip
    for start, u in (("noise", noise), ("estimate", truth + smooth_error(task, truth) / 2)):
        progress(f"{run.task}: projection from {start}")
        with torch.no_grad():
            row = about | {"start": start} | _ours(H, u, timer)
            yield row | (_dense(H, u, timer, row["ours_ms"]) if peers else {})


def _ours(H: Manifold, u: Tensor, timer: Timer) -> dict[str, Any]:
    seconds, peak = timer.weighed(partial(H.project, u, check=False))
    return {
        "ours_ms": 1e3 * seconds / len(u), "ours_fields": len(u), "ours_peak_bytes": peak,
        "ours_residual": _size(H.residual(H.project(u, check=False))),
    }  # fmt: skip


def _dense(H: Manifold, u: Tensor, timer: Timer, ours_ms: float) -> dict[str, Any]:
    if (reason := unfit(H, timer.device)) is not None:
        return {
            "dense_ms": None,
            "dense_fields": 0,
            "dense_peak_bytes": None,
            "dense_left_out": reason,
            "ratio": None,
        }

    def some(n: int) -> Callable[[], Tensor]:
        return partial(PEERS.manifold(H[:n]).project, u[:n], check=False)

    figure = bounded(some, len(u), timer)
    row = figure.named("dense")
    if figure.seconds is None:
        return {**row, "ratio": None}
    ends = [
        M.project(u[: figure.fields], check=False)
        for M in (H[: figure.fields], PEERS.manifold(H[: figure.fields]))
    ]
    return {
        **row, "ratio": row["dense_ms"] / ours_ms, "dense_residual": _size(H[: figure.fields].residual(ends[1])),
        "apart": _size(ends[0] - ends[1]) / _size(ends[0]),
    }  # fmt: skip


def _size(x: Tensor) -> float:
    return float(x.abs().max())
