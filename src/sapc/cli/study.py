"""`sapc study`: a list of runs, from training to scores, on one machine or a cluster; and where it stands."""

from __future__ import annotations

import json
import signal
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..errors import SapcError
from ..experiments import (
    Cell,
    Engine,
    Status,
    Study,
    further_metrics,
    load_study,
    make_engine,
    run_study,
    statuses,
    time_left,
)
from .app import Stopped, app, err, out, warn
from .arguments import AsJson, Device, Poseidon

study_app = typer.Typer(
    help="A list of runs, from training to scores; a study is a Python file with a list `runs`."
)
app.add_typer(study_app, name="study")

File = Annotated[Path, typer.Argument(help="A Python file with a list `runs`, or a study's folder.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="The study's folder. \\[runs/ and the file's name]", show_default=False),
]
Tasks = Annotated[list[str] | None, typer.Option("--task", help="Only this task; may be repeated.")]
Methods = Annotated[list[str] | None, typer.Option("--method", help="Only this method; may be repeated.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="Only this seed; may be repeated.")]
MARKS = {"done": "done", "running": "runs", "failed": "FAILED", "stopped": "stopped", "waiting": "-"}
SHOWN = 6  # errors that are spelled out


@study_app.command()
def run(
    file: File,
    folder: Out = None,
    engine: Annotated[str, typer.Option(help="local, inline (this process), ray or slurm.")] = "local",
    workers: Annotated[
        int | None,
        typer.Option(
            help="Jobs at a time; a Ray cluster decides itself. \\[one per GPU, else one per core, four at most]"
        ),
    ] = None,
    device: Device = "auto",
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster, as ray://head:10001. \\[Ray is started here]")
    ] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option("--slurm", help="A parameter of submitit, as slurm_partition=gpu; may be repeated."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="With SLURM: submit and return.")] = False,
    tasks: Tasks = None,
    methods: Methods = None,
    seeds: Seeds = None,
    poseidon: Poseidon = None,
    as_json: AsJson = False,
) -> None:
    """Train what is missing, sample and score it; what is done is skipped, and what fails does not stop the rest.

    After an interruption, of whatever kind, the same command goes on where it was.

    Example: [bold]sapc study run studies/smoke.py[/bold]

    Some of it: [bold]sapc study run studies/paper.py --task heat --method sapc --seed 0[/bold]

    Elsewhere: [bold]sapc study run studies/paper.py --engine slurm --slurm slurm_partition=gpu[/bold]
    """
    study = load_study(file, folder)
    chosen = study.chosen(tasks or (), methods or (), seeds or ())
    place = make_engine(engine, device, workers, None, address, parse_parameters(slurm))
    if detach and engine != "slurm":
        raise SapcError(f"--detach leaves jobs in SLURM's queue, but the engine is {engine}")
    if not as_json:
        print(_opening(study, chosen, place), flush=True)
    with _Telling(study, chosen, quiet=as_json) as telling, _ending_well():
        try:
            found = run_study(
                study,
                place,
                chosen,
                poseidon=poseidon or None,
                wait=not detach,
                tell=telling,
                beat=telling.beat,
            )
        except KeyboardInterrupt as interrupt:
            stay = "" if place.attended else "; jobs that were submitted stay in the queue"
            raise Stopped(f"stopped; what is done is kept, and the same command goes on{stay}") from interrupt
    if as_json:
        print(json.dumps(_about(study, found, 1)))
    else:
        _print(study, found, place.workers or 1, detach)
        if detach:
            print(f"submitted; logs in {study.out / 'slurm'}; follow it with: sapc study status {study.out}")
    left = [status for status in found if status.state != "done"]
    if elsewhere := [status.cell.name for status in left if status.state != "failed" and not detach]:
        warn(
            f"{len(elsewhere)} cells are not done, as {elsewhere[0]}: stopped, or another process works on them"
        )
    if elsewhere or any(status.state == "failed" for status in left):
        raise typer.Exit(1)


@study_app.command()
def status(
    file: File,
    folder: Out = None,
    workers: Annotated[int, typer.Option(help="Jobs at a time, for the estimate of the time left.")] = 1,
    tasks: Tasks = None,
    methods: Methods = None,
    seeds: Seeds = None,
    poseidon: Poseidon = None,
    as_json: AsJson = False,
) -> None:
    """Show the grid of cells: done, running, failed (with the error), stopped or waiting, and an estimate of the time left.

    Example: [bold]sapc study status studies/smoke.py[/bold]
    """
    study = load_study(file, folder)
    chosen = study.chosen(tasks or (), methods or (), seeds or ())
    found = statuses(study, chosen, further_metrics(poseidon or None))
    running = len({s.cell.folder for s in found if s.state == "running"})
    if as_json:
        print(json.dumps(_about(study, found, max(workers, running))))
    else:
        _print(study, found, max(workers, running), True)


def _opening(study: Study, cells: Sequence[Cell], place: Engine) -> str:
    """What is about to happen."""
    trainings = len({cell.folder for cell in cells})
    how = f", {place.workers} at a time" if place.workers else ""
    sizes = "/".join(dict.fromkeys(cell.run.preset for cell in cells))
    return f"{study.name}: {len(cells)} cells in {trainings} trainings, preset {sizes}{how}; logs in {study.out / 'logs'}"


