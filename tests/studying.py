"""What the tests of studies share: a small study, and what of it must not depend on where and how it ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sapc.experiments import Study
from sapc.training.run_folder import load_tensors

METHODS = ("sapc", "ffm", "eci")
FILE = """
from sapc.experiments import cells
runs = cells(["heat"], {methods}, preset="tiny", sets=("test0", "test1"), samples=4, sampling_steps=3,
             reference=8, floor_repeats=1, watch=3{options})
"""


def study_file(folder: Path, methods=METHODS, options: str = "", name: str = "mini") -> Path:
    path = folder / f"{name}.py"
    path.write_text(FILE.format(methods=list(methods), options=options))
    return path


def scores_of(study: Study) -> dict[str, Any]:
    """What does not depend on the time it took."""
    results = {}
    for cell in study.cells:
        scores = cell.find_scores(study.folder(cell))
        assert scores is not None, cell.name
        parts = ("metrics", "floor", "worst_residual", "trajectory")
        results[cell.name] = {
            split: {part: scores_of_set.get(part) for part in parts}
            for split, scores_of_set in scores["sets"].items()
        }
    return results


def weights_of(study: Study) -> dict[str, bytes]:
    """The trained tensors; their file also holds how long it took."""
    results = {}
    for name in study.jobs():
        tensors = load_tensors(study.out / name / "weights.safetensors")[0]
        results[name] = b"".join(tensors[key].numpy().tobytes() for key in sorted(tensors))
    return results
