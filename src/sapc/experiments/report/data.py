"""What a report is made of: everything that was collected, with its rows, means and floors computed once; and the names and the order of
tasks and methods.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...evaluation.metrics import DISTRIBUTION
from ...methods import find_method, is_user_defined, method_names, paper
from .. import results
from .format import FAILED, MISSING, NO_FFM, NO_WEIGHTS, NOT_RECORDED, NOTHING, compact

WIDEST = 28  # characters of a short label


@dataclass(frozen=True)
class ReportData:
    """What was found, as tables and figures ask for it."""

    collection: results.Collection

    @cached_property
    def rows(self) -> list[results.Row]:
        """Every number that counts."""
        return results.rows(self.collection)

    @cached_property
    def means(self) -> dict[tuple[str, str, str], results.Summary]:
        """Of every (task, method, metric)."""
        return results.summary(self.rows)

    @cached_property
    def floors(self) -> dict[tuple[str, str, int], results.Summary]:
        """Of every (task, metric, number of samples)."""
        return results.floors(self.collection)

    @property
    def tasks(self) -> list[str]:
        """Those that something is known about, in the paper's order."""
        return order_tasks(self.collection.tasks)

    @property
    def methods(self) -> list[str]:
        """Those with scores."""
        return list(dict.fromkeys(s.method for s in self.collection.files))

    def select_requested(self, methods: Sequence[str]) -> list[str]:
        """Select methods that studies ask for or that have scores; all of them where no study says what is asked for."""
        asked = {*self.collection.study_methods, *self.methods} if self.collection.study_methods else methods
        return [m for m in methods if m in asked]

    def samples(self, task: str, method: str) -> int:
        """Return the number per test set; 0 without scores."""
        return max((s.samples for s in self.collection.of(task, method)), default=0)

    def absence(self, task: str, method: str, metric: str) -> str:
        """Return what stands in place of a number."""
        scored = self.collection.of(task, method)
        if not scored:
            failed = (
                ("failed", task, method) == (p.kind, p.task, p.method) for p in self.collection.problems
            )
            return FAILED if any(failed) else MISSING
        if any(metric in about.metrics for s in scored for about in s.sets.values()):
            return NOT_RECORDED
        return {"fpd": NO_WEIGHTS, "ce": NO_FFM}.get(metric, NOT_RECORDED)

    def comparable(self, task: str, methods: Sequence[str], metric: str) -> dict[str, float]:
        """Return the means that can be compared: of the largest number of samples and all test sets."""
        found = {m: s for m in methods if (s := self.means.get((task, m, metric)))}
        most = max((self.samples(task, m) for m in found), default=0)
        equal = {m: s for m, s in found.items() if self.samples(task, m) == most}
        widest = max((s.sets for s in equal.values()), key=len, default=())
        return {m: s.mean for m, s in equal.items() if s.sets == widest}

    def floor_text(self, task: str, metric: str, methods: Sequence[str]) -> str:
        """Return the floor for every number of samples, the largest first."""
        numbers = sorted({self.samples(task, m) for m in methods} - {0}, reverse=True)
        found = {n: floor for n in numbers if (floor := self.floors.get((task, metric, n)))}
        if not found:
            return NOT_RECORDED if numbers and metric in DISTRIBUTION else NOTHING
        texts = {n: compact(floor.mean, floor.error) for n, floor in found.items()}
        return "; ".join(text + (f" (n={n})" if n != numbers[0] else "") for n, text in texts.items())


# -- names and order --


def task_label(task: str) -> str:
    """Return the paper's name of a task, or its own."""
    return paper.TASK_LABELS.get(task, task)


def method_label(method: str) -> str:
    """Return the paper's name of a method; of a user's own its title, or its name where its file is not loaded."""
    known = find_method(method) if is_user_defined(method) else None
    return paper.METHOD_LABELS.get(method) or (known.title if known else method)


def short_label(method: str) -> str:
    """Return a method's name where room is short."""
    if method in paper.METHOD_LABELS:
        return method.removeprefix("sapc_").upper() if method.startswith("sapc_") else method_label(method)
    return textwrap.shorten(method_label(method), WIDEST, placeholder=" …")


def order_tasks(tasks: Iterable[str]) -> list[str]:
    """Sort tasks as the paper has them; others come last."""
    known = paper.TASKS
    return sorted(dict.fromkeys(tasks), key=lambda name: known.index(name) if name in known else len(known))


def order_methods(methods: Iterable[str]) -> list[str]:
    """Sort methods: SAPC, its ablations, the others, the user's own; what is not known comes last."""
    known = method_names(variants=True)
    return sorted(set(methods), key=lambda name: (known.index(name) if name in known else len(known), name))


def file_name(task: str) -> str:
    """Return a task's name in those of its files: itself, or, where that is no safe name, letters of it and a digest."""
    plain = re.sub(r"[^a-z0-9_]+", "_", task.lower())[:40]
    return task if plain == task else f"{plain}_{hashlib.sha256(task.encode()).hexdigest()[:8]}"
