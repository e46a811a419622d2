"""`sapc check`: physics and data of one's own, before a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..errors import SapcError
from ..tasks import Task
from ..tasks.check import check as check_task
from ..tasks.check import read_tasks
from .app import app, end_with_problems
from .options import AsJson, take_records
from .own_data import PHYSICS_HELP, DataFile, OwnDataOptions, ReadingOptions, SymmetryTexts


@app.command()
@take_records
def check(
    physics: Annotated[Path, typer.Argument(help=PHYSICS_HELP)],
    data: DataFile = None,
    *,
    reading: ReadingOptions,
    symmetry: SymmetryTexts = None,
    noise: Annotated[int, typer.Option(help="Draws of noise to project.")] = 16,
    as_json: AsJson = False,
) -> None:
    """Say how physics and data of your own fit: residuals of the data, and how noise is projected.

    Without data, the file defines a task with a solver, a subclass of sapc.Task.
    Then its solutions and test sets are checked.

    Example: [bold]sapc check my_physics.py --data my.h5[/bold], [bold]sapc check my_task.py[/bold].
    Exit code 1 if there is something to look into.
    """
    own_data = OwnDataOptions(data, physics, None, reading, symmetry)
    reports = [check_task(task, noise) for task in _tasks(own_data)]
    for report in reports:
        print(json.dumps(report.to_dict()) if as_json else report.text())
    if any(report.problems for report in reports):
        end_with_problems()


def _tasks(own_data: OwnDataOptions) -> list[Task]:
    """Return the task of physics and data, or without data the tasks that the file defines."""
    physics = own_data.physics
    if own_data.data is not None:
        return [own_data.task()]
    if own_data.symmetry:
        raise SapcError("--symmetry goes with --data; a class of your own declares `symmetries`")
    tasks = read_tasks(physics) if physics is not None and physics.is_file() else []
    if not tasks:
        raise SapcError(
            "sapc check compares physics with fields of your own; give their file as well: "
            f"sapc check {physics} --data FILE"
        )
    return tasks
