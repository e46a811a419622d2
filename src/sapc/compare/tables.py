"""The result as text: two tables that fit 80 columns, and what has to be known to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import fpd


@dataclass(frozen=True)
class Table:
    """Text in rows and columns; `bold` holds the places (row, column) to stress."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    bold: frozenset[tuple[int, int]] = frozenset()

    def markdown(self) -> str:
        """As Markdown has it."""
        lines = [
            "| " + " | ".join(self.columns) + " |",
            "|" + "|".join(["---", *(["---:"] * (len(self.columns) - 1))]) + "|",
        ]
        for i, row in enumerate(self.rows):
            cells = (f"**{cell}**" if (i, j) in self.bold else cell for j, cell in enumerate(row))
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"


def tables(result: Mapping[str, Any]) -> tuple[Table, Table]:
    """The distribution beside its floor, then constraints and cost."""
    return _distribution(result), _constraints(result)


def _distribution(result: Mapping[str, Any]) -> Table:
    most, methods, names = result["samples"], result["methods"], result["metrics"]
    floors = [f for f in result["floors"] if f["metrics"]]
    rows = [(_label("floor", f["samples"], most), *(f["metrics"][k] for k in names)) for f in floors]
    first = len(rows)
    rows += [
        (_label(name, about["samples"], most), *(about["metrics"][k] for k in names))
        for name, about in methods.items()
    ]
    # Scores of fewer samples scatter more: they are no match.
    rivals = [first + i for i, about in enumerate(methods.values()) if about["samples"] == most]
    best = {j: min(rows[i][j] for i in rivals) for j in range(1, 1 + len(names))}
    bold = frozenset((i, j) for i in rivals for j in best if rows[i][j] == best[j])
    texts = [(row[0], *map(_short, row[1:])) for row in rows]
    title = f"Distribution: {most} samples beside {result['reference']} solutions"
    return Table(title, ("method", *names), texts, bold)


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
    """What has to be known to read the tables."""
    grid, most, methods = " x ".join(map(str, result["grid"])), result["samples"], result["methods"]
    said = [
        f"{result['task']}, preset {result['preset']}: {grid} points, {result['training_steps']} training steps, "
        f"seed {result['seed']} of data, weights and noise",
        f"{'mean of ' if len(result['sets']) > 1 else ''}{', '.join(result['sets'])}; sampling steps: "
        + (str(result["steps"]) if result["steps"] else "each method's own number"),
    ]
    for number in sorted({about["samples"] for about in methods.values()} - {most}):
        fewer = ", ".join(name for name, about in methods.items() if about["samples"] == number)
        said.append(
            f"({number}): {fewer} with {number} samples, so with a higher floor, and not among the best"
        )
    said.append("sampled with " + "; ".join(dict.fromkeys(map(_means, methods.values()))))
    said += sorted({f"no sampling floor: {f['left_out']}" for f in result["floors"] if f["left_out"]})
    if "frd" in result["metrics"]:
        said.append("frd: Fréchet distance by random features, mean of three; it is not FPD")
    rivals = [about["metrics"] for about in methods.values() if about["samples"] == most]
    if {"fpd", "frd"} <= {*result["metrics"]} and len(rivals) > 1:
        order = fpd.agreement(*([values[name] for values in rivals] for name in ("fpd", "frd")))
        said.append(
            f"frd orders these methods as fpd does: Kendall's tau {order['kendall']:.2f}, Spearman's rho {order['spearman']:.2f}"
        )
    if all(about["ce"] is None for about in methods.values()):
        said.append(
            "no ce: it divides by ffm's errors, and ffm is not among the methods or its errors are zero"
        )
    said += [f"failed: {name}: {why}" for name, why in result["failed"].items()]
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
