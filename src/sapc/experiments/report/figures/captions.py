"""The figures of a task with their words, each made by itself, so that one that fails leaves the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import fmean
from typing import TYPE_CHECKING

from ...._files import first_line
from ....models.scores import Scores
from ..data import file_name, short_label
from . import fields, trajectories
from .data import FigureData
from .style import Figure, Kind, rendered
from .tradeoff import tradeoff

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

NO_FIELDS = "no fields that can be read lie beside the scores; evaluate the runs again"


def task_figures(data: FigureData) -> tuple[list[Figure], list[str]]:
    """Make all figures of a task that there are data for; return them, and why others are not there."""
    made: list[Figure] = []
    notes = list(data.problems)
    for what, make in MAKERS.items():
        try:
            figure = make(data)
        except Exception as error:
            figure = first_line(error)
        if isinstance(figure, Figure):
            made.append(figure)
        else:
            notes.append(f"no figure of {what}: {figure}")
    return made, notes


def tradeoff_figure(data: FigureData) -> Figure | str:
    """Draw W2 against CE."""
    ours = data.points
    if not ours:
        return "it needs W2 and CE of at least one method, and CE is relative to the errors of FFM"
    best = min(ours, key=lambda name: ours[name].w2)
    lowest = f"{ours[best].w2:.2g}"
    words = f"Lowest W2: {short_label(best)}, {lowest}"
    words += f"; between draws of the solutions: {data.floor:.2g}." if data.floor else "."
    if few := [f"{short_label(name)} {n}" for name, n in data.fewer.items() if name in ours]:
        words += f" With fewer samples, so a higher floor: {', '.join(few)}."
    if zero := [name for name, point in ours.items() if not point.ce]:
        words += f" CE of {_listed(zero)} is zero and drawn left of all others."
    alt = (
        f"Scatter plot with logarithmic axes of W2 against constraint error for {_listed(ours)} on {data.title}; "
        f"the lowest W2 is {lowest}, of {short_label(best)}."
    )
    draw = lambda: tradeoff(ours, data.printed, data.floor)
    return _finish(data, "tradeoff", "fidelity against constraints", (words, alt), "svg", draw)


def ensembles_figure(data: FigureData) -> Figure | str:
    """Draw the moments of all methods."""
    if not data.sets:
        return NO_FIELDS
    name = data.sets[0]
    solutions = data.solutions(name)
    panels = [fields.Shown(_floor_heading(data, name), solutions)]
    panels += [fields.Shown(_heading(data, m, name), data.moments(m, name)) for m in data.methods]
    shown = [m for m in data.methods if data.moments(m, name) is not None]
    missing = [m for m in data.methods if m not in shown]
    flat = "over time (across) and space (up)"
    kind = "frames in time from left to right" if solutions.mean.ndim == 3 else flat
    words = (
        f"Pointwise mean and standard deviation of the solutions and of every method's samples on {name} "
        f"({_seeds(data.scores[m] for m in data.kept)}), {kind}. "
        "Within a row all panels have one colour scale, that of the solutions; values beyond it are clipped to its ends."
    )
    words += f" Missing: {_listed(missing)}." if missing else ""
    alt = (
        f"Images of the mean and the standard deviation over {name} of {data.title}: first the solutions, then "
        f"{_listed(shown)}."
    )
    draw = lambda: fields.ensembles(panels, solutions, data.space)
    return _finish(data, "ensembles", "ensembles beside the solutions", (words, alt), "png", draw)


def trajectories_figure(data: FigureData) -> Figure | str:
    """Draw what happens along the sampling runs."""
    name, found = data.trajectories()
    if not found:
        return "no sampling run was watched; evaluate with --trajectory"
    number = " or ".join(map(str, sorted({one["samples"] for one in found.values()})))
    words = (
        f"Along sampling runs on {name} ({_seeds(data.watched[m] for m in found)}), medians over {number} samples: "
        "residual of the endpoint that the network "
        "expects, before any projection; residual of the state; distance from the straight line between source and sample, "
        "relative to its length; and the kinetic energy of the path beyond that of the straight line."
    )
    if missing := [m for m in data.methods if m not in found]:
        words += f" Not watched: {_listed(missing)}."
    if trajectories.has_zero(list(found.values())):
        words += f" Residuals of zero are drawn at {trajectories.FLOOR:g}."
    alt = f"Three line plots over flow time from 1 to 0 and one plot of energies, on {data.title}, for {_listed(found)}."
    draw = lambda: trajectories.trajectories(found)
    return _finish(data, "trajectories", "along the sampling runs", (words, alt), "svg", draw)


def examples_figure(data: FigureData) -> Figure | str:
    """Draw one solution and one sample per test set."""
    if not data.kept:
        return NO_FIELDS
    method = next(iter(data.kept))
    sets = dict(sorted(data.kept[method].sets.items()))
    whose = short_label(method)
    words = (
        f"One solution of every test set, and one sample of {whose} for the same condition. "
        "Both are draws: they share the condition and the laws, not the parameters that vary within the set."
    )
    alt = f"Images of a solution and of a sample of {whose} for {', '.join(sets)} of {data.title}."
    draw = lambda: fields.examples(sets, whose, data.space)
    return _finish(data, "examples", "examples of every test set", (words, alt), "png", draw)


MAKERS: dict[str, Callable[[FigureData], Figure | str]] = {
    "fidelity against constraints": tradeoff_figure,
    "ensembles": ensembles_figure,
    "trajectories": trajectories_figure,
    "examples": examples_figure,
}


def _finish(
    data: FigureData, name: str, title: str, words: tuple[str, str], kind: Kind, draw: Callable[[], Drawing]
) -> Figure:
    """Draw a figure; `words` are its caption and its alternative text."""
    image, width, height = rendered(draw, kind)
    file, title = f"{file_name(data.task)}-{name}", f"{data.title}: {title}"
    return Figure(file, title, *words, image, kind, width, height, data.task)


def _heading(data: FigureData, method: str, name: str) -> str:
    """Return a method's name, and its W2 on the set that is shown."""
    scores = data.scores.get(method)
    if data.moments(method, name) is None or scores is None or name not in scores.sets:
        return short_label(method)
    few = f" (n={data.fewer[method]})" if method in data.fewer else ""
    return f"{short_label(method)}\n$W_2$ {scores.sets[name].metrics['w2']:.2g}{few}"


def _floor_heading(data: FigureData, name: str) -> str:
    """Return what stands above the solutions: W2 between two draws of them, for the largest number of samples."""
    floors = {
        s.settings.samples: values
        for s in reversed(data.scores.values())
        if name in s.sets and (values := s.sets[name].floor.get("w2"))
    }
    return f"solutions\nfloor of $W_2$ {fmean(floors[max(floors)]):.2g}" if floors else "solutions"


def _seeds(scores: Iterable[Scores]) -> str:
    """Say whose trainings are shown."""
    return "seed " + ", ".join(map(str, sorted({one.run.seed for one in scores})))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(short_label, names)) or "no method"
