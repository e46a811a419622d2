"""From scores to rows, from rows to means and errors; and rows as a file, CSV or Parquet."""

from __future__ import annotations

import csv
import json
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

from ..._files import atomic_write, first_line
from ..._old_names import rename_arguments
from ...errors import SapcError
from ...evaluation import metrics
from .records import Collection, ScoresFile

COST = ("evaluations", "seconds_per_sample", "peak_memory", "training_seconds")
"""Metrics whose median counts: network evaluations per sample, seconds, bytes, seconds."""
DISTANCES = ("fpd", "frd")
HELD_OUT = "held-out"
"""In place of a test set: the conditions of skill per condition."""


@dataclass(frozen=True)
class Row:
    """One number of the results.

    Attributes:
        task: Name of the task.
        method: Name of the method that sampled.
        seed: Seed of the training.
        set: The test set, empty where the number belongs to a training, `held-out` of skill per condition.
        metric: Name of the metric.
        value: The number.
    """

    task: str
    method: str
    seed: int
    set: str
    metric: str
    value: float


COLUMNS = get_type_hints(Row)


@dataclass(frozen=True)
class Summary:
    """Mean, standard error and median of some values.

    Attributes:
        mean: Mean.
        error: Standard error, None of a single value.
        n: Number of values.
        seeds: Seeds of the trainings that the values are of.
        sets: Test sets that the values are of.
        median: Median.
    """

    mean: float
    error: float | None
    n: int
    seeds: tuple[int, ...]
    sets: tuple[str, ...]
    median: float

    @classmethod
    def of(cls, values: Sequence[float], seeds: Iterable[int], sets: Iterable[str]) -> Summary:
        """Summarize values of these seeds and sets."""
        n = len(values)
        error = statistics.stdev(values) / n**0.5 if n > 1 else None
        origin = tuple(sorted(set(seeds))), tuple(sorted(set(sets) - {""}))
        return cls(statistics.mean(values), error, n, *origin, statistics.median(values))


@rename_arguments(collected="collection")
def rows(collection: Collection) -> list[Row]:
    """List every number that counts.

    Args:
        collection: Collected scores.

    Returns:
        The numbers. Costs are those of a task's most frequent device, FPD and FRD those by its most frequent
        encoder.
    """
    table = []
    for task, basis in _bases(collection).items():
        for s in collection.of(task):
            table += [Row(task, s.method, s.seed, *cell) for cell in basis.cells(s)]
    return table


@rename_arguments(collected="collection")
def notes(collection: Collection) -> list[str]:
    """Say what the rows do not hold, and why, and what they hold unexpectedly.

    Args:
        collection: Collected scores.

    Returns:
        One sentence each.
    """
    texts = []
    if names := collection.unlisted_files:
        listed = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
        place = "are in a study's folder, but not in its list, and count"
        texts.append(f"{len(names)} of the scores {place}: {listed}")
    for task, basis in _bases(collection).items():
        if isinstance(basis.ffm_errors, str):
            texts.append(f"no CE for {task}: {basis.ffm_errors}")
        if len(basis.devices) > 1:
            listed = ", ".join(basis.devices)
            texts.append(f"{task} was sampled on {listed}: cost is that on {_commonest(basis.devices)} only")
        texts += [
            f"{name} of {task} was made by several encoders: only the most frequent one counts"
            for name, encoders in basis.encoders.items()
            if len(encoders) > 1
        ]
    return texts


# -- what may be compared --


class _Basis:
    """What the numbers of a task are compared by.

    Attributes:
        devices: How many scores were sampled on every device.
        training_devices: How many were trained on every device.
        encoders: How many have each distance by every encoder.
        ffm_errors: FFM's mean errors over all of its seeds and sets, or why there are none to divide by.
    """

    def __init__(self, files: Sequence[ScoresFile]) -> None:
        self.devices = Counter(s.device for s in files)
        self.training_devices = Counter(s.training_device for s in files if s.training_seconds is not None)
        self.encoders = {
            name: Counter(_encoder(s, name) for s in files if any(name in x.metrics for x in s.sets.values()))
            for name in DISTANCES
        }
        self.ffm_errors = _ffm_errors(files)

    def is_comparable(self, s: ScoresFile, metric: str) -> bool:
        """Return whether a distance was made by the most frequent encoder; other metrics need none."""
        return metric not in DISTANCES or _encoder(s, metric) == _commonest(self.encoders[metric])

    def cells(self, s: ScoresFile) -> Iterable[tuple[str, str, float]]:
        """Yield test set, metric and value of every number that counts."""
        for split, scores in s.sets.items():
            values = scores.metrics
            for name, value in values.items():
                if self.is_comparable(s, name):
                    yield split, name, float(value)
            if isinstance(self.ffm_errors, tuple):
                yield split, "ce", metrics.ce(values["ce_local"], values["ce_global"], *self.ffm_errors)
            yield split, "evaluations", float(scores.evaluations)
            if s.device == _commonest(self.devices):
                yield split, "seconds_per_sample", float(scores.seconds_per_sample)
                # A CPU's is that of all the process did, a training included.
                if s.is_on_gpu and scores.peak_memory:
                    yield split, "peak_memory", float(scores.peak_memory)
        for name, number in (s.scores.skill.metrics if s.scores.skill else {}).items():
            yield HELD_OUT, f"skill_{name}", float(number)
        if s.training_seconds is not None and s.training_device == _commonest(self.training_devices):
            yield "", "training_seconds", float(s.training_seconds)


