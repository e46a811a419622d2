"""What FFM's zero-shot samplers would score on Heat with a perfect network: their samplers with FFM's exact velocity.

    python benchmarks/zero_shot.py [--method pcfm ...] [--samples 256] [--amplitude 1.0] [--json FILE]

Solutions are v0 = exp(-a t) sin(x + phi) with a ~ U[1, 5] and phi ~ U[0, pi]; the source is white noise of the given amplitude A. With a
grid of both parameters the posterior of (a, phi) given v_t has the weight

    exp(((1 - t) <v_t, v0> - (1 - t)^2 |v0|^2 / 2) / (t A)^2),

which gives E[v0 | v_t] and with it the velocity. sin(x + phi) has two profiles in x, so all inner products come from two sums over x.

A trained network differs from this one most where it was never trained: ECI and PCFM join every estimate to the same source draw, which
carries the draw's own large scales into the estimate at every step; beyond the data a network may amplify that, the exact velocity cannot.
"""

from __future__ import annotations

import argparse
import json
import math
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import sapc
from sapc.training.run_folder import environment

METHODS = ("ffm", "sapc_s1", "sapc_s3", "pcfm", "eci", "eci_stokes_bc")
METRICS = ("mmse", "smse", "w2")


class Exact:
    """E[v1 - v0 | v_t] of unconditional flow matching on Heat."""

    def __init__(self, task: sapc.tasks.Task, amplitude: float, points: int = 129) -> None:
        x, time = task.grid["x"].points, task.grid["t"].points
        a = torch.linspace(1, 5, points, dtype=torch.float64)
        phi = torch.linspace(0, math.pi, points, dtype=torch.float64)
        self.profiles = torch.stack((torch.sin(x), torch.cos(x)))  # (2, x)
        self.mix = torch.stack((torch.cos(phi), torch.sin(phi)))  # (2, phi): sin(x + phi) in the profiles
        self.decay = torch.exp(-a[:, None] * time)  # (a, t)
        gram = self.profiles @ self.profiles.T
        lengths = torch.einsum("ip,ij,jp->p", self.mix, gram, self.mix)
        self.squares = self.decay.square().sum(1)[:, None] * lengths  # |v0|^2, (a, phi)
        ends = torch.zeros(points, dtype=torch.float64)
        ends[[0, -1]] = math.log(0.5)  # trapezoid
        self.log_prior, self.amplitude = ends[:, None] + ends, amplitude

    def __call__(self, vt: Tensor, t: Tensor) -> Tensor:
        """At one time for the whole batch."""
        s = float(t[0])
        sums = torch.einsum("bxt,ix,at->bai", vt, self.profiles, self.decay)
        inner = sums @ self.mix
        logs = ((1 - s) * inner - (1 - s) ** 2 * self.squares / 2) / (s * self.amplitude) ** 2
        weights = torch.softmax((logs + self.log_prior).flatten(1), 1).reshape(inner.shape)
        mean = torch.einsum("bap,ip,at,ix->bxt", weights, self.mix, self.decay, self.profiles)
        return (vt - mean) / s


def scores(task: sapc.tasks.Task, k: int, name: str, samples: int, amplitude: float) -> dict[str, float]:
    truth = task.dataset(f"test{k}", size=1225).fields
    H, v, method = task.manifold(truth[:1].double()), Exact(task, amplitude), sapc.get_method(name)
    g = torch.Generator().manual_seed(k)
    draw = lambda n: amplitude * sapc.source.sample(task.grid, n, g, dtype=torch.float64)
    fields = []
    for v1 in draw(samples).split(64):
        sample = method.bind_source(partial(draw, len(v1)))
        fields.append(sample(v, v1, H, method.steps))
    u = torch.cat(fields)
    return {metric: float(getattr(sapc.metrics, metric)(u, truth)) for metric in METRICS}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", action="append")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--amplitude", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    task, rows = sapc.get_task("heat"), []
    for name in chosen.method or METHODS:
        sets = [scores(task, k, name, chosen.samples, chosen.amplitude) for k in range(4)]
        mean = {metric: sum(row[metric] for row in sets) / 4 for metric in METRICS}
        rows.append({"method": name, "sets": sets, "mean": mean})
        print(f"{name:14s}" + "  ".join(f"{m} {value:.2e}" for m, value in mean.items()), flush=True)
    if chosen.json:
        about = {"samples": chosen.samples, "reference": 1225, "amplitude": chosen.amplitude}
        about["environment"] = environment()
        chosen.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
