"""Comparison: methods side by side on one task, from training to a table.

    plan = Comparison("heat", methods=("sapc", "ffm", "eci"), preset="small", out=Path("runs/compare"))
    result = plan.compare()             # check, train, evaluate, write; what is done already is used
    for table in tables(result):
        print(table.markdown())

or part by part: `plan.train("eci")` trains the weights that ECI samples with, FFM's, in `runs/compare/heat-ffm`; `plan.evaluate("eci")`
samples and scores it into `scores-eci.json` there; `plan.result()` gathers what is scored. Without `methods` it is all of the paper's.

All methods get the same data, network, number of training steps, test sets and source draws. The exception are methods whose batch is one
problem (D-Flow, with 21 times the evaluations and their gradients): they may get fewer samples, and every number of samples its own floor.

What is trained is used, what was interrupted continues, and scores with these very settings of these very weights (their SHA-256 stands in
the scores) are not computed again. A method that fails does not keep the others from being compared; the result says why it did.

The sampling floor depends on solutions and numbers of samples alone. The first method computes it, the scores of the others take it from
there; so every file of scores is as complete as `sapc evaluate` writes it.
"""

from __future__ import annotations

from ..report.format import Table
from .plan import Comparison
from .tables import markdown, notes, tables

__all__ = ["Comparison", "Table", "markdown", "notes", "tables"]
