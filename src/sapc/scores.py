"""Scores as they are kept: the file in a run folder, and the mean over its test sets."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .checkpoint import Folder, read_json, write_json
from .errors import SapcError

FORMAT = "sapc-scores-1"


def write_scores(folder: str | os.PathLike[str], result: dict[str, Any]) -> Path:
    """Write a result into its run folder and return the path: `scores.json`, or `scores-<method>.json` if another method sampled.

    A fuller result is not replaced: one of fewer sets, samples, steps or metrics goes beside it, into `scores-part.json`.
    """
    run, sampler = result["run"], result["settings"]["method"]
    if run["trained"] < run["steps"]:
        raise SapcError(
            f"the scores of an unfinished training (step {run['trained']} of {run['steps']}) are not kept in its folder; "
            f"finish it with `sapc train --resume {folder}`"
        )
    scores = Folder(folder).scores
    path = scores if sampler == run["method"] else scores.with_name(f"scores-{sampler}.json")
    if path.exists() and _fuller(path, result):
        path = path.with_name(f"{path.stem}-part.json")
    write_json(path, result)
    return path


def _fuller(path: Path, result: dict[str, Any]) -> bool:
    """Whether the scores at `path` say all that `result` says, and more; a trajectory counts where all else is equal."""
    try:
        there = read_json(path)
        sets, settings = set(there["sets"]), there["settings"]
        watched = [all("trajectory" in s for s in r["sets"].values()) for r in (there, result)]
        names = [set(r["mean"]["metrics"]) for r in (there, result)]
        pairs = [(settings[name], result["settings"][name]) for name in ("samples", "reference", "steps")]
    except (SapcError, KeyError, TypeError):  # not scores: nothing is lost
        return False
    new = set(result["sets"])
    if not (new <= sets and names[1] <= names[0] and all(old >= n for old, n in pairs)):
        return False
    return new < sets or names[1] < names[0] or any(old > n for old, n in pairs) or watched == [True, False]


def mean_of_sets(sets: list[dict[str, Any]]) -> dict[str, Any]:
    """What all sets have, averaged: the worst of residuals and memory, the mean of everything else."""

    def mean(values: Iterable[float]) -> float:
        listed = list(values)
        return math.fsum(listed) / len(listed)

    floors = [s["floor"] for s in sets if s["floor"]]
    return {
        "metrics": {name: mean(s["metrics"][name] for s in sets) for name in sets[0]["metrics"]},
        "floor": {name: mean(v for f in floors for v in f[name]) for name in (floors[0] if floors else ())},
        "worst_residual": {
            name: max(s["worst_residual"][name] for s in sets) for name in sets[0]["worst_residual"]
        },
        "evaluations": sets[0]["evaluations"],
        "seconds_per_sample": mean(s["seconds_per_sample"] for s in sets),
        "peak_memory": max(s["peak_memory"] for s in sets),
    }
