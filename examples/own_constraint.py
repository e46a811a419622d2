"""How to add a constraint: any differentiable function of the fields, here a quadratic invariant.

    q' = p,  p' = -q      an oscillator at every point x; q^2 + p^2 does not change in time

No structure is declared for it, so it takes the dense path: the Jacobian of all rows by automatic
differentiation, which is fine for a small grid. Pins, projection, training and sampling are the same code as
for the laws that have structure.

    python examples/own_constraint.py
"""

import tempfile

import torch

import sapc

GRID = sapc.Grid((sapc.Axis("x", 12, kind="periodic"), sapc.Axis("t", 8, 0.0, 3.0)), channels=("q", "p"))


def simulate(n, seed):
    """Simulate oscillators whose amplitude and phase vary along x."""
    g = torch.Generator().manual_seed(seed)
    x, t = GRID.mesh()
    a, b, shift = torch.rand(3, n, 1, 1, generator=g, dtype=torch.float64)
    amplitude = 1 + 0.5 * a * torch.sin(2 * torch.pi * (x + shift))
    phase = 6 * b + torch.cos(2 * torch.pi * x)
    return torch.stack((amplitude * torch.sin(t + phase), amplitude * torch.cos(t + phase)), 1)


def energy(u):
    """Return the change of q^2 + p^2 since the first frame: rows `(batch, points x times)`."""
    e = u.square().sum(1)
    return (e[..., 1:] - e[..., :1]).flatten(1)


def physics(grid):
    """Pin q at the start and p at one point, and keep the energy of every point."""
    return (
        sapc.Pin.frame(0, grid=grid, channel="q")
        & sapc.Pin.at(grid, x=0, channel="p")
        & sapc.Constraint(energy)
    )


def main():
    """Use the constraint by itself, and in a model."""
    u = simulate(64, seed=0)
    H = physics(GRID).on(u[:4])
    v, report = H.solve(u[:4] + 0.3 * torch.randn(4, *GRID.shape, dtype=torch.float64))
    print(
        f"{report.algorithm}: |R| {report.residual.max():.0e} after at most {report.iterations.max()} passes"
    )
    assert report.algorithm == "dense Gauss-Newton"
    assert H.residual(v).abs().max() < 1e-9

    data = sapc.Fields(u.float(), GRID, origin={"path": "oscillators", "sha256": "made here"})
    task = sapc.Task.from_data(data, physics, "oscillators")
    print(sapc.check(task, noise=8).text())
    with tempfile.TemporaryDirectory() as folder:
        model = sapc.train(task, preset="tiny", steps=40, out=folder)
        fields = model.sample(4, condition=u[:1], steps=5)
    worst = energy(fields).abs().max().item()
    print(f"samples keep the energy of every point to {worst:.0e}")
    assert worst < 1e-9


if __name__ == "__main__":
    main()
