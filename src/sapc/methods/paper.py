"""The numbers that the SAPC paper prints, as data: what a report puts beside its own.

Of the tables on generation (with their supplement) and ablation every cell is a mean m and its standard error
s over 3 seeds x 4 test sets, of the table on cost a median over the same. They are kept as printed, with two
digits: nothing is computed from them but ranks. The source is `SAPC` in `sapc.methods.references`; the labels
of its tables stand in `paper.json`, beside this file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from .._old_names import find_renamed
from ..errors import SapcError
from .references import SAPC

SOURCE = SAPC

METHODS = ("sapc", "pcfm", "eci", "cafm", "pbfm", "dflow", "ffm")
ABLATION_METHODS = ("sapc", "sapc_s3", "sapc_s2", "sapc_s1", "ffm", "cond_ffm")

GENERATION = ("mmse", "smse", "fpd", "ce")
SUPPLEMENT = ("w2", "ce_local", "ce_global")
ABLATION = ("mmse", "smse", "fpd", "w2", "ce", "ce_local", "ce_global")
TABLES = ("generation", "ablation")


@cache
def numbers() -> dict[str, Any]:
    """All of it, as the file holds it."""
    content: dict[str, Any] = json.loads(files("sapc.methods").joinpath("paper.json").read_text("utf-8"))
    return content


_LABELS: dict[str, dict[str, str]] = numbers()["labels"]
TASK_LABELS, METHOD_LABELS, METRIC_LABELS = _LABELS["tasks"], _LABELS["methods"], _LABELS["metrics"]
TASKS = tuple(TASK_LABELS)


@dataclass(frozen=True)
class PrintedMean:
    """A mean and its standard error; None where none is printed (FFM's CE, which is 1 by definition)."""

    mean: float
    error: float | None


@dataclass(frozen=True)
class PrintedCost:
    """What sampling with a method cost; the time relative to FFM's is not printed for FFM.

    Attributes:
        nfe: Network evaluations.
        ms_per_sample: Milliseconds per sample.
        times_ffm: That time relative to FFM's.
        total_s: Seconds of a whole test set.
    """

    nfe: int
    ms_per_sample: float
    times_ffm: float | None
    total_s: float


@dataclass(frozen=True)
class Protocol:
    """How the paper's numbers were made; `samples` per test set and task, beside `reference` solutions."""

    seeds: tuple[int, ...]
    sets: int
    preset: str
    training_steps: int
    samples: dict[str, int]
    reference: int
    precision: str
    device: str


def printed_mean(table: str, task: str, metric: str, method: str) -> PrintedMean | None:
    """Find a cell of the tables on "generation" (with their supplement) or "ablation".

    Args:
        table: "generation" or "ablation".
        task: Name of the task.
        metric: Name of the metric, as in `GENERATION`, `SUPPLEMENT` and `ABLATION`.
        method: Name of the method.

    Returns:
        The mean and its error; None where the tables have none.

    Raises:
        SapcError: There is no such table.
    """
    if table not in TABLES:
        raise SapcError(f"the paper has no table {table!r} of means; choose one of {', '.join(TABLES)}")
    cell = numbers()[table].get(task, {}).get(metric, {}).get(method)
    return None if cell is None else PrintedMean(*cell)


def printed_cost(task: str, method: str) -> PrintedCost | None:
    """Find what sampling with a method cost.

    Args:
        task: Name of the task.
        method: Name of the method.

    Returns:
        The cost; None where it is not printed.
    """
    cost = numbers()["cost"]
    if task not in TASKS or method not in cost["nfe"]:
        return None
    times = (cost[task][name].get(method) for name in ("ms_per_sample", "times_ffm", "total_s"))
    return PrintedCost(cost["nfe"][method], *times)


def training_minutes(task: str, method: str) -> tuple[float, float] | None:
    """From and to how many minutes one training took; None where it is not told."""
    training = numbers()["training"]
    if method == "ffm" and task in TASKS:
        first, last = training["ffm_minutes"]
        return first, last
    minutes = training["sapc_minutes"].get(task) if method == "sapc" else None
    return None if minutes is None else (minutes, minutes)


def ground_truth(task: str, metric: str = "ce_global") -> tuple[float, float] | None:
    """Find between what values an error lies for the solutions themselves, which is the floor of that error.

    Args:
        task: Name of the task.
        metric: "ce_global"; of Stokes also "ce_global_exact_nu", with the true viscosity in place of the
            estimated one, and "nu_error", the error of the estimate.

    Returns:
        The lowest and the highest value; None where they are not printed.
    """
    values = numbers()["ground_truth"]
    if task in ("stokes_ic", "stokes_bc"):
        name = f"{metric}_{task.removeprefix('stokes_')}" if metric == "nu_error" else metric
        pair = values["stokes"].get(name)
    else:
        pair = values.get(task, {}).get(metric)
    return None if pair is None else (pair[0], pair[1])


def protocol() -> Protocol:
    """How the paper's numbers were made."""
    entries = dict(numbers()["protocol"])
    return Protocol(**{**entries, "seeds": tuple(entries["seeds"])})


__getattr__ = find_renamed(__name__)
