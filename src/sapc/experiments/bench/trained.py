"""What stands in for a trained network and its data.

A fresh network would give the sampler endpoint estimates that no trained one gives, so its velocity is replaced, after it was computed,
by one that points at a solution u with a smooth error that fades with t, as a trained one does: `(vt - u) / t - error`, so that the
endpoint estimate at t is `u + t error`. The network's work stays.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...nn.cuda_graph import Replayed
from ...nn.fno import FNO
from ...tasks import Task
from ...training.config import Run

Data = tuple[Tensor, Tensor]  # for training and for validation
ERROR = 0.05  # of the endpoint estimate at t = 1, relative to the solution's spread
PULL = 0.9  # of the way to the solution, where the end has to depend on the source


def solutions(run: Run, device: torch.device) -> Data:
    """A batch of solutions, repeated; few are solved where that takes long."""
    size = min(run.batch, 64 if len(run.grid) == 2 else 4)
    few = run.make_task().dataset("train", size=size, device=device).fields.to(device)
    fields = few[torch.arange(run.batch, device=device) % len(few)]
    return fields, fields[: max(1, run.batch // 4)]


def smooth_error(task: Task, truth: Tensor) -> Tensor:
    """The error of the endpoint estimate at t = 1, `(*grid)`."""
    mesh = (torch.linspace(0, 1, n, dtype=truth.dtype, device=truth.device) for n in task.grid.shape)
    waves = torch.stack([torch.cos(3 * x + i) for i, x in enumerate(torch.meshgrid(*mesh, indexing="ij"))])
    return ERROR * truth.std() * waves.prod(0)


def like_trained(
    network: FNO, task: Task, truth: Tensor, pull: float = 1.0, recorded: bool = False
) -> Callable[..., Tensor]:
    """A network's work, a trained network's answer, for as many of the solutions as there are states.

    It can be differentiated, the network's work included. With `pull` below one its flow ends short of u, by more the farther it began.
    `recorded`: as a model evaluates it; but what a recording needs of memory cannot be seen from outside.
    """
    network, error = network.eval().requires_grad_(False), smooth_error(task, truth)
    evaluate: Callable[..., Tensor] = Replayed(network) if recorded else network

    def velocity(vt: Tensor, t: Tensor, *shown: Tensor) -> Tensor:
        idle = evaluate(vt.float(), t, *(x.float() for x in shown)) * 1e-6
        t = t.reshape(-1, *(1,) * len(task.grid.shape))
        return pull * (vt - truth[: len(vt)]) / t - error + idle

    return velocity


class Counted:
    """A velocity that counts its evaluations; those repeated for a gradient do not count, as in `Method.nfe`."""

    def __init__(self, v: Callable[..., Tensor]) -> None:
        self.v, self.calls = v, 0

    def __call__(self, vt: Tensor, t: Tensor, *shown: Tensor) -> Tensor:
        """The velocity."""
        self.calls += not torch.is_grad_enabled()
        return self.v(vt, t, *shown)
