"""The records: a file of scores, a problem, both together, and what the folder of a run says about scores that lie in it."""

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
from ...errors import SapcError
from ...models.scores import Scores, SetScores, method_of_path, read_any
from ...training.config import Run
from ...training.run_folder import Folder, about_tensors

Kind = Literal["missing", "failed", "unfinished", "corrupt", "left_out"]
SAME = ("task", "method", "preset", "seed", "steps", "grid", "options")
TRAINED = (
    "backbone", "batch", "train", "validation", "lr", "lr_floor", "factor", "patience", "clip", "validate", "precision",
    "projector", "length", "schedule",
)  # fmt: skip
"""Settings of a training that all methods of a task share."""


@dataclass(frozen=True)
class Problem:
    """Something that does not count, and why; of what it is, as far as that is known."""

    kind: Kind
    path: Path
    why: str
    task: str = ""
    method: str = ""
    seed: int | None = None

    @property
    def about(self) -> str:
        """Task, method and seed in words."""
        seed = "" if self.seed is None else f"seed {self.seed}"
        return " ".join(filter(None, (self.task, self.method, seed)))

    def __str__(self) -> str:
        about = f"{self.about}, " if self.about else ""
        return f"{self.kind.replace('_', ' ')}: {about}{self.path}: {self.why}"


# Two files of the same content are still two: equal is only what is the same.
@dataclass(frozen=True, eq=False)
class ScoresFile:
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

    @property
    def time(self) -> str:
        """When it was evaluated; empty if that is not told."""
        return str(self.scores.environment.get("time") or "")

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU sampled."""
        return (self.scores.settings.device or "").startswith("cuda")

    @property
    def device(self) -> str:
        """What sampled: the name of a GPU, or a number of CPU cores."""
        known = self.scores.environment
        if self.on_gpu:
            return str(known.get("device") or "an unknown GPU")
        return f"{known.get('cpus', 'unknown')} CPU cores"

    def problem(self, kind: Kind, why: str) -> Problem:
        """Return why these scores do not count."""
        return Problem(kind, self.path, why, self.task, self.method, self.seed)


@dataclass(frozen=True)
class Collection:
    """What was found: scores that count, and problems.

    studies         by the name in their manifest
    study_methods   the methods that their manifests list
    unlisted_files  scores that lie in a study's folder and count, but are not, or no longer, in its list
    """

    files: list[ScoresFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    studies: list[str] = field(default_factory=list)
    study_methods: tuple[str, ...] = ()
    unlisted_files: tuple[str, ...] = ()

    @property
    def tasks(self) -> list[str]:
        """All that something is known about."""
        found = [s.task for s in self.files] + [p.task for p in self.problems]
        return list(dict.fromkeys(filter(None, found)))

    def of(self, task: str, method: str = "") -> list[ScoresFile]:
        """The scores of a task, or of a method on it."""
        return [s for s in self.files if s.task == task and method in ("", s.method)]


class TrainedRun:
    """A run and its folder; `settings` are those of the run, as JSON holds them."""

    def __init__(self, path: Path, run: Run) -> None:
        self.folder, self.run, self.settings = Folder(path), run, _plain(run.to_dict())

    def make_file(self, path: Path, scores: Scores) -> ScoresFile:
        """Return scores of this run, with what is known of its training."""
        seconds, device = self.seconds() if scores.settings.method == scores.run.method else (None, "")
        return ScoresFile(path, scores, {name: self.settings[name] for name in TRAINED}, seconds, device)

    def problem(self, kind: Kind, path: Path, why: str) -> Problem:
        """Return why something in this folder does not count."""
        method = method_of_path(path, self.run.method)
        return Problem(kind, path, why, self.run.task, method, self.run.seed)

    def contradicts(self, scores: Scores) -> str:
        """Why these scores are not of this run, or nothing."""
        for name in SAME:
            if (other := getattr(scores.run, name)) != (own := self.settings[name]):
                told = f"their {name} is {other!r:.60}, that in config.json {own!r:.60}"
                return f"scores of another run than the one in this folder: {told}"
        if not scores.weights or not self.folder.trained:
            return ""
        if self._sha256.startswith("cannot"):
            return f"the weights beside them {self._sha256}"
        same = scores.weights == self._sha256
        return "" if same else "scores of other weights than those beside them; evaluate again"

    def differs(self, asked: Any) -> str:
        """Why this is not the run that a study asks for, or nothing; `asked` is that run's description, if there is one."""
        for name, value in self.settings.items() if isinstance(asked, dict) else ():
            if name in asked and _plain(asked[name]) != value:
                return f"its run's {name} is {value!r:.60}, the study asks for {asked[name]!r:.60}"
        return ""

    @cached_property
    def _sha256(self) -> str:
        try:
            return sha256(self.folder.weights)
        except OSError as error:
            return f"cannot be read ({first_line(error)})"

    def seconds(self) -> tuple[float | None, str]:
        """How long the training took, by its weights or else its log, and on what."""
        seconds, device = None, ""
        with suppress(SapcError):
            seconds = number(about_tensors(self.folder.weights).get("seconds"))
        if not seconds and (last := self._last_entry()).get("step") == self.run.steps:
            seconds = number(last.get("seconds"))
        with suppress(SapcError, KeyError, TypeError, IndexError):
            device = str(read_any(self.folder.environment)["starts"][-1]["device"])
        return seconds, device

    def status(self) -> tuple[Kind, str]:
        """How a run without scores stands."""
        if self.folder.trained:
            return "missing", "is trained, but not evaluated; run `sapc evaluate` on it"
        step = self._last_entry().get("step", 0)
        return "unfinished", f"training stopped or is under way, step {step} of {self.run.steps}"

    def _last_entry(self) -> dict[str, Any]:
        """The last line of the log."""
        return next(reversed(self.folder.entries()), {})


def number(value: Any) -> float | None:
    """A positive finite number, or None for anything else."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max
    return float(value) if fine else None


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
