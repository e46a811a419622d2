"""Jobs through SLURM, by submitit: one array, a job per run folder, each with its GPU.

submitit writes the batch scripts, submits them, and requeues a job that reaches its time limit or is
preempted; what that job has trained is on disk, so it goes on from there. Its parameters are passed on as
they are: `timeout_min`, `cpus_per_task`, `gpus_per_node`, `slurm_partition`, `slurm_account`,
`slurm_array_parallelism` and so on; `cluster=local` runs the jobs on this machine instead.
"""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..._files import first_line
from ...errors import SapcError
from ...training.distributed import isolated_start
from .base import Handle, Job

NOT_INSTALLED = "--engine slurm needs the package submitit; install it with: pip install 'sapc[slurm]'"
DEFAULTS = {"timeout_min": 24 * 60, "cpus_per_task": 4, "name": "sapc"}


class Slurm:
    """Jobs of a SLURM cluster.

    Args:
        device: Where jobs train and sample.
        workers: Number of jobs at a time.
        threads: CPU threads of a job.
        parameters: Parameters of submitit.
    """

    is_attended = False

    def __init__(
        self,
        device: str = "auto",
        workers: int | None = None,
        threads: int | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.device, self.workers, self.threads = device, workers, threads
        self.parameters = dict(parameters or {})
        self.cluster = str(self.parameters.pop("cluster", "slurm"))

    def __enter__(self) -> Slurm:
        try:
            import submitit
        except ImportError as error:
            raise SapcError(NOT_INSTALLED) from error
        self.submitit = submitit
        return self

    def start(self, jobs: Sequence[Job]) -> list[Handle]:
        """Submit all jobs as one array."""
        if not jobs:
            return []
        executor = self._executor(Path(jobs[0].out) / "slurm")
        try:
            with isolated_start(), executor.batch():
                return [
                    executor.submit(
                        RestartableJob(),
                        job.out,
                        job.folder,
                        job.cells,
                        self.device,
                        self.threads,
                        job.poseidon,
                    )
                    for job in jobs
                ]
        except (RuntimeError, OSError, self.submitit.core.utils.FailedSubmissionError) as error:
            raise SapcError(f"SLURM did not take the jobs: {first_line(error)}") from error

    def _executor(self, folder: Path) -> Any:
        parameters = DEFAULTS | ({"gpus_per_node": 1} if self.device != "cpu" else {}) | self.parameters
        if self.workers:
            parameters.setdefault("slurm_array_parallelism", self.workers)
        try:
            # `-P`: as it is started with -m, Python would import from the current folder.
            python = f"{shlex.quote(sys.executable)} -P"
            executor = self.submitit.AutoExecutor(
                folder=folder, cluster=self.cluster, slurm_python=python, local_python=python
            )
            executor.update_parameters(**parameters)
        except Exception as error:
            raise SapcError(f"submitit refuses this: {first_line(error)}; see --slurm") from error
        return executor

    def __exit__(self, *_: Any) -> None:
        """Leave the jobs in the queue."""


class RestartableJob:
    """A job that submitit can restart; signals are left to submitit, which hears them in the main thread."""

    def __call__(self, *arguments: Any) -> list[str]:
        """Do the work."""
        from ..worker import work

        unfinished: list[str] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                unfinished.extend(work(*arguments))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return unfinished

    def checkpoint(self, *arguments: Any) -> Any:
        """Return what to submit when the time is over: the same job, which goes on from its folder."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, *arguments)
