"""The demonstration: FFM and SAPC sampled and scored on one task, side by side.

    result = Demo("heat", out=Path("demo")).compare()       # with the models that come with the package: demo/heat.png

or with models of one's own:

    plan = Demo("heat", out=Path("demo"), preset="small")
    plan.check()
    for method in METHODS:
        plan.train(method)              # demo/heat-ffm, demo/heat-sapc: what is trained is used, what was interrupted continues
    result = plan.compare()             # also scores.json in both folders

Both methods have the same data, the same network and the same number of steps; only the anchoring of the source differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ..._files import folder_for
from ...errors import SapcError, whole
from ...evaluation.evaluate import TEST_SETS, Progress, evaluate, write_scores
from ...models.model import load
from ...tasks import Task, get_task
from ...training import loop as training
from ...training.config import Run
from ...training.distributed import find_device
from ...training.presets import preset
from ...training.run_folder import Folder, environment, load_tensors
from ...training.shipped import HOME, model_names
from ...training.step import Solving
from .pictures import ensembles, pyplot

METHODS = ("ffm", "sapc")
METRICS = ("mmse", "smse", "w2", "ce_local", "ce_global")
REFERENCE = 1225  # solutions to compare with, as published
FLOOR_REPEATS = 3


@dataclass(frozen=True)
class Demo:
    """What is sampled and compared, and where; with a preset, what is trained before that."""

    task: str = "heat"
    out: Path = Path("demo")
    split: str = "test1"
    samples: int = 64
    steps: int = 25
    preset: str | None = None
    seed: int = 0
    device: str = "auto"

    def run(self, method: str) -> Run:
        """The training of one method."""
        if self.preset is None:
            return self.folder(method).run()
        return preset(self.preset, self.task, method, seed=self.seed)

    def folder(self, method: str) -> Folder:
        """Where it is."""
        name = f"{self.task}-{method}"
        if self.preset is None and name not in model_names():
            get_task(self.task)
            raise SapcError(f"no model {name} comes with the package; train one with --preset small")
        return Folder(HOME / name if self.preset is None else self.out / name)

    @property
    def picture(self) -> Path:
        """Where the picture goes."""
        return self.out / f"{self.task}.png"

    def check(self) -> None:
        """Refuse before the work what would fail after it; nothing is created."""
        find_device(self.device)
        whole(self.samples, "number of samples", 2)
        whole(self.steps, "number of sampling steps", 1)
        if self.split not in TEST_SETS:
            raise SapcError(f"unknown test set {self.split!r}; choose one of {', '.join(TEST_SETS)}")
        for method in METHODS:
            run, folder = self.run(method), self.folder(method)
            task = run.make_task()
            if len(run.grid) > 2:
                raise SapcError(
                    f"the demonstration draws fields over x and t, and {self.task} has {len(run.grid)} axes; "
                    f"use `sapc train {self.task}` and `sapc evaluate`"
                )
            task.check(self.split, max(self.samples, REFERENCE))
            if self.preset is not None:
                task.check("train", run.train, run.seed)
                if folder.path.is_dir() and any(folder.path.iterdir()):
                    folder.begin(run)
        if self.picture.is_dir():
            raise SapcError(f"{self.picture} is a folder, but the picture goes there; choose another --out")
        pyplot()  # complains now where it is missing

    def train(
        self,
        method: str,
        progress: training.Progress | None = None,
        solving: Solving | None = None,
    ) -> None:
        """Train one method, from the start or from where it was left; a model that comes with the package is trained."""
        if self.preset is None:
            return
        path = self.folder(method).path
        training.train(self.run(method), path, device=self.device, progress=progress, solving=solving)

    def compare(self, progress: Progress | None = None) -> dict[str, Any]:
        """Sample and score both, write the scores and the picture; all figures, as JSON can hold them."""
        scores: dict[str, dict[str, Any]] = {}
        fields: dict[str, Tensor] = {}  # the very ones that are scored
        for method in METHODS:
            model = load(self.folder(method).path, self.device)
            scores[method] = evaluate(
                model, (self.split,), self.samples, REFERENCE, self.steps, self.seed, FLOOR_REPEATS,
                progress=_labelled(progress, method.upper()),
                on_fields=partial(_keep, fields, method),
            )  # fmt: skip
        if self.preset is not None:
            for method in METHODS:
                write_scores(self.folder(method).path, scores[method])
        result = self._result(scores)
        with folder_for(self.out):
            self._draw(model.task, fields, result)
        return result

    def _draw(self, task: Task, fields: dict[str, Tensor], result: dict[str, Any]) -> None:
        truth = task.dataset(self.split, size=REFERENCE).fields
        w2 = {method.upper(): about["metrics"]["w2"] for method, about in result["methods"].items()}
        w2 |= {"solutions": result["floor"]["w2"]} if result["floor"] else {}
        title = (
            f"{task.title}, {self.split}: {self.samples} samples of each method beside {REFERENCE} solutions"
        )
        shown = {method.upper(): u for method, u in fields.items()}
        ensembles(task, truth, shown, w2, title, self.picture)

    def _result(self, scores: dict[str, dict[str, Any]]) -> dict[str, Any]:
        metrics = {m: {name: scores[m]["mean"]["metrics"][name] for name in METRICS} for m in METHODS}
        first = scores[METHODS[0]]
        return {
            "format": "sapc-demo-1",
            "task": self.task,
            "preset": self.preset,
            "set": self.split,
            "samples": self.samples,
            "reference": REFERENCE,
            "steps": self.steps,
            "seed": self.seed,
            "grid": first["run"]["grid"],
            "parameters": first["run"]["parameters"],
            "floor": {name: value for name, value in first["mean"]["floor"].items() if name in METRICS},
            "methods": {m: self._about(m, metrics[m], scores[m]) for m in METHODS},
            "factor": {name: _ratio(*(metrics[m][name] for m in METHODS)) for name in METRICS},
            "picture": str(self.picture),
            "environment": environment(),
        }

    def _about(self, method: str, metrics: dict[str, float], scores: dict[str, Any]) -> dict[str, Any]:
        folder, mean = self.folder(method), scores["mean"]
        return {
            "folder": f"{self.task}-{method}" if self.preset is None else str(folder.path),
            "metrics": metrics,
            "worst_residual": mean["worst_residual"],
            "evaluations": mean["evaluations"],
            "training_seconds": load_tensors(folder.weights)[1]["seconds"],
            "sampling_seconds": mean["seconds_per_sample"] * self.samples,
        }


def _keep(fields: dict[str, Tensor], method: str, split: str, drawn: Tensor) -> None:
    fields[method] = drawn


def _labelled(progress: Progress | None, label: str) -> Progress | None:
    if progress is None:
        return None
    return lambda what, done, total: progress(f"{label}, {what}", done, total)


def _ratio(a: float, b: float) -> float | None:
    """How many times smaller b is; nothing where b is zero."""
    return a / b if b and math.isfinite(a / b) else None
