"""Which scores belong together: one protocol per task, one way of sampling per method, one file per seed.

Groups of scores with the same value are compared by how many pairs (method, seed) they have; copies do not count twice. The largest group
stays. Of equally large ones it is that of the longer training, of more samples or steps, of more test sets, then the newer one.

A mean over seeds x test sets has to weigh all sets alike, so the scores of a method are of the same sets: those with which there are most
values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from ...methods import find_method
from .records import Problem, Scored

TRAINED = (
    "backbone", "batch", "train", "validation", "lr", "lr_floor", "factor", "patience", "clip", "validate", "precision",
    "projector", "length", "schedule",
)  # fmt: skip
Value = Callable[[Scored], Any]


def select(found: Sequence[Scored]) -> tuple[list[Scored], list[Problem]]:
    """What counts, in the order it was found, and the rest as problems."""
    left: list[Problem] = []
    kept: list[Scored] = []
    for task in dict.fromkeys(s.task for s in found):
        alike = _of_one_protocol([s for s in found if s.task == task], left)
        for method in dict.fromkeys(s.method for s in alike):
            own = [s for s in alike if s.method == method]
            for what, value in _sampling(method):
                own = _largest(own, {what: value}, f"{method} on {task}", left)
            own = _one_per_seed(own, left)
            sets: dict[str, Value] = {"list of test sets": lambda s: sorted(s.sets)}
            kept += _largest(own, sets, f"{method} on {task}", left, _all_sets)
    return [s for s in found if any(s is k for k in kept)], left


def _of_one_protocol(scored: list[Scored], left: list[Problem]) -> list[Scored]:
    task = scored[0].task
    core: dict[str, Value] = {
        "grid": lambda s: s.scores.run.grid,
        "options": lambda s: s.scores.run.options,
        "preset": lambda s: s.scores.run.preset,
        "training steps": lambda s: s.scores.run.steps,
        "number of reference solutions": lambda s: s.scores.settings.reference,
    }
    scored = _largest(scored, core, task, left)
    for name in TRAINED:
        value = partial(_trained, name)
        known = [s for s in scored if value(s) is not None]
        fine = _largest(known, {f"training's {name}": value}, task, left) if known else []
        scored = [s for s in scored if value(s) is None or any(s is f for f in fine)]
    return scored


def _sampling(method: str) -> list[tuple[str, Value]]:
    """What all scores of one method must share."""
    names = [("number of sampling steps", "steps"), ("number of samples", "samples")]
    known = find_method(method)
    if known is not None and known.joint:
        names.append(("batch, which is one problem,", "batch"))
    return [(what, partial(_setting, name)) for what, name in names]


def _trained(name: str, s: Scored) -> Any:
    return s.training.get(name)


def _setting(name: str, s: Scored) -> Any:
    return getattr(s.scores.settings, name)


def _largest(
    scored: Sequence[Scored],
    values: dict[str, Value],
    where: str,
    left: list[Problem],
    weigh: Callable[[Sequence[Scored]], Any] | None = None,
) -> list[Scored]:
    """The largest group of those alike in all these values; the others are told what they differ in."""
    groups: dict[Hashable, list[Scored]] = {}
    for s in scored:
        groups.setdefault(
            json.dumps([v(s) for v in values.values()], sort_keys=True, default=str), []
        ).append(s)
    best = max(groups.values(), key=weigh or (lambda group: _weight(group, values)))
    for s in (s for group in groups.values() if group is not best for s in group):
        what, own, usual = next(
            (name, v(s), v(best[0])) for name, v in values.items() if _plain(v(s)) != _plain(v(best[0]))
        )
        why = f"its {what} is {own!r:.80}, that of the scores of {where} that count {usual!r:.80}"
        left.append(s.problem("left_out", why))
    return best


def _weight(group: Sequence[Scored], values: dict[str, Value]) -> tuple[Any, ...]:
    numbers = [v(group[0]) for v in values.values()]
    return (
        len({(s.method, s.seed) for s in group}),
        [n for n in numbers if isinstance(n, int | float)],
        sum(len(s.sets) for s in group),
        max(s.time for s in group),
    )


def _all_sets(group: Sequence[Scored]) -> tuple[Any, ...]:
    """Most values of seeds x test sets, then most sets."""
    return len(group) * len(group[0].sets), len(group[0].sets), max(s.time for s in group)


def _one_per_seed(scored: Sequence[Scored], left: list[Problem]) -> list[Scored]:
    """Of several scores of one seed the most complete, then the newest."""
    kept = []
    for seed in dict.fromkeys(s.seed for s in scored):
        same = sorted((s for s in scored if s.seed == seed), key=_complete, reverse=True)
        kept.append(same[0])
        why = f"{same[0].path} is as complete or more so, and counts"
        left += [s.problem("left_out", why) for s in same[1:]]
    return kept


def _complete(s: Scored) -> tuple[int, int, str, bool, str]:
    metrics = {name for about in s.sets.values() for name in about.metrics}
    return len(s.sets), len(metrics), s.time, any(about.floor for about in s.sets.values()), str(s.path)


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
