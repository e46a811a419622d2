"""The figures of a task: their data, from files of scores and the fields beside them, and their captions.

Of every method one evaluation is shown, that of the lowest seed that has fields, or a trajectory; points and
their errors are over all seeds. Fields that cannot be read, or are on another grid than most, are left out
with a note. Each figure is made by itself, so that one that fails leaves the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import Any

from ...._files import first_line
from ....errors import SapcError
from ....evaluation.moments import EnsembleStatistics, Moments
from ....methods import paper
from ....models.scores import Scores, fields_path
from ....models.skill import Skill
from ....tasks import get_task
from ...results import ScoresFile
from ..data import ReportData, file_name, order_methods, short_label, task_label
from . import fields, plots
from .fields import Space
from .plots import Point
from .skill import draw_skill
from .style import Drawing, Figure, Kind, render

NO_FIELDS = "no fields that can be read lie beside the scores; evaluate the runs again"
Sketch = tuple[str, str, Callable[[], Drawing]]
"""The caption of a figure, its alternative text, and the function that draws it."""


class FigureData:
    """The data of the figures of one task.

    Attributes:
        task: Name of the task.
        title: Label of the task.
        methods: Methods with scores or problems, in the order of the figures.
        scores: The evaluation that is shown, by method.
        statistics: Means and standard deviations of its fields, by method; some have none.
        trajectory_scores: The evaluation whose trajectory is shown, by method.
        problems: What is left out of the figures, and why.
        space: The extent of the fields, or the times of their frames.
        points: W2, CE and time over all seeds and test sets, by method.
        paper_points: The paper's values, by method.
        floor: Sampling floor of W2, for the largest number of samples.
    """

    def __init__(self, data: ReportData, task: str) -> None:
        self.task, self.title = task, task_label(task)
        self.scores: dict[str, Scores] = {}
        self.statistics: dict[str, EnsembleStatistics] = {}
        self.trajectory_scores: dict[str, Scores] = {}
        self.problems: list[str] = []
        others = [p.method for p in data.collection.problems if p.task == task and p.method]
        self.methods = order_methods([*(s.method for s in data.collection.of(task)), *others])
        for method in self.methods:
            self._choose(method, sorted(data.collection.of(task, method), key=lambda s: s.seed))
        self._keep_one_grid()
        self.space = self._find_space()
        self.points = {m: point for m in self.methods if (point := _point(data, task, m))}
        self.paper_points = paper_points(task)
        floors = data.floors.items()
        w2 = {n: s.mean for (name, metric, n), s in floors if (name, metric) == (task, "w2")}
        self.floor = w2[max(w2)] if w2 else None

    @property
    def small_samples(self) -> dict[str, int]:
        """Numbers of samples, of methods that have fewer than others."""
        numbers = {method: scores.settings.samples for method, scores in self.scores.items()}
        return {method: n for method, n in numbers.items() if n < max(numbers.values())}

    @property
    def sets(self) -> list[str]:
        """Test sets with statistics; first the one that most methods have."""
        return _sort_by_frequency({name: statistics.sets for name, statistics in self.statistics.items()})

    def solutions(self, name: str) -> Moments:
        """Return the moments of the solutions of a test set, which all methods share."""
        return next(
            statistics.sets[name][1] for statistics in self.statistics.values() if name in statistics.sets
        )

    def moments(self, method: str, name: str) -> Moments | None:
        """Return the moments of a method's samples on a test set, or None."""
        statistics = self.statistics.get(method)
        return statistics.sets[name][0] if statistics and name in statistics.sets else None

    def trajectories(self) -> tuple[str, dict[str, dict[str, Any]]]:
        """Return the test set for which most methods have trajectories, and these."""
        by_method = {method: scores.trajectories for method, scores in self.trajectory_scores.items()}
        name = next(iter(_sort_by_frequency(by_method)), "")
        return name, {method: sets[name] for method, sets in by_method.items() if name in sets}

    @property
    def skills(self) -> dict[str, Skill]:
        """Skill per condition of the evaluations that are shown, where it was measured."""
        return {m: scores.skill for m, scores in self.scores.items() if scores.skill is not None}

    def _choose(self, method: str, files: list[ScoresFile]) -> None:
        """Choose the evaluation to show."""
        for file in files:
            if file.scores.trajectories:
                self.trajectory_scores.setdefault(method, file.scores)
        for file in files:
            self.scores.setdefault(method, file.scores)
            path = fields_path(file.path)
            if not path.exists():
                continue
            try:
                self.statistics[method] = EnsembleStatistics.load(path)
            except SapcError as error:
                self.problems.append(
                    f"fields of {short_label(method)}, seed {file.seed}: {first_line(error)}"
                )
                continue
            self.scores[method] = file.scores
            return
        if files:
            self._leave_out(method, "no fields that can be read lie beside its scores; evaluate it again")

    def _leave_out(self, method: str, reason: str) -> None:
        self.problems.append(f"{short_label(method)} is not among the pictures of fields: {reason}")

    def _keep_one_grid(self) -> None:
        """Keep the grid that most methods have."""
        shapes = {
            method: (*next(iter(statistics.sets.values()))[1].mean.shape, statistics.frames)
            for method, statistics in self.statistics.items()
            if statistics.sets
        }
        usual = Counter(shapes.values()).most_common(1)
        for method in list(self.statistics):
            if not usual or shapes.get(method) != usual[0][0]:
                del self.statistics[method]
                if usual:
                    self._leave_out(method, "its fields are on another grid than most")

    def _find_space(self) -> Space:
        """Return extent or times of the fields; of an unknown task, points and frames are numbered."""
        if not self.statistics:
            return Space()
        method, statistics = next(iter(self.statistics.items()))
        run = self.scores[method].run
        try:
            grid = get_task(self.task, grid=run.grid, **run.options).grid
        except SapcError:
            return Space(times=tuple(map(float, statistics.frames or ())))
        if statistics.frames is None:
            x, t = grid.axes
            return Space(extent=(t.start, t.stop, x.start, x.stop))
        return Space(times=tuple(float(grid.time.points[i]) for i in statistics.frames))


