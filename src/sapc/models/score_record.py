"""What scores must hold, wherever they come from: a file in a run folder, a stranger's file, or a caller."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import SapcError

FORMAT = "sapc-scores-1"
Kinds = Mapping[str, tuple[type, ...]]
_WORD, _WHOLE, _NUMBER, _LIST, _RECORD = (str,), (int,), (int, float), (list,), (dict,)
_RUN: Kinds = {
    "task": _WORD,
    "method": _WORD,
    "preset": _WORD,
    "seed": _WHOLE,
    "steps": _WHOLE,
    "trained": _WHOLE,
    "grid": _LIST,
    "options": _RECORD,
}
_SETTINGS: Kinds = {"method": _WORD, "samples": _WHOLE, "reference": _WHOLE, "steps": _WHOLE}
_SET: Kinds = {"metrics": _RECORD, "floor": _RECORD, "evaluations": _WHOLE, "seconds_per_sample": _NUMBER}
_METRICS: Kinds = dict.fromkeys(("mmse", "smse", "w2", "ce_local", "ce_global"), _NUMBER)


def check_scores(scores: Mapping[str, Any]) -> None:
    """Refuse scores that lack something, or hold something that is not a finite number where there must be one."""
    _holds(scores.get("run"), _RUN, "run")
    _holds(scores.get("settings"), _SETTINGS, "settings")
    if not 0 <= scores["run"]["seed"] < 2**63:
        raise SapcError(f"has the seed {scores['run']['seed']!r:.40}, which is none")
    sets = scores.get("sets")
    if not isinstance(sets, dict) or not sets:
        raise SapcError("has no test sets")
    named = [scores["run"]["task"], scores["settings"]["method"], *sets]
    for name, about in sets.items():
        _holds(about, _SET, name)
        _holds(about["metrics"], _METRICS, f"metrics of {name}")
        for metric, value in (
            *about["metrics"].items(),
            ("seconds_per_sample", about["seconds_per_sample"]),
            ("peak_memory", about.get("peak_memory", 0)),
        ):
            _finite(value, f"{metric} of {name}")
        named += [*about["metrics"], *about["floor"]]
        for metric, values in about["floor"].items():
            if not isinstance(values, list):
                raise SapcError(f"the floor of {metric} of {name} is {values!r:.40}, not a list of numbers")
            for value in values:
                _finite(value, f"floor of {metric} of {name}")
    if "mean" in scores:
        _check_mean(scores["mean"])
    if wrong := [name for name in named if not name or not name.isprintable()]:
        raise SapcError(f"has {wrong[0]!r:.40} for a name")


def _check_mean(mean: Any) -> None:
    """The means over all sets are numbers too."""
    _holds(mean, {"metrics": _RECORD, "floor": _RECORD}, "mean")
    _holds(mean["metrics"], _METRICS, "means")
    for part in ("metrics", "floor", "worst_residual"):
        values = mean.get(part, {})
        if not isinstance(values, dict):
            raise SapcError(f"has {values!r:.40} for the mean {part}, not numbers by name")
        for name, value in values.items():
            _finite(value, f"mean {part} {name}")


def _holds(data: Any, kinds: Kinds, where: str) -> None:
    if not isinstance(data, dict):
        raise SapcError(f"has no {where}")
    for name, kind in kinds.items():
        if name not in data:
            raise SapcError(f"has no {name} in its {where}")
        if not isinstance(data[name], kind) or isinstance(data[name], bool):
            raise SapcError(f"has {data[name]!r:.40} for {name} in its {where}")


def _finite(value: Any, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SapcError(f"has {value!r:.40} for the {what}, not a number")
    try:
        finite = math.isfinite(value)
    except OverflowError:  # a whole number beyond floats
        finite = False
    if not finite:
        raise SapcError(f"has {value!s:.40} for the {what}, not a finite number")
