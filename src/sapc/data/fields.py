"""Fields with their metadata: grid, units, origin, and which samples are for training.

Unless the file says which samples are for training, a seeded permutation picks a share of them for
validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from ..errors import SapcError, explain_misuse
from ..grid import Grid

SPLITS = ("train", "validation")


@explain_misuse
@dataclass(frozen=True, eq=False)
class Fields:
    """Samples of fields on a grid, with their metadata.

    Attributes:
        values: The samples `(n, *grid.shape)`; numpy arrays are welcome.
        grid: Their grid, whose `channels` name the variables.
        units: Units by name of channel or axis.
        labels: Long names by name of channel or axis.
        origin: Where they come from: path and SHA-256 of the file, and the name of its dimension of samples.
        split: "train" or "validation" for each sample, if the file says so.
        reading: The arguments `samples`, `time` and `steady` that the file was read with, as far as they were
            given.

    Raises:
        SapcError: The values do not fit the grid, or the split does not fit the values.
    """

    values: Tensor
    grid: Grid
    units: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)
    split: tuple[str, ...] | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values: Any = self.values
        object.__setattr__(self, "values", torch.as_tensor(values))
        if not self.values.is_floating_point():
            raise SapcError(f"fields are floating-point numbers, got {self.values.dtype}; convert them first")
        self.grid.check(self.values, "fields' array")
        if not self.grid.channels:
            raise SapcError("fields need names of their channels; give the grid `channels`, as ('u',)")
        if self.split is None:
            return
        if len(self.split) != len(self) or not set(self.split) <= set(SPLITS):
            raise SapcError(
                f"a split needs one of {', '.join(SPLITS)} for each of {len(self)} samples, "
                f"got {len(self.split)}: {', '.join(sorted(set(self.split)))}"
            )

    def __len__(self) -> int:
        return self.values.shape[0]

    def __repr__(self) -> str:
        axes = ", ".join(f"{axis.name} {axis.n} ({axis.kind})" for axis in self.grid.axes)
        return f"Fields({len(self)} samples of {', '.join(self.grid.channels)}; {axes})"

    @explain_misuse
    def split_rows(
        self, share: float = 0.1, seed: int = 0
    ) -> tuple[Int64[Tensor, " train"], Int64[Tensor, " validation"]]:
        """Split the samples into those for training and those for validation.

        Args:
            share: Share of the samples for validation, if the file has no split.
            seed: Seed of the permutation that picks them.

        Returns:
            Rows for training and rows for validation: the split of the file, else a seeded one.

        Raises:
            SapcError: There are too few samples for one of the two.
        """
        n = len(self)
        if n < 2:
            raise SapcError(f"training and validation need at least 2 samples, got {n}; give more")
        if not 0 < share < 1:
            raise SapcError(f"the share for validation must lie between 0 and 1, got {share}")
        if self.split is None:
            n_validation = min(max(1, round(share * n)), n - 1)
            rows = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
            return rows[n_validation:].sort().values, rows[:n_validation].sort().values
        train, validation = (torch.tensor([i for i in range(n) if self.split[i] == s]) for s in SPLITS)
        if not len(train) or not len(validation):
            raise SapcError(
                f"the split of the file has {len(train)} samples for training and {len(validation)} for "
                "validation; each needs one, or leave `split` out of the file"
            )
        return train, validation
