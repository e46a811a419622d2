"""`sapc study`: a list of runs, from training to scores, on one machine or a cluster; and its status."""

from __future__ import annotations

import json
import signal
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..errors import SapcError
from ..experiments import (
    Cell,
    Engine,
    Status,
    Study,
    further_metrics,
    load_study,
    make_engine,
    remaining_time,
    run_study,
    statuses,
)
from ..experiments.report.format import Table
from .app import app, end_with_problems, err, interrupt_advice, print_table, warn
from .options import AsJson, Device, Poseidon, split_pairs, take_records

study_app = typer.Typer(
    help="A list of runs, from training to scores; a study is a Python file with a list `runs`."
)
app.add_typer(study_app, name="study")

File = Annotated[Path, typer.Argument(help="A Python file with a list `runs`, or a study's folder.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="The study's folder. \\[runs/ and the file's name]", show_default=False),
]


@dataclass(frozen=True)
class SelectionOptions:
    """Which cells of a study a command is about; all of them unless given."""

    tasks: Annotated[list[str] | None, typer.Option("--task", help="Only this task; may be repeated.")] = None
    methods: Annotated[
        list[str] | None, typer.Option("--method", help="Only this method; may be repeated.")
    ] = None
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="Only this seed; may be repeated.")] = None

    def cells(self, study: Study) -> list[Cell]:
        """Return those cells of a study."""
        return study.select(self.tasks or (), self.methods or (), self.seeds or ())


@dataclass(frozen=True)
class EngineOptions:
    """Where the cells of a study are worked on."""

    engine: Annotated[str, typer.Option(help="local, inline (this process), ray or slurm.")] = "local"
    workers: Annotated[
        int | None,
        typer.Option(
            help="Jobs at a time; a Ray cluster decides itself. "
            "\\[one per GPU, else one per core, four at most]"
        ),
    ] = None
    device: Device = "auto"
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster, as ray://head:10001. \\[Ray is started here]")
    ] = None
    slurm: Annotated[
        list[str] | None,
        typer.Option("--slurm", help="A parameter of submitit, as slurm_partition=gpu; may be repeated."),
    ] = None
    detach: Annotated[bool, typer.Option("--detach", help="With SLURM: submit and return.")] = False

    def make(self) -> Engine:
        """Make the engine."""
        parameters = parse_parameters(self.slurm)
        engine = make_engine(self.engine, self.device, self.workers, None, self.address, parameters)
        if self.detach and self.engine != "slurm":
            raise SapcError(f"--detach leaves jobs in SLURM's queue, but the engine is {self.engine}")
        return engine


MARKS = {"done": "done", "running": "runs", "failed": "FAILED", "stopped": "stopped", "waiting": "-"}
SHORT = {"reaction_diffusion": "react_diff", "navier_stokes": "navier_st"}
# Errors that are spelled out.
MAX_ERRORS = 6


@study_app.command()
@take_records
def run(
    file: File,
    folder: Out = None,
    *,
    engine_options: EngineOptions,
    selection: SelectionOptions,
    poseidon: Poseidon = None,
    as_json: AsJson = False,
) -> None:
    """Train what is missing, sample and score it.

    What is done is skipped, and what fails does not stop the rest.
    After an interruption, of whatever kind, the same command goes on where it was.

    Example: [bold]sapc study run studies/smoke.py[/bold]

    Some of it: [bold]sapc study run studies/paper.py --task heat --method sapc --seed 0[/bold]

    Elsewhere: [bold]sapc study run studies/paper.py --engine slurm --slurm slurm_partition=gpu[/bold]
    """
    study = load_study(file, folder)
    cells = selection.cells(study)
    engine, detach = engine_options.make(), engine_options.detach
    if not as_json:
        print(_describe_start(study, cells, engine), flush=True)
    stay = "" if engine.is_attended else "; jobs that were submitted stay in the queue"
    advice = f"stopped; what is done is kept, and the same command goes on{stay}"
    with _StudyBar(study, cells, quiet=as_json) as bar, interrupt_advice(advice), _signals_as_interrupts():
        results = run_study(
            study,
            engine,
            cells,
            poseidon=poseidon or None,
            wait=not detach,
            on_change=bar.show_state,
            on_poll=bar.refresh,
        )
    _print(study, results, engine.workers or 1, detach, as_json)
    if detach and not as_json:
        print(f"submitted; logs in {study.out / 'slurm'}; follow it with: sapc study status {study.out}")
    open_cells = [s.cell.name for s in results if s.state not in ("done", "failed") and not detach]
    if open_cells:
        warn(
            f"{len(open_cells)} cells are not done, as {open_cells[0]}: "
            "stopped, or another process works on them"
        )
    if open_cells or any(s.state == "failed" for s in results):
        end_with_problems()


