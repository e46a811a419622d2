"""Studies: a list of runs becomes run folders with scores, on one machine or a cluster.

A study is a Python file with a list `runs`:

    from sapc.experiments import cells

    runs = cells(["heat", "burgers"], ["sapc", "ffm", "eci"], seeds=(0, 42, 205), preset="published")

`sapc study run FILE` trains what is missing, samples and scores it; `sapc study status FILE` shows the status
of every cell; `sapc report` makes tables and figures. The same from Python:

    study = load_study("studies/smoke.py", out="runs/smoke")
    statuses = run_study(study, Local(workers=2))

See `sapc.experiments.study` for the files of a study, `sapc.experiments.engines` for where jobs run.
"""

from __future__ import annotations

from .._old_names import find_renamed
from .cell import Cell, cells
from .engines import ENGINES, Engine, Inline, Local, Ray, Slurm, make_engine
from .run import run_study
from .status import Status, remaining_time, statuses
from .study import Study, load_study, open_study
from .worker import further_metrics

__getattr__ = find_renamed(__name__)

__all__ = [
    "ENGINES",
    "Cell",
    "Engine",
    "Inline",
    "Local",
    "Ray",
    "Slurm",
    "Status",
    "Study",
    "cells",
    "further_metrics",
    "load_study",
    "make_engine",
    "open_study",
    "remaining_time",
    "run_study",
    "statuses",
]
