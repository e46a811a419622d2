"""Fill the grid of results: train and score what has no scores yet, several runs at a time on one GPU.

    python studies/grid.py --minutes 9 --seeds 42 205 --methods sapc ffm sapc_s1 sapc_s3 eci --together 6
    python studies/grid.py --minutes 60 --preset full --tasks heat --methods sapc --seeds 0

It is a study in OUT, whose jobs are processes that share the GPU. Scores land in KEEP,
`<task>-<method>-seed<seed>-<hardware>.json`, as soon as each is made; a cell that has a file there, or is
shipped with the package, is not repeated. The same command goes on. Trainings that cannot end in time are not
begun; what still runs at the end saves and stops.

Runs of preset compact are scored as they are shipped, with their weights in half precision, in OUT/shipped;
those whose weights come with the package are not trained again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sapc import get_method, task_names
from sapc.errors import SapcError
from sapc.experiments import Cell, Local, Study, cells, open_study, run_study, worker
from sapc.experiments.cell import scores_file
from sapc.experiments.engines import Job
from sapc.training import loop
from sapc.training.run_folder import HOME, RunFolder, load_tensors, save_tensors

ROOT = Path(__file__).resolve().parent.parent
FLAT = [name for name in task_names() if name != "navier_stokes"]
METHODS = ["sapc", "ffm", "sapc_s1", "sapc_s3", "eci", "cond_ffm"]


class TimeOver(Exception):
    """The minutes are over."""


class SharedGpu(Local):
    """Processes that share the GPU for some minutes; a job begins only if the longest so far would end."""

    command = (sys.executable, str(Path(__file__).resolve()), "--job")

    def __init__(self, device: str, together: int, minutes: float) -> None:
        super().__init__(device, workers=together)
        self.end, self.longest = time.monotonic() + 60 * minutes, 0.0

    def _run(self, job: Job) -> None:
        start = time.monotonic()
        if start + self.longest < self.end:
            super()._run(job)
            self.longest = max(self.longest, time.monotonic() - start)
            print(f"{job.folder}: {time.monotonic() - start:.0f} s", flush=True)

    def check_time(self) -> None:
        """Stop the study when the minutes are over."""
        if time.monotonic() > self.end:
            raise TimeOver


def main() -> None:
    """Run the command line."""
    options = arguments()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    place = options.out / ("shipped" if options.preset == "compact" else options.preset)
    study = Study(options.preset, tuple(grid(options)), place)
    study.write(is_shared=True)
    shipped_names = {
        cell.name for cell in study.cells if options.preset == "compact" and take_from_package(study, cell)
    }
    todo = [
        cell for cell in study.cells if cell.name not in shipped_names and not file_of(cell, options).exists()
    ]
    print(f"{len({cell.folder for cell in todo})} trainings, {len(todo)} cells to go", flush=True)
    engine = SharedGpu(options.device, options.together, options.minutes)

    def report(cell: Cell, record: Mapping[str, Any]) -> None:
        if record["state"] == "failed":
            print(f"{cell.name} failed: {record['error']}", flush=True)
        keep(study, cell, options)

    try:
        run_study(study, engine, todo, on_change=report, on_poll=engine.check_time)
    except TimeOver:
        print("the time is over; the same command goes on", flush=True)
    for cell in todo:
        keep(study, cell, options)
    sys.exit(any(study.state(cell).get("state") == "failed" for cell in todo))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--preset", default="compact")
    parser.add_argument("--tasks", nargs="+", default=FLAT)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 42, 205])
    parser.add_argument("--together", type=int, default=6, help="processes at a time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--keep", type=Path, help="for scores, if not results/PRESET")
    parser.add_argument("--hardware", default="h200")
    parser.add_argument("--steps", type=int, help="of the training, if not the preset's: to try it out")
    parser.add_argument("--samples", type=int, help="likewise")
    options = parser.parse_args()
    options.keep = options.keep or ROOT / "results" / options.preset
    return options


def grid(options: argparse.Namespace) -> list[Cell]:
    """Return all cells, seed by seed, those first whose weights serve most."""
    changes = {} if options.steps is None else {"steps": options.steps}
    trainings = dict.fromkeys(get_method(m).weights for m in options.methods)
    return [
        cell
        for seed in options.seeds
        for weights in trainings
        for task in options.tasks
        for cell in cells(
            [task], [m for m in options.methods if get_method(m).weights == weights], [seed], options.preset,
            samples=options.samples, floor_repeats=1 if task == "navier_stokes" else 3, watch=256, **changes,
        )
    ]  # fmt: skip


def file_of(cell: Cell, options: argparse.Namespace) -> Path:
    """Return the file for the scores of a cell."""
    return Path(options.keep) / f"{cell.name}-{options.hardware}.json"


def keep(study: Study, cell: Cell, options: argparse.Namespace) -> None:
    """Copy new scores."""
    target = file_of(cell, options)
    if not target.exists() and cell.find_scores(study.folder(cell)) is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(scores_file(study.folder(cell), cell.method), target)
        print(f"kept {target.name}", flush=True)


# -- weights as they are shipped --


def take_from_package(study: Study, cell: Cell) -> bool:
    """Copy the weights of this very run from the package; return whether its scores are there, too."""
    package, folder = RunFolder(HOME / f"{cell.run.task}-{cell.run.method}"), study.folder(cell)
    try:
        package.check(cell.run)
    except SapcError:
        return False
    if package.is_trained and not folder.is_trained:
        folder.path.mkdir(parents=True, exist_ok=True)
        for file in (package.config, package.scores, package.weights):
            shutil.copyfile(file, folder.path / file.name)
    return package.is_trained and cell.method == cell.run.method


def work(out: str, folder: str, names: Sequence[str], device: str, *options: Any) -> list[str]:
    """Train, and do the cells."""
    study = open_study(out)
    train(study, study.jobs()[folder][0], device)
    return worker.work(out, folder, names, device, *options)


def train(study: Study, cell: Cell, device: str) -> RunFolder:
    """Train a run; of preset compact, put its weights in half precision into the study."""
    folder, is_compact = study.folder(cell), cell.run.preset == "compact"
    if not folder.is_trained:
        study.record(cell, "training")
        place = RunFolder(study.out.parent / cell.run.preset / cell.folder) if is_compact else folder
        loop.train(cell.run, place.path, device=device)
        if is_compact:
            halve(place, folder)
    return folder


def halve(folder: RunFolder, target: RunFolder) -> None:
    """Write the same run with weights in half precision."""
    target.path.mkdir(parents=True, exist_ok=True)
    for file in (folder.config, folder.environment, folder.log):
        shutil.copyfile(file, target.path / file.name)
    tensors, metadata = load_tensors(folder.weights)
    save_tensors(target.weights, {name: value.half() for name, value in tensors.items()}, metadata)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        del sys.argv[1]
        sys.exit(worker.main(work))
    main()