@study_app.command()
@take_records
def status(
    file: File,
    folder: Out = None,
    workers: Annotated[int, typer.Option(help="Jobs at a time, for the estimate of the time left.")] = 1,
    *,
    selection: SelectionOptions,
    poseidon: Poseidon = None,
    as_json: AsJson = False,
) -> None:
    """Show the grid of cells: done, running, failed (with the error), stopped or waiting, and the time left.

    Example: [bold]sapc study status studies/smoke.py[/bold]
    """
    study = load_study(file, folder)
    cells = selection.cells(study)
    results = statuses(study, cells, further_metrics(poseidon or None))
    n_jobs = len({s.cell.folder for s in results if s.state == "running"})
    _print(study, results, max(workers, n_jobs), True, as_json)


def _describe_start(study: Study, cells: Sequence[Cell], engine: Engine) -> str:
    """Describe what is about to happen."""
    trainings = len({cell.folder for cell in cells})
    rate = f", {engine.workers} at a time" if engine.workers else ""
    sizes = "/".join(dict.fromkeys(cell.run.preset for cell in cells))
    return (
        f"{study.name}: {len(cells)} cells in {trainings} trainings, preset {sizes}{rate}; "
        f"logs in {study.out / 'logs'}"
    )


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGTERM as for Ctrl-C, so that what runs is asked to save.

    Ctrl-C is heard even where a shell lets it be ignored, as trainings hear it.
    """
    before = {n: signal.signal(n, signal.default_int_handler) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def parse_parameters(texts: list[str] | None) -> dict[str, Any]:
    """Read `name=value` texts; whole numbers are numbers."""
    pairs = split_pairs(texts, "--slurm", "slurm_partition=gpu")
    return {name: int(value) if value.lstrip("-").isdigit() else value for name, value in pairs}


class _StudyBar:
    """Progress of a study: a bar on a terminal, elsewhere a line per cell that is done or has failed."""

    def __init__(self, study: Study, cells: Sequence[Cell], quiet: bool) -> None:
        self.study, self.cells, self.quiet = study, cells, quiet
        self.phases: dict[str, str] = {}
        columns = (BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
        text = TextColumn("{task.description}", markup=False)
        self.bar = Progress(text, *columns, console=err, transient=True, disable=quiet or not err.is_terminal)

    def __enter__(self) -> _StudyBar:
        self.bar.start()
        self.row = self.bar.add_task(self.study.name, total=None)
        self.finished_names = {s.cell.name for s in statuses(self.study, self.cells) if s.state == "done"}
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show_state(self, cell: Cell, record: Mapping[str, Any]) -> None:
        """Record and print a new state of a cell."""
        state, is_silent = record["state"], self.quiet or not self.bar.disable
        self.phases.pop(cell.name, None)
        self.finished_names.discard(cell.name)
        if state in ("training", "evaluating"):
            self.phases[cell.name] = state
        if state in ("done", "failed"):
            self.finished_names.add(cell.name)
        if state == "failed":
            warn(f"{cell.name} failed, going on with the others: {record.get('error', '')}")
        elif state == "training" and not is_silent:
            print(f"training for {cell.name}", flush=True)
        elif state == "done" and not is_silent:
            print(f"done: {cell.name}, {record.get('seconds', 0):.1f} s of evaluation", flush=True)
        self.refresh()

    def refresh(self) -> None:
        """Show the cells at work and how many are done."""
        if self.bar.disable:
            return
        names = ", ".join(self._share(cell) for cell in self.cells if cell.name in self.phases) or "starting"
        text, total = textwrap.shorten(names, 60), len(self.cells)
        self.bar.update(self.row, description=text, total=total, completed=len(self.finished_names))

    def _share(self, cell: Cell) -> str:
        if self.phases[cell.name] != "training":
            return cell.name
        entries = self.study.folder(cell).entries()
        return f"{cell.name} {100 * entries[-1]['step'] // cell.run.steps if entries else 0}%"


def _print(study: Study, results: Sequence[Status], workers: int, estimate: bool, as_json: bool) -> None:
    """Print the states of cells, as tables or as JSON."""
    counts = {state: sum(s.state == state for s in results) for state in MARKS}
    seconds, unknown = remaining_time(results, 1 if as_json and not estimate else workers)
    if as_json:
        about = {"study": study.name, "folder": str(study.out), "cells": [s.to_dict() for s in results]}
        print(json.dumps(about | {"counts": counts, "seconds_left": seconds, "without_estimate": unknown}))
        return
    for seed, label in dict.fromkeys((s.cell.run.seed, s.cell.label) for s in results):
        group = [s for s in results if (s.cell.run.seed, s.cell.label) == (seed, label)]
        print_table(grid_table(group, f"{study.name}, seed {seed}" + (f", {label}" if label else "")))
    for status in results:
        if status.state == "running":
            print(f"running: {status.cell.name}: {status.part}")
    _print_errors([s for s in results if s.state == "failed"])
    print(f"{len(results)} cells: " + ", ".join(f"{n} {state}" for state, n in counts.items() if n))
    if estimate and counts["done"] + counts["failed"] < len(results):
        estimate_text = f"{'at least' if unknown else 'about'} {timedelta(seconds=round(seconds))} left"
        note = f"; of {unknown} cells not all is known yet" if unknown else ""
        print(
            f"{estimate_text}, {workers} at a time{note}" if seconds else "no estimate of the time left yet"
        )
    location = f"runs and scores: {study.out}; a report: sapc report {study.out} --out report"
    print(location if study.out.exists() else f"not begun: there is no {study.out}")


def _print_errors(failures: Sequence[Status]) -> None:
    errors = list(dict.fromkeys(s.error for s in failures))
    for error in errors[:MAX_ERRORS]:
        names = ", ".join(s.cell.name for s in failures if s.error == error)
        print(textwrap.fill(f"failed: {names}: {error}", 80, break_long_words=False, break_on_hyphens=False))
    if len(errors) > MAX_ERRORS:
        print(f"and {len(errors) - MAX_ERRORS} more errors; --json lists all")


def grid_table(results: Sequence[Status], title: str) -> Table:
    """Return the states of cells, methods down and tasks across, so that it fits into 80 columns."""
    tasks = list(dict.fromkeys(s.cell.run.task for s in results))
    methods = list(dict.fromkeys(s.cell.method for s in results))
    marks = {(s.cell.run.task, s.cell.method): _mark(s) for s in results}
    rows = [(method, *(marks.get((task, method), "") for task in tasks)) for method in methods]
    columns = ("method", *(SHORT.get(task, task) for task in tasks))
    return Table(title, columns, rows, heads=len(columns))


def _mark(status: Status) -> str:
    share = 100 * status.step // status.cell.run.steps
    is_part = status.state in ("running", "stopped") and share < 100
    return f"{MARKS[status.state]} {share}%" if is_part else MARKS[status.state]
