"""Skill per condition on a terminal: a short table, a few lead times, and what samples are no better than."""

from __future__ import annotations

import math
import textwrap

from rich.table import Table

from ..models.skill import Estimate, Skill
from .app import make_table, out

ROWS = {
    "CRPS": ("crps", ""),
    "energy score": ("energy_score", ""),
    "RMSE of the mean": ("rmse", ""),
    "skill by CRPS": ("skill_score", "1"),
    "spread / skill": ("spread_skill", "1"),
    "coverage of 50 %": ("coverage_50", "0.5"),
    "coverage of 90 %": ("coverage_90", "0.9"),
    "PDE residual": ("pde_residual", ""),
}
"""Names and ideal values of the rows of a table."""
FORECASTS = {"samples": "", "climatology": "climatology_", "persistence": "persistence_"}
LEAD_TIMES = 5


def print_skill(skill: Skill, has_times: bool = True) -> None:
    """Print the tables and verdicts of a skill.

    Args:
        skill: The skill.
        has_times: Whether a few lead times are printed as well.
    """
    print(textwrap.fill(describe_skill(skill), 80))
    out.print(skill_table(skill))
    if has_times and len(skill.times) > 1:
        out.print(time_table(skill))
    for sentence in skill.verdicts:
        print(textwrap.fill(sentence, 80))


def describe_skill(skill: Skill) -> str:
    """Return what was measured, in one sentence."""
    units = "deviations of each channel" if skill.units == "deviations" else "the units of the fields"
    members = f"{skill.members} member{'s' if skill.members > 1 else ''}"
    return (
        f"skill per condition: {members} for each of {skill.conditions} held-out conditions, at {skill.points} "
        f"free points, in {units}; beside {skill.reference} training fields as climatology"
    )


def skill_table(skill: Skill) -> Table:
    """Return the scores beside those of climatology and persistence."""
    table = make_table(["per condition"], [*FORECASTS, "ideal"])
    for label, (name, ideal) in ROWS.items():
        estimates = [skill.estimate(prefix + name) for prefix in FORECASTS.values()]
        if any(estimates):
            truth = skill.metrics.get(f"truth_{name}")
            table.add_row(label, *map(_number, estimates), ideal if truth is None else f"{truth:.2g}")
    return table


def time_table(skill: Skill) -> Table:
    """Return the error of the mean at a few times from the first to the last."""
    last = len(skill.times) - 1
    frames = sorted({round(i * last / (LEAD_TIMES - 1)) for i in range(LEAD_TIMES)})
    table = make_table(["RMSE of the mean at t"], [f"{skill.times[i]:.3g}" for i in frames])
    for label, prefix in FORECASTS.items():
        if curve := skill.by_time.get(f"{prefix}rmse"):
            table.add_row(label, *(f"{curve[i]:.3g}" for i in frames))
    return table


def _number(estimate: Estimate | None) -> str:
    """Write an estimate to the digits that its error leaves certain."""
    if estimate is None:
        return ""
    value, error = estimate
    if error is None or not 0 < error < 1:
        return f"{value:.3g}" + ("" if error is None else f" ± {error:.1g}")
    decimals = -math.floor(math.log10(error))
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"
