"""Skill per condition: how well members drawn for a condition foretell the truth of that condition.

Each of k conditions has one truth y and m members x_1 ... x_m, drawn for it. Only free points count, those
that nothing pins; < > is the mean over them. Every estimator is fair: its expectation does not depend on m,
so forecasts by few and by many members compare.

    crps           < 1/m sum_j |x_j - y| - 1/(2 m (m - 1)) sum_{j,l} |x_j - x_l| >
    energy_score   1/m sum_j |x_j - y| - 1/(2 m (m - 1)) sum_{j,l} |x_j - x_l|,    |u| = sqrt(<u^2>)
    mse            < (x_mean - y)^2 >,    x_mean = 1/m sum_j x_j
    variance       < 1/(m - 1) sum_j (x_j - x_mean)^2 >
    fair_mse       mse - variance / m

crps and energy_score are those of Ferro (2014, doi 10.1002/qj.2270): smallest in expectation if members and
truth have one law. fair_mse estimates the error of the mean of infinitely many members, so it can be
negative; a finite mean adds variance / m to it. With one member, crps, energy_score and variance are not
defined, and fair_mse is mse.

    spread_skill   sqrt((m + 1)/m  E variance / E mse)

is 1 if truth and members are exchangeable (Fortin et al. 2014, doi 10.1175/JHM-D-14-0008.1): then E mse =
(1 + 1/m) E variance. Below 1 the members are too much alike.

The rank r of the truth, how many members lie below it, is then uniform on 0 ... m. Where a member equals the
truth, every rank in question has an equal share. The interval [r, r + 1] / (m + 1) stands for rank r, and

    coverage of level p   sum_r f_r w_r,    f_r the share of points of rank r,
    w_r                   the share of [r, r + 1] / (m + 1) that lies in [(1 - p)/2, (1 + p)/2]

has the expectation p exactly, for every m. Where the outermost intervals are wider than (1 - p)/2 they lie
partly inside, and coverage cannot fall below w_0: few members tell little of a high level. From m = 2/(1 - p)
- 1 on, 19 for p = 0.9, w_0 is zero.

A number over conditions is their mean, with its standard error. The rmse is sqrt(E fair_mse); its error and
those of ratios are to first order (delta method).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..errors import SapcError, explain_misuse
from ..models.skill import Estimate

BUDGET = 256 * 2**20
"""Bytes of temporaries."""
COPIES = 8
"""Number of float64 copies of a chunk alive at the same time."""
LEVELS = {"coverage_50": 0.5, "coverage_90": 0.9}


@dataclass(frozen=True)
class Verification:
    """What the members of k conditions say of their truths; sums over free points are by frame.

    Attributes:
        members: m, members per condition.
        points: Free points of each frame, `(frames,)`.
        square_error: Sums of `(x_mean - y)^2`, `(k, frames)`.
        variance: Sums of the members' variance; None for one member.
        crps: Sums of the fair CRPS; None for one member.
        energy_score: Fair energy score, `(k,)`; None for one member.
        ranks: Share of the points that have each rank, `(k, m + 1)`.
    """

    members: int
    points: Float[Tensor, " frames"]
    square_error: Float[Tensor, "k frames"]
    variance: Float[Tensor, "k frames"] | None
    crps: Float[Tensor, "k frames"] | None
    energy_score: Float[Tensor, " k"] | None
    ranks: Float[Tensor, "k ranks"]

    @property
    def fair_square_error(self) -> Tensor:
        """Sums of the square error of infinitely many members' mean, `(k, frames)`; of one member its own."""
        return self.square_error - (0.0 if self.variance is None else self.variance / self.members)

    def mean(self, sums: Float[Tensor, "k frames"]) -> Float[Tensor, " k"]:
        """Return the mean over all free points.

        Args:
            sums: Sums by frame.

        Returns:
            One number per condition.
        """
        return sums.sum(1) / self.points.sum()

    def coverage(self, level: float) -> Float[Tensor, " k"]:
        """Return the share of points in the central interval of the members.

        Args:
            level: p, the share that is expected.

        Returns:
            One share per condition.
        """
        return self.ranks @ interval_weights(self.members, level)


