"""The figure of skill per condition: where the truth lies among the members, and the error over physical time.

A rank histogram is a density over r / (m + 1): flat at 1 if truth and members have one law, a valley if the
members are too much alike, a hill if they spread too far. Bars are standard errors over conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ....models.skill import Skill
from ..data import short_label
from . import style
from .style import GREY, Drawing, line_style

RIVALS = {"climatology": (0, (5, 2)), "persistence": (0, (1.2, 1.4))}
"""Simpler forecasts, and the lines of their curves."""


def draw_skill(skills: Mapping[str, Skill]) -> Drawing:
    """Draw rank histograms, and, of fields with time, the error of the mean; by method."""
    has_times = any(len(skill.times) > 1 for skill in skills.values())
    figure = style.new_figure(8.0 if has_times else 4.4, 3.8, layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, 2 if has_times else 1))
    _draw_ranks(panels[0], skills)
    if has_times:
        _draw_errors(panels[1], skills)
    handles, names = panels[-1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(6, len(names)), frameon=False)
    return figure


def _draw_ranks(axes: Any, skills: Mapping[str, Skill]) -> None:
    axes.axhline(1.0, color=GREY, linewidth=0.8)
    for method, skill in skills.items():
        look, number = line_style(method), len(skill.ranks)
        edges, density = np.arange(number + 1) / number, number * np.array(skill.ranks)
        axes.stairs(density, edges, baseline=None, color=look.colour, linestyle=look.line,
                    linewidth=look.width, label=short_label(method))  # fmt: skip
        if skill.rank_errors:
            errors = number * np.array(skill.rank_errors)
            middle = (edges[1:] + edges[:-1]) / 2
            axes.errorbar(middle, density, errors, fmt="none", ecolor=look.colour, elinewidth=0.8)
    axes.set(xlim=(0, 1), xlabel="share of members below the truth", ylim=(0, None))
    axes.set_title("rank histogram: 1 if calibrated", loc="left")


def _draw_errors(axes: Any, skills: Mapping[str, Skill]) -> None:
    first = next(iter(skills.values()))
    for rival, line in RIVALS.items():
        if curve := first.by_time.get(f"{rival}_rmse"):
            axes.plot(first.times, curve, color=GREY, linewidth=1.6, linestyle=line, label=rival)
    for method, skill in skills.items():
        look = line_style(method)
        interval = max(1, len(skill.times) // 8)
        axes.plot(
            skill.times, skill.by_time["rmse"], color=look.colour, linestyle=look.line, linewidth=look.width,
            marker=look.marker, markersize=5, markevery=interval, label=short_label(method),
        )  # fmt: skip
    units = "deviations" if first.units == "deviations" else "units of the field"
    axes.set(xlabel="physical time", ylim=(0, None), ylabel=f"RMSE of the mean, {units}")
    axes.set_title("error over physical time", loc="left")
    axes.grid(True)
    axes.set_axisbelow(True)
