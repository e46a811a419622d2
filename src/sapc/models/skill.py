"""The record of skill: how well samples foretell the truth of held-out conditions, beside climatology and persistence.

`metrics` holds by name, with standard errors over conditions in `errors`:

    crps, energy_score, rmse             fair scores of the samples, as `sapc.evaluation.skill` defines them
    ensemble_rmse, spread, spread_skill  error of the mean of m members, their spread, and the ratio of both
    coverage_50, coverage_90             share of points inside the members' central intervals
    climatology_crps, ..., _rmse         the same scores of the training data as a forecast for every condition
    persistence_rmse                     of the initial frame kept, where that is pinned
    skill_score                          1 - crps / climatology_crps
    pde_residual, truth_pde_residual     of tasks that have one: the share of u_t that the equation leaves over
    crps_over_climatology, mse_over_climatology, mse_over_persistence      differences, paired by condition

What is not defined has no entry: with one member there is no crps, with one condition there are no errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .record import Record

SIGNIFICANT = 2.0
"""So many standard errors make a difference."""


class Estimate(NamedTuple):
    """A number with its standard error, None where it is not known."""

    value: float
    error: float | None = None


@dataclass(frozen=True, kw_only=True)
class Skill(Record):
    """Skill per condition, averaged over conditions.

    Attributes:
        conditions: k, held-out conditions.
        members: m, samples of each.
        points: Free points of a field, those that nothing pins.
        reference: Training fields that are the climatology.
        units: What numbers are in: `fields`, or `deviations` of every channel over the training data.
        method: The method that sampled.
        sampler: Name of the stepper.
        steps: Sampling steps.
        seed: Seed of conditions and source draws.
        metrics: Numbers by name; see the module docstring.
        errors: Their standard errors over conditions.
        each: crps, energy_score and mse (fair) of every condition.
        ranks: Share of the points where so many members lie below the truth, from none to all.
        rank_errors: Their standard errors over conditions.
        times: Physical times of the frames that have free points.
        by_time: rmse and crps of samples, climatology and persistence at these times.
    """

    conditions: int
    members: int
    points: int
    reference: int
    units: str
    method: str
    sampler: str
    steps: int
    seed: int
    metrics: dict[str, float]
    errors: dict[str, float] = field(default_factory=dict)
    each: dict[str, list[float]] = field(default_factory=dict)
    ranks: list[float] = field(default_factory=list)
    rank_errors: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    by_time: dict[str, list[float]] = field(default_factory=dict)

    def estimate(self, name: str) -> Estimate | None:
        """Return a number with its standard error; None if it is not defined."""
        return Estimate(self.metrics[name], self.errors.get(name)) if name in self.metrics else None

    def beats(self, rival: str) -> bool | None:
        """Tell whether samples are better than a simpler forecast, by two standard errors.

        Args:
            rival: `climatology`, by the CRPS, or `persistence`, by the error of the mean.

        Returns:
            Whether they are; None if there is no such forecast, or one condition does not tell.
        """
        difference = self._difference(rival)
        if difference is None or difference.error is None:
            return None
        return difference.value + SIGNIFICANT * difference.error < 0

    def is_larger_than(self, other: Skill) -> bool:
        """Tell whether this is of the same sampler, and of more conditions and members in all."""
        has_same_sampler = (self.method, self.sampler, self.steps) == (
            other.method,
            other.sampler,
            other.steps,
        )
        return has_same_sampler and self.conditions * self.members > other.conditions * other.members

    @property
    def verdicts(self) -> list[str]:
        """Sentences on what samples are no better than; none if they are better than both."""
        if self.conditions < 2:
            return ["one condition does not tell whether samples are better than climatology; take more"]
        return [
            self._explain(rival) for rival in ("climatology", "persistence") if self.beats(rival) is False
        ]

    def _difference(self, rival: str) -> Estimate | None:
        found = self.estimate("crps_over_climatology") if rival == "climatology" else None
        return found or self.estimate(f"mse_over_{rival}")

    def _explain(self, rival: str) -> str:
        """Say that samples are no better than a simpler forecast."""
        difference = self._difference(rival)
        assert difference is not None
        assert difference.error is not None
        is_worse = difference.value > SIGNIFICANT * difference.error
        name = "crps" if rival == "climatology" and "crps" in self.metrics else "rmse"
        label = "CRPS" if name == "crps" else "RMSE of the mean"
        numbers = f"{label} {self.metrics[name]:.3g} beside {self.metrics[f'{rival}_{name}']:.3g}"
        meaning = {
            "climatology": "they say no more of a condition than the training data do without it",
            "persistence": "to keep the initial frame foretells as much",
        }[rival]
        words = f"do worse than {rival}" if is_worse else f"do no better than {rival}"
        return f"samples {words}: {numbers} over {self.conditions} conditions; {meaning}"
