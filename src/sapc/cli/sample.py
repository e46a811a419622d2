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
from ..models.sampling import with_sensors, worst_residuals
from ..tasks import Task
from ..training.run_folder import environment
from .app import app
from .options import AsJson, Device, GridText, RunPath, SamplerName, check_target, parse_grid
from .own_data import DataFile, PhysicsFile, SampleAxis, Steady, TimeAxis, said
from .progress import bar_for
from .sample_files import check_suffix, parse_quantiles, read_condition, write_samples

USUAL = 64  # fields, where nobody says how many


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
    reading = said(time=time, samples=samples_dim, steady=steady)
    model = load(folder, device, physics=physics, data=data, reading=reading)
    points = parse_grid(grid)
    task, sampler = model.on(points), model.sampler(method)
    split = split or task.test_sets[0]
    n, members = (
        None if x is None else check_int(x, f"number of {of}", 1)
        for x, of in ((n, "samples"), (members, "members"))
    )
    values = read_condition(condition, task) if condition else _of_set(task, split, n, members)
    also, taken = None, len(values)
    if sensors is not None:
        values, also = with_sensors(values, read_sensors(sensors, task.grid), task)
    from_set = condition is None and len(values) == taken
    count = len(values) * _members(len(values), n, members, USUAL // len(values) if from_set else 1)
    given = model.bind(values, points, also)
    with bar_for(f"{task.name} {sampler.name}") as bar:
        fields = model.sample(count, given, steps, seed, method=method, batch=batch, progress=bar)
    H = given.manifold
    worst = worst_residuals(H, fields)
    origin = {"set": split} if condition is None else {"file": str(condition)}
    origin |= {"sensors": str(sensors)} if sensors else {}
    about = {"conditions": len(H), "members": count // len(H)} | _about(
        model, folder, sampler.name, sampler.steps if steps is None else steps, seed, task, origin, worst
    )
    kept = torch.where(H.pinned, H.fields, torch.nan).cpu()
    write_samples(path, {"fields": fields, "condition": kept}, about, task, shares)
    _print(path, fields, about, as_json)


def _of_set(task: Task, split: str, n: int | None, members: int | None) -> Tensor:
    """The condition of a test set; of another split as many as were asked for."""
    known = tuple(task.sizes)
    if split not in known:
        raise SapcError(f"unknown set {split!r}; choose one of {', '.join(known)}")
    size = _conditions(split, task.condition_count(split), n, members)
    with bar_for(f"{task.name} {split}") as bar:
        return task.dataset(split, size=size, progress=bar).fields


def _conditions(split: str, there: int | None, n: int | None, members: int | None) -> int:
    """How many conditions to take from a set that has so many, or as many as are wanted."""
    if n is not None and members is not None and n % members:
        raise SapcError(
            f"--n {n} is not a multiple of --members {members}; --n counts the fields of all conditions"
        )
    wanted = max(1, (n or USUAL) // (members or 1))
    if there is None or wanted <= there or n is None:
        return wanted if there is None else min(wanted, there)
    has = f"{split} has {there} condition{'s' * (there > 1)}"
    if members is not None:
        raise SapcError(
            f"--n {n} with --members {members} asks for {wanted} conditions, and {has}; ask for --n {there * members} or less, "
            "or for more members of each"
        )
    if n % there:
        raise SapcError(
            f"{has}, of which --n {n} cannot draw equally many fields each; ask for --n {there * (n // there)} "
            "or another multiple, or say with --members how many of each"
        )
    return there


def _members(conditions: int, n: int | None, members: int | None, usual: int) -> int:
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
    return n // conditions if n is not None else USUAL if conditions == 1 else max(1, usual)


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
    if about["conditions"] > 1:
        print(f"{about['conditions']} conditions, {about['members']} fields of each in a row")
    print(f"largest residual: pinned values {worst['local']:.1e}, balance law {worst['balance']:.1e}")
