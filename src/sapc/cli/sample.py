"""`sapc sample`: fields from a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from ..checkpoint import environment
from ..condition import pinned_mask, with_sensors
from ..errors import SapcError, whole
from ..evaluate import worst_residuals
from ..fields import read_sensors
from ..model import Model, load
from ..tasks import OwnTask, Task
from .app import app
from .arguments import AsJson, Device, GridText, RunFolder, SamplerName, check_target, parse_grid
from .arrays import check_suffix, parse_quantiles, read_condition, write_samples
from .bars import bar_for
from .own import DataFile, PhysicsFile, SampleAxis, Steady, TimeAxis, said


@app.command()
def sample(
    folder: RunFolder,
    n: Annotated[
        int | None, typer.Option("--n", help="Fields to draw. \\[64, or one per condition of the file]")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            "--set", help="Take the condition from a test set, or one per field from train. \\[test0]"
        ),
    ] = None,
    condition: Annotated[
        Path | None,
        typer.Option(
            help="Take it from a dataset, or an npz or HDF5 file with an array `condition`, (*grid) or (m, *grid); of your own data "
            "from a file like them. Only pinned values count, the others may be NaN."
        ),
    ] = None,
    sensors: Annotated[
        Path | None,
        typer.Option(
            help="Also pin what sensors measured: a CSV file with a column per axis, `value`, and `channel`, `sample` if there are several."
        ),
    ] = None,
    quantiles: Annotated[
        str | None,
        typer.Option(help="Quantiles of the samples to write beside them (.nc), as 0.05,0.5,0.95."),
    ] = None,
    path: Annotated[
        Path,
        typer.Option("--out", help="The file to write: .h5, .npz, or .nc for NetCDF with CF attributes."),
    ] = Path("samples.h5"),
    steps: Annotated[
        int | None, typer.Option(help="Sampling steps. \\[the method's own number, mostly 100]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the source draws.")] = 0,
    grid: GridText = None,
    method: SamplerName = None,
    physics: PhysicsFile = None,
    data: DataFile = None,
    time: TimeAxis = None,
    samples_dim: SampleAxis = None,
    steady: Steady = None,
    device: Device = "auto",
    batch: Annotated[int | None, typer.Option(help="Fields at a time, at most.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw fields from a trained model that satisfy a condition, and write them with where they came from.

    Example: [bold]sapc sample runs/heat-sapc --n 64 --set test1 --out heat.npz[/bold]; of your own data
    [bold]sapc sample runs/my-sapc-small --physics my_physics.py --condition new.nc --out samples.nc[/bold]
    """
    check_suffix(path)
    check_target(path, force)
    shares = parse_quantiles(quantiles, path)
    if split is not None and condition is not None:
        raise SapcError("--set and --condition both name a condition; give one of them")
    reading = said(time=time, samples=samples_dim, steady=steady)
    model = load(folder, device, physics=physics, data=data, reading=reading)
    points = parse_grid(grid)
    task, sampler = model.on(points), model.sampler(method)
    split = split or ("validation" if isinstance(task, OwnTask) else "test0")
    values = read_condition(condition, task) if condition else _of_set(task, split, n or 64)
    also = None
    if sensors is not None:
        values, also = with_sensors(values, read_sensors(sensors, task.grid), task)
    count = n if n is not None else 64 if len(values) == 1 else len(values)
    with bar_for(f"{task.name} {sampler.name}") as bar:
        fields = model.sample(
            count, values, steps, seed, also=also, method=method, grid=points, batch=batch, progress=bar
        )
    H = model.manifold(values, points, also)
    worst = worst_residuals(H, fields)
    origin = {"set": split} if condition is None else {"file": str(condition)}
    origin |= {"sensors": str(sensors)} if sensors else {}
    about = _about(
        model, folder, sampler.name, sampler.steps if steps is None else steps, seed, task, origin, worst
    )
    kept = torch.where(pinned_mask(task, also), H.fields.cpu(), torch.nan)
    write_samples(path, {"fields": fields, "condition": kept}, about, task, shares)
    _print(path, fields, about, as_json)


def _of_set(task: Task, split: str, n: int) -> Tensor:
    """The condition of a test set; of another split one per field."""
    known = tuple(task.sizes)
    if split not in known:
        raise SapcError(f"unknown set {split!r}; choose one of {', '.join(known)}")
    size = 1 if split.startswith("test") else whole(n, "number of samples", 1)
    if isinstance(task, OwnTask):  # a file has as many as it has: further fields begin with the first again
        there = task.dataset(split).fields
        return there[torch.arange(size) % len(there)]
    with bar_for(f"{task.name} {split}") as bar:
        return task.dataset(split, size=size, progress=bar).fields


def _about(
    model: Model,
    folder: Path,
    method: str,
    steps: int,
    seed: int,
    task: Task,
    origin: dict[str, str],
    worst: dict[str, float],
) -> dict[str, Any]:
    return {
        "run": model.run.to_dict(),
        "folder": str(folder),
        "trained": model.step,
        "method": method,
        "steps": steps,
        "seed": seed,
        "grid": task.grid.to_dict(),
        "condition": origin,
        "worst_residual": worst,
        "environment": environment(),
    }


def _print(path: Path, fields: Tensor, about: dict[str, Any], as_json: bool) -> None:
    worst, run = about["worst_residual"], about["run"]
    if as_json:
        print(json.dumps({"path": str(path), "shape": list(fields.shape), **about}))
        return
    shape = " x ".join(map(str, fields.shape[1:]))
    origin = ", ".join(about["condition"].values())
    print(
        f"wrote {path}: {len(fields)} fields of {run['task']} ({about['method']}, {origin}, {about['steps']} steps, "
        f"seed {about['seed']}) on {shape} points"
    )
    print(f"largest residual: pinned values {worst['local']:.1e}, balance law {worst['balance']:.1e}")
