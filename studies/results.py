"""The tables of results in README.md and docs/, made from the scores that are kept in the repository.

    python studies/results.py            # write the tables between two marks in README.md and docs/results.md
    python studies/results.py --check    # say whether these are up to date, for tests
    python studies/results.py --pages    # write docs/results/*.md, the tables of `sapc report` by preset

The pages are not kept in the repository; `make docs` makes them.

Scores: src/sapc/models/pretrained and results/compact (preset compact), results/full and results/paper.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from math import log
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import samplers

from sapc import fpd
from sapc.experiments.report import make_report
from sapc.methods import paper
from sapc.models.scores import Scores

ROOT = Path(__file__).resolve().parent.parent
SCORES = {
    "published": [ROOT / "results" / "paper"],
    "full": [ROOT / "results" / "full"],
    "compact": [ROOT / "src" / "sapc" / "models" / "pretrained", ROOT / "results" / "compact"],
}
METRICS = ("mmse", "smse", "w2", "ce_local", "ce_global")
METHODS = tuple(dict.fromkeys((*paper.METHODS, *paper.ABLATION_METHODS)))
BEGIN, END = "<!-- results: made by studies/results.py -->\n", "<!-- end of results -->\n"
TITLES = {
    "published": "Published settings",
    "full": "Published network, better training",
    "compact": "The models that come with the package",
}


class Mean(NamedTuple):
    """Metrics and sampling floor of one method on one task: means over seeds and test sets."""

    metrics: dict[str, float]
    floor: dict[str, float]


# By preset, then by task and sampling method.
Means = dict[str, dict[tuple[str, str], Mean]]


def main() -> None:
    """Write the tables, or compare them with what is there."""
    parser = argparse.ArgumentParser()
    check_help = "change nothing; exit 1 if a table is out of date"
    parser.add_argument("--check", action="store_true", help=check_help)
    parser.add_argument("--pages", action="store_true", help="write the pages of docs/results")
    arguments = parser.parse_args()
    stale = []
    for path, text in (make_pages() if arguments.pages else make_summaries()).items():
        if not path.exists() or path.read_text() != text:
            stale.append(str(path.relative_to(ROOT)))
            if not arguments.check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
    if arguments.pages and (rows := samplers.read_rows()):
        samplers.draw(rows, ROOT / "docs" / "results" / "samplers.png")
    print(*stale or ["everything is up to date"], sep="\n")
    sys.exit(1 if arguments.check and stale else 0)


def make_pages() -> dict[Path, str]:
    """Return the pages of docs/results: one per preset, and two of what goes beyond the paper."""
    folder = ROOT / "docs" / "results"
    pages = {folder / f"{preset}.md": preset_page(preset) for preset in SCORES}
    if rows := samplers.read_rows():
        pages[folder / "samplers.md"] = samplers.page(rows)
    pages[folder / "beyond.md"] = "\n".join(beyond_page()) + "\n"
    return pages


def beyond_page() -> list[str]:
    """Return the lines of the page on the condition as an input, symmetries, and data of one's own."""
    # Simulations of the examples want more libraries than tables do.
    import best
    import own_data

    parts, rows = best.tables(best.OUT), own_data.read_rows()
    lines = [
        "# Beyond the paper",
        "",
        "What is on this page is not in the paper, and no table beside its numbers is made with it.",
        "",
    ]
    if parts:
        lines += ["## The six tasks, part by part", "", *best.explanation(), "", *parts]
    if rows:
        lines += ["## Data of one's own", "", *own_data.explanation(rows), "", *own_data.tables(rows)]
    return lines


def make_summaries() -> dict[Path, str]:
    """Return README.md and docs/results.md with their tables between the marks."""
    means = {preset: average(folders) for preset, folders in SCORES.items()}
    files = {}
    for path, lines in (
        (ROOT / "docs" / "results.md", page_tables(means)),
        (ROOT / "README.md", short_table(means)),
    ):
        before, _, after = path.read_text().partition(BEGIN)
        files[path] = before + BEGIN + "\n".join(lines) + "\n" + END + after.partition(END)[2]
    return files


def average(folders: list[Path]) -> dict[tuple[str, str], Mean]:
    """Average the scores in some folders over seeds and test sets, by task and sampling method."""
    runs: dict[tuple[str, str], list[Scores]] = {}
    for path in sorted(p for f in folders for p in (*f.glob("*.json"), *f.glob("*/scores*.json"))):
        scores = Scores.read(path)
        runs.setdefault((scores.run.task, scores.settings.method), []).append(scores)
    means = {}
    for key, seeds in runs.items():
        metrics = {m: sum(s.mean.metrics[m] for s in seeds) / len(seeds) for m in METRICS}
        means[key] = Mean(metrics, dict(next((s.mean.floor for s in seeds if s.mean.floor), {})))
    return means


