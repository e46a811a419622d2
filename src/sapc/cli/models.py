"""`sapc models` and `sapc export`: the models that come with the package, and folders to pass on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .._files import read_json
from ..errors import SapcError
from ..models.card import CardText
from ..models.hub import drop_foreign_scores, physics_text, read_scores, write_model
from ..models.model import read_network
from ..models.times import read_record
from ..nn.network import parameter_count
from ..training.run_folder import RunFolder, model_names, read_description, resolve_model_path
from .app import app, make_table, out
from .options import AsJson, RunPath


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the models that come with the package, with their scores.

    Example: [bold]sapc models[/bold], then [bold]sapc sample heat-sapc --n 64[/bold]
    """
    rows = [_describe_model(name) for name in model_names()]
    if as_json:
        print(json.dumps(rows))
        return
    table = make_table(["model"], ["grid", "MB", "W2", "floor", "CE_L", "CE_G"])
    for row in rows:
        numbers = (row["w2"], row["floor"], row["ce_local"], row["ce_global"])
        grid = "x".join(map(str, row["grid"]))
        texts = ("" if value is None else f"{value:.1e}" if value else "0" for value in numbers)
        table.add_row(row["name"], grid, f"{row['bytes'] / 1e6:.1f}", *texts)
    out.print(table)
    samplings = dict.fromkeys(row["sampling"] for row in rows if row["sampling"])
    print(f"scores: means over the test sets, of {' or '.join(samplings)}")
    print("how they were trained and scored: README.md in their folders; --json names them")


@app.command()
def export(
    folder: RunPath,
    path: Annotated[Path, typer.Argument(help="The folder to write; it must not exist or be empty.")],
    half: Annotated[
        bool, typer.Option("--half", help="Weights in half precision: half the size, 11 bits each.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="By which others will find it, for its card: OWNER/NAME.")
    ] = None,
    license: Annotated[
        str | None, typer.Option(help="Under which you pass it on, for its card: apache-2.0.")
    ] = None,
) -> None:
    """Write a trained model as a folder to pass on, in the layout of the Hugging Face hub.

    The folder has weights, configuration, scores and a card.

    Example: [bold]sapc export runs/heat-sapc heat-sapc-full --half[/bold],
    then [bold]sapc sample heat-sapc-full[/bold]
    """
    home = RunFolder(resolve_model_path(folder))
    _check_finished_run(folder, home)
    run = home.run()
    network, _, metadata = read_network(folder, home, run)
    metadata.setdefault("device", _device(home))
    card = CardText(name, license, physics_text(run, home))
    scores = drop_foreign_scores(home, read_scores(home))
    target = write_model(
        path, run, network.state_dict(), metadata,
        half=half, scores=scores, times=read_record(home), card=card,
    )  # fmt: skip
    size = sum(file.stat().st_size for file in target.iterdir())
    print(
        f"wrote {target}: {run.task} {run.method}, {parameter_count(network):,} parameters, "
        f"{size / 1e6:.1f} MB"
    )


def _check_finished_run(path: Path, folder: RunFolder) -> None:
    """Refuse a run that is not trained to its end; `path` is how the user calls it."""
    if not folder.is_trained and folder.config.is_file():
        raise SapcError(f"{path} is not trained to its end; finish it with `sapc train --resume {path}`")


def _describe_model(name: str) -> dict[str, Any]:
    folder = RunFolder(resolve_model_path(name))
    run, scores = folder.run(), read_scores(folder)
    metrics, floor = (scores.mean.metrics, scores.mean.floor) if scores else ({}, {})
    metadata = read_description(folder.weights)
    return {
        "name": name,
        "task": run.task,
        "method": run.method,
        "grid": list(run.grid),
        "steps": metadata.get("step"),
        "parameters": scores.run.parameters if scores else parameter_count(run.make_network()),
        "bytes": folder.weights.stat().st_size,
        "sampling": f"{scores.settings.steps} {scores.settings.sampler_name} steps" if scores else None,
        "w2": metrics.get("w2"),
        "floor": floor.get("w2"),
        "ce_local": metrics.get("ce_local"),
        "ce_global": metrics.get("ce_global"),
        "folder": str(folder.path),
    }


def _device(folder: RunFolder) -> str:
    """Return the device of the training, if the run folder says it."""
    try:
        return str(read_json(folder.environment)["starts"][-1]["device"])
    except (SapcError, KeyError, TypeError, IndexError):
        return ""
