"""Results: from folders full of runs to one tidy table.

    collection = collect([Path("runs/study"), Path("results")])
    collection.files       what counts: one file of scores per task, method and seed, by one protocol per task
    collection.problems    what is missing, failed, unfinished, damaged or left out, each with a reason
    table = rows(collection)            # task, method, seed, set, metric, value
    summary(table)["heat", "eci", "mmse"].mean

Only like scores are averaged. The protocol of a task is what its scores have in common: grid, options,
preset, training steps, number of reference solutions, and, where a run folder or the scores record them, the
network and its training. Per task the protocol of most scores counts (of equally many: that of the longer
training); all others are left out by name. Samples, sampling steps and the batch of methods whose batch is
one problem may differ between methods (D-Flow has fewer samples, so another floor), but not within one
method; nor may the test sets.

With x_1 ... x_n over seeds x test sets, mean and standard error are m = Σ x / n and s = sqrt(Σ (x - m)² / (n
- 1)) / sqrt(n). The constraint error of one seed and set is CE = (CE_L / E_L + CE_G / E_G) / 2, with the
means E of FFM's own errors over all of its seeds and sets, so that FFM's mean is 1.
"""

from __future__ import annotations

from ..._old_names import find_renamed
from .collect import collect
from .records import Collection, Problem, ScoresFile
from .table import COST, Row, Summary, floors, notes, read_rows, rows, summary, write_rows

__getattr__ = find_renamed(__name__)

__all__ = [
    "COST",
    "Collection",
    "Problem",
    "Row",
    "ScoresFile",
    "Summary",
    "collect",
    "floors",
    "notes",
    "read_rows",
    "rows",
    "summary",
    "write_rows",
]
