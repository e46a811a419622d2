"""Collect results from folders: runs with their scores, loose files of scores, studies with their states.

Scores that count belong together: one protocol per task, one way of sampling per method, one file per seed.
Groups of scores with the same value are compared by how many pairs (method, seed) they have; copies do not
count twice. The largest group stays. Among equally large ones it is that of the longer training, of more
samples or steps, of more test sets, then the newer one.

A mean over seeds x test sets has to weigh all sets alike, so the scores of a method are of the same sets:
those with which there are most values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..._files import first_line, real_path
from ...errors import SapcError
from ...methods import find_method
from ...methods.registry import NAME_PATTERN
from ...models.scores import ForeignFormatError, Scores, read_content, whole_name
from ...training.config import TrainingConfig
from .records import TRAINING_KEYS, Collection, Kind, Problem, ScoresFile, TrainedRun, positive_number

STUDY, MANIFEST, STATES = "sapc-study-1", "study.json", "states"
OTHER_FILES = ("config.json", "environment.json", MANIFEST)
ACTIVE_STATES = ("running", "training", "evaluating", "stopped")
CELL_TYPES = {"name": str, "task": str, "method": str, "seed": int, "folder": str}
Value = Callable[[ScoresFile], Any]
PROTOCOL: dict[str, Value] = {
    "grid": attrgetter("scores.run.grid"),
    "options": attrgetter("scores.run.options"),
    "preset": attrgetter("scores.run.preset"),
    "training steps": attrgetter("scores.run.steps"),
    "symmetries": attrgetter("scores.run.symmetries"),
    "number of reference solutions": attrgetter("scores.settings.reference"),
}
"""What all scores of a task must share."""
SAMPLING: dict[str, Value] = {
    "sampler": attrgetter("scores.settings.sampler_name"),
    "number of sampling steps": attrgetter("scores.settings.steps"),
    "number of samples": attrgetter("samples"),
}
"""What all scores of one method must share; where its batch is one problem, also `BATCH`."""
BATCH: dict[str, Value] = {"batch, which is one problem,": attrgetter("scores.settings.batch")}


def collect(paths: Sequence[str | os.PathLike[str]]) -> Collection:
    """Collect all scores in and below some folders or files, and every problem with them.

    Args:
        paths: Folders and files.

    Returns:
        The scores that count, and the problems.

    Raises:
        SapcError: A path does not exist; nothing else is an error.
    """
    collector = _Collector()
    for path in map(Path, paths):
        if not path.exists():
            raise SapcError(f"there is no {path}; give folders or files of results that exist")
        collector.scan(path)
    collector.check_studies()
    files, omissions = select(collector.files)
    names = [str(name) for _, name, _ in collector.studies]
    methods = tuple(dict.fromkeys(method for _, method in collector.listed))
    unlisted_files = tuple(collector.unlisted_files(files))
    return Collection(files, collector.problems + omissions, names, methods, unlisted_files)


@dataclass
class _Collector:
    """Walk through folders and gather scores, problems and studies.

    Attributes:
        files: Scores that are fine by themselves.
        problems: What does not count.
        studies: RunFolder, name and cells of every manifest.
        unscored_runs: Runs without any file of scores.
        scanned_paths: Paths that have been looked at.
        listed: Run folder and method of every cell of the studies, in their order.
    """

    files: list[ScoresFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    studies: list[tuple[Path, Any, list[Any]]] = field(default_factory=list)
    unscored_runs: list[TrainedRun] = field(default_factory=list)
    scanned_paths: set[Path] = field(default_factory=set)
    listed: dict[tuple[Path, str], None] = field(default_factory=dict)

    # -- the walk --

    def scan(self, path: Path) -> None:
        """Look at one file, or at all of a folder."""
        if path.is_dir():
            onerror = lambda error: self._add_problem(
                "corrupt", Path(error.filename or path), f"cannot be read ({first_line(error)})"
            )
            for folder, subfolders, names in os.walk(path, onerror=onerror):
                hidden = {STATES} if MANIFEST in names else set()
                subfolders[:] = sorted(n for n in subfolders if not (n.startswith(".") or n in hidden))
                self._scan_folder(Path(folder), names)
        elif path.name == MANIFEST:
            self._read_study(path.parent)
        else:
            self._read_scores(path, self._find_run(path.parent))

    def _scan_folder(self, folder: Path, names: Iterable[str]) -> None:
        texts = sorted(n for n in names if n.endswith(".json") and not n.startswith("."))
        if MANIFEST in texts:
            self._read_study(folder)
        run = self._find_run(folder)
        if run is not None:
            self._scan_run(run, [n for n in texts if n.startswith("scores")])
        for name in texts:
            if name not in OTHER_FILES and not (run and name.startswith("scores")):
                self._read_scores(folder / name)

    def _is_new(self, path: Path) -> bool:
        """Return whether a path is looked at for the first time."""
        count = len(self.scanned_paths)
        self.scanned_paths.add(real_path(path))
        return len(self.scanned_paths) > count

    def _add_problem(self, kind: Kind, path: Path, reason: str, run: TrainedRun | None = None) -> None:
        self.problems.append(run.problem(kind, path, reason) if run else Problem(kind, path, reason))

    # -- runs --

    def _find_run(self, folder: Path) -> TrainedRun | None:
        config = folder / "config.json"
        if not config.is_file():
            return None
        try:
            content = read_content(config)
            is_run = isinstance(content, dict) and str(content.get("format")).startswith("sapc-run-")
            return TrainedRun(folder, _read_config(content)) if is_run else None
        except SapcError as error:
            if self._is_new(config):
                self._add_problem("corrupt", config, str(error))
            return None

    def _scan_run(self, run: TrainedRun, names: Sequence[str]) -> None:
        folder = run.folder.path
        if not self._is_new(folder):
            return
        count = len(self.problems)
        complete = {n: self._read_scores(folder / n, run) for n in names if whole_name(n) is None}
        for part in (n for n in names if n not in complete):
            name = whole_name(part) or part
            if not complete.get(name):
                self._read_scores(folder / part, run)
            elif self._is_new(folder / part):
                self._add_problem("left_out", folder / part, f"{name} beside it says more, and counts", run)
        if not names and len(self.problems) == count:
            self.unscored_runs.append(run)

    def _read_scores(self, path: Path, run: TrainedRun | None = None) -> bool:
        """Read a file of scores, or add a problem; return whether the scores are fine."""
        if not self._is_new(path):
            return False
        # In a run folder this name promises scores.
        is_promised = run is not None and path.name.startswith("scores")
        try:
            scores = Scores.read(path)
        except ForeignFormatError as error:
            # Other files of this package are no problem.
            if is_promised or not str(error.format).startswith("sapc-"):
                self._add_problem("corrupt" if is_promised else "left_out", path, str(error), run)
            return False
        except SapcError as error:
            self._add_problem("corrupt", path, str(error), run)
            return False
        file = run.make_file(path, scores) if run else _make_loose_file(path, scores)
        if scores.run.trained < scores.run.steps:
            step = f"step {scores.run.trained} of {scores.run.steps}"
            self.problems.append(file.problem("unfinished", f"scores of an unfinished training, {step}"))
        elif run is not None and (reason := run.find_contradiction(scores)):
            self.problems.append(file.problem("left_out", reason))
        else:
            self.files.append(file)
            return True
        return False

    # -- studies --

    def _read_study(self, folder: Path) -> None:
        path = folder / MANIFEST
        if not self._is_new(path):
            return
        try:
            content = read_content(path)
            cells = content.get("cells") if isinstance(content, dict) else None
            if not isinstance(cells, list) or content.get("format") != STUDY:
                raise SapcError(f"is not the manifest of a study ({STUDY})")
            self.studies.append((folder, content.get("name", folder.name), cells))
        except SapcError as error:
            self._add_problem("corrupt", path, str(error))

    def check_studies(self) -> None:
        """Add problems for cells of studies and for runs that have no scores."""
        for study, _, cells in self.studies:
            for cell in cells:
                if isinstance(cell, dict) and all(isinstance(cell.get(k), t) for k, t in CELL_TYPES.items()):
                    self.listed[real_path(study / cell["folder"]), cell["method"]] = None
                    self._check_cell(study, cell)
                else:
                    reason = f"has a cell that cannot be read: {cell!r:.60}"
                    self._add_problem("corrupt", study / MANIFEST, reason)
        folders = {folder for folder, _ in self.listed}
        for run in self.unscored_runs:
            if real_path(run.folder.path) not in folders:
                kind, reason = run.status()
                self._add_problem(kind, run.folder.path, reason, run)

    def _check_cell(self, study: Path, cell: dict[str, Any]) -> None:
        folder, subject = study / cell["folder"], (cell["task"], cell["method"], cell["seed"])
        place = real_path(folder), cell["method"]
        kind, reason = _read_state(study / STATES / f"{Path(cell['name']).name}.json")
        run = self._find_run(folder)
        if run is not None:
            # It may lie outside the study.
            self._scan_run(run, sorted(p.name for p in folder.glob("scores*.json")))
        files = [s for s in self.files if (real_path(s.path.parent), s.method) == place]
        if run is not None and (difference := run.find_difference(cell.get("run"))):
            # The scores of another run than the study asks for do not count.
            self.files = [s for s in self.files if s not in files]
            self.problems += [Problem("left_out", s.path, difference, *subject) for s in files]
            if kind == "failed":
                self.problems.append(Problem(kind, folder, reason, *subject))
            return
        file_problems = (p for p in self.problems if p.path.is_file())
        if files or any((real_path(p.path.parent), p.method) == place for p in file_problems):
            return
        if kind == "missing" and run is not None and not run.folder.is_trained:
            kind, reason = run.status()
        self.problems.append(Problem(kind, folder, reason, *subject))

    def unlisted_files(self, files: Sequence[ScoresFile]) -> list[str]:
        """Return which of these files lie in a study's folder, without being in its list."""
        roots = [real_path(study) for study, *_ in self.studies]
        inside = [s for s in files if any(root in real_path(s.path).parents for root in roots)]
        return [str(s.path) for s in inside if (real_path(s.path.parent), s.method) not in self.listed]


