"""The data of a report: results and their means, and the names and the order of tasks and methods."""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...evaluation.metrics import DISTRIBUTION
from ...methods import EXTENSION_LABELS, find_method, is_user_defined, method_names, paper
from .. import results
from .format import FAILED, MISSING, NO_FFM, NO_WEIGHTS, NOT_RECORDED, NOTHING, compact

# Characters of a short label.
LABEL_WIDTH = 28


@dataclass(frozen=True)
class ReportData:
    """Collected results, with rows, means and floors computed once.

    Attributes:
        collection: What was collected.
    """

    collection: results.Collection

    @cached_property
    def rows(self) -> list[results.Row]:
        """Every number that counts."""
        return results.rows(self.collection)

    @cached_property
    def means(self) -> dict[tuple[str, str, str], results.Summary]:
        """Means by (task, method, metric)."""
        return results.summary(self.rows)

    @cached_property
    def floors(self) -> dict[tuple[str, str, int], results.Summary]:
        """Sampling floors by (task, metric, number of samples)."""
        return results.floors(self.collection)

    @property
    def tasks(self) -> list[str]:
        """Tasks with scores or problems, in the paper's order."""
        return order_tasks(self.collection.tasks)

    @property
    def methods(self) -> list[str]:
        """Methods with scores."""
        return list(dict.fromkeys(s.method for s in self.collection.files))

    def select_requested(self, methods: Sequence[str]) -> list[str]:
        """Select methods that studies ask for or that have scores; all of them without a study."""
        requested = (
            {*self.collection.study_methods, *self.methods} if self.collection.study_methods else methods
        )
        return [m for m in methods if m in requested]

    def sample_count(self, task: str, method: str) -> int:
        """Return the number of samples per test set; 0 without scores."""
        return max((s.samples for s in self.collection.of(task, method)), default=0)

    def absence(self, task: str, method: str, metric: str) -> str:
        """Return what stands in place of a number."""
        files = self.collection.of(task, method)
        if not files:
            failure = "failed", task, method
            problems = self.collection.problems
            return FAILED if any((p.kind, p.task, p.method) == failure for p in problems) else MISSING
        if any(metric in scores.metrics for s in files for scores in s.sets.values()):
            return NOT_RECORDED
        return {"fpd": NO_WEIGHTS, "ce": NO_FFM}.get(metric, NOT_RECORDED)

    def comparable_means(self, task: str, methods: Sequence[str], metric: str) -> dict[str, float]:
        """Return means that compare: those of the largest number of samples and of all test sets."""
        means = {m: s for m in methods if (s := self.means.get((task, m, metric)))}
        number = max((self.sample_count(task, m) for m in means), default=0)
        means = {m: s for m, s in means.items() if self.sample_count(task, m) == number}
        sets = max((s.sets for s in means.values()), key=len, default=())
        return {m: s.mean for m, s in means.items() if s.sets == sets}

    def floor_text(self, task: str, metric: str, methods: Sequence[str]) -> str:
        """Return the floor for every number of samples, the largest first."""
        numbers = sorted({self.sample_count(task, m) for m in methods} - {0}, reverse=True)
        floors = {n: floor for n in numbers if (floor := self.floors.get((task, metric, n)))}
        if not floors:
            return NOT_RECORDED if numbers and metric in DISTRIBUTION else NOTHING
        texts = {n: compact(floor.mean, floor.error) for n, floor in floors.items()}
        return "; ".join(text + (f" (n={n})" if n != numbers[0] else "") for n, text in texts.items())


# -- names and order --


def task_label(task: str) -> str:
    """Return the paper's name of a task, or its own."""
    return paper.TASK_LABELS.get(task, task)


def method_label(method: str) -> str:
    """Return the paper's name of a method, or the title of a user's own, or its name where it is unknown."""
    own = find_method(method) if is_user_defined(method) else None
    labels = paper.METHOD_LABELS | EXTENSION_LABELS
    return labels.get(method) or (own.title if own else method)


def short_label(method: str) -> str:
    """Return a method's name where room is short."""
    if method in paper.METHOD_LABELS:
        return method.removeprefix("sapc_").upper() if method.startswith("sapc_") else method_label(method)
    return textwrap.shorten(method_label(method), LABEL_WIDTH, placeholder=" …")


def order_tasks(tasks: Iterable[str]) -> list[str]:
    """Sort tasks as the paper has them; others come last."""
    order = paper.TASKS
    return sorted(dict.fromkeys(tasks), key=lambda name: order.index(name) if name in order else len(order))


def order_methods(methods: Iterable[str]) -> list[str]:
    """Sort methods: SAPC, its ablations, the others, those beyond the paper, the user's own, unknown ones."""
    order = method_names(variants=True)
    return sorted(set(methods), key=lambda name: (order.index(name) if name in order else len(order), name))


def file_name(task: str) -> str:
    """Return a task's name for file names: itself, or, where that is not safe, letters of it and a digest."""
    plain = re.sub(r"[^a-z0-9_]+", "_", task.lower())[:40]
    return task if plain == task else f"{plain}_{hashlib.sha256(task.encode()).hexdigest()[:8]}"
