"""`sapc demo`: FFM and SAPC side by side, from samples to a picture; or the projection of noise alone."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

from .._files import ensure_folder
from ..errors import SapcError
from ..evaluation.config import EvaluationConfig
from ..evaluation.evaluate import Progress, evaluate, write_scores
from ..experiments import Cell
from ..experiments.report.figures import pyplot
from ..experiments.report.format import Table
from ..experiments.report.pictures import draw_ensembles, run_projection
from ..models.model import load
from ..models.scores import Scores
from ..models.times import tune_after_training
from ..tasks import get_task
from ..training import loop as training
from ..training.config import TrainingConfig, training_config
from ..training.distributed import find_device
from ..training.run_folder import HOME, RunFolder, environment, load_tensors, model_names
from .app import app, err, interrupt_advice, print_table
from .options import AsJson, Device, take_records
from .progress import TrainingBar, announce_training, stage_bar

METHODS = ("ffm", "sapc")
METRICS = ("mmse", "smse", "w2", "ce_local", "ce_global")
# Both methods accept it.
SAMPLER = "multistep"
# Solutions to compare with, as published.
REFERENCE = 1225


@dataclass(frozen=True)
class DemoOptions:
    """What is demonstrated; each field is one of `Demo`."""

    task: Annotated[str | None, typer.Option(help="A task name. \\[heat]")] = None
    split: Annotated[str | None, typer.Option("--set", help="The test set. \\[test1]")] = None
    samples: Annotated[int | None, typer.Option(help="Fields to sample with each method. \\[64]")] = None
    steps: Annotated[int | None, typer.Option(help="Sampling steps of second order. \\[10]")] = None
    preset: Annotated[
        str | None,
        typer.Option(
            help="Train both first, by preset small or tiny, instead of taking the models "
            "that come with the package."
        ),
    ] = None


@app.command()
@take_records
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for run folders and pictures.")] = Path(
        "demo"
    ),
    *,
    options: DemoOptions,
    seed: Annotated[int, typer.Option(help="Seed of the noise, and with --preset of data and weights.")] = 0,
    device: Device = "auto",
    projection: Annotated[
        bool,
        typer.Option(
            "--projection", help="Train nothing: put noise on the manifolds of every task and draw it."
        ),
    ] = False,
    size: Annotated[
        int | None, typer.Option(help="With --projection, which it implies: draws per task. \\[4]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sample a test set of Heat with FFM and with SAPC, score both and draw them beside the solutions.

    The models come with the package, unless --preset says to train them.
    What is trained already is used, and after an interruption the same command continues.

    Example: [bold]sapc demo --out demo[/bold], [bold]sapc demo --preset small[/bold],
    or [bold]sapc demo --projection --out pictures[/bold]
    """
    changes = {name: value for name, value in vars(options).items() if value is not None}
    if projection or size is not None:
        _refuse(changes)
        _projection(folder, 4 if size is None else size, seed, as_json)
    else:
        _demonstrate(Demo(out=folder, seed=seed, device=device, **changes), as_json)


def _refuse(changes: dict[str, Any]) -> None:
    """Refuse options of the two methods where the projection alone is shown."""
    for name in changes:
        option = "set" if name == "split" else name
        raise SapcError(f"--{option} has no meaning with --projection or --size; leave one of them out")


# -- two methods --