@explain_misuse
def verify(
    members: Float[Tensor, "ensembles m *grid"],
    truth: Float[Tensor, "k *same_grid"],
    free: Tensor,
    steady: bool = False,
) -> Verification:
    """Compare the members of every condition with its truth.

    Computed in float64 on the CPU, some points at a time, with temporaries of at most about BUDGET bytes.

    Args:
        members: Members `(k, m, *grid)`, or `(1, m, *grid)` if they are the same for all conditions.
        truth: Truths `(k, *grid)`.
        free: The points that count, a boolean mask of the grid.
        steady: Whether the fields have no time, which is the last axis else.

    Returns:
        The comparison.

    Raises:
        SapcError: Shapes do not fit, no point is free, or a value at a free point is not finite.
    """
    _check(members, truth, free)
    k, m, frames = len(truth), members.shape[1], 1 if steady else truth.shape[-1]
    place = free.cpu().flatten().nonzero()[:, 0]
    sums = {name: torch.zeros(k, frames, dtype=torch.float64) for name in ("square", "variance", "crps")}
    ranks = torch.zeros(k, m + 1, dtype=torch.float64)
    distances = _Distances(k, members.shape[:2])
    flat_members, flat_truth = members.flatten(2), truth.flatten(1)
    for part in _chunks(place, members.shape[0] * m + k):
        x = _take(flat_members, part, "members").transpose(1, 2).contiguous()
        y = _take(flat_truth, part, "truths")
        square, variance, crps = _scores(x, y)
        for name, values in (("square", square), ("variance", variance), ("crps", crps)):
            sums[name].index_add_(1, part % frames, values)
        ranks += _count_ranks(x, y)
        distances.add(x, y)
    points = torch.bincount(place % frames, minlength=frames).double()
    has_pairs = m > 1
    return Verification(
        members=m,
        points=points,
        square_error=sums["square"],
        variance=sums["variance"] if has_pairs else None,
        crps=sums["crps"] if has_pairs else None,
        energy_score=distances.energy_score(len(place)) if has_pairs else None,
        ranks=ranks / len(place),
    )


def interval_weights(members: int, level: float) -> Float[Tensor, " ranks"]:
    """Return w, the share of every rank's interval that lies in the central interval of a level.

    Args:
        members: m, the number of members.
        level: p, the share that the interval is to hold.

    Returns:
        Weights `(m + 1,)` with the mean p.
    """
    edges = torch.arange(members + 2, dtype=torch.float64) / (members + 1)
    inside = edges.clamp((1 - level) / 2, (1 + level) / 2)
    return inside.diff() * (members + 1)


def persistence(
    fields: Float[Tensor, "k *grid"], pinned: Bool[Tensor, "*grid"], steady: bool = False
) -> Float[Tensor, "k *grid"] | None:
    """Keep every frame as it was when the whole field was known last: the initial frame, if that is pinned.

    Args:
        fields: Fields `(k, *grid)`, time last.
        pinned: The points whose values are known.
        steady: Whether the fields have no time.

    Returns:
        Fields in which each frame is the last one before it that is pinned as a whole, or, where there is
        none, the first one after it; None if no frame is, as where a boundary is pinned.
    """
    if steady:
        return None
    whole = pinned.flatten(0, -2).all(0)
    if not bool(whole.any()):
        return None
    frame = torch.arange(len(whole), device=whole.device)
    last = torch.where(whole, frame, -1).cummax(0).values
    last = torch.where(last < 0, frame[whole][0], last)
    return fields[..., last.to(fields.device)]


# -- over conditions --


def average(values: Float[Tensor, " k"]) -> Estimate:
    """Return mean and standard error over conditions; of a single condition there is no error."""
    k = len(values)
    return Estimate(float(values.mean()), float(values.std() / math.sqrt(k)) if k > 1 else None)


def root(square: Estimate) -> Estimate:
    """Return the root of an estimate; of a negative one zero, whose error is not known."""
    value = math.sqrt(max(0.0, square.value))
    return Estimate(value, square.error / (2 * value) if square.error is not None and value > 0 else None)


def ratio(a: Float[Tensor, " k"], b: Float[Tensor, " k"]) -> Estimate | None:
    """Return mean a / mean b, with the error that both have together; None if b is zero."""
    if not (below := float(b.mean())):
        return None
    quotient = float(a.mean()) / below
    error = average(a - quotient * b).error
    return Estimate(quotient, None if error is None else error / abs(below))


def summarize(v: Verification) -> dict[str, Estimate]:
    """Average over conditions.

    Args:
        v: The comparison of members and truths.

    Returns:
        By name `rmse` (fair), `ensemble_rmse` (of the mean of m members), `coverage_50`, `coverage_90`; if
            there are several members also `crps`, `energy_score`, `spread`, `spread_skill`.
    """
    found = {"rmse": root(average(v.mean(v.fair_square_error)))}
    found["ensemble_rmse"] = root(average(v.mean(v.square_error)))
    found |= {name: average(v.coverage(level)) for name, level in LEVELS.items()}
    if v.crps is None or v.variance is None or v.energy_score is None:
        return found
    found |= {"crps": average(v.mean(v.crps)), "energy_score": average(v.energy_score)}
    found["spread"] = root(average(v.mean(v.variance)))
    square = ratio((1 + 1 / v.members) * v.mean(v.variance), v.mean(v.square_error))
    return found if square is None else found | {"spread_skill": root(square)}


