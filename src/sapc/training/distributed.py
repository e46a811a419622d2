"""Several processes on one training: who am I, what is my share, what do the others say.

Plain torch.distributed with DistributedDataParallel. It needs no further library, adds nothing to the import time, runs under torchrun and
SLURM as they are, and one loop serves one process and many. `--devices N` starts N processes on this machine; `torchrun` or `srun` start
them on several, and are recognised by their environment.

A batch is drawn as a whole by every process from the same seed, and each takes its share. So the result does not depend on how many
processes there are, but for the order of additions.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessContext, ProcessException, ProcessExitedException
from torch.multiprocessing.spawn import spawn as start_processes

from .._old_names import find_renamed
from ..errors import SapcError
from ..nn.network import find_device as find_device
from ..nn.network import kind_of as kind_of

HOME = Path(__file__).resolve().parents[2]  # the folder that the package is imported from


@dataclass(frozen=True)
class ProcessGroup:
    """This process among those that train together."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def local_shard(self, batch: Tensor) -> Tensor:
        """This process's part of a batch."""
        return torch.tensor_split(batch, self.size)[self.rank]

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def agree(self, flag: bool) -> bool:
        """Whether any process says so."""
        if self.size == 1:
            return flag
        return bool(self.total(torch.tensor(float(flag), device=self.device)) > 0)

    def check_shared(self, number: int, path: Path) -> None:
        """Refuse a folder in which the processes find different numbers."""
        if self.size == 1:
            return
        first = torch.tensor(number, device=self.device)
        dist.broadcast(first, 0)
        if self.agree(int(first) != number):
            raise SapcError(
                f"the processes see different states of {path}; a run folder has to be on a file system that all of them share"
            )

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            dist.barrier()

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network with gradients averaged over all processes."""
        if self.size == 1:
            return network
        ids = [self.device.index] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(network, device_ids=ids, gradient_as_bucket_view=True)


def safe_path() -> dict[str, str]:
    """The environment in which Python imports this very package, and nothing from the current folder unless PYTHONPATH names it."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if HOME.name not in ("site-packages", "dist-packages"):  # not installed, but found beside the caller
        paths.append(str(HOME))
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def isolated_start() -> Iterator[None]:
    """Python processes that are started inside the block do not import from the current folder, where anything may lie."""
    before = {name: os.environ.get(name) for name in safe_path()}
    os.environ.update(safe_path())
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


@contextmanager
def process_group(device: str = "auto") -> Iterator[ProcessGroup]:
    """The processes that the environment describes: alone, or one of the processes of torchrun or SLURM."""
    place = _place()
    if place is None:
        yield ProcessGroup(find_device(device))
        return
    rank, size, local_rank = place
    own = find_device(device, local_rank)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    backend = "nccl" if own.type == "cuda" else "gloo"
    # The others wait while the first one solves the data, which may take long.
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=timedelta(hours=12))
    try:
        yield ProcessGroup(own, rank, size)
    finally:
        dist.destroy_process_group()


def _place() -> tuple[int, int, int] | None:
    """Rank, number of processes and rank on this machine, or None for a single process."""
    env = os.environ
    if "RANK" in env and "WORLD_SIZE" in env:
        found = int(env["RANK"]), int(env["WORLD_SIZE"]), int(env.get("LOCAL_RANK", 0))
    elif "SLURM_PROCID" in env and int(env.get("SLURM_NTASKS", 1)) > 1 and "SLURM_STEP_ID" in env:
        found = int(env["SLURM_PROCID"]), int(env["SLURM_NTASKS"]), int(env.get("SLURM_LOCALID", 0))
        if "MASTER_ADDR" not in env:
            env["MASTER_ADDR"] = _first_host(env["SLURM_JOB_NODELIST"])
        env.setdefault("MASTER_PORT", str(20000 + int(env["SLURM_JOB_ID"]) % 20000))
    else:
        return None
    return None if found[1] == 1 else found


def _first_host(nodes: str) -> str:
    """The first name of SLURM's list of nodes, which `scontrol` spells out."""
    try:
        listed = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise SapcError(
            f"cannot tell the first of SLURM's nodes {nodes!r} (scontrol failed); set MASTER_ADDR and MASTER_PORT"
        ) from error
    return listed.stdout.split()[0]


def spawn(processes: int, work: Callable[..., None], *arguments: Any, device: str = "auto") -> None:
    """Run `work(*arguments)` in several processes of this machine that train together; the first one's error is raised here."""
    if _place() is not None:
        raise SapcError("--devices starts processes itself; under torchrun or srun leave it out")
    if processes < 1:
        raise SapcError(f"the number of devices must be at least 1, got {processes}")
    if kind_of(device) == "cuda":
        if ":" in device:
            raise SapcError(f"{processes} processes take one GPU each; say 'cuda' instead of {device!r}")
        if processes > (there := torch.cuda.device_count()):
            raise SapcError(
                f"{processes} GPUs were asked for, but there are {there}; choose fewer, or --device cpu"
            )
    context = torch.multiprocessing.get_context("spawn")
    errors = context.SimpleQueue()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with isolated_start():
        given = processes, port, errors, work, arguments
        started = start_processes(_member, given, nprocs=processes, join=False)  # type: ignore[no-untyped-call]
    assert started is not None
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # what it would say, we say
    with termination_as_interrupt():
        _wait(started, errors)


def _wait(started: ProcessContext, errors: Any) -> None:
    """Until all processes have ended; the first error or interrupt is raised here."""
    interrupted = False
    while True:
        try:
            if started.join():
                return
        except KeyboardInterrupt:
            # They stop together and save; a terminal tells every process, `kill` this one only.
            interrupted = True
            for process in started.processes:
                process.terminate()
        except ProcessException as error:
            for process in started.processes:
                process.join()
            if not errors.empty():
                kind, text = errors.get()
                raise kind(text) from None
            if interrupted:
                raise KeyboardInterrupt from error
            if isinstance(error, ProcessExitedException):
                raise SapcError(
                    f"process {error.error_index} of the training was killed "
                    f"({error.signal_name or f'exit code {error.exit_code}'}; out of "
                    "memory?); the same command continues from the last checkpoint"
                ) from None
            raise


@contextmanager
def _handling(handle: Callable[[int, Any], Any], *numbers: int) -> Iterator[None]:
    """Inside, a function handles these signals; in a thread that is not the main one, nothing changes."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handle) for number in numbers if is_main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def termination_as_interrupt() -> AbstractContextManager[None]:
    """Inside, SIGTERM, which schedulers send, interrupts as Ctrl-C does."""
    return _handling(signal.default_int_handler, signal.SIGTERM)


@dataclass
class Interrupts:
    """Ctrl-C and the scheduler's SIGTERM become a wish that the loop grants between two steps.

    The second Ctrl-C is obeyed at once, and so is the first while there is nothing to save.
    """

    stop_requested: bool = False
    is_deferring: bool = False

    def listen(self) -> AbstractContextManager[None]:
        """Hear the signals inside the block."""
        return _handling(self._ask, signal.SIGINT, signal.SIGTERM)

    def _ask(self, number: int, frame: Any) -> None:
        if not self.is_deferring or (self.stop_requested and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.stop_requested = True


def _member(
    rank: int, size: int, port: int, errors: Any, work: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    place = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": rank,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in place.items()})
    try:
        work(*arguments)
    except (SapcError, KeyboardInterrupt) as error:
        kind = SapcError if isinstance(error, SapcError) else KeyboardInterrupt
        errors.put((kind, str(error)))
        raise SystemExit(2 if kind is SapcError else 130) from None


__getattr__ = find_renamed(__name__)
