"""From scores to rows, from rows to means and errors, and the rows as a file, CSV or Parquet; numbers come back as they were."""

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
from ...errors import SapcError
from ...evaluation import metrics
from .records import Collection, ScoresFile

COST = ("evaluations", "seconds_per_sample", "peak_memory", "training_seconds")
"""Metrics whose median counts: network evaluations per sample, seconds, bytes, seconds."""
DISTANCES = ("fpd", "frd")


@dataclass(frozen=True)
class Row:
    """One number; `set` is empty where it belongs to a training and not to a test set."""

    task: str
    method: str
    seed: int
    set: str
    metric: str
    value: float


COLUMNS = get_type_hints(Row)


@dataclass(frozen=True)
class Summary:
    """Mean, standard error (None of a single value) and median of n values, and what they are of."""

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
        about = tuple(sorted(set(seeds))), tuple(sorted(set(sets) - {""}))
        return cls(statistics.mean(values), error, n, *about, statistics.median(values))


def rows(collection: Collection) -> list[Row]:
    """Every number that counts. Costs are those of a task's most frequent device, FPD and FRD those by its most frequent encoder."""
    found = []
    for task, basis in _bases(collection).items():
        for s in collection.of(task):
            found += [Row(task, s.method, s.seed, *cell) for cell in basis.cells(s)]
    return found


def notes(collection: Collection) -> list[str]:
    """What the rows do not hold, and why; and what they hold that might not be expected."""
    said = []
    if collection.unlisted_files:
        few = ", ".join(collection.unlisted_files[:3]) + (
            " and others" if len(collection.unlisted_files) > 3 else ""
        )
        number = len(collection.unlisted_files)
        said.append(f"{number} of the scores are in a study's folder, but not in its list, and count: {few}")
    for task, basis in _bases(collection).items():
        if isinstance(basis.ffm_errors, str):
            said.append(f"no CE for {task}: {basis.ffm_errors}")
        if len(basis.devices) > 1:
            listed = ", ".join(basis.devices)
            said.append(f"{task} was sampled on {listed}: cost is that on {_commonest(basis.devices)} only")
        said += [
            f"{name} of {task} was made by several encoders: only the most frequent one counts"
            for name, encoders in basis.encoders.items()
            if len(encoders) > 1
        ]
    return said


# -- what may be compared --


class _Basis:
    """What the numbers of a task are compared by: the errors of FFM, one device, one encoder of each distance.

    ffm_errors    FFM's mean errors over all of its seeds and sets, or why there are none to divide by
    """

    def __init__(self, scored: Sequence[ScoresFile]) -> None:
        self.devices = Counter(s.device for s in scored)
        self.trained_on = Counter(s.training_device for s in scored if s.training_seconds is not None)
        self.encoders = {
            name: Counter(
                _encoder(s, name) for s in scored if any(name in x.metrics for x in s.sets.values())
            )
            for name in DISTANCES
        }
        self.ffm_errors = _ffm_errors(scored)

    def is_comparable(self, s: ScoresFile, metric: str) -> bool:
        """Whether a distance was made by the most frequent encoder; other metrics need none."""
        return metric not in DISTANCES or _encoder(s, metric) == _commonest(self.encoders[metric])

    def cells(self, s: ScoresFile) -> Iterable[tuple[str, str, float]]:
        """Test set, metric and value of every number that counts."""
        for split, about in s.sets.items():
            values = about.metrics
            for name, value in values.items():
                if self.is_comparable(s, name):
                    yield split, name, float(value)
            if isinstance(self.ffm_errors, tuple):
                yield split, "ce", metrics.ce(values["ce_local"], values["ce_global"], *self.ffm_errors)
            yield split, "evaluations", float(about.evaluations)
            if s.device == _commonest(self.devices):
                yield split, "seconds_per_sample", float(about.seconds_per_sample)
                # A CPU's is that of all the process did, a training included.
                if s.on_gpu and about.peak_memory:
                    yield split, "peak_memory", float(about.peak_memory)
        if s.training_seconds is not None and s.training_device == _commonest(self.trained_on):
            yield "", "training_seconds", float(s.training_seconds)


def _bases(collection: Collection) -> dict[str, _Basis]:
    return {task: _Basis(collection.of(task)) for task in dict.fromkeys(s.task for s in collection.files)}


def _ffm_errors(scored: Sequence[ScoresFile]) -> tuple[float, float] | str:
    found = [about.metrics for s in scored if s.method == "ffm" for about in s.sets.values()]
    if not found:
        return "it divides by the errors of ffm, and there are no scores of ffm"
    local, global_ = (statistics.mean(float(m[name]) for m in found) for name in ("ce_local", "ce_global"))
    try:
        metrics.ce(0.0, 0.0, local, global_)
    except SapcError as error:
        return str(error)
    return local, global_


def _encoder(s: ScoresFile, name: str) -> str:
    """Which weights made a distance."""
    return json.dumps(s.scores.settings.more.get(f"{name}_weights"), sort_keys=True)


def _commonest(values: Counter[str]) -> str:
    """The most frequent value, the first one found of equally frequent ones."""
    return values.most_common(1)[0][0] if values else ""


# -- together --


def summary(rows: Sequence[Row]) -> dict[tuple[str, str, str], Summary]:
    """Mean, standard error and median of every (task, method, metric) over seeds x test sets."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.task, row.method, row.metric), []).append(row)
    return {
        key: Summary.of([row.value for row in group], (row.seed for row in group), (row.set for row in group))
        for key, group in groups.items()
    }


def floors(collection: Collection) -> dict[tuple[str, str, int], Summary]:
    """The sampling floor of every (task, metric, number of samples), over test sets and repeats.

    It depends on neither method nor seed, and a longer list of repeats begins with the shorter one: of every set the longest counts.
    """
    longest: dict[tuple[str, str, int], dict[str, list[float]]] = {}
    bases = _bases(collection)
    for s in collection.files:
        for split, about in s.sets.items():
            for name, values in about.floor.items():
                if bases[s.task].is_comparable(s, name):
                    there = longest.setdefault((s.task, name, s.samples), {})
                    if len(values) > len(there.get(split, ())):
                        there[split] = [float(value) for value in values]
    return {
        key: Summary.of([value for values in sets.values() for value in values], (), sets)
        for key, sets in longest.items()
        if sets
    }


# -- files --


def write_rows(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Write the table, atomically; the kind of file is that of its suffix."""
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