def paper_points(task: str) -> dict[str, Point]:
    """Return the paper's values, of methods with CE and W2."""
    points: dict[str, Point] = {}
    for method in order_methods((*paper.METHODS, *paper.ABLATION_METHODS)):
        for table in paper.TABLES:
            ce, w2 = (paper.printed_mean(table, task, metric, method) for metric in ("ce", "w2"))
            if ce is not None and w2 is not None:
                points.setdefault(method, Point(ce.mean, w2.mean))
    return points


def _point(data: ReportData, task: str, method: str) -> Point | None:
    metrics = ("ce", "w2", "seconds_per_sample")
    ce, w2, seconds = (data.means.get((task, method, metric)) for metric in metrics)
    if ce is None or w2 is None or w2.mean <= 0:
        return None
    return Point(ce.mean, w2.mean, ce.error, w2.error, seconds.median if seconds else None)


def _sort_by_frequency(groups: Mapping[str, Iterable[str]]) -> list[str]:
    """Sort names: those in most groups first, then by name."""
    count = Counter(name for names in groups.values() for name in names)
    return sorted(count, key=lambda name: (-count[name], name))


# -- figures and their words --


def task_figures(data: FigureData) -> tuple[list[Figure], list[str]]:
    """Make all figures of a task that have data; return them, and why others are missing."""
    figures: list[Figure] = []
    notes = list(data.problems)
    for name, (subject, title, kind, sketch) in MAKERS.items():
        # Skill is measured where it is asked for; that there is none is no gap.
        if name == "skill" and not data.skills:
            continue
        try:
            caption, alt, draw = sketch(data)
            image, width, height = render(draw, kind)
        except Exception as error:
            notes.append(f"no figure of {subject}: {first_line(error)}")
            continue
        file, title = f"{file_name(data.task)}-{name}", f"{data.title}: {title}"
        figures.append(Figure(file, title, caption, alt, image, kind, width, height, data.task))
    return figures, notes


def _tradeoff(data: FigureData) -> Sketch:
    """Sketch W2 against CE."""
    ours = data.points
    if not ours:
        raise SapcError("it needs W2 and CE of at least one method, and CE is relative to the errors of FFM")
    best = min(ours, key=lambda name: ours[name].w2)
    lowest = f"{ours[best].w2:.2g}"
    words = f"Lowest W2: {short_label(best)}, {lowest}"
    words += f"; between draws of the solutions: {data.floor:.2g}." if data.floor else "."
    if small := [f"{short_label(name)} {n}" for name, n in data.small_samples.items() if name in ours]:
        words += f" With fewer samples, so a higher floor: {', '.join(small)}."
    if exact := [name for name, point in ours.items() if not point.ce]:
        words += f" CE of {_join_labels(exact)} is zero and drawn left of all others."
    alt = (
        f"Scatter plot with logarithmic axes of W2 against constraint error for {_join_labels(ours)} "
        f"on {data.title}; the lowest W2 is {lowest}, of {short_label(best)}."
    )
    return words, alt, lambda: plots.draw_tradeoff(ours, data.paper_points, data.floor)


def _ensembles(data: FigureData) -> Sketch:
    """Sketch the moments of all methods."""
    if not data.sets:
        raise SapcError(NO_FIELDS)
    name = data.sets[0]
    solutions = data.solutions(name)
    panels = [fields.Panel(_floor_heading(data, name), solutions)]
    panels += [fields.Panel(_heading(data, m, name), data.moments(m, name)) for m in data.methods]
    methods = [m for m in data.methods if data.moments(m, name) is not None]
    missing = [m for m in data.methods if m not in methods]
    plane = "over time (across) and space (up)"
    layout = "frames in time from left to right" if solutions.mean.ndim == 3 else plane
    words = (
        f"Pointwise mean and standard deviation of the solutions and of every method's samples on {name} "
        f"({_seeds(data.scores[m] for m in data.statistics)}), {layout}. "
        "Within a row all panels have one colour scale, that of the solutions; "
        "values beyond it are clipped to its ends."
    )
    words += f" Missing: {_join_labels(missing)}." if missing else ""
    alt = (
        f"Images of the mean and the standard deviation over {name} of {data.title}: "
        f"first the solutions, then {_join_labels(methods)}."
    )
    return words, alt, lambda: fields.draw_ensembles(panels, solutions, data.space)


