"""Where jobs run: processes on this machine, this process, Ray, or SLURM through submitit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import SapcError
from .base import Engine, Handle, Job
from .inline import Inline
from .local import Local
from .ray import Ray
from .slurm import Slurm

ENGINES = ("local", "inline", "ray", "slurm")

__all__ = ["ENGINES", "Engine", "Handle", "Inline", "Job", "Local", "Ray", "Slurm", "make_engine"]


def make_engine(
    name: str,
    device: str = "auto",
    workers: int | None = None,
    threads: int | None = None,
    address: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Engine:
    """Make an engine.

    Args:
        name: local, inline, ray or slurm.
        device: Where jobs train and sample.
        workers: Number of jobs at a time.
        threads: CPU threads of a job.
        address: Address of a Ray cluster.
        parameters: Parameters of submitit.

    Returns:
        The engine.

    Raises:
        SapcError: The engine is not known, or an argument is not one of its own.
    """
    if name not in ENGINES:
        raise SapcError(f"unknown engine {name!r}; choose one of {', '.join(ENGINES)}")
    if address is not None and name != "ray":
        raise SapcError(f"--address is Ray's, but the engine is {name}; add --engine ray")
    if parameters and name != "slurm":
        raise SapcError(f"--slurm is for SLURM, but the engine is {name}; add --engine slurm")
    if name == "inline":
        if (workers or 1) != 1:
            raise SapcError("the engine inline has one worker, this process; leave --workers out")
        return Inline(device)
    if name == "ray":
        return Ray(address, device, workers, threads)
    return Slurm(device, workers, threads, parameters) if name == "slurm" else Local(device, workers, threads)
