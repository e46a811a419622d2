"""`sapc sample`: fields from a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from ..data import read_sensors
from ..errors import SapcError, check_int
from ..models.model import Model, load
from ..models.sampling import merge_sensors, worst_residuals
from ..tasks import Task
from ..training.run_folder import environment
from .app import app
from .options import AsJson, Device, GridText, RunPath, SamplerName, check_target, parse_grid
from .own_data import DataFile, PhysicsFile, SampleAxis, Steady, TimeAxis, reading_changes
from .progress import progress_bar
from .sample_files import check_suffix, parse_quantiles, read_condition, write_samples

DEFAULT_COUNT = 64  # fields, where nobody says how many


@app.command()
def sample(
    folder: RunPath,
    n: Annotated[
        int | None,
        typer.Option(
            "--n",
            help="Fields to draw, over all conditions together. \\[about 64, or one per condition of the file]",
        ),
    ] = None,
    members: Annotated[
        int | None,
        typer.Option(
            help="Fields of each condition: --n 64 --members 16 draws 16 fields of each of 4 conditions. \\[as --n divides]"
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            "--set",
            help="Take the condition from a test set, which has one, or several from train or validation. "
            "\\[test0; of your own data validation]",
        ),
    ] = None,
    condition: Annotated[
        Path | None,
        typer.Option(
            help="Take it from a dataset, or an npz or HDF5 file with an array `condition` of one field or several; of your own data "
            "from a file like them. Only pinned values count: the others may be NaN, and the file may hold them alone, as an initial frame."
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
        typer.Option(
            help="Quantiles of each condition's samples to write beside them (.nc), as 0.05,0.5,0.95."
        ),
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
    reading = reading_changes(time=time, samples=samples_dim, steady=steady)
    model = load(folder, device, physics=physics, data=data, reading=reading)
    points = parse_grid(grid)
    task, sampler = model.task_at(points), model.sampler(method)
    split = split or task.test_sets[0]
    n, members = (
        None if x is None else check_int(x, f"number of {of}", 1)
        for x, of in ((n, "samples"), (members, "members"))
    )
    values = read_condition(condition, task) if condition else _draw_conditions(task, split, n, members)
    sensor_pin, n_conditions = None, len(values)
    if sensors is not None:
        values, sensor_pin = merge_sensors(values, read_sensors(sensors, task.grid), task)
    from_set = condition is None and len(values) == n_conditions
    count = len(values) * _count_members(
        len(values), n, members, DEFAULT_COUNT // len(values) if from_set else 1
    )
    bound = model.bind(values, points, sensor_pin)
    with progress_bar(f"{task.name} {sampler.name}") as bar:
        fields = model.sample(count, bound, steps, seed, method=method, batch=batch, progress=bar)
    H = bound.manifold
    worst = worst_residuals(H, fields)
    origin = {"set": split} if condition is None else {"file": str(condition)}
    origin |= {"sensors": str(sensors)} if sensors else {}
    metadata = {"conditions": len(H), "members": count // len(H)} | _describe_samples(
        model, folder, sampler.name, sampler.steps if steps is None else steps, seed, task, origin, worst
    )
    pinned_values = torch.where(H.pinned, H.fields, torch.nan).cpu()
    write_samples(path, {"fields": fields, "condition": pinned_values}, metadata, task, shares)
    _print(path, fields, metadata, as_json)


def _draw_conditions(task: Task, split: str, n: int | None, members: int | None) -> Tensor:
    """The condition of a test set; of another split as many as were asked for."""
    splits = tuple(task.sizes)
    if split not in splits:
        raise SapcError(f"unknown set {split!r}; choose one of {', '.join(splits)}")
    size = _count_conditions(split, task.condition_count(split), n, members)
    with progress_bar(f"{task.name} {split}") as bar:
        return task.dataset(split, size=size, progress=bar).fields


def _count_conditions(split: str, available: int | None, n: int | None, members: int | None) -> int:
    """How many conditions to take from a set that has so many, or as many as are wanted."""
    if n is not None and members is not None and n % members:
        raise SapcError(
            f"--n {n} is not a multiple of --members {members}; --n counts the fields of all conditions"
        )
    n_conditions = max(1, (n or DEFAULT_COUNT) // (members or 1))
    if available is None or n_conditions <= available or n is None:
        return n_conditions if available is None else min(n_conditions, available)
    has = f"{split} has {available} condition{'s' * (available > 1)}"
    if members is not None:
        raise SapcError(
            f"--n {n} with --members {members} asks for {n_conditions} conditions, and {has}; ask for --n {available * members} or less, "
            "or for more members of each"
        )
    if n % available:
        raise SapcError(
            f"{has}, of which --n {n} cannot draw equally many fields each; ask for --n {available * (n // available)} "
            "or another multiple, or say with --members how many of each"
        )
    return available


def _count_members(conditions: int, n: int | None, members: int | None, default_members: int) -> int:
    """How many fields to draw of each condition."""
    if n is not None and n % conditions:
        raise SapcError(
            f"{conditions} conditions for {n} samples; --n takes a multiple of {conditions}, or leave it out"
        )
    if n is not None and members is not None and n != conditions * members:
        raise SapcError(
            f"{conditions} conditions with --members {members} are {conditions * members} fields, not --n {n}; leave one of them out"
        )
    if members is not None:
        return members
    return n // conditions if n is not None else DEFAULT_COUNT if conditions == 1 else max(1, default_members)


def _describe_samples(
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


def _print(path: Path, fields: Tensor, metadata: dict[str, Any], as_json: bool) -> None:
    worst, run = metadata["worst_residual"], metadata["run"]
    if as_json:
        print(json.dumps({"path": str(path), "shape": list(fields.shape), **metadata}))
        return
    shape = " x ".join(map(str, fields.shape[1:]))
    origin = ", ".join(metadata["condition"].values())
    print(
        f"wrote {path}: {len(fields)} fields of {run['task']} ({metadata['method']}, {origin}, {metadata['steps']} steps, "
        f"seed {metadata['seed']}) on {shape} points"
    )
    if metadata["conditions"] > 1:
        print(f"{metadata['conditions']} conditions, {metadata['members']} fields of each in a row")
    print(f"largest residual: pinned values {worst['local']:.1e}, balance law {worst['balance']:.1e}")
