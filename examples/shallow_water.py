"""From simulations to a sampled ensemble that keeps its mass: shallow water, as data of one's own.

    h_t + (h u)_x + (h v)_y = 0
    u_t + u u_x + v u_y + g h_x = 0      on a periodic square, g = 1; h: height of the water, (u, v): velocity
    v_t + u v_x + v v_y + g h_y = 0

The height is known at the start; the currents are not, and are random. So one initial height has many
futures. Every one of them has the same mass: int h dx dy does not change, and samples will keep it to
rounding.

    # Simulate, look, train, sample, compare: a few minutes on two CPU cores.
    python examples/shallow_water.py runs/shallow
    # The same in seconds; the samples mean nothing, but keep their mass.
    python examples/shallow_water.py runs/shallow --steps 30
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import xarray as xr

import sapc

POINTS, FRAMES, END = 16, 10, 0.5


def simulate(samples, seed, bumps=None):
    """Simulate by central differences and Heun steps; mass is kept to rounding."""
    rng = np.random.default_rng(seed)
    x = (np.arange(POINTS) + 0.5) / POINTS
    X, Y = np.meshgrid(x, x, indexing="ij")
    # A bump at a random place, and currents from a random stream function: three waves.
    place = rng.uniform(0, 1, (samples, 2)) if bumps is None else np.broadcast_to(bumps, (samples, 2))
    distances = [np.sin(np.pi * (Z - place[:, i, None, None])) ** 2 for i, Z in enumerate((X, Y))]
    h = 1 + 0.3 * np.exp(-8 * (distances[0] + distances[1]))
    k = rng.integers(-1, 2, (samples, 3, 2))
    a, phase = rng.normal(0, 0.03, (samples, 3)), rng.uniform(0, 2 * np.pi, (samples, 3))
    angle = 2 * np.pi * (k[..., 0, None, None] * X + k[..., 1, None, None] * Y) + phase[..., None, None]
    u = (a[..., None, None] * k[..., 1, None, None] * 2 * np.pi * -np.sin(angle)).sum(1)
    v = -(a[..., None, None] * k[..., 0, None, None] * 2 * np.pi * -np.sin(angle)).sum(1)
    state, frames = np.stack((h, u, v)), []
    steps = 20
    dt = END / (FRAMES - 1) / steps
    for _ in range(FRAMES):
        frames.append(state)
        for _ in range(steps):
            first = slope(state)
            state = state + dt / 2 * (first + slope(state + dt * first))
    # (channel, sample, x, y, t)
    return np.stack(frames, -1).astype(np.float32)


def slope(state):
    """Return central differences; those of h are of fluxes, so that the sum of h does not change."""
    h, u, v = state
    d = lambda f, axis: (np.roll(f, -1, axis) - np.roll(f, 1, axis)) * (POINTS / 2)
    return np.stack(
        (
            -d(h * u, 1) - d(h * v, 2),
            -u * d(u, 1) - v * d(u, 2) - d(h, 1),
            -u * d(v, 1) - v * d(v, 2) - d(h, 2),
        )
    )


def save(path, fields):
    """Write NetCDF, as any simulation code might."""
    x, dims = (np.arange(POINTS) + 0.5) / POINTS, ("sample", "x", "y", "time")
    units = {"h": "m", "u": "m s-1", "v": "m s-1"}
    xr.Dataset(
        {name: (dims, fields[i], {"units": unit}) for i, (name, unit) in enumerate(units.items())},
        {
            "x": ("x", x, {"units": "m", "periodic": 1}),
            "y": ("y", x, {"units": "m", "periodic": 1}),
            "time": ("time", np.linspace(0, END, FRAMES), {"units": "s"}),
        },
    ).to_netcdf(path, engine="h5netcdf")


def physics(grid):
    """Pin the height at the start, and conserve mass."""
    mass = sapc.Balance(grid.integral("h"), grid=grid)
    return sapc.Pin.frame(0, grid=grid, channel="h") & mass


def main():
    """Simulate, train, sample and compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    save(options.out / "simulations.nc", simulate(options.samples, seed=0))
    data = sapc.read_fields(options.out / "simulations.nc")
    task = sapc.Task.from_data(data, physics, "shallow_water")
    print(sapc.check(task).text())

    model = sapc.train(task, preset="small", out=options.out / "model", steps=options.steps, progress=show)

    # One initial height that the training has not seen, with 64 simulations of what may follow.
    truth = torch.from_numpy(simulate(64, seed=1, bumps=(0.3, 0.6))).movedim(0, 1).double()
    fields = model.sample(64, condition=truth[:1])

    H = model.manifold(truth[:1])
    law, pins = H.balance(fields).abs().max().item(), H.local(fields).abs().max().item()
    print(f"of 64 samples: mass off by {law:.1e} at most, the initial height by {pins:.1e}")
    assert law < 1e-13, law
    assert pins == 0, pins
    compare(fields, truth, model.task.grid, model.task.units, options.out / "samples.nc")


def show(step, steps, losses):
    """Print every hundredth step."""
    if step % 100 == 0 or step == steps:
        print(f"step {step} of {steps}: loss {losses.get('loss', float('nan')):.3f}", flush=True)


def compare(fields, truth, grid, units, path):
    """Compare mean and spread with the simulations', and write a file that xarray and ParaView open."""
    for i, name in enumerate(grid.channels):
        ours, theirs = fields[:, i, ..., -1], truth[:, i, ..., -1]
        mean = (ours.mean(0) - theirs.mean(0)).square().mean().sqrt() / theirs.std()
        spread = (ours.std(0).mean() / theirs.std(0).mean()).item()
        print(
            f"{name} at the end: mean off by {mean:.2f} of the deviation, spread {spread:.2f} of simulations'"
        )
    dataset = sapc.to_xarray(fields, grid, units=units, quantiles=(0.05, 0.5, 0.95))
    sapc.data.write_netcdf(path, dataset)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
