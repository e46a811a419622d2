"""What report tables are made of: what was found as tables ask for it, lines with their marks, cells for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...evaluation.metrics import DISTRIBUTION
from ...methods import find_method, is_own, paper
from .. import results
from .format import FAILED, MISSING, NO_FFM, NO_WEIGHTS, NOT_RECORDED, NOTHING, Table, compact

CONSTRAINTS = ("ce", "ce_local", "ce_global")
ROUNDING = 1e-12  # constraint errors below it are no merit of a method


@dataclass(frozen=True)
class Record:
    """One cell for a machine; `statistic` says whether `mean` is a mean or, of costs, a median; rank 1 is best."""

    table: str
    task: str
    metric: str
    method: str
    mean: float | None = None
    error: float | None = None
    n: int = 0
    floor: float | None = None
    paper_mean: float | None = None
    paper_error: float | None = None
    rank: int | None = None
    statistic: str = "mean"


@dataclass(frozen=True)
class ReportTable(Table):
    """A table with a name for its files, and its numbers."""

    name: str = ""
    records: tuple[Record, ...] = ()


def task_label(task: str) -> str:
    """As the paper calls it, or its own name."""
    return paper.TASK_LABELS.get(task, task)


def method_label(method: str) -> str:
    """As the paper calls it; of a user's own its title, or its name where its file is not loaded."""
    if method in paper.METHOD_LABELS:
        return paper.METHOD_LABELS[method]
    known = find_method(method) if is_own(method) else None
    return known.title if known else method


@dataclass(frozen=True)
class Ours:
    """What was found, as tables ask for it."""

    collected: results.Collected

    @cached_property
    def summaries(self) -> dict[tuple[str, str, str], results.Summary]:
        """Of every (task, method, metric)."""
        return results.summary(results.rows(self.collected))

    @cached_property
    def floors(self) -> dict[tuple[str, str, int], results.Summary]:
        """Of every (task, metric, number of samples)."""
        return results.floors(self.collected)

    @property
    def tasks(self) -> list[str]:
        """Those that something is known about, in the paper's order; all of the paper's if that is none."""
        known = self.collected.tasks
        return [t for t in paper.TASKS if t in known or not known] + [
            t for t in known if t not in paper.TASKS
        ]

    def wanted(self, methods: Sequence[str]) -> list[str]:
        """Of methods those that studies ask for or that have scores; all of them where no study says what is asked for."""
        asked = {*self.collected.asked, *self.methods}
        return [m for m in methods if m in asked] if self.collected.asked else list(methods)

    @property
    def methods(self) -> list[str]:
        """Those with scores."""
        return list(dict.fromkeys(s.method for s in self.collected.scored))

    def samples(self, task: str, method: str) -> int:
        """Per test set; 0 without scores."""
        return max((s.samples for s in self.collected.of(task, method)), default=0)

    def absent(self, task: str, method: str, metric: str) -> str:
        """What stands in place of a number."""
        scored = self.collected.of(task, method)
        if not scored:
            failed = any(
                (p.kind, p.task, p.method) == ("failed", task, method) for p in self.collected.problems
            )
            return FAILED if failed else MISSING
        there = any(metric in about["metrics"] for s in scored for about in s.sets.values())
        return {"fpd": NO_WEIGHTS, "ce": NO_FFM}.get(metric, NOT_RECORDED) if not there else NOT_RECORDED

    def rivals(self, task: str, methods: Sequence[str], metric: str) -> dict[str, float]:
        """The means that can be compared: of the largest number of samples and all test sets."""
        found = {m: s for m in methods if (s := self.summaries.get((task, m, metric)))}
        most = max((self.samples(task, m) for m in found), default=0)
        equal = {m: s for m, s in found.items() if self.samples(task, m) == most}
        widest = max((s.sets for s in equal.values()), key=len, default=())
        return {m: s.mean for m, s in equal.items() if s.sets == widest}

    def floor_text(self, task: str, metric: str, methods: Sequence[str]) -> str:
        """The floor for every number of samples, the largest first."""
        numbers = sorted({self.samples(task, m) for m in methods} - {0}, reverse=True)
        found = [(n, floor) for n in numbers if (floor := self.floors.get((task, metric, n)))]
        if not found:
            return NOT_RECORDED if numbers and metric in DISTRIBUTION else NOTHING
        return "; ".join(
            compact(floor.mean, floor.error) + (f" (n={n})" if n != numbers[0] else "") for n, floor in found
        )


@dataclass
class Lines:
    """Rows under way, with their marks."""

    columns: Sequence[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    bold: set[tuple[int, int]] = field(default_factory=set)
    underlined: set[tuple[int, int]] = field(default_factory=set)

    def add(
        self, heads: tuple[str, str, str], cells: Sequence[str], end: Sequence[str], order: Mapping[str, int]
    ) -> None:
        """One line; `order` holds the ranks of methods that have one."""
        for j, method in enumerate(self.columns):
            place = (len(self.rows), len(heads) + j)
            if order.get(method) == 1:
                self.bold.add(place)
            elif order.get(method) == 2:
                self.underlined.add(place)
        self.rows.append((*heads, *cells, *end))

    def table(
        self, name: str, title: str, end: Sequence[str], notes: Sequence[str], records: Sequence[Record]
    ) -> ReportTable:
        """The finished table; `end` are the columns after the methods."""
        labels = [method_label(m) for m in self.columns]
        return ReportTable(
            title, ("task", "metric", "whose", *labels, *end), self.rows, frozenset(self.bold), frozenset(self.underlined),
            3, tuple(notes), name, tuple(records),
        )  # fmt: skip


def ranks(values: Mapping[str, float], metric: str = "") -> dict[str, int]:
    """1 for the lowest, 2 for the next one, those alike that read alike; a single number has no rank."""
    shown = {name: _as_shown(value, metric) for name, value in values.items()}
    order = sorted(set(shown.values()))
    return {name: 1 + order.index(value) for name, value in shown.items()} if len(values) > 1 else {}


def _as_shown(value: float, metric: str) -> float:
    """To the digits that a cell has; constraint errors that are rounding are zero."""
    return 0.0 if metric in CONSTRAINTS and value < ROUNDING else float(f"{value:.1e}")
