"""The result of a comparison as text: two tables that fit 80 columns, and what has to be known to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..evaluation import metrics
from ..evaluation.frechet import distance as fpd
from .report.format import Table

RANKED = 4  # methods from which an order says something


def tables(result: Mapping[str, Any]) -> tuple[Table, ...]:
    """The distribution beside its floor, by Fréchet distances too where there are any, then constraints and cost."""
    usual = [name for name in result["metrics"] if name in metrics.DISTRIBUTION]
    others = [name for name in result["metrics"] if name not in usual]
    sizes = f"{result['samples']} samples beside {result['reference']} solutions"
    beyond = (_scores(result, "Fréchet distances", others),) if others else ()
    return (_scores(result, f"Distribution: {sizes}", usual), *beyond, _constraints(result))


def _scores(result: Mapping[str, Any], title: str, names: Sequence[str]) -> Table:
    most, methods = result["samples"], result["methods"]
    floors = [f for f in result["floors"] if f["metrics"]]
    rows = [(_label("floor", f["samples"], most), *(f["metrics"].get(k) for k in names)) for f in floors]
    first = len(rows)
    rows += [
        (_label(name, about["samples"], most), *(about["metrics"][k] for k in names))
        for name, about in methods.items()
    ]
    # Scores of fewer samples scatter more: they are no match.
    rivals = [first + i for i, about in enumerate(methods.values()) if about["samples"] == most]
    best = {j: min(rows[i][j] for i in rivals) for j in range(1, 1 + len(names))}
    bold = frozenset((i, j) for i in rivals for j in best if rows[i][j] == best[j])
    return Table(title, ("method", *names), [(row[0], *map(_short, row[1:])) for row in rows], bold)


def _constraints(result: Mapping[str, Any]) -> Table:
    rows = [
        (
            name,
            _short(about["metrics"]["ce_local"]),
            _short(about["metrics"]["ce_global"]),
            _short(about["ce"]),
            str(about["evaluations"]),
            _seconds(about["seconds_per_sample"]),
            f"of {about['weights']}" if name != about["weights"] else _seconds(about["training_seconds"]),
        )
        for name, about in result["methods"].items()
    ]
    columns = ("method", "ce_local", "ce_global", "ce", "NFE", "s/sample", "training")
    return Table("Constraints and cost; times in seconds", columns, rows)


def notes(result: Mapping[str, Any]) -> list[str]:
    """Return what has to be known to read the tables."""
    grid, most, methods = " x ".join(map(str, result["grid"])), result["samples"], result["methods"]
    steps = str(result["steps"]) if result["steps"] else "each method's own number"
    said = [
        f"{result['task']}, preset {result['preset']}: {grid} points, {result['training_steps']} training steps, "
        f"seed {result['seed']} of data, weights and noise",
        f"{'mean of ' if len(result['sets']) > 1 else ''}{', '.join(result['sets'])}; sampling steps: {steps}",
    ]
    for number in sorted({about["samples"] for about in methods.values()} - {most}):
        fewer = ", ".join(name for name, about in methods.items() if about["samples"] == number)
        said += [f"({number}): {fewer} with {number} samples, so with a higher floor, and not among the best"]
    said += ["sampled with " + "; ".join(dict.fromkeys(map(_means, methods.values())))]
    said += sorted({f"no sampling floor: {f['left_out']}" for f in result["floors"] if f["left_out"]})
    said += _about_distances(result)
    if all(about["ce"] is None for about in methods.values()):
        said += ["no ce: it divides by ffm's errors, and ffm is not among the methods or its errors are zero"]
    return said + [f"failed: {name}: {why}" for name, why in result["failed"].items()]


def _about_distances(result: Mapping[str, Any]) -> list[str]:
    """Return what FPD and FRD are here, and how alike they order the methods."""
    said = [f"fpd by {w['file']}, sha256 {w['sha256']}" for w in result.get("fpd_weights", ())]
    said = said or ["no fpd: it needs the weights of Poseidon-B, by --poseidon or SAPC_POSEIDON"]
    if "frd" in result["metrics"]:
        said += ["frd: Fréchet distance by random features, mean of three; it is not FPD"]
    rivals = [a["metrics"] for a in result["methods"].values() if a["samples"] == result["samples"]]
    if {"fpd", "frd"} <= {*result["metrics"]} and len(rivals) >= RANKED:
        order = fpd.agreement(*([values[name] for values in rivals] for name in ("fpd", "frd")))
        both = f"Kendall's tau {order['kendall']:.2f}, Spearman's rho {order['spearman']:.2f}"
        said += [f"agreement of frd with fpd in the order of these {len(rivals)}: {both}"]
    return said


def markdown(result: Mapping[str, Any]) -> str:
    """The tables and the notes as a page."""
    parts = [f"# {result['title']}: methods compared\n"]
    for table in tables(result):
        parts += [f"## {table.title}\n", table.markdown()]
    parts.append("\n".join(f"- {note}" for note in notes(result)) + "\n")
    return "\n".join(parts)


def _means(about: Mapping[str, Any]) -> str:
    """Versions and hardware of an evaluation."""
    where = about["environment"]
    device = where["device"] if about["device"].startswith("cuda") else f"{where['cpus']} CPU cores"
    return f"sapc {where['sapc']} and torch {where['torch']} on {device}"


def _label(name: str, number: int, most: int) -> str:
    return name if number == most else f"{name} ({number})"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2e}" if value else "0"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"
