"""What the figures of a task are made of, gathered from files of scores and the fields beside them.

Of every method one evaluation is shown, that of the lowest seed that has fields, or was watched; points and their errors are over all
seeds. What cannot be read, or is on another grid than the rest, is left out and told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...._files import first_line
from ....errors import SapcError
from ....evaluation.moments import Kept, Moments, load_kept
from ....methods import paper
from ....models.scores import Scores, fields_path
from ....tasks import get_task
from ...results import Scored
from ..data import ReportData, order_methods, short_label, task_label
from .fields import Space
from .tradeoff import Point


@dataclass
class FigureData:
    """Of one task.

    methods       those that the runs are about, in the order of the figures
    scores, kept  what is shown of a method; without fields it has no `kept`
    watched       the scores whose trajectory is shown
    points        W2, CE and time of a method, over all seeds and test sets; printed: the paper's
    floor         of W2
    problems      what is left out of the figures, and why
    """

    task: str
    methods: list[str]
    scores: dict[str, Scores] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)
    watched: dict[str, Scores] = field(default_factory=dict)
    points: dict[str, Point] = field(default_factory=dict)
    printed: dict[str, Point] = field(default_factory=dict)
    floor: float | None = None
    space: Space = field(default_factory=Space)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, data: ReportData, task: str) -> FigureData:
        """Gather what the figures of a task are made of."""
        problems = [p.method for p in data.collected.problems if p.task == task and p.method]
        made = cls(task, order_methods([*(s.method for s in data.collected.of(task)), *problems]))
        for method in made.methods:
            made._choose(method, sorted(data.collected.of(task, method), key=lambda s: s.seed))
        made._keep_one_grid()
        made.space = made._find_space()
        made.points = {m: point for m in made.methods if (point := _point(data, task, m))}
        made.printed = printed_points(task)
        w2 = {n: s.mean for (where, metric, n), s in data.floors.items() if (where, metric) == (task, "w2")}
        made.floor = w2[max(w2)] if w2 else None
        return made

    @property
    def title(self) -> str:
        """What the task is called."""
        return task_label(self.task)

    @property
    def fewer(self) -> dict[str, int]:
        """The number of samples of methods that have fewer than others."""
        numbers = {method: scores.settings.samples for method, scores in self.scores.items()}
        return {method: n for method, n in numbers.items() if n < max(numbers.values())}

    @property
    def sets(self) -> list[str]:
        """Test sets that fields were kept of; first the one that most methods have."""
        return _most({name: kept.sets for name, kept in self.kept.items()})

    def solutions(self, name: str) -> Moments:
        """Return those of a test set; they are the same for all methods that were compared with as many."""
        return next(kept.sets[name][1] for kept in self.kept.values() if name in kept.sets)

    def moments(self, method: str, name: str) -> Moments | None:
        """Return those of a method's samples on a test set; None where they were not kept."""
        kept = self.kept.get(method)
        return kept.sets[name][0] if kept and name in kept.sets else None

    def trajectories(self) -> tuple[str, dict[str, dict[str, Any]]]:
        """Return the test set for which most methods were watched, and what was seen of each."""
        watched = {method: scores.trajectories for method, scores in self.watched.items()}
        name = next(iter(_most(watched)), "")
        return name, {method: found[name] for method, found in watched.items() if name in found}

    def _choose(self, method: str, scored: list[Scored]) -> None:
        """Choose the evaluation to show."""
        for one in scored:
            if one.scores.trajectories:
                self.watched.setdefault(method, one.scores)
        for one in scored:
            self.scores.setdefault(method, one.scores)
            path = fields_path(one.path)
            if not path.exists():
                continue
            try:
                self.kept[method] = load_kept(path)
            except SapcError as error:
                self.problems.append(f"fields of {short_label(method)}, seed {one.seed}: {first_line(error)}")
                continue
            self.scores[method] = one.scores
            return
        if scored:
            self._leave_out(method, "no fields that can be read lie beside its scores; evaluate it again")

    def _leave_out(self, method: str, why: str) -> None:
        self.problems.append(f"{short_label(method)} is not among the pictures of fields: {why}")

    def _keep_one_grid(self) -> None:
        """Keep the grid that most methods have."""
        shapes = {
            method: (*next(iter(kept.sets.values()))[1].mean.shape, kept.frames)
            for method, kept in self.kept.items()
            if kept.sets
        }
        usual = Counter(shapes.values()).most_common(1)
        for method in list(self.kept):
            if not usual or shapes.get(method) != usual[0][0]:
                del self.kept[method]
                if usual:
                    self._leave_out(method, "its fields are on another grid than most")

    def _find_space(self) -> Space:
        """Return where the fields live; of a task that this version does not know, points and frames are numbered."""
        if not self.kept:
            return Space()
        method, kept = next(iter(self.kept.items()))
        run = self.scores[method].run
        try:
            grid = get_task(self.task, grid=run.grid, **run.options).grid
        except SapcError:
            return Space(times=tuple(map(float, kept.frames or ())))
        if kept.frames is None:
            x, t = grid.axes
            return Space(extent=(t.start, t.stop, x.start, x.stop))
        return Space(times=tuple(float(grid.time.points[i]) for i in kept.frames))


def printed_points(task: str) -> dict[str, Point]:
    """Return the paper's values, of methods with both."""
    found: dict[str, Point] = {}
    for method in order_methods((*paper.METHODS, *paper.ABLATION_METHODS)):
        for table in paper.TABLES:
            ce, w2 = (paper.printed(table, task, metric, method) for metric in ("ce", "w2"))
            if ce is not None and w2 is not None:
                found.setdefault(method, Point(ce.mean, w2.mean))
    return found


def _point(data: ReportData, task: str, method: str) -> Point | None:
    metrics = ("ce", "w2", "seconds_per_sample")
    ce, w2, seconds = (data.means.get((task, method, metric)) for metric in metrics)
    if ce is None or w2 is None or w2.mean <= 0:
        return None
    return Point(ce.mean, w2.mean, ce.error, w2.error, seconds.median if seconds else None)


def _most(found: Mapping[str, Iterable[str]]) -> list[str]:
    """Sort names: those that are in most of these first, the rest by name."""
    count = Counter(name for names in found.values() for name in names)
    return sorted(count, key=lambda name: (-count[name], name))