def preset_page(preset: str) -> str:
    """Return the tables of `sapc report` for one preset, as a page."""
    with tempfile.TemporaryDirectory() as out:
        make_report(SCORES[preset], out)
        text = (Path(out) / "tables.md").read_text()
    folders = " ".join(str(folder.relative_to(ROOT)) for folder in SCORES[preset])
    head = (
        f"# {TITLES[preset]}\n\nMade by `sapc report {folders}`; [what it means](../results.md). "
        "Several runs shared the GPU while these were made, so the times of sampling and training below "
        "are not those of a run alone.\n"
    )
    return head + text.removeprefix("# Tables\n")


def page_tables(means: Means) -> list[str]:
    """Return the lines of docs/results.md: SAPC and FFM by all metrics, then all methods by W2."""
    return [
        "SAPC:",
        "",
        *metrics_table(means, "sapc"),
        "",
        "FFM, flow matching without constraints:",
        "",
        *metrics_table(means, "ffm"),
        "",
        "W2 of every method, in the paper's order; the paper's mean first, then ours by preset `compact`:",
        "",
        *methods_table(means),
    ]


def metrics_table(means: Means, method: str) -> list[str]:
    """Return a table of one method on every task by all metrics."""
    presets = [f"`{preset}`" for preset in SCORES]
    lines = _head(["task", "metric", "paper", *presets, "floor"], text_columns=2)
    for task in paper.TASKS:
        for metric in METRICS:
            labels = paper.TASK_LABELS[task], paper.METRIC_LABELS[metric]
            lines.append(_line([*labels, *_cells(means, task, method, metric), _floor(means, task, metric)]))
    return lines


def methods_table(means: Means) -> list[str]:
    """Return a table of W2: the paper's beside ours by preset compact, and how far the orders agree."""
    theirs = {t: {m: v for m in METHODS if (v := _printed_w2(t, m)) is not None} for t in paper.TASKS}
    compact = means["compact"]
    ours = {t: {m: compact[t, m].metrics["w2"] for m in METHODS if (t, m) in compact} for t in paper.TASKS}
    lines = _head(["", *(paper.TASK_LABELS[task] for task in paper.TASKS)], text_columns=1)
    for m in sorted(METHODS, key=lambda m: fmean(log(theirs[task][m]) for task in paper.TASKS)):
        cells = (
            f"{_short(theirs[t][m])}, {_short(ours[t][m]) if m in ours[t] else '–'}" for t in paper.TASKS
        )
        lines.append(_line([paper.METHOD_LABELS[m], *cells]))
    agreements = (_agreement([(theirs[t][m], ours[t][m]) for m in ours[t]]) for t in paper.TASKS)
    return [*lines, _line(["Spearman's rank correlation", *agreements])]


def short_table(means: Means) -> list[str]:
    """Return the table of the README: W2, and the error of the law, on every task."""
    columns = ["W2", "FFM: paper", "SAPC: paper", "`compact`", "`full`", "floor", "law: paper", "`full`"]
    lines = _head(columns, text_columns=1)
    for task in paper.TASKS:
        w2, law = _cells(means, task, "sapc", "w2"), _cells(means, task, "sapc", "ce_global")
        ffm = _cells(means, task, "ffm", "w2")[0]
        cells = (ffm, w2[0], w2[3], w2[2], _floor(means, task, "w2"), law[0].partition(" ±")[0], law[2])
        lines.append(_line([paper.TASK_LABELS[task], *cells]))
    return lines


def _head(columns: list[str], text_columns: int) -> list[str]:
    """Return the first two lines of a table, whose last columns are numbers."""
    numbers = len(columns) - text_columns
    return [_line(columns), "|" + "---|" * text_columns + "---:|" * numbers]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _printed_w2(task: str, method: str) -> float | None:
    for table in ("generation", "ablation"):
        if (cell := paper.printed_mean(table, task, "w2", method)) is not None:
            return cell.mean
    return None


def _agreement(pairs: list[tuple[float, float]]) -> str:
    return f"{fpd.agreement(*(list(x) for x in zip(*pairs, strict=True)))['spearman']:.2f} of {len(pairs)}"


def _cells(means: Means, task: str, method: str, metric: str) -> list[str]:
    """Return the printed value with its error, then ours by preset; SAPC's bold if within one error."""
    printed = paper.printed_mean("generation", task, metric, method)
    assert printed is not None
    bound = printed.mean + (printed.error or 0)
    error = f" ± {_short(printed.error, 1)}" if printed.error else ""
    cells = [_short(printed.mean) + error]
    for scores in means.values():
        mean = scores.get((task, method))
        value = None if mean is None else mean.metrics[metric]
        text = "" if value is None else _short(value)
        cells.append(f"**{text}**" if value is not None and value <= bound and method == "sapc" else text)
    return cells


def _short(value: float, digits: int = 2) -> str:
    """Write a number briefly: 0.23, 4.7, 12, 8.2e-6."""
    if value == 0 or 0.01 <= value < 100:
        return f"{value:.{digits}g}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _floor(means: Means, task: str, metric: str) -> str:
    """Return the sampling floor of a task; all of its scores have the same."""
    floors = [
        mean.floor[metric]
        for scores in means.values()
        for (name, _), mean in scores.items()
        if name == task and metric in mean.floor
    ]
    return _short(floors[-1]) if floors else ""


if __name__ == "__main__":
    main()
