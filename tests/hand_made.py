"""Scores written by hand, in the true format, so that what comes out of them can be computed by hand too."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from sapc.experiments.results import Collection, ScoresFile
from sapc.methods import METHODS
from sapc.models.scores import Scores

SETS = ("test0", "test1")


def scores(task: str = "heat", method: str = "sapc", seed: int = 0, **changes: Any) -> dict[str, Any]:
    """One file's content; `changes` go into its run or settings, `sets` are the values of every set."""
    sets = changes.pop("sets", {name: {} for name in SETS})
    trainer = METHODS[method].weights if method in METHODS else method
    run = {
        "task": task, "options": {}, "grid": [100, 100], "method": trainer, "preset": "published",
        "seed": seed,
        "steps": 20000, "trained": 20000, "parameters": 5,
    }  # fmt: skip
    settings = {
        "method": method, "samples": 1225, "reference": 1225, "steps": 100, "seed": 0, "floor_repeats": 3,
        "batch": 32,
        "device": "cuda:0", "bounds": None,
    }  # fmt: skip
    about = {
        "time": "2026-01-01T00:00:00+00:00", "command": "sapc evaluate", "sapc": "0.1.0", "torch": "2.13.0",
        "python": "3.12", "system": "Linux", "device": "NVIDIA H200", "cpus": 16,
    }  # fmt: skip
    for name, value in changes.items():
        place = next((p for p in (run, settings, about) if name in p), None)
        assert place is not None, f"{name} is no part of scores"
        place[name] = value
    if "steps" in changes:  # of the training, and that is finished
        run["trained"] = changes["steps"]
    return {
        "format": "sapc-scores-1",
        "run": run,
        "settings": settings,
        "environment": about,
        "sets": {name: one_set(**values) for name, values in sets.items()},
    }


def one_set(floor: dict[str, list[float]] | None = None, **values: Any) -> dict[str, Any]:
    """What is found on a test set."""
    cost = {"evaluations": 100, "seconds_per_sample": 0.5, "peak_memory": 2**30}
    metrics = {"mmse": 1.0, "smse": 1.0, "w2": 1.0, "ce_local": 1.0, "ce_global": 1.0}
    return {
        "metrics": metrics | {k: v for k, v in values.items() if k not in cost},
        "floor": floor or {},
        "worst_residual": {"local": 0.0, "balance": 0.0},
        **(cost | {k: v for k, v in values.items() if k in cost}),
    }


def one_skill(**metrics: float) -> dict[str, Any]:
    """Skill per condition of three members at three times, in the form of its file."""
    values = {
        "crps": 0.4, "energy_score": 0.5, "rmse": 0.6, "ensemble_rmse": 0.7, "spread": 0.6, "spread_skill": 1.1,
        "coverage_50": 0.45, "coverage_90": 0.85, "climatology_crps": 0.8, "climatology_energy_score": 0.9,
        "climatology_rmse": 1.0, "persistence_rmse": 1.2, "skill_score": 0.5, "crps_over_climatology": -0.4,
        "mse_over_climatology": -0.6, "mse_over_persistence": -1.0,
    }  # fmt: skip
    values |= metrics
    return {
        "conditions": 8, "members": 3, "points": 90, "reference": 100, "units": "fields", "method": "sapc",
        "sampler": "multistep", "steps": 20, "seed": 0, "metrics": values,
        "errors": dict.fromkeys(values, 0.05), "each": {"crps": [0.4] * 8},
        "ranks": [0.3, 0.2, 0.2, 0.3], "rank_errors": [0.01] * 4, "times": [0.1, 0.2, 0.3],
        "by_time": {
            "rmse": [0.1, 0.5, 0.9], "crps": [0.1, 0.3, 0.5], "climatology_rmse": [1.0, 1.0, 1.0],
            "climatology_crps": [0.8, 0.8, 0.8], "persistence_rmse": [0.2, 1.2, 1.5],
        },
    }  # fmt: skip


def per_set(*values: float, metric: str = "mmse", **more: Any) -> dict[str, dict[str, Any]]:
    """Sets test0, test1 ... with one metric's values, and others common to all of them."""
    return {f"test{i}": {metric: value, **more} for i, value in enumerate(values)}


def write(folder: Path, *contents: dict[str, Any]) -> list[Path]:
    """Loose files of scores."""
    folder.mkdir(exist_ok=True)
    paths = []
    for content in contents:
        paths.append(folder / f"{len(list(folder.iterdir())):03d}.json")
        paths[-1].write_text(json.dumps(content))
    return paths


def collect_by_hand(*contents: dict[str, Any], **more: Any) -> Collection:
    """What would be found, without files."""
    files = [
        ScoresFile(Path(f"{i}.json"), Scores.from_dict(copy.deepcopy(c)), **more)
        for i, c in enumerate(contents)
    ]
    return Collection(files)
