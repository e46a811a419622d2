"""Collect results from folders: runs with their scores, loose files of scores, studies with the state of their cells.

What counts belongs together: one protocol per task, one way of sampling per method, one file per seed.
Groups of scores with the same value are compared by how many pairs (method, seed) they have; copies do not count twice. The largest group
stays. Of equally large ones it is that of the longer training, of more samples or steps, of more test sets, then the newer one.

A mean over seeds x test sets has to weigh all sets alike, so the scores of a method are of the same sets: those with which there are most
values.
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
from ...methods.registry import NAME
from ...models.scores import ForeignFormatError, Scores, read_any, whole_name
from ...training.config import Run
from .records import TRAINED, Collection, Kind, Problem, ScoresFile, TrainedRun, number

STUDY, MANIFEST, STATES = "sapc-study-1", "study.json", "states"
OURS = ("config.json", "environment.json", MANIFEST)
UNDER_WAY = ("running", "training", "evaluating", "stopped")
_CELL = {"name": str, "task": str, "method": str, "seed": int, "folder": str}
Value = Callable[[ScoresFile], Any]
PROTOCOL: dict[str, Value] = {
    "grid": attrgetter("scores.run.grid"),
    "options": attrgetter("scores.run.options"),
    "preset": attrgetter("scores.run.preset"),
    "training steps": attrgetter("scores.run.steps"),
    "number of reference solutions": attrgetter("scores.settings.reference"),
}
"""What all scores of a task must share."""
SAMPLING: dict[str, Value] = {
    "number of sampling steps": attrgetter("scores.settings.steps"),
    "number of samples": attrgetter("samples"),
}
"""What all scores of one method must share; where its batch is one problem, also `BATCH`."""
BATCH: dict[str, Value] = {"batch, which is one problem,": attrgetter("scores.settings.batch")}


def collect(paths: Sequence[str | os.PathLike[str]]) -> Collection:
    """Return all scores in and below these folders or files, and every problem with them.

    Raises:
        SapcError: a path does not exist; nothing else is an error.
    """
    found = _Collector()
    for path in map(Path, paths):
        if not path.exists():
            raise SapcError(f"there is no {path}; give folders or files of results that exist")
        found.look(path)
    found.finish()
    scored, left = select(found.files)
    names = [str(name) for _, name, _ in found.studies]
    asked = tuple(dict.fromkeys(method for _, method in found.listed))
    return Collection(scored, found.problems + left, names, asked, tuple(found.unlisted_files(scored)))


@dataclass
class _Collector:
    """What has been found so far.

    studies    folder, name and cells of every manifest
    bare       runs without scores
    listed     run folder and method of every cell of the studies
    """

    files: list[ScoresFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    studies: list[tuple[Path, Any, list[Any]]] = field(default_factory=list)
    bare: list[TrainedRun] = field(default_factory=list)
    seen: set[Path] = field(default_factory=set)
    listed: dict[tuple[Path, str], None] = field(default_factory=dict)

    # -- the walk --

    def look(self, path: Path) -> None:
        """Look at one file, or at all of a folder."""
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
            self._scores(path, self._trained(path.parent))

    def _folder(self, folder: Path, names: Iterable[str]) -> None:
        texts = sorted(n for n in names if n.endswith(".json") and not n.startswith("."))
        if MANIFEST in texts:
            self._study(folder)
        trained = self._trained(folder)
        if trained is not None:
            self._run_folder(trained, [n for n in texts if n.startswith("scores")])
        for name in texts:
            if name not in OURS and not (trained and name.startswith("scores")):
                self._scores(folder / name)

    def _is_new(self, path: Path) -> bool:
        """Return whether this is the first time it is looked at."""
        before = len(self.seen)
        self.seen.add(real_path(path))
        return len(self.seen) > before

    def _problem(self, kind: Kind, path: Path, why: str, trained: TrainedRun | None = None) -> None:
        self.problems.append(trained.problem(kind, path, why) if trained else Problem(kind, path, why))

    # -- runs --

    def _trained(self, folder: Path) -> TrainedRun | None:
        """Return the run in a folder, if there is one."""
        config = folder / "config.json"
        if not config.is_file():
            return None
        try:
            content = read_any(config)
            is_run = isinstance(content, dict) and str(content.get("format")).startswith("sapc-run-")
            return TrainedRun(folder, _run(content)) if is_run else None
        except SapcError as error:
            if self._is_new(config):
                self._problem("corrupt", config, str(error))
            return None

    def _run_folder(self, trained: TrainedRun, names: Sequence[str]) -> None:
        folder = trained.folder.path
        if not self._is_new(folder):
            return
        before = len(self.problems)
        whole = {n: self._scores(folder / n, trained) for n in names if whole_name(n) is None}
        for part in (n for n in names if n not in whole):
            usual = whole_name(part) or part
            if not whole.get(usual):
                self._scores(folder / part, trained)
            elif self._is_new(folder / part):
                self._problem("left_out", folder / part, f"{usual} beside it says more, and counts", trained)
        if not names and len(self.problems) == before:
            self.bare.append(trained)

    def _scores(self, path: Path, trained: TrainedRun | None = None) -> bool:
        """Take a file of scores, or note what is wrong with it; return whether it was taken."""
        if not self._is_new(path):
            return False
        # In the folder of a run this name promises scores.
        is_promised = trained is not None and path.name.startswith("scores")
        try:
            scores = Scores.read(path)
        except ForeignFormatError as error:
            # Other files of this package are no problem.
            if is_promised or not str(error.format).startswith("sapc-"):
                self._problem("corrupt" if is_promised else "left_out", path, str(error), trained)
            return False
        except SapcError as error:
            self._problem("corrupt", path, str(error), trained)
            return False
        run, found = scores.run, trained.make_file(path, scores) if trained else _loose(path, scores)
        if run.trained < run.steps:
            why = f"scores of an unfinished training, step {run.trained} of {run.steps}"
            self.problems.append(found.problem("unfinished", why))
        elif trained is not None and (why := trained.contradicts(scores)):
            self.problems.append(found.problem("left_out", why))
        else:
            self.files.append(found)
            return True
        return False

    # -- studies --

    def _study(self, folder: Path) -> None:
        path = folder / MANIFEST
        if not self._is_new(path):
            return
        try:
            content = read_any(path)
            cells = content.get("cells") if isinstance(content, dict) else None
            if not isinstance(cells, list) or content.get("format") != STUDY:
                raise SapcError(f"is not the manifest of a study ({STUDY})")
            self.studies.append((folder, content.get("name", folder.name), cells))
        except SapcError as error:
            self._problem("corrupt", path, str(error))

    def finish(self) -> None:
        """Look at what studies promise, and at runs without scores."""
        for study, _, cells in self.studies:
            for cell in cells:
                if isinstance(cell, dict) and all(isinstance(cell.get(k), t) for k, t in _CELL.items()):
                    self.listed[real_path(study / cell["folder"]), cell["method"]] = None
                    self._cell(study, cell)
                else:
                    why = f"has a cell that cannot be read: {cell!r:.60}"
                    self._problem("corrupt", study / MANIFEST, why)
        promised = {folder for folder, _ in self.listed}
        for trained in self.bare:
            if real_path(trained.folder.path) not in promised:
                kind, why = trained.status()
                self._problem(kind, trained.folder.path, why, trained)

    def _cell(self, study: Path, cell: dict[str, Any]) -> None:
        folder, about = study / cell["folder"], (cell["task"], cell["method"], cell["seed"])
        place = real_path(folder), cell["method"]
        kind, state = _state(study / STATES / f"{Path(cell['name']).name}.json")
        trained = self._trained(folder)
        if trained is not None:
            # It may lie outside the study.
            self._run_folder(trained, sorted(p.name for p in folder.glob("scores*.json")))
        own = [s for s in self.files if (real_path(s.path.parent), s.method) == place]
        if trained is not None and (why := trained.differs(cell.get("run"))):
            # The scores of another run than the study asks for do not count.
            self.files = [s for s in self.files if s not in own]
            self.problems += [Problem("left_out", s.path, why, *about) for s in own]
            if kind == "failed":
                self.problems.append(Problem(kind, folder, state, *about))
            return
        files = (p for p in self.problems if p.path.is_file())
        if own or any((real_path(p.path.parent), p.method) == place for p in files):
            return
        if kind == "missing" and trained is not None and not trained.folder.trained:
            kind, state = trained.status()
        self.problems.append(Problem(kind, folder, state, *about))

    def unlisted_files(self, scored: Sequence[ScoresFile]) -> list[str]:
        """Return scores that count and lie in a study's folder, without being in its list."""
        roots = [real_path(study) for study, *_ in self.studies]
        inside = [s for s in scored if any(root in real_path(s.path).parents for root in roots)]
        return [str(s.path) for s in inside if (real_path(s.path.parent), s.method) not in self.listed]


