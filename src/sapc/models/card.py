"""The card of a model: what it is, how it was trained and how it scores, for whoever gets the folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import SapcError
from ..flow import EULER
from ..methods import EXTENSION_LABELS, METHODS, paper
from ..training.config import TrainingConfig, training_config
from ..training.presets import settings_for_data
from .scores import REQUIRED_METRICS as METRICS
from .scores import Scores

HEAD = """---
{license}library_name: sapc
tags: [flow-matching, partial-differential-equations, {task}, {method}]
---

# {title} by {label}

{summary}{exact}.

```python
import sapc
{before}
model = sapc.{load}
data = model.task.dataset("{split}", size=1)
fields = model.sample(n=16, condition=data.fields)
```
{note}
## Training

| | |
|---|---|
| network | {network}; weights in {bits} |
| grid | {grid} |
| data | {data} |
| optimisation | {steps:,} steps of {batch} with Adam, rate {lr:g} ({schedule}), precision {precision} |
| made by | `{command}`{changed} |
"""
FOLDER = "path/of/this/folder"
NO_SCORES = "\n## Scores\n\nNone yet; `{command}` makes them.\n"
FLOOR = """
The floor is the same metric between independent draws of solutions, below which nothing can be expected. \
CE_L and CE_G are the errors of
the pinned values and of the balance law.
"""
ERRORS = """
CE_L and CE_G are the errors of the pinned values and of the laws. There is no sampling floor: the data have no
further draws.
"""
LIMITS = """
## Limits

