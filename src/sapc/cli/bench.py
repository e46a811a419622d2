"""`sapc bench`: what steps and samples cost on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from .. import config, distributed
from ..bench import bench as measure
from ..checkpoint import write_json
from ..errors import SapcError, whole
from ..files import folder_for
from ..methods import get_method
from ..tasks import task_names
from .app import app, err, out
from .arguments import AsJson, Device, check_target
from .bars import LINE_SECONDS

PARTS = ("backbone", "training", "sampling", "features", "methods")
USUAL = PARTS[:3]  # the others are asked for by name


@app.command()
def bench(
    tasks: Annotated[
        list[str] | None, typer.Option("--task", help="A task; may be repeated. \\[all of them]")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="paper, small or tiny. \\[paper on a GPU, small without]")
    ] = None,
    parts: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            help="backbone, training, sampling, features (of FPD) or methods; may be repeated. \\[the first three]",
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="A method for --part methods; may be repeated. \\[all of them]"),
    ] = None,
    steps: Annotated[
        int, typer.Option(help="Sampling steps to time; scaled to a hundred, or to the method's own.")
    ] = 10,
    device: Device = "auto",
    path: Annotated[Path | None, typer.Option("--out", help="A JSON file to write the figures to.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Time steps of the network, of training and of sampling: every figure beside the one it is to be compared with.

    Example: [bold]sapc bench --task heat --task stokes_ic --out bench.json[/bold], or every method on one task:
    [bold]sapc bench --part methods --task heat[/bold]
    """
    names = list(dict.fromkeys(tasks or task_names()))
    cuda = distributed.find_device(device).type == "cuda"
    size = preset or ("paper" if cuda else "small")
    for name in names:
        config.preset(size, name, "sapc")
    _check_choice(parts or USUAL, methods or ())
    whole(steps, "number of sampling steps", 1)
    if path is not None:
        check_target(path, force)

    def keep(result: dict[str, Any]) -> None:  # after every figure: an interrupted run loses none
        if path is not None:
            with folder_for(path.parent):
                write_json(path, result)

    with _stages() as progress:
        result = measure(names, size, device, steps, tuple(parts or USUAL), progress, keep, methods)
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


def _check_choice(parts: Sequence[str], methods: Sequence[str]) -> None:
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


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """One table per part that was measured; each fits into 80 columns."""
    if "backbone" in result:
        table = _table("The network: a step is forward and backward", "points", "batch", "path")
        _add_numbers(table, "step ms", "forward ms", "of plain")
        for row in result["backbone"]:
            grid = " x ".join(map(str, row["grid"]))
            numbers = (_ms(row["step_ms"]), _ms(row["forward_ms"]), f"{row['of_plain']:.2f}")
            table.add_row(grid, str(row["batch"]), row["path"], *numbers)
        yield table
    titles = {"training": "A training step", "sampling": "A sample in 100 steps"}
    for part, title in titles.items():
        if part in result:
            table = _table(title, "task", "batch", "precision")
            _add_numbers(table, "FFM ms", "SAPC ms", "SAPC / FFM")
            for row in result[part]:
                numbers = (_ms(row["ffm_ms"]), _ms(row["sapc_ms"]), f"{row['ratio']:.2f}")
                table.add_row(row["task"], str(row["batch"]), row["precision"], *numbers)
            yield table
    if "features" in result:
        yield _features_table(result["features"])
    rows = result.get("methods", [])
    for task in dict.fromkeys(row["task"] for row in rows):
        yield _methods_table(task, [row for row in rows if row["task"] == task])


def _features_table(rows: list[dict[str, Any]]) -> Table:
    images, timed, points = (rows[0][key] for key in ("images", "timed", "points"))
    scaled = "" if timed == images else f", from {timed}"
    table = _table(f"{images} images of {points} x {points}{scaled}", "encoder")
    _add_numbers(table, "features s", "image ms", "distance s")
    for row in rows:
        numbers = (row["features_s"], row["image_ms"], row["distance_s"])
        table.add_row(f"Poseidon-{row['size']}", *map(_ms, numbers))
    return table


def _methods_table(task: str, rows: list[dict[str, Any]]) -> Table:
    """One task's; a dash where a method trains nothing of its own, or where there is no GPU to ask for its memory."""
    about = f"{rows[0]['precision']}, training in batches of {rows[0]['batch']}"
    table = _table(f"{task}: every method; {about}", "method")
    _add_numbers(table, "step ms", "/ FFM", "NFE", "batch", "sample ms", "/ FFM", "MiB")
    for row in rows:
        step, sample = (_time_and_ratio(row, what) for what in ("step", "sample"))
        peak = f"{row['peak_bytes'] / 2**20:.0f}" if row["peak_bytes"] else "-"
        table.add_row(row["method"], *step, str(row["nfe"]), str(row["sampled"]), *sample, peak)
    return table


def _time_and_ratio(row: dict[str, Any], what: str) -> tuple[str, str]:
    time, ratio = row[f"{what}_ms"], row[f"{what}_of_ffm"]
    missing = "memory" if row.get(f"{what}_full") else "-"
    return missing if time is None else _ms(time), "-" if ratio is None else f"{ratio:.2f}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column == "batch" else "left", no_wrap=True)
    return table


def _add_numbers(table: Table, *columns: str) -> None:
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)


def _ms(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
