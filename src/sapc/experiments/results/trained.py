"""What the folder of a run says about scores that lie in it."""

from __future__ import annotations

import json
import sys
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ..._files import first_line, sha256
from ...errors import SapcError
from ...models.scores import Scores, method_of_path, read_any
from ...training.config import Run
from ...training.run_folder import Folder, about_tensors
from .select import TRAINED

SAME = ("task", "method", "preset", "seed", "steps", "grid", "options")


class Trained:
    """A run and its folder."""

    def __init__(self, path: Path, run: Run) -> None:
        self.folder, self.run = Folder(path), run

    def method_of(self, path: Path) -> str:
        """The method whose scores a file of this name holds."""
        return method_of_path(path, self.run.method)

    def contradicts(self, scores: Scores) -> str:
        """Why these scores are not of this run, or nothing."""
        own = _plain(self.run.to_dict())
        for name in SAME:
            if (other := getattr(scores.run, name)) != own[name]:
                told = f"their {name} is {other!r:.60}, that in config.json {own[name]!r:.60}"
                return f"scores of another run than the one in this folder: {told}"
        if not scores.weights or not self.folder.trained:
            return ""
        if self._sha256.startswith("cannot"):
            return f"the weights beside them {self._sha256}"
        same = scores.weights == self._sha256
        return "" if same else "scores of other weights than those beside them; evaluate again"

    def differs(self, asked: Any) -> str:
        """Why this is not the run that a study asks for, or nothing; `asked` is that run's description, if there is one."""
        own = _plain(self.run.to_dict())
        if not isinstance(asked, dict):
            return ""
        for name, value in own.items():
            if name in asked and _plain(asked[name]) != value:
                return f"its run's {name} is {value!r:.60}, the study asks for {asked[name]!r:.60}"
        return ""

    @cached_property
    def _sha256(self) -> str:
        try:
            return sha256(self.folder.weights)
        except OSError as error:
            return f"cannot be read ({first_line(error)})"

    def settings(self) -> dict[str, Any]:
        """Of the training, those that all methods of a task share."""
        own = self.run.to_dict()
        return {name: own[name] for name in TRAINED}

    def seconds(self) -> tuple[float | None, str]:
        """How long the training took, by its weights or else its log, and on what."""
        return number(self._about().get("seconds")) or self._logged(), self._device()

    def stands(self) -> tuple[Literal["missing", "unfinished"], str]:
        """How a run without scores stands."""
        if self.folder.trained:
            return "missing", "is trained, but not evaluated; run `sapc evaluate` on it"
        entries = self.folder.entries()
        step = entries[-1]["step"] if entries else 0
        return "unfinished", f"training stopped or is under way, step {step} of {self.run.steps}"

    def _about(self) -> dict[str, Any]:
        try:
            return about_tensors(self.folder.weights)
        except SapcError:
            return {}

    def _logged(self) -> float | None:
        entries = self.folder.entries()
        last = entries[-1] if entries else {}
        done = last.get("step") == self.run.steps
        return number(last.get("seconds")) if done else None

    def _device(self) -> str:
        try:
            return str(read_any(self.folder.environment)["starts"][-1]["device"])
        except (SapcError, KeyError, TypeError, IndexError):
            return ""


def number(value: Any) -> float | None:
    """A positive finite number, or None for anything else."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max
    return float(value) if fine else None


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
