"""`sapc train`: a run, from the start or from where it was left."""

from __future__ import annotations

import json
import os
import shlex
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SapcError, SapcWarning
from ..methods.registry import plugin_files
from ..tasks.check import check as check_task
from ..training import config, distributed
from ..training import loop as training
from ..training.config import TrainingConfig
from ..training.continuation import extension, fine_tuning
from ..training.run_folder import RunFolder, default_folder, find, is_shipped
from .app import ExplainedInterrupt, app, warn
from .options import AsJson, Device, GridText, OptionTexts, parse_grid, parse_options
from .own_data import (
    Cells,
    ChannelNames,
    DataFile,
    OwnDataOptions,
    Periodic,
    PhysicsFile,
    SampleAxis,
    Share,
    Steady,
    TimeAxis,
    parse_own_data,
)
from .progress import TrainingBar

Whole = int | None


@app.command()
def train(
    task: Annotated[str | None, typer.Argument(help="A task name; `sapc tasks` lists them.")] = None,
    method: Annotated[str | None, typer.Option(help="A method; `sapc methods` lists them. \\[sapc]")] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="published, full, compact, small or tiny. \\[published on a GPU, small without]"),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option("--out", help="The run folder. \\[runs/TASK-METHOD and what is not standard]"),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Continue the run in this folder; its settings are read from there. With --steps a finished run goes on."
        ),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Begin with the weights of this trained run, or of a model that `sapc models` lists; the network has its sizes.",
        ),
    ] = None,
    seed: Annotated[Whole, typer.Option(help="Seed of data, weights and batches. \\[0]")] = None,
    steps: Annotated[Whole, typer.Option(help="Optimiser steps in all.")] = None,
    batch: Annotated[Whole, typer.Option(help="Samples per step, over all devices together.")] = None,
    lr: Annotated[float | None, typer.Option(help="First learning rate.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, tf32, fp16 or bf16.")] = None,
    projector: Annotated[
        str | None, typer.Option(help="On curved manifolds: feasible, nearest or paper.")
    ] = None,
    train_size: Annotated[Whole, typer.Option("--train", help="Solutions to train on.")] = None,
    validation: Annotated[Whole, typer.Option(help="Solutions to validate on.")] = None,
    modes: Annotated[Whole, typer.Option(help="Fourier modes per axis.")] = None,
    hidden: Annotated[Whole, typer.Option(help="Channels of the blocks.")] = None,
    projection: Annotated[Whole, typer.Option(help="Channels of lifting and projection.")] = None,
    time_channels: Annotated[Whole, typer.Option(help="Channels of the time embedding.")] = None,
    blocks: Annotated[Whole, typer.Option(help="Fourier blocks.")] = None,
    grid: GridText = None,
    option: OptionTexts = None,
    data: DataFile = None,
    physics: PhysicsFile = None,
    name: Annotated[str | None, typer.Option(help="Of your own task. \\[the data file's]")] = None,
    channels: ChannelNames = None,
    periodic: Periodic = None,
    cells: Cells = None,
    time: TimeAxis = None,
    samples: SampleAxis = None,
    steady: Steady = None,
    share: Share = 0.1,
    device: Device = "auto",
    devices: Annotated[int, typer.Option(help="Processes on this machine, one per GPU.")] = 1,
    compiled: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile", help="Compile the network. \\[on a GPU, unless it has kernels]"
        ),
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard files too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model in a run folder. The same command, or --resume, continues a run that was interrupted.

    Example: [bold]sapc train heat --method sapc --preset small[/bold], or on four GPUs [bold]sapc train heat --devices 4[/bold];
    your own data and laws: [bold]sapc train --data my.h5 --physics my_physics.py[/bold]; a finished run with more steps:
    [bold]sapc train --resume runs/heat-sapc-small --steps 3000[/bold]
    """
    own_data = parse_own_data(
        data, physics, name, channels=channels, periodic=periodic, cells=cells, time=time, samples=samples,
        steady=steady, share=share,
    )  # fmt: skip
    settings = {
        "seed": seed, "steps": steps, "batch": batch, "lr": lr, "precision": precision, "projector": projector,
        "train": train_size, "validation": validation, "modes": modes, "hidden": hidden, "projection": projection,
        "time_channels": time_channels, "blocks": blocks, "grid": parse_grid(grid), "options": parse_options(option) or None,
    }  # fmt: skip
    changes = {name: value for name, value in settings.items() if value is not None}
    if resume is not None:
        conflicts: dict[str, Any] = {
            "TASK": task,
            "--method": method,
            "--preset": preset,
            "--out": path,
            "--from": start,
        }
        conflicts |= {
            f"--{name.replace('_', '-')}": value for name, value in changes.items() if name != "steps"
        }
        path, run = (
            resume,
            _resume_config(resume, [name for name, value in conflicts.items() if value is not None], steps),
        )
        run = run.attach() if own_data is None else own_data.attach(run)
    else:
        preset = preset or (
            "published" if distributed.kind_of(device) == "cuda" and own_data is None else "small"
        )
        run = _new_config(task, method or "sapc", preset, _sizes(start) | changes, own_data)
        run = run if start is None else fine_tuning(run, start)
        path = path or default_folder(run)
    folder = RunFolder(path)
    _check(run, folder, devices)
    was_trained = folder.trained and folder.run().steps == run.steps
    options = {
        "device": device,
        "compiled": compiled,
        "tensorboard": tensorboard,
        "own": own_data,
        "start": start,
    }
    _train(run, path, devices, "" if as_json else _announcement(run, folder), options)
    if is_main_process():
        _report(run, folder, was_trained, as_json, own_data)


def _sizes(start: Path | None) -> dict[str, Any]:
    """The sizes of the network whose weights a run begins with."""
    return {} if start is None else {"backbone": RunFolder(find(start)).run().backbone}


def _resume_config(path: Path, options: list[str], steps: int | None) -> TrainingConfig:
    if options:
        raise SapcError(
            f"--resume reads the settings from {path}, so {options[0]} cannot be given as well; leave one of them out"
        )
    if is_shipped(find(path)):
        raise SapcError(
            f"{path} comes with the package and is trained; there is nothing to continue, but --from {path} begins a run with its weights"
        )
    return RunFolder(path).run() if steps is None else extension(path, steps)


def _new_config(
    task: str | None, method: str, preset: str, changes: dict[str, Any], own_data: OwnDataOptions | None
) -> TrainingConfig:
    if own_data is not None:
        if task is not None:
            raise SapcError(
                f"--data trains on your own fields, and {task!r} names a task; leave one of them out"
            )
        task_ = own_data.task()
        for problem in check_task(task_, noise=4).problems:
            warnings.warn(f"{problem} (see sapc check)", SapcWarning, stacklevel=2)
        return config.training_config(task_, method, preset, **changes)
    if task is None:
        raise SapcError(
            "sapc train needs a task, as in `sapc train heat`, --data FILE --physics FILE, or --resume FOLDER; see sapc tasks"
        )
    return config.training_config(task, method, preset, **changes)


def _check(run: TrainingConfig, folder: RunFolder, devices: int) -> None:
    """Refuse before anything is said what would be refused later."""
    run.check()
    if is_main_process():
        folder.check(run)
    if devices > 1 and run.batch % devices:
        raise SapcError(
            f"a batch of {run.batch} cannot be shared evenly by {devices} devices; choose a multiple"
        )


def _announcement(run: TrainingConfig, folder: RunFolder) -> str:
    """What runs and where."""
    grid = " x ".join(map(str, run.grid))
    verb = "continuing" if folder.checkpoint.is_file() or run.stages else "training"
    origin = f", with the weights of {run.parent['name']}" if run.parent else ""
    return f"{verb} {run.method} on {run.task}, {grid} points, {run.steps} steps (preset {run.preset}){origin} in {folder.path}"


def _train(run: TrainingConfig, path: Path, devices: int, announcement: str, options: dict[str, Any]) -> None:
    try:
        if devices == 1:
            _work(run, path, announcement, options)
        else:
            distributed.spawn(devices, _work, run, path, announcement, options, device=options["device"])
    except KeyboardInterrupt as interrupt:
        if not str(interrupt):
            raise
        raise ExplainedInterrupt(str(interrupt)) from interrupt


def _work(run: TrainingConfig, path: Path, announcement: str, options: dict[str, Any]) -> None:
    """What every process does."""
    options = dict(options)
    if (own_data := options.pop("own", None)) is not None and run.attached is None:
        run = own_data.attach(run)
    bar = TrainingBar(f"{run.task} {run.method}", announcement, quiet=not is_main_process())
    with warnings.catch_warnings(), bar:
        warnings.showwarning = warn
        training.train(run, path, progress=bar, solving=bar.show_solutions, keep_optimiser=True, **options)


def is_main_process() -> bool:
    """Whether this process is alone or the first of those that torchrun or srun started."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def _report(
    run: TrainingConfig, folder: RunFolder, was_trained: bool, as_json: bool, own_data: OwnDataOptions | None
) -> None:
    entries = folder.entries()
    last = {
        name: entry[name] for entry in entries for name in ("loss", "validation", "seconds") if name in entry
    }
    if as_json:
        places = {"folder": str(folder.path), "weights": str(folder.weights)}
        print(json.dumps({**places, "step": run.steps, **last}))
        return
    losses = ", ".join(f"{name} {last[name]:.4g}" for name in ("loss", "validation") if name in last)
    print(f"{'already trained' if was_trained else 'trained'}: {folder.weights} ({losses})")
    option_words = own_data.option_words(folder.run()) if own_data else []
    plugins = [word for file in plugin_files() for word in ("--plugin", file)]
    command = ["sapc", *plugins, "sample" if own_data else "evaluate", str(folder.path), *option_words]
    print(f"next: {shlex.join(command)}")
