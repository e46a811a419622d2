"""Fields with what is known of them: grid, units, where they came from, and which are for training.

Unless the file says which samples are for training, a seeded permutation picks a share of them for validation.
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
    """Samples `(n, *grid.shape)`; `grid.channels` names the variables, `units` and `labels` go by channel and axis name.

    `reading` is what was said of the file's dimensions when it was read: `samples`, `time` and `steady`, as far as they were given.
    """

    values: Tensor
    grid: Grid
    units: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)
    split: tuple[str, ...] | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given: Any = self.values
        object.__setattr__(self, "values", torch.as_tensor(given))  # numpy arrays are welcome
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

    @explain_misuse
    def split_rows(
        self, share: float = 0.1, seed: int = 0
    ) -> tuple[Int64[Tensor, " train"], Int64[Tensor, " validation"]]:
        """Which samples are for training and which for validation: the file's own split, else a seeded one."""
        n = len(self)
        if n < 2:
            raise SapcError(f"training and validation need at least 2 samples, got {n}; give more")
        if not 0 < share < 1:
            raise SapcError(f"the share for validation must lie between 0 and 1, got {share}")
        if self.split is None:
            held = min(max(1, round(share * n)), n - 1)
            rows = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
            return rows[held:].sort().values, rows[:held].sort().values
        train, validation = (torch.tensor([i for i in range(n) if self.split[i] == s]) for s in SPLITS)
        if not len(train) or not len(validation):
            raise SapcError(
                f"the split of the file has {len(train)} samples for training and {len(validation)} for validation; "
                "each needs one, or leave `split` out of the file"
            )
        return train, validation