@dataclass(frozen=True)
class Demo:
    """FFM and SAPC on one task: trained, if a preset is given, then sampled, scored and drawn."""

    task: str = "heat"
    out: Path = Path("demo")
    split: str = "test1"
    samples: int = 64
    steps: int = 10
    preset: str | None = None
    seed: int = 0
    device: str = "auto"

    @property
    def picture(self) -> Path:
        """File of the picture."""
        return self.out / f"{self.task}.png"

    def folder(self, method: str) -> RunFolder:
        """Return the run folder of a method: in the package, unless it is trained here."""
        name = f"{self.task}-{method}"
        if self.preset is not None:
            return RunFolder(self.out / name)
        if name not in model_names():
            get_task(self.task)
            raise SapcError(f"no model {name} comes with the package; train one with --preset small")
        return RunFolder(HOME / name)

    def run(self, method: str) -> TrainingConfig:
        """Return the configuration of the training of a method."""
        if self.preset is None:
            return self.folder(method).run()
        return training_config(self.task, method, self.preset, seed=self.seed)

    def check(self) -> None:
        """Refuse, before the work, what would fail after it; nothing is created."""
        find_device(self.device)
        for method in METHODS:
            run = self.run(method)
            if len(run.grid) > 2:
                raise SapcError(
                    f"the demonstration draws fields over x and t, and {self.task} has {len(run.grid)} axes; "
                    f"use `sapc train {self.task}` and `sapc evaluate`"
                )
            config = EvaluationConfig((self.split,), self.samples, REFERENCE, self.steps, sampler=SAMPLER)
            Cell(run, method, config).check()
            if self.preset is not None:
                self.folder(method).check(run)
        if self.picture.is_dir():
            raise SapcError(f"{self.picture} is a folder, but the picture goes there; choose another --out")
        # Fails now where matplotlib is missing.
        pyplot()

    def train(self, quiet: bool = False) -> None:
        """Train both methods, each from the start or from where it was left."""
        for method in METHODS if self.preset is not None else ():
            run, folder = self.run(method), self.folder(method)
            with TrainingBar(f"{run.task} {method}", announce_training(run, folder, quiet)) as bar:
                training.train(
                    run, folder.path, device=self.device, progress=bar, data_progress=bar.show_solutions
                )
            tune_after_training(load(folder.path, self.device))

    def score(self, method: str, progress: Progress) -> tuple[Scores, Tensor]:
        """Sample and score one method; return its scores and the very fields that are scored."""
        fields: list[Tensor] = []
        model = load(self.folder(method).path, self.device)
        # The floor is between solutions, so it is that of both methods; files of scores hold it in any case.
        is_known = self.preset is None and method != METHODS[0]
        settings: dict[str, Any] = {"floor_repeats": 0} if is_known else {}
        scores = evaluate(
            model, (self.split,), self.samples, REFERENCE, self.steps, self.seed, sampler=SAMPLER, **settings,
            progress=lambda stage, count, total: progress(f"{method.upper()}, {stage}", count, total),
            on_fields=lambda split, values: fields.append(values),
        )  # fmt: skip
        return scores, fields[0]

    def compare(self, progress: Progress = lambda stage, count, total: None) -> dict[str, Any]:
        """Score both methods, write scores and picture, and return all figures as JSON can hold them."""
        results = {method: self.score(method, progress) for method in METHODS}
        for method in METHODS if self.preset is not None else ():
            write_scores(self.folder(method).path, results[method][0])
        result = self._result({method: scores for method, (scores, _) in results.items()})
        w2 = {m.upper(): entry["metrics"]["w2"] for m, entry in result["methods"].items()}
        w2 |= {"solutions": result["floor"]["w2"]} if result["floor"] else {}
        fields = {method.upper(): values for method, (_, values) in results.items()}
        task = self.run(METHODS[0]).make_task()
        truth = task.dataset(self.split, size=REFERENCE).fields
        title = (
            f"{task.title}, {self.split}: {self.samples} samples of each method beside {REFERENCE} solutions"
        )
        with ensure_folder(self.out):
            draw_ensembles(task, truth, fields, w2, title, self.picture)
        return result

    def _result(self, scores: dict[str, Scores]) -> dict[str, Any]:
        methods = {}
        for method, method_scores in scores.items():
            folder, mean = self.folder(method), method_scores.mean
            methods[method] = {
                "folder": folder.path.name if self.preset is None else str(folder.path),
                "metrics": {name: mean.metrics[name] for name in METRICS},
                "worst_residual": mean.worst_residual,
                "evaluations": mean.evaluations,
                "training_seconds": load_tensors(folder.weights)[1]["seconds"],
                "sampling_seconds": mean.seconds_per_sample * self.samples,
            }
        ffm, sapc = (methods[method]["metrics"] for method in METHODS)
        first = scores[METHODS[0]]
        return {
            "format": "sapc-demo-1",
            "task": self.task,
            "preset": self.preset,
            "set": self.split,
            "samples": self.samples,
            "reference": REFERENCE,
            "steps": self.steps,
            "sampler": SAMPLER,
            "seed": self.seed,
            "grid": first.run.grid,
            "parameters": first.run.parameters,
            "floor": {name: value for name, value in first.mean.floor.items() if name in METRICS},
            "methods": methods,
            "factor": {name: _ratio(ffm[name], sapc[name]) for name in METRICS},
            "picture": str(self.picture),
            "environment": environment(),
        }


