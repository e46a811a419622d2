"""The card of a model: what it is, how it was trained, how it scores, in words for whoever gets the folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import paper
from .config import Run, preset
from .errors import SapcError
from .score_record import check_scores

METRICS = ("mmse", "smse", "w2", "ce_local", "ce_global")
HEAD = """---
{license}library_name: sapc
tags: [flow-matching, partial-differential-equations, {task}, {method}]
---

# {title} by {label}

A flow-matching model over solutions of {equation} Given the pinned values ({pinned}), it draws solutions{exact}.

```python
import sapc

model = sapc.{load}
data = model.task.dataset("test0", size=1)
fields = model.sample(n=16, condition=data.fields)
```

## Training

| | |
|---|---|
| network | FNO, {parameters:,} parameters: {blocks} blocks, {hidden} channels, modes {modes}, projection {projection}; weights in {bits} |
| grid | {grid} |
| data | {train:,} solutions, {validation:,} for validation, seed {seed}; `sapc data {task}` makes such |
| optimisation | {steps:,} steps of {batch} with Adam, rate {lr:g} ({schedule}), precision {precision} |
| made by | `sapc train {task} --method {method} --preset {preset}`{changed} |
"""
NO_SCORES = "\n## Scores\n\nNone yet; `sapc evaluate` makes them.\n"
FLOOR = """
The floor is the same metric between independent draws of solutions, below which nothing can be expected. CE_L and CE_G are the errors of
the pinned values and of the balance law.
"""
LIMITS = """
## Limits

It knows the distribution of parameters that it was trained on, on this grid. Elsewhere its samples are not drawn from the right
distribution, even where they satisfy the constraints.
"""


def model_card(
    run: Run,
    parameters: int,
    about: Mapping[str, Any],
    half: bool,
    scores: Mapping[str, Any] | None = None,
    rounded: bool = False,
    name: str | None = None,
    license: str | None = None,
) -> str:
    """The card, in Markdown with the header that the Hugging Face hub reads; `rounded`: the scores are of the weights before."""
    if scores is not None:
        _check(scores)
    task, body = run.make_task(), run.backbone
    load = 'load("path/of/this/folder")' if name is None else f'Model.from_pretrained("{name}")'
    head = HEAD.format(
        license=f"license: {license}\n" if license else "", task=run.task, method=run.method, title=task.title,
        label=paper.METHOD_LABELS.get(run.method, run.method), equation=task.equation.rstrip(".") + ".", pinned=task.pinned,
        exact=_exactness(run, scores), load=load, parameters=parameters, blocks=body.blocks, hidden=body.hidden,
        modes=" x ".join(map(str, body.modes)), projection=body.projection, bits="half precision" if half else "float32",
        grid=" x ".join(map(str, run.grid)), train=run.train, validation=run.validation, seed=run.seed, steps=run.steps,
        batch=run.batch, lr=run.lr, schedule=run.schedule, precision=run.precision, preset=run.preset, changed=_changed(run),
    )  # fmt: skip
    where = f"| on | {about['device']} |\n" if about.get("device") else ""
    return head + where + (NO_SCORES if scores is None else _scored(run, scores, rounded) + FLOOR) + LIMITS


def _check(scores: Any) -> None:
    """Refuse what no evaluation has made."""
    if not isinstance(scores, Mapping) or not {"settings", "mean", "sets"} <= set(scores):
        raise SapcError("scores must be what `evaluate` returns: with settings, sets and their mean")
    try:
        check_scores(scores)
    except SapcError as error:
        raise SapcError(f"scores must be what `evaluate` returns, but this {error}") from error


def _exactness(run: Run, scores: Mapping[str, Any] | None) -> str:
    """What the method promises, and what was seen."""
    task, method = run.make_task(), run.make_method()
    if not (method.exact == "all" or (method.exact == "affine" and task.plain is None)):
        return ""
    worst = (scores or {}).get("mean", {}).get("worst_residual")
    seen = "" if not worst else f" (in the samples scored below to {max(worst.values()):.0e} at worst)"
    return f" that satisfy them and the balance law{seen}"


def _changed(run: Run) -> str:
    """Settings in which a run differs from its preset, by name."""
    try:
        usual = preset(run.preset, run.task, run.method).to_dict()
    except SapcError:
        return ""
    own = run.to_dict()
    names = [name for name, value in own.items() if usual.get(name) != value]
    return f" with other {', '.join(names)} (`config.json`)" if names else ""


def _scored(run: Run, scores: Mapping[str, Any], rounded: bool) -> str:
    settings, mean = scores["settings"], scores["mean"]
    before = "; measured before the weights were rounded" if rounded else ""
    lines = [
        f"\n## Scores\n\nMeans over {', '.join(scores['sets'])}: {settings['samples']:,} samples each against "
        f"{settings['reference']:,} solutions, {settings['steps']} sampling steps{before}.\n",
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
