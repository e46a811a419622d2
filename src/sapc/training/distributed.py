"""Several processes on one training: which one is this, what is its shard of a batch, what do the others say.

Plain torch.distributed with DistributedDataParallel. It needs no further library, adds nothing to the import
time, runs under torchrun and SLURM as they are, and one loop serves one process and many. `--devices N`
starts N processes on this machine; `torchrun` or `srun` start them on several, and are recognised by their
environment.

A batch is drawn as a whole by every process from the same seed, and each takes its shard. So the result does
not depend on how many processes there are, but for the order of additions.
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

# The folder that the package is imported from.
HOME = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class ProcessGroup:
    """This process among those that train together.

    Attributes:
        device: Device of this process.
        rank: Number of this process.
        size: Number of processes.
    """

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def local_shard(self, batch: Tensor) -> Tensor:
        """Select this process's part of a batch.

        Args:
            batch: The whole batch.

        Returns:
            Its rows for this process.
        """
        return torch.tensor_split(batch, self.size)[self.rank]

    def total(self, value: Tensor) -> Tensor:
        """Add up over all processes.

        Args:
            value: Numbers of this process; they are overwritten.

        Returns:
            The sums.
        """
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def agree(self, flag: bool) -> bool:
        """Ask all processes.

        Args:
            flag: The answer of this process.

        Returns:
            Whether any process answers yes.
        """
        if self.size == 1:
            return flag
        return bool(self.total(torch.tensor(float(flag), device=self.device)) > 0)

    def check_shared(self, number: int, path: Path) -> None:
        """Refuse a folder in which the processes see different states.

        Args:
            number: What this process sees.
            path: The folder, for the message.

        Raises:
            SapcError: Another process sees another number.
        """
        if self.size == 1:
            return
        main_number = torch.tensor(number, device=self.device)
        dist.broadcast(main_number, 0)
        if self.agree(int(main_number) != number):
            raise SapcError(
                f"the processes see different states of {path}; "
                "a run folder has to be on a file system that all of them share"
            )

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            dist.barrier()

    def wrap(self, network: nn.Module) -> nn.Module:
        """Let a network's gradients be averaged over all processes.

        Args:
            network: The network of this process.

        Returns:
            The network to be called in its place.
        """
        if self.size == 1:
            return network
        ids = [self.device.index] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(network, device_ids=ids, gradient_as_bucket_view=True)


def safe_path() -> dict[str, str]:
    """Make the environment in which Python imports this very package.

    Returns:
        Variables; by them nothing is imported from the current folder, unless PYTHONPATH names it.
    """
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    # Not installed, but found beside the caller.
    if HOME.name not in ("site-packages", "dist-packages"):
        paths.append(str(HOME))
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def isolated_start() -> Iterator[None]:
    """Keep Python processes that start inside the block from importing anything from the current folder."""
    previous = {name: os.environ.get(name) for name in safe_path()}
    os.environ.update(safe_path())
    try:
        yield
    finally:
        for name, value in previous.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


@contextmanager
def process_group(device: str = "auto") -> Iterator[ProcessGroup]:
    """Join the processes that the environment describes: one alone, or those of torchrun or SLURM.

    Args:
        device: auto, cpu, cuda or one GPU.

    Yields:
        This process among them.
    """
    if (ranks := _read_ranks()) is None:
        yield ProcessGroup(find_device(device))
    else:
        with _join(ranks, device) as group:
            yield group


@contextmanager
def _join(ranks: tuple[int, int, int], device: str) -> Iterator[ProcessGroup]:
    rank, size, local_rank = ranks
    local_device = find_device(device, local_rank)
    if local_device.type == "cuda":
        torch.cuda.set_device(local_device)
    backend = "nccl" if local_device.type == "cuda" else "gloo"
    # The others wait while the first one solves the data, which may take long.
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=timedelta(hours=12))
    try:
        yield ProcessGroup(local_device, rank, size)
    finally:
        dist.destroy_process_group()


def _read_ranks() -> tuple[int, int, int] | None:
    """Read rank, number of processes and rank on this machine; None for a single process."""
    env = os.environ
    if "RANK" in env and "WORLD_SIZE" in env:
        ranks = int(env["RANK"]), int(env["WORLD_SIZE"]), int(env.get("LOCAL_RANK", 0))
    elif "SLURM_PROCID" in env and int(env.get("SLURM_NTASKS", 1)) > 1 and "SLURM_STEP_ID" in env:
        ranks = int(env["SLURM_PROCID"]), int(env["SLURM_NTASKS"]), int(env.get("SLURM_LOCALID", 0))
        if "MASTER_ADDR" not in env:
            env["MASTER_ADDR"] = _first_host(env["SLURM_JOB_NODELIST"])
        env.setdefault("MASTER_PORT", str(20000 + int(env["SLURM_JOB_ID"]) % 20000))
    else:
        return None
    return None if ranks[1] == 1 else ranks


def _first_host(nodes: str) -> str:
    """Return the first name of SLURM's list of nodes, which `scontrol` spells out."""
    try:
        output = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise SapcError(
            f"cannot tell the first of SLURM's nodes {nodes!r} (scontrol failed); "
            "set MASTER_ADDR and MASTER_PORT"
        ) from error
    return output.stdout.split()[0]


