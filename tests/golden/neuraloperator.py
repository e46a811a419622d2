"""Write what neuraloperator 0.3.0, the published backbone, answers on small inputs: `neuraloperator-2d.safetensors` and `-3d`.

    python tests/golden/neuraloperator.py     # where neuraloperator 0.3.0 and what it imports are installed

The files hold its weights under its own names, an input with flow times, and its output. `tests/test_fno.py` reads them.
"""

import math
from pathlib import Path

import torch
from neuralop.models import FNO
from safetensors.torch import save_file

MODES, HIDDEN, PROJECTION, TIME = 4, 4, 6, 4


def channels(u: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """State, time embedding, coordinates."""
    grid, half = u.shape[1:], TIME // 2
    phase = 2000 * t[:, None] * torch.exp(-torch.arange(half) * math.log(2000) / (half - 1))
    time = torch.cat((phase.sin(), phase.cos()), 1).reshape(len(u), TIME, *(1 for _ in grid))
    place = torch.stack(torch.meshgrid(*(torch.linspace(0, 1, n) for n in grid), indexing="ij"))
    return torch.cat((u[:, None], time.expand(-1, -1, *grid), place.expand(len(u), *place.shape)), 1)


for grid in ((10, 7), (6, 8, 5)):  # but for the last axis even: it shifts odd spectra back to the wrong place
    torch.manual_seed(len(grid))
    network = FNO(
        n_modes=(MODES,) * len(grid),
        hidden_channels=HIDDEN,
        in_channels=1 + TIME + len(grid),
        out_channels=1,
        lifting_channels=PROJECTION,
        projection_channels=PROJECTION,
        n_layers=4,
    )
    u, t = torch.randn(3, *grid), torch.tensor([0.0, 0.01, 0.37])
    with torch.no_grad():
        out = network(channels(u, t))[:, 0]
    tensors = {name: p.detach().contiguous() for name, p in network.named_parameters()}
    path = Path(__file__).with_name(f"neuraloperator-{len(grid)}d.safetensors")
    save_file({**tensors, "input": u, "times": t, "output": out.contiguous()}, path)
