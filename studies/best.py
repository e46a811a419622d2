"""What goes beyond the paper, part by part: the condition as an input, symmetries, and the sampler.

    python studies/best.py --minutes 9                                        # compact networks, every part, seed 0
    python studies/best.py --minutes 9 --preset full --parts both --seeds 0 42 205
    python studies/best.py --only-print

Every training is scored with the paper's sampler and with STEPS steps of second order, on all four test sets.
Scores land in results/best as soon as they are made, and the same command goes on, as that of `grid.py`, whose
engine this is. Weights are in OUT.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sapc
from sapc.experiments import Cell, Study, open_study, run_study, worker
from sapc.experiments.cell import scores_file
from sapc.methods import paper
from sapc.models.scores import Scores
from sapc.models.times import tune_after_training

# Processes of a study are started without the folder of their script on the path.
sys.path.insert(0, str(Path(__file__).parent))
import grid

OUT = grid.ROOT / "results" / "best"
PARTS = {"sapc": (False, False), "condition": (True, False), "symmetry": (False, True), "both": (True, True)}
"""Whether the condition is an input, and whether symmetries are used."""
EULER, STEPS = "euler-100", 20
SAMPLERS = (EULER, f"multistep-{STEPS}")
FEW_STEPS = "few-steps.json"
METRICS = ("mmse", "smse", "w2")


class Engine(grid.SharedGpu):
    """That of the grid, with the jobs of this file."""

    command = (sys.executable, str(Path(__file__).resolve()), "--job")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--preset", default="compact", choices=("compact", "full"))
    parser.add_argument("--tasks", nargs="+", default=sapc.task_names())
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--together", type=int, default=6, help="processes at a time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/best"))
    parser.add_argument("--keep", type=Path, default=OUT, help="for scores")
    parser.add_argument("--steps", type=int, help="of the training, if not the preset's: to try it out")
    parser.add_argument("--samples", type=int, help="likewise")
    parser.add_argument("--only-print", action="store_true")
    options = parser.parse_args()
    if not options.only_print:
        fill(options)
    print("\n".join(tables(options.keep)))


def fill(options: argparse.Namespace) -> None:
    """Train and score what has no scores yet, as long as there is time."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # The place where the grid's jobs put weights in half precision.
    place = options.out / ("shipped" if options.preset == "compact" else options.preset)
    study = Study(options.preset, tuple(cells(options)), place)
    study.write(is_shared=True)
    if options.preset == "compact":
        for cell in study.cells:
            grid.take_from_package(study, cell)
    todo = [
        cell for cell in study.cells if not all(file_of(cell, name, options).exists() for name in SAMPLERS)
    ]
    print(f"{len(todo)} trainings to go", flush=True)
    engine = Engine(options.device, options.together, options.minutes)
    try:
        run_study(study, engine, todo, on_change=lambda *_: None, on_poll=engine.check_time)
    except grid.TimeOver:
        print("the time is over; the same command goes on", flush=True)
    for cell in todo:
        keep(study, cell, options)


def cells(options: argparse.Namespace) -> list[Cell]:
    """Return a cell for every training; where a task has no symmetry, two parts are one."""
    changes = {} if options.steps is None else {"steps": options.steps}
    table: dict[str, Cell] = {}
    for seed in options.seeds:
        for part in options.parts:
            is_shown, is_symmetric = PARTS[part]
            method = "cond_sapc" if is_shown else "sapc"
            for task in options.tasks:
                symmetries = is_symmetric and bool(sapc.get_task(task).find_symmetries())
                run = sapc.training_config(
                    task, method, options.preset, seed=seed, symmetries=symmetries, **changes
                )
                cell = Cell(
                    run, method, label="symmetry" if symmetries else "", samples=options.samples,
                    floor_repeats=0 if options.samples else 1 if task == "navier_stokes" else 3,
                )  # fmt: skip
                table.setdefault(cell.name, cell)
    return list(table.values())


def file_of(cell: Cell, sampler: str, options: argparse.Namespace) -> Path:
    """Return the file for the scores of a cell by one sampler."""
    return Path(options.keep) / options.preset / f"{cell.name}-{sampler}-h200.json"


def keep(study: Study, cell: Cell, options: argparse.Namespace) -> None:
    """Copy new scores."""
    folder = study.folder(cell)
    for sampler, path in zip(
        SAMPLERS, (scores_file(folder, cell.method), folder.path / FEW_STEPS), strict=True
    ):
        target = file_of(cell, sampler, options)
        if path.exists() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            print(f"kept {target.name}", flush=True)


def work(out: str, folder: str, names: Sequence[str], device: str, *options: Any) -> list[str]:
    """Train, measure times, score few steps, and then do the cell, which is done when both scores are there."""
    study = open_study(out)
    cell = study.jobs()[folder][0]
    run_folder = grid.train(study, cell, device)
    path = run_folder.path / FEW_STEPS
    if not path.exists():
        model = sapc.load(run_folder.path, device)
        tune_after_training(model)
        scores = sapc.evaluate(
            model, samples=cell.evaluation.samples, steps=STEPS, sampler="multistep", floor_repeats=0
        )
        scores.write(path)
    return worker.work(out, folder, names, device, *options)


# -- tables --


def explanation() -> list[str]:
    """Return what the page says before its tables."""
    return [
        "SAPC, with the condition as an input (`cond_sapc`), with symmetries (`--symmetries`), and with both "
        "(preset `best`): means over seeds and four test sets of 1,225 samples (Navier-Stokes 100) against "
        "1,225 solutions, by the paper's sampler and by few steps. Made by `studies/best.py` on one H200. "
        "Stokes has no symmetries."
    ]


def tables(folder: Path) -> list[str]:
    """Return a table per preset of the metrics by part and sampler, means over seeds."""
    lines = []
    for preset in ("compact", "full"):
        found = read(folder / preset)
        if not found:
            continue
        names = [name for name in PARTS if any(key[1] == name for key in found)]
        for metric in METRICS:
            label = paper.METRIC_LABELS[metric]
            lines += [
                f"{label}, preset {preset}: 100 Euler steps, then {STEPS} of second order",
                "",
                "| task | " + " | ".join(names) + " |",
                "|---|" + "---:|" * len(names),
            ]
            for task in paper.TASKS:
                pairs = [
                    ", ".join(_mean(found.get((task, name, sampler), ()), metric) for sampler in SAMPLERS)
                    for name in names
                ]
                lines.append(f"| {paper.TASK_LABELS[task]} | {' | '.join(pairs)} |")
            lines.append("")
    return lines


def read(folder: Path) -> dict[tuple[str, str, str], list[Scores]]:
    """Return the scores in a folder by task, part and sampler."""
    found: dict[tuple[str, str, str], list[Scores]] = {}
    for path in sorted(folder.glob("*.json")):
        scores = Scores.read(path)
        run = scores.run
        is_symmetric = bool(run.symmetries)
        part = next(name for name, kind in PARTS.items() if kind == (run.method == "cond_sapc", is_symmetric))
        sampler = next(name for name in SAMPLERS if f"-{name}-" in path.name)
        found.setdefault((run.task, part, sampler), []).append(scores)
    return found


def _mean(scores: Sequence[Scores], metric: str) -> str:
    values = [s.mean.metrics[metric] for s in scores]
    return f"{sum(values) / len(values):.2e}" if values else "–"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        del sys.argv[1]
        sys.exit(worker.main(work))
    main()
