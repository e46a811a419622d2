"""Reading one file: JSON that may be anything, scores that may lack something."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import SapcError
from ..files import first_line, parse_json
from ..scores import FORMAT

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


class Foreign(SapcError):
    """A file of another kind."""


def read_any(path: Path) -> Any:
    """What a JSON file holds; whatever is wrong with it is said in one line."""
    if not path.is_file():
        raise SapcError("is not a file")
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise SapcError(f"cannot be read ({first_line(error)})") from error


def read_scores(path: Path) -> dict[str, Any]:
    """The scores in a file; `Foreign` if it holds something else, SapcError if something is wrong with them."""
    content = read_any(path)
    form = content.get("format") if isinstance(content, dict) else None
    if form != FORMAT:
        told = f"of format {form!r}" if form is not None else "without a format"
        raise Foreign(f"is not a file of scores ({FORMAT}), but JSON {told[:60]}")
    check(content)
    found: dict[str, Any] = content
    return found


def check(scores: Mapping[str, Any]) -> None:
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
    if wrong := [name for name in named if not name or not name.isprintable()]:
        raise SapcError(f"has {wrong[0]!r:.40} for a name")


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
