"""A rate is integrated over physical time: the times of a balance law are those of its grid, and none are
made up.
"""

from __future__ import annotations

import pytest
import torch

import sapc
from sapc.data.normalizer import Normalizer
from sapc.grid import Axis, Grid
from sapc.tasks.rescale import rescale

GRID = Grid((Axis("x", 6, kind="periodic"), Axis("t", 40, 0.0, 3.0)), ("u",))


def growth(on, **times):
    """d/dt of the mass is the mass."""
    return sapc.Balance(on.integral(), rate=on.integral(), **times)


def grown(grid, n=2):
    """What satisfies it, but for the trapezoid rule: u = c exp(t)."""
    t = grid.time.points
    start = torch.rand(n, *grid.points_per_axis[:-1], 1, dtype=torch.float64) + 1
    return start * trapezoid(t)


def trapezoid(t):
    """m(t) with m' = m by the trapezoid rule: each step multiplies by (1 + h / 2) / (1 - h / 2)."""
    h = t.diff()
    return torch.cat((h.new_ones(1), ((1 + h / 2) / (1 - h / 2)).cumprod(0)))


def test_a_rate_without_times_is_refused_where_no_grid_is_known():
    u = grown(GRID)
    for law in (growth(GRID), sapc.Pin.frame(0) & growth(GRID)):
        with pytest.raises(sapc.SapcError, match=r"needs the times of its frames.*grid=grid") as caught:
            law.on(u)
        assert "\n" not in str(caught.value)


def test_the_grid_gives_the_times():
    u = grown(GRID)
    law = growth(GRID, grid=GRID)
    assert torch.equal(law.times, GRID.time.points)
    assert law.on(u).residual(u).abs().max() < 1e-12
    assert growth(GRID, times=torch.linspace(0, 1, 40)).on(u).residual(u).abs().max() > 1


def test_without_a_rate_times_do_not_matter():
    u = torch.rand(2, *GRID.shape, dtype=torch.float64)
    laws = [
        sapc.Balance(GRID.integral(), **arguments)
        for arguments in ({}, {"grid": GRID}, {"times": torch.arange(40)})
    ]
    H = [(sapc.Pin.frame(0) & law).on(u) for law in laws]
    assert torch.equal(H[0].project(u), H[1].project(u))
    assert torch.equal(H[0].project(u), H[2].project(u))
    energy = sapc.Balance(
        lambda v: GRID.integral()(v**2)
        # Not linear, so the banded algorithm asks for steps.
    )
    assert energy.on(u).residual(energy.on(u).project(u)).abs().max() < 1e-10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grid": GRID, "times": GRID.time.points}, "leave one of the two out"),
        ({"grid": Grid((Axis("x", 5), Axis("y", 4)), steady=True)}, "steady"),
    ],
)
def test_bad_grids_are_refused(arguments, message):
    with pytest.raises(sapc.SapcError, match=message):
        sapc.Balance(lambda u: u.sum(1), **arguments)


class Growth(sapc.get_task("heat").__class__):
    """A task whose author forgot the times."""

    paper_grid = Grid((Axis("x", 6, kind="periodic"), Axis("t", 40, 0.0, 3.0)))

    @property
    def constraint(self):
        return sapc.Pin.frame(0) & growth(self.grid)


def test_a_task_gives_its_times():
    task = Growth()
    u = grown(task.grid)
    H = task.manifold(u)
    assert H.residual(u).abs().max() < 1e-12
    assert H.residual(H.project(torch.rand_like(u))).abs().max() < 1e-10
    longer = Growth(Grid((task.grid["x"], Axis("t", 40, 0.0, 6.0))))
    assert longer.manifold(u).residual(u).abs().max() > 1


def test_own_data_give_their_times_and_so_do_constraints_added_later():
    u = grown(GRID, 12)
    data = sapc.Fields(u.float(), GRID)
    task = sapc.Task.from_data(data, lambda grid: sapc.Pin.frame(0) & growth(grid), "growth")
    H = task.manifold(u)
    assert H.residual(u).abs().max() < 1e-12
    w = torch.randn(12, *GRID.shape, dtype=torch.float64)
    # In the network's units.
    v = task.denormalize(task.normalized_manifold(task.normalize(u)).project(w))
    assert H.residual(v).abs().max() < 1e-9
    plain = sapc.Task.from_data(data, sapc.Pin.frame(0), "plain")
    assert plain.manifold(u, growth(GRID)).residual(u).abs().max() < 1e-12
    v = plain.denormalize(plain.normalized_manifold(plain.normalize(u), growth(GRID)).project(w))
    assert H.residual(v).abs().max() < 1e-9


def test_units_keep_times():
    scale = Normalizer.fit(grown(GRID, 3), GRID)
    assert torch.equal(rescale(growth(GRID), scale).parts[0].times, GRID.time.points)


def test_a_law_is_the_same_each_time_it_gets_its_times_and_labels_tell_times_apart():
    """What was compiled for a law is found again by the law or by its label."""
    law = growth(GRID)
    assert law.with_times_of(GRID) is law.with_times_of(GRID)
    law_with_label = sapc.Balance(GRID.integral(), GRID.integral(), label="growth")
    longer = Grid((GRID["x"], Axis("t", 40, 0.0, 6.0)), ("u",))
    assert law_with_label.with_times_of(GRID).label != law_with_label.with_times_of(longer).label
    law_with_times = growth(GRID, grid=longer)
    assert law_with_times.with_times_of(GRID) is law_with_times
