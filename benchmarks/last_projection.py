"""What the last projection does to samples of the Stokes tasks: none, the default, the paper's iteration.

    python benchmarks/last_projection.py [--task stokes_bc] [--set test3] [--samples 128] [--steps 25]
                                         [--json FILE]

States are those of the SAPC models that come with the package when sampling ends; on the way all estimates
are projected by the default.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import torch
from torch import Tensor

import sapc
from sapc.flow import evaluate_velocity, integrate, predict_data, step_toward
from sapc.training.run_folder import environment

BATCH = 8


def states(model: sapc.Model, H: sapc.Manifold, samples: int, steps: int) -> Tensor:
    """At the end of the way, before the last projection."""
    g, batches = torch.Generator().manual_seed(0), []
    P, v = H.approximate().project, lambda u, t: model.network(u.float(), t)
    step = lambda vt, t, s: step_toward(vt, P(predict_data(vt, t, evaluate_velocity(v, vt, t))), t, s)
    for first in range(0, samples, BATCH):
        n = min(BATCH, samples - first)
        v1 = sapc.source.sample(model.task.grid, n, g, dtype=torch.float64)
        batches.append(integrate(step, P(v1), steps))
    return torch.cat(batches)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", action="append", choices=("stokes_ic", "stokes_bc"))
    parser.add_argument("--set", action="append", dest="sets")
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--json", type=Path)
    options, rows = parser.parse_args(), []
    # Who misses the manifold is what this shows.
    warnings.simplefilter("ignore", sapc.SapcWarning)
    for name in options.task or ("stokes_ic", "stokes_bc"):
        model = sapc.load(f"{name}-sapc", "cpu")
        solvers = {
            "none": None,
            "without patience": sapc.FeasiblePoint(patience=0),
            "default": sapc.FeasiblePoint(),
            "paper": model.task.published_solver,
        }
        for split in options.sets or ("test0", "test1", "test2", "test3"):
            truth = model.task.dataset(split, size=1225).fields
            H = model.task.manifold(truth[:1].double(), solver=solvers["default"])
            with torch.no_grad():
                v0 = states(model, H, options.samples, options.steps)
                for label, solver in solvers.items():
                    v = v0 if solver is None else H.with_solver(solver).project(v0, check=False)
                    scores = {m: float(getattr(sapc.metrics, m)(v, truth)) for m in ("smse", "w2")}
                    scores["ce_global"] = float(sapc.metrics.ce_global(H, v))
                    rows.append({"task": name, "set": split, "last": label, "samples": len(v), **scores})
                    print(
                        name,
                        split,
                        label,
                        "  ".join(f"{k} {x:.3g}" for k, x in scores.items()),
                        sep="  ",
                        flush=True,
                    )
    if options.json:
        content = {"environment": environment(), "steps": options.steps, "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