def _bases(collection: Collection) -> dict[str, _Basis]:
    return {task: _Basis(collection.of(task)) for task in dict.fromkeys(s.task for s in collection.files)}


def _ffm_errors(files: Sequence[ScoresFile]) -> tuple[float, float] | str:
    values = [scores.metrics for s in files if s.method == "ffm" for scores in s.sets.values()]
    if not values:
        return "it divides by the errors of ffm, and there are no scores of ffm"
    local, global_ = (statistics.mean(float(m[name]) for m in values) for name in ("ce_local", "ce_global"))
    try:
        metrics.ce(0.0, 0.0, local, global_)
    except SapcError as error:
        return str(error)
    return local, global_


def _encoder(s: ScoresFile, name: str) -> str:
    """Return which weights made a distance."""
    return json.dumps(s.scores.settings.more.get(f"{name}_weights"), sort_keys=True)


def _commonest(values: Counter[str]) -> str:
    """Return the most frequent value; among equally frequent ones the first."""
    return values.most_common(1)[0][0] if values else ""


# -- together --


def summary(rows: Sequence[Row]) -> dict[tuple[str, str, str], Summary]:
    """Average over seeds x test sets.

    Args:
        rows: Numbers, as `rows` lists them.

    Returns:
        Mean, standard error and median by (task, method, metric).
    """
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.task, row.method, row.metric), []).append(row)
    return {
        key: Summary.of([row.value for row in group], (row.seed for row in group), (row.set for row in group))
        for key, group in groups.items()
    }


@rename_arguments(collected="collection")
def floors(collection: Collection) -> dict[tuple[str, str, int], Summary]:
    """Average the sampling floors over test sets and repeats.

    A floor depends on neither method nor seed, and a longer list of repeats begins with the shorter one: of
    every set the longest list counts.

    Args:
        collection: Collected scores.

    Returns:
        The sampling floor by (task, metric, number of samples).
    """
    longest: dict[tuple[str, str, int], dict[str, list[float]]] = {}
    bases = _bases(collection)
    for s in collection.files:
        for split, scores in s.sets.items():
            for name, values in scores.floor.items():
                if bases[s.task].is_comparable(s, name):
                    lists = longest.setdefault((s.task, name, s.samples), {})
                    if len(values) > len(lists.get(split, ())):
                        lists[split] = [float(value) for value in values]
    return {
        key: Summary.of([value for values in lists.values() for value in values], (), lists)
        for key, lists in longest.items()
        if lists
    }


# -- files --


def write_rows(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Write the table, whole or not at all.

    Args:
        rows: Numbers, as `rows` lists them.
        path: The file; its suffix, .csv or .parquet, says which kind.
    """
    path = _check_suffix(path)
    records = [asdict(row) for row in rows]
    with atomic_write(path) as partial:
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
    """Read the table that `write_rows` wrote.

    Args:
        path: The file, CSV or Parquet.

    Returns:
        The numbers, as they were.

    Raises:
        SapcError: There is no such file, it is no such table, or pyarrow is missing.
    """
    path = _check_suffix(path)
    if not path.is_file():
        raise SapcError(f"there is no file {path}; write one with `write_rows`")
    arrow = _pyarrow() if path.suffix == ".parquet" else None
    try:
        records = _read_csv(path) if arrow is None else arrow.parquet.read_table(path).to_pylist()
        return [Row(**{name: kind(record[name]) for name, kind in COLUMNS.items()}) for record in records]
    except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
        reason = f"{path} is not a table of results ({first_line(error)})"
        raise SapcError(f"{reason}; write one with `write_rows`") from error


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
        advice = "install it with: pip install 'sapc[report]', or use a name that ends in .csv"
        raise SapcError(f"Parquet needs pyarrow; {advice}") from error
    return pyarrow
