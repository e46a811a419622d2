"""One call from a task to a model."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._old_names import rename_arguments
from ..errors import explain_misuse
from ..nn.network import NetworkSource
from ..tasks import Task
from ..training import loop
from ..training.config import training_config
from ..training.continuation import choose_method
from ..training.run_folder import default_folder
from .model import Model, read_model
from .times import tune_after_training

EXECUTION = ("compiled", "tensorboard", "save_seconds", "data_progress", "extend", "keep_optimiser")


@rename_arguments(solving="data_progress")
@explain_misuse
def train(
    task: str | Task,
    method: str | None = None,
    preset: str = "small",
    out: str | os.PathLike[str] | None = None,
    *,
    network: NetworkSource | None = None,
    device: str = "auto",
    start: str | os.PathLike[str] | None = None,
    progress: loop.Progress | None = None,
    **settings: Any,
) -> Model:
    """Train a model in a run folder.

    The same call continues what was interrupted, and loads what is finished. An unknown or contradictory
    setting, a folder that holds another run, and a training that fails are a `SapcError`.

    Args:
        task: A name, or a task of your own, as `sapc.Task.from_data` makes it.
        method: A method that is trained; `sapc.method_names()` lists them. Unless given, that of the
            run that is continued or gives the weights; else `cond_sapc` for data of your own and with preset
            best; else `sapc`, also with a network of your own.
        preset: published, full, best, compact, small or tiny.
        out: The run folder; runs/TASK-METHOD-PRESET unless given.
        network: One of your own in place of the FNO: a `torch.nn.Module` `(fields, times[, condition]) ->
            fields`, with whose weights the training begins and which is copied, or a function or class that
            makes one, called with the seed of the run.
        device: auto, cpu or cuda.
        start: A trained run, or the name of a model that comes with the package, with whose weights this one
            begins.
        progress: Called with (step, steps, losses).
        settings: Further settings of a run, as `steps=500`, `seed=1`, `lr=1e-3`, `grid=(32, 32)`, and
            arguments of `sapc.training.loop.train`, as `compiled`, `tensorboard`, `keep_optimiser`.

    Returns:
        The trained model; `model.folder.path` is where it is.

    """
    execution = {name: settings.pop(name) for name in EXECUTION if name in settings}
    # Anything else is refused there.
    if method is None and isinstance(task, str | Task):
        method = choose_method(task, out, start, network, preset)
    run = training_config(task, method, preset, network=network, **settings)
    folder = loop.train(
        run,
        default_folder(run) if out is None else Path(out),
        device=device,
        start=start,
        progress=progress,
        network=network,
        **execution,
    )
    folder_run = folder.run()
    # The task itself, with its physics and data, is not in the folder.
    run = replace(run, stages=folder_run.stages, parent=folder_run.parent)
    model = read_model(folder.path, folder, run, device, network=network)
    tune_after_training(model)
    return model
