"""What a perfect network would score on Heat: SAPC's sampler with the exact velocity.

    python benchmarks/exact.py [--steps 50 100 200] [--samples 1225] [--json FILE]

Given its initial frame, a solution of Heat has one unknown, the decay rate a ~ U[1, 5]. The anchored source is p + Q z with Q the projector
onto the manifold's tangent space, so v_t = (1-t) v0(a) + t (p + Q z), and the posterior of a has the weight

    exp(-|v_t - (1-t) v0(a) - t p|^2 / (2 t^2))   on a grid of a,

which gives E[v0 | v_t] and with it the velocity. What the scores then show is the error of N Euler steps and of finite sampling alone.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from torch import Tensor

import sapc
from sapc.checkpoint import environment

PHASES = (math.pi / 4, math.pi / 2, 3 * math.pi / 4, math.pi)
METRICS = ("mmse", "smse", "w2")


class Exact:
    """The exact velocity for one test set."""

    def __init__(self, task: sapc.tasks.Task, H: sapc.Manifold, phase: float, points: int = 801) -> None:
        x, time = task.grid["x"].points, task.grid["t"].points
        a = torch.linspace(1, 5, points, dtype=torch.float64)
        self.solutions = (torch.exp(-a[:, None, None] * time) * torch.sin(x + phase)[:, None]).flatten(1)
        self.log_prior = torch.zeros(points, dtype=torch.float64)
        self.log_prior[0] = self.log_prior[-1] = math.log(0.5)  # trapezoid
        self.p = H.project(torch.zeros(1, *task.grid.shape, dtype=torch.float64)).flatten()

    def __call__(self, vt: Tensor, t: Tensor) -> Tensor:
        """At one time for the whole batch."""
        s = float(t[0])
        u = vt.flatten(1) - s * self.p
        distance = -2 * (1 - s) * u @ self.solutions.T + (1 - s) ** 2 * self.solutions.square().sum(1)
        weights = torch.softmax(self.log_prior - distance / (2 * s * s), 1)
        return (vt - (weights @ self.solutions).reshape(vt.shape)) / s


def scores(task: sapc.tasks.Task, test_set: int, steps: int, samples: int) -> dict[str, float]:
    truth = task.dataset(f"test{test_set}", size=1225).fields
    H = task.manifold(truth[:1].double())
    velocity = Exact(task, H, PHASES[test_set])
    g = torch.Generator().manual_seed(test_set)
    draws = sapc.source.sample(task.grid, samples, g, dtype=torch.float64).split(245)
    fields = torch.cat([sapc.get_method("sapc").sample(velocity, v1, H, steps) for v1 in draws])
    return {name: float(getattr(sapc.metrics, name)(fields, truth)) for name in METRICS}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--samples", type=int, default=1225)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    task, rows = sapc.get_task("heat"), []
    for steps in chosen.steps:
        sets = [scores(task, i, steps, chosen.samples) for i in range(4)]
        mean = {name: sum(row[name] for row in sets) / 4 for name in METRICS}
        rows.append({"steps": steps, "sets": sets, "mean": mean})
        print(
            f"{steps:4d} steps  " + "  ".join(f"{name} {value:.2e}" for name, value in mean.items()),
            flush=True,
        )
    if chosen.json:
        about = {"environment": environment(), "samples": chosen.samples, "reference": 1225}
        chosen.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
