"""Ensembles that follow their initial condition: Kuramoto-Sivashinsky, as data of one's own.

    u_t + u u_x + u_xx + u_xxxx = 0      on a ring of length 22, where u has mean zero

A few hundred simulations are all there is, and each has an initial condition of its own. Without `method=`
such data are learned by `cond_sapc`: SAPC whose network is also shown what is pinned. Its samples keep the
initial values and the mean to rounding, as SAPC's do, and they follow the initial values much better.

    # Simulate, train, sample, compare: a few minutes on two CPU cores.
    python examples/kuramoto_sivashinsky.py runs/ks
    # The paper's method on the same simulations, to compare.
    python examples/kuramoto_sivashinsky.py runs/ks --method sapc
    # The same in seconds; the samples mean nothing, but keep what is to be kept.
    python examples/kuramoto_sivashinsky.py runs/ks --steps 30 --samples 40
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch

import sapc
from sapc.tasks.etdrk4 import frames

POINTS, FRAMES, LENGTH, SPACING = 64, 40, 22.0, 1.0
CONDITIONS, MEMBERS = 8, 8


def simulate(samples, seed=0):
    """Simulate by Fourier modes and exponential steps of order 4, once the start is forgotten."""
    k = 2 * math.pi / LENGTH * torch.arange(POINTS // 2 + 1, dtype=torch.float64)
    # Two thirds of the modes: the others would be wrong by aliasing.
    is_kept = torch.arange(len(k)) < POINTS / 3
    to_slope = -0.5j * k * is_kept
    N = lambda v: to_slope * torch.fft.rfft(torch.fft.irfft(v, n=POINTS).square())
    g = torch.Generator().manual_seed(seed)
    start = torch.fft.rfft(torch.randn(samples, POINTS, generator=g, dtype=torch.float64))
    start = start * (is_kept & (k > 0))
    (v,) = frames(start, k**2 - k**4, N, 100.0, 1, 0.1)
    states = [v, *frames(v, k**2 - k**4, N, SPACING, FRAMES - 1, 0.1)]
    # (sample, x, t)
    return torch.fft.irfft(torch.stack(states, -1), n=POINTS, dim=1)


def physics(grid):
    """Pin the initial values, and conserve the mean."""
    return sapc.Pin.frame(0) & sapc.Balance(grid.integral(), grid=grid)


def main():
    """Simulate, train, sample and compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--method", default=None, help="cond_sapc unless given")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    axes = {"x": LENGTH / POINTS * np.arange(POINTS), "t": SPACING * np.arange(FRAMES)}
    np.savez(options.out / "simulations.npz", u=simulate(options.samples).float(), **axes)
    data = sapc.read_fields(options.out / "simulations.npz", periodic=["x"])
    task = sapc.Task.from_data(data, physics, "kuramoto_sivashinsky")
    folder = options.out / (options.method or "model")
    model = sapc.train(task, options.method, out=folder, steps=options.steps)

    # Initial conditions that were held out, with what came after them, and an ensemble for each.
    truth = task.dataset("validation").fields[:CONDITIONS].double()
    fields = model.sample(len(truth) * MEMBERS, truth)
    H = model.manifold(truth.repeat_interleave(MEMBERS, 0))
    law, pins = H.balance(fields).abs().max().item(), H.local(fields).abs().max().item()
    print(f"{model.method.name}: the integral is off by {law:.0e}, initial values by {pins:.0e}")
    assert model.method.exact != "all" or (law < 1e-12 and pins == 0), (law, pins)

    mean = fields.reshape(len(truth), MEMBERS, *truth.shape[1:]).mean(1)
    print("error relative to the deviation of u, at frame", *(f"{n:5d}" for n in (1, 3, 5, 10)))
    for name, guess in (("mean of the ensemble", mean), ("persistence", truth[..., :1].expand_as(truth))):
        error = (guess - truth).square().mean((0, 1)).sqrt() / truth.std()
        print(f"{name:46s}", *(f"{error[n]:5.2f}" for n in (1, 3, 5, 10)))


if __name__ == "__main__":
    main()
