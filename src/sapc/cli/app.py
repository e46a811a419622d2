"""The application: its options, its consoles, and the exit code of a command."""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import rich.table
import typer
from rich import box
from rich.console import Console

from .. import __version__
from .._startup import EXIT_INTERRUPTED, ignore_interrupts, restore_interrupts
from ..errors import SapcError
from ..methods import load_plugin
from .messages import as_options

if TYPE_CHECKING:
    from ..experiments.report.format import Table

app = typer.Typer(
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Flow matching over PDE solutions, with conditions and conservation laws satisfied exactly.\n\n"
    "Start with: [bold]sapc demo[/bold], then [bold]sapc tasks[/bold] and [bold]sapc train heat[/bold].",
)
out = Console()
err = Console(stderr=True)
_debug = False


class ExplainedInterrupt(Exception):
    """An interrupt with a message for the user."""


@contextmanager
def interrupt_advice(advice: str = "") -> Iterator[None]:
    """Explain an interrupt of the block: the command ends with its message, or else with this advice.

    Args:
        advice: What to do now; without it, an interrupt that has no message is not explained.

    Raises:
        ExplainedInterrupt: The block was interrupted, and there is something to say.
        KeyboardInterrupt: There is nothing to say.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if text := str(interrupt) or advice:
            raise ExplainedInterrupt(text) from interrupt
        raise


def _print_version(is_requested: bool) -> bool:
    if is_requested:
        print(f"sapc {__version__}")
        raise typer.Exit
    return is_requested


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    plugins: Annotated[
        list[Path] | None,
        typer.Option(
            "--plugin", metavar="FILE", help="A Python file that defines methods or tasks; may be repeated."
        ),
    ] = None,
) -> None:
    """Take the options that every command has."""
    global _debug
    _debug = debug
    for file in plugins or ():
        load_plugin(file.absolute())


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit; a mistake of the user is one sentence and exit code 2.

    Args:
        arguments: The words of the command line after `sapc`; those of this process if None.
    """
    global _debug
    _debug = False
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A symbol that the terminal lacks is no reason to fail.
        sys.stdout.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings():
        warnings.showwarning = warn
        warnings.filterwarnings("default", "the preset", DeprecationWarning)
        # Who does not choose tf32 asks for float32.
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
        code = _run(sys.argv[1:] if arguments is None else arguments)
        ignore_interrupts()
        sys.exit(code)


def _run(arguments: list[str]) -> int:
    """Run a command and return its exit code."""
    try:
        restore_interrupts()
        code = app(arguments or ["--help"], prog_name="sapc", standalone_mode=False)
        sys.stdout.flush()
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        return int(code or 0)
    except ExplainedInterrupt as stopped:
        print(f"sapc: {stopped}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (KeyboardInterrupt, typer.Abort):
        ignore_interrupts()
        # Python remembers an interrupt that went through the text of an `exec`, as of a dataclass that was being
        # made, and would end by a signal; the next text makes it forget.
        exec("")
        print("sapc: interrupted; nothing half-written was left behind", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        description = _describe_error(error)
        if description is None:
            raise
        if _debug:
            traceback.print_exc()
        print("sapc: " + " ".join(description.splitlines()), file=sys.stderr)
        return 2


def _describe_error(error: Exception) -> str | None:
    """Return a sentence for the user, or None if the mistake is ours."""
    if isinstance(error, SapcError):
        return as_options(str(error))
    if isinstance(error, MemoryError):
        return "the memory is exhausted; choose a smaller size or grid"
    if isinstance(error, OSError):
        return f"{error}; check the path and the room on its disk"
    # A usage error, of click or of the copy that typer carries.
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "sapc"
        words = error.format_message().rstrip(".")
        if getattr(error, "option_name", None) == "--plugin":
            words = "--plugin goes before the command, as in sapc --plugin FILE train heat"
        return f"{words}; see {command} --help"
    return None


def warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning in the words of the command line."""
    print("sapc: warning: " + " ".join(as_options(str(message)).splitlines()), file=sys.stderr)


def end_with_problems() -> NoReturn:
    """End the command with exit code 1, once it has printed what is wrong."""
    raise typer.Exit(1)


def make_table(heads: Sequence[str], columns: Sequence[str], **style: Any) -> rich.table.Table:
    """Make a table for a terminal, without rows, whose cells are not broken into lines.

    Args:
        heads: Columns of texts, at the left.
        columns: Columns of numbers.
        style: More arguments of the table.

    Returns:
        The table.
    """
    table = rich.table.Table(**{"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), **style})
    for name in heads:
        table.add_column(name, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_table(table: Table, padding: int = 1, console: Console = out) -> None:
    """Print a table on a terminal, every cell on one line.

    Args:
        table: Texts, some of them bold; the first columns are heads.
        padding: Columns between cells.
        console: Where to print.
    """
    heads, columns = table.columns[: table.heads], table.columns[table.heads :]
    rich_table = make_table(
        heads, columns, title=table.title, title_justify="left", padding=(0, padding, 0, 0)
    )
    for i, row in enumerate(table.rows):
        texts = (f"[bold]{cell}[/bold]" if (i, j) in table.best else cell for j, cell in enumerate(row))
        rich_table.add_row(*texts)
    console.print(rich_table)