It knows the distribution of parameters that it was trained on, on this grid. Elsewhere its samples are not \
drawn from the right
distribution, even where they satisfy the constraints.
"""


class CardText(NamedTuple):
    """What a card says that the run does not know: name, licence, and the text of the physics."""

    name: str | None = None
    license: str | None = None
    physics: str | None = None


EMPTY = CardText()


def model_card(
    run: TrainingConfig,
    parameters: int,
    metadata: Mapping[str, Any],
    half: bool,
    scores: Scores | None = None,
    was_rounded: bool = False,
    text: CardText = EMPTY,
) -> str:
    """Write the card, in Markdown with the header that the Hugging Face hub reads.

    Args:
        run: Settings of the training.
        parameters: Number of parameters of the network.
        metadata: What was recorded at the end of the training.
        half: Whether the weights are in half precision.
        scores: Scores of the weights.
        was_rounded: Whether the scores are of the weights before they were rounded.
        text: What whoever passes the model on adds.

    Returns:
        The text.
    """
    has_physics = text.physics is not None
    own_data = not run.description.can_draw
    texts = _own_data_entries(run, text.name, has_physics) if own_data else _task_entries(run, text.name)
    if argument := run.backbone.argument:
        texts |= _network_entries(run, texts["load"], argument)
    evaluation = texts.pop("evaluation")
    head = HEAD.format(
        license=f"license: {text.license}\n" if text.license else "", task=run.task, method=run.method,
        label=_method_label(run.method), network=run.backbone.describe(parameters),
        bits="half precision" if half else "float32",
        grid=" x ".join(map(str, run.grid)), steps=run.steps, batch=run.batch, lr=run.lr,
        schedule=run.schedule, precision=run.precision, changed=_describe_changes(run),
        exact=_describe_exactness(run, scores), **texts,
    )  # fmt: skip
    device = f"| on | {metadata['device']} |\n" if metadata.get("device") else ""
    if scores is None:
        return head + device + NO_SCORES.format(command=evaluation) + LIMITS
    floor = FLOOR if run.description.can_draw else ERRORS
    return head + device + _score_table(run, scores, was_rounded) + floor + LIMITS


def _method_label(name: str) -> str:
    """Return the name of a method as the paper has it, and say of one beyond the paper that it is."""
    if label := EXTENSION_LABELS.get(name):
        return f"{label} ({METHODS[name].title}, beyond the paper)"
    return paper.METHOD_LABELS.get(name, name)


def _task_entries(run: TrainingConfig, name: str | None) -> dict[str, str]:
    """Return the entries of a card for a task with a solver."""
    task = run.make_task()
    return {
        "title": task.title,
        "summary": f"A flow-matching model over solutions of {task.equation.rstrip('.')}. Given the pinned "
        f"values ({task.pinned}), it draws solutions",
        "load": f'load("{FOLDER}")' if name is None else f'Model.from_pretrained("{name}")',
        "data": f"{run.train:,} solutions, {run.validation:,} for validation, seed {run.seed}; "
        f"`sapc data {run.task}` makes such",
        "command": f"sapc train {run.task} --method {run.method} --preset {run.preset}"
        + _symmetry_option(run),
        "evaluation": f"sapc evaluate {FOLDER}",
        "split": "test0",
        "before": "",
        "note": "",
    }


def _symmetry_option(run: TrainingConfig) -> str:
    """Return the option for the symmetries of a run, where they are not those of its preset."""
    if bool(run.symmetries) == (run.preset == "best") or not run.make_task().find_symmetries():
        return ""
    return " --symmetries" if run.symmetries else " --no-symmetries"


def _own_data_entries(run: TrainingConfig, name: str | None, physics: bool) -> dict[str, str]:
    """Return the entries of a card for own data; neither they nor the physics are needed for it."""
    description = run.description
    physics_file, file = description.physics_file, Path(description.data.get("path") or "").name
    code = f"{FOLDER}/physics.py" if physics else physics_file
    data, source = (json.dumps(text) if text else word for text, word in ((file, "data"), (code, "physics")))
    load = f'load("{FOLDER}", physics={source}, data={data})'
    if name is not None:
        source = f'hf_hub_download("{name}", "physics.py")' if physics else source
        load = f'Model.from_pretrained("{name}", physics={source}, data={data})'
    place = (
        "goes along as `physics.py`: read it before you run it" if physics else "is not part of this folder"
    )
    words = ", ".join(f"`{channel}`" for channel in description.grid.channels)
    law = f"with physics of its own (`{physics_file or 'a function in Python'}`)"
    return {
        "title": f"{run.task}, own data",
        "summary": f"A flow-matching model over fields ({words}) like those of `{file or 'its data'}`, "
        f"{law}. Given the pinned values, it draws fields",
        "before": "from huggingface_hub import hf_hub_download\n" if "hf_hub_download" in load else "",
        "load": load,
        "data": f"{run.train:,} samples of `{file or 'its data'}`, {run.validation:,} for validation"
        + (f"; SHA-256 {description.data['sha256']}" if description.data.get("sha256") else ""),
        "command": _training_command(run, file, code)
        if file and code
        else f'sapc.training_config(sapc.Task.from_data(data, physics, "{run.task}"), "{run.method}", '
        f'"{run.preset}")',
        "evaluation": f"sapc evaluate {FOLDER} --physics {shlex.quote(code)} --data {shlex.quote(file)}"
        if file and code
        else "sapc.evaluate(model)",
        "split": "validation",
        "note": f"\nThe physics {place}. The data stay with whoever made the model; without them, leave out "
        "`data=` and give a condition of your own, fields of which only the pinned values count.\n",
    }


def _network_entries(run: TrainingConfig, load: str, argument: str) -> dict[str, str]:
    """Return the entries of a card that differ where the network is not made from the run's settings."""
    return {
        "load": f"{load[:-1]}, {argument})",
        "command": f"sapc.train(task, {run.method!r}, {run.preset!r}, {argument})",
        "evaluation": "sapc.evaluate(model)",
    }


