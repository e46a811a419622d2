"""`sapc train`: a run, from the start or from where it was left."""

from __future__ import annotations

import json
import os
import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SapcError, SapcWarning
from ..evaluation.config import EvaluationConfig
from ..evaluation.held_out import measure_skill
from ..methods.registry import plugin_files
from ..models.model import Model, read_model
from ..models.skill import Skill
from ..models.times import tune_after_training
from ..tasks import Task, get_task
from ..tasks.check import check as check_task
from ..training import distributed
from ..training import loop as training
from ..training.config import TrainingConfig, training_config
from ..training.continuation import choose_method, extension, fine_tuning
from ..training.run_folder import RunFolder, default_folder, is_shipped, resolve_model_path
from .app import app, interrupt_advice, warn
from .options import AsJson, Device, PresetName, TaskOptions, default_preset, take_records
from .own_data import OwnDataOptions
from .progress import TrainingBar, describe_training, progress_bar, stage_bar
from .skill import print_skill

SHORT_SKILL = EvaluationConfig(conditions=16, members=8, steps=10)
"""What a training ends with: enough to see whether samples follow their condition, in seconds."""


@dataclass(frozen=True)
class TrainingOptions:
    """Settings of a training; each field is one of `TrainingConfig` or of its network."""

    seed: Annotated[int | None, typer.Option(help="Seed of data, weights and batches. \\[0]")] = None
    steps: Annotated[int | None, typer.Option(help="Optimiser steps in all.")] = None
    batch: Annotated[int | None, typer.Option(help="Samples per step, over all devices together.")] = None
    lr: Annotated[float | None, typer.Option(help="First learning rate.")] = None
    precision: Annotated[str | None, typer.Option(help="float32, tf32, fp16 or bf16.")] = None
    projector: Annotated[
        str | None, typer.Option(help="On curved manifolds: feasible, nearest or paper.")
    ] = None
    sensors: Annotated[
        int | None,
        typer.Option(help="Values at so many random points, at most, are shown in a step besides. \\[0]"),
    ] = None
    train: Annotated[int | None, typer.Option(help="Solutions to train on.")] = None
    validation: Annotated[int | None, typer.Option(help="Solutions to validate on.")] = None
    modes: Annotated[int | None, typer.Option(help="Fourier modes per axis.")] = None
    hidden: Annotated[int | None, typer.Option(help="Channels of the blocks.")] = None
    projection: Annotated[int | None, typer.Option(help="Channels of lifting and projection.")] = None
    time_channels: Annotated[int | None, typer.Option(help="Channels of the time embedding.")] = None
    blocks: Annotated[int | None, typer.Option(help="Fourier blocks.")] = None
    symmetries: Annotated[
        bool | None,
        typer.Option(
            "--symmetries/--no-symmetries",
            help="Move solutions at random by the symmetries of the task. \\[those that --symmetry declares]",
        ),
    ] = None
    task_options: TaskOptions = TaskOptions()

    def changes(self) -> dict[str, Any]:
        """Return the settings that the command line names."""
        settings = {name: value for name, value in vars(self).items() if name != "task_options"}
        settings["grid"], options = self.task_options.parse()
        settings["options"] = options or None
        return {name: value for name, value in settings.items() if value is not None}


@dataclass(frozen=True)
class ExecutionOptions:
    """Where a training runs, and what else it writes."""

    device: Device = "auto"
    devices: Annotated[int, typer.Option(help="Processes on this machine, one per GPU.")] = 1
    compiled: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile", help="Compile the network. \\[on a GPU, unless it has kernels]"
        ),
    ] = None
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard files too.")] = False
    skill: Annotated[
        bool,
        typer.Option(
            "--skill/--no-skill", help="On your own data, end with a short table of skill per condition."
        ),
    ] = True


