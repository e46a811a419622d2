"""The figures of a report, with their words: made from gathered material, each by itself, so that one that fails leaves the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from ..._files import first_line
from ...evaluation.moments import Moments
from . import curves, fields
from .drawing import Figure, file_name, label, rendered
from .material import Material
from .tradeoff import tradeoff

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def task_figures(material: Material) -> tuple[list[Figure], list[str]]:
    """All figures of a task that there is material for, and why others are not there."""
    made: list[Figure] = []
    notes = list(material.problems)
    for what, make in MAKERS.items():
        try:
            figure = make(material)
        except Exception as error:
            notes.append(f"no figure of {what}: {first_line(error)}")
            continue
        if isinstance(figure, Figure):
            made.append(figure)
        else:
            notes.append(f"no figure of {what}: {figure}")
    return made, notes


def tradeoff_figure(material: Material) -> Figure | str:
    """W2 against CE."""
    ours = material.points
    if not ours:
        return "it needs W2 and CE of at least one method, and CE is relative to the errors of FFM"
    best = min(ours, key=lambda name: ours[name].w2)
    words = f"Lowest W2: {label(best)}, {ours[best].w2:.2g}"
    words += f"; between draws of the solutions: {material.floor:.2g}." if material.floor else "."
    if few := [f"{label(name)} {n}" for name, n in material.fewer.items() if name in ours]:
        words += f" With fewer samples, so a higher floor: {', '.join(few)}."
    zero = [label(name) for name, point in ours.items() if not point.ce]
    words += f" CE of {', '.join(zero)} is zero and drawn left of all others." if zero else ""
    alt = (
        f"Scatter plot with logarithmic axes of W2 against constraint error for {_listed(ours)} on {material.title}; "
        f"the lowest W2 is {ours[best].w2:.2g}, of {label(best)}."
    )
    return _finished(
        "tradeoff", f"{material.title}: fidelity against constraints", words, alt, material, "svg",
        lambda: tradeoff(ours, material.printed, material.floor),
    )  # fmt: skip


def ensembles_figure(material: Material) -> Figure | str:
    """Moments of all methods."""
    if not material.sets:
        return "no fields that can be read lie beside the scores; evaluate the runs again"
    name = material.sets[0]
    solutions = material.solutions(name)
    panels = [fields.Shown(_floor_heading(material, name), solutions)]
    panels += [
        fields.Shown(_heading(material, m, name), _moments(material, m, name)) for m in material.methods
    ]
    missing = [label(method) for method in material.methods if _moments(material, method, name) is None]
    kind = (
        "frames in time from left to right"
        if solutions.mean.ndim == 3
        else "over time (across) and space (up)"
    )
    shown = _seeds(material.scores[m] for m in material.kept)
    words = (
        f"Pointwise mean and standard deviation of the solutions and of every method's samples on {name} ({shown}), {kind}. "
        "Within a row all panels have one colour scale, that of the solutions; values beyond it are clipped to its ends."
    )
    words += f" Missing: {', '.join(missing)}." if missing else ""
    alt = (
        f"Images of the mean and the standard deviation over {name} of {material.title}: first the solutions, then "
        f"{_listed(m for m in material.methods if label(m) not in missing)}."
    )
    return _finished(
        "ensembles", f"{material.title}: ensembles beside the solutions", words, alt, material, "png",
        lambda: fields.ensembles(panels, solutions, material.space),
    )  # fmt: skip


def trajectories_figure(material: Material) -> Figure | str:
    """Along the sampling runs."""
    name, found = material.trajectories()
    if not found:
        return "no sampling run was watched; evaluate with --trajectory"
    samples = sorted({one["samples"] for one in found.values()})
    shown, number = _seeds(material.watched[m] for m in found), " or ".join(map(str, samples))
    words = (
        f"Along sampling runs on {name} ({shown}), medians over {number} samples: residual of the endpoint that the network "
        "expects, before any projection; residual of the state; distance from the straight line between source and sample, "
        "relative to its length; and the kinetic energy of the path beyond that of the straight line."
    )
    if missing := [label(m) for m in material.methods if m not in found]:
        words += f" Not watched: {', '.join(missing)}."
    if curves.has_zero(list(found.values())):
        words += f" Residuals of zero are drawn at {curves.FLOOR:g}."
    alt = f"Three line plots over flow time from 1 to 0 and one plot of energies, on {material.title}, for {_listed(found)}."
    return _finished(
        "trajectories", f"{material.title}: along the sampling runs", words, alt, material, "svg",
        lambda: curves.trajectories(found),
    )  # fmt: skip


def examples_figure(material: Material) -> Figure | str:
    """One solution and one sample per test set."""
    if not material.kept:
        return "no fields that can be read lie beside the scores; evaluate the runs again"
    method = next(iter(material.kept))
    sets = dict(sorted(material.kept[method].sets.items()))
    words = (
        f"One solution of every test set, and one sample of {label(method)} for the same condition. "
        "Both are draws: they share the condition and the laws, not the parameters that vary within the set."
    )
    alt = (
        f"Images of a solution and of a sample of {label(method)} for {', '.join(sets)} of {material.title}."
    )
    return _finished(
        "examples", f"{material.title}: examples of every test set", words, alt, material, "png",
        lambda: fields.examples(sets, label(method), material.space),
    )  # fmt: skip


MAKERS: dict[str, Callable[[Material], Figure | str]] = {
    "fidelity against constraints": tradeoff_figure,
    "ensembles": ensembles_figure,
    "trajectories": trajectories_figure,
    "examples": examples_figure,
}


def _finished(
    name: str,
    title: str,
    caption: str,
    alt: str,
    material: Material,
    kind: Literal["svg", "png"],
    draw: Callable[[], Drawing],
) -> Figure:
    data, width, height = rendered(draw, kind)
    return Figure(
        f"{file_name(material.task)}-{name}", title, caption, alt, data, kind, width, height, material.task
    )


def _moments(material: Material, method: str, name: str) -> Moments | None:
    kept = material.kept.get(method)
    return kept.sets[name][0] if kept and name in kept.sets else None


def _heading(material: Material, method: str, name: str) -> str:
    """A method's name, and its W2 on the set that is shown."""
    if _moments(material, method, name) is None:
        return label(method)
    value = material.scores[method]["sets"].get(name, {}).get("metrics", {}).get("w2")
    few = material.fewer.get(method)
    return (
        label(method)
        if value is None
        else f"{label(method)}\n$W_2$ {value:.2g}{f' (n={few})' if few else ''}"
    )


def _floor_heading(material: Material, name: str) -> str:
    """Above the solutions stands what W2 is between two draws of them, for the largest number of samples."""
    floors = [
        (s["settings"]["samples"], s["sets"][name].get("floor", {}).get("w2"))
        for s in material.scores.values()
        if name in s["sets"]
    ]
    most = max(((n, values) for n, values in floors if values), key=lambda one: one[0], default=None)
    return "solutions" if most is None else f"solutions\nfloor of $W_2$ {fmean(most[1]):.2g}"


def _seeds(scores: Iterable[Mapping[str, Any]]) -> str:
    """Whose trainings are shown."""
    return "seed " + ", ".join(map(str, sorted({one["run"]["seed"] for one in scores})))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(label, names)) or "no method"
