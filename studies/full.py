"""What `studies/paper.py` has, in the same order, with the better training of preset `full`."""

from pathlib import Path
from runpy import run_path

from sapc.experiments import cells

paper_runs = run_path(str(Path(__file__).with_name("paper.py")))["runs"]
runs = [
    cell
    for c in paper_runs
    for cell in cells(
        [c.run.task], [c.method], [c.run.seed], preset="full", watch=c.evaluation.trajectory_samples
    )
]
