"""The command line: parse, call, print. A bad call ends with exit code 2 and one sentence; `--debug` shows the traceback."""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from .files import folder_for
from .tasks import SPLITS, get_task, task_names

if TYPE_CHECKING:
    from .report.demo import Row

INTERRUPTED = 130

app = typer.Typer(
    pretty_exceptions_enable=False,
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


def _version(wanted: bool) -> bool:
    if wanted:
        print(f"sapc {__version__}")
        raise typer.Exit
    return wanted


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
    chosen.check(split, size, seed, device)
    _check_target(path, force)
    with _bar(f"{task} {split}") as bar:
        made = chosen.dataset(split, size=size, seed=seed, device=device, progress=bar)
    with folder_for(path.parent):
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
        print(f"wrote {path}: {len(made)} solutions of {task} ({split}, seed {seed}) on {shape} points")


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
    out.print(_residuals(rows))
    print(f"pictures: {folder / 'overview.png'} and one per task")


def _residuals(rows: list[Row]) -> Table:
    """The table of the demonstration; every cell is whole at 80 columns."""
    table = Table(
        title="Noise before → after projection: mean l2 norm of the residual",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("task", no_wrap=True)
    table.add_column("projection", overflow="fold")
    table.add_column("pinned\ncondition", justify="right", no_wrap=True)
    table.add_column("balance\nlaw", justify="right", no_wrap=True)
    table.add_column("ms\neach", justify="right", no_wrap=True)
    for r in rows:
        table.add_row(
            r.task,
            r.algorithm.replace("Gauss-Newton", "GN"),
            f"{r.local_before:.1e} → {r.local_after:.0e}",
            f"{r.balance_before:.1e} → {r.balance_after:.0e}",
            f"{r.milliseconds:.0f}",
        )
    return table


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
    """Refuse before the work what would fail after it; nothing is created."""
    if path.is_dir():
        raise SapcError(f"{path} is a folder; --out takes the name of the file to write")
    if os.path.exists(path) and not path.is_file():
        raise SapcError(f"{path} is not a regular file; choose another --out")
    if os.path.lexists(path) and not force:
        raise SapcError(f"{path} exists already; choose another name or add --force to replace it")
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise SapcError(f"cannot write {path}: {error.strerror}; choose another --out") from error
    nearest = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        why = "cannot be written to" if nearest.is_dir() else "is not a folder"
        raise SapcError(f"cannot write {path}: {nearest} {why}; choose another --out")


@contextmanager
def _bar(label: str) -> Iterator[Any]:
    columns = (
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        row = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(row, completed=done, total=total)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: one sentence and exit code 2 for a user's mistake."""
    global _debug
    _debug = False
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # a symbol that the terminal lacks is no reason to fail
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        sys.exit(_run(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> int:
    """Run a command and return its exit code."""
    try:
        code = app(arguments or ["--help"], prog_name="sapc", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return int(code or 0)
    except (KeyboardInterrupt, typer.Abort):
        print("sapc: interrupted; nothing half-written was left behind", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        if _debug:
            traceback.print_exc()
        print("sapc: " + " ".join(sentence.splitlines()), file=sys.stderr)
        return 2


def _sentence(error: Exception) -> str | None:
    """What to tell the user, or None for a mistake of ours."""
    if isinstance(error, SapcError):
        return str(error)
    if isinstance(error, MemoryError):
        return "the memory is exhausted; choose a smaller size or grid"
    if isinstance(error, OSError):
        return f"{error}; check the path and the room on its disk"
    if hasattr(error, "format_message"):  # a usage error, of click or of the copy that typer carries
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "sapc"
        return f"{error.format_message().rstrip('.')}; see {command} --help"
    return None


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    print("sapc: warning: " + " ".join(str(message).splitlines()), file=sys.stderr)
