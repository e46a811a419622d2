"""`sapc bench`: the cost of steps, samples and projections on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .._files import ensure_folder, write_json
from ..errors import SapcError, check_int
from ..experiments.report.format import Table
from ..experiments.timing import PARTS, Timer, measure
from ..tasks import task_names
from ..training import config, distributed, presets
from .app import app, err, print_table
from .options import AsJson, Device, Force, PresetName, check_target, default_preset

PAIR = ("task", "batch", "precision", "ffm_ms", "sapc_ms", "ratio")
TABLES = {
    "training": ("A training step", PAIR),
    "sampling": ("A sample in 100 Euler steps", (*PAIR, "alone_ms")),
    "projection": ("A projection, per field", ("task", "start", "ours_ms", "ours_residual")),
}
LABELS = {"ffm_ms": "FFM ms", "sapc_ms": "SAPC ms", "ratio": "SAPC / FFM", "alone_ms": "SAPC, one field",
          "start": "from", "ours_ms": "ms", "ours_residual": "|R|"}  # fmt: skip


@app.command()
def bench(
    tasks: Annotated[list[str] | None, typer.Option("--task", help="May be repeated. \\[all tasks]")] = None,
    preset: PresetName = None,
    parts: Annotated[
        list[str] | None,
        typer.Option("--part", help="training, sampling or projection; may be repeated. \\[all]"),
    ] = None,
    steps: Annotated[int, typer.Option(help="Sampling steps of Euler to time; scaled to a hundred.")] = 10,
    device: Device = "auto",
    path: Annotated[Path | None, typer.Option("--out", help="A JSON file to write the figures to.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Time training steps and samples, SAPC beside FFM, and projections.

    The scripts in benchmarks/ of the repository time every method, the network by itself, and other codes.

    Example: [bold]sapc bench --task heat --task stokes_ic --out bench.json[/bold]
    """
    names = list(dict.fromkeys(tasks or task_names()))
    torch_device = distributed.find_device(device)
    size = presets.preset_name(preset or default_preset(device))
    for name in names:
        config.training_config(name, "sapc", size)
    for part in parts or ():
        _check_part(part)
    check_int(steps, "number of sampling steps", 1)
    if path is not None:
        check_target(path, force)

    def save(result: dict[str, Any]) -> None:
        if path is not None:
            with ensure_folder(path.parent):
                write_json(path, result)

    timer = Timer(torch_device, *((20, 5) if torch_device.type == "cuda" else (3, 1)))
    with err.status("starting") as status:
        result = measure(timer, names, size, steps, parts or PARTS, status.update, save)
    if as_json:
        print(json.dumps(result))
        return
    for part in parts or PARTS:
        title, fields = TABLES[part]
        rows = [tuple(_format_value(row[name]) for name in fields) for row in result[part]]
        print_table(Table(title, tuple(LABELS.get(name, name) for name in fields), rows))
    environment = result["environment"]
    machine = environment["device"] if torch_device.type == "cuda" else f"{environment['cpus']} CPU cores"
    print(f"preset {size} on {machine}, torch {environment['torch']}, sapc {environment['sapc']}")
    if path is not None:
        print(f"wrote {path}")


def _check_part(part: str) -> None:
    if part not in PARTS:
        choice = ", ".join(PARTS)
        raise SapcError(f"unknown part {part!r}; choose from {choice}; benchmarks/ has more of them")


def _format_value(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
