"""Augmentation: training solutions under random elements of the symmetries of a run."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import SapcError
from ..flow import source
from ..tasks import Task
from ..tasks.symmetries import transform_normalized
from .config import TrainingConfig


class Augmentation:
    """The symmetries by which a run moves its training solutions at random.

    Args:
        run: Settings of the training.
        task: Its task.
        device: Device of the training.
        has_own_data: Whether the solutions are those of the run, whose parameters can be drawn again.
    """

    def __init__(self, run: TrainingConfig, task: Task, device: torch.device, has_own_data: bool) -> None:
        self.run, self.device, self.normalizer = run, device, task.normalizer
        self.symmetries = task.find_symmetries(run.symmetries)
        names = {symmetry.parameter for symmetry in self.symmetries} - {""}
        if names and not has_own_data:
            raise SapcError(
                "a symmetry that depends on a parameter is for a run's own solutions; leave it out"
            )
        drawn = task.draw("train", run.train, run.seed) if names else {}
        self.parameters = {name: drawn[name].to(device) for name in names}

    def transform(self, v0: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Map every solution by a random element of each symmetry.

        Args:
            v0: Solutions `(n, *grid)`, normalized.
            rows: Their places among the training solutions.
            generator: Random numbers, on the device of the training.

        Returns:
            The images, on that device.
        """
        v0 = v0.to(self.device, non_blocking=True)
        parameters = {name: values[rows.to(self.device)] for name, values in self.parameters.items()}
        for symmetry in self.symmetries:
            v0 = transform_normalized(symmetry, v0, self.normalizer, generator, parameters)
        return v0

    def data_range(self, data: Tensor) -> list[float]:
        """Measure the least and the largest value that the network is trained on.

        Args:
            data: All training solutions, normalized.

        Returns:
            Those of the solutions and, where symmetries change values, of an image of each.
        """
        low, high, n = data.min(), data.max(), len(data)
        if any(symmetry.changes_values for symmetry in self.symmetries):
            seed = source.derive_seed(self.run.seed, "symmetry", "range")
            g = torch.Generator(self.device).manual_seed(seed)
            for first in range(0, n, self.run.batch):
                rows = torch.arange(first, min(n, first + self.run.batch), device=data.device)
                image = self.transform(data[rows], rows, g).to(data.device)
                low, high = torch.minimum(low, image.min()), torch.maximum(high, image.max())
        return [float(low), float(high)]
