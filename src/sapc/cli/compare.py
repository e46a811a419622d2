"""`sapc compare`: methods side by side on one task, from training to a table."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..errors import SapcError
from ..experiments import Inline
from ..experiments.comparison import Comparison, notes, tables
from ..tasks import register_task
from .app import app, end_with_problems, interrupt_advice, print_table
from .options import (
    AsJson,
    Conditions,
    Device,
    DistanceOptions,
    FloorRepeats,
    Members,
    PresetName,
    Reference,
    default_preset,
    take_records,
)
from .own_data import OwnDataOptions
from .progress import CellBars

OptionalTaskName = Annotated[
    str | None, typer.Argument(help="A task name; `sapc tasks` lists them.", metavar="TASK")
]
RESUME_ADVICE = "stopped; what is trained and scored is kept, and the same command continues from there"


@dataclass(frozen=True)
class ComparisonOptions:
    """What is sampled and compared; each field is one of `Comparison`."""

    sets: Annotated[
        list[str] | None, typer.Option("--set", help="A test set; may be repeated. \\[test1]")
    ] = None
    samples: Annotated[
        int | None, typer.Option(help="Fields per set and method. \\[256, navier_stokes 32]")
    ] = None
    coupled_samples: Annotated[
        int | None,
        typer.Option("--dflow-samples", help="The same of D-Flow, which takes long. \\[at most 32]"),
    ] = None
    reference: Reference = 1225
    steps: Annotated[
        int | None,
        typer.Option(help="Sampling steps, of Euler as published. \\[each method's own number, mostly 100]"),
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of data, weights and noise.")] = 0
    floor_repeats: FloorRepeats = 3
    conditions: Conditions = None
    members: Members = None


@app.command()
@take_records
def compare(
    task: OptionalTaskName = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="A method; may be repeated. \\[the eleven of the paper, and your own]"),
    ] = None,
    preset: PresetName = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for run folders and tables.")] = Path(
        "runs/compare"
    ),
    *,
    options: ComparisonOptions,
    own_data: OwnDataOptions,
    device: Device = "auto",
    distances: DistanceOptions,
    as_json: AsJson = False,
) -> None:
    """Train what is missing, sample test sets with every method, and print their scores side by side.

    What is trained and scored already is used; after an interruption the same command continues.

    Example: [bold]sapc compare heat --preset small --out runs/compare[/bold], or
    [bold]sapc compare heat --method sapc --method eci --method ffm[/bold]

    With a method of your own: [bold]sapc --plugin my_method.py compare heat[/bold];
    on your own data: [bold]sapc compare --data my.h5 --physics my_physics.py --method sapc --method ffm[/bold]
    """
    own_data.check()
    has_data = own_data.data is not None
    comparison = Comparison(
        task=_find_task(task, own_data),
        methods=methods or (),
        preset=preset or ("small" if has_data else default_preset(device)),
        out=folder,
        device=device,
        poseidon=distances.poseidon or None,
        frd=distances.frd,
        **{**vars(options), "sets": options.sets or ("test1",)},
    )
    comparison.check()
    study, cells = comparison.study, comparison.cells
    for path in dict.fromkeys(str(f.path) for f in map(study.folder, cells) if f.is_trained and not as_json):
        print(f"already trained: {path}", flush=True)
    with CellBars(study, len(cells) == 1, quiet=as_json) as bars, interrupt_advice(RESUME_ADVICE):
        result = comparison.compare(Inline(device, bars.show_progress), bars.show_state)
    if as_json:
        print(json.dumps(result))
    else:
        if earlier_scores := [name for name in result["methods"] if name not in bars.methods]:
            print(textwrap.fill(f"already scored: {', '.join(earlier_scores)}", 80))
        for table in tables(result):
            print_table(table)
        for note in (
            *notes(result),
            f"files: {', '.join(result['files'])}",
            f"runs and scores: {comparison.out}",
        ):
            print(textwrap.fill(note, 80, break_long_words=False, break_on_hyphens=False))
    if result["failed"]:
        end_with_problems()


def _find_task(task: str | None, own_data: OwnDataOptions) -> str:
    """Return the name of a task of this package, or make a task of own data known by its name."""
    if (task is None) == (own_data.data is None):
        raise SapcError(
            "sapc compare needs a task, as in `sapc compare heat`, or --data FILE --physics FILE, and not both"
        )
    return task if task is not None else str(register_task(own_data.task()).name)
