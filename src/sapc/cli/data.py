"""`sapc data`: solve a split and write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .._files import ensure_folder
from ..tasks import SPLITS, get_task
from .app import app
from .options import AsJson, GridText, OptionTexts, check_target, parse_grid, parse_options
from .progress import bar_for


@app.command()
def data(
    task: Annotated[str, typer.Argument(help="A task name; `sapc tasks` lists them.")],
    path: Annotated[Path, typer.Option("--out", help="The HDF5 file to write.")],
    split: Annotated[str, typer.Option(help=f"One of {', '.join(SPLITS)}.")] = "train",
    size: Annotated[
        int | None, typer.Option(help="Number of solutions; the published size unless given.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split's random stream.")] = 0,
    grid: GridText = None,
    option: OptionTexts = None,
    device: Annotated[str, typer.Option(help="Where to solve: cpu or cuda.")] = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Solve a split of a task and write it as HDF5, with grid, parameters and provenance.

    Example: [bold]sapc data burgers --split test0 --size 100 --out burgers-test0.h5[/bold]
    """
    chosen = get_task(task, grid=parse_grid(grid), **parse_options(option))
    chosen.check(split, size, seed, device)
    check_target(path, force)
    with bar_for(f"{task} {split}") as bar:
        made = chosen.dataset(split, size=size, seed=seed, device=device, progress=bar)
    with ensure_folder(path.parent):
        made.save(path)
    summary = {
        "path": str(path),
        "task": task,
        "split": split,
        "size": len(made),
        "seed": seed,
        "grid": list(chosen.grid.shape),
    }
    if as_json:
        print(json.dumps(summary))
    else:
        shape = " x ".join(map(str, chosen.grid.shape))
        print(f"wrote {path}: {len(made)} solutions of {task} ({split}, seed {seed}) on {shape} points")
