"""Samples that need many short steps: trained networks leave about one in a hundred Stokes fields where the
law bends that strongly.

`golden/slow-projections.safetensors` holds three such fields, float32, by task and test set: states of
trained SAPC models before their last projection, which 80 passes with the test of `gauss_newton` and 80
without leave at |R| of 9e-3 to 1e-1.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_projection import noise, relative, tiny_fields, tiny_task

import sapc

SLOW = load_file(Path(__file__).parents[1] / "golden" / "slow-projections.safetensors")
FEASIBLE = sapc.FeasiblePoint()


def case(key):
    """The manifold of a test set, and its slow fields."""
    name, split = key.split("-")
    task = sapc.get_task(name)
    f = task.dataset(split, size=1).fields.double()
    return task.manifold(f, solver=FEASIBLE), SLOW[key].double()


@pytest.mark.slow
@pytest.mark.parametrize("key", SLOW)
def test_who_needs_many_steps_gets_there_not_far_away(key):
    H, u = case(key)
    p, report = H.solve(u)
    # Missed with the test and without.
    assert (report.iterations > 2 * 80).all()
    assert bool(report.converged.all())
    assert H.balance(p).abs().max() <= 1e-11
    assert (H.local(p) == 0).all()
    assert (report.distance < 0.03 * u.flatten(1).norm(dim=1)).all()


def test_estimates_on_the_way_are_cut_off_as_ever():
    H, u = case("stokes_bc-test3")
    for M in (
        H.approximate(),
        H.approximate(ahead=True),
        H.with_solver(sapc.FeasiblePoint(execution=sapc.Execution(ahead=True))),
    ):
        assert (M.solve(u)[1].iterations <= M.solver.passes).all()


def far(name, **changes):
    task = tiny_task(name)
    f = tiny_fields(task, 12)
    return task.manifold(f, solver=sapc.FeasiblePoint(**changes)), 0.1 * noise(f.shape)


@pytest.mark.parametrize("name", ["stokes_ic", "stokes_bc"])
def test_batch_mates_neither_help_nor_suffer(name):
    """Samples that go on end at the same bits alone; the others are where they are without patience."""
    H, u = far(name, passes=6, patience=80)
    p, report = H.solve(u)
    before, first = H.with_solver(sapc.FeasiblePoint(passes=6, patience=0)).solve(u)
    usual = first.converged
    assert 0 < int(usual.sum()) < len(u) - 2
    assert bool(report.converged.all())
    assert torch.equal(p[usual], before[usual])
    assert torch.equal(report.iterations[usual], first.iterations[usual])
    for i in range(len(u)):
        assert torch.equal(p[i : i + 1], H[i].project(u[i : i + 1]))


def test_the_nearest_point_is_sought_from_there():
    H, u = far("stokes_ic", passes=5, patience=80)
    feasible = H.solve(u)[1]
    nearer = H.with_solver(sapc.NearestPoint(newton_steps=2, passes=5, patience=80)).solve(u)[1]
    late = feasible.iterations > 2 * 5
    assert int(late.sum()) >= 3
    assert bool(nearer.converged.all())
    assert (nearer.distance < feasible.distance)[late].all()


@pytest.mark.parametrize("name", ["stokes_ic", "stokes_bc"])
def test_a_long_attempt_is_the_short_one_gone_on_with(name):
    """Whoever misses within five passes ends where passes without a limit, in one attempt, lead; the dense
    path agrees.
    """
    H, u = far(name, passes=5, patience=80)
    want, free = H.with_solver(sapc.FeasiblePoint(retry=False)).solve(u)
    _, short = H.with_solver(sapc.FeasiblePoint(passes=5, patience=0)).solve(u)
    got, report = H.solve(u)
    late = ~short.converged & free.converged
    assert int(late.sum()) >= 3
    assert torch.equal(got[late], want[late])
    assert torch.equal(report.iterations[late], 5 + 5 + free.iterations[late])
    dense, expected_info = H.dense().solve(u)
    assert torch.equal(expected_info.converged, report.converged)
    assert relative(dense, got) < 1e-7


def test_whoever_got_stuck_does_not_try_the_same_again():
    """A test that nothing passes ends its attempt after four trials; the longer attempt is then the one that
    accepts any decrease.
    """
    H, u = far("stokes_ic", kappa=1e-9, passes=5, patience=0)
    short = H.solve(u)[1]
    report = H.with_solver(sapc.FeasiblePoint(kappa=1e-9, passes=5, patience=300)).solve(u)[1]
    late = ~short.converged
    assert int(late.sum()) >= 3
    assert (short.iterations[late] == 4 + 5).all()
    assert bool(report.converged.all())
    assert (report.iterations[late] <= 4 + 5 + 300).all()


def test_a_law_that_cannot_be_met_ends_and_is_reported():
    """Two pinned frames of different energy, and no flow of it: no patience helps."""
    task = tiny_task("heat")
    f = noise((2, *task.grid.shape), 1)
    law = sapc.Balance(lambda u: (u**2).sum(1))
    H = (sapc.Pin.at(t=0) & sapc.Pin.frame(3) & law).on(f, solver=FEASIBLE)
    with pytest.warns(sapc.SapcWarning, match="2 of 2 fields did not reach the manifold"):
        H.project(noise(f.shape, 2))


def test_negative_patience_is_refused():
    with pytest.raises(sapc.SapcError, match="patience >= 0"):
        sapc.NearestPoint(patience=-1)
