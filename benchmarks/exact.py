"""What a perfect network would score on Heat: SAPC's sampler with the exact velocity. And how far a trained
one is from it.

    python benchmarks/exact.py [--steps 50 100 200] [--samples 1225] [--json FILE]
    python benchmarks/exact.py --run runs/heat-sapc [--run runs/another] [--samples 48] [--json FILE]

Given its initial frame, a solution of Heat has one unknown, the decay rate a ~ U[1, 5]. The anchored source
is p + Q z with Q the projector onto the manifold's tangent space, so v_t = (1-t) v0(a) + t (p + Q z), and the
posterior of a has the weight

    exp(-|v_t - (1-t) v0(a) - t p|^2 / (2 t^2))   on a grid of a,

which gives E[v0 | v_t] and with it the velocity. What the scores then show is the error of N Euler steps and
of finite sampling alone. Last comes a perfect unconstrained model, FFM.

A trained network's loss is that of the exact velocity plus its mean squared distance from it. With `--run`,
both are printed by flow time, and of the distance in E[v0 | v_t] (projected, as the sampler does) the shares
that move the solution's decay, sin(x + phi) times any function of time, and its phase, cos(x + phi) times
any. The phase is given exactly by the pinned frame, so the second share is what the network did not read off
there. Of two runs the correlation of their errors is printed.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from torch import Tensor

import sapc
from sapc.flow.path import predict_data
from sapc.training.run_folder import environment

PHASES = (math.pi / 4, math.pi / 2, 3 * math.pi / 4, math.pi)
METRICS = ("mmse", "smse", "w2")
TIMES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.1, 0.03, 0.01)


class Exact:
    """The exact velocity for one test set, from a source of the given amplitude."""

    def __init__(
        self,
        task: sapc.tasks.Task,
        H: sapc.Manifold,
        phase: float,
        points: int = 801,
        amplitude: float = 1.0,
    ) -> None:
        x, time = task.grid["x"].points, task.grid["t"].points
        a = torch.linspace(1, 5, points, dtype=torch.float64)
        self.solutions = (torch.exp(-a[:, None, None] * time) * torch.sin(x + phase)[:, None]).flatten(1)
        self.log_prior = torch.zeros(points, dtype=torch.float64)
        # Trapezoid.
        self.log_prior[0] = self.log_prior[-1] = math.log(0.5)
        self.amplitude = amplitude
        self.p = H.project(torch.zeros(1, *task.grid.shape, dtype=torch.float64)).flatten()

    def __call__(self, vt: Tensor, t: Tensor) -> Tensor:
        """At one time for the whole batch."""
        s = float(t[0])
        u = vt.flatten(1) - s * self.p
        distance = -2 * (1 - s) * u @ self.solutions.T + (1 - s) ** 2 * self.solutions.square().sum(1)
        weights = torch.softmax(self.log_prior - distance / (2 * (s * self.amplitude) ** 2), 1)
        return (vt - (weights @ self.solutions).reshape(vt.shape)) / s


def scores(task: sapc.tasks.Task, test_set: int, steps: int, samples: int) -> dict[str, float]:
    truth = task.dataset(f"test{test_set}", size=1225).fields
    H = task.manifold(truth[:1].double())
    velocity = Exact(task, H, PHASES[test_set])
    draws = sapc.source.sample(task.grid, samples, make_generator(test_set), dtype=torch.float64).split(245)
    fields = torch.cat([sapc.get_method("sapc").sample(velocity, v1, H, steps) for v1 in draws])
    return {name: float(getattr(sapc.metrics, name)(fields, truth)) for name in METRICS}


class KnownSet:
    """Fields of one test set with source draws on their manifold, and the exact velocity between them."""

    def __init__(self, task: sapc.tasks.Task, k: int, samples: int) -> None:
        self.v0 = task.dataset(f"test{k}", size=samples).fields.double()
        self.H = task.manifold(self.v0[:1])
        self.v1 = self.H.project(
            sapc.source.sample(task.grid, samples, make_generator(k), dtype=torch.float64)
        )
        # Fine enough for the smallest time.
        self.velocity = Exact(task, self.H, PHASES[k], 3201)
        x = task.grid["x"].points + PHASES[k]
        self.profiles = {"decay": torch.sin(x), "phase": torch.cos(x)}

    def compare(self, networks: list[sapc.FNO], t: float) -> dict[str, float]:
        """The networks with the exact velocity at one flow time."""
        vt, at = (1 - t) * self.v0 + t * self.v1, torch.full((len(self.v0),), t, dtype=torch.float64)
        exact, errors = self.velocity(vt, at), []
        values = {"exact_loss": float((exact - (self.v1 - self.v0)).square().mean())}
        for i, network in enumerate(networks):
            v = torch.cat([network(u.float(), at[: len(u)]).double() for u in vt.split(16)])
            errors.append(v - exact)
            values[f"excess{i}"] = float(errors[-1].square().mean())
            miss = self.H.project(predict_data(vt, t, v)) - predict_data(vt, t, exact)
            values |= {f"{name}{i}": share(miss, profile) for name, profile in self.profiles.items()}
        if len(errors) > 1:
            a, b = errors[:2]
            values["correlation"] = float((a * b).sum() / (a.norm() * b.norm()))
        return values


def distance(runs: list[str], samples: int) -> list[dict[str, float]]:
    """Trained networks from the exact velocity, by flow time; means over test sets 1 and 2."""
    models = [sapc.load(path, device="cpu") for path in runs]
    sets, rows = [KnownSet(models[0].task, k, samples) for k in (1, 2)], []
    for t in TIMES:
        comparisons = [known_set.compare([model.network for model in models], t) for known_set in sets]
        rows.append(
            {"t": t, **{name: (comparisons[0][name] + comparisons[1][name]) / 2 for name in comparisons[0]}}
        )
        print("  ".join(f"{name} {value:.2e}" for name, value in rows[-1].items()), flush=True)
    return rows


def share(fields: Tensor, profile: Tensor) -> float:
    """Of the fields' energy the part in one profile of x."""
    part = torch.einsum("bxt,x->bt", fields, profile).square().sum() / profile.square().sum()
    return float(part / fields.square().sum())


