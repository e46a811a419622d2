"""What the learning rate does to SAPC on Heat: the same small network, trained at several rates, with and without averaged weights.

    python benchmarks/learning_rate.py [--rates plateau-1e-3 cosine-1e-3 cosine-6e-3] [--seeds 0] [--steps 4000] [--json FILE]

`plateau-R` falls from R to half of it in the middle of the training and to a third after three quarters, as a plateau rule would;
`cosine-R` rises over 100 steps and falls along a cosine. Averages keep 0.99 of themselves in every step. Scores are those of 200 samples
against 200 from the exact velocity (`exact.py`), from the same source draws with the same sampler: 0 is a perfect network. Means over
test sets 1 and 2 and the last four of 20 equally spaced states of the training.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from pathlib import Path

import torch
from amplitude import BATCH, GRID, METRICS, Test

import sapc
from sapc.training.run_folder import environment

AVERAGE, RISE = 0.99, 100


def rate(name: str, n: int, steps: int) -> float:
    kind, peak = name.split("-", 1)
    if kind == "plateau":
        return float(peak) / (1 if n < steps / 2 else 2 if n < 0.75 * steps else 3)
    return float(peak) * min(1, (n + 1) / RISE) * (0.5 * (1 + math.cos(math.pi * n / steps)) + 1e-3)


def train(name: str, seed: int, steps: int) -> dict[str, dict[str, float]]:
    task, method = sapc.get_task("heat", grid=GRID), sapc.get_method("sapc")
    data, g = task.dataset("train").fields, torch.Generator().manual_seed(seed)
    tests = [Test(task, k, 1.0) for k in (1, 2)]
    torch.manual_seed(seed)
    network = sapc.FNO(2, modes=12, hidden=16, projection=32, time_channels=16)
    average, adam = copy.deepcopy(network), torch.optim.Adam(network.parameters(), fused=True)
    found: dict[str, list[torch.Tensor]] = {"last": [], "average": []}
    for n in range(steps):
        for group in adam.param_groups:
            group["lr"] = rate(name, n, steps)
        v0 = data[torch.randint(len(data), (BATCH,), generator=g)]
        v1, t = sapc.source.sample(task.grid, BATCH, g), torch.rand(BATCH, generator=g)
        adam.zero_grad()
        torch.autograd.backward(method.loss(network, v0, v1, t, task.manifold(v0)))
        adam.step()
        with torch.no_grad():
            new = max(1 - AVERAGE, (n + 1) ** -0.9 if n < 50 else 0)
            torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), new)
            if n >= 0.8 * steps and (n + 1) % (steps // 20) == 0:
                for which, net in (("last", network), ("average", average)):
                    found[which].append(torch.stack([test.scores(net) for test in tests]).mean(0))
    return {k: dict(zip(METRICS, torch.stack(v).mean(0).tolist(), strict=True)) for k, v in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rates", nargs="+", default=["plateau-1e-3", "cosine-1e-3", "cosine-6e-3"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--json", type=Path)
    chosen, rows = parser.parse_args(), []
    for seed in chosen.seeds:
        for name in chosen.rates:
            for which, scores in train(name, seed, chosen.steps).items():
                rows.append({"rate": name, "seed": seed, "steps": chosen.steps, "weights": which, **scores})
                print(
                    "  ".join(
                        f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()
                    ),
                    flush=True,
                )
    if chosen.json:
        chosen.json.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
