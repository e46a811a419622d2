"""Jobs through Ray: one task per run folder with its GPU, on this machine or on a cluster (`ray://head:10001`).

Ray schedules, restarts and cancels; this is only the call. The machines of a cluster need the package installed and the study's folder on a
file system that they share.
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

MISSING = "--engine ray needs the package ray; install it with: pip install 'sapc[ray]'"
GRACE = 60.0  # seconds for tasks that were cancelled to save


class Ray:
    """Tasks of a Ray cluster, or of one that is started here for the time of the study."""

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
        # The processes of a Ray that is started here shall not say what they do not know.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError as error:
            raise SapcError(MISSING) from error
        self.ray: Any = ray
        if self.address is None:
            self.workers = self.workers or core_count()
            self.threads = self.threads or threads_per_worker(self.workers)
        try:
            self._init()
        except Exception as error:
            where = self.address or "on this machine"
            raise SapcError(f"Ray cannot be reached or started {where}: {first_line(error)}") from error
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
        here = os.getcwd() if Path.cwd() != HOME else ""

        def work(*arguments: Any) -> list[str]:
            """Ray sends this function itself, and puts the current folder first on the path: nothing is imported from there."""
            import sys

            sys.path[:] = [path for path in sys.path if path != here]
            from ..worker import work as own

            return own(*arguments)

        device = "cuda" if self.gpus else "cpu"
        # A process per task: what one leaves on a GPU is gone with it.
        task = self.ray.remote(
            num_cpus=self.threads, num_gpus=self.gpus, max_calls=1, max_retries=0, **self._environment()
        )(work)
        for job in jobs:
            ref = task.remote(job.out, job.folder, job.cells, device, self.threads, job.poseidon)
            self.refs.append(ref)
            self.futures.append(ref.future())
        return list(self.futures[-len(jobs) :])

    def _environment(self) -> dict[str, Any]:
        """What tasks must know of this process: the files of own methods. One that is started here inherits it."""
        plugins = os.environ.get(VARIABLE)
        here = self.address is None or not plugins
        return {} if here else {"runtime_env": {"env_vars": {VARIABLE: plugins}}}

    def __exit__(self, *_: Any) -> None:
        for ref, future in zip(self.refs, self.futures, strict=True):
            if not future.done():
                self.ray.cancel(ref)
        wait(self.futures, timeout=GRACE)
        self.ray.shutdown()