@app.command()
@take_records
def train(
    task: Annotated[str | None, typer.Argument(help="A task name; `sapc tasks` lists them.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="A method; `sapc methods` lists them. \\[sapc; of data of your own cond_sapc]"),
    ] = None,
    preset: PresetName = None,
    path: Annotated[
        Path | None,
        typer.Option("--out", help="The run folder. \\[runs/TASK-METHOD and what is not standard]"),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Continue the run in this folder; its settings are read from there. "
            "With --steps a finished run goes on."
        ),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Begin with the weights of this trained run, or of a model that `sapc models` lists; "
            "the network has its sizes.",
        ),
    ] = None,
    *,
    settings: TrainingOptions,
    own_data: OwnDataOptions,
    execution: ExecutionOptions,
    as_json: AsJson = False,
) -> None:
    """Train a model in a run folder. The same command, or --resume, continues a run that was interrupted.

    Example: [bold]sapc train heat --method sapc --preset small[/bold];
    on four GPUs: [bold]sapc train heat --devices 4[/bold];
    your own data and laws: [bold]sapc train --data my.h5 --physics my_physics.py[/bold];
    a finished run with more steps: [bold]sapc train --resume runs/heat-sapc-small --steps 3000[/bold]
    """
    own_data.check()
    changes = settings.changes()
    if resume is not None:
        conflicts: dict[str, Any] = {"TASK": task, "--method": method, "--preset": preset, "--out": path}
        conflicts |= {"--from": start, "--symmetry": own_data.symmetry or None}
        conflicts |= {_option_of(name): value for name, value in changes.items() if name != "steps"}
        run = _resume_config(
            resume, [name for name, value in conflicts.items() if value is not None], settings.steps
        )
        run = run.attach() if own_data.data is None else own_data.attach(run)
        path = resume
    else:
        has_data = own_data.data is not None
        preset = preset or ("small" if has_data else default_preset(execution.device))
        resolved_task = _find_task(task, own_data)
        method = method or choose_method(resolved_task, path, start, preset=preset)
        run = _new_config(resolved_task, method, preset, changes, start)
        path = path or default_folder(run)
    folder = RunFolder(path)
    _check(run, folder, execution.devices)
    was_trained = folder.is_trained and folder.run().steps == run.steps
    origin = f", with the weights of {run.parent['name']}" if run.parent else ""
    origin += f", symmetries {' '.join(run.symmetries)}" if run.symmetries else ""
    announcement = "" if as_json else describe_training(run, folder, f" (preset {run.preset}){origin}")
    job = _Job(run, path, announcement, own_data, start, execution)
    with interrupt_advice():
        if execution.devices == 1:
            job.work()
        else:
            distributed.spawn(execution.devices, job.work, device=execution.device)
    if is_main_process():
        model = _tune(run, folder, execution.device)
        is_measured = execution.skill and not was_trained and not run.description.can_draw
        skill = _measure_skill(model) if is_measured else None
        _report(run, folder, was_trained, as_json, own_data, skill)


def _option_of(setting: str) -> str:
    """Return the option that makes a setting."""
    return "--option" if setting == "options" else f"--{setting.replace('_', '-')}"


def _resume_config(path: Path, options: list[str], steps: int | None) -> TrainingConfig:
    """Read the configuration of the run to continue; `options` are those that go not with it."""
    if options:
        raise SapcError(
            f"--resume reads the settings from {path}, so {options[0]} cannot be given as well; "
            "leave one of them out"
        )
    if is_shipped(resolve_model_path(path)):
        raise SapcError(
            f"{path} comes with the package and is trained; there is nothing to continue, "
            f"but --from {path} begins a run with its weights"
        )
    return RunFolder(path).run() if steps is None else extension(path, steps)


def _new_config(
    task: str | Task, method: str, preset: str, changes: dict[str, Any], start: Path | None
) -> TrainingConfig:
    """Make the configuration of a new run, with the network whose weights it begins with."""
    if start is None:
        return training_config(task, method, preset, **changes)
    task_object = get_task(task) if isinstance(task, str) else task
    backbone = RunFolder(resolve_model_path(start)).run().backbone
    n_axes, network_axes = len(task_object.grid.points_per_axis), len(getattr(backbone, "modes", ()))
    if network_axes not in (0, n_axes):
        raise SapcError(
            f"the network of {start} has {network_axes} axes, and {task_object.name} has {n_axes}; "
            "take a run with as many axes, or leave --from out"
        )
    run = training_config(task, method, preset, **{"backbone": backbone, **changes})
    return fine_tuning(run, start)


