"""Reaction-diffusion on many initial profiles: how SAPC's error in the mean depends on how far a profile is from the training ones.

    python benchmarks/profiles.py reaction_diffusion-sapc [--profiles 32] [--samples 512] [--steps 100] [--json FILE]

Profiles are new draws from the law that test sets follow. A profile's error is MMSE, of samples against 1,225 solutions with other fluxes;
its distance is the root mean square difference from the nearest of the training profiles.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import sapc
from sapc.evaluation.metrics import mmse
from sapc.tasks.reaction_diffusion import initial_profiles, react
from sapc.training.run_folder import environment

SOLUTIONS = 1225


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a run folder or the name of a model that ships")
    parser.add_argument("--profiles", type=int, default=32)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    model = sapc.load(chosen.model)
    task, g = model.task, torch.Generator().manual_seed(1)
    trained = model.run.make_task().dataset("train", size=model.run.train, seed=model.run.seed)
    known = trained.fields[..., 0].unique(dim=0).double()
    profiles = initial_profiles(torch.rand(chosen.profiles, 13, generator=g, dtype=torch.float64))
    rows = []
    for u0 in profiles(task.grid["x"].points):
        left, right = 0.05 * torch.rand(2, SOLUTIONS, generator=g, dtype=torch.float64)
        solutions = react(u0.expand(SOLUTIONS, -1), left, -right, task.grid.time)
        fields = model.sample(chosen.samples, solutions[:1], chosen.steps, sampler="euler")
        distance = (known - u0).square().mean(1).min().sqrt()
        rows.append({"distance": float(distance), "mmse": float(mmse(fields, solutions))})
        print(f"distance {rows[-1]['distance']:.3f}  MMSE {rows[-1]['mmse']:.2e}", flush=True)
    errors = torch.tensor([row["mmse"] for row in rows])
    print(
        f"{len(known)} training profiles; MMSE mean {errors.mean():.2e}, median {errors.median():.2e}, "
        f"standard error {errors.std() / len(errors) ** 0.5:.1e}"
    )
    if chosen.json:
        settings = {"samples": chosen.samples, "steps": chosen.steps, "solutions": SOLUTIONS}
        about = {"environment": environment(), "run": model.run.to_dict(), **settings, "rows": rows}
        chosen.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
