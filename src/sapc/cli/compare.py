"""`sapc compare`: methods side by side on one task, from training to a table."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from ..experiments import Inline
from ..experiments.comparison import Comparison, notes, tables
from ..training.distributed import kind_of
from .app import app, interrupt_advice, print_table
from .options import AsJson, Device, Frd, Poseidon
from .progress import CellBars

RESUME_ADVICE = "stopped; what is trained and scored is kept, and the same command continues from there"


@app.command()
def compare(
    task: Annotated[str, typer.Argument(help="A task name; `sapc tasks` lists them.")],
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="A method; may be repeated. \\[the eleven of the paper, and your own]"),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="published, full, compact, small or tiny. \\[published on a GPU, small without]"),
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for run folders and tables.")] = Path(
        "runs/compare"
    ),
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="A test set; may be repeated. \\[test1]")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Fields per set and method. \\[256, navier_stokes 32]")
    ] = None,
    coupled_samples: Annotated[
        int | None,
        typer.Option("--dflow-samples", help="The same of D-Flow, which takes long. \\[at most 32]"),
    ] = None,
    reference: Annotated[int, typer.Option(help="Solutions to compare with.")] = 1225,
    steps: Annotated[
        int | None, typer.Option(help="Sampling steps. \\[each method's own number, mostly 100]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of data, weights and noise.")] = 0,
    repeats: Annotated[
        int, typer.Option("--floor-repeats", help="Pairs of draws for the sampling floor.")
    ] = 3,
    device: Device = "auto",
    poseidon: Poseidon = None,
    frd: Frd = False,
    as_json: AsJson = False,
) -> None:
    """Train what is missing, sample test sets with every method, and print their scores side by side.

    What is trained and scored already is used; after an interruption the same command continues.

    Example: [bold]sapc compare heat --preset small --out runs/compare[/bold], or
    [bold]sapc compare heat --method sapc --method eci --method ffm[/bold]

    With a method of your own: [bold]sapc --plugin my_method.py compare heat[/bold]
    """
    comparison = Comparison(
        task=task,
        methods=methods or (),
        preset=preset or ("published" if kind_of(device) == "cuda" else "small"),
        out=folder,
        sets=sets or ("test1",),
        samples=samples,
        coupled_samples=coupled_samples,
        reference=reference,
        steps=steps,
        seed=seed,
        floor_repeats=repeats,
        device=device,
        poseidon=poseidon or None,
        frd=frd,
    )
    comparison.check()
    study, cells = comparison.study, comparison.cells
    for path in dict.fromkeys(str(f.path) for f in map(study.folder, cells) if f.trained and not as_json):
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
        raise typer.Exit(1)
