"""Random streams: a parameter is a pure function of (task, split, parameter, seed, index).

Every named parameter of every split has its own counter-based stream, and its values are drawn in the order
of their index, the same count for each. So a smaller draw is a prefix of a larger one, no split shares
numbers with another, and drawing one parameter never moves another.

A sample is a pair (i, j): condition i, which a task pins, with free parameters j.

    independent   (0, 0), (1, 1), (2, 2), ...                   every sample its own condition
    product       (0, 0), (0, 1), (1, 1), (1, 0), (0, 2), ...   the first m^2 samples are all pairs of m and m
    test sets     (0, 0), (0, 1), (0, 2), ...                   one condition

The condition of a test set does not depend on the seed: two seeds are two independent draws of one
conditional distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

TEST_SETS = ("test0", "test1", "test2", "test3")
SPLITS = ("train", "validation", *TEST_SETS)

Indices = Int[Tensor, " n"]


@dataclass(frozen=True)
class Streams:
    """The random streams of one split of one task."""

    task: str
    split: str
    seed: int

    @property
    def test_set(self) -> int | None:
        """The number of the test set, or None for the other splits."""
        return int(self.split.removeprefix("test")) if self.split.startswith("test") else None

    @property
    def condition(self) -> Streams:
        """The streams of the pinned condition: of a test set they are the same for every seed."""
        return self if self.test_set is None else Streams(self.task, self.split, seed=0)

    def generator(self, parameter: str) -> np.random.Generator:
        """The stream of one parameter, from its start."""
        key = (crc32(self.task.encode()), SPLITS.index(self.split), crc32(parameter.encode()))
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy=self.seed, spawn_key=key)))

    def uniform(self, parameter: str, low: float, high: float, n: int) -> Float[Tensor, " n"]:
        """`n` numbers uniform on [low, high)."""
        return low + (high - low) * self.uniforms(parameter, n, 1)[:, 0]

    def uniforms(self, parameter: str, n: int, width: int) -> Float[Tensor, "n width"]:
        """`n` rows of numbers uniform on [0, 1)."""
        return torch.from_numpy(self.generator(parameter).random((n, width)))

    def normals(self, parameter: str, n: int, width: int) -> Float[Tensor, "n width"]:
        """`n` rows of standard normal numbers."""
        return torch.from_numpy(self.generator(parameter).standard_normal((n, width)))

    def uniform_condition(
        self, parameter: str, low: float, high: float, tests: Sequence[float], n: int
    ) -> Float[Tensor, " n"]:
        """Draw `n` numbers uniform on [low, high); a test set has its own value of `tests` instead, `n` times."""
        if self.test_set is None:
            return self.uniform(parameter, low, high, n)
        return torch.full((n,), tests[self.test_set], dtype=torch.float64)

    def independent(self, n: int) -> tuple[Indices, Indices]:
        """Condition and free index of each sample, where every sample has its own condition."""
        j = torch.arange(n)
        return (j if self.test_set is None else torch.zeros_like(j)), j

    def product(self, n: int) -> tuple[Indices, Indices]:
        """Condition and free index of each sample, where both are combined in full."""
        if self.test_set is not None:
            return self.independent(n)
        return square_shells(n)


def square_shells(n: int) -> tuple[Indices, Indices]:
    """The first `n` pairs in the Rosenberg-Strong order: shell m holds the pairs whose larger entry is m."""
    z = np.arange(n)
    m = np.floor(np.sqrt(z)).astype(np.int64)
    rest = z - m * m
    i = np.where(rest < m, rest, m)
    j = np.where(rest < m, m, 2 * m - rest)
    return torch.from_numpy(i), torch.from_numpy(j)
