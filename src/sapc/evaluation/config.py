"""Settings of an evaluation: one record for `evaluate`, the cells of a study and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import SapcError, check_int
from ..flow import EULER, STEPPERS
from ..methods import Method
from ..models.model import DEFAULT_STEPS
from ..tasks import TEST_SETS

OWN_DATA_SETS = ("validation",)
"""Test sets of data of your own, which cannot be drawn again."""

REFERENCE = 1225
"""Default number of solutions to compare with."""

CONDITIONS, MEMBERS = 64, 20
"""Default numbers of skill per condition: from 19 members on, a 90 % interval ends at members."""

POSITIONAL = ("samples", "reference", "steps", "seed", "floor_repeats")
"""Settings that `evaluate` takes by position, after the test sets."""

OLD_NAMES = {"splits": "sets", "sampling_steps": "steps", "watch": "trajectory_samples"}
"""Names of settings in version 0.1.0, and what they are called now."""


def published_samples(axes: int) -> int:
    """Return how many fields per test set the paper generates.

    Args:
        axes: Number of axes of a field, time included.

    Returns:
        The number of fields.
    """
    return 1225 if axes == 2 else 100


@dataclass(frozen=True)
class EvaluationConfig:
    """Settings of an evaluation. Those that are None are chosen by the task or the method, in `resolve`.

    Args:
        sets: Test sets. The default is all four; of data of your own it is the validation split.
        samples: Fields generated per set. The default is as many as in the paper: 1225, or 100 in three
            dimensions.
        reference: Solutions to compare with.
        steps: Sampling steps. The default is the method's own number, or 20 of second order.
        seed: Seed of the source draws.
        floor_repeats: Pairs of independent draws for the sampling floor; 0 for none.
        method: Name of another method that samples with these weights.
        batch: Largest number of fields sampled at a time.
        trajectory: Record the sampling runs of all samples. The samples are the same, their cost is not.
        trajectory_samples: Sample this many fields of the first set once more and record those. Methods that
            couple the samples of a batch are not recorded.
        frd: Also compute FRD, by random features.
        sampler: `euler`, with which all scores beside the paper's are made, `multistep` or `heun`. The default
            is `euler`, but `multistep` for data of your own and the presets small and tiny, if the method
            accepts it. Comparisons and studies keep to `euler` unless told otherwise.
        conditions: Held-out conditions for which skill is measured, 0 for none. The default is 64 of data of
            your own, as far as the validation split has them; of other tasks it is none.
        members: Samples for each of these conditions. The default is 20.

    Raises:
        SapcError: The test sets are not a list of names.
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
    sampler: str | None = None
    conditions: int | None = None
    members: int | None = None

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
        """Combine the ways to give settings.

        Args:
            config: A config, or a list of test sets in its place.
            values: Settings by position: samples, reference, steps, seed, floor_repeats.
            settings: Settings by name, also by their names in version 0.1.0.

        Returns:
            The config with these settings.

        Raises:
            TypeError: There are too many settings by position.
        """
        if len(values) > len(POSITIONAL):
            raise TypeError(f"{len(POSITIONAL)} settings can be given by position, got {len(values)}")
        changes = dict(zip(POSITIONAL, values, strict=False))
        changes |= {OLD_NAMES.get(name, name): value for name, value in settings.items()}
        if isinstance(config, EvaluationConfig):
            return replace(config, **changes)
        return cls(**({"sets": config} | changes))

    def resolve(self, method: Method, axes: int, validation_size: int | None = None) -> EvaluationConfig:
        """Return the config with every open setting filled in.

        Args:
            method: The method that samples.
            axes: Number of axes of a field, time included.
            validation_size: Size of the validation split, for data of your own, which have no test sets.

        Returns:
            The complete config.
        """
        samples, reference = self.samples, self.reference
        if validation_size is not None:
            reference = min(reference, validation_size)
            samples = min(100, validation_size) if samples is None else samples
        samples = published_samples(axes) if samples is None else samples
        return replace(
            self,
            sets=self.sets or (TEST_SETS if validation_size is None else OWN_DATA_SETS),
            samples=samples,
            reference=reference,
            steps=self.steps if self.steps is not None else self._default_steps(method),
            sampler=self.sampler_name,
            method=method.name,
            trajectory_samples=0 if method.couples_batch else min(self.trajectory_samples, samples),
            conditions=self._conditions(method, validation_size),
            members=MEMBERS if self.members is None else self.members,
        )

    def _conditions(self, method: Method, validation_size: int | None) -> int:
        """Return the number of conditions; of a method whose batch is one problem only if it is asked for."""
        if self.conditions is not None:
            return self.conditions if validation_size is None else min(self.conditions, validation_size)
        if method.couples_batch:
            return 0
        if validation_size is not None:
            return min(CONDITIONS, validation_size)
        return 0 if self.members is None else CONDITIONS

    @property
    def sampler_name(self) -> str:
        """Name of the sampler; the paper's where none is given."""
        return self.sampler or EULER.name

    def _default_steps(self, method: Method) -> int:
        """Return the number of steps of a sampler."""
        return method.steps if self.sampler_name == EULER.name else DEFAULT_STEPS

    def check(self) -> None:
        """Refuse numbers that are not possible; settings that are None are not checked."""
        for value, name, lower_bound in (
            (self.samples, "number of samples", 2),
            (self.reference, "reference size", 2),
            (self.steps, "number of sampling steps", 1),
            (self.seed, "seed", 0),
            (self.floor_repeats, "number of floor repeats", 0),
            (self.trajectory_samples, "number of samples to watch", 0),
            (self.conditions, "number of conditions", 0),
            (self.members, "number of members", 1),
        ):
            if value is not None:
                check_int(value, name, lower_bound)
        if self.sampler is not None and self.sampler not in STEPPERS:
            raise SapcError(f"unknown sampler {self.sampler!r:.80}; choose from {', '.join(STEPPERS)}")

    def check_sets(self, choices: Sequence[str]) -> None:
        """Refuse unknown test sets.

        Args:
            choices: Names of the test sets that there are.

        Raises:
            SapcError: A test set is unknown.
        """
        if wrong := [split for split in self.sets or () if split not in choices]:
            raise SapcError(f"unknown test set {wrong[0]!r:.80}; choose from {', '.join(choices)}")
