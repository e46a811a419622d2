"""`sapc data`: solve a split of a task and write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .._files import ensure_folder
from ..tasks import SPLITS, get_task
from .app import app
from .options import AsJson, Force, TaskName, TaskOptions, check_target, take_records
from .progress import progress_bar


@app.command()
@take_records
def data(
    task: TaskName,
    path: Annotated[Path, typer.Option("--out", help="The HDF5 file to write.")],
    split: Annotated[str, typer.Option(help=f"One of {', '.join(SPLITS)}.")] = "train",
    size: Annotated[
        int | None, typer.Option(help="Number of solutions; the published size unless given.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split's random stream.")] = 0,
    *,
    task_options: TaskOptions,
    device: Annotated[str, typer.Option(help="Where to solve: cpu or cuda.")] = "cpu",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Solve a split of a task and write it as HDF5, with grid, parameters and provenance.

    Example: [bold]sapc data burgers --split test0 --size 100 --out burgers-test0.h5[/bold]
    """
    grid, options = task_options.parse()
    pde_task = get_task(task, grid=grid, **options)
    pde_task.check(split, size, seed, device)
    check_target(path, force)
    with progress_bar(f"{task} {split}") as bar:
        dataset = pde_task.dataset(split, size=size, seed=seed, device=device, progress=bar)
    with ensure_folder(path.parent):
        dataset.save(path)
    summary = {
        "path": str(path),
        "task": task,
        "split": split,
        "size": len(dataset),
        "seed": seed,
        "grid": list(pde_task.grid.shape),
    }
    if as_json:
        print(json.dumps(summary))
    else:
        shape = " x ".join(map(str, pde_task.grid.shape))
        print(f"wrote {path}: {len(dataset)} solutions of {task} ({split}, seed {seed}) on {shape} points")