def _run(content: dict[str, Any]) -> Run:
    """Return the run that a configuration describes; it may be of a method that is not known here, a user's own."""
    method = content.get("method")
    if not isinstance(method, str) or not NAME.fullmatch(method) or find_method(method) is not None:
        return Run.from_dict(content)
    run = Run.from_dict({**content, "method": "ffm"})
    object.__setattr__(run, "method", method)  # past the check: nothing is trained or sampled from here
    return run


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


def _loose(path: Path, scores: Scores) -> ScoresFile:
    """Return scores outside of a run folder, with what they tell themselves of the training."""
    told = scores.more.get("training")
    told = told if isinstance(told, dict) else {}
    seconds = number(told.get("seconds")) if scores.settings.method == scores.run.method else None
    return ScoresFile(path, scores, {k: v for k, v in told.items() if k == "precision"}, seconds)


# -- what belongs together --


def select(found: Sequence[ScoresFile]) -> tuple[list[ScoresFile], list[Problem]]:
    """What counts, in the order it was found, and the rest as problems."""
    left: list[Problem] = []
    kept: list[ScoresFile] = []
    for task in dict.fromkeys(s.task for s in found):
        alike = _largest([s for s in found if s.task == task], PROTOCOL, task, left)
        for name in TRAINED:
            known = [s for s in alike if s.training.get(name) is not None]
            value = {f"training's {name}": partial(_training, name)}
            fine = _largest(known, value, task, left) if known else []
            alike = [s for s in alike if s in fine or s not in known]
        for method in dict.fromkeys(s.method for s in alike):
            own, where = [s for s in alike if s.method == method], f"{method} on {task}"
            known_method = find_method(method)
            shared = SAMPLING | (BATCH if known_method is not None and known_method.couples_batch else {})
            for what, get in shared.items():
                own = _largest(own, {what: get}, where, left)
            sets: dict[str, Value] = {"list of test sets": lambda s: sorted(s.sets)}
            kept += _largest(_one_per_seed(own, left), sets, where, left, _all_sets)
    return [s for s in found if s in kept], left


