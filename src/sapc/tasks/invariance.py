"""Do data have a symmetry? A test that is exact for any number of samples.

If u and g u have one distribution for every g of a group, then among K + 1 versions of a sample,

    u,  g_1 u,  ...,  g_K u,      g_k drawn uniformly,

the sample itself is no more likely to stand in one place than in another. So a statistic S of all samples is
compared with what it is when each sample is replaced by one of its versions, drawn at random, DRAWS times: S
is the largest of all with probability 1 / (DRAWS + 1) at most. Nothing is assumed of the distribution, nor
that moments, or data and their images, are independent of each other; but samples must be.

S is the largest difference, in standard errors, between a moment of the data and its mean over all versions.
Moments are means of a signal (a channel or a first difference of one), of a product of two and of a cube, in
boxes of the grid and over all of space. A force that depends on x shows in the means, a direction of travel
in u_x u_t, the steep side of a front in (u_x)^3, a sign in the means or cubes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float64
from torch import Tensor

from ..constraints.terms import Balance, Constraint
from ..data.normalizer import Normalizer
from ..grid import Axis, Grid
from .from_data import PIN_TOLERANCE
from .physics import pins_of
from .symmetries import AnySymmetry

if TYPE_CHECKING:
    from .base import Task

IMAGES = 5
"""K: images of each sample, besides itself."""
DRAWS = 999
FALSE_ALARMS = 1 / (DRAWS + 1)
"""Share of true symmetries that are reported, at most."""
MAX_SAMPLES, MIN_SAMPLES, MAX_VALUES = 512, 16, 2**20
# Boxes along an axis of space, by the number of such axes, and along time.
SPACE_BOXES, TIME_BOXES = {1: 8, 2: 4, 3: 3}, 2
# As a share of a law's terms: a symmetry moves values or changes signs, so no more than rounding may change.
MAX_LAW_CHANGE, MAX_LAW_SAMPLES = 1e-9, 64
# A moment that varies less among versions than this share of itself is the same in all but for rounding.
ROUNDING = 1e-11


@dataclass(frozen=True)
class MomentTest:
    """What the comparison of moments found.

    Attributes:
        samples: How many samples were compared.
        moment: The moment that differs most.
        difference: By how much, in standard errors.
        p: How likely a difference as large is where the symmetry holds.
    """

    samples: int
    moment: str
    difference: float
    p: float

    @property
    def is_passed(self) -> bool:
        """Whether data and images agree within their sampling error."""
        return self.p > FALSE_ALARMS


@dataclass(frozen=True)
class SymmetryCheck:
    """What images of the data under a symmetry have in common with the data.

    Attributes:
        text: The symmetry.
        law_change: By how much |R| differs, as a share of the law's terms.
        pin_distance: How far images are off prescribed values, in deviations of the field.
        moments: The comparison of moments.
    """

    text: str
    law_change: float
    pin_distance: float
    moments: MomentTest

    def line(self) -> str:
        """Format it as a line of text."""
        m = self.moments
        doubt = "; too few to tell" if m.samples < MIN_SAMPLES else ""
        return (
            f"  symmetry {self.text}: |R| changes by {self.law_change:.1e} of its terms; moments of "
            f"{m.samples} samples by {m.difference:.1f} standard errors at most (p = {m.p:.2g}{doubt})"
        )

    @property
    def problems(self) -> list[str]:
        """Why it should not be declared."""
        problems, m = [], self.moments
        if self.law_change > MAX_LAW_CHANGE:
            problems.append(f"|R| of their images differs by {self.law_change:.1e} of the law's terms")
        if self.pin_distance > PIN_TOLERANCE:
            problems.append(f"their images are {self.pin_distance:.2g} deviations off the prescribed values")
        if not m.is_passed:
            problems.append(
                f"the mean of {m.moment} differs from that of their images by {m.difference:.1f} standard errors "
                f"({m.samples} samples; where a symmetry holds, one check in {1 / FALSE_ALARMS:,.0f} says so)"
            )
        return [f"the data do not have the symmetry {self.text}: {p}; do not declare it" for p in problems]


def compare_moments(symmetry: AnySymmetry, fields: Tensor, grid: Grid, seed: int = 0) -> MomentTest:
    """Compare moments of fields with those of their images under a symmetry.

    Args:
        symmetry: The symmetry.
        fields: Independent fields `(n, *grid)`, in their own units.
        grid: Their grid.
        seed: Seed of the images and of the draws.

    Returns:
        The result, of at most MAX_SAMPLES fields.
    """
    g = torch.Generator().manual_seed(seed)
    n = min(len(fields), MAX_SAMPLES, max(MIN_SAMPLES, MAX_VALUES // fields[0].numel()))
    u = fields[torch.randperm(len(fields), generator=g)[:n].sort().values].double()
    versions = torch.stack([u, *(symmetry.transform(u, g) for _ in range(IMAGES))])
    # Of all versions: constants that came from the data alone would tell them from their images.
    rows = versions.reshape(-1, grid.n_channels, *grid.points_per_axis)
    deviation, mean = torch.std_mean(rows, tuple(i for i in range(rows.ndim) if i != 1), keepdim=True)
    rows = (rows - mean) / deviation.clamp(min=1e-300)
    z = torch.stack([moments(v, grid) for v in rows.reshape(IMAGES + 1, n, *rows.shape[1:])], 1)
    size = z.square().sum((0, 1)).sqrt()
    z = z - z.mean(1, keepdim=True)
    error = z.square().mean(1).sum(0).sqrt()
    z = torch.where(error > ROUNDING * size, z / error, 0)
    # The data themselves come first, then one version of each sample per draw.
    place = torch.randint(IMAGES + 1, (DRAWS, n), generator=g)
    place = torch.cat((torch.zeros(1, n, dtype=torch.long), place))
    choice = torch.nn.functional.one_hot(place, IMAGES + 1).double()
    differences = (choice.flatten(1) @ z.flatten(0, 1)).abs()
    largest = differences.amax(1)
    # Equal sums may differ by rounding.
    p = float((largest[1:] >= largest[0] * (1 - 1e-9)).sum() + 1) / (DRAWS + 1)
    worst = int(differences[0].argmax())
    names = _moment_names(grid)
    return MomentTest(n, names[worst // (differences.shape[1] // len(names))], float(largest[0]), p)


def check_symmetry(
    task: Task, symmetry: AnySymmetry, fields: Tensor, sizes: Sequence[float], seed: int = 0
) -> SymmetryCheck:
    """Compare data with their images: laws, prescribed values and moments.

    Args:
        task: The task.
        symmetry: The symmetry, one that does not depend on a parameter.
        fields: Fields `(n, *grid)`, in their own units.
        sizes: How large the terms of each law of the task are.
        seed: Seed of the images.

    Returns:
        What they have in common.
    """
    u = fields[:MAX_LAW_SAMPLES].double()
    image = symmetry.transform(u, torch.Generator().manual_seed(seed))
    parts = [part for part in task.constraint.parts if isinstance(part, Balance | Constraint)]
    change = 0.0
    for part, size in zip(parts, sizes, strict=True):
        before, after = (law_residual(part, v).abs().amax(1) for v in (u, image))
        change = max(change, float((after - before).abs().max()) / (size or 1.0))
    normalizer = task.normalizer
    deviation = normalizer.columns(u)[1] if isinstance(normalizer, Normalizer) else u.std()
    pins = pins_of(task.constraint)
    offsets = [float(((pin.prescribe(image) - image).abs() / deviation).max()) for pin in pins]
    moments = compare_moments(symmetry, select_conditions(task, fields, seed), task.grid, seed)
    return SymmetryCheck(symmetry.text, change, max(offsets, default=0.0), moments)


def select_conditions(task: Task, fields: Tensor, seed: int) -> Tensor:
    """Select one field of each condition, because those that share one are not independent.

    Args:
        task: The task.
        fields: Fields `(n, *grid)`.
        seed: Seed of the choice.

    Returns:
        The fields; all of them where all share one condition, or nothing is pinned.
    """
    masks = [pin.mask(task.grid.shape) for pin in pins_of(task.constraint) if pin.value is None]
    if not masks:
        return fields
    values = fields[:, torch.stack(masks).any(0)]
    _, groups = torch.unique(values, dim=0, return_inverse=True)
    if int(groups.max()) == 0:
        return fields
    order = torch.randperm(len(fields), generator=torch.Generator().manual_seed(seed))
    # Of equal indices any one may be written last.
    rows = torch.empty(int(groups.max()) + 1, dtype=torch.long)
    rows[groups[order]] = order
    return fields[rows.sort().values]


def law_residual(part: Balance | Constraint, u: Tensor) -> Tensor:
    """Compute by how much fields miss a law; a value that is the field's own is met.

    Args:
        part: The law.
        u: Fields `(n, *grid)`.

    Returns:
        R(u), `(n, rows)`.
    """
    if isinstance(part, Balance):
        return part.residual(u)
    rows = part.measure(u)
    return rows - (rows if isinstance(part.value, str) else torch.as_tensor(part.value, dtype=torch.float64))


def moments(u: Tensor, grid: Grid) -> Float64[Tensor, "n moments"]:
    """Compute the moments of each field.

    Args:
        u: Fields with an axis of channels, `(n, channel, *points)`.
        grid: Their grid.

    Returns:
        Means of signals, products of two, and cubes.
    """
    signals = torch.stack(
        [c if a is None else a.derivative(c, i + 1) for c in u.unbind(1) for i, a in _directions(grid)], 1
    )
    box, is_point = _boxes(grid)
    # (n, box, signal, point in the box)
    signals = torch.where(is_point[:, None], signals.flatten(2)[:, :, box].transpose(1, 2), 0)
    i, j = torch.triu_indices(signals.shape[2], signals.shape[2])
    products = (signals @ signals.mT)[:, :, i, j]
    sums = torch.cat((signals.sum(-1), products, (signals**3).sum(-1)), -1)
    means = sums / is_point.sum(1)[:, None]
    # Boxes of one time follow each other at the distance of the number of times.
    times = 1 if grid.steady else _box_counts(grid)[-1]
    over_space = means.reshape(len(u), -1, times, means.shape[2]).mean(1)
    return torch.cat((means, over_space), 1).mT.flatten(1)


def _directions(grid: Grid) -> Iterator[tuple[int, Axis | None]]:
    """Yield the signals of a channel: itself, and its difference along each axis."""
    yield 0, None
    yield from enumerate(grid.axes)


def _moment_names(grid: Grid) -> list[str]:
    """Name the moments in the order of `moments`."""
    signals = [
        c if a is None else f"d{c}/d{a.name}" for c in grid.channels or ("u",) for _, a in _directions(grid)
    ]
    products = [f"{a} {b}" if a != b else f"({a})^2" for i, a in enumerate(signals) for b in signals[i:]]
    return [*signals, *products, *(f"({a})^3" for a in signals)]


def _box_counts(grid: Grid) -> list[int]:
    """Return the number of boxes along each axis."""
    in_space = [min(axis.n, SPACE_BOXES[len(grid.space)]) for axis in grid.space]
    return in_space if grid.steady else [*in_space, min(grid.time.n, TIME_BOXES)]


def _boxes(grid: Grid) -> tuple[Tensor, Tensor]:
    """Return the points of each box, `(boxes, most points)`, and which of these entries are points."""
    number = torch.zeros(1, dtype=torch.long)
    for axis, count in zip(grid.axes, _box_counts(grid), strict=True):
        number = (number[:, None] * count + torch.arange(axis.n) * count // axis.n).flatten()
    sizes = number.bincount()
    place = torch.arange(int(sizes.max()))
    is_point = place < sizes[:, None]
    first = sizes.cumsum(0) - sizes
    return number.argsort(stable=True)[torch.where(is_point, first[:, None] + place, 0)], is_point