def make_generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def perfect(numbers: list[int], samples: int) -> list[dict[str, object]]:
    task, rows = sapc.get_task("heat"), []
    for steps in numbers:
        sets = [scores(task, i, steps, samples) for i in range(4)]
        mean = {name: sum(row[name] for row in sets) / 4 for name in METRICS}
        rows.append({"steps": steps, "sets": sets, "mean": mean})
        print(
            f"{steps:4d} steps  " + "  ".join(f"{name} {value:.2e}" for name, value in mean.items()),
            flush=True,
        )
    return rows


def score_unconstrained(samples: int) -> dict[str, object]:
    """What a perfect FFM would score: training solutions instead of samples."""
    task = sapc.get_task("heat")
    draws_of_data, mean = task.dataset("train", size=samples).fields.double(), dict.fromkeys(METRICS, 0.0)
    for k in range(4):
        truth = task.dataset(f"test{k}", size=1225).fields.double()
        for name in METRICS:
            mean[name] += float(getattr(sapc.metrics, name)(draws_of_data, truth)) / 4
    print("unconstrained  " + "  ".join(f"{name} {value:.2e}" for name, value in mean.items()), flush=True)
    return {"unconstrained": True, "mean": mean}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", action="append", default=[])
    parser.add_argument("--steps", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--samples", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    samples = options.samples or (48 if options.run else 1225)
    about = {"environment": environment(), "samples": samples, "reference": 1225}
    if options.run:
        about["runs"], rows = options.run, distance(options.run, samples)
        del about["reference"]
    else:
        rows = [*perfect(options.steps, samples), score_unconstrained(samples)]
    if options.json:
        options.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