def spawn(processes: int, work: Callable[..., None], *arguments: Any, device: str = "auto") -> None:
    """Run a function in several processes of this machine that train together.

    Args:
        processes: Their number.
        work: The function, which every process calls.
        arguments: Its arguments.
        device: auto, cpu or cuda.

    Raises:
        SapcError: There are not as many GPUs, or a process failed; the first one's error is raised here.
    """
    if _read_ranks() is not None:
        raise SapcError("--devices starts processes itself; under torchrun or srun leave it out")
    if processes < 1:
        raise SapcError(f"the number of devices must be at least 1, got {processes}")
    if kind_of(device) == "cuda":
        if ":" in device:
            raise SapcError(f"{processes} processes take one GPU each; say 'cuda' instead of {device!r}")
        if processes > (count := torch.cuda.device_count()):
            raise SapcError(
                f"{processes} GPUs were asked for, but there are {count}; choose fewer, or --device cpu"
            )
    context = torch.multiprocessing.get_context("spawn")
    errors = context.SimpleQueue()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with isolated_start():
        member_arguments = processes, port, errors, work, arguments
        members = start_processes(_member, member_arguments, nprocs=processes, join=False)  # type: ignore[no-untyped-call]
    assert members is not None
    # What torch would say of a failure, is said here.
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
    with termination_as_interrupt():
        _wait(members, errors)


def _wait(members: ProcessContext, errors: Any) -> None:
    """Wait until all processes have ended; the first error or interrupt is raised here."""
    was_interrupted = False
    while True:
        try:
            if members.join():
                return
        except KeyboardInterrupt:
            # They stop together and save; a terminal tells every process, `kill` this one only.
            was_interrupted = True
            for process in members.processes:
                process.terminate()
        except ProcessException as error:
            for process in members.processes:
                process.join()
            if not errors.empty():
                kind, text = errors.get()
                raise kind(text) from None
            if was_interrupted:
                raise KeyboardInterrupt from error
            if isinstance(error, ProcessExitedException):
                raise SapcError(
                    f"process {error.error_index} of the training was killed "
                    f"({error.signal_name or f'exit code {error.exit_code}'}; out of "
                    "memory?); the same command continues from the last checkpoint"
                ) from None
            raise


@contextmanager
def _handle_signals(handle: Callable[[int, Any], Any], *numbers: int) -> Iterator[None]:
    """Handle these signals by a function; in a thread that is not the main one, nothing changes."""
    is_main = threading.current_thread() is threading.main_thread()
    previous = {number: signal.signal(number, handle) for number in numbers if is_main}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def termination_as_interrupt() -> AbstractContextManager[None]:
    """Let SIGTERM, which schedulers send, interrupt the block as Ctrl-C does."""
    return _handle_signals(signal.default_int_handler, signal.SIGTERM)


@dataclass
class Interrupts:
    """Requests to stop, by Ctrl-C or the scheduler's SIGTERM, which the loop grants between two steps.

    The second Ctrl-C is obeyed at once, and so is the first while there is nothing to save.

    Attributes:
        stop_requested: Whether somebody asked to stop.
        is_deferring: Whether there is something to save, so that a request waits.
    """

    stop_requested: bool = False
    is_deferring: bool = False

    def listen(self) -> AbstractContextManager[None]:
        """Note the signals that arrive inside the block."""
        return _handle_signals(self._request_stop, signal.SIGINT, signal.SIGTERM)

    def _request_stop(self, number: int, frame: Any) -> None:
        if not self.is_deferring or (self.stop_requested and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.stop_requested = True


def _member(
    rank: int, size: int, port: int, errors: Any, work: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    variables = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": rank,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        work(*arguments)
    except (SapcError, KeyboardInterrupt) as error:
        kind = SapcError if isinstance(error, SapcError) else KeyboardInterrupt
        errors.put((kind, str(error)))
        raise SystemExit(2 if kind is SapcError else 130) from None


__getattr__ = find_renamed(__name__)
