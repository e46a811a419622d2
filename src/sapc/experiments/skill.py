"""Skill per condition of several methods side by side, as a table of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..models.skill import Skill
from .report.format import Table

COLUMNS = {
    "crps": "CRPS",
    "energy_score": "energy",
    "rmse": "RMSE",
    "skill_score": "skill",
    "spread_skill": "spread",
    "coverage_50": "50 %",
    "coverage_90": "90 %",
}
"""Numbers of a table, and their heads; `spread` is that over skill, 1 if calibrated."""
LOWEST = ("crps", "energy_score", "rmse")
"""Those whose lowest value is the best; of the skill score it is the highest, of the others there is none."""


Entries = Mapping[str, Mapping[str, Any]]
"""Entries of methods in a result; some have a skill."""


def skill_tables(methods: Entries) -> tuple[Table, ...]:
    """Make a table with a row per method, below climatology and persistence.

    Args:
        methods: Entries by method.

    Returns:
        The table, 80 columns wide at most; nothing where no method has a skill.
    """
    skills = _read(methods)
    if not skills:
        return ()
    first = next(iter(skills.values()))
    names = [name for name in COLUMNS if any(name in skill.metrics for skill in skills.values())]
    rivals = [_row(first, rival, names, f"{rival}_") for rival in ("climatology", "persistence")]
    rows = [row for row in rivals if any(row[1:])]
    marks = _best(skills, names, len(rows))
    rows += [_row(skill, name, names) for name, skill in skills.items()]
    title = f"Skill per condition: {first.members} members for each of {first.conditions} held-out conditions"
    return (Table(title, ("method", *(COLUMNS[name] for name in names)), rows, marks),)


def skill_notes(methods: Entries) -> list[str]:
    """Return what samples are no better than.

    Args:
        methods: Entries by method.

    Returns:
        One sentence each.
    """
    return [f"{name}: {text}" for name, skill in _read(methods).items() for text in skill.verdicts]


def _read(methods: Entries) -> dict[str, Skill]:
    found = {name: entry.get("skill") for name, entry in methods.items()}
    return {name: Skill.from_dict(data, "skill") for name, data in found.items() if data is not None}


def _row(skill: Skill, label: str, names: Sequence[str], prefix: str = "") -> tuple[str, ...]:
    cells = []
    for name in names:
        value = skill.metrics.get(prefix + name)
        cells.append("" if value is None else f"{value:.3g}" if name in LOWEST else f"{value:.2f}")
    return label, *cells


def _best(skills: Mapping[str, Skill], names: Sequence[str], start: int) -> frozenset[tuple[int, int]]:
    """Return the places of the best numbers; rows begin at `start`."""
    places = set()
    for j, name in enumerate(names, start=1):
        sign = -1 if name == "skill_score" else 1 if name in LOWEST else 0
        values = [sign * skill.metrics[name] if name in skill.metrics else None for skill in skills.values()]
        known = [value for value in values if value is not None]
        if sign and len(known) > 1:
            places |= {(start + i, j) for i, value in enumerate(values) if value == min(known)}
    return frozenset(places)
