"""The command line: parse, call, print. A bad call ends with exit code 2 and one sentence; `--debug` shows the traceback."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from . import __version__
from .errors import SapcError
from .tasks import SPLITS, get_task, task_names

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Flow matching over PDE solutions, with conditions and conservation laws satisfied exactly.\n\n"
    "Start with: [bold]sapc demo[/bold], then [bold]sapc tasks[/bold].",
)
out = Console()
err = Console(stderr=True)
_debug = False

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"sapc {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options of every command."""
    global _debug
    _debug = debug


@app.command()
def tasks(as_json: AsJson = False) -> None:
    """List the tasks: equation, grid, what is pinned, the balance law, parameters.

    Example: [bold]sapc tasks --json | python -m json.tool[/bold]
    """
    rows = [get_task(name) for name in task_names()]
    if as_json:
        described = [
            {
                "name": t.name,
                "title": t.title,
                "equation": t.equation,
                "grid": t.grid.to_dict(),
                "pinned": t.pinned,
                "law": t.law,
                "parameters": dict(t.parameters),
                "sizes": t.sizes,
                "solver": t.solver,
            }
            for t in rows
        ]
        print(json.dumps(described, ensure_ascii=False))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for column in ("task", "", ""):
        table.add_column(column, overflow="fold")
    for t in rows:
        grid = " x ".join(map(str, t.grid.shape)) + f" ({', '.join(t.grid.names)})"
        parameters = "\n".join(t.parameters.values())
        labels = (
            ("equation", t.equation),
            ("grid", grid),
            ("pin", t.pinned),
            ("balance law", t.law),
            ("parameters", parameters),
        )
        for i, (label, text) in enumerate(labels):
            table.add_row(
                "" if i else f"[bold]{t.name}[/bold]", label, escape(text), end_section=label == "parameters"
            )
    out.print(table)


@app.command()
def data(
    task: Annotated[str, typer.Argument(help="A task name; `sapc tasks` lists them.")],
    path: Annotated[Path, typer.Option("--out", help="The HDF5 file to write.")],
    split: Annotated[str, typer.Option(help=f"One of {', '.join(SPLITS)}.")] = "train",
    size: Annotated[
        int | None, typer.Option(help="Number of solutions; the published size unless given.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split's random stream.")] = 0,
    grid: Annotated[
        str | None, typer.Option(help="Points per axis, as 64x50; the published grid unless given.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="A task option, as initial_range=0,1. May be repeated.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to solve: cpu or cuda.")] = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Solve a split of a task and write it as HDF5, with grid, parameters and provenance.

    Example: [bold]sapc data burgers --split test0 --size 100 --out burgers-test0.h5[/bold]
    """
    chosen = get_task(task, grid=_grid(grid), **_options(option or []))
    _check_target(path, force)
    with _bar(f"{task} {split}") as bar:
        made = chosen.dataset(split, size=size, seed=seed, device=device, progress=bar)
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
        out.print(
            f"wrote {path}: {len(made)} solutions of {task} ({split}, seed {seed}) on {shape} points",
            highlight=False,
            soft_wrap=True,
        )


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the pictures.")] = Path("demo"),
    size: Annotated[int, typer.Option(help="Solutions and noise draws per task.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of data and noise.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Solve a few of every task, put noise on their manifolds, print the residuals before and after, draw a picture each.

    Example: [bold]sapc demo --out pictures[/bold]
    """
    from .report.demo import run_demo

    with err.status("starting") as status:
        rows = list(
            run_demo(folder, size, seed, lambda name: status.update(f"{name}: solving, projecting, drawing"))
        )
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    table = Table(
        title="Noise before → after projection: mean l2 norm of the residual",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for column in ("task", "projection", "pin", "balance law", "ms each"):
        table.add_column(
            column, justify="left" if column in ("task", "projection") else "right", no_wrap=True
        )
    for r in rows:
        pin, law = (
            f"{r.local_before:.1e} → {r.local_after:.0e}",
            f"{r.balance_before:.1e} → {r.balance_after:.0e}",
        )
        table.add_row(r.task, r.algorithm.replace("Gauss-Newton", "GN"), pin, law, f"{r.milliseconds:.0f}")
    out.print(table)
    out.print(f"pictures: {folder}/overview.png and one per task", highlight=False, soft_wrap=True)


def _grid(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(n) for n in text.lower().replace("×", "x").split("x"))
    except ValueError as error:
        raise SapcError(f"--grid takes whole numbers joined by x, as 64x50, got {text!r}") from error


def _options(texts: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SapcError(f"--option takes name=value, as initial_range=0,1, got {text!r}")
        try:
            numbers = tuple(float(part) for part in value.split(","))
        except ValueError as error:
            raise SapcError(
                f"the value of --option {name} must be a number or numbers joined by commas, got {value!r}"
            ) from error
        options[name] = numbers if len(numbers) > 1 else numbers[0]
    return options


def _check_target(path: Path, force: bool) -> None:
    """Refuse before the work what would fail after it."""
    if path.is_dir():
        raise SapcError(f"{path} is a folder; --out takes the name of the file to write")
    if path.exists() and not force:
        raise SapcError(f"{path} exists already; choose another name or add --force to replace it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.with_name(f".{path.name}.probe")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise SapcError(f"cannot write to {path.parent}: {error.strerror}; choose another --out") from error


@contextmanager
def _bar(label: str) -> Iterator[Any]:
    columns = (
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        row = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(row, completed=done, total=total)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: one sentence and exit code 2 for a user's mistake."""
    try:
        app(arguments, prog_name="sapc")
    except SapcError as error:
        if _debug:
            raise
        print(f"sapc: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("sapc: interrupted; nothing half-written was left behind", file=sys.stderr)
        sys.exit(130)
