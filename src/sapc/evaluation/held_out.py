"""Measure the skill of a model on held-out conditions.

Data of your own: the conditions are those of the validation split. A task with a solver: as many conditions
are drawn anew, each with free parameters of its own. (The first solutions of a split would not do: where
conditions and free parameters are combined in full, they share conditions.) Climatology is the training
split, or as many draws of its distribution: a forecast that knows the data, but not the condition.

Fields are compared as the network sees them: of your own data in deviations of every channel, so that
channels of different units count alike; of the published tasks in their own units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import SapcError, explain_misuse
from ..flow.source import derive_seed
from ..models.model import Model
from ..models.sampling import pinned_mask
from ..models.skill import Estimate, Skill
from ..tasks import Task
from .config import CONDITIONS, MEMBERS, EvaluationConfig
from .skill import Verification, average, curves, persistence, ratio, root, summarize, verify

REFERENCE = (64, 512)
"""Fewest and most fields that are the climatology."""
REFERENCE_POINTS = 2**25
"""Grid points in between, which are sorted in a few seconds."""
COSTLY_POINTS = 2**25
"""Grid points per draw from which solving in three dimensions takes minutes on a CPU."""
SCORES = ("crps", "energy_score", "rmse")

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, parts done, parts in all."""


@dataclass(frozen=True)
class Forecasts:
    """Comparisons of three forecasts with the same truths.

    Attributes:
        samples: The members that were sampled.
        climatology: The training fields, for every condition.
        persistence: The initial frame kept; None where no frame is pinned.
    """

    samples: Verification
    climatology: Verification
    persistence: Verification | None

    def estimates(self) -> dict[str, Estimate]:
        """Return all numbers of the record by name; see `sapc.models.skill`."""
        s, c, p = self.samples, self.climatology, self.persistence
        found = summarize(s)
        found |= {f"climatology_{n}": e for n, e in summarize(c).items() if n in SCORES}
        mse = s.mean(s.fair_square_error)
        found["mse_over_climatology"] = average(mse - c.mean(c.fair_square_error))
        if s.crps is not None and c.crps is not None:
            found["crps_over_climatology"] = average(s.mean(s.crps) - c.mean(c.crps))
            if quotient := ratio(s.mean(s.crps), c.mean(c.crps)):
                found["skill_score"] = Estimate(1 - quotient.value, quotient.error)
        if p is not None:
            square = p.mean(p.square_error)
            found["persistence_rmse"] = root(average(square))
            found["mse_over_persistence"] = average(mse - square)
        return found

    def by_time(self) -> dict[str, list[float]]:
        """Return the curves of all three over physical time."""
        rivals = {"climatology": self.climatology, "persistence": self.persistence}
        found = curves(self.samples)
        for rival, v in rivals.items():
            found |= {} if v is None else {f"{rival}_{name}": values for name, values in curves(v).items()}
        return found

    def each(self) -> dict[str, list[float]]:
        """Return the scores of the samples condition by condition."""
        s = self.samples
        found = {} if s.crps is None else {"crps": s.mean(s.crps).tolist()}
        found |= {} if s.energy_score is None else {"energy_score": s.energy_score.tolist()}
        return found | {"mse": s.mean(s.fair_square_error).tolist()}


@explain_misuse
def measure_skill(
    model: Model, config: EvaluationConfig, progress: Progress = lambda stage, done, total: None
) -> Skill:
    """Sample members for held-out conditions, and compare them with the truth.

    Args:
        model: The model.
        config: Its `conditions`, `members`, `steps`, `sampler`, `method`, `seed` and `batch` count.
        progress: Called with the name of a stage, parts done, parts in all.

    Returns:
        The skill.

    Raises:
        SapcError: The fields cannot be compared, as where every point is pinned.
    """
    task, k, m = model.task, config.conditions or CONDITIONS, config.members or MEMBERS
    k = k if task.can_draw else min(k, task.sizes["validation"])
    conditions = Conditions(model, config.seed, progress)
    truth, reference = conditions.truths(k), conditions.climatology()
    method = model.sampling_method(config.method)
    sampler, steps = model.discretize(method, config.sampler, config.steps)
    samples = model.sample(
        k * m,
        truth,
        steps,
        config.seed,
        sampler=sampler,
        method=method.name,
        batch=config.batch,
        progress=lambda done, total: progress("skill: sampling", done, total),
    ).reshape(k, m, *task.grid.shape)
    progress("skill: scoring", 0, 1)
    forecasts = compare(task, samples, truth, reference)
    estimates = forecasts.estimates() | measure_residual(task, samples, truth)
    progress("skill: scoring", 1, 1)
    origin = {"reference": len(reference), "method": method.name, "sampler": sampler.name, "steps": steps}
    return make_record(task, forecasts, estimates, seed=config.seed, **origin)


