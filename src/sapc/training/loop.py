"""Training: one loop for every method, one process or many.

It can be stopped at any moment and goes on as if it had not been. A step whose loss or gradient is not finite
ends the training; a checkpoint is only written when all steps before it were fine.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .._files import atomic_write
from .._old_names import rename_arguments
from ..errors import SapcError, explain_memory_errors, explain_misuse
from ..nn.fno import matmul_precision
from ..nn.network import NetworkSource, OwnNetwork
from .config import TrainingConfig
from .continuation import check_start, extension, fine_tuning, prepare_extension, prepare_fine_tuning
from .distributed import Interrupts, process_group
from .run_folder import RunFolder, check_shapes, environment, save_tensors
from .step import DataProgress, StepResult, Training

# Steps between log lines, and between looks at the device.
LOG_INTERVAL = 50
# Steps between questions whether somebody wants to stop.
STOP_CHECK_INTERVAL = 10
# Share of the time that may go into checkpoints.
SAVE_SHARE = 0.02
Progress = Callable[[int, int, dict[str, float]], None]
"""Called with (step, steps, losses)."""


@rename_arguments(solving="data_progress")
@explain_misuse
def train(
    run: TrainingConfig,
    path: str | Path,
    *,
    device: str = "auto",
    compiled: bool | None = None,
    tensorboard: bool = False,
    save_seconds: float = 15.0,
    progress: Progress | None = None,
    data_progress: DataProgress | None = None,
    start: str | os.PathLike[str] | None = None,
    extend: bool = False,
    keep_optimiser: bool = False,
    network: NetworkSource | None = None,
) -> RunFolder:
    """Train a run in its folder, from the start or from where it was left.

    Args:
        run: Settings of the training.
        path: The run folder.
        device: auto, cpu, cuda or one GPU.
        compiled: Whether the network is compiled; by default on a GPU.
        tensorboard: Also write losses for TensorBoard.
        save_seconds: Shortest time between checkpoints; longer if writing one takes long; 0: every 50 steps.
        progress: Called with (step, steps, losses).
        data_progress: Called with (split, done, total) while solutions are computed.
        start: A trained run, its folder or the name of a model that comes with the package, with whose
            weights this one begins.
        extend: Continue the finished run in this folder to the steps of `run`, which is else the same.
        keep_optimiser: Leave the optimiser beside the trained weights, twice their size, for a run that goes
            on from there (`sapc train` does so).
        network: A network of your own, given each time: a module, with whose weights the training begins and
            which is copied, or a function or class that makes one, called with the seed of the run.

    Returns:
        The folder of the trained run. A training that is stopped raises KeyboardInterrupt; the same call
        continues it.

    Raises:
        SapcError: The settings do not fit the folder, the data or the devices, or the training failed.
    """
    folder = RunFolder(path)
    if network is not None:
        run = replace(run, backbone=OwnNetwork.of(network))
    if not folder.is_trained:
        run.check(network)
    if start is not None:
        run = fine_tuning(run, start, network)
    if extend:
        longer_run = extension(path, run.steps)
        run = replace(run, stages=longer_run.stages, parent=longer_run.parent)
    if tensorboard:
        # Fail early if it is missing.
        _summary_writer()
    with ExitStack() as stack:
        group = stack.enter_context(process_group(device))
        if run.batch % group.size:
            raise SapcError(
                f"a batch of {run.batch} cannot be shared evenly by {group.size} processes; choose a multiple"
            )
        if group.is_main:
            stack.enter_context(_prepare(folder, run, start))
        group.wait()
        group.check_shared(int(folder.is_trained), folder.path)
        if folder.is_trained:
            return folder
        stack.enter_context(matmul_precision(run.precision))
        stack.enter_context((interrupts := Interrupts()).listen())
        with explain_memory_errors(f"training with a batch of {run.batch}"):
            if folder.checkpoint.exists():
                check_shapes(run, folder.checkpoint, network)
            training = Training(run, group, compiled=compiled, data_progress=data_progress, network=network)
            Trainer(training, folder, interrupts, progress, save_seconds, tensorboard, keep_optimiser).run()
        group.wait()
    return folder


@contextmanager
def _prepare(folder: RunFolder, run: TrainingConfig, start: str | os.PathLike[str] | None) -> Iterator[None]:
    """Check the folder, lock it, and make it this run's; one that is refused is left as it was."""
    folder.check(run)
    physics, description = run.physics, run.description
    # Its settings would name the one physics, its weights know both.
    if physics is not None and description.physics_sha256 and physics.sha256 != description.physics_sha256:
        raise SapcError(
            f"{physics.label} is not the physics that the run in {folder.path} was begun with "
            f"({description.physics_file or 'a function'}); give that one, "
            "or begin another run with these weights (--from)"
        )
    if run.parent:
        check_start(folder, run, start)
    with folder.lock():
        if run.stages:
            prepare_extension(folder, run)
        folder.begin(run)
        if physics is not None and physics.text and physics.sha256 == description.physics_sha256:
            with atomic_write(folder.physics) as partial:
                partial.write_text(physics.text, encoding="utf-8")
        if run.parent:
            prepare_fine_tuning(folder, run, start)
        yield