def _find_task(task: str | None, own_data: OwnDataOptions) -> str | Task:
    """Return the name of a task of this package, or make the task of own data and warn of its problems."""
    if own_data.data is None:
        if task is None:
            raise SapcError(
                "sapc train needs a task, as in `sapc train heat`, --data FILE --physics FILE, "
                "or --resume FOLDER; see sapc tasks"
            )
        return task
    if task is not None:
        raise SapcError(f"--data trains on your own fields, and {task!r} names a task; leave one of them out")
    own_task = own_data.task()
    for problem in check_task(own_task, noise=4).problems:
        warnings.warn(f"{problem} (see sapc check)", SapcWarning, stacklevel=2)
    return own_task


def _check(run: TrainingConfig, folder: RunFolder, devices: int) -> None:
    """Refuse, before anything is printed, what would be refused later."""
    run.check()
    if is_main_process():
        folder.check(run)
    if devices > 1 and run.batch % devices:
        raise SapcError(
            f"a batch of {run.batch} cannot be shared evenly by {devices} devices; choose a multiple"
        )


@dataclass(frozen=True)
class _Job:
    """A training as each of its processes does it."""

    run: TrainingConfig
    path: Path
    announcement: str
    own_data: OwnDataOptions
    start: Path | None
    execution: ExecutionOptions

    def work(self) -> None:
        """Train in this process, alone or as one of several."""
        run, execution = self.run, self.execution
        # What was attached to a run does not travel to another process.
        if self.own_data.data is not None and run.attached_task is None:
            run = self.own_data.attach(run)
        bar = TrainingBar(f"{run.task} {run.method}", self.announcement, quiet=not is_main_process())
        with warnings.catch_warnings(), bar:
            warnings.showwarning = warn
            training.train(
                run,
                self.path,
                device=execution.device,
                compiled=execution.compiled,
                tensorboard=execution.tensorboard,
                progress=bar,
                data_progress=bar.show_solutions,
                start=self.start,
                keep_optimiser=True,
            )


def is_main_process() -> bool:
    """Tell whether this process is alone, or the first of those that torchrun or srun started."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def _tune(run: TrainingConfig, folder: RunFolder, device: str) -> Model:
    """Measure the times of the sampler for weights that are new, and return the model."""
    advice = f"stopped; the training is kept; measure the times of its sampler: sapc tune {folder.path}"
    with interrupt_advice(advice), progress_bar(f"{run.task} {run.method}: times of the sampler") as bar:
        model = read_model(folder.path, folder, run, device)
        tune_after_training(model, bar)
    return model


def _measure_skill(model: Model) -> Skill | None:
    """Measure the skill of a few conditions; a failure is a warning, for the training is done."""
    try:
        with interrupt_advice("stopped; the training is kept"), stage_bar("skill per condition") as bar:
            return measure_skill(model, SHORT_SKILL, bar)
    except SapcError as error:
        warnings.warn(f"skill was not measured: {error}", SapcWarning, stacklevel=2)
        return None


def _report(
    run: TrainingConfig,
    folder: RunFolder,
    was_trained: bool,
    as_json: bool,
    own_data: OwnDataOptions,
    skill: Skill | None,
) -> None:
    """Print the last losses, the skill, and the command that may come next."""
    entries = folder.entries()
    last = {
        name: entry[name] for entry in entries for name in ("loss", "validation", "seconds") if name in entry
    }
    if as_json:
        places = {"folder": str(folder.path), "weights": str(folder.weights)}
        found = {} if skill is None else {"skill": skill.to_dict()}
        print(json.dumps({**places, "step": run.steps, **last, **found}))
        return
    losses = ", ".join(f"{name} {last[name]:.4g}" for name in ("loss", "validation") if name in last)
    print(f"{'already trained' if was_trained else 'trained'}: {folder.weights} ({losses})")
    if skill is not None:
        print_skill(skill, has_times=False)
    has_data = own_data.data is not None
    option_words = own_data.option_words(folder.run()) if has_data else []
    plugins = [word for file in plugin_files() for word in ("--plugin", file)]
    command = ["sapc", *plugins, "sample" if has_data else "evaluate", str(folder.path), *option_words]
    print(f"next: {shlex.join(command)}")
