"""Skill per condition on a terminal: a short table, a few lead times, and what samples are no better than."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.table import Table

from ..models.skill import Estimate, Skill
from .app import make_table, out

ROWS = {"CRPS": "crps", "energy score": "energy_score", "RMSE of the mean": "rmse"}
RATIOS = {"skill, 1 - CRPS / climatology's": "skill_score", "spread / skill": "spread_skill"}
COVERAGES = {"in the 50 % interval": "coverage_50", "in the 90 % interval": "coverage_90"}
IDEALS = {"skill_score": "", "spread_skill": "1 if calibrated", "coverage_50": "50 %", "coverage_90": "90 %"}
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
    units = "deviations of each channel" if skill.normalized else "the units of the fields"
    members = f"{skill.members} member{'s' if skill.members > 1 else ''}"
    return (
        f"skill per condition: {members} for each of {skill.conditions} held-out conditions, at {skill.points} "
        f"free points, in {units}; beside {skill.reference} training fields as climatology"
    )


def skill_table(skill: Skill) -> Table:
    """Return the scores beside those of climatology and persistence."""
    table = make_table(["per condition"], ["samples", "climatology", "persistence"])
    for label, name in ROWS.items():
        names = (name, f"climatology_{name}", f"persistence_{name}")
        if any(name in skill.metrics for name in names):
            table.add_row(label, *(_number(skill.estimate(n)) for n in names))
    for label, name in RATIOS.items():
        if name in skill.metrics:
            table.add_row(label, _number(skill.estimate(name)), IDEALS[name])
    for label, name in COVERAGES.items():
        table.add_row(label, _percent(skill.estimate(name)), IDEALS[name])
    return table


def time_table(skill: Skill) -> Table:
    """Return the error of the mean at a few times from the first to the last."""
    last = len(skill.times) - 1
    frames = sorted({round(i * last / (LEAD_TIMES - 1)) for i in range(LEAD_TIMES)})
    table = make_table(["RMSE of the mean at t"], [f"{skill.times[i]:.3g}" for i in frames])
    for label, name in _curves(skill):
        table.add_row(label, *(f"{skill.by_time[name][i]:.3g}" for i in frames))
    return table


def _curves(skill: Skill) -> Iterator[tuple[str, str]]:
    for label in ("samples", "climatology", "persistence"):
        name = "rmse" if label == "samples" else f"{label}_rmse"
        if name in skill.by_time:
            yield label, name


def _number(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    return f"{estimate.value:.3g}" + ("" if estimate.error is None else f" ± {estimate.error:.1g}")


def _percent(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    error = "" if estimate.error is None else f" ± {100 * estimate.error:.0f}"
    return f"{100 * estimate.value:.0f}{error} %"
