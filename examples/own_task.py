"""How to add a task: a PDE with its grid, its constraint, its random parameters and its solver, in one class.

    u_t + c u_x = -a u      on a ring: a wave that travels at speed c and decays at the rate a = 1/2

The initial profile is pinned; the speed is random, so one profile has many futures. All of them lose mass at
the same rate: d/dt int u dx = -a int u dx.

A task made like this has everything that the built-in ones have: splits, test sets, sampling floors, every
method, studies. As a plug-in: `sapc --plugin examples/own_task.py train leaky_wave --preset small`. If you
have files of simulations instead of a solver, see shallow_water.py.

    python examples/own_task.py
"""

import math
import tempfile
from functools import cached_property

import torch

import sapc

DECAY = 0.5


class LeakyWave(sapc.Task):
    """Transport with decay on a ring."""

    name = "leaky_wave"
    title = "Leaky wave"
    equation = "∂u/∂t + c ∂u/∂x = -a u"
    pinned = "initial condition u(x, 0)"
    law = "mass decays: ∫u dx changes by -a ∫∫u dx dt"
    parameters = {"place": "p ~ U[0, 1]; one per test set", "speed": "c ~ U[0, 1]"}  # noqa: RUF012
    paper_grid = sapc.Grid((sapc.Axis("x", 48, kind="periodic"), sapc.Axis("t", 32)))
    train_size = 1000

    @cached_property
    def constraint(self):
        """The pinned initial frame, and the balance of mass."""
        mass = self.grid.integral()
        return sapc.Pin.frame(0) & sapc.Balance(mass, rate=lambda u: -DECAY * mass(u), grid=self.grid)

    def _draw(self, streams, size):
        """Draw the parameters, each from its own random numbers; a test set has one condition."""
        i, _ = streams.independent_pairs(size)
        place = streams.condition.uniform("place", 0, 1, int(i.max()) + 1)[i]
        return {"place": place, "speed": streams.uniform("speed", 0, 1, size)}

    def _solve(self, parameters):
        """Solve for one field per row of the parameters, in float64; here in closed form."""
        p, c = (parameters[name][:, None, None] for name in ("place", "speed"))
        x, t = (z.to(p) for z in self.grid.mesh())
        return torch.exp(-DECAY * t) * (1 + torch.exp(2 * torch.cos(2 * math.pi * (x - c * t - p)) - 2))


TASK = sapc.register_task(LeakyWave)


def main():
    """Train, sample and score the task, at a size that takes seconds."""
    task = sapc.get_task("leaky_wave")
    truth = task.dataset("test0", size=8).fields.double()
    _, report = task.manifold(truth).solve(truth)
    error = task.manifold(truth).balance(truth).abs().max()
    print(f"{report.algorithm}; solutions miss the discrete law by {error:.0e}")
    assert report.converged.all()

    with tempfile.TemporaryDirectory() as folder:
        model = sapc.train("leaky_wave", preset="tiny", out=folder, grid=(24, 16), steps=60)
        scores = sapc.evaluate(model, ["test0"], samples=16, reference=64, steps=10, floor_repeats=1)
    set0 = scores["sets"]["test0"]
    w2, floor, residual = set0["metrics"]["w2"], set0["floor"]["w2"][0], set0["worst_residual"]
    print(f"W2 {w2:.2f}, floor {floor:.3f}; residuals {residual}")
    assert residual["local"] == 0
    assert residual["balance"] < 1e-9


if __name__ == "__main__":
    main()