def _training(name: str, s: ScoresFile) -> Any:
    return s.training[name]


def _largest(
    scored: Sequence[ScoresFile],
    values: Mapping[str, Value],
    where: str,
    left: list[Problem],
    weigh: Callable[[Sequence[ScoresFile]], Any] | None = None,
) -> list[ScoresFile]:
    """The largest group of those alike in all these values; the others are told what they differ in."""
    groups: dict[tuple[str, ...], list[ScoresFile]] = {}
    for s in scored:
        groups.setdefault(tuple(_plain(get(s)) for get in values.values()), []).append(s)
    best = max(groups.values(), key=weigh or (lambda group: _weight(group, values)))
    for s in (s for group in groups.values() if group is not best for s in group):
        pairs = ((what, get(s), get(best[0])) for what, get in values.items())
        what, own, usual = next(found for found in pairs if _plain(found[1]) != _plain(found[2]))
        why = f"its {what} is {own!r:.80}, that of the scores of {where} that count {usual!r:.80}"
        left.append(s.problem("left_out", why))
    return best


def _weight(group: Sequence[ScoresFile], values: Mapping[str, Value]) -> tuple[Any, ...]:
    numbers = [get(group[0]) for get in values.values()]
    return (
        len({(s.method, s.seed) for s in group}),
        [n for n in numbers if isinstance(n, int | float)],
        sum(len(s.sets) for s in group),
        max(s.time for s in group),
    )


def _all_sets(group: Sequence[ScoresFile]) -> tuple[Any, ...]:
    """Most values of seeds x test sets, then most sets."""
    return len(group) * len(group[0].sets), len(group[0].sets), max(s.time for s in group)


def _one_per_seed(scored: Sequence[ScoresFile], left: list[Problem]) -> list[ScoresFile]:
    """Of several scores of one seed the most complete, then the newest."""
    kept = []
    for seed in dict.fromkeys(s.seed for s in scored):
        best, *others = sorted((s for s in scored if s.seed == seed), key=_complete, reverse=True)
        kept.append(best)
        why = f"{best.path} is as complete or more so, and counts"
        left += [s.problem("left_out", why) for s in others]
    return kept


def _complete(s: ScoresFile) -> tuple[int, int, str, bool, str]:
    metrics = {name for about in s.sets.values() for name in about.metrics}
    return len(s.sets), len(metrics), s.time, any(about.floor for about in s.sets.values()), str(s.path)


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
