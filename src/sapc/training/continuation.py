"""Trainings that begin with weights: a finished run that goes on, and a run that starts from another's weights.

    run = extension("runs/heat-sapc", steps=12000)      # the finished run with more steps; train it in its own folder
    run = fine_tuning(run, "runs/heat-sapc")            # a new run that begins with those weights; train it in another folder

Both are a folder with a checkpoint in it before the first step, so that all else is as in a training that was interrupted: it can be
stopped and goes on to the same bits. The run itself says where it comes from (`TrainingConfig.stages`, `TrainingConfig.parent`).

A run that goes on keeps its optimiser, and everything random in step n is a function of the seed and n; the schedule `cosine` is that of
the new number of steps, from the step reached. A run that starts from another's weights has a new optimiser, and counts its steps from 0.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any

from .._files import real_path, sha256, write_json
from ..errors import SapcError, SapcWarning, check_int
from ..nn.network import NetworkSource
from .config import TrainingConfig
from .run_folder import (
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
    """The finished run in a folder, to be continued to more steps; the run as it is where it has as many already."""
    folder, steps = RunFolder(resolve_model_path(path)), check_int(steps, "steps", 1)
    there = folder.run()
    if is_shipped(folder.path) or folder.weights.name == "model.safetensors":
        raise SapcError(f"{path} is a model to be passed on; begin a new run with its weights: --from {path}")
    if steps == there.steps:
        return there
    if steps < there.steps:
        raise SapcError(
            f"{path} is a run of {there.steps} steps, so --steps cannot be given as {steps}; give more to go on, or choose another folder"
        )
    if not folder.is_trained:
        raise SapcError(
            f"{path} is not trained to its end yet; finish its {there.steps} steps first (`sapc train --resume {path}`), then add more"
        )
    return there.extend_to(steps)


def fine_tuning(
    run: TrainingConfig, start: str | os.PathLike[str], network: NetworkSource | None = None
) -> TrainingConfig:
    """A run that begins with the weights of another, once they are known to fit its network."""
    folder = RunFolder(resolve_model_path(start))
    folder.run()  # a folder that is none is refused by name
    if not folder.is_trained:
        raise SapcError(f"{start} is not trained to its end; finish it with `sapc train --resume {start}`")
    tensors, about = folder.load_weights()
    own, there = run.network_shapes(network), {name: tuple(value.shape) for name, value in tensors.items()}
    if wrong := different_shapes(own, there):
        raise SapcError(
            f"the network of {folder.path} does not fit: {wrong[0]} has shape {there.get(wrong[0], 'none')} there and "
            f"{own.get(wrong[0], 'none')} here; take the same sizes, numbers of axes and channels, and a method with the same inputs"
        )
    origin = {
        "name": real_path(folder.path).name,
        "step": about.get("step"),
        "sha256": sha256(folder.weights),
    }
    return replace(run, parent=origin)


def prepare_extension(folder: RunFolder, run: TrainingConfig) -> None:
    """Make a finished run one that is interrupted at its last step; the caller has locked the folder.

    Until the weights are gone this can be done again from the start, so the optimiser is kept until then; after that there is nothing
    left to do but to remove it.
    """
    last = run.stages[-1]
    if not folder.is_trained or read_description(folder.weights).get("step") != last:
        return
    tensors, about = folder.load_weights()
    state, kept = _optimiser_of(folder, last)
    if not state:
        message = f"{folder.path} keeps no state of its optimiser; it begins anew, which a few hundred steps make good"
        warnings.warn(message, SapcWarning, stacklevel=2)
        kept = {"schedule": {}, "rates": [about.get("lr", run.lr)]}
    kept |= {"step": last, "seconds": about.get("seconds", 0.0)}
    save_tensors(folder.checkpoint, {**tensors, **state}, kept)
    write_json(folder.config, run.to_dict())
    for old in (*folder.path.glob("scores*.json"), *folder.path.glob("fields*.safetensors")):
        old.replace(old.with_name(f"step{last}-{old.name}"))
    folder.weights.unlink()
    folder.optimiser.unlink(missing_ok=True)


def _optimiser_of(folder: RunFolder, step: int) -> tuple[Tensors, dict[str, Any]]:
    """What is kept of the optimiser at this step, if anything is."""
    if not folder.optimiser.is_file():
        return {}, {}
    state, about = load_tensors(folder.optimiser)
    return (state, about) if about.get("step") == step else ({}, {})


def check_start(folder: RunFolder, run: TrainingConfig, start: str | os.PathLike[str] | None) -> None:
    """Refuse a run that begins with another's weights where these are neither in its folder nor given."""
    if start is None and not folder.is_trained and not folder.checkpoint.exists():
        raise SapcError(
            f"the run in {folder.path} begins with the weights of {run.parent.get('name')}, which are not there; "
            "give that run as --from RUN, with the settings of this one"
        )


def prepare_fine_tuning(folder: RunFolder, run: TrainingConfig, start: str | os.PathLike[str] | None) -> None:
    """Put the weights that a run begins with into its folder; the caller has locked it and made it this run's."""
    if start is not None and not folder.is_trained and not folder.checkpoint.exists():
        tensors, _ = RunFolder(resolve_model_path(start)).load_weights()
        save_tensors(folder.checkpoint, tensors, {"step": 0, "schedule": {}, "rates": [run.lr]})