def _trajectories(data: FigureData) -> Sketch:
    """Sketch what happens along the sampling runs."""
    name, trajectories = data.trajectories()
    if not trajectories:
        raise SapcError("no sampling run was watched; evaluate with --trajectory")
    number = " or ".join(map(str, sorted({t["samples"] for t in trajectories.values()})))
    seeds = _seeds(data.trajectory_scores[m] for m in trajectories)
    words = (
        f"Along sampling runs on {name} ({seeds}), medians over {number} samples: "
        "residual of the endpoint that the network expects, before any projection; residual of the state; "
        "distance from the straight line between source and sample, relative to its length; "
        "and the kinetic energy of the path beyond that of the straight line."
    )
    if missing := [m for m in data.methods if m not in trajectories]:
        words += f" Not watched: {_join_labels(missing)}."
    if plots.has_zero(list(trajectories.values())):
        words += f" Residuals of zero are drawn at {plots.FLOOR:g}."
    alt = (
        "Three line plots over flow time from 1 to 0 and one plot of energies, "
        f"on {data.title}, for {_join_labels(trajectories)}."
    )
    return words, alt, lambda: plots.draw_trajectories(trajectories)


def _examples(data: FigureData) -> Sketch:
    """Sketch one solution and one sample per test set."""
    if not data.statistics:
        raise SapcError(NO_FIELDS)
    method = next(iter(data.statistics))
    sets = dict(sorted(data.statistics[method].sets.items()))
    whose = short_label(method)
    words = (
        f"One solution of every test set, and one sample of {whose} for the same condition. "
        "Both are draws: they share the condition and the laws, not the parameters that vary within the set."
    )
    alt = f"Images of a solution and of a sample of {whose} for {', '.join(sets)} of {data.title}."
    return words, alt, lambda: fields.draw_examples(sets, whose, data.space)


def _skill(data: FigureData) -> Sketch:
    """Sketch rank histograms, and the error over physical time."""
    skills = data.skills
    sizes = dict.fromkeys(f"{s.members} samples for each of {s.conditions}" for s in skills.values())
    words = (
        f"Skill on held-out conditions ({_seeds(data.scores[m] for m in skills)}): {' or '.join(sizes)}. "
        "Where the truth lies among the samples of its condition, with standard errors over conditions: "
        "high ends mean too little spread, a high middle too much. "
    )
    if any(len(s.times) > 1 for s in skills.values()):
        words += "Error of the samples' mean, beside climatology and, where a frame is pinned, persistence. "
    verdicts = [f"{short_label(m)}: {text}." for m, s in skills.items() for text in s.verdicts]
    alt = f"Rank histograms and errors over time of {_join_labels(skills)} on {data.title}."
    return words + " ".join(verdicts), alt, lambda: draw_skill(skills)


FIDELITY = "fidelity against constraints"
MAKERS: dict[str, tuple[str, str, Kind, Callable[[FigureData], Sketch]]] = {
    "tradeoff": (FIDELITY, FIDELITY, "svg", _tradeoff),
    "ensembles": ("ensembles", "ensembles beside the solutions", "png", _ensembles),
    "trajectories": ("trajectories", "along the sampling runs", "svg", _trajectories),
    "skill": ("skill per condition", "skill per condition", "svg", _skill),
    "examples": ("examples", "examples of every test set", "png", _examples),
}
"""By the name of each figure in its file: subject, title, kind of file, and the function that sketches it."""


def _heading(data: FigureData, method: str, name: str) -> str:
    """Return a method's name, and its W2 on the set that is shown."""
    scores = data.scores.get(method)
    if data.moments(method, name) is None or scores is None or name not in scores.sets:
        return short_label(method)
    number = f" (n={data.small_samples[method]})" if method in data.small_samples else ""
    return f"{short_label(method)}\n$W_2$ {scores.sets[name].metrics['w2']:.2g}{number}"


def _floor_heading(data: FigureData, name: str) -> str:
    """Return the heading of the solutions: W2 between two draws of them, for most samples."""
    floors = {
        s.settings.samples: values
        for s in reversed(data.scores.values())
        if name in s.sets and (values := s.sets[name].floor.get("w2"))
    }
    return f"solutions\nfloor of $W_2$ {fmean(floors[max(floors)]):.2g}" if floors else "solutions"


def _seeds(scores: Iterable[Scores]) -> str:
    """List the seeds of the trainings that are shown."""
    return "seed " + ", ".join(map(str, sorted({s.run.seed for s in scores})))


def _join_labels(names: Iterable[str]) -> str:
    return ", ".join(map(short_label, names)) or "no method"
