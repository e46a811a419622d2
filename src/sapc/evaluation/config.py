"""How something is scored: one record for `evaluate`, the cells of a study and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import SapcError, check_int
from ..methods import Method
from ..tasks import TEST_SETS

OWN_DATA_SETS = ("validation",)
REFERENCE = 1225
POSITIONAL = ("samples", "reference", "steps", "seed", "floor_repeats")
OLD_NAMES = {"splits": "sets", "sampling_steps": "steps", "watch": "trajectory_samples"}
"""Names of settings in version 0.1.0, and what they are called now."""


def published_samples(axes: int) -> int:
    """Return how many fields per test set the paper generates, for fields with this many axes."""
    return 1225 if axes == 2 else 100


@dataclass(frozen=True)
class EvaluationConfig:
    """How weights are scored. What is None is chosen by the task or the method (`resolve`).

    Args:
        sets: test sets; all four, of data of one's own the validation split, unless given.
        samples: fields generated per set, as many as published unless given: 1225, in three dimensions 100.
        reference: solutions to compare with.
        steps: sampling steps, the method's own number unless given.
        seed: of the source draws.
        floor_repeats: pairs of independent draws for the sampling floor; 0 for none.
        method: another method that samples with these weights.
        batch: fields at a time, at most.
        trajectory: record the sampling runs of all samples; the samples are the same, their cost is not.
        trajectory_samples: sample this many fields of the first set once more and record those; not of methods with joint batches.
        frd: also FRD, by random features.
    """

    sets: Sequence[str] | None = None
    samples: int | None = None
    reference: int = REFERENCE
    steps: int | None = None
    seed: int = 0
    floor_repeats: int = 3
    method: str | None = None
    batch: int | None = None
    trajectory: bool = False
    trajectory_samples: int = 0
    frd: bool = False

    def __post_init__(self) -> None:
        if self.sets is None:
            return
        if isinstance(self.sets, str) or not isinstance(self.sets, Iterable) or not tuple(self.sets):
            raise SapcError(f"give test sets as a list, as ['test0'], got {self.sets!r:.80}")
        object.__setattr__(self, "sets", tuple(dict.fromkeys(self.sets)))

    @classmethod
    def from_settings(
        cls, config: EvaluationConfig | Sequence[str] | None, *values: Any, **settings: Any
    ) -> EvaluationConfig:
        """Return a config with some settings changed; in the place of a config a list of test sets may stand."""
        if len(values) > len(POSITIONAL):
            raise TypeError(f"{len(POSITIONAL)} settings can be given by position, got {len(values)}")
        given = dict(zip(POSITIONAL, values, strict=False))
        given |= {OLD_NAMES.get(name, name): value for name, value in settings.items()}
        if isinstance(config, EvaluationConfig):
            return replace(config, **given)
        return cls(**({"sets": config} | given))

    def resolve(self, method: Method, axes: int, validation_size: int | None = None) -> EvaluationConfig:
        """Return the config with every open number filled in.

        Args:
            method: who samples.
            axes: of a field, time included.
            validation_size: samples in the validation split, of data of one's own; they have no test sets.
        """
        samples, reference = self.samples, self.reference
        if validation_size is not None:
            reference, samples = (
                min(reference, validation_size),
                min(100, validation_size) if samples is None else samples,
            )
        samples = published_samples(axes) if samples is None else samples
        return replace(
            self,
            sets=self.sets or (TEST_SETS if validation_size is None else OWN_DATA_SETS),
            samples=samples,
            reference=reference,
            steps=method.steps if self.steps is None else self.steps,
            method=method.name,
            trajectory_samples=0 if method.couples_batch else min(self.trajectory_samples, samples),
        )

    def check(self) -> None:
        """Refuse numbers that cannot be; those that are open are left out."""
        for value, what, least in (
            (self.samples, "number of samples", 2),
            (self.reference, "reference size", 2),
            (self.steps, "number of sampling steps", 1),
            (self.seed, "seed", 0),
            (self.floor_repeats, "number of floor repeats", 0),
            (self.trajectory_samples, "number of samples to watch", 0),
        ):
            if value is not None:
                check_int(value, what, least)

    def check_sets(self, known: Sequence[str]) -> None:
        """Refuse what is not among the known test sets."""
        if wrong := [split for split in self.sets or () if split not in known]:
            raise SapcError(f"unknown test set {wrong[0]!r:.80}; choose from {', '.join(known)}")