def _read_config(content: dict[str, Any]) -> TrainingConfig:
    """Return the training that a configuration describes; its method may be a user's, and unknown here."""
    method = content.get("method")
    if not isinstance(method, str) or not NAME_PATTERN.fullmatch(method) or find_method(method) is not None:
        return TrainingConfig.from_dict(content)
    run = TrainingConfig.from_dict({**content, "method": "ffm"})
    # Past the check: nothing is trained or sampled from here.
    object.__setattr__(run, "method", method)
    return run


def _read_state(path: Path) -> tuple[Kind, str]:
    """Return the kind of problem that a cell without scores is, and the reason."""
    try:
        content = read_content(path) if path.exists() else {}
        state = content.get("state") if isinstance(content, dict) else None
    except SapcError as error:
        return "missing", f"has no scores, and its state {error}"
    if state == "failed":
        return "failed", " ".join(str(content.get("error") or "it is not told why").split())
    if state in ACTIVE_STATES:
        return "unfinished", "was stopped" if state == "stopped" else f"is {state}, or was killed meanwhile"
    return "missing", "has no scores" + (f"; its state is {state!r:.40}" if state else " and was not begun")


def _make_loose_file(path: Path, scores: Scores) -> ScoresFile:
    """Add to scores outside of a run folder what they say themselves of the training."""
    training = scores.more.get("training")
    training = training if isinstance(training, dict) else {}
    is_trainer = scores.settings.method == scores.run.method
    seconds = positive_number(training.get("seconds")) if is_trainer else None
    return ScoresFile(path, scores, {k: v for k, v in training.items() if k == "precision"}, seconds)


