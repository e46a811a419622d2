"""Jobs on this machine, one process for each, so that one that dies does not end the others.

Every GPU is a device and its process sees that one only. Without a GPU a few processes share the cores
evenly. The processes end with this one, however it ends: their standard input is a pipe from here.
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
    """Processes on this machine.

    Args:
        device: Where jobs train and sample: auto, cpu, cuda or one GPU as cuda:1.
        workers: Number of processes; one per GPU, else one per core and at most four, unless given.
        threads: CPU threads of a process; an even share of the cores unless given.

    Attributes:
        command: The command that starts a process for a job.
    """

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
                    # It saves and ends.
                    process.stdin.close()
        self.pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: Job) -> None:
        """Do a job; if its process dies, the cell that it worked on has failed, and the others are tried."""
        place = self.free.get()
        try:
            study, todo = open_study(job.out), list(job.cells)
            while todo and not self.ending:
                code = self._run_process(study, job, todo, place)
                if code in (0, EXIT_UNFINISHED, EXIT_INTERRUPTED) or self.ending:
                    return
                failed_cells = _find_failed_cells(study, todo)
                error = f"its process {_describe_exit(code)}; see {study.log(job.folder)}"
                for cell in study.cells:
                    if cell.name in failed_cells:
                        study.record(cell, "failed", error=error)
                todo = todo[todo.index(failed_cells[-1]) + 1 :] if failed_cells else []
        finally:
            self.free.put(place)

    def _run_process(
        self, study: Study, job: Job, cells: Sequence[str], place: tuple[str, Mapping[str, str]]
    ) -> int:
        device, environment = place
        line = [*self.command, job.out, job.folder, "--device", device]
        line += ["--threads", str(self.threads)] if device == "cpu" else []
        line += ["--poseidon", job.poseidon] if job.poseidon else []
        for name in cells:
            line += ["--cell", name]
        threads = {"OMP_NUM_THREADS": str(self.threads)} if device == "cpu" else {}
        variables = {**os.environ, **environment, **threads, **safe_path()}
        with open(study.log(job.folder), "ab") as log:
            with self.guard:
                if self.ending:
                    return EXIT_INTERRUPTED
                process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=log, stderr=log, env=variables)
                self.processes.add(process)
            try:
                return process.wait()
            finally:
                with self.guard:
                    self.processes.discard(process)
                    if process.stdin:
                        process.stdin.close()


def _find_failed_cells(study: Study, names: Sequence[str]) -> list[str]:
    """Return the cells that a dead process fails: the one it evaluated, or all of them in a training."""
    states = {cell.name: study.state(cell).get("state") for cell in study.cells if cell.name in set(names)}
    todo = [name for name in names if states.get(name) not in ("done", "failed")]
    return [name for name in todo if states.get(name) == "evaluating"][:1] or todo


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    memory = ", perhaps for want of memory" if name == "SIGKILL" else ""
    return f"was ended by signal {name}{memory}"


def _places(device: str, workers: int | None) -> list[tuple[str, Mapping[str, str]]]:
    """Return device and environment of every process."""
    if kind_of(device) == "cpu":
        cores = core_count()
        return [("cpu", {})] * (workers or min(cores, CPU_WORKERS))
    if kind_of(device) != "cuda":
        raise SapcError(
            f"the device {device!r} cannot be used; use 'auto', 'cpu', or 'cuda' where there is one"
        )
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = visible or [str(i) for i in range(torch.cuda.device_count())]
    if not names:
        raise SapcError(f"the device {device!r} cannot be used: torch sees no GPU; use --device cpu")
    if ":" in device:
        number = int(device.partition(":")[2])
        if number >= len(names):
            raise SapcError(
                f"the device {device!r} cannot be used: there are {len(names)} GPUs, counted from 0"
            )
        names = names[number : number + 1]
    gpus = [names[i % len(names)] for i in range(workers or len(names))]
    return [("cuda", {"CUDA_VISIBLE_DEVICES": name}) for name in gpus]


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_worker(workers: int) -> int:
    """Return an even share of the cores."""
    return max(1, core_count() // workers)