@contextmanager
def _ending_well() -> Iterator[None]:
    """SIGTERM is heard as Ctrl-C is: what runs is asked to save. Ctrl-C even where a shell has it ignored, as trainings hear it."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def parse_parameters(texts: Sequence[str] | None) -> dict[str, Any]:
    """`name=value` texts; whole numbers are numbers."""
    given: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SapcError(f"--slurm takes name=value, as slurm_partition=gpu, got {text!r}")
        given[name] = int(value) if value.lstrip("-").isdigit() else value
    return given


class _Telling:
    """What happens, while it does: a bar on a terminal, elsewhere a line per cell that is done or has failed."""

    def __init__(self, study: Study, cells: Sequence[Cell], quiet: bool) -> None:
        self.study, self.cells, self.quiet = study, cells, quiet
        self.running: dict[str, str] = {}
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self.bar = Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal)

    def __enter__(self) -> _Telling:
        self.bar.start()
        self.row = self.bar.add_task(self.study.name, total=None)
        self.ended = {s.cell.name for s in statuses(self.study, self.cells) if s.state == "done"}
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, cell: Cell, noted: Mapping[str, Any]) -> None:
        state = noted.get("state")
        self.running.pop(cell.name, None)
        self.ended.discard(cell.name)
        if state in ("training", "evaluating"):
            self.running[cell.name] = str(state)
            if state == "training" and not self.quiet and self.bar.disable:
                print(f"training for {cell.name}", flush=True)
        if state not in ("done", "failed"):
            return
        self.ended.add(cell.name)
        if state == "failed":
            warn(f"{cell.name} failed, going on with the others: {noted.get('error', '')}")
        elif not self.quiet and self.bar.disable:
            print(f"done: {cell.name}, {noted.get('seconds', 0):.1f} s of evaluation", flush=True)

    def beat(self) -> None:
        """Show where things are."""
        names = ", ".join(self._share(cell) for cell in self.cells if cell.name in self.running) or "starting"
        self.bar.update(
            self.row,
            description=textwrap.shorten(names, 60),
            total=len(self.cells),
            completed=len(self.ended),
        )

    def _share(self, cell: Cell) -> str:
        if self.bar.disable or self.running[cell.name] != "training":
            return cell.name
        entries = self.study.folder(cell).entries()
        return f"{cell.name} {100 * entries[-1]['step'] // cell.run.steps if entries else 0}%"


def _about(study: Study, found: Sequence[Status], workers: int) -> dict[str, Any]:
    seconds, unknown = time_left(found, workers)
    return {
        "study": study.name,
        "folder": str(study.out),
        "cells": [status.to_dict() for status in found],
        "counts": _counts(found),
        "seconds_left": seconds,
        "without_estimate": unknown,
    }


def _counts(found: Sequence[Status]) -> dict[str, int]:
    return {state: sum(s.state == state for s in found) for state in MARKS}


def _print(study: Study, found: Sequence[Status], workers: int, estimate: bool) -> None:
    for seed in dict.fromkeys(s.cell.run.seed for s in found):
        for labelled in dict.fromkeys(s.cell.label for s in found if s.cell.run.seed == seed):
            own = [s for s in found if (s.cell.run.seed, s.cell.label) == (seed, labelled)]
            out.print(grid_table(own, f"{study.name}, seed {seed}" + (f", {labelled}" if labelled else "")))
    for status in found:
        if status.state == "running":
            print(f"running: {status.cell.name}: {status.part}")
    failed = [s for s in found if s.state == "failed"]
    errors = list(dict.fromkeys(s.error for s in failed))
    for error in errors[:SHOWN]:
        names = ", ".join(s.cell.name for s in failed if s.error == error)
        print(textwrap.fill(f"failed: {names}: {error}", 80, break_long_words=False, break_on_hyphens=False))
    if len(errors) > SHOWN:
        print(f"and {len(errors) - SHOWN} more errors; --json lists all")
    counts = ", ".join(f"{number} {state}" for state, number in _counts(found).items() if number)
    print(f"{len(found)} cells: {counts}")
    seconds, unknown = time_left(found, workers)
    if estimate and _counts(found)["done"] + len(failed) < len(found):
        about = f"{'at least' if unknown else 'about'} {timedelta(seconds=round(seconds))} left"
        rest = f"; of {unknown} cells not all is known yet" if unknown else ""
        print(f"{about}, {workers} at a time{rest}" if seconds else "no estimate of the time left yet")
    there = f"runs and scores: {study.out}; a report: sapc report {study.out} --out report"
    print(there if study.out.exists() else f"not begun: there is no {study.out}")


def grid_table(found: Sequence[Status], title: str) -> Table:
    """Methods down, tasks across: so it fits into 80 columns."""
    tasks = list(dict.fromkeys(s.cell.run.task for s in found))
    methods = list(dict.fromkeys(s.cell.method for s in found))
    there = {(s.cell.run.task, s.cell.method): s for s in found}
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for task in tasks:
        table.add_column(SHORT.get(task, task), no_wrap=True)
    for method in methods:
        table.add_row(method, *(_mark(there.get((task, method))) for task in tasks))
    return table


SHORT = {"reaction_diffusion": "react_diff", "navier_stokes": "navier_st"}


def _mark(status: Status | None) -> str:
    if status is None:
        return ""
    share = 100 * status.step // status.cell.run.steps
    if status.state in ("running", "stopped") and share < 100:
        return f"{MARKS[status.state]} {share}%"
    return MARKS[status.state]