# -- what belongs together --


def select(files: Sequence[ScoresFile]) -> tuple[list[ScoresFile], list[Problem]]:
    """Select the scores that count, in their order; return them, and a problem for each of the others."""
    problems: list[Problem] = []
    selection: list[ScoresFile] = []
    for task in dict.fromkeys(s.task for s in files):
        group = _largest_group([s for s in files if s.task == task], PROTOCOL, task, problems)
        for key in TRAINING_KEYS:
            known = [s for s in group if s.training.get(key) is not None]
            value = {f"training's {key}": partial(_training_value, key)}
            usual = _largest_group(known, value, task, problems) if known else []
            group = [s for s in group if s in usual or s not in known]
        for name in dict.fromkeys(s.method for s in group):
            part, subject, method = (
                [s for s in group if s.method == name],
                f"{name} on {task}",
                find_method(name),
            )
            shared = SAMPLING | (BATCH if method is not None and method.couples_batch else {})
            for label, get in shared.items():
                part = _largest_group(part, {label: get}, subject, problems)
            sets: dict[str, Value] = {"list of test sets": lambda s: sorted(s.sets)}
            part = _one_per_seed(part, problems)
            selection += _largest_group(part, sets, subject, problems, _weigh_sets)
    return [s for s in files if s in selection], problems


