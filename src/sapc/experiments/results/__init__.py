"""Results: from folders full of runs to one tidy table.

    found = collect([Path("runs/study"), Path("results")])
    found.files      what counts: one file of scores per task, method and seed, all of a task made by one protocol
    found.problems    what is missing, failed, unfinished, damaged or left out, each with one line that says why
    table = rows(found)                 task, method, seed, set, metric, value
    summary(table)["heat", "eci", "mmse"].mean

Like is averaged with like only. The protocol of a task is what its scores have in common: grid, options, preset, training steps, number of
reference solutions, and, where a run folder or the scores tell them, the network and its training. Per task the protocol of most scores
counts (of equally many: of the longer training), the rest is left out by name. Samples, sampling steps and the batch of methods whose batch
is one problem may differ between methods (D-Flow has fewer samples, so another floor), but not within one; nor may the test sets.

With x_1 ... x_n over seeds x test sets, mean and standard error are m = Σ x / n and s = sqrt(Σ (x - m)² / (n - 1)) / sqrt(n). The
constraint error of one seed and set is CE = (CE_L / E_L + CE_G / E_G) / 2, with the means E of FFM's own errors over all of its seeds and
sets, so that FFM's mean is 1.
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
