"""The nouns: a file of scores, a problem, both together; a row of the tidy table and what many rows say together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...models.scores import Scores, SetScores

Kind = Literal["missing", "failed", "unfinished", "corrupt", "left_out"]


@dataclass(frozen=True)
class Scored:
    """A file of scores.

    training           settings of the training, as far as they are known
    training_seconds   of these weights, where the method trained them itself
    training_device    on which that was
    """

    path: Path
    scores: Scores = field(repr=False)
    training: Mapping[str, Any] = field(default_factory=dict, repr=False)
    training_seconds: float | None = None
    training_device: str = ""

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.scores.run.task

    @property
    def method(self) -> str:
        """Name of the method that sampled."""
        return self.scores.settings.method

    @property
    def seed(self) -> int:
        """Seed of the training."""
        return self.scores.run.seed

    @property
    def samples(self) -> int:
        """Fields per test set."""
        return self.scores.settings.samples

    @property
    def sets(self) -> dict[str, SetScores]:
        """What was found on every test set."""
        return self.scores.sets

    def problem(self, kind: Kind, why: str) -> Problem:
        """Return why these scores do not count."""
        return Problem(kind, self.path, why, self.task, self.method, self.seed)

    @property
    def environment(self) -> dict[str, Any]:
        """Versions and hardware of the evaluation, as far as they are told."""
        return self.scores.environment

    @property
    def time(self) -> str:
        """When it was evaluated; empty if that is not told."""
        return str(self.environment.get("time") or "")

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU sampled."""
        return (self.scores.settings.device or "").startswith("cuda")

    @property
    def device(self) -> str:
        """What sampled: the name of a GPU, or a number of CPU cores."""
        if self.on_gpu:
            return str(self.environment.get("device") or "an unknown GPU")
        return f"{self.environment.get('cpus', 'unknown')} CPU cores"


@dataclass(frozen=True)
class Problem:
    """Something that does not count, and why; of what it is, as far as that is known."""

    kind: Kind
    path: Path
    why: str
    task: str = ""
    method: str = ""
    seed: int | None = None

    def __str__(self) -> str:
        of = " ".join(
            filter(None, (self.task, self.method, "" if self.seed is None else f"seed {self.seed}"))
        )
        return f"{self.kind.replace('_', ' ')}: {of + ', ' if of else ''}{self.path}: {self.why}"


@dataclass(frozen=True)
class Collected:
    """What was found: scores that count, and problems.

    studies     by the name in their manifest
    asked       the methods that their manifests list
    unlisted    scores that lie in a study's folder and count, but are not, or no longer, in its list
    """

    scored: list[Scored] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    studies: list[str] = field(default_factory=list)
    asked: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()

    @property
    def tasks(self) -> list[str]:
        """All that something is known about."""
        found = [s.task for s in self.scored] + [p.task for p in self.problems]
        return list(dict.fromkeys(filter(None, found)))

    def of(self, task: str, method: str = "") -> list[Scored]:
        """The scores of a task, or of a method on it."""
        return [s for s in self.scored if s.task == task and method in ("", s.method)]


@dataclass(frozen=True)
class Row:
    """One number; `set` is empty where it belongs to a training and not to a test set."""

    task: str
    method: str
    seed: int
    set: str
    metric: str
    value: float


@dataclass(frozen=True)
class Summary:
    """Mean, standard error (None of a single value) and median of n values, and what they are of."""

    mean: float
    error: float | None
    n: int
    seeds: tuple[int, ...]
    sets: tuple[str, ...]
    median: float
