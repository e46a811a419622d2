"""What several commands take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SapcError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]
GridText = Annotated[
    str | None, typer.Option("--grid", help="Points per axis, as 64x50, if not the standard ones.")
]
OptionTexts = Annotated[
    list[str] | None, typer.Option("--option", help="A task option, as initial_range=0,1. May be repeated.")
]
RunPath = Annotated[
    Path, typer.Argument(help="A run folder, as `sapc train` makes them, or a name that `sapc models` lists.")
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, or auto: the GPU where there is one.")]
SamplerName = Annotated[
    str | None,
    typer.Option(
        "--method", help="Another method that samples with these weights; `sapc methods` lists them."
    ),
]

Poseidon = Annotated[
    str | None,
    typer.Option(
        "--poseidon",
        envvar="SAPC_POSEIDON",
        help="The weights of Poseidon-B, for FPD: a folder, a file or a Hugging Face cache.",
    ),
]
Frd = Annotated[bool, typer.Option("--frd", help="Also FRD, a distance by random features; it is not FPD.")]


def parse_grid(text: str | None) -> tuple[int, ...] | None:
    """`64x50` as numbers."""
    if text is None:
        return None
    try:
        return tuple(int(n) for n in text.lower().replace("×", "x").split("x"))
    except ValueError as error:
        raise SapcError(f"--grid takes whole numbers joined by x, as 64x50, got {text!r}") from error


def parse_options(texts: list[str] | None) -> dict[str, Any]:
    """`name=value` texts as a task's options."""
    options: dict[str, Any] = {}
    for text in texts or ():
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


def check_target(path: Path, force: bool) -> None:
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
        reason = "cannot be written to" if nearest.is_dir() else "is not a folder"
        raise SapcError(f"cannot write {path}: {nearest} {reason}; choose another --out")
