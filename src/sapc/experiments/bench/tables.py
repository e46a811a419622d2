"""The figures as tables, each at most 80 columns wide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.table import Table

Row = dict[str, Any]


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """One table per part that was measured; of methods one per task and style, of projections one per start."""
    if "backbone" in result:
        yield _backbone(result["backbone"])
    titles = {"training": "A training step", "sampling": "A sample in 100 steps"}
    for part, title in titles.items():
        if part in result:
            yield _pairs(title, result[part])
    if "features" in result:
        yield _features(result["features"])
    rows = result.get("projection", [])
    for start in dict.fromkeys(row["start"] for row in rows):
        yield _projection(start, [row for row in rows if row["start"] == start])
    rows = result.get("methods", [])
    for task in dict.fromkeys(row["task"] for row in rows):
        some = [row for row in rows if row["task"] == task]
        yield _methods(task, some)
        if any("peers" in row for row in some):
            yield _peers(task, some)


def _backbone(rows: list[Row]) -> Table:
    table = _table("The network: a step is forward and backward", "points", "batch", "path", gap=0)
    _add_numbers(table, "step ms", "forward ms", "of plain", "MiB")
    for row in rows:
        grid, times = " x ".join(map(str, row["grid"])), (row["step_ms"], row["forward_ms"])
        numbers = (*map(_ms, times), _factor(row["of_plain"]), _mib(row.get("peak_bytes")))
        table.add_row(grid, str(row["batch"]), row["path"], *numbers)
    return _noted(table, {row["path"]: row["left_out"] for row in rows if "left_out" in row})


def _pairs(title: str, rows: list[Row]) -> Table:
    table = _table(title, "task", "batch", "precision")
    _add_numbers(table, "FFM ms", "SAPC ms", "SAPC / FFM")
    alone = "alone_ms" in rows[0]
    if alone:
        _add_numbers(table, "SAPC, one field")
    for row in rows:
        numbers = [_ms(row["ffm_ms"]), _ms(row["sapc_ms"]), _factor(row["ratio"])]
        table.add_row(
            row["task"],
            str(row["batch"]),
            row["precision"],
            *numbers,
            *([_ms(row["alone_ms"])] if alone else []),
        )
    return table


def _features(rows: list[Row]) -> Table:
    images, timed, points = (rows[0][key] for key in ("images", "timed", "points"))
    scaled = "" if timed == images else f", from {timed}"
    table = _table(f"{images} images of {points} x {points}{scaled}", "encoder")
    _add_numbers(table, "features s", "image ms", "distance s")
    for row in rows:
        numbers = (row["features_s"], row["image_ms"], row["distance_s"])
        table.add_row(f"Poseidon-{row['size']}", *map(_ms, numbers))
    return table


def _projection(start: str, rows: list[Row]) -> Table:
    """Ours, then the dense one; the last column is how many fields it was timed on."""
    table = _table(f"Projection from {start}, a field: ours | a dense Jacobian", "task", gap=0)
    _add_numbers(table, "ms", "MiB", "|R|", "| ms", "MiB", "|R|", "ratio", "fields")
    for row in rows:
        ours = (_ms(row["ours_ms"]), _mib(row["ours_peak_bytes"]), _small(row["ours_residual"]))
        time = _or_reason(row, "dense")
        dense = (time, _mib(row.get("dense_peak_bytes")), _small(row.get("dense_residual")))
        table.add_row(
            row["task"], *ours, *dense, _factor(row.get("ratio")), str(row.get("dense_fields", "-"))
        )
    return _noted(table, {row["task"]: row["dense_left_out"] for row in rows if "dense_left_out" in row})


def _methods(task: str, rows: list[Row]) -> Table:
    """A dash where a method trains nothing of its own, or where the system does not tell its memory."""
    about = f"{rows[0]['precision']}, training in batches of {rows[0]['batch']}"
    table = _table(f"{task}: every method; {about}", "method", gap=0)
    _add_numbers(table, "step ms", "/ FFM", "MiB", "NFE", "batch", "sample ms", "/ FFM", "MiB")
    for row in rows:
        step, sample = (
            (_or_reason(row, what), _factor(row[f"{what}_of_ffm"])) for what in ("step", "sample")
        )
        memory = _mib(row.get("step_peak_bytes")), _mib(row["peak_bytes"])
        numbers = (*step, memory[0], str(row["nfe"]), str(row["sampled"]), *sample, memory[1])
        table.add_row(row["method"], *numbers)
    return table


def _peers(task: str, rows: list[Row]) -> Table:
    """The same methods in the peers' style, as multiples of the table above, with the fields they were timed on."""
    table = _table(f"{task}: the peers' way, eager FFTs in float32 and dense Jacobians", "method", gap=0)
    half = ("/ ours", "MiB", "fields")
    _add_numbers(table, "step ms", *half, "sample ms", *half)
    reasons = {}
    for row in (row for row in rows if "peers" in row):
        peers, cells = row["peers"], []
        for what in ("step", "sample"):
            fields = str(peers[f"{what}_fields"] or "-")
            memory = _mib(peers[f"{what}_peak_bytes"])
            cells += [_or_reason(peers, what), _factor(peers[f"{what}_of_ours"]), memory, fields]
            if f"{what}_left_out" in peers:
                reasons[f"{row['method']}, {what}"] = peers[f"{what}_left_out"]
        table.add_row(row["method"], *cells)
    return _noted(table, reasons)


def _or_reason(row: Row, what: str) -> str:
    """A time, or in a word why there is none."""
    if (time := row.get(f"{what}_ms")) is not None:
        return _ms(time)
    return "memory" if row.get(f"{what}_full") else str(row.get(f"{what}_left_out", "-")).partition(":")[0]


def _noted(table: Table, reasons: dict[str, str]) -> Table:
    """With what was left out, and why, below."""
    if reasons:
        table.caption = "\n".join(f"{name}: {reason}" for name, reason in reasons.items())
        table.caption_justify = "left"
    return table


def _table(title: str, *columns: str, gap: int = 1) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0))
    table.min_width = len(title)  # a title wraps at the table's width
    for column in columns:
        table.add_column(column, justify="right" if column == "batch" else "left", no_wrap=True)
    return table


def _add_numbers(table: Table, *columns: str) -> None:
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)


def _ms(value: float | None) -> str:
    """Three digits, without an exponent."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 1e-4 else f"{value:.1g}"


def _factor(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _mib(value: int | None) -> str:
    return "-" if value is None else f"{value / 2**20:.0f}"


def _small(value: float | None) -> str:
    return "-" if value is None else f"{value:.0e}"
