"""Commands that are killed at a random moment, by Ctrl-C, by a scheduler or for good, and then run again.

A command that was killed says nothing but its sentence and leaves nothing half-written; the same command then
ends well, and what it writes is to the last bit what a command writes that nobody disturbed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from safetensors.numpy import load_file

from .case import BadCase
from .examples import copy_example
from .program import call, leftovers

INTERRUPT_CODE = 130
# In which a process mostly imports.
START_SECONDS = 1.5
MAX_SECONDS = 60


def check(rng: random.Random, seed: int, examples: Path) -> None:
    """Kill a command once or twice, then let it end."""
    command = rng.choice(COMMANDS)
    number = rng.choice((signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
    times = rng.choice((1, 1, 2))
    print(f"{number.name}, {times} times: sapc {command.line}", flush=True)
    truth = _run_reference(command, examples)
    _make_place(command, examples, "disturbed")
    for _ in range(times):
        _kill(rng, command, number)
    process = _start(command)
    _, err = process.communicate(timeout=MAX_SECONDS)
    if process.returncode and not (command.once and process.returncode == 2):
        raise BadCase(
            f"the same command then ended with {process.returncode}: {err.strip().splitlines()[-1:]}"
        )
    if remains := leftovers(Path.cwd()):
        raise BadCase(f"left behind for ever: {remains[0]}")
    if not _is_same(truth, command.result(Path.cwd())):
        raise BadCase("the result is not that of an undisturbed command")


def _kill(rng: random.Random, command: Command, number: signal.Signals) -> None:
    """Start the command and kill it while it starts or while it works."""
    process = _start(command)
    if rng.random() < 0.4:
        _wait(process, rng.uniform(0.1, START_SECONDS))
    else:
        before = _files()
        while process.poll() is None and _files() == before:
            time.sleep(0.002)
        _wait(process, rng.uniform(0, 0.3))
    process.send_signal(number)
    try:
        _, err = process.communicate(timeout=MAX_SECONDS)
    except subprocess.TimeoutExpired as late:
        process.kill()
        raise BadCase(f"still running {MAX_SECONDS} seconds after {number.name}") from late
    if "Traceback (most" in err:
        raise BadCase(f"{number.name} shows a traceback: {err.strip().splitlines()[-1]}")
    if process.returncode not in (0, INTERRUPT_CODE, -number, *((2,) if command.once else ())):
        raise BadCase(f"exit code {process.returncode} after {number.name}: {err.strip().splitlines()[-1:]}")
    if (
        number == signal.SIGINT
        and process.returncode == INTERRUPT_CODE
        and (remains := leftovers(Path.cwd()))
    ):
        raise BadCase(f"left behind by {number.name}: {remains[0]}")


def _wait(process: subprocess.Popen[str], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _files() -> set[str]:
    return {str(path) for path in Path.cwd().rglob("*")}


def _start(command: Command) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "sapc", *command.line.split()]
    return subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _run_reference(command: Command, examples: Path) -> Any:
    """What the command writes, run in this process."""
    _make_place(command, examples, "undisturbed")
    outcome = call(*command.line.split())
    if outcome.code:
        raise BadCase(f"{outcome} ended with {outcome.code}: {outcome.err}")
    return command.result(Path.cwd())


def _make_place(command: Command, examples: Path, name: str) -> None:
    """A folder with what the command needs, and a cache of its own."""
    folder = Path.cwd().parent / name if Path.cwd().name == "undisturbed" else Path.cwd() / name
    folder.mkdir()
    os.chdir(folder)
    os.environ["SAPC_CACHE"] = str(folder / "cache")
    for example in command.needs:
        copy_example(examples, example)


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_is_same(a[key], b[key]) for key in a)
    # To the bit, NaN too.
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


# -- what is killed --


@dataclass(frozen=True)
class Command:
    """A command, what it needs, and what it leaves that must not depend on interruptions."""

    line: str
    needs: tuple[str, ...]
    result: Callable[[Path], Any]
    # Whether it refuses, rightly, to do again what is done.
    once: bool = False


def _tensors(name: str) -> Callable[[Path], Any]:
    """The tensors of a file, and whether the folder around it is whole."""

    def read(folder: Path) -> Any:
        file = folder / name
        return load_file(file) if file.is_file() and file.with_name("config.json").is_file() else {}

    return read


def _arrays(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        with h5py.File(folder / name) as file:
            return {key: file[key][()] for key in file if isinstance(file[key], h5py.Dataset)}

    return read


def _scores(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        sets = json.loads((folder / name).read_text())["sets"]
        return {split: {part: about[part] for part in ("metrics", "floor")} for split, about in sets.items()}

    return read


COMMANDS = (
    Command("train heat --preset tiny --steps 200 --out run", (), _tensors("run/weights.safetensors")),
    Command(
        "train burgers --preset tiny --steps 60 --method ffm --out run",
        (),
        _tensors("run/weights.safetensors"),
    ),
    Command("sample run --n 40 --steps 40 --set train --force --out out.h5", ("run",), _arrays("out.h5")),
    Command("data heat --grid 64x64 --size 200 --force --out out.h5", (), _arrays("out.h5")),
    Command(
        "evaluate run --samples 20 --reference 40 --steps 20 --floor-repeats 1",
        ("run",),
        _scores("run/scores.json"),
    ),
    Command("export run model", ("run",), _tensors("model/model.safetensors"), once=True),
    Command(
        "study run study.py --out study --device cpu",
        ("study.py",),
        _scores("study/heat-sapc-seed0/scores.json"),
    ),
)
