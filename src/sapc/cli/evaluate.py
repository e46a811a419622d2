"""`sapc evaluate`: a trained model on the test sets."""

from __future__ import annotations

import json
import math
import textwrap
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev
from typing import Annotated, Any

import typer
from rich.table import Table

from ..errors import SapcError
from ..evaluation import evaluate as evaluation
from ..evaluation.config import EvaluationConfig
from ..evaluation.frechet import DOWNLOAD_HINT
from ..evaluation.frechet import distance as fpd
from ..evaluation.moments import EnsembleStatistics
from ..models.scores import MeanScores, Scores, SetScores
from ..training.run_folder import is_shipped, resolve_model_path
from .app import app, make_table, out
from .options import (
    AsJson,
    Batch,
    Conditions,
    DistanceOptions,
    FloorRepeats,
    Members,
    Reference,
    RunPath,
    SamplerName,
    SamplingSteps,
    SourceSeed,
    take_records,
)
from .own_data import ModelOptions
from .progress import stage_bar
from .skill import print_skill

EvaluationSampler = Annotated[
    str | None,
    typer.Option(
        "--sampler",
        help="euler, multistep or heun. \\[euler, as the paper's scores; of your own data and of the presets "
        "small and tiny multistep]",
    ),
]


@dataclass(frozen=True)
class EvaluationOptions:
    """What is sampled and compared."""

    sets: Annotated[
        list[str] | None, typer.Option("--set", help="A test set; may be repeated. \\[test0 to test3]")
    ] = None
    samples: Annotated[
        int | None, typer.Option(help="Fields to generate per set. \\[1225, navier_stokes 100]")
    ] = None
    reference: Reference = 1225
    steps: SamplingSteps = None
    sampler: EvaluationSampler = None
    seed: SourceSeed = 0
    floor_repeats: FloorRepeats = 3
    method: SamplerName = None
    conditions: Conditions = None
    members: Members = None


@app.command()
@take_records
def evaluate(
    folder: RunPath,
    *,
    options: EvaluationOptions,
    model_options: ModelOptions,
    batch: Batch = None,
    trajectory: Annotated[
        bool, typer.Option("--trajectory", help="Also measure what happens along the sampling runs.")
    ] = False,
    distances: DistanceOptions,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Moved to benchmarks/calibrate_frd.py of the repository.",
            hidden=True,
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Generate the test sets, compare them with solutions, and write scores.json into the run folder.

    Example: [bold]sapc evaluate runs/heat-sapc --set test0 --samples 100[/bold],
    or with the paper's fourth metric: [bold]sapc evaluate runs/heat-sapc --poseidon Poseidon-B[/bold]
    """
    if calibrate:
        _refuse_calibration(folder)
    model = model_options.load(folder)
    measures = fpd.distances(distances.poseidon or None, distances.frd, model.device)
    sets = tuple(options.sets) if options.sets else None
    config = EvaluationConfig(**{**vars(options), "sets": sets}, batch=batch, trajectory=trajectory)
    statistics = EnsembleStatistics()
    with stage_bar("starting") as bar:
        result = evaluation.evaluate(model, config, distances=measures, progress=bar, statistics=statistics)
    is_from_package = is_shipped(resolve_model_path(folder))
    is_finished = model.step == model.run.steps and not is_from_package
    path = evaluation.write_scores(folder, result, statistics) if is_finished else None
    if as_json:
        print(json.dumps(result.to_dict()))
        return
    _print(result)
    if not distances.poseidon:
        print(textwrap.fill(f"no FPD: {DOWNLOAD_HINT}; --frd takes no weights", 80, break_on_hyphens=False))
    reason = f"training is at step {model.step} of {model.run.steps}"
    if is_from_package:
        reason = (
            f"{folder} comes with the package; `sapc export {folder} FOLDER` makes a copy that keeps scores"
        )
    print(f"wrote {path}" if path else f"not written: {reason}", flush=True)


def _refuse_calibration(folder: Path) -> None:
    raise SapcError(
        f"--calibrate is a script now: python benchmarks/calibrate_frd.py {folder} --poseidon ..."
    )


def _print(result: Scores) -> None:
    out.print(score_table(result))
    for name, trajectory in result.trajectories.items():
        out.print(trajectory_table(name, trajectory))
        _print_energy(trajectory)
    _print_summary(result)
    if result.skill is not None:
        print()
        print_skill(result.skill)


def score_table(result: Scores) -> Table:
    """Return the metrics by set, each with its sampling floor below it, where it has one."""
    sets, mean = result.sets, result.mean
    columns: list[SetScores | MeanScores] = [*sets.values(), *([mean] if len(sets) > 1 else [])]
    table = make_table(["metric"], [*sets, *(["mean"] if len(sets) > 1 else [])])
    for name in mean.metrics:
        table.add_row(name, *(f"{c.metrics[name]:.2e}" for c in columns))
        if name in mean.floor:
            floors = (c.floor.get(name) for c in columns)
            table.add_row("  floor", *("" if f is None else f"{_mean(f):.2e}" for f in floors), style="dim")
        if all(scores.per_encoder(name) for scores in sets.values()):
            spreads = (c.more.get(f"{name}_each") for c in columns)
            table.add_row("  spread", *("" if e is None else f"{stdev(e):.2e}" for e in spreads), style="dim")
    for name, label in (("local", "worst pin"), ("balance", "worst law")):
        table.add_row(label, *(f"{c.worst_residual[name]:.2e}" for c in columns))
    return table


def trajectory_table(name: str, trajectory: dict[str, Any]) -> Table:
    """Return a few times of the sampling runs of a set: the quarters, the last step and the result."""
    times = trajectory["times"]
    quarters = (min(range(len(times)), key=lambda i: abs(times[i] - t)) for t in (1, 0.75, 0.5, 0.25))
    table = make_table([f"{name}, median at t"], ["|R(v0^)|", "|R(v_t)|", "deviation"])
    for i in sorted({*quarters, len(times) - 2, len(times) - 1}):
        estimate = trajectory["endpoint_residual"][i] if i < len(times) - 1 else None
        values = (estimate, trajectory["state_residual"][i], trajectory["deviation"][i])
        table.add_row(f"{times[i]:.3g}", *map(_format_value, values))
    return table


def _print_energy(trajectory: dict[str, Any]) -> None:
    excess, straight = (
        _format_value(trajectory["excess_energy"]),
        _format_value(trajectory["straight_energy"]),
    )
    print(f"excess kinetic energy {excess}, beside {straight} of the straight line")


def _format_value(value: float | None) -> str:
    return "" if value is None else f"{value:.2e}"


def _mean(value: float | list[float]) -> float:
    return math.fsum(value) / len(value) if isinstance(value, list) else value


def _print_summary(result: Scores) -> None:
    mean, settings = result.mean, result.settings
    print(
        f"{settings.samples} samples per set with {settings.method}, {settings.steps} {settings.sampler_name} "
        f"steps, {mean.evaluations} evaluations and {mean.seconds_per_sample:.3g} s each"
    )
    print(f"sampled on {settings.device}, peak memory {mean.peak_memory / 2**30:.2f} GiB")
    for weights in settings.more.get("fpd_weights", ()):
        print(f"fpd by {weights['file']}, sha256 {weights['sha256']}")
    if "frd_weights" in settings.more:
        print("frd by random features, and its spread over their three encoders; it is not FPD")
    for reason in result.floor_left_out:
        print(f"no sampling floor: {reason}")
