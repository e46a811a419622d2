"""From scores to rows, and from rows to means and errors."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ...errors import SapcError
from ...evaluation import metrics
from .kinds import Collected, Row, Scored, Summary

COST = ("evaluations", "seconds_per_sample", "peak_memory", "training_seconds")
"""Metrics whose median counts: network evaluations per sample, seconds, bytes, seconds."""
DISTANCES = ("fpd", "frd")


def rows(collected: Collected) -> list[Row]:
    """Every number that counts. Costs are those of a task's most frequent device, FPD and FRD those by its most frequent encoder."""
    found = []
    for task in dict.fromkeys(s.task for s in collected.scored):
        scored = collected.of(task)
        errors = _ffm_errors(scored)
        for s in scored:
            found += [Row(task, s.method, s.seed, *cell) for cell in _cells(s, scored, errors)]
    return found


def notes(collected: Collected) -> list[str]:
    """What the rows do not hold, and why; and what they hold that might not be expected."""
    said = []
    if collected.unlisted:
        few = ", ".join(collected.unlisted[:3]) + (" and others" if len(collected.unlisted) > 3 else "")
        number = len(collected.unlisted)
        said.append(f"{number} of the scores are in a study's folder, but not in its list, and count: {few}")
    for task in dict.fromkeys(s.task for s in collected.scored):
        scored = collected.of(task)
        if not isinstance(_ffm_errors(scored), tuple):
            said.append(f"no CE for {task}: {_ffm_errors(scored)}")
        devices = list(dict.fromkeys(s.device for s in scored))
        if len(devices) > 1:
            said.append(f"{task} was sampled on {', '.join(devices)}: cost is that on {_device(scored)} only")
        said += [
            f"{name} of {task} was made by several encoders: only the most frequent one counts"
            for name in DISTANCES
            if len(set(map(_encoders(name), _with(scored, name)))) > 1
        ]
    return said


def _cells(
    s: Scored, scored: Sequence[Scored], errors: tuple[float, float] | str
) -> Iterable[tuple[str, str, float]]:
    left_out = {name for name in DISTANCES if not _counts(s, name, scored)}
    for split, about in s.sets.items():
        values = about.metrics
        for name, value in values.items():
            if name not in left_out:
                yield split, name, float(value)
        if isinstance(errors, tuple):
            yield split, "ce", metrics.ce(values["ce_local"], values["ce_global"], *errors)
        yield split, "evaluations", float(about.evaluations)
        if s.device == _device(scored):
            yield split, "seconds_per_sample", float(about.seconds_per_sample)
            # A CPU's is that of all the process did, a training included.
            if s.on_gpu and about.peak_memory:
                yield split, "peak_memory", float(about.peak_memory)
    trainings = [t for t in scored if t.training_seconds is not None]
    if s.training_seconds is not None and s.training_device == _commonest(trainings, _trained_on):
        yield "", "training_seconds", float(s.training_seconds)


def _ffm_errors(scored: Sequence[Scored]) -> tuple[float, float] | str:
    """FFM's mean errors over all of its seeds and sets, or why there are none to divide by."""
    found = [about.metrics for s in scored if s.method == "ffm" for about in s.sets.values()]
    if not found:
        return "it divides by the errors of ffm, and there are no scores of ffm"
    local, global_ = (statistics.mean(float(m[name]) for m in found) for name in ("ce_local", "ce_global"))
    try:
        metrics.ce(0.0, 0.0, local, global_)
    except SapcError as error:
        return str(error)
    return local, global_


# -- what may be compared --


def _commonest(scored: Sequence[Scored], value: Callable[[Scored], str]) -> str:
    """The value most scores have, the first one found of equally frequent ones."""
    return Counter(map(value, scored)).most_common(1)[0][0] if scored else ""


def _device(scored: Sequence[Scored]) -> str:
    return _commonest(scored, lambda s: s.device)


def _trained_on(s: Scored) -> str:
    return s.training_device


def _with(scored: Sequence[Scored], name: str) -> list[Scored]:
    return [s for s in scored if any(name in about.metrics for about in s.sets.values())]


def _encoders(name: str) -> Callable[[Scored], str]:
    """Which weights made a distance."""
    return lambda s: json.dumps(s.scores.settings.more.get(f"{name}_weights"), sort_keys=True)


def _counts(s: Scored, name: str, scored: Sequence[Scored]) -> bool:
    return _encoders(name)(s) == _commonest(_with(scored, name), _encoders(name))


# -- together --


def summary(rows: Sequence[Row]) -> dict[tuple[str, str, str], Summary]:
    """Mean, standard error and median of every (task, method, metric) over seeds x test sets."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.task, row.method, row.metric), []).append(row)
    return {
        key: _summary(
            [row.value for row in group],
            tuple(sorted({row.seed for row in group})),
            tuple(sorted({row.set for row in group} - {""})),
        )
        for key, group in groups.items()
    }


def floors(collected: Collected) -> dict[tuple[str, str, int], Summary]:
    """The sampling floor of every (task, metric, number of samples), over test sets and repeats.

    It depends on neither method nor seed, and a longer list of repeats begins with the shorter one: of every set the longest counts.
    """
    longest: dict[tuple[str, str, int], dict[str, list[float]]] = {}
    for s in collected.scored:
        for split, about in s.sets.items():
            for name, values in about.floor.items():
                if name in DISTANCES and not _counts(s, name, collected.of(s.task)):
                    continue
                there = longest.setdefault((s.task, name, s.samples), {})
                if len(values) > len(there.get(split, ())):
                    there[split] = [float(value) for value in values]
    return {
        key: _summary([value for values in sets.values() for value in values], (), tuple(sorted(sets)))
        for key, sets in longest.items()
        if sets
    }


def _summary(values: Sequence[float], seeds: tuple[int, ...], sets: tuple[str, ...]) -> Summary:
    n = len(values)
    error = statistics.stdev(values) / n**0.5 if n > 1 else None
    return Summary(statistics.mean(values), error, n, seeds, sets, statistics.median(values))
