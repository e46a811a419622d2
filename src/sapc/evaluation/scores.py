"""Scores as they are kept: the file in a run folder, and the mean over its test sets."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .._files import read_json, sha256, write_json
from ..errors import SapcError
from ..training.run_folder import Folder
from .moments import Kept, beside


def write_scores(folder: str | os.PathLike[str], result: dict[str, Any], kept: Kept | None = None) -> Path:
    """Write a result into its run folder and return the path: `scores.json`, or `scores-<method>.json` if another method sampled.

    What is there is replaced by a result that says all of it, and more. One of fewer sets, samples, steps or metrics goes beside it, into
    `scores-part.json`. Where only the metrics differ, those there are taken over: the samples were the same. What was `kept` of the samples
    goes beside the scores, before them.
    """
    run, sampler = result["run"], result["settings"]["method"]
    if run["trained"] < run["steps"]:
        raise SapcError(
            f"the scores of an unfinished training (step {run['trained']} of {run['steps']}) are not kept in its folder; "
            f"finish it with `sapc train --resume {folder}`"
        )
    scores, weights = Folder(folder).scores, Folder(folder).weights
    if weights.is_file():
        result = {**result, "weights": sha256(weights)}
    path = scores if sampler == run["method"] else scores.with_name(f"scores-{sampler}.json")
    for place in (path, path.with_name(f"{path.stem}-part.json")):
        if (joint := _joined(place, result)) is not None:
            break
    if kept is not None:
        kept.save(beside(place))
    write_json(place, joint or result)
    return place


def _joined(path: Path, result: dict[str, Any]) -> dict[str, Any] | None:
    """The scores to write at `path`, with metrics that only those there have if all else is the same; None if something would be lost."""
    try:
        return _with_those(read_json(path), result) if path.exists() else result
    except (SapcError, KeyError, TypeError, AttributeError):  # what is there are no scores: nothing is lost
        return result


def _with_those(there: dict[str, Any], result: dict[str, Any]) -> dict[str, Any] | None:
    if there.get("weights") not in (None, result.get("weights")):  # of weights that are no longer there
        return result
    old, new = set(there["sets"]), set(result["sets"])
    missing = set(there["mean"]["metrics"]) - set(result["mean"]["metrics"])
    watched = [any("trajectory" in s for s in r["sets"].values()) for r in (there, result)]
    sizes = ("samples", "reference", "steps")
    fewer = any(there["settings"][name] > result["settings"][name] for name in sizes)
    if not old <= new or fewer or watched == [True, False]:
        return None
    if not missing:
        return result
    return _with(there, result, missing) if old == new and _alike(there, result) else None


def _alike(there: dict[str, Any], result: dict[str, Any]) -> bool:
    """Whether both are of the same samples."""
    a, b = ({k: v for k, v in r["settings"].items() if not k.endswith("_weights")} for r in (there, result))
    return a == b and all(there.get(name) == result.get(name) for name in ("format", "run", "weights"))


def _with(there: dict[str, Any], result: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """A result with some metrics of another one."""
    joint: dict[str, Any] = copy.deepcopy(result)
    for own, other in ((joint["sets"][k], there["sets"][k]) for k in joint["sets"]):
        for part in ("metrics", "floor"):
            own[part] |= {name: value for name, value in other[part].items() if name in names}
        own |= {f"{name}_each": other[f"{name}_each"] for name in names if f"{name}_each" in other}
    joint["settings"] |= {k: v for k, v in there["settings"].items() if k.removesuffix("_weights") in names}
    return joint | {"mean": mean_of_sets(list(joint["sets"].values()))}


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