def curves(v: Verification) -> dict[str, list[float]]:
    """Return the rmse of every frame that has free points, and its crps if there are several members."""
    has_points = v.points > 0
    mean: Callable[[Tensor], Tensor] = lambda sums: (sums.mean(0) / v.points)[has_points]
    found = {"rmse": mean(v.fair_square_error).clamp(min=0).sqrt().tolist()}
    return found if v.crps is None else found | {"crps": mean(v.crps).tolist()}


# -- one chunk of points: x (ensembles, points, m), y (k, points) --


def _scores(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute square error, variance and fair CRPS at every point, `(k, points)` each."""
    m = x.shape[-1]
    # Relative to a member: the mean of equal members is that member, without rounding.
    z = x - x[..., :1]
    centre = z.mean(-1, keepdim=True)
    square = (y - x[..., 0] - centre[..., 0]).square()
    z -= centre
    variance = z.square().sum(-1) / max(1, m - 1)
    # sum_{j<l} |x_j - x_l| of sorted members.
    slope = torch.arange(1 - m, m, 2, dtype=x.dtype, device=x.device)
    pairs = z.sort(-1).values @ slope / max(1, m * (m - 1))
    distance = torch.stack([(x[i % len(x)] - y[i, :, None]).abs_().mean(-1) for i in range(len(y))])
    return square, variance.expand_as(square), distance - pairs


def _count_ranks(x: Tensor, y: Tensor) -> Tensor:
    """Count the points of every rank, `(k, m + 1)`; where members equal the truth, ranks share the point."""
    ranks, rows = x.shape[-1] + 1, []
    for i in range(len(y)):
        below = (x[i % len(x)] < y[i, :, None]).sum(-1)
        ties = (x[i % len(x)] == y[i, :, None]).sum(-1)
        share = 1 / (ties + 1).to(x.dtype)
        # A share begins at the lowest rank and ends behind the highest one.
        starts = torch.bincount(below, share, ranks + 1)
        rows.append(starts - torch.bincount(below + ties + 1, share, ranks + 1))
    return torch.stack(rows).cumsum(1)[:, :ranks]


class _Distances:
    """Squared distances of whole fields, summed over chunks of points; no field is kept for a pair."""

    def __init__(self, k: int, shape: torch.Size) -> None:
        ensembles, m = shape
        self.gram = torch.zeros(ensembles, m, m, dtype=torch.float64)
        self.to_truth = torch.zeros(k, m, dtype=torch.float64)

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add a chunk."""
        # About the mean: of members that are much alike, distances would cancel.
        z = x - x[..., :1]
        z -= z.mean(-1, keepdim=True)
        self.gram += z.mT @ z
        for i in range(len(y)):
            self.to_truth[i] += (x[i % len(x)] - y[i, :, None]).square_().sum(0)

    def energy_score(self, points: int) -> Tensor:
        """Return the fair energy score, with a norm that is a mean over points."""
        m = self.gram.shape[-1]
        norms = self.gram.diagonal(dim1=1, dim2=2)
        squares = norms[:, :, None] + norms[:, None, :] - 2 * self.gram
        pairs = (squares.clamp(min=0) / points).sqrt()
        pairs.diagonal(dim1=1, dim2=2).zero_()
        return (self.to_truth / points).sqrt().mean(1) - pairs.sum((1, 2)) / (2 * m * (m - 1))


def _chunks(place: Int[Tensor, " points"], rows: int) -> Iterator[Int[Tensor, " part"]]:
    """Yield free points, so many at a time that COPIES of their values fit into BUDGET."""
    yield from torch.split(place, max(1, BUDGET // (8 * COPIES * rows)))


def _take(fields: Tensor, part: Tensor, name: str) -> Tensor:
    """Return the values at some points in float64; refuse those that are not finite."""
    values = fields[..., part.to(fields.device)].cpu().double()
    if bad := int((~values.isfinite()).sum()):
        raise SapcError(f"{bad} values of the {name} are NaN or infinite at free points; give finite ones")
    return values


def _check(members: Tensor, truth: Tensor, free: Tensor) -> None:
    """Refuse shapes that do not fit."""
    grid = tuple(truth.shape[1:])
    if truth.ndim < 2 or tuple(members.shape[2:]) != grid or len(members) not in (1, len(truth)):
        raise SapcError(
            f"members (k, m, *grid) and truths (k, *grid) are on one grid, for the same conditions; got "
            f"{tuple(members.shape)} and {tuple(truth.shape)}"
        )
    if not len(truth) or not members.shape[1]:
        raise SapcError("skill needs at least one condition with one member, got none")
    if tuple(free.shape) != grid or free.dtype != torch.bool:
        raise SapcError(f"`free` is a boolean mask of the grid {grid}, got {free.dtype} {tuple(free.shape)}")
    if not bool(free.any()):
        raise SapcError("every point is pinned: there is nothing to foretell")
