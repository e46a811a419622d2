"""What is kept on disk and shared between methods: weights, floors, and the place for all of it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ...errors import SapcError

Scores = dict[str, Any]


def check_writable(out: Path) -> None:
    """Refuse a place where no folder can be made; nothing is created."""
    nearest = next(path for path in (out.absolute(), *out.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        why = "cannot be written to" if nearest.is_dir() else "is not a folder"
        raise SapcError(f"cannot write to {out}: {nearest} {why}; choose another --out")


def only(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Of some values those with these names."""
    return {name: value for name, value in values.items() if name in names}


def only_metrics(scores: Scores, names: Collection[str]) -> Scores:
    """The scores of a test set without metrics that are not asked for."""
    kept = {k: v for k, v in scores.items() if not k.endswith("_each") or k.removesuffix("_each") in names}
    return kept | {part: only(scores[part], names) for part in ("metrics", "floor")}


def floors_of(found: Mapping[str, Scores], names: Collection[str]) -> list[dict[str, Any]]:
    """The floor for every number of samples, the largest number first."""
    floors = []
    for number in sorted({s["settings"]["samples"] for s in found.values()}, reverse=True):
        such = [s for s in found.values() if s["settings"]["samples"] == number]
        scores = next((s for s in such if s["mean"]["floor"]), such[0])
        why = [s["floor_left_out"] for s in scores["sets"].values() if "floor_left_out" in s]
        floors.append(
            {
                "samples": number,
                "metrics": only(scores["mean"]["floor"], names),
                "left_out": why[0] if why else "",
            }
        )
    return floors
