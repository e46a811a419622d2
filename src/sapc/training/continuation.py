"""Trainings that begin with weights: those of the same run, finished before, or those of another run.

    run = extension("runs/heat-sapc", steps=12000)      # the finished run with more steps, in its own folder
    run = fine_tuning(run, "runs/heat-sapc")            # a new run with those weights, in another folder

Both are a folder with a checkpoint in it before the first step, so that all else is as in a training that was
interrupted: it can be stopped and goes on to the same bits. The settings say where the weights come from
(`TrainingConfig.stages`, `TrainingConfig.parent`).

A run that goes on keeps its optimiser, and everything random in step n is a function of the seed and n;
schedule `cosine` is that of the new number of steps, from the step reached. A run that starts from another's
weights has a new optimiser, and counts its steps from 0.
"""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import replace
from typing import Any

from .._files import real_path, sha256, write_json
from ..errors import SapcError, SapcWarning, check_int
from ..nn.network import NetworkSource
from ..tasks import Task, get_task
from .config import TrainingConfig, default_method
from .run_folder import (
    BEST,
    BEST_VALIDATION,
    LAST,
    RunFolder,
    Tensors,
    different_shapes,
    is_shipped,
    load_tensors,
    read_description,
    resolve_model_path,
    save_tensors,
)


def extension(path: str | os.PathLike[str], steps: int) -> TrainingConfig:
    """Describe a finished run that is continued to more steps.

    Args:
        path: Folder of the finished run.
        steps: Steps in all.

    Returns:
        The settings of the longer run; those of the run itself if it has as many steps already.

    Raises:
        SapcError: The run is not finished, has more steps, or is a model without its training.
    """
    folder, steps = RunFolder(resolve_model_path(path)), check_int(steps, "steps", 1)
    run = folder.run()
    if is_shipped(folder.path) or folder.weights.name == "model.safetensors":
        raise SapcError(f"{path} is a model to be passed on; begin a new run with its weights: --from {path}")
    if steps == run.steps:
        return run
    if steps < run.steps:
        raise SapcError(
            f"{path} is a run of {run.steps} steps, so --steps cannot be given as {steps}; "
            "give more to go on, or choose another folder"
        )
    if not folder.is_trained:
        raise SapcError(
            f"{path} is not trained to its end yet; finish its {run.steps} steps first "
            f"(`sapc train --resume {path}`), then add more"
        )
    return run.extend_to(steps)


def fine_tuning(
    run: TrainingConfig, start: str | os.PathLike[str], network: NetworkSource | None = None
) -> TrainingConfig:
    """Describe a run that begins with the weights of another.

    Args:
        run: Settings of the new run.
        start: Folder of a trained run, or the name of a model that comes with the package.
        network: A network of your own, if the run has one.

    Returns:
        The settings, with the origin of the weights as `parent`.

    Raises:
        SapcError: The other run is not trained to its end, or its weights do not fit the network.
    """
    folder = RunFolder(resolve_model_path(start))
    # A folder that holds no run is refused by name.
    folder.run()
    if not folder.is_trained:
        raise SapcError(f"{start} is not trained to its end; finish it with `sapc train --resume {start}`")
    tensors, description = folder.load_weights()
    shapes = run.network_shapes(network)
    start_shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    if names := different_shapes(shapes, start_shapes):
        raise SapcError(
            f"the network of {folder.path} does not fit: {names[0]} has shape "
            f"{start_shapes.get(names[0], 'none')} there and {shapes.get(names[0], 'none')} here; "
            "take the same sizes, numbers of axes and channels, and a method with the same inputs"
        )
    parent = {
        "name": real_path(folder.path).name,
        "step": description.get("step"),
        "sha256": sha256(folder.weights),
    }
    return replace(run, parent=parent)


def choose_method(
    task: str | Task,
    folder: str | os.PathLike[str] | None,
    start: str | os.PathLike[str] | None,
    network: NetworkSource | None = None,
    preset: str = "small",
) -> str:
    """Choose the method of a run where none is named.

    A run of given fields that is there already keeps its method, and one that begins with weights takes
    theirs. Else it is `default_method(task, network, preset)`.

    Args:
        task: The task, or its name.
        folder: The run folder, if one is named.
        start: The run whose weights it begins with, if there is one.
        network: A network of your own.
        preset: The preset.

    Returns:
        The name of the method.
    """
    task = get_task(task) if isinstance(task, str) else task
    places = [] if folder is None else [RunFolder(folder)]
    places += [] if start is None else [RunFolder(resolve_model_path(start))]
    runs = (place.run() for place in places if not task.can_draw and place.config.is_file())
    return next((run.method for run in runs), default_method(task, network, preset))


def prepare_extension(folder: RunFolder, run: TrainingConfig) -> None:
    """Turn a finished run into one that is interrupted at its last step; the caller has locked the folder.

    Until the weights are gone this can be done again from the start, so the optimiser is kept until then;
    after that there is nothing left to do but to remove it.
    """
    last_step = run.stages[-1]
    if not folder.is_trained or read_description(folder.weights).get("step") != last_step:
        return
    tensors, description = folder.load_weights()
    optimiser, metadata = _optimiser_of(folder, last_step)
    if not optimiser:
        message = (
            f"{folder.path} keeps no state of its optimiser; it begins anew, "
            "which a few hundred steps make good"
        )
        warnings.warn(message, SapcWarning, stacklevel=2)
        metadata = {"schedule": {}, "rates": [description.get("lr", run.lr)]}
    metadata |= {"step": last_step, "seconds": description.get("seconds", 0.0)}
    if "best_step" in description:
        # The weights it ended with are the best so far; it goes on from those it had reached, if they are there.
        last = {k.removeprefix(LAST): optimiser.pop(k) for k in list(optimiser) if k.startswith(LAST)}
        optimiser |= {BEST + name: value.clone() for name, value in tensors.items()}
        metadata[BEST_VALIDATION] = [description["best_step"], description.get("validation", math.inf)]
        tensors = last or tensors
    save_tensors(folder.checkpoint, {**tensors, **optimiser}, metadata)
    write_json(folder.config, run.to_dict())
    for file in (*folder.path.glob("scores*.json"), *folder.path.glob("fields*.safetensors")):
        file.replace(file.with_name(f"step{last_step}-{file.name}"))
    folder.weights.unlink()
    folder.optimiser.unlink(missing_ok=True)


def _optimiser_of(folder: RunFolder, step: int) -> tuple[Tensors, dict[str, Any]]:
    """Load the state of the optimiser and its description, both empty if there is none of this step."""
    if not folder.optimiser.is_file():
        return {}, {}
    tensors, metadata = load_tensors(folder.optimiser)
    return (tensors, metadata) if metadata.get("step") == step else ({}, {})


def check_start(folder: RunFolder, run: TrainingConfig, start: str | os.PathLike[str] | None) -> None:
    """Refuse a run that begins with another's weights if these are neither in its folder nor given."""
    if start is None and not folder.is_trained and not folder.checkpoint.exists():
        raise SapcError(
            f"the run in {folder.path} begins with the weights of {run.parent.get('name')}, which are not "
            "there; give that run as --from RUN, with the settings of this one"
        )


def prepare_fine_tuning(folder: RunFolder, run: TrainingConfig, start: str | os.PathLike[str] | None) -> None:
    """Put the weights that a run begins with into its locked folder, which is this run's already."""
    if start is not None and not folder.is_trained and not folder.checkpoint.exists():
        tensors, _ = RunFolder(resolve_model_path(start)).load_weights()
        save_tensors(folder.checkpoint, tensors, {"step": 0, "schedule": {}, "rates": [run.lr]})
