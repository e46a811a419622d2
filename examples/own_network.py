"""A network of your own, in one file: a small U-Net in place of the FNO, on Heat and on fields from a file.

A network is any torch.nn.Module (fields, times) -> fields. The samples of SAPC satisfy their constraints
whatever it is.
"""

import sys
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, interpolate

import sapc


def convolve(inputs, outputs):
    """Make one layer; not with BatchNorm: a sample must not depend on the others of its batch."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.GELU())


class UNet(nn.Module):
    """Fields (batch, *grid) of one channel, on two axes of any length."""

    def __init__(self, width=16):
        super().__init__()
        self.down, self.bottom = convolve(2, width), convolve(width, 2 * width)
        self.up, self.out = convolve(3 * width, width), nn.Conv2d(width, 1, 1)

    def forward(self, fields, times):
        """Return the velocity of fields at flow times, one per field, in the shape of the fields."""
        fine = self.down(torch.stack((fields, times.view(-1, 1, 1).expand_as(fields)), 1))
        coarse = self.bottom(avg_pool2d(fine, 2, ceil_mode=True))
        coarse = interpolate(coarse, fine.shape[-2:], mode="bilinear")
        return self.out(self.up(torch.cat((fine, coarse), 1)))[:, 0]


def show(model, condition):
    """Draw samples and say how well they satisfy their constraints."""
    fields = model.sample(n=8, condition=condition, steps=20)
    residual = float(model.manifold(condition).residual(fields).abs().max())
    print(f"{model.task.name:6} {model.parameters:,} parameters   largest residual {residual:.0e}")
    assert residual < 1e-10, "a sample is off its manifold"


if __name__ == "__main__":
    home = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()

    # A class makes the network with the seed of the run; a module, as UNet(width=8), keeps its weights.
    model = sapc.train("heat", preset="tiny", out=f"{home}/heat", network=UNet, steps=60)
    show(model, model.task.dataset("test0", size=1).fields)
    # The folder names the class, and does not import it: whoever loads the model passes the network again.
    model = sapc.load(f"{home}/heat", network=UNet)

    # Waves, as they may be in a file: their first frame is given, and their integral over x stays what it is.
    x, t = np.arange(24) / 24, np.linspace(0, 0.5, 16)
    shift = np.random.default_rng(0).uniform(size=(64, 1, 1))
    np.savez(f"{home}/waves.npz", h=1 + np.sin(2 * np.pi * (x[:, None] - t + shift)), x=x, t=t)
    data = sapc.read_fields(f"{home}/waves.npz", periodic=["x"])
    mass = sapc.Balance(data.grid.integral(), grid=data.grid)
    task = sapc.Task.from_data(data, sapc.Pin.frame(0) & mass, "waves")
    model = sapc.train(task, preset="tiny", out=f"{home}/waves", network=UNet(width=8), steps=60)
    show(model, task.dataset("validation").fields[:1])
