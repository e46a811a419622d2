"""`sapc sample`: fields from a trained model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from ..constraints import Pin
from ..data import read_sensors
from ..errors import SapcError, check_int
from ..models.sampling import merge_sensors, worst_residuals
from ..tasks import Task
from ..training.run_folder import environment
from .app import app
from .options import (
    AsJson,
    Batch,
    Force,
    GridText,
    RunPath,
    SamplerName,
    SamplingSteps,
    SourceSeed,
    StepperName,
    check_target,
    parse_grid,
    take_records,
)
from .own_data import ModelOptions
from .progress import progress_bar
from .sample_files import check_suffix, parse_quantiles, read_condition, write_samples

# Fields to draw where the command line does not say how many.
DEFAULT_COUNT = 64


@dataclass(frozen=True)
class ConditionOptions:
    """Which conditions are sampled, and how many fields of each."""

    n: Annotated[
        int | None,
        typer.Option(
            "--n",
            help="Fields to draw, over all conditions together. "
            "\\[about 64, or one per condition of the file]",
        ),
    ] = None
    members: Annotated[
        int | None,
        typer.Option(
            help="Fields of each condition: --n 64 --members 16 draws 16 fields of each of 4 conditions. "
            "\\[as --n divides]"
        ),
    ] = None
    split: Annotated[
        str | None,
        typer.Option(
            "--set",
            help="Take the condition from a test set, which has one, or several from train or validation. "
            "\\[test0; of your own data validation]",
        ),
    ] = None
    condition: Annotated[
        Path | None,
        typer.Option(
            help="Take it from a dataset, or an npz or HDF5 file with an array `condition` of one field "
            "or several; of your own data from a file like them. Only pinned values count: "
            "the others may be NaN, and the file may hold them alone, as an initial frame."
        ),
    ] = None
    sensors: Annotated[
        Path | None,
        typer.Option(
            help="Also pin what sensors measured: a CSV file with a column per axis, `value`, and `channel`, "
            "`sample` if there are several."
        ),
    ] = None

    def check(self) -> None:
        """Refuse two sources of conditions."""
        if self.split is not None and self.condition is not None:
            raise SapcError("--set and --condition both name a condition; give one of them")

    def origin(self, task: Task) -> dict[str, str]:
        """Return where the conditions come from."""
        source = {"file": str(self.condition)} if self.condition else {"set": self.split or task.test_sets[0]}
        return source | ({"sensors": str(self.sensors)} if self.sensors else {})

    def read(self, task: Task) -> tuple[Tensor, Pin | None, int]:
        """Read or draw the conditions.

        Args:
            task: The task that is sampled.

        Returns:
            The conditions, what sensors pin besides, and how many fields to draw in all.
        """
        for number, noun in ((self.n, "samples"), (self.members, "members")):
            if number is not None:
                check_int(number, f"number of {noun}", 1)
        pin: Pin | None = None
        values = read_condition(self.condition, task) if self.condition else self._draw(task)
        k = len(values)
        if self.sensors is not None:
            values, pin = merge_sensors(values, read_sensors(self.sensors, task.grid), task)
        # Of a file, or of sensors that make several conditions of one, one field each is drawn.
        is_drawn = self.condition is None and len(values) == k
        return values, pin, len(values) * self._count_members(len(values), is_drawn)

    def _draw(self, task: Task) -> Tensor:
        """Take the condition of a test set, or of another split as many as are needed."""
        split, splits = self.split or task.test_sets[0], tuple(task.sizes)
        if split not in splits:
            raise SapcError(f"unknown set {split!r}; choose one of {', '.join(splits)}")
        size = self._count_conditions(split, task.condition_count(split))
        with progress_bar(f"{task.name} {split}") as bar:
            return task.dataset(split, size=size, progress=bar).fields

    def _count_conditions(self, split: str, available: int | None) -> int:
        """Return how many conditions to take from a set, which has `available`, or any number if None."""
        n, members = self.n, self.members
        if n is not None and members is not None and n % members:
            raise SapcError(
                f"--n {n} is not a multiple of --members {members}; --n counts the fields of all conditions"
            )
        count = max(1, (n or DEFAULT_COUNT) // (members or 1))
        if available is None:
            return count
        if count <= available or n is None:
            return min(count, available)
        supply = f"{split} has {available} condition{'s' * (available > 1)}"
        if members is not None:
            raise SapcError(
                f"--n {n} with --members {members} asks for {count} conditions, and {supply}; "
                f"ask for --n {available * members} or less, or for more members of each"
            )
        if n % available:
            raise SapcError(
                f"{supply}, of which --n {n} cannot draw equally many fields each; "
                f"ask for --n {available * (n // available)} or another multiple, "
                "or say with --members how many of each"
            )
        return available

    def _count_members(self, conditions: int, is_drawn: bool) -> int:
        """Return how many fields to draw of each condition."""
        n, members = self.n, self.members
        if n is not None and n % conditions:
            raise SapcError(
                f"{conditions} conditions for {n} samples; "
                f"--n takes a multiple of {conditions}, or leave it out"
            )
        if n is not None and members is not None and n != conditions * members:
            raise SapcError(
                f"{conditions} conditions with --members {members} are {conditions * members} fields, "
                f"not --n {n}; leave one of them out"
            )
        if members is not None:
            return members
        if n is not None:
            return n // conditions
        return max(1, DEFAULT_COUNT // conditions) if is_drawn or conditions == 1 else 1


@dataclass(frozen=True)
class SamplingOptions:
    """How samples are drawn."""

    steps: SamplingSteps = None
    sampler: StepperName = None
    seed: SourceSeed = 0
    grid: GridText = None
    method: SamplerName = None


@app.command()
@take_records
def sample(
    folder: RunPath,
    *,
    conditions: ConditionOptions,
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
    sampling: SamplingOptions,
    model_options: ModelOptions,
    batch: Batch = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Draw fields from a trained model that satisfy a condition, and write them with where they came from.

    Example: [bold]sapc sample runs/heat-sapc --n 64 --set test1 --out heat.npz[/bold]; of your own data
    [bold]sapc sample runs/my-sapc-small --physics my_physics.py --condition new.nc --out samples.nc[/bold]
    """
    check_suffix(path)
    check_target(path, force)
    shares = parse_quantiles(quantiles, path)
    conditions.check()
    model = model_options.load(folder)
    points = parse_grid(sampling.grid)
    task, method = model.task_at(points), model.sampling_method(sampling.method)
    values, sensor_pin, count = conditions.read(task)
    condition = model.bind(values, points, sensor_pin)
    sampler, steps = model.discretize(method, sampling.sampler, sampling.steps)
    with progress_bar(f"{task.name} {method.name}") as bar:
        fields = model.sample(
            count, condition, steps, sampling.seed,
            sampler=sampler, method=method.name, batch=batch, progress=bar,
        )  # fmt: skip
    H = condition.manifold
    metadata = {
        "conditions": len(H),
        "members": count // len(H),
        "run": model.run.to_dict(),
        "folder": str(folder),
        "trained": model.step,
        "method": method.name,
        "sampler": sampler.name,
        "steps": steps,
        "seed": sampling.seed,
        "grid": task.grid.to_dict(),
        "condition": conditions.origin(task),
        "worst_residual": worst_residuals(H, fields),
        "environment": environment(),
    }
    pinned_values = torch.where(H.pinned, H.fields, torch.nan).cpu()
    write_samples(path, {"fields": fields, "condition": pinned_values}, metadata, task, shares)
    _print(path, fields, metadata, task.law_kind, as_json)


def _print(path: Path, fields: Tensor, metadata: dict[str, Any], law: str, as_json: bool) -> None:
    worst, run = metadata["worst_residual"], metadata["run"]
    if as_json:
        print(json.dumps({"path": str(path), "shape": list(fields.shape), **metadata}))
        return
    shape = " x ".join(map(str, fields.shape[1:]))
    origin = ", ".join(metadata["condition"].values())
    print(
        f"wrote {path}: {len(fields)} fields of {run['task']} ({metadata['method']}, {origin}, "
        f"{metadata['steps']} {metadata['sampler']} steps, seed {metadata['seed']}) on {shape} points"
    )
    if metadata["conditions"] > 1:
        members = metadata["members"]
        fields_of_each = "one field" if members == 1 else f"{members} fields"
        print(f"{metadata['conditions']} conditions, {fields_of_each} of each in a row")
    print(f"largest residual: pinned values {worst['local']:.1e}, {law} {worst['balance']:.1e}")
