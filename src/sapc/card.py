"""The card of a model: what it is, how it was trained, how it scores, in words for whoever gets the folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import paper
from .config import Run

METRICS = ("mmse", "smse", "w2", "ce_local", "ce_global")
HEAD = """---
license: apache-2.0
library_name: sapc
tags: [flow-matching, partial-differential-equations, {task}, {method}]
---

# {task}-{method}

{title} with {label}: a flow-matching model over solutions of {equation} Given the pinned values ({pinned}), it draws solutions{exact}

```python
import sapc

model = sapc.load("{task}-{method}")          # or the path of this folder
data = model.task.dataset("test0", size=1)
fields = model.sample(n=16, condition=data.fields)
```

## Training

| | |
|---|---|
| network | FNO, {parameters:,} parameters: {blocks} blocks, {hidden} channels, modes {modes}, projection {projection}; weights in {bits} |
| grid | {grid} |
| data | {train:,} solutions, {validation:,} for validation, seed {seed}; made by `sapc data {task}` |
| optimisation | {steps:,} steps of {batch} with Adam, rate {lr:g} ({schedule}), precision {precision} |
| made by | `sapc train {task} --method {method} --preset {preset}` |
"""
NO_SCORES = "\n## Scores\n\nNone were given; `sapc evaluate` makes them.\n"
TAIL = """
The floor is the same metric between independent draws of solutions, below which nothing can be expected. CE_L and CE_G are the errors of
the pinned values and of the balance law.

## Limits

It knows the distribution of parameters that it was trained on, on this grid; elsewhere its samples still satisfy the constraints, if its
method does, but are no longer drawn from the right distribution. Licence: Apache-2.0, like the package.
"""


def model_card(
    run: Run, parameters: int, about: Mapping[str, Any], half: bool, scores: Mapping[str, Any] | None = None
) -> str:
    """The card, in Markdown with the header that the Hugging Face hub reads."""
    task, method, body = run.make_task(), run.make_method(), run.backbone
    fine = method.exact == "all" or (method.exact == "affine" and task.plain is None)
    exact = " that satisfy them and the balance law exactly." if fine else "."
    head = HEAD.format(
        task=run.task, method=run.method, title=task.title, label=paper.METHOD_LABELS.get(run.method, run.method),
        equation=task.equation.rstrip(".") + ".", pinned=task.pinned, exact=exact, parameters=parameters, blocks=body.blocks,
        hidden=body.hidden, modes=" x ".join(map(str, body.modes)), projection=body.projection,
        bits="half precision" if half else "float32", grid=" x ".join(map(str, run.grid)), train=run.train,
        validation=run.validation, seed=run.seed, steps=int(about.get("step", run.steps)), batch=run.batch, lr=run.lr,
        schedule=run.schedule, precision=run.precision, preset=run.preset,
    )  # fmt: skip
    where = f"| on | {about['device']} |\n" if about.get("device") else ""
    return head + where + (NO_SCORES if scores is None else _scored(run, scores) + TAIL)


def _scored(run: Run, scores: Mapping[str, Any]) -> str:
    settings, mean = scores["settings"], scores["mean"]
    sets = ", ".join(scores["sets"])
    lines = [
        f"\n## Scores\n\nMeans over {sets}: {settings['samples']:,} samples each against {settings['reference']:,} solutions, "
        f"{settings['steps']} sampling steps.\n",
        "| | this model | sampling floor | printed in the paper |",
        "|---|---|---|---|",
    ]
    for name in METRICS:
        value, floor = mean["metrics"][name], mean["floor"].get(name)
        cells = (f"{value:.2g}", "" if floor is None else f"{floor:.2g}", _printed(run, name))
        lines.append(f"| {paper.METRIC_LABELS[name]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _printed(run: Run, metric: str) -> str:
    """By the full-size network of the same method, with the standard error."""
    found = paper.printed("generation", run.task, metric, run.method)
    return "" if found is None else f"{found.mean:g} ± {found.error:g}" if found.error else f"{found.mean:g}"
