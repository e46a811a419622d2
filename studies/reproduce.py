"""Trainings and their scores, one after the other in one process; the same command goes on where it ended.

    python studies/reproduce.py full/heat-sapc-seed0 compact/burgers-ffm-seed0 --out runs
    python studies/reproduce.py compact/heat-ffm-seed0 --sampler ffm --sampler eci --out runs

It does what `sapc study run` does without starting a process for each run, and prints one line per training and per score: the means over
the test sets. `--only train` and `--only score` are for two processes side by side: the second waits for the weights of the first, and
scores while that trains the next. Runs of preset compact are scored as they are shipped, with their weights in half precision, in
OUT/shipped; those whose weights come with the package are not trained again.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
import traceback
from pathlib import Path

from sapc.errors import SapcError
from sapc.experiments import Cell
from sapc.experiments.cell import iter_scores
from sapc.models.model import load
from sapc.training import loop as train
from sapc.training.config import Run
from sapc.training.presets import preset
from sapc.training.run_folder import Folder, load_tensors, save_tensors

SHIPPED = Path(__file__).resolve().parent.parent / "src" / "sapc" / "models" / "pretrained"
SHOWN = ("mmse", "smse", "w2", "ce_local", "ce_global")


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="+", metavar="PRESET/TASK-METHOD-seedN")
    parser.add_argument("--only", choices=("train", "score"))
    parser.add_argument(
        "--sampler", action="append", help="who samples with the weights, if not the method itself"
    )
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--samples", type=int)
    parser.add_argument("--steps", type=int, help="of the training, if not the preset's")
    chosen = parser.parse_args()
    runs, failed = [_named(name, chosen.steps) for name in chosen.runs], 0
    for run in runs:
        try:
            _one(run, chosen)
        except Exception:  # the next one may be fine
            traceback.print_exc()
            failed += 1
    sys.exit(1 if failed else 0)


def _named(name: str, steps: int | None) -> Run:
    if not (parts := re.fullmatch(r"(\w+)/(\w+)-(\w+)-seed(\d+)", name)):
        raise SystemExit(f"a run is named as full/heat-sapc-seed0, not {name!r}")
    kind, task, method, seed = parts.groups()
    return preset(kind, task, method, seed=int(seed), **({} if steps is None else {"steps": steps}))


def _one(run: Run, chosen: argparse.Namespace) -> None:
    few = {"samples": chosen.samples, "floor_repeats": 3 if len(run.grid) == 2 else 1, "watch": 256}
    cells = [Cell(run, sampler, **few) for sampler in chosen.sampler or (run.method,)]
    folder = Folder(chosen.out / run.preset / cells[0].folder)
    shipped = Folder(chosen.out / "shipped" / cells[0].folder) if run.preset == "compact" else folder
    if run.preset == "compact" and not shipped.trained:
        shipped = _from_the_package(run, shipped)
    if chosen.only != "score" and not shipped.trained:
        began = time.monotonic()
        mark = chosen.out / run.preset / f"{cells[0].folder}.failed"
        mark.unlink(missing_ok=True)
        try:
            train.train(run, folder.path)
        except Exception:
            mark.touch()
            raise
        print(
            f"{run.preset} {cells[0].folder}: trained in {time.monotonic() - began:.0f} s ({_last(folder)})",
            flush=True,
        )
        if shipped is not folder:
            _halve(folder, shipped)
    while chosen.only == "score" and not shipped.trained:
        if (chosen.out / run.preset / f"{cells[0].folder}.failed").exists():
            raise RuntimeError(f"the training of {cells[0].folder} failed")
        time.sleep(1)
    for cell in cells if chosen.only != "train" else ():
        _score(cell, shipped)


def _from_the_package(run: Run, shipped: Folder) -> Folder:
    """This very run as it comes with the package, if it does."""
    package = Folder(SHIPPED / f"{run.task}-{run.method}")
    try:
        package.check(run)
    except SapcError:
        return shipped
    if package.trained:
        shipped.path.mkdir(parents=True, exist_ok=True)
        for file in (package.config, package.weights):
            shutil.copyfile(file, shipped.path / file.name)
    return Folder(shipped.path)


def _halve(folder: Folder, shipped: Folder) -> None:
    """The same run with weights in half precision."""
    shipped.path.mkdir(parents=True, exist_ok=True)
    for own, other in (
        (folder.config, shipped.config),
        (folder.environment, shipped.environment),
        (folder.log, shipped.log),
    ):
        shutil.copyfile(own, other)
    tensors, about = load_tensors(folder.weights)
    save_tensors(shipped.weights, {name: value.half() for name, value in tensors.items()}, about)


def _score(cell: Cell, folder: Folder) -> None:
    if (scores := cell.scored(folder)) is None:
        # For their floors, which depend on the solutions alone: the first seed's scores beside it, and those of the package.
        beside = [(m, folder.path.with_name(f"{cell.run.task}-{m}-seed0")) for m in ("sapc", "ffm")]
        beside += [(m, SHIPPED / f"{cell.run.task}-{m}") for m in ("sapc", "ffm")]
        known = [s for m, path in beside for s in iter_scores(Folder(path), m)]
        began = time.monotonic()
        scores = cell.evaluate(load(folder.path), folder, known)
        took = f"{time.monotonic() - began:.0f} s"
    else:
        took = "before"
    mean = scores.mean
    values = "  ".join(f"{n} {mean.metrics[n]:.2e}" for n in SHOWN)
    floor = " ".join(f"{value:.1e}" for n, value in mean.floor.items() if n in SHOWN)
    ms = 1000 * mean.seconds_per_sample
    print(
        f"{cell.run.preset} {cell.name}: {values}  floor {floor}  {ms:.2f} ms each, scored in {took}",
        flush=True,
    )


def _last(folder: Folder) -> str:
    seen = {
        k: e[k] for e in folder.entries() for k in ("step", "loss", "validation", "lr", "seconds") if k in e
    }
    return ", ".join(f"{k} {v:.4g}" for k, v in seen.items())


if __name__ == "__main__":
    main()
