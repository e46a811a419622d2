"""What the precision of the network's products does to the scores: the same small runs of Heat with SAPC in each of them.

    python benchmarks/precision.py [--seeds 3] [--steps 2000] [--json FILE]

One process per precision and seed, three at a time; every run is trained and sampled in its own precision and scored on all four test sets.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
from pathlib import Path

import sapc
from sapc.training.config import training_config
from sapc.training.loop import train
from sapc.training.run_folder import environment

PRECISIONS = ("float32", "tf32", "bf16")
SETTINGS = {
    "modes": (16, 16),
    "hidden": 32,
    "projection": 64,
    "batch": 64,
    "train": 6400,
    "validation": 256,
    "lr": 1e-3,
}
METRICS = ("mmse", "smse", "w2")


def score(case: tuple[str, int, int, int, str]) -> dict[str, object]:
    precision, seed, steps, samples, folder = case
    more = {} if steps > 100 else {"hidden": 8, "modes": (6, 6), "train": 64, "validation": 16, "batch": 8}
    run = training_config(
        "heat",
        "sapc",
        "small",
        **{
            **SETTINGS,
            "precision": precision,
            "seed": seed,
            "steps": steps,
            "validation_interval": 100,
            **more,
        },
    )
    done = train(run, Path(folder) / f"{precision}-{seed}", compiled=False)
    model = sapc.load(done.path, compiled=False)
    rows = []
    for i in range(4):
        truth = model.task.dataset(f"test{i}").fields
        fields = model.sample(samples, condition=truth[:1], seed=seed, sampler="euler")
        rows.append({name: float(getattr(sapc.metrics, name)(fields, truth)) for name in METRICS})
    mean = {name: statistics.mean(row[name] for row in rows) for name in METRICS}
    return {"precision": precision, "seed": seed, "validation": done.entries()[-1]["validation"], **mean}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(3) as pool:
        cases = [
            (p, seed, chosen.steps, chosen.samples, folder)
            for seed in range(chosen.seeds)
            for p in PRECISIONS
        ]
        rows = pool.map(score, cases, chunksize=1)
    for p in PRECISIONS:
        own = [row for row in rows if row["precision"] == p]
        figures = "  ".join(
            f"{name} {statistics.mean(r[name] for r in own):.2e} ({min(r[name] for r in own):.1e}..{max(r[name] for r in own):.1e})"
            for name in ("validation", *METRICS)
        )
        print(f"{p:8s} {figures}")
    if chosen.json:
        settings = {**SETTINGS, "steps": chosen.steps, "samples": chosen.samples}
        chosen.json.write_text(
            json.dumps({"environment": environment(), "settings": settings, "runs": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