def _training_command(run: TrainingConfig, data: str, code: str) -> str:
    """Return the command that makes a task of own data again and trains on it."""
    description = run.description
    grid, reading, share = description.grid, description.reading, description.split["share"]
    kinds = {kind: [a.name for a in grid.axes if a.kind == kind] for kind in ("periodic", "cells")}
    options = {
        "--data": data,
        "--physics": code,
        "--name": run.task,
        "--channels": ",".join(grid.channels),
        **{f"--{kind}": ",".join(names) for kind, names in kinds.items() if names},
        **{
            f"--{word}": reading[key]
            for key, word in (("time", "time"), ("samples", "samples-dim"))
            if key in reading
        },
        **({"--validation-share": f"{share:g}"} if share != 0.1 else {}),
        "--method": run.method,
        "--preset": run.preset,
    }
    words = [shlex.quote(word) for pair in options.items() for word in pair]
    # One that is code was declared in Python.
    words += [
        w
        for text in run.symmetries
        if not text.startswith("function:")
        for w in ("--symmetry", shlex.quote(text))
    ]
    if "steady" in reading:
        words.append("--steady" if reading["steady"] else "--unsteady")
    return " ".join(("sapc train", *words))


def _describe_exactness(run: TrainingConfig, scores: Scores | None) -> str:
    """Say what the method promises and what was measured."""
    # Whether the laws of own data are affine is not known here.
    method = run.make_method()
    affine = run.description.can_draw and run.make_task().published_solver is None
    if not (method.exact == "all" or (method.exact == "affine" and affine)):
        return ""
    worst = scores.mean.worst_residual if scores else None
    measurement = "" if not worst else f" (in the samples scored below to {max(worst.values()):.0e} at worst)"
    return f" that satisfy them and the {'balance law' if run.description.can_draw else 'laws'}{measurement}"


def _describe_changes(run: TrainingConfig) -> str:
    """Name the settings in which a run differs from its preset."""
    settings = run.to_dict()
    try:
        if run.description.can_draw:
            preset = training_config(run.task, run.method, run.preset).to_dict()
        else:
            sizes = settings_for_data(run.preset, run.grid, run.description.sizes)
            preset = TrainingConfig(
                run.task, run.method, options=run.options, preset=run.preset, **sizes
            ).to_dict()
    except (SapcError, KeyError):
        return ""
    names = [name for name, value in settings.items() if preset.get(name) != value]
    return f" with other {', '.join(names)} (`config.json`)" if names else ""


def _score_table(run: TrainingConfig, scores: Scores, was_rounded: bool) -> str:
    settings, mean = scores.settings, scores.mean
    rounding = "; measured before the weights were rounded" if was_rounded else ""
    lines = [
        f"\n## Scores\n\nMeans over {', '.join(scores.sets)}: {settings.samples:,} samples each against "
        f"{settings.reference:,} solutions, {settings.steps} sampling steps ({_describe_sampler(run, scores)})"
        f"{rounding}.\n",
    ]
    # Data of one's own have no floor, and are not in the paper.
    columns = ("this model", "sampling floor", "printed in the paper")[: 3 if run.description.can_draw else 1]
    lines += [f"| | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for name in METRICS:
        value, floor = mean.metrics[name], mean.floor.get(name)
        cells = (f"{value:.2g}", "" if floor is None else f"{floor:.2g}", _printed_score(run, name))
        lines.append(f"| {paper.METRIC_LABELS[name]} | {' | '.join(cells[: len(columns)])} |")
    return "\n".join(lines) + "\n"


def _describe_sampler(run: TrainingConfig, scores: Scores) -> str:
    """Name the sampler of the scores, and say where it is not the one that `sample` takes by itself."""
    name = scores.settings.sampler_name
    if name != EULER.name or not run.make_method().accepts_sampler:
        return name
    return f"{name}, as in the paper; `sample` takes fewer, of second order, unless told otherwise"


def _printed_score(run: TrainingConfig, metric: str) -> str:
    """Return the printed score of the full-size network of the same method, with its standard error."""
    score = paper.printed_mean("generation", run.task, metric, run.method)
    if score is None:
        return ""
    return f"{score.mean:g} ± {score.error:g}" if score.error else f"{score.mean:g}"
