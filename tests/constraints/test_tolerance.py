"""Convergence, row by row at the result: what is reported as converged is measured again here, in higher
precision where rounding decides.

Starts are 10^k times noise, k = -8..8, one sample each, so that a tolerance taken from a start, or from a
batch mate, shows.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch
from test_projection import noise, tiny_fields, tiny_task

import sapc
from sapc.constraints.projection.tolerance import excess, row_tolerance

F64 = torch.float64
EPS = 2.0**-52
POWERS = range(-8, 9)
FEASIBLE = sapc.FeasiblePoint()


def starts(shape, seed=0, offset=0.0):
    """One sample of every size."""
    sizes = torch.tensor([10.0**k for k in POWERS], dtype=F64).reshape(-1, *(1,) * len(shape))
    return sizes * (offset + noise((len(POWERS), *shape), seed))


def limit(terms, tol):
    """The stated tolerance of a row."""
    return max(16 * EPS * float(terms), tol * min(1.0, float(terms)))


def of(report, first, last):
    """Whether all samples of these sizes converged."""
    return bool(report.converged[POWERS.index(first) : POWERS.index(last) + 1].all())


def test_a_quadratic_constraint_is_met_exactly_where_it_says_so():
    """Exact arithmetic: sum u^2 = 1, whose terms are 2 u^2 by the slope, u^2 and 1 by value."""
    H = sapc.Constraint(lambda u: (u**2).flatten(1).sum(1, keepdim=True), value=1.0).on(noise((1, 8, 4)))
    for solver in (FEASIBLE, sapc.NearestPoint(newton_steps=2), sapc.GaussNewton(n_iter=40)):
        p, report = H.with_solver(solver).solve(starts((8, 4)))
        for field, size, converged in zip(p, report.residual, report.converged, strict=True):
            total = sum(Fraction(float(x)) ** 2 for x in field.flatten())
            rounding = 16 * EPS * (3 * float(total) + 1)
            assert abs(abs(float(total - 1)) - float(size)) <= rounding
            assert not converged or abs(total - 1) <= limit(3 * total + 1, solver.tol)
        # Plain steps do not get there from far away.
        assert solver.tol > 1e-12 or of(report, 0, 8)


def test_starts_of_any_size_do_not_hide_a_residual():
    """What the issue shows: |R| of 0.03 from 1e6, and of 1664 from 1e8, was called converged."""
    for size in (1e6, 1e8):
        u = size * noise((1, 8, 4)).float()
        p, report = (
            sapc.Constraint(lambda u: (u**2).flatten(1).sum(1, keepdim=True), value=1.0).on(u).solve(u)
        )
        assert bool(report.converged)
        assert float(report.residual) < 1e-12
        assert abs(float((p.double() ** 2).sum()) - 1) < 1e-5


@pytest.mark.parametrize(
    ("name", "first", "last"), [("reaction_diffusion", -8, 8), ("stokes_ic", 0, 0), ("stokes_bc", -8, 8)]
)
def test_laws_of_the_tasks_from_starts_of_any_size(name, first, last):
    task = tiny_task(name)
    H, law = (
        task.manifold(tiny_fields(task, 1), solver=sapc.FeasiblePoint(passes=25, patience=0)),
        task.constraint.parts[1],
    )
    p, report = H.solve(starts(task.grid.shape))
    repeated = H.solve(p)[1]
    assert torch.equal(repeated.iterations[report.converged], 0 * repeated.iterations[report.converged])
    rows = H.balance(p)
    for i in torch.arange(len(p))[report.converged]:
        slope = torch.autograd.functional.jacobian(law.residual, p[i : i + 1])[0, :, 0].flatten(1)
        terms = (slope.abs() @ p[i].abs().flatten()) + law.magnitude(p[i : i + 1])[0]
        bound = torch.maximum(16 * EPS * terms, 1e-12 * terms.clamp(max=1))
        # The tolerance adds up frames, the slope has their sum: more for the first, never twice.
        assert bool((rows[i].abs() <= 2 * bound).all())
    assert of(report, first, last)


def test_samples_of_other_sizes_change_no_bit():
    task = tiny_task("reaction_diffusion")
    H, u = task.manifold(tiny_fields(task, 1), solver=FEASIBLE), starts(task.grid.shape)
    p = H.project(u)
    for i in (0, 8, 16):
        assert torch.equal(H.project(u[i : i + 1])[0], p[i])


def wide(u):
    return u.numpy().astype(np.longdouble)


def test_a_balance_with_a_rate_in_extended_precision():
    """e = sum u^2, s = -sum u, equal times; nothing pinned, so the result keeps the size of its start."""
    frames = 5
    times = torch.linspace(0, 1, frames, dtype=torch.float64)
    law = sapc.Balance(lambda u: (u**2).sum(1), lambda u: -u.sum(1), times=times)
    H = law.on(noise((1, 6, frames)), solver=FEASIBLE)
    assert H.algorithm == "banded Gauss-Newton"
    p, report = H.solve(starts((6, frames), 3))
    u, c = wide(p), np.longdouble(0.5) / (frames - 1)
    e, s = (u**2).sum(1), -u.sum(1)
    rows = e[:, 1:] - e[:, :1] - c * np.cumsum(s[:, 1:] + s[:, :-1], 1)
    # By slope: 2 u^2 of the frames and |u| of the rates; by value: e and |s|.
    stored, supplied = 3 * e, np.abs(u).sum(1) + np.abs(s)
    terms = stored[:, 1:] + stored[:, :1] + c * np.cumsum(supplied[:, 1:] + supplied[:, :-1], 1)
    bound = np.maximum(16 * EPS * terms, 1e-12 * np.minimum(terms, 1))
    assert (np.abs(rows) <= bound * (1 + 1e-9))[report.converged.numpy()].all()
    assert of(report, -8, 8)


def test_small_units_are_not_on_every_manifold():
    """Energies of 1e-16: they were conserved 'to 1e-12' whatever they did."""
    f = 1e-8 * (2 + noise((2, 6, 5), 1))
    H = (sapc.Pin.frame(0) & sapc.Balance(lambda u: (u**2).sum(1))).on(f)
    for solver in (sapc.NearestPoint(), FEASIBLE, sapc.GaussNewton(n_iter=30, mu=0, tol=1e-6)):
        p, report = H.with_solver(solver).solve(f + 1e-9 * noise(f.shape, 2))
        energy = (p**2).sum(1)
        assert bool(report.converged.all())
        assert (energy - energy[:, :1]).abs().max() <= 4 * solver.tol * energy.max()


def test_closed_form_in_extended_precision():
    """Starts with a large mean, which is all taken away: the digits that this costs come back."""
    grid = sapc.Grid((sapc.Axis("x", 12), sapc.Axis("t", 5)))
    f, u = noise((1, 12, 5), 1), starts((12, 5), 2, offset=1.0)
    H = (sapc.Pin.frame(0) & sapc.Balance(grid.integral())).on(f)
    p, report = H.solve(u)
    w = wide(grid.integral().weights.double())[:, None]
    total, size = (w * wide(p)).sum(1), (w * np.abs(wide(p))).sum(1)
    rows = total[:, 1:] - total[:, :1]
    terms = size[:, 1:] + size[:, :1] + np.abs(total[:, 1:]) + np.abs(total[:, :1])
    assert (np.abs(rows) <= 16 * EPS * terms).all()
    assert of(report, -8, 8)
    # Equal weights take all of the mean away, and what is left is of order one.
    equal = (sapc.Pin.frame(0) & sapc.Balance(grid.total())).on(f)
    q, met = equal.solve(torch.full_like(f, 1e8) + f)
    assert bool(met.converged)
    assert equal.balance(q).abs().max() < 1e-13


@pytest.mark.parametrize("large", [1e14, 1e-14])
def test_a_large_row_hides_no_small_one(large):
    """Exact arithmetic: rows of very different units, each met in its own."""
    a, f = noise((3, 20), 1), noise((1, 5, 4), 2)
    a[1] *= large
    target = torch.tensor([1.0, large, -2.0], dtype=F64)
    p, report = sapc.Affine(a, target).on(f).solve(starts((5, 4), 3))
    for field, converged in zip(p, report.converged, strict=True):
        u = [Fraction(float(x)) for x in field.flatten()]
        for row, b in zip(a.tolist(), target.tolist(), strict=True):
            parts = [Fraction(x) * y for x, y in zip(row, u, strict=True)]
            terms = sum(abs(x) for x in parts) + abs(sum(parts)) + abs(Fraction(b))
            assert not converged or abs(sum(parts) - Fraction(b)) <= limit(terms, 0.0)
    assert of(report, -8, 8)


def test_a_row_that_is_off_is_not_hidden_by_a_larger_one():
    """Two rows that contradict each other beside a huge one that is met."""
    a = torch.zeros(3, 20, dtype=F64)
    a[0, 0], a[1, 0], a[2, 1] = 1.0, 1.0, 1e14
    H = sapc.Affine(a, torch.tensor([0.0, 1.0, 1e14], dtype=F64)).on(noise((1, 5, 4)))
    _, report = H.solve(noise((2, 5, 4), 1))
    assert not bool(report.converged.any())
    sphere = sapc.Constraint(
        lambda u: torch.stack((u[:, 0, 0] ** 2, 1e14 * u[:, 1, 1]), 1), torch.tensor([-1.0, 1e14])
    )
    assert not bool(sphere.on(noise((1, 5, 4))).solve(noise((2, 5, 4), 1))[1].converged.any())


def test_the_tolerance_of_a_row():
    terms = torch.tensor([[0.0, 1e-6, 1.0, 1e8, torch.inf]], dtype=F64)
    got = row_tolerance(terms, 1e-12)[0]
    assert got[:4].tolist() == [2.0**-1022, 1e-12 * 1e-6, 1e-12, 16 * EPS * 1e8]
    assert bool(got[4].isnan())
    rows = torch.tensor([[0.0, 1e-19, -2e-12, 0.0]], dtype=F64)
    assert float(excess(rows, got[None, :4])) == 2.0
    assert bool(excess(torch.zeros(1, 5, dtype=F64), got[None]).isnan())
    assert bool(excess(rows * torch.nan, got[None, :4]).isnan())
