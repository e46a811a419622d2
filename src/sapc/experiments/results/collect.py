"""Walking through folders: runs with their scores, loose files of scores, studies with the state of their cells."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..._files import first_line, real_path
from ...errors import SapcError
from ...methods import find_method
from ...methods.registry import NAME
from ...models.scores import ForeignFormatError, Scores, read_any, whole_name
from ...training.config import Run
from .records import Collected, Kind, Problem, Scored
from .select import select
from .trained import Trained, number

STUDY, MANIFEST, STATES = "sapc-study-1", "study.json", "states"
OURS = ("config.json", "environment.json", MANIFEST)
UNDER_WAY = ("running", "training", "evaluating", "stopped")
_CELL = {"name": str, "task": str, "method": str, "seed": int, "folder": str}


def collect(paths: Sequence[str | os.PathLike[str]]) -> Collected:
    """All scores in and below these folders or files, and every problem with them; only a path that does not exist is an error."""
    found = _Found()
    for path in map(Path, paths):
        if not path.exists():
            raise SapcError(f"there is no {path}; give folders or files of results that exist")
        found.look(path)
    found.finish()
    scored, left = select(found.scored)
    names = [str(s["name"]) for _, s in found.studies]
    counted = tuple(found.unlisted(scored))
    return Collected(scored, found.problems + left, names, tuple(dict.fromkeys(found.asked)), counted)


@dataclass
class _Found:
    """What has been found so far."""

    scored: list[Scored] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    studies: list[tuple[Path, dict[str, Any]]] = field(default_factory=list)
    bare: list[tuple[Path, Trained]] = field(default_factory=list)
    seen: set[Path] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    listed: set[tuple[Path, str]] = field(default_factory=set)

    # -- the walk --

    def look(self, path: Path) -> None:
        """At one file, or at all of a folder."""
        if path.is_dir():
            denied = lambda error: self._problem(
                "corrupt", Path(error.filename or path), f"cannot be read ({first_line(error)})"
            )
            for place, inside, names in os.walk(path, onerror=denied):
                hidden = {STATES} if MANIFEST in names else set()
                inside[:] = sorted(n for n in inside if not (n.startswith(".") or n in hidden))
                self._folder(Path(place), names)
        elif path.name == MANIFEST:
            self._study(path.parent)
        else:
            trained = self._trained(path.parent)
            self._scores(path, trained, named=path.name.startswith("scores") and trained is not None)

    def _folder(self, folder: Path, names: Iterable[str]) -> None:
        texts = sorted(n for n in names if n.endswith(".json") and not n.startswith("."))
        if MANIFEST in texts:
            self._study(folder)
        trained = self._trained(folder) if "config.json" in texts else None
        if trained is not None:
            self._run_folder(folder, trained, [n for n in texts if n.startswith("scores")])
        for name in texts:
            if name not in OURS and not (trained and name.startswith("scores")):
                self._scores(folder / name, None)

    def _new(self, path: Path) -> bool:
        """Whether this is the first time it is looked at."""
        real = real_path(path)
        if real in self.seen:
            return False
        self.seen.add(real)
        return True

    # -- runs --

    def _trained(self, folder: Path) -> Trained | None:
        """The run in a folder, if there is one."""
        config = folder / "config.json"
        if not config.is_file():
            return None
        try:
            content = read_any(config)
            if not isinstance(content, dict) or not str(content.get("format")).startswith("sapc-run-"):
                return None
            return Trained(folder, _run(content))
        except SapcError as error:
            if self._new(config):
                self._problem("corrupt", config, str(error))
            return None

    def _run_folder(self, folder: Path, trained: Trained, names: Sequence[str]) -> None:
        if not self._new(folder):
            return
        before = len(self.problems)
        whole = {n: self._scores(folder / n, trained, True) for n in names if whole_name(n) is None}
        for name in (n for n in names if n not in whole):
            usual = whole_name(name) or name
            if whole.get(usual):
                self._leave_out(folder / name, trained, f"{usual} beside it says more, and counts")
            else:
                self._scores(folder / name, trained, True)
        if not any(whole.values()) and len(self.problems) == before and not names:
            self.bare.append((folder, trained))

    def _scores(self, path: Path, trained: Trained | None, named: bool = False) -> bool:
        """Take a file of scores, or note what is wrong with it; whether it was taken. `named`: it bears the name of scores."""
        if not self._new(path):
            return False
        try:
            scores = Scores.read(path)
        except ForeignFormatError as error:
            if named or not _told(path).startswith("sapc-"):  # other files of this package are no problem
                self._problem("corrupt" if named else "left_out", path, str(error), trained)
            return False
        except SapcError as error:
            self._problem("corrupt", path, str(error), trained)
            return False
        run = scores.run
        about = (run.task, scores.settings.method, run.seed)
        if run.trained < run.steps:
            why = f"scores of an unfinished training, step {run.trained} of {run.steps}"
            self.problems.append(Problem("unfinished", path, why, *about))
        elif trained is not None and (why := trained.contradicts(scores)):
            self.problems.append(Problem("left_out", path, why, *about))
        else:
            self.scored.append(_scored(path, scores, trained))
            return True
        return False

    def _leave_out(self, path: Path, trained: Trained, why: str) -> None:
        if self._new(path):
            self._problem("left_out", path, why, trained)

    def _problem(self, kind: Kind, path: Path, why: str, trained: Trained | None = None) -> None:
        about = (trained.run.task, trained.method_of(path), trained.run.seed) if trained else ()
        self.problems.append(Problem(kind, path, why, *about))

    # -- studies --

    def _study(self, folder: Path) -> None:
        path = folder / MANIFEST
        if not self._new(path):
            return
        try:
            content = read_any(path)
        except SapcError as error:
            self._problem("corrupt", path, str(error))
            return
        cells = content.get("cells") if isinstance(content, dict) else None
        if not isinstance(cells, list) or content.get("format") != STUDY:
            self._problem("corrupt", path, f"is not the manifest of a study ({STUDY})")
            return
        self.studies.append((folder, {"name": content.get("name", folder.name), "cells": cells}))

    def finish(self) -> None:
        """What studies promise, and runs without scores."""
        promised = set()
        for study, manifest in self.studies:
            for cell in manifest["cells"]:
                if not isinstance(cell, dict) or any(
                    not isinstance(cell.get(k), t) for k, t in _CELL.items()
                ):
                    self._problem(
                        "corrupt", study / MANIFEST, f"has a cell that cannot be read: {cell!r:.60}"
                    )
                    continue
                promised.add(real_path(study / cell["folder"]))
                self.asked.append(cell["method"])
                self.listed.add((real_path(study / cell["folder"]), cell["method"]))
                self._cell(study, cell)
        for folder, trained in self.bare:
            if real_path(folder) not in promised:
                kind, why = trained.stands()
                self._problem(kind, folder, why, trained)

    def _cell(self, study: Path, cell: dict[str, Any]) -> None:
        folder, about = study / cell["folder"], (cell["task"], cell["method"], cell["seed"])
        trained = self._trained(folder)
        if trained is not None:  # it may lie outside the study
            self._run_folder(folder, trained, sorted(p.name for p in folder.glob("scores*.json")))
            if why := trained.differs(cell.get("run")):
                self._other_run(study, cell, why)
                return
        known = [(s.path, s.method) for s in self.scored]
        known += [(p.path, p.method) for p in self.problems if p.path.is_file()]
        if any(
            real_path(path.parent) == real_path(folder) and method == cell["method"] for path, method in known
        ):
            return
        kind, why = _state(study / STATES / f"{Path(cell['name']).name}.json")
        if kind == "missing" and trained is not None and not trained.folder.trained:
            kind, why = trained.stands()
        self.problems.append(Problem(kind, folder, why, *about))

    def _other_run(self, study: Path, cell: dict[str, Any], why: str) -> None:
        """The folder of a cell holds another run than the study asks for: its scores do not count."""
        folder, about = real_path(study / cell["folder"]), (cell["task"], cell["method"], cell["seed"])
        for s in [s for s in self.scored if (real_path(s.path.parent), s.method) == (folder, cell["method"])]:
            self.scored.remove(s)
            self.problems.append(Problem("left_out", s.path, why, *about))
        kind, told = _state(study / STATES / f"{Path(cell['name']).name}.json")
        if kind == "failed":
            self.problems.append(Problem(kind, study / cell["folder"], told, *about))

    def unlisted(self, scored: Sequence[Scored]) -> list[str]:
        """Scores that count and lie in a study's folder, without being in its list."""
        roots = [real_path(study) for study, _ in self.studies]
        inside = [s for s in scored if any(root in real_path(s.path).parents for root in roots)]
        return [str(s.path) for s in inside if (real_path(s.path.parent), s.method) not in self.listed]


