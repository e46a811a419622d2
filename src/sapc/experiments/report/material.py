"""What the figures of a task are made of, gathered from files of scores and the fields beside them.

Of every method one evaluation is shown, that of the lowest seed that has fields, or was watched; points and their errors are over all
seeds. What cannot be read, or is on another grid than the rest, is left out and told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..._files import first_line
from ...errors import SapcError
from ...evaluation.moments import Kept, Moments, beside, load_kept
from ...methods import paper
from ...tasks import get_task, task_names
from ..results import Collected, Scored, Summary, floors, rows, summary
from .drawing import in_order, label
from .fields import Space
from .tradeoff import Point


@dataclass
class Material:
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
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)
    watched: dict[str, dict[str, Any]] = field(default_factory=dict)
    points: dict[str, Point] = field(default_factory=dict)
    printed: dict[str, Point] = field(default_factory=dict)
    floor: float | None = None
    space: Space = field(default_factory=Space)
    problems: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """What the task is called."""
        return paper.TASK_LABELS.get(self.task, self.task)

    @property
    def fewer(self) -> dict[str, int]:
        """The number of samples of methods that have fewer than others."""
        numbers = {method: int(scores["settings"]["samples"]) for method, scores in self.scores.items()}
        return {method: n for method, n in numbers.items() if n < max(numbers.values())}

    @property
    def sets(self) -> list[str]:
        """Test sets that fields were kept of; first the one that most methods have."""
        return _most({name: kept.sets for name, kept in self.kept.items()})

    def solutions(self, name: str) -> Moments:
        """Of a test set; they are the same for all methods that were compared with as many."""
        return next(kept.sets[name][1] for kept in self.kept.values() if name in kept.sets)

    def trajectories(self) -> tuple[str, dict[str, dict[str, Any]]]:
        """The test set for which most methods were watched, and what was seen of each."""
        watched = {method: _trajectories(scores) for method, scores in self.watched.items()}
        sets = _most(watched)
        name = sets[0] if sets else ""
        return name, {method: found[name] for method, found in watched.items() if name in found}


@dataclass(frozen=True)
class Found:
    """What was collected, with means and floors over all of it."""

    collected: Collected
    means: Mapping[tuple[str, str, str], Summary]
    floors: Mapping[tuple[str, str, int], Summary]

    @classmethod
    def of(cls, collected: Collected) -> Found:
        """Everything that the figures of all tasks take from."""
        return cls(collected, summary(rows(collected)), floors(collected))

    @property
    def tasks(self) -> list[str]:
        """Those with scores or problems, in the usual order; what is not known comes last."""
        known = task_names()
        return sorted(self.collected.tasks, key=lambda t: (known.index(t) if t in known else len(known), t))

    def material(self, task: str) -> Material:
        """What the figures of a task are made of."""
        scored = self.collected.of(task)
        met = [s.method for s in scored] + [p.method for p in self.collected.problems if p.task == task]
        material = Material(task, in_order(filter(None, met)))
        for method in material.methods:
            _choose(material, method, self.collected.of(task, method))
        _same_grid(material)
        material.space = _space(material)
        material.points = dict(self._points(material))
        material.printed = self.printed(task)
        w2 = {n: s.mean for (where, metric, n), s in self.floors.items() if (where, metric) == (task, "w2")}
        material.floor = w2[max(w2)] if w2 else None
        return material

    @staticmethod
    def printed(task: str) -> dict[str, Point]:
        """The paper's values, of methods with both."""
        found: dict[str, Point] = {}
        for method in in_order((*paper.METHODS, *paper.ABLATION_METHODS)):
            for table in paper.TABLES:
                ce, w2 = (paper.printed(table, task, metric, method) for metric in ("ce", "w2"))
                if ce is not None and w2 is not None:
                    found.setdefault(method, Point(ce.mean, w2.mean))
        return found

    def _points(self, material: Material) -> Iterator[tuple[str, Point]]:
        for method in material.methods:
            wanted = ("ce", "w2", "seconds_per_sample")
            ce, w2, seconds = (self.means.get((material.task, method, metric)) for metric in wanted)
            if ce is not None and w2 is not None and w2.mean > 0:
                yield method, Point(ce.mean, w2.mean, ce.error, w2.error, seconds.median if seconds else None)


def _choose(material: Material, method: str, scored: list[Scored]) -> None:
    """The evaluation to show."""
    in_turn = sorted(scored, key=lambda s: s.seed)
    for one in in_turn:
        if _trajectories(one.scores):
            material.watched.setdefault(method, one.scores)
    for one in in_turn:
        material.scores.setdefault(method, one.scores)
        path = beside(one.path)
        if not path.exists():
            continue
        try:
            material.kept[method] = load_kept(path)
        except SapcError as error:
            material.problems.append(f"fields of {label(method)}, seed {one.seed}: {first_line(error)}")
            continue
        material.scores[method] = one.scores
        return
    if scored:
        why = "no fields that can be read lie beside its scores; evaluate it again"
        material.problems.append(f"{label(method)} is not among the pictures of fields: {why}")


def _trajectories(scores: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What was seen along the sampling runs, by test set."""
    return {name: about["trajectory"] for name, about in scores["sets"].items() if about.get("trajectory")}


def _same_grid(material: Material) -> None:
    """Keep the grid that most methods have."""
    shapes = {
        method: (*next(iter(kept.sets.values()))[1].mean.shape, kept.frames)
        for method, kept in material.kept.items()
        if kept.sets
    }
    if not shapes:
        material.kept.clear()
        return
    usual = Counter(shapes.values()).most_common(1)[0][0]
    for method in list(material.kept):
        if shapes.get(method) != usual:
            del material.kept[method]
            why = "its fields are on another grid than most"
            material.problems.append(f"{label(method)} is not among the pictures of fields: {why}")


def _space(material: Material) -> Space:
    """Where the fields live; of a task that this version does not know, points and frames are numbered."""
    if not material.kept:
        return Space()
    method, kept = next(iter(material.kept.items()))
    run = material.scores[method]["run"]
    try:
        grid = get_task(material.task, grid=run["grid"], **run["options"]).grid
    except SapcError:
        return Space(times=tuple(map(float, kept.frames or ())))
    if kept.frames is None:
        x, t = grid.axes
        return Space(extent=(t.start, t.stop, x.start, x.stop))
    return Space(times=tuple(float(grid.time.points[i]) for i in kept.frames))


def _most(found: Mapping[str, Iterable[str]]) -> list[str]:
    """Names that are in most of these first, the rest by name."""
    count = Counter(name for names in found.values() for name in names)
    return sorted(count, key=lambda name: (-count[name], name))
