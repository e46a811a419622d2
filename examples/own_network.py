"""A network of your own, in one file: a small U-Net in place of the FNO, on Heat and on fields from a file.

A network is any torch.nn.Module (fields, times) -> fields. The samples of SAPC satisfy their constraints whatever it is.
"""

import sys
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn.functional import gelu, interpolate

import sapc


class Block(nn.Module):
    """Two convolutions with the flow time added between them, beside a shortcut."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.second = (nn.Conv2d(n, outputs, 3, padding=1) for n in (inputs, outputs))
        self.time, self.shortcut = nn.Linear(16, outputs), nn.Conv2d(inputs, outputs, 1)
        self.norm = nn.GroupNorm(
            4, outputs
        )  # not BatchNorm: a sample must not depend on the others of its batch

    def forward(self, x, time):
        """(batch, channels, *grid) and (batch, 16)."""
        y = gelu(self.norm(self.first(x)) + self.time(time)[:, :, None, None])
        return self.shortcut(x) + self.second(y)


class UNet(nn.Module):
    """Fields (batch, *grid), or (batch, channels, *grid) if there are several channels, on two axes of any length."""

    def __init__(self, channels=1, width=16):
        super().__init__()
        self.channels = channels
        self.down1, self.down2 = Block(channels, width), Block(width, 2 * width)
        self.up2, self.up1 = Block(2 * width, 2 * width), Block(3 * width, width)
        self.out = nn.Conv2d(width, channels, 1)

    def forward(self, fields, times):
        """The velocity of fields at flow times, one per field, in the shape of the fields."""
        x = fields if self.channels > 1 else fields[:, None]
        phase = times[:, None] * torch.pi * torch.arange(1, 9, device=times.device)
        time = torch.cat((phase.sin(), phase.cos()), 1)
        fine = self.down1(x, time)
        coarse = self.up2(self.down2(nn.functional.avg_pool2d(fine, 2, ceil_mode=True), time), time)
        coarse = interpolate(coarse, fine.shape[-2:], mode="bilinear")
        v = self.out(gelu(self.up1(torch.cat((fine, coarse), 1), time)))
        return v if self.channels > 1 else v[:, 0]


def show(model, condition):
    """Draw samples and say how well they satisfy their constraints."""
    fields = model.sample(n=8, condition=condition, steps=20)
    residual = float(model.manifold(condition).residual(fields).abs().max())
    print(f"{model.task.name:6} {model.parameters:,} parameters   largest residual {residual:.0e}")
    assert residual < 1e-10, "a sample is off its manifold"


if __name__ == "__main__":
    home = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()

    # A class makes the network with the seed of the run; a module, as UNet(width=8), begins with the weights that it has.
    model = sapc.train("heat", preset="tiny", out=f"{home}/heat", network=UNet, steps=60)
    show(model, model.task.dataset("test0", size=1).fields)
    # The folder names the class, and does not import it: whoever loads the model passes the network again.
    model = sapc.load(f"{home}/heat", network=UNet)

    # Waves of two channels, as they may be in a file: the first frame is given, and their sums over x stay what they are.
    x, t = np.arange(24) / 24, np.linspace(0, 0.5, 16)
    shift = np.random.default_rng(0).uniform(size=(64, 1, 1))
    wave = np.sin(2 * np.pi * (x[:, None] - t + shift))
    np.savez(f"{home}/waves.npz", h=1 + wave, q=wave, x=x, t=t)
    data = sapc.read_fields(f"{home}/waves.npz", periodic=["x"])

    def physics(grid):
        """The constraints of the waves."""
        total = [sapc.Balance(grid.integral(name), grid=grid) for name in ("h", "q")]
        return sapc.Pin.frame(0) & total[0] & total[1]

    task = sapc.Task.from_data(data, physics, "waves")
    network = UNet(channels=2)
    model = sapc.train(task, preset="tiny", out=f"{home}/waves", network=network, steps=60)
    show(model, task.dataset("validation").fields[:1])
