"""Options that several commands take, and records of options."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ..errors import SapcError
from ..training.distributed import kind_of

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]
Batch = Annotated[int | None, typer.Option(help="Fields at a time, at most.")]
Conditions = Annotated[
    int | None,
    typer.Option(
        "--conditions",
        help="Held-out conditions for skill per condition, 0 for none. \\[64 of your own data, else none]",
    ),
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, or auto: the GPU where there is one.")]
FloorRepeats = Annotated[int, typer.Option("--floor-repeats", help="Pairs of draws for the sampling floor.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")]
GridText = Annotated[
    str | None, typer.Option("--grid", help="Points per axis, as 64x50, if not the standard ones.")
]
Members = Annotated[
    int | None, typer.Option("--members", help="Samples for each of these conditions. \\[20]")
]
PresetName = Annotated[
    str | None,
    typer.Option(help="published, full, best, compact, small or tiny. \\[published on a GPU, small without]"),
]
Reference = Annotated[int, typer.Option(help="Solutions to compare with.")]
RunPath = Annotated[
    Path, typer.Argument(help="A run folder, as `sapc train` makes them, or a name that `sapc models` lists.")
]
SamplerName = Annotated[
    str | None,
    typer.Option(
        "--method", help="Another method that samples with these weights; `sapc methods` lists them."
    ),
]
SamplingSteps = Annotated[
    int | None, typer.Option(help="Sampling steps. \\[20, or of euler the method's own number, mostly 100]")
]
StepperName = Annotated[
    str | None,
    typer.Option(
        "--sampler",
        help="multistep, of second order on measured times; euler, as published; or heun. "
        "\\[multistep where the method accepts it]",
    ),
]
SourceSeed = Annotated[int, typer.Option(help="Seed of the source draws.")]
TaskName = Annotated[str, typer.Argument(help="A task name; `sapc tasks` lists them.")]

Poseidon = Annotated[
    str | None,
    typer.Option(
        "--poseidon",
        envvar="SAPC_POSEIDON",
        help="The weights of Poseidon-B, for FPD: a folder, a file or a Hugging Face cache.",
    ),
]


@dataclass(frozen=True)
class DistanceOptions:
    """Distances between features of fields, which are scored where they are asked for."""

    poseidon: Poseidon = None
    frd: Annotated[
        bool, typer.Option("--frd", help="Also FRD, a distance by random features; it is not FPD.")
    ] = False


@dataclass(frozen=True)
class TaskOptions:
    """Grid and options of a task of this package."""

    grid: GridText = None
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="A task option, as initial_range=0,1. May be repeated."),
    ] = None

    def parse(self) -> tuple[tuple[int, ...] | None, dict[str, Any]]:
        """Return the grid, if one is given, and the options by name."""
        return parse_grid(self.grid), parse_options(self.option)


def take_records(command: Callable[..., None]) -> Callable[..., None]:
    """Turn each parameter of a command that is a record into one option per field of the record.

    Typer wants one parameter per option. A record is a dataclass whose fields are declared as such parameters
    are; its fields may be records, too. Options keep the order in which they are declared.

    Args:
        command: A function with annotated parameters; those that are records are keyword-only.

    Returns:
        The same command as typer can register it.
    """
    signature = inspect.signature(command, eval_str=True)
    flat = [p for parameter in signature.parameters.values() for p in _flatten(parameter)]

    @functools.wraps(command)
    def call(**values: Any) -> None:
        command(**{name: _build(p.annotation, name, values) for name, p in signature.parameters.items()})

    call.__signature__ = signature.replace(parameters=flat)  # type: ignore[attr-defined]
    return call


def _flatten(parameter: Parameter) -> list[Parameter]:
    """Return a parameter, or those of the fields of a record."""
    record = parameter.annotation
    if not is_dataclass(record):
        return [parameter.replace(kind=Parameter.KEYWORD_ONLY)]
    hints = get_type_hints(record, include_extras=True)
    parts = []
    for field in fields(record):
        default = Parameter.empty if field.default is MISSING else field.default
        part = Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name])
        parts += _flatten(part)
    return parts


def _build(annotation: Any, name: str, values: dict[str, Any]) -> Any:
    """Return the value of a parameter, or a record of the values of its fields."""
    if not is_dataclass(annotation):
        return values[name]
    hints = get_type_hints(annotation, include_extras=True)
    parts = {field.name: _build(hints[field.name], field.name, values) for field in fields(annotation)}
    return annotation(**parts)  # type: ignore[operator]


def default_preset(device: str) -> str:
    """Return the preset for a device where none is given."""
    return "published" if kind_of(device) == "cuda" else "small"


def parse_grid(text: str | None) -> tuple[int, ...] | None:
    """Read `64x50` as numbers of points."""
    if text is None:
        return None
    try:
        return tuple(int(n) for n in text.lower().replace("×", "x").split("x"))
    except ValueError as error:
        raise SapcError(f"--grid takes whole numbers joined by x, as 64x50, got {text!r}") from error


def parse_options(texts: list[str] | None) -> dict[str, Any]:
    """Read `name=value` texts as options of a task: a word, a number, or several joined by commas."""
    options: dict[str, Any] = {}
    for name, value in split_pairs(texts, "--option", "initial_range=0,1"):
        # Not nan and inf, which are numbers.
        if value.isidentifier() and value.lower() not in ("nan", "inf", "infinity"):
            options[name] = value
            continue
        try:
            numbers = tuple(float(part) for part in value.split(","))
        except ValueError as error:
            raise SapcError(
                f"the value of --option {name} must be a word, a number, or numbers joined by commas, got {value!r}"
            ) from error
        options[name] = numbers if len(numbers) > 1 else numbers[0]
    return options


def split_pairs(texts: list[str] | None, option: str, example: str) -> Iterator[tuple[str, str]]:
    """Split the `name=value` texts of an option."""
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SapcError(f"{option} takes name=value, as {example}, got {text!r}")
        yield name, value


def check_target(path: Path, force: bool) -> None:
    """Refuse, before the work, a file that cannot be written after it; nothing is created.

    Args:
        path: The file to write.
        force: Whether it may replace a file.

    Raises:
        SapcError: The file exists, or cannot be created.
    """
    if path.is_dir():
        raise SapcError(f"{path} is a folder; --out takes the name of the file to write")
    if os.path.exists(path) and not path.is_file():
        raise SapcError(f"{path} is not a regular file; choose another --out")
    if os.path.lexists(path) and not force:
        raise SapcError(f"{path} exists already; choose another --out or add --force to replace it")
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise SapcError(f"cannot write {path}: {error.strerror}; choose another --out") from error
    nearest = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        reason = "cannot be written to" if nearest.is_dir() else "is not a folder"
        raise SapcError(f"cannot write {path}: {nearest} {reason}; choose another --out")
