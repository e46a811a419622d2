"""The records of results: a file of scores, a problem, a collection of both, a run folder with scores."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ..._files import first_line, sha256
from ..._old_names import old_attribute
from ...errors import SapcError
from ...models.scores import Scores, SetScores, method_of_path, read_content
from ...training.config import TrainingConfig
from ...training.presets import current_preset
from ...training.run_folder import RunFolder, read_description

Kind = Literal["missing", "failed", "unfinished", "corrupt", "left_out"]
RUN_KEYS = ("task", "method", "preset", "seed", "steps", "grid", "options")
"""Settings that scores and `config.json` must agree on."""
TRAINING_KEYS = (
    "backbone", "batch", "train", "validation", "lr", "lr_floor", "factor", "patience", "clip", "validate",
    "precision", "projector", "length", "schedule",
)  # fmt: skip
"""Settings of a training, by their names in `config.json`, that all methods of a task share."""


@dataclass(frozen=True)
class Problem:
    """Something that does not count, and why.

    Attributes:
        kind: What is wrong.
        path: The file or folder.
        reason: Why it does not count, on one line.
        task: Its task, empty where it is not known.
        method: Its method, empty where it is not known.
        seed: The seed of its training, None where it is not known.
    """

    kind: Kind
    path: Path
    reason: str
    task: str = ""
    method: str = ""
    seed: int | None = None
    why = old_attribute("Problem.why", "Problem.reason")

    @property
    def subject(self) -> str:
        """Task, method and seed in words."""
        seed = "" if self.seed is None else f"seed {self.seed}"
        return " ".join(filter(None, (self.task, self.method, seed)))

    def __str__(self) -> str:
        subject = f"{self.subject}, " if self.subject else ""
        return f"{self.kind.replace('_', ' ')}: {subject}{self.path}: {self.reason}"


# Two files of the same content are still two: only a file itself is equal to it.
@dataclass(frozen=True, eq=False)
class ScoresFile:
    """A file of scores.

    Attributes:
        path: The file.
        scores: Its content.
        training: Settings of the training, as far as they are known.
        training_seconds: Duration of the training, where the method trained these weights itself.
        training_device: The device of that training.
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
        """Number of fields per test set."""
        return self.scores.settings.samples

    @property
    def sets(self) -> dict[str, SetScores]:
        """Scores by test set."""
        return self.scores.sets

    @property
    def time(self) -> str:
        """Time of the evaluation, empty if it is not recorded."""
        return str(self.scores.environment.get("time") or "")

    @property
    def is_on_gpu(self) -> bool:
        """Whether a GPU sampled."""
        return (self.scores.settings.device or "").startswith("cuda")

    @property
    def device(self) -> str:
        """What sampled: the name of a GPU, or a number of CPU cores."""
        environment = self.scores.environment
        if self.is_on_gpu:
            return str(environment.get("device") or "an unknown GPU")
        return f"{environment.get('cpus', 'unknown')} CPU cores"

    def problem(self, kind: Kind, reason: str) -> Problem:
        """Make the problem that says why these scores do not count."""
        return Problem(kind, self.path, reason, self.task, self.method, self.seed)


@dataclass(frozen=True)
class Collection:
    """Scores that count, and problems.

    Attributes:
        files: Scores that count.
        problems: What does not count, and why.
        studies: Names of the studies, from their manifests.
        study_methods: Methods that the manifests list.
        unlisted_files: Scores that lie in a study's folder and count, but are not, or no longer, in its list.
    """

    files: list[ScoresFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    studies: list[str] = field(default_factory=list)
    study_methods: tuple[str, ...] = ()
    unlisted_files: tuple[str, ...] = ()
    scored = old_attribute("Collection.scored", "Collection.files")
    asked = old_attribute("Collection.asked", "Collection.study_methods")
    unlisted = old_attribute("Collection.unlisted", "Collection.unlisted_files")

    @property
    def tasks(self) -> list[str]:
        """Tasks of all scores and problems."""
        names = [s.task for s in self.files] + [p.task for p in self.problems]
        return list(dict.fromkeys(filter(None, names)))

    def of(self, task: str, method: str = "") -> list[ScoresFile]:
        """Select scores.

        Args:
            task: Name of the task.
            method: Name of the method; all methods unless given.

        Returns:
            The scores of this task, and method, that count.
        """
        return [s for s in self.files if s.task == task and method in ("", s.method)]


class TrainedRun:
    """A run folder that may hold scores.

    Attributes:
        folder: The folder.
        config: The training.
        settings: The settings of the training as JSON holds them.
    """

    def __init__(self, path: Path, config: TrainingConfig) -> None:
        self.folder, self.config, self.settings = RunFolder(path), config, _as_json(config.to_dict())

    def make_file(self, path: Path, scores: Scores) -> ScoresFile:
        """Add to scores of this run what is known of its training."""
        seconds, device = self.training_time() if scores.settings.method == scores.run.method else (None, "")
        return ScoresFile(path, scores, {key: self.settings[key] for key in TRAINING_KEYS}, seconds, device)

    def problem(self, kind: Kind, path: Path, reason: str) -> Problem:
        """Make the problem that says why something in this folder does not count."""
        method = method_of_path(path, self.config.method)
        return Problem(kind, path, reason, self.config.task, method, self.config.seed)

    def find_contradiction(self, scores: Scores) -> str:
        """Return why these scores are not of this run, or an empty text."""
        for key in RUN_KEYS:
            if (theirs := getattr(scores.run, key)) != (ours := self.settings[key]):
                difference = f"their {key} is {theirs!r:.60}, that in config.json {ours!r:.60}"
                return f"scores of another run than the one in this folder: {difference}"
        if not scores.weights or not self.folder.is_trained:
            return ""
        try:
            is_same = scores.weights == self._weights_digest
        except OSError as error:
            return f"the weights beside them cannot be read ({first_line(error)})"
        return "" if is_same else "scores of other weights than those beside them; evaluate again"

    def find_difference(self, description: Any) -> str:
        """Return why this is not the run that a study describes, or an empty text; it may describe none."""
        for key, value in self.settings.items() if isinstance(description, dict) else ():
            if key not in description:
                continue
            expected = current_preset(description[key]) if key == "preset" else _as_json(description[key])
            if expected != value:
                return f"its run's {key} is {value!r:.60}, the study asks for {description[key]!r:.60}"
        return ""

    @cached_property
    def _weights_digest(self) -> str:
        return sha256(self.folder.weights)

    def training_time(self) -> tuple[float | None, str]:
        """Return the seconds that the training took, by its weights or else its log, and the device."""
        seconds, device = None, ""
        with suppress(SapcError):
            seconds = positive_number(read_description(self.folder.weights).get("seconds"))
        if not seconds and (last := self._last_entry()).get("step") == self.config.steps:
            seconds = positive_number(last.get("seconds"))
        with suppress(SapcError, KeyError, TypeError, IndexError):
            device = str(read_content(self.folder.environment)["starts"][-1]["device"])
        return seconds, device

    def status(self) -> tuple[Kind, str]:
        """Return the kind of problem that a run without scores is, and the reason."""
        if self.folder.is_trained:
            return "missing", "is trained, but not evaluated; run `sapc evaluate` on it"
        step = self._last_entry().get("step", 0)
        return "unfinished", f"training stopped or is under way, step {step} of {self.config.steps}"

    def _last_entry(self) -> dict[str, Any]:
        return next(reversed(self.folder.entries()), {})


def positive_number(value: Any) -> float | None:
    """Return a positive finite number as a float, anything else as None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value <= sys.float_info.max else None


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
