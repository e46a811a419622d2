"""Metrics: how far a generated ensemble is from a reference, and its samples from their constraints.

With samples `x_1..x_n` generated and `y_1..y_m` of the reference, and the mean over grid points written < >:

    mmse          < (mean x - mean y)^2 >
    smse          < (std x - std y)^2 >                       standard deviations with n - 1 and m - 1
    w2            < sqrt(int_0^1 (Q_x(p) - Q_y(p))^2 dp) >    Q: the empirical quantile function
    crps          < E|x - y| - 1/2 E|x - x'| >                x' another sample than x
    energy_score  E||x - y|| - 1/2 E||x - x'||                whole fields, l2 norm over grid points

`mmse`, `smse` and `w2` compare marginals and vanish between equal ensembles. `crps` and `energy_score` are
proper scores: unbiased from any number of samples, smallest in expectation when x has the law of y, and not
zero there. The energy score also sees what ties the points of a field together.

Q is a step function, so the integral is a finite sum over the merged steps i/n and j/m; for n = m that is the
mean over sorted pairs. With x sorted, `sum_{i<j} |x_i - x_j| = sum_i (2 i - n + 1) x_i` (i from 0), so crps
costs a sort.

    frechet            |mu_x - mu_y|^2 + tr(S_x + S_y - 2 (S_x S_y)^(1/2))

is between features, one vector per sample, with means mu and covariances S (n - 1 and m - 1): the squared
Fréchet distance of the Gaussians fitted to them. With A the centred features over sqrt(n - 1), S = A^T A, and
(S_x S_y)^(1/2) has the trace of the singular values of A_x A_y^T: no root of a matrix, no regularisation, and
as exact with fewer samples than dimensions. Of A only the triangle of a QR factorisation matters, since an
orthogonal factor changes no singular value.

    constraint_error   mean over samples of ||R||,  R the rows of a residual
    ce                 (CE_L / CE_L of FFM + CE_G / CE_G of FFM) / 2

No distribution metric can be expected below its **sampling floor**: its value between two independent draws
of the reference itself, `sampling_floor`.

Every metric returns a float, is computed in float64 on the device of the generated samples, and takes the
grid points (the constraint errors: the samples) in chunks, with temporaries of at most about BUDGET bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import SapcError, explain_misuse

BUDGET = 256 * 2**20
"""Bytes of temporaries."""

COPIES = 12
"""Number of float64 copies of a chunk alive at the same time, as measured in `w2`, which needs most."""

Metric = Callable[[Tensor, Tensor], float]


@runtime_checkable
class Residuals(Protocol):
    """The part of a manifold that constraint errors need: pin and balance rows, `(batch, rows)` each."""

    def local(self, u: Tensor) -> Tensor:
        """Compute the residual of the pins.

        Args:
            u: Fields `(batch, *grid)`.

        Returns:
            Residuals `(batch, rows)`.
        """

    def balance(self, u: Tensor) -> Tensor:
        """Compute the residual of the balance laws.

        Args:
            u: Fields `(batch, *grid)`.

        Returns:
            Residuals `(batch, rows)`.
        """


@explain_misuse
def mmse(generated: Float[Tensor, " n *grid"], reference: Float[Tensor, " m *same_grid"]) -> float:
    """Compute the mean squared error of the pointwise mean.

    Args:
        generated: Generated samples `(n, *grid)`.
        reference: Samples to compare with, `(m, *grid)`.

    Returns:
        The error, averaged over grid points.
    """
    _check(generated, reference)
    return _mean_over_points(generated, reference, lambda x, y: (x.mean(1) - y.mean(1)).square())


@explain_misuse
def smse(generated: Float[Tensor, " n *grid"], reference: Float[Tensor, " m *same_grid"]) -> float:
    """Compute the mean squared error of the pointwise standard deviation (n - 1 in the denominator).

    Args:
        generated: Generated samples `(n, *grid)`.
        reference: Samples to compare with, `(m, *grid)`.

    Returns:
        The error, averaged over grid points.
    """
    _check(generated, reference, sizes=(2, 2), purpose="a standard deviation")
    return _mean_over_points(generated, reference, lambda x, y: (x.std(1) - y.std(1)).square())


@explain_misuse
def w2(generated: Float[Tensor, " n *grid"], reference: Float[Tensor, " m *same_grid"]) -> float:
    """Compute the Wasserstein-2 distance of the marginals; sizes may differ.

    Args:
        generated: Generated samples `(n, *grid)`.
        reference: Samples to compare with, `(m, *grid)`.

    Returns:
        The distance, averaged over grid points.
    """
    _check(generated, reference)
    n, m = len(generated), len(reference)
    steps = torch.tensor(sorted({i * m for i in range(n + 1)} | {j * n for j in range(m + 1)}))
    steps = steps.to(generated.device)
    width = steps.diff().double() / (n * m)
    i, j = steps[:-1] // m, steps[:-1] // n

    def distance(x: Tensor, y: Tensor) -> Tensor:
        gap = _sort(x)[:, i].sub_(_sort(y)[:, j])
        return gap.square_().mul_(width).sum(1).sqrt()

    return _mean_over_points(generated, reference, distance)


@explain_misuse
def crps(generated: Float[Tensor, " n *grid"], reference: Float[Tensor, " m *same_grid"]) -> float:
    """Compute the continuous ranked probability score of the marginals, unbiased.

    Args:
        generated: Generated samples `(n, *grid)`.
        reference: Samples to compare with, `(m, *grid)`.

    Returns:
        The score, averaged over grid points and reference draws.
    """
    _check(generated, reference, sizes=(2, 1), purpose="an unbiased score")
    n, m = len(generated), len(reference)

    def score(x: Tensor, y: Tensor) -> Tensor:
        # The sums below cancel best around zero.
        centre = y.mean(1, keepdim=True)
        x, y = x - centre, y - centre
        inner_sum = _pair_sum(x)
        cross_sum = _pair_sum(torch.cat((x, y), 1)) - inner_sum - _pair_sum(y)
        return cross_sum / (n * m) - inner_sum / (n * (n - 1))

    return _mean_over_points(generated, reference, score)


@explain_misuse
def energy_score(generated: Float[Tensor, " n *grid"], reference: Float[Tensor, " m *same_grid"]) -> float:
    """Compute the energy score of whole fields, unbiased.

    Args:
        generated: Generated samples `(n, *grid)`.
        reference: Samples to compare with, `(m, *grid)`.

    Returns:
        The score, averaged over the reference draws.
    """
    _check(generated, reference, sizes=(2, 1), purpose="an unbiased score")
    n = len(generated)
    gram = torch.zeros(n, n + len(reference), dtype=torch.float64, device=generated.device)
    norms = gram.new_zeros(n + len(reference))
    for x, y in _chunks(generated, reference):
        z = torch.cat((x, y), 1) - y.mean(1, keepdim=True)
        gram += z[:, :n].T @ z
        norms += z.square().sum(0)
    d = (norms[:n, None] + norms - 2 * gram).clamp(min=0).sqrt()
    return float(d[:, n:].mean() - d[:, :n].fill_diagonal_(0).sum() / (2 * n * (n - 1)))


@explain_misuse
def frechet(features_a: Float[Tensor, "n dim"], features_b: Float[Tensor, "m dim"]) -> float:
    """Compute the squared Fréchet distance of the Gaussians fitted to two sets of feature vectors.

    Args:
        features_a: Features `(n, dim)`, one vector per sample.
        features_b: Features `(m, dim)`.

    Returns:
        The squared distance.

    Raises:
        SapcError: The features are not one vector per sample.
    """
    if features_a.ndim != 2:
        raise SapcError(f"features are one vector per sample, (n, dim), got shape {tuple(features_a.shape)}")
    _check(features_a, features_b, sizes=(2, 2), purpose="a covariance")
    x, y = (f.detach().to(features_a.device, torch.float64) for f in (features_a, features_b))
    mean, (A, B) = x.mean(0) - y.mean(0), map(_covariance_root, (x, y))
    cross = torch.linalg.svdvals(A @ B.T).sum()
    return max(0.0, float(mean.square().sum() + A.square().sum() + B.square().sum() - 2 * cross))


@explain_misuse
def constraint_error(rows: Float[Tensor, "batch rows"]) -> float:
    """Compute the mean over samples of the l2 norm of a residual's rows.

    Args:
        rows: The residual `(batch, rows)`.

    Returns:
        The mean norm.
    """
    return float(torch.linalg.vector_norm(rows.double(), dim=1).mean())


@explain_misuse
def ce_local(H: Residuals, fields: Float[Tensor, " n *grid"]) -> float:
    """Compute CE_L, the constraint error of the pins, in float64.

    Args:
        H: Manifold of the fields, or of one condition for all.
        fields: Fields `(n, *grid)`.

    Returns:
        The mean norm of the residual.
    """
    return _constraint_error(H, fields, lambda manifold, u: manifold.local(u))


@explain_misuse
def ce_global(H: Residuals, fields: Float[Tensor, " n *grid"]) -> float:
    """Compute CE_G, the constraint error of the balance laws, in float64.

    Args:
        H: Manifold of the fields, or of one condition for all.
        fields: Fields `(n, *grid)`.

    Returns:
        The mean norm of the residual.
    """
    return _constraint_error(H, fields, lambda manifold, u: manifold.balance(u))


@explain_misuse
def ce(local: float, global_: float, ffm_local: float, ffm_global: float) -> float:
    """Compute CE: both constraint errors as fractions of unconstrained FFM's, averaged; FFM itself has 1.

    Args:
        local: CE_L of the method.
        global_: CE_G of the method.
        ffm_local: CE_L of FFM.
        ffm_global: CE_G of FFM.

    Returns:
        CE.

    Raises:
        SapcError: An error of FFM is not positive.
    """
    if not (ffm_local > 0 and ffm_global > 0):
        raise SapcError(
            f"CE divides by FFM's own errors, which must be positive; got {ffm_local} and {ffm_global}"
        )
    return (local / ffm_local + global_ / ffm_global) / 2


DISTRIBUTION: dict[str, Metric] = {
    "mmse": mmse,
    "smse": smse,
    "w2": w2,
    "crps": crps,
    "energy_score": energy_score,
}


@explain_misuse
def sampling_floor(
    draw: Callable[[int, int], Tensor],
    n: int,
    m: int,
    metrics: Mapping[str, Metric] = DISTRIBUTION,
    repeats: int = 1,
) -> dict[str, float]:
    """Compute each metric between independent reference draws of `n` and `m` samples.

    Args:
        draw: `draw(seed, size)` returns reference fields; repeat k takes the seeds 2 k and 2 k + 1.
        n: Size of the draw in place of the generated samples.
        m: Size of the reference.
        metrics: The metrics, by name.
        repeats: Number of pairs of draws.

    Returns:
        The metrics by name, averaged over the pairs.

    Raises:
        SapcError: A size or the number of repeats is not positive.
    """
    if n < 1 or m < 1 or repeats < 1:
        raise SapcError(
            f"a sampling floor needs positive sizes and repeats, got n={n}, m={m}, repeats={repeats}"
        )
    values: dict[str, list[float]] = {name: [] for name in metrics}
    for k in range(repeats):
        x, y = draw(2 * k, n), draw(2 * k + 1, m)
        for name, metric in metrics.items():
            values[name].append(metric(x, y))
    return {name: math.fsum(v) / repeats for name, v in values.items()}


def _chunks(generated: Tensor, reference: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield both ensembles at some of the grid points at a time: float64 `(points, n)` and `(points, m)`."""
    x, y = generated.flatten(1), reference.flatten(1)
    step = max(1, BUDGET // (8 * COPIES * (len(x) + len(y))))
    for a in range(0, x.shape[1], step):
        part = slice(a, a + step)
        yield _points_first(x[:, part], x.device), _points_first(y[:, part], x.device)


def _points_first(x: Tensor, device: torch.device) -> Tensor:
    return x.to(device=device, dtype=torch.float64).T.contiguous()


def _mean_over_points(
    generated: Tensor, reference: Tensor, score: Callable[[Tensor, Tensor], Tensor]
) -> float:
    """Compute the mean of `score(x, y) -> (points,)` over all grid points."""
    sums = [float(score(x, y).sum()) for x, y in _chunks(generated, reference)]
    return math.fsum(sums) / generated[0].numel()


def _sort(x: Tensor) -> Tensor:
    """Sort the rows."""
    if x.is_cuda:
        return x.sort(1).values
    # On a CPU torch sorts the places as well, and takes ten times as long.
    return torch.from_numpy(np.sort(x.detach().numpy(), axis=1))


def _covariance_root(x: Tensor) -> Tensor:
    """Return A with A^T A the covariance of the rows of x, at most square."""
    A = (x - x.mean(0)) / math.sqrt(len(x) - 1)
    return A if len(A) <= A.shape[1] else torch.linalg.qr(A, mode="r").R


def _pair_sum(x: Tensor) -> Tensor:
    """Compute `sum_{i<j} |x_i - x_j|` along the rows."""
    n = x.shape[1]
    return _sort(x) @ torch.arange(1 - n, n, 2, dtype=x.dtype, device=x.device)


def _constraint_error(H: Residuals, fields: Tensor, rows: Callable[[Residuals, Tensor], Tensor]) -> float:
    """Compute the mean norm of rows, in chunks of samples where the manifold can be sliced."""
    n = len(fields)
    if n < 1:
        raise SapcError("a constraint error needs at least 1 sample, got 0")
    if fields.ndim < 2 or fields[0].numel() == 0:
        raise SapcError(f"a constraint error needs grid points, got fields of shape {tuple(fields.shape)}")
    _finite(fields, "generated")
    manifold: Any = H
    conditions = len(manifold) if hasattr(H, "__len__") else n
    if conditions not in (1, n):
        raise SapcError(
            f"{n} fields for {conditions} conditions; give one condition per field, or one for all"
        )
    step = max(1, BUDGET // (8 * COPIES * fields[0].numel())) if hasattr(H, "__getitem__") else n
    total = []
    for a in range(0, n, step):
        part = slice(a, a + step)
        R = rows(H if conditions == 1 or step >= n else manifold[part], fields[part].double())
        total.append(constraint_error(R) * len(R))
    return math.fsum(total) / n


def _check(
    generated: Tensor, reference: Tensor, sizes: tuple[int, int] = (1, 1), purpose: str = "a metric"
) -> None:
    """Refuse ensembles on different grids, with too few samples, or with values that are not finite."""
    if generated.ndim < 2 or generated.shape[1:] != reference.shape[1:]:
        raise SapcError(
            f"a metric compares ensembles (samples, *grid) on the same grid; the generated one has shape "
            f"{tuple(generated.shape)}, the reference {tuple(reference.shape)}"
        )
    if math.prod(generated.shape[1:]) == 0:
        raise SapcError(f"a metric needs grid points, got fields of shape {tuple(generated.shape)}")
    for name, u, size in zip(("generated", "reference"), (generated, reference), sizes, strict=True):
        if len(u) < size:
            raise SapcError(f"{purpose} needs at least {size} samples in the {name} ensemble, got {len(u)}")
        _finite(u, name)


def _finite(u: Tensor, name: str) -> None:
    step = max(1, BUDGET // (8 * COPIES * u[0].numel()))
    bad = sum(int((~part.isfinite().flatten(1).all(1)).sum()) for part in torch.split(u, step))
    if bad:
        raise SapcError(
            f"{bad} of the {len(u)} samples in the {name} ensemble contain NaN or infinity; leave them out, "
            "or find out why"
        )
