"""Two ways to write the same mathematics: ours, and the one that published implementations have in common.

    ours      in the run's precision, by kernels on a GPU, elsewhere by products with thin DFT matrices; projections by declared structure
    peers'    full FFTs in float32, operation by operation; projections by a dense Jacobian from automatic differentiation

Weights and results are the same up to rounding. The dense path is kinder than what it stands for: pins have left its unknowns, where a
stacked residual would have a row for each, and it takes a few fields at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ...constraints import Manifold
from ...nn.fno import FNO
from ...training.config import Run
from ...training.distributed import Team
from ...training.step import Training
from .trained import Data


@dataclass(frozen=True)
class Style:
    """Ours, or the peers'."""

    peers: bool = False

    def of(self, run: Run) -> Run:
        """The run in the precision of this style."""
        return replace(run, precision="float32") if self.peers else run

    def network(self, run: Run, device: torch.device) -> FNO:
        """A fresh network."""
        network = self.of(run).make_network().to(device)
        network.transform = "fft" if self.peers else network.transform
        if device.type == "cuda" and not self.peers and not network.has_kernels(device):
            network.compile_core()
        return network

    def manifold(self, H: Manifold) -> Manifold:
        """The same manifold, as this style projects onto it."""
        return H.dense() if self.peers else H

    def training(self, run: Run, data: Data, device: torch.device) -> Training:
        """The state of a training."""
        state = Training(self.of(run), Team(device), compiled=False if self.peers else None, data=data)
        if self.peers:
            state.network.transform, state.H = "fft", state.H.dense()
        return state


OURS, PEERS = Style(), Style(peers=True)
