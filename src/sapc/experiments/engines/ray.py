"""Jobs through Ray: one task per run folder with its GPU, on this machine or on a cluster.

The address of a cluster reads like `ray://head:10001`. Ray schedules, restarts and cancels; this is only
the call. The machines of a cluster need the package installed and the study's folder on a file system that
they share.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from ..._files import first_line
from ...errors import SapcError, check_int
from ...methods.registry import VARIABLE
from ...training.distributed import HOME
from .base import Handle, Job
from .local import core_count, threads_per_worker

NOT_INSTALLED = "--engine ray needs the package ray; install it with: pip install 'sapc[ray]'"
# Time to save for tasks that were cancelled.
GRACE_SECONDS = 60.0


class Ray:
    """Tasks of a Ray cluster, or of a Ray that is started here for the time of the study.

    Args:
        address: Address of the cluster; Ray is started here unless given.
        device: Where jobs train and sample.
        workers: Number of tasks at a time; a cluster decides itself.
        threads: CPU threads of a task.
    """

    is_attended = True

    def __init__(
        self,
        address: str | None = None,
        device: str = "auto",
        workers: int | None = None,
        threads: int | None = None,
    ) -> None:
        if workers is not None:
            check_int(workers, "number of workers", 1)
        self.address, self.device, self.workers, self.threads = address, device, workers, threads
        self.refs: list[Any] = []
        self.futures: list[Any] = []

    def __enter__(self) -> Ray:
        # Ray started here would warn about accelerators that it does not know.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError as error:
            raise SapcError(NOT_INSTALLED) from error
        self.ray: Any = ray
        if self.address is None:
            self.workers = self.workers or core_count()
            self.threads = self.threads or threads_per_worker(self.workers)
        try:
            self._init()
        except Exception as error:
            place = self.address or "on this machine"
            raise SapcError(f"Ray cannot be reached or started {place}: {first_line(error)}") from error
        gpus = float(self.ray.cluster_resources().get("GPU", 0))
        if self.device.startswith("cuda") and not gpus:
            self.ray.shutdown()
            raise SapcError("Ray's cluster has no GPU; use --device cpu")
        self.gpus = 0 if self.device == "cpu" or not gpus else 1
        if self.gpus:
            self.workers = int(gpus) if self.workers is None else min(self.workers, int(gpus))
        self.threads = self.threads or 1
        return self

    def _init(self) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.address is None:
            cores = (self.workers or 1) * (self.threads or 1)
            options |= {"num_cpus": cores, "include_dashboard": False}
        # Without "local" Ray would join a cluster that RAY_ADDRESS names, and refuse these options.
        self.ray.init(address=self.address or "local", **options)

    def start(self, jobs: Sequence[Job]) -> list[Handle]:
        """Start a task per job."""
        current_folder = os.getcwd() if Path.cwd() != HOME else ""

        def work(*arguments: Any) -> list[str]:
            """Do a job without imports from the current folder, which Ray puts first on the path."""
            import sys

            sys.path[:] = [path for path in sys.path if path != current_folder]
            from ..worker import work

            return work(*arguments)

        device = "cuda" if self.gpus else "cpu"
        # A process per task frees what it held on a GPU.
        task = self.ray.remote(
            num_cpus=self.threads, num_gpus=self.gpus, max_calls=1, max_retries=0, **self._environment()
        )(work)
        for job in jobs:
            ref = task.remote(job.out, job.folder, job.cells, device, self.threads, job.poseidon)
            self.refs.append(ref)
            self.futures.append(ref.future())
        return list(self.futures[-len(jobs) :])

    def _environment(self) -> dict[str, Any]:
        """Return options that pass plug-in files to the processes of a cluster."""
        plugins = os.environ.get(VARIABLE)
        is_inherited = self.address is None or not plugins
        return {} if is_inherited else {"runtime_env": {"env_vars": {VARIABLE: plugins}}}

    def __exit__(self, *_: Any) -> None:
        for ref, future in zip(self.refs, self.futures, strict=True):
            if not future.done():
                self.ray.cancel(ref)
        wait(self.futures, timeout=GRACE_SECONDS)
        self.ray.shutdown()
