"""Fill the grid of results: train and score what is not kept yet, several runs side by side on one GPU, for some minutes.

    python studies/grid.py --minutes 9 --seeds 42 205 --methods sapc ffm sapc_s1 sapc_s3 eci cond_ffm --together 6

Scores land in KEEP, `<task>-<method>-seed<seed>-<hardware>.json`, as soon as each is made; a cell that has a file there, or is shipped with
the package, is not repeated. Weights stay in OUT, and the same command goes on with them. Trainings that cannot end in time are not begun;
what still runs at the end is stopped. Methods that sample with the same weights are scored by one process, `studies/reproduce.py`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sapc import get_method, task_names
from sapc.models.scores import Scores

ROOT = Path(__file__).resolve().parent.parent
FLAT = [name for name in task_names() if name != "navier_stokes"]


class Job(NamedTuple):
    """One training and those who sample with its weights."""

    preset: str
    task: str
    method: str
    seed: int
    samplers: tuple[str, ...]

    @property
    def name(self) -> str:
        """As `reproduce.py` calls it."""
        return f"{self.preset}/{self.task}-{self.method}-seed{self.seed}"


class Process(NamedTuple):
    """A job at work."""

    job: Job
    began: float
    popen: subprocess.Popen[bytes]


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--preset", default="compact")
    parser.add_argument("--tasks", nargs="+", default=FLAT)
    parser.add_argument(
        "--methods", nargs="+", default=["sapc", "ffm", "sapc_s1", "sapc_s3", "eci", "cond_ffm"]
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 42, 205])
    parser.add_argument("--together", type=int, default=6, help="processes at a time")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--keep", type=Path, default=ROOT / "results" / "compact")
    parser.add_argument("--hardware", default="h200")
    parser.add_argument("--steps", type=int, help="of the training, if not the preset's: to try it out")
    parser.add_argument("--samples", type=int, help="likewise")
    chosen = parser.parse_args()
    end = time.monotonic() + 60 * chosen.minutes
    todo, running, longest = list(jobs(chosen)), list[Process](), 0.0
    print(f"{len(todo)} trainings, {sum(len(job.samplers) for job in todo)} cells to go", flush=True)
    while (todo or running) and time.monotonic() < end:
        while todo and len(running) < chosen.together and time.monotonic() + longest < end:
            running.append(start(todo.pop(0), chosen))
        time.sleep(1)
        keep(running, chosen)
        for process in [p for p in running if p.popen.poll() is not None]:
            running.remove(process)
            took = time.monotonic() - process.began
            longest = max(longest, took)
            print(f"{process.job.name}: {took:.0f} s, exit status {process.popen.returncode}", flush=True)
        if not running and time.monotonic() + longest >= end:
            break
    for process in running:
        process.popen.terminate()
    for process in running:
        process.popen.wait()
        print(f"{process.job.name}: stopped", flush=True)
    keep(running, chosen)


def jobs(chosen: argparse.Namespace) -> Iterator[Job]:
    """What is not kept yet, seed by seed, those first whose weights serve most."""
    have = shipped() if chosen.preset == "compact" else set()
    have |= {"-".join(path.stem.split("-")[:3]) for path in chosen.keep.glob(f"*-{chosen.hardware}.json")}
    trainings = list(dict.fromkeys(get_method(m).weights for m in chosen.methods))
    for seed in chosen.seeds:
        for trained in trainings:
            for task in chosen.tasks:
                missing = tuple(
                    m
                    for m in chosen.methods
                    if get_method(m).weights == trained and f"{task}-{m}-seed{seed}" not in have
                )
                if missing:
                    yield Job(chosen.preset, task, trained, seed, missing)


def shipped() -> set[str]:
    """Cells whose scores come with the package."""
    found = (
        Scores.read(path) for path in (ROOT / "src" / "sapc" / "models" / "pretrained").glob("*/scores.json")
    )
    return {f"{s.run.task}-{s.settings.method}-seed{s.run.seed}" for s in found}


def start(job: Job, chosen: argparse.Namespace) -> Process:
    """Begin it, or go on with it."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("reproduce.py")),
        job.name,
        "--out",
        str(chosen.out),
    ]
    for sampler in job.samplers:
        command += ["--sampler", sampler]
    for name in ("steps", "samples"):
        if (value := getattr(chosen, name)) is not None:
            command += [f"--{name}", str(value)]
    environment = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | dict(os.environ)
    return Process(job, time.monotonic(), subprocess.Popen(command, env=environment))


def keep(running: list[Process], chosen: argparse.Namespace) -> None:
    """Copy scores that are new."""
    for job in (process.job for process in running):
        place = "shipped" if job.preset == "compact" else job.preset
        folder = chosen.out / place / f"{job.task}-{job.method}-seed{job.seed}"
        for sampler in job.samplers:
            made = folder / ("scores.json" if sampler == job.method else f"scores-{sampler}.json")
            kept = chosen.keep / f"{job.task}-{sampler}-seed{job.seed}-{chosen.hardware}.json"
            if made.exists() and not kept.exists():
                chosen.keep.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(made, kept)
                print(f"kept {kept.name}", flush=True)


if __name__ == "__main__":
    main()
