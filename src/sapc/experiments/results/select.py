"""Which scores belong together: one protocol per task, one way of sampling per method, one file per seed.

Groups of scores with the same value are compared by how many pairs (method, seed) they have; copies do not count twice. The largest group
stays. Of equally large ones it is that of the longer training, of more samples or steps, of more test sets, then the newer one.

A mean over seeds x test sets has to weigh all sets alike, so the scores of a method are of the same sets: those with which there are most
values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from ...methods import find_method
from .records import TRAINED, Problem, Scored

Value = Callable[[Scored], Any]
PROTOCOL: dict[str, Value] = {
    "grid": attrgetter("scores.run.grid"),
    "options": attrgetter("scores.run.options"),
    "preset": attrgetter("scores.run.preset"),
    "training steps": attrgetter("scores.run.steps"),
    "number of reference solutions": attrgetter("scores.settings.reference"),
}
"""What all scores of a task must share."""
SAMPLING: dict[str, Value] = {
    "number of sampling steps": attrgetter("scores.settings.steps"),
    "number of samples": attrgetter("samples"),
}
"""What all scores of one method must share; where its batch is one problem, also `BATCH`."""
BATCH: dict[str, Value] = {"batch, which is one problem,": attrgetter("scores.settings.batch")}


def select(found: Sequence[Scored]) -> tuple[list[Scored], list[Problem]]:
    """What counts, in the order it was found, and the rest as problems."""
    left: list[Problem] = []
    kept: list[Scored] = []
    for task in dict.fromkeys(s.task for s in found):
        alike = _largest([s for s in found if s.task == task], PROTOCOL, task, left)
        for name in TRAINED:
            known = [s for s in alike if s.training.get(name) is not None]
            value = {f"training's {name}": partial(_training, name)}
            fine = _largest(known, value, task, left) if known else []
            alike = [s for s in alike if s in fine or s not in known]
        for method in dict.fromkeys(s.method for s in alike):
            own, where = [s for s in alike if s.method == method], f"{method} on {task}"
            known_method = find_method(method)
            shared = SAMPLING | (BATCH if known_method is not None and known_method.joint else {})
            for what, get in shared.items():
                own = _largest(own, {what: get}, where, left)
            sets: dict[str, Value] = {"list of test sets": lambda s: sorted(s.sets)}
            kept += _largest(_one_per_seed(own, left), sets, where, left, _all_sets)
    return [s for s in found if s in kept], left


def _training(name: str, s: Scored) -> Any:
    return s.training[name]


def _largest(
    scored: Sequence[Scored],
    values: Mapping[str, Value],
    where: str,
    left: list[Problem],
    weigh: Callable[[Sequence[Scored]], Any] | None = None,
) -> list[Scored]:
    """The largest group of those alike in all these values; the others are told what they differ in."""
    groups: dict[tuple[str, ...], list[Scored]] = {}
    for s in scored:
        groups.setdefault(tuple(_plain(get(s)) for get in values.values()), []).append(s)
    best = max(groups.values(), key=weigh or (lambda group: _weight(group, values)))
    for s in (s for group in groups.values() if group is not best for s in group):
        pairs = ((what, get(s), get(best[0])) for what, get in values.items())
        what, own, usual = next(found for found in pairs if _plain(found[1]) != _plain(found[2]))
        why = f"its {what} is {own!r:.80}, that of the scores of {where} that count {usual!r:.80}"
        left.append(s.problem("left_out", why))
    return best


def _weight(group: Sequence[Scored], values: Mapping[str, Value]) -> tuple[Any, ...]:
    numbers = [get(group[0]) for get in values.values()]
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
        best, *others = sorted((s for s in scored if s.seed == seed), key=_complete, reverse=True)
        kept.append(best)
        why = f"{best.path} is as complete or more so, and counts"
        left += [s.problem("left_out", why) for s in others]
    return kept


def _complete(s: Scored) -> tuple[int, int, str, bool, str]:
    metrics = {name for about in s.sets.values() for name in about.metrics}
    return len(s.sets), len(metrics), s.time, any(about.floor for about in s.sets.values()), str(s.path)


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
