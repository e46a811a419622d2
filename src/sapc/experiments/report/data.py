"""What a report is made of: everything that was collected, with its rows, means and floors computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...evaluation.metrics import DISTRIBUTION
from .. import results
from .format import FAILED, MISSING, NO_FFM, NO_WEIGHTS, NOT_RECORDED, NOTHING, compact
from .labels import order_tasks


@dataclass(frozen=True)
class ReportData:
    """What was found, as tables and figures ask for it."""

    collected: results.Collected

    @cached_property
    def rows(self) -> list[results.Row]:
        """Every number that counts."""
        return results.rows(self.collected)

    @cached_property
    def means(self) -> dict[tuple[str, str, str], results.Summary]:
        """Of every (task, method, metric)."""
        return results.summary(self.rows)

    @cached_property
    def floors(self) -> dict[tuple[str, str, int], results.Summary]:
        """Of every (task, metric, number of samples)."""
        return results.floors(self.collected)

    @property
    def tasks(self) -> list[str]:
        """Those that something is known about, in the paper's order."""
        return order_tasks(self.collected.tasks)

    @property
    def methods(self) -> list[str]:
        """Those with scores."""
        return list(dict.fromkeys(s.method for s in self.collected.scored))

    def asked(self, methods: Sequence[str]) -> list[str]:
        """Select methods that studies ask for or that have scores; all of them where no study says what is asked for."""
        asked = {*self.collected.asked, *self.methods}
        return [m for m in methods if m in asked] if self.collected.asked else list(methods)

    def samples(self, task: str, method: str) -> int:
        """Return the number per test set; 0 without scores."""
        return max((s.samples for s in self.collected.of(task, method)), default=0)

    def absence(self, task: str, method: str, metric: str) -> str:
        """Return what stands in place of a number."""
        scored = self.collected.of(task, method)
        if not scored:
            failed = (("failed", task, method) == (p.kind, p.task, p.method) for p in self.collected.problems)
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