class Trainer:
    """Takes steps, writes log lines, validates and saves, until the end or until asked to stop."""

    def __init__(
        self,
        training: Training,
        folder: RunFolder,
        interrupts: Interrupts,
        progress: Progress | None,
        save_seconds: float,
        tensorboard: bool,
        keep_optimiser: bool = False,
    ) -> None:
        self.training, self.folder, self.interrupts = training, folder, interrupts
        self.group, self.settings = training.group, training.run
        self.progress = progress if self.group.is_main else None
        self.save_seconds, self.tensorboard = save_seconds, tensorboard and self.group.is_main
        self.keep_optimiser = keep_optimiser
        self.writer: Any = None
        # Results of steps that are still on the device.
        self.device_results: list[StepResult] = []
        # Losses since the last line of the log; finite values of a second objective; steps that left it out.
        self.losses: list[float] = []
        self.residuals: list[float] = []
        self.fallbacks = 0.0
        self.latest_values: dict[str, float] = {}
        self.previous_seconds, self.last_saved_step = 0.0, 0

    def run(self) -> None:
        """Train from the checkpoint, or from the start, to the trained weights."""
        training, folder = self.training, self.folder
        if folder.checkpoint.exists():
            metadata = training.restore(folder.checkpoint)
            self.previous_seconds, self.losses = metadata.get("seconds", 0.0), metadata.get("losses", [])
            self.residuals, self.fallbacks = metadata.get("residuals", []), metadata.get("fallbacks", 0.0)
            self.last_saved_step = training.step
        first_step = training.step
        self.group.check_shared(first_step, folder.path)
        if self.group.is_main:
            folder.cut_log(first_step)
            folder.warn_of_changed_plugins(training.run)
            folder.record_start(training.run, step=first_step, processes=self.group.size)
        self.start_time = self.save_time = time.monotonic()
        with ExitStack() as stack:
            if self.tensorboard:
                writer = _summary_writer()(str(folder.path / "tensorboard"), purge_step=first_step + 1)
                self.writer = stack.enter_context(writer)
            # From here on there is something to save.
            self.interrupts.is_deferring = True
            while training.step < self.settings.steps:
                result = training.advance()
                if training.step == first_step + 1 and bool(result.norm.isfinite()):
                    self._check_gradients()
                self._after_step(result)
        self._finish()

    def _check_gradients(self) -> None:
        """Refuse to spend time on a network of which a part would not be trained."""
        if names := self.training.without_gradient():
            raise SapcError(
                f"step {self.training.step} gave no gradient to {', '.join(names)}, "
                "which would not be trained; "
                f"{self.training.execution.advice}"
            )

    def _after_step(self, result: StepResult) -> None:
        step, steps = self.training.step, self.settings.steps
        self.device_results.append(result)
        is_last = step == steps
        is_logged = is_last or step % LOG_INTERVAL == 0
        if is_logged:
            self._log()
        if is_last or step % self.settings.validation_interval == 0:
            self._validate()
        if self.progress and (is_logged or result.loss.device.type == "cpu"):
            self.progress(step, steps, self.latest_values)
        if self.group.size > 1 and step % STOP_CHECK_INTERVAL:
            return
        must_stop = self.group.agree(self.interrupts.stop_requested) and not is_last
        is_due = step % LOG_INTERVAL == 0 and time.monotonic() - self.save_time > self.save_seconds
        if must_stop or (is_due and self.group.is_main):
            self._save()
        if must_stop:
            raise KeyboardInterrupt(
                f"training stopped at step {step} of {steps}; the same command continues it from there"
            )

    def _validate(self) -> None:
        self._check()
        validation = self.training.validate()
        if self.settings.schedule == "plateau":
            self.training.schedule.step(validation)
        if not math.isfinite(validation):
            raise self._failure(f"the validation loss at step {self.training.step} is {validation:.3g}")
        self._record(validation=validation)

    def _check(self) -> None:
        """Read the losses from the device, and end the training if one is not finite."""
        if not self.device_results:
            return
        rows = [torch.stack([x.float() for x in result if x is not None]) for result in self.device_results]
        means = self.group.total(torch.stack(rows)) / self.group.size
        losses, norms, *second_objective = means.T.tolist()
        self.device_results.clear()
        first = self.training.step - len(losses) + 1
        for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), first):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise self._failure(f"step {step} has loss {loss:.3g} and gradient norm {norm:.3g}")
        self.losses += losses
        if second_objective:
            self.residuals += [value for value in second_objective[0] if math.isfinite(value)]
            self.fallbacks += sum(second_objective[1])

    def _failure(self, reason: str) -> SapcError:
        checkpoint = "the start, was not written"
        if self.last_saved_step:
            checkpoint = f"step {self.last_saved_step}, is in {self.folder.path}"
        return SapcError(
            f"{reason}: training cannot go on; the last good checkpoint, {checkpoint}; "
            "try a smaller lr or another precision (tf32, float32) in another folder"
        )

    def _log(self) -> None:
        self._check()
        rate = self.training.optimiser.param_groups[0]["lr"]
        values = {"loss": math.fsum(self.losses) / len(self.losses), "lr": rate}
        if self.training.method.second_objective is not None:
            if self.residuals:
                values["residual"] = math.fsum(self.residuals) / len(self.residuals)
            values["fallbacks"] = self.fallbacks
        self._record(**values)
        self.losses, self.residuals, self.fallbacks = [], [], 0.0

    def _record(self, **values: float) -> None:
        self.latest_values = {**self.latest_values, **values}
        if self.group.is_main:
            self.folder.append(step=self.training.step, **values, seconds=round(self._seconds(), 3))
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(name, value, self.training.step)

    def _seconds(self) -> float:
        return self.previous_seconds + time.monotonic() - self.start_time

    def _save(self) -> None:
        """Write a checkpoint, only after all losses so far were finite; rarely enough to cost little time."""
        self._check()
        if self.group.is_main:
            save_start = time.monotonic()
            values = {"losses": self.losses, "residuals": self.residuals, "fallbacks": self.fallbacks}
            self.training.save(self.folder.checkpoint, seconds=self._seconds(), **values)
            self.save_time = time.monotonic()
            if self.save_seconds > 0:
                self.save_seconds = max(self.save_seconds, (self.save_time - save_start) / SAVE_SHARE)
        self.last_saved_step = self.training.step

    def _finish(self) -> None:
        if not self.group.is_main:
            return
        weights, about = self.training.result()
        metadata = {
            "step": self.training.step,
            "seconds": self._seconds(),
            "range": self.training.augmentation.data_range(self.training.data),
            "device": environment()["device"],
            **self.latest_values,
            **about,
        }
        if self.keep_optimiser:
            self.training.save_optimiser(self.folder.optimiser)
        save_tensors(self.folder.weights, weights, metadata)
        self.folder.checkpoint.unlink(missing_ok=True)


def _summary_writer() -> Callable[..., Any]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise SapcError(
            "--tensorboard needs the package tensorboard; install it with pip install 'sapc[tensorboard]'"
        ) from error
    return SummaryWriter