def make_record(task: Task, forecasts: Forecasts, estimates: dict[str, Estimate], **origin: Any) -> Skill:
    """Make the record of measured skill.

    Args:
        task: The task.
        forecasts: The comparisons.
        estimates: Numbers by name.
        origin: Fields of the record that say how the samples were made.

    Returns:
        The record.

    Raises:
        SapcError: A number is not finite, as of samples beyond all bounds.
    """
    for name, e in estimates.items():
        if not all(math.isfinite(x) for x in e if x is not None):
            raise SapcError(f"{name} is {e.value}: the samples are too large to be scored; train longer")
    v, k = forecasts.samples, len(forecasts.samples.ranks)
    times = [] if task.grid.steady else task.grid.time.points[v.points > 0].tolist()
    return Skill(
        conditions=k,
        members=v.members,
        points=int(v.points.sum()),
        units="fields" if task.normalizer.is_identity else "deviations",
        metrics={name: e.value for name, e in estimates.items()},
        errors={name: e.error for name, e in estimates.items() if e.error is not None},
        each=forecasts.each(),
        ranks=v.ranks.mean(0).tolist(),
        rank_errors=(v.ranks.std(0) / math.sqrt(k)).tolist() if k > 1 else [],
        times=times,
        by_time=forecasts.by_time() if times else {},
        **origin,
    )


def compare(task: Task, members: Tensor, truth: Tensor, reference: Tensor) -> Forecasts:
    """Compare samples, climatology and persistence with the truth.

    Args:
        task: The task.
        members: Samples `(k, m, *grid)`, in the units of the fields.
        truth: Truths `(k, *grid)`.
        reference: Fields `(n, *grid)` that are the climatology.

    Returns:
        The comparisons, on normalized fields.
    """
    pinned, steady = pinned_mask(task), task.grid.steady
    y, c = task.normalize(truth), task.normalize(reference)
    x = task.normalize(members.flatten(0, 1)).reshape(members.shape)
    kept = persistence(y, pinned, steady)
    return Forecasts(
        verify(x, y, ~pinned, steady),
        verify(c[None], y, ~pinned, steady),
        None if kept is None else verify(kept[:, None], y, ~pinned, steady),
    )


def measure_residual(task: Task, members: Tensor, truth: Tensor) -> dict[str, Estimate]:
    """Measure the residual of the PDE, and that which differences leave of the truths.

    Args:
        task: The task.
        members: Samples `(k, m, *grid)`.
        truth: Truths `(k, *grid)`.

    Returns:
        `pde_residual` and `truth_pde_residual`, root mean squares; nothing where the task has no residual.
    """
    found: dict[str, Estimate] = {}
    for name, fields in (("pde_residual", members), ("truth_pde_residual", truth[:, None])):
        residuals = (task.residual(u.double()) for u in fields)
        squares = [float(r.square().mean()) for r in residuals if r is not None]
        found |= {name: root(average(torch.tensor(squares, dtype=torch.float64)))} if squares else {}
    return found


@dataclass(frozen=True)
class Conditions:
    """Held-out conditions of a model, and its climatology."""

    model: Model
    seed: int
    progress: Progress = field(default=lambda stage, done, total: None)

    def truths(self, k: int) -> Tensor:
        """Return fields whose pinned values are the conditions, `(k, *grid)`."""
        task = self.model.task
        if not task.can_draw:
            return task.dataset("validation", size=k).fields
        return self._draw("validation", k, "skill: solving")

    def climatology(self) -> Tensor:
        """Return training fields, `(n, *grid)`."""
        task, (fewest, most) = self.model.task, REFERENCE
        n = min(most, max(fewest, REFERENCE_POINTS // math.prod(task.grid.shape)))
        if task.can_draw:
            n = fewest if is_costly(task, self.model.device, n) else n
            return self._draw("train", n, "skill: climatology")
        fields = task.dataset("train").fields
        # All parts of the file count, in whatever order its samples are.
        n = min(len(fields), n)
        return fields[torch.linspace(0, len(fields) - 1, n).round().long()]

    def _draw(self, split: str, count: int, stage: str) -> Tensor:
        """Solve for parameters that are drawn one by one, so that no two fields share any."""
        task = self.model.task
        draws = [task.draw(split, 1, derive_seed("skill", self.seed, i)) for i in range(count)]
        parameters = {name: torch.cat([draw[name] for draw in draws]) for name in task.parameters}
        device = self.model.device if task.integrates else "cpu"
        report = lambda done, total: self.progress(stage, done, total)
        return task.solve(parameters, device, report, torch.float32)


def is_costly(task: Task, device: torch.device, count: int) -> bool:
    """Tell whether solving takes minutes.

    Args:
        task: The task.
        device: Where it is solved.
        count: Number of solutions.

    Returns:
        True for many solutions of a three-dimensional integration on a CPU.
    """
    points = count * math.prod(task.grid.shape)
    return task.integrates and len(task.grid.shape) == 3 and device.type == "cpu" and points > COSTLY_POINTS
