"""`sapc tune`: times of the sampler for the weights of a run."""

from __future__ import annotations

import json

from ..errors import SapcError
from ..models.times import FILE
from ..models.times import tune as tune_model
from ..training.run_folder import is_shipped, resolve_model_path
from .app import app, make_table, out
from .options import AsJson, RunPath, take_records
from .own_data import ModelOptions
from .progress import progress_bar


@app.command()
@take_records
def tune(folder: RunPath, *, model_options: ModelOptions, as_json: AsJson = False) -> None:
    """Measure where steps of second order serve a trained model best, and keep these times beside its weights.

    `sapc train` does this when a training ends; this command is for older runs and copied weights.

    Example: [bold]sapc tune runs/heat-sapc[/bold], then [bold]sapc sample runs/heat-sapc --steps 10[/bold]
    """
    home = resolve_model_path(folder)
    if is_shipped(home):
        raise SapcError(
            f"{folder} comes with the package and its times with it; `sapc export {folder} FOLDER` makes a copy"
        )
    model = model_options.load(folder)
    with progress_bar(f"{model.task.name} {model.method.name}") as bar:
        measurement = tune_model(model, bar)
    if as_json:
        print(
            json.dumps(
                {"path": str(home / FILE), "choice": measurement.name, "distances": measurement.distances}
            )
        )
        return
    table = make_table(["times"], ["spread, from that of a fine run"])
    for name, distance in sorted(measurement.distances.items(), key=lambda item: item[1]):
        table.add_row(name, f"{distance:.2e}")
    out.print(table)
    print(f"wrote {home / FILE}: {measurement.name}")