def _ratio(a: float, b: float) -> float | None:
    """Return how many times smaller b is than a; None where b is zero."""
    return a / b if b and math.isfinite(a / b) else None


def _demonstrate(demonstration: Demo, as_json: bool) -> None:
    demonstration.check()
    with interrupt_advice("stopped; what is trained is kept, and the same command continues from there"):
        demonstration.train(quiet=as_json)
        with stage_bar("starting") as bar:
            result = demonstration.compare(bar)
    if as_json:
        print(json.dumps(result))
        return
    print_table(comparison_table(result), padding=2)
    methods = {m.upper(): entry for m, entry in result["methods"].items()}
    if demonstration.preset is None:
        print(f"models: {', '.join(a['folder'] for a in methods.values())}, which come with the package")
    for kind in ("training", "sampling") if demonstration.preset is not None else ("sampling",):
        print(f"{kind}: " + ", ".join(f"{m} {a[f'{kind}_seconds']:.3g} s" for m, a in methods.items()))
    print(f"picture: {demonstration.picture}")
    print(f"next: sapc sample {methods['SAPC']['folder']} --set {demonstration.split}")


def comparison_table(result: dict[str, Any]) -> Table:
    """Return the metrics by method, with the sampling floor and the ratio of both methods."""
    ffm, sapc = (result["methods"][m]["metrics"] for m in METHODS)
    rows = []
    for name, factor in result["factor"].items():
        floor = f"{result['floor'][name]:.2e}" if name in result["floor"] else ""
        ours = f"{sapc[name]:.2e}" if sapc[name] else "0"
        times = "" if factor is None else f"{factor:.3g}" if factor < 1e4 else f"{factor:.0e}"
        rows.append((name, floor, f"{ffm[name]:.2e}", ours, times))
    title = f"{result['task']}, {result['set']}: {result['samples']} samples in {result['steps']} {result['sampler']} steps"
    return Table(title, ("metric", "sampling floor", "FFM", "SAPC", "FFM / SAPC"), rows)


# -- the projection alone --


def _projection(folder: Path, size: int, seed: int, as_json: bool) -> None:
    with err.status("starting") as status:
        show = lambda name: status.update(f"{name}: solving, projecting, drawing")
        rows = list(run_projection(folder, size, seed, show))
    if as_json:
        print(json.dumps(rows))
        return
    print_table(residual_table(rows))
    print(f"pictures: {folder / 'overview.png'} and one per task")


def residual_table(rows: list[dict[str, Any]]) -> Table:
    """Return the residuals of noise before and after the projection, by task."""
    cells = [
        (
            row["task"],
            row["algorithm"].replace("Gauss-Newton", "GN"),
            f"{row['local_before']:.1e} → {row['local_after']:.0e}",
            f"{row['balance_before']:.1e} → {row['balance_after']:.0e}",
            f"{row['milliseconds']:.0f}",
        )
        for row in rows
    ]
    columns = ("task", "projection", "pinned\ncondition", "balance\nlaw", "ms\neach")
    return Table("Noise before → after projection: mean l2 norm of the residual", columns, cells, heads=2)