def _training_value(key: str, s: ScoresFile) -> Any:
    return s.training[key]


def _largest_group(
    files: Sequence[ScoresFile],
    values: Mapping[str, Value],
    subject: str,
    problems: list[Problem],
    weigh: Callable[[Sequence[ScoresFile]], Any] | None = None,
) -> list[ScoresFile]:
    """Return the largest group that shares all these values; add a problem for every file outside of it."""
    groups: dict[tuple[str, ...], list[ScoresFile]] = {}
    for s in files:
        groups.setdefault(tuple(_as_text(get(s)) for get in values.values()), []).append(s)
    best = max(groups.values(), key=weigh or (lambda group: _weigh(group, values)))
    for s in (s for group in groups.values() if group is not best for s in group):
        pairs = ((label, get(s), get(best[0])) for label, get in values.items())
        label, value, usual = next(pair for pair in pairs if _as_text(pair[1]) != _as_text(pair[2]))
        reason = f"its {label} is {value!r:.80}, that of the scores of {subject} that count {usual!r:.80}"
        problems.append(s.problem("left_out", reason))
    return best


def _weigh(group: Sequence[ScoresFile], values: Mapping[str, Value]) -> tuple[Any, ...]:
    numbers = [get(group[0]) for get in values.values()]
    return (
        len({(s.method, s.seed) for s in group}),
        [n for n in numbers if isinstance(n, int | float)],
        sum(len(s.sets) for s in group),
        max(s.time for s in group),
    )


def _weigh_sets(group: Sequence[ScoresFile]) -> tuple[Any, ...]:
    """Prefer most values of seeds x test sets, then most sets."""
    return len(group) * len(group[0].sets), len(group[0].sets), max(s.time for s in group)


def _one_per_seed(files: Sequence[ScoresFile], problems: list[Problem]) -> list[ScoresFile]:
    """Return of every seed the most complete scores, then the newest; add a problem for the others."""
    selection = []
    for seed in dict.fromkeys(s.seed for s in files):
        best, *others = sorted((s for s in files if s.seed == seed), key=_completeness, reverse=True)
        selection.append(best)
        reason = f"{best.path} is as complete or more so, and counts"
        problems += [s.problem("left_out", reason) for s in others]
    return selection


def _completeness(s: ScoresFile) -> tuple[int, int, str, bool, str]:
    metrics = {name for scores in s.sets.values() for name in scores.metrics}
    return len(s.sets), len(metrics), s.time, any(scores.floor for scores in s.sets.values()), str(s.path)


def _as_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
