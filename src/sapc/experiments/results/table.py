"""From scores to rows, from rows to means and errors, and the rows as a file, CSV or Parquet; numbers come back as they were."""

from __future__ import annotations

import csv
import json
import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..._files import first_line, replacing
from ...errors import SapcError
from ...evaluation import metrics
from .records import Collected, Row, Scored, Summary

COST = ("evaluations", "seconds_per_sample", "peak_memory", "training_seconds")
"""Metrics whose median counts: network evaluations per sample, seconds, bytes, seconds."""
DISTANCES = ("fpd", "frd")
COLUMNS = {"task": str, "method": str, "seed": int, "set": str, "metric": str, "value": float}


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


# -- files --


def write_rows(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Write the table, atomically; the kind of file is that of its suffix."""
    path = _check_suffix(path)
    records = [asdict(row) for row in rows]
    with replacing(path) as partial:
        if path.suffix == ".parquet":
            arrow, kinds = _pyarrow(), {int: "int64", float: "float64", str: "string"}
            schema = arrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
            arrow.parquet.write_table(arrow.Table.from_pylist(records, schema), partial)
            return
        with open(partial, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(records)


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """Read the table that `write_rows` wrote."""
    path = _check_suffix(path)
    if not path.is_file():
        raise SapcError(f"there is no file {path}; write one with `write_rows`")
    arrow = _pyarrow() if path.suffix == ".parquet" else None
    try:
        records = _read_csv(path) if arrow is None else arrow.parquet.read_table(path).to_pylist()
        return [Row(**{name: kind(record[name]) for name, kind in COLUMNS.items()}) for record in records]
    except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
        raise SapcError(
            f"{path} is not a table of results ({first_line(error)}); write one with `write_rows`"
        ) from error


def _read_csv(path: Path) -> list[dict[str, Any]]:
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if list(reader.fieldnames or ()) != list(COLUMNS):
            raise ValueError(f"its columns are not {', '.join(COLUMNS)}")
        return list(reader)


def _check_suffix(path: str | os.PathLike[str]) -> Path:
    if (path := Path(path)).suffix not in (".csv", ".parquet"):
        raise SapcError(f"{path} is neither CSV nor Parquet; give a name that ends in .csv or .parquet")
    return path


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise SapcError(
            "Parquet needs pyarrow; install it with: pip install 'sapc[report]', or use a name that ends in .csv"
        ) from error
    return pyarrow
