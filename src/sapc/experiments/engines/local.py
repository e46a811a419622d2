"""Jobs on this machine, one process per device: a process of its own for every job, so that one that dies takes nothing along.

Every GPU is a device and its process sees that one only. Without a GPU the cores are shared evenly by a few processes. The processes end
when this one does, however it does: their standard input is a pipe from here.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ...errors import SapcError, check_int
from ...training.distributed import kind_of, safe_path
from ..study import Study, open_study
from ..worker import EXIT_INTERRUPTED, EXIT_UNFINISHED
from .base import Handle, Job

CPU_WORKERS = 4


class Local:
    """Processes on this machine; `command` starts one that does a job."""

    is_attended = True
    command: tuple[str, ...] = (sys.executable, "-m", "sapc.experiments.worker")

    def __init__(self, device: str = "auto", workers: int | None = None, threads: int | None = None) -> None:
        if workers is not None:
            check_int(workers, "number of workers", 1)
        self.devices = _places(device, workers)
        self.workers: int | None = len(self.devices)
        self.threads = threads or threads_per_worker(len(self.devices))
        self.free: queue.SimpleQueue[tuple[str, Mapping[str, str]]] = queue.SimpleQueue()
        self.processes: set[subprocess.Popen[bytes]] = set()
        self.ending, self.guard = False, threading.Lock()

    def __enter__(self) -> Local:
        for place in self.devices:
            self.free.put(place)
        self.pool = ThreadPoolExecutor(len(self.devices))
        return self

    def start(self, jobs: Sequence[Job]) -> list[Handle]:
        """Start jobs, as many at a time as there are devices."""
        return [self.pool.submit(self._run, job) for job in jobs]

    def __exit__(self, *_: Any) -> None:
        with self.guard:
            self.ending = True
            for process in self.processes:
                if process.stdin:
                    process.stdin.close()  # it saves and ends
        self.pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: Job) -> None:
        """A job to its end; if its process dies, the cell it was at has failed, and the others are tried without it."""
        place = self.free.get()
        try:
            study, left = open_study(job.out), list(job.cells)
            while left and not self.ending:
                code = self._process(study, job, left, place)
                if code in (0, EXIT_UNFINISHED, EXIT_INTERRUPTED) or self.ending:
                    return
                dead = _who_died(study, left)
                why = f"its process {_cause(code)}; see {study.log(job.folder)}"
                for cell in study.cells:
                    if cell.name in dead:
                        study.record(cell, "failed", error=why)
                left = left[left.index(dead[-1]) + 1 :] if dead else []
        finally:
            self.free.put(place)

    def _process(
        self, study: Study, job: Job, cells: Sequence[str], place: tuple[str, Mapping[str, str]]
    ) -> int:
        device, environment = place
        line = [*self.command, job.out, job.folder, "--device", device]
        line += ["--threads", str(self.threads)] if device == "cpu" else []
        line += ["--poseidon", job.poseidon] if job.poseidon else []
        for name in cells:
            line += ["--cell", name]
        threads = {"OMP_NUM_THREADS": str(self.threads)} if device == "cpu" else {}
        own = {**os.environ, **environment, **threads, **safe_path()}
        with open(study.log(job.folder), "ab") as log:
            with self.guard:
                if self.ending:
                    return EXIT_INTERRUPTED
                process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=log, stderr=log, env=own)
                self.processes.add(process)
            try:
                return process.wait()
            finally:
                with self.guard:
                    self.processes.discard(process)
                    if process.stdin:
                        process.stdin.close()


def _who_died(study: Study, names: Sequence[str]) -> list[str]:
    """The cells that a dead process takes along: the one it was evaluating; all that are left if it was training, or before that."""
    states = {cell.name: study.state(cell).get("state") for cell in study.cells if cell.name in set(names)}
    left = [name for name in names if states.get(name) not in ("done", "failed")]
    return [name for name in left if states.get(name) == "evaluating"][:1] or left


def _cause(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    memory = ", perhaps for want of memory" if name == "SIGKILL" else ""
    return f"was ended by signal {name}{memory}"


def _places(device: str, workers: int | None) -> list[tuple[str, Mapping[str, str]]]:
    """Device and environment of every process."""
    if kind_of(device) == "cpu":
        cores = core_count()
        return [("cpu", {})] * (workers or min(cores, CPU_WORKERS))
    if kind_of(device) != "cuda":
        raise SapcError(
            f"the device {device!r} cannot be used; use 'auto', 'cpu', or 'cuda' where there is one"
        )
    shown = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = shown or [str(i) for i in range(torch.cuda.device_count())]
    if not names:
        raise SapcError(f"the device {device!r} cannot be used: torch sees no GPU; use --device cpu")
    if ":" in device:
        number = int(device.partition(":")[2])
        if number >= len(names):
            raise SapcError(
                f"the device {device!r} cannot be used: there are {len(names)} GPUs, counted from 0"
            )
        names = names[number : number + 1]
    chosen = [names[i % len(names)] for i in range(workers or len(names))]
    return [("cuda", {"CUDA_VISIBLE_DEVICES": name}) for name in chosen]


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_worker(workers: int) -> int:
    """Threads of each of so many processes."""
    return max(1, core_count() // workers)
