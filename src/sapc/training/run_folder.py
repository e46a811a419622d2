"""Run folders: everything needed to repeat a run, to continue it and to use it.

    config.json             what the run is
    environment.json        on what it ran: versions, device, command; one entry per start
    log.jsonl               one line per logged step and per validation
    checkpoint.safetensors  weights, optimiser and schedule of an unfinished training
    weights.safetensors     the trained weights; with this file training is done
    optimiser.safetensors   the optimiser and schedule of a finished training, for one that goes on
    scores.json             the evaluation; with this file the run is done
    physics.py              of own data: the file that was given, to be read; it is never run because it lies there

A model to be passed on (`save_pretrained`) has its weights in model.safetensors instead, as the Hugging Face hub wants it, and a README.md.

Every file but the log is replaced atomically, so at any moment a folder holds the last complete state. The log is cut back to the
checkpoint when training continues. One process at a time trains in a folder; the lock ends with the process, however that ends.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import torch

from .._files import first_line, folder_for, parse_json, read_json, remove_remains, replacing, write_json
from .._version import __version__
from ..errors import SapcError, SapcWarning
from .config import FORMAT, Run
from .shipped import shipped_digest
from .weights import about_tensors as about_tensors
from .weights import load_tensors as load_tensors
from .weights import save_tensors as save_tensors


class Folder:
    """The files of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.environment = self.path / "environment.json"
        self.log = self.path / "log.jsonl"
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.weights = self.path / "weights.safetensors"
        self.optimiser = self.path / "optimiser.safetensors"
        self.card = self.path / "README.md"
        if not self.weights.exists() and (passed_on := self.path / "model.safetensors").is_file():
            self.weights = passed_on
        self.scores = self.path / "scores.json"
        self.physics = self.path / "physics.py"

    @property
    def trained(self) -> bool:
        """Whether training is done."""
        return self.weights.is_file()

    def known_digest(self) -> str | None:
        """The SHA-256 of the trained weights that is known from elsewhere: the list of the package's own, or scores that were measured."""
        if (listed := shipped_digest(self.path)) is not None:
            return listed
        try:
            scores = read_json(self.scores) if self.scores.is_file() else None
        except SapcError:  # weights do without scores
            return None
        digest = scores.get("weights") if isinstance(scores, dict) else None
        return digest if isinstance(digest, str) else None

    def run(self) -> Run:
        """What the run is."""
        if not self.config.is_file():
            raise SapcError(
                f"{self.path} is not a run folder: it has no config.json; train one with `sapc train`, or name a model that comes "
                "with the package (`sapc models` lists them)"
            )
        content = read_json(self.config, f"the configuration of a run ({FORMAT})")
        try:
            return Run.from_dict(content)
        except SapcError as error:
            raise SapcError(f"{self.config}: {error}") from error

    @property
    def begun(self) -> bool:
        """Whether there is anything that another configuration would contradict."""
        return self.trained or self.checkpoint.exists() or bool(self.entries())

    def begin(self, run: Run) -> None:
        """Make this the folder of a run; the caller has locked it."""
        self.check(run)
        remove_remains(self.path, unnamed=True)
        if self.trained:
            self.checkpoint.unlink(missing_ok=True)
        if not self.begun:
            write_json(self.config, run.to_dict())

    def check(self, run: Run) -> None:
        """Refuse a folder that holds something else than this very run."""
        if not self.path.exists():
            return
        if not self.config.exists():
            if any(not p.name.startswith(".") for p in self.path.iterdir()):
                raise SapcError(
                    f"{self.path} exists, is not empty and is not a run folder; choose another one"
                )
            return
        if not self.begun:
            return
        there = self.run()
        own, wanted = _plain(there.identity()), _plain(run.identity())
        if (
            self.trained
            and run.steps > there.steps
            and wanted == _plain(there.extended(run.steps).identity())
        ):
            return
        if changed := [name for name in {**wanted, **own} if own.get(name) != wanted.get(name)]:
            name = min(changed, key=lambda name: name in ("steps", "stages"))
            longer = self.trained and run.steps > there.steps and set(changed) <= {"steps", "stages"}
            advice = (
                f"`sapc train --resume {self.path} --steps {run.steps}` goes on from there"
                if longer
                else "choose another folder, or the same settings to continue it"
            )
            place, one, other = _difference(name, own.get(name), wanted.get(name))
            raise SapcError(
                f"{self.path} holds another run: its {place} is {one!r:.80}, not {other!r:.80}; {advice}"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Inside the block no other process trains in this folder."""
        with folder_for(self.path), open(self.path / ".lock", "w") as file:
            try:
                lock_file(file)
            except BlockingIOError as error:
                raise SapcError(
                    f"another process is training in {self.path}; wait for it or choose another folder"
                ) from error
            yield

    def note_start(self, **more: Any) -> None:
        """Add to environment.json what this start runs on."""
        try:
            starts = list(read_json(self.environment)["starts"]) if self.environment.exists() else []
        except (SapcError, TypeError, KeyError) as error:  # where it ran is no reason not to run
            warnings.warn(SapcWarning(f"{self.environment} begins anew: {first_line(error)}"), stacklevel=2)
            starts = []
        write_json(self.environment, {"starts": [*starts, {**environment(), **more}]})

    # -- the log --

    def append(self, **entry: Any) -> None:
        """One line more."""
        with open(self.log, "a") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")

    def entries(self) -> list[dict[str, Any]]:
        """The log's lines; a last line cut short by a crash is left out."""
        found = []
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        for line in text.splitlines():
            try:
                entry = parse_json(line)
            except SapcError:
                break
            if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
                break
            found.append(entry)
        return found

    def cut_log(self, step: int) -> None:
        """Forget what was logged after `step`: it will be done again."""
        kept = [json.dumps(entry) + "\n" for entry in self.entries() if entry["step"] <= step]
        with replacing(self.log) as partial:
            partial.write_text("".join(kept))


def default_folder(run: Run) -> Path:
    """Where a run goes unless told: named after task, method, preset and seed."""
    parts = [run.task, run.method]
    parts += [run.preset] if run.preset != "paper" else []
    parts += [f"seed{run.seed}"] if run.seed else []
    parts += [f"from-{run.parent['name']}"] if run.parent else []
    return Path("runs") / "-".join(parts)


def environment() -> dict[str, Any]:
    """Versions and hardware, for whoever wants to repeat a figure."""
    cuda = torch.cuda.is_available()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join((_program(), *sys.argv[1:])),
        "sapc": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def _program() -> str:
    """How this process was started, without its folder."""
    name = Path(sys.argv[0] if sys.argv else "").name
    return "sapc" if name in ("sapc", "__main__.py") else f"python {name}".strip()


def lock_file(file: IO[str]) -> None:
    """Lock an open file against other processes, until it is closed; raises BlockingIOError where one has it."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: nobody keeps a second process out
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        what = f"this file system knows no locks ({first_line(error)}); let one process at a time train in a folder"
        warnings.warn(SapcWarning(what), stacklevel=4)


def _difference(place: str, one: Any, other: Any) -> tuple[str, Any, Any]:
    """Find where two settings differ first, as deep as they are records or lists alike."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
        return _difference(f"{place}.{names[0]}", one.get(names[0]), other.get(names[0]))
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        i = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
        return _difference(f"{place}[{i}]", one[i], other[i])
    return place, one, other


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