def _run(content: dict[str, Any]) -> Run:
    """The run that a configuration describes; it may be of a method that is not known here, a user's own."""
    method = content.get("method")
    if not isinstance(method, str) or not NAME.fullmatch(method) or find_method(method) is not None:
        return Run.from_dict(content)
    run = Run.from_dict({**content, "method": "ffm"})
    object.__setattr__(run, "method", method)  # past the check: nothing is trained or sampled from here
    return run


def _told(path: Path) -> str:
    """The format that a file names."""
    content = read_any(path)
    return str(content.get("format")) if isinstance(content, dict) else ""


def _state(path: Path) -> tuple[Kind, str]:
    """How a cell without scores stands."""
    try:
        content = read_any(path) if path.exists() else {}
        state = content.get("state") if isinstance(content, dict) else None
    except SapcError as error:
        return "missing", f"has no scores, and its state {error}"
    if state == "failed":
        return "failed", " ".join(str(content.get("error") or "it is not told why").split())
    if state in UNDER_WAY:
        return "unfinished", "was stopped" if state == "stopped" else f"is {state}, or was killed meanwhile"
    return "missing", "has no scores" + (f"; its state is {state!r:.40}" if state else " and was not begun")


def _scored(path: Path, scores: Scores, trained: Trained | None) -> Scored:
    noted = scores.more.get("training")
    noted = noted if isinstance(noted, dict) else {}
    training = trained.settings() if trained else {k: v for k, v in noted.items() if k == "precision"}
    seconds, device = None, ""
    if scores.settings.method == scores.run.method:
        seconds, device = trained.seconds() if trained else (number(noted.get("seconds")), "")
    return Scored(path, scores, json.loads(json.dumps(training)), seconds, device)
