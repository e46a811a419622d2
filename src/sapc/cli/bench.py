"""`sapc bench`: what steps and samples cost on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from .._files import folder_for, write_json
from ..errors import SapcError, whole
from ..experiments.bench import bench as measure
from ..experiments.bench.backbone import PATHS
from ..experiments.bench.tables import tables
from ..methods import get_method
from ..tasks import task_names
from ..training import config, distributed
from .app import app, err, out
from .arguments import AsJson, Device, check_target
from .bars import LINE_SECONDS

PARTS = ("backbone", "training", "sampling", "projection", "features", "methods")
USUAL = PARTS[:3]  # the others are asked for by name


@app.command()
def bench(
    tasks: Annotated[
        list[str] | None, typer.Option("--task", help="A task; may be repeated. \\[all of them]")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="paper, full, compact, small or tiny. \\[paper on a GPU, small without]"),
    ] = None,
    parts: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            help="backbone, training, sampling, projection, features (of FPD) or methods; may be repeated. \\[the first three]",
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="A method for --part methods; may be repeated. \\[all of them]"),
    ] = None,
    steps: Annotated[
        int, typer.Option(help="Sampling steps to time; scaled to a hundred, or to the method's own.")
    ] = 10,
    peers: Annotated[
        bool,
        typer.Option(
            help="Beside them the peers' way: neuraloperator's network, dense Jacobians, every method with eager FFTs."
        ),
    ] = True,
    paths: Annotated[
        list[str] | None,
        typer.Option(
            "--path",
            help="A path of the backbone beside the plain one: fft, dft, fused; may be repeated. \\[all]",
        ),
    ] = None,
    device: Device = "auto",
    path: Annotated[Path | None, typer.Option("--out", help="A JSON file to write the figures to.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Time steps of the network, of training and of sampling, and projections: each beside what it is to be compared with.

    Example: [bold]sapc bench --task heat --task stokes_ic --out bench.json[/bold], or every method on one task, and what its
    projection costs: [bold]sapc bench --part methods --part projection --task heat[/bold]
    """
    names = list(dict.fromkeys(tasks or task_names()))
    cuda = distributed.find_device(device).type == "cuda"
    size = preset or ("paper" if cuda else "small")
    for name in names:
        config.preset(size, name, "sapc")
    _check_choice(parts or USUAL, methods or (), paths or ())
    whole(steps, "number of sampling steps", 1)
    if path is not None:
        check_target(path, force)

    def keep(result: dict[str, Any]) -> None:  # after every figure: an interrupted run loses none
        if path is not None:
            with folder_for(path.parent):
                write_json(path, result)

    with _stages() as progress:
        result = measure(
            names, size, device, steps, tuple(parts or USUAL), progress, keep, methods, peers, paths or PATHS
        )
    if as_json:
        print(json.dumps(result))
        return
    for table in tables(result):
        out.print(table)
    about = result["environment"]
    place = about["device"] if cuda else f"{about['cpus']} CPU cores"
    print(f"preset {size} on {place}, torch {about['torch']}, sapc {about['sapc']}")
    if path is not None:
        print(f"wrote {path}")


def _check_choice(parts: Sequence[str], methods: Sequence[str], paths: Sequence[str]) -> None:
    for path in paths:
        if path not in PATHS:
            raise SapcError(f"unknown path {path!r} of the backbone; choose from {', '.join(PATHS)}")
    for part in parts:
        if part not in PARTS:
            raise SapcError(f"unknown part {part!r}; choose from {', '.join(PARTS)}")
    for method in methods:
        get_method(method)
    if methods and "methods" not in parts:
        raise SapcError(
            "--method chooses what --part methods times, which is not asked for; add --part methods"
        )


@contextmanager
def _stages() -> Iterator[Callable[[str], None]]:
    """What is being measured, on standard error: on a terminal always, elsewhere now and then."""
    said = time.monotonic()
    with err.status("starting") as status:

        def show(stage: str) -> None:
            nonlocal said
            status.update(stage)
            if not err.is_terminal and time.monotonic() - said > LINE_SECONDS:
                said = time.monotonic()
                print(stage, file=err.file, flush=True)

        yield show
