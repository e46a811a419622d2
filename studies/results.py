"""The tables of results in README.md and docs/, made from the scores that are kept in the repository.

    python studies/results.py            # write the tables in README.md and docs/results.md, between two marks
    python studies/results.py --check    # say whether these are up to date, for tests
    python studies/results.py --pages    # write docs/results/*.md, the tables of `sapc report` for the runs of one preset

The pages are not kept in the repository; `make docs` makes them.

Scores: src/sapc/models/pretrained and results/compact (preset compact), results/full and results/paper.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

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
ORDER = tuple(dict.fromkeys((*paper.METHODS, *paper.ABLATION_METHODS)))
BEGIN, END = "<!-- results: made by studies/results.py -->\n", "<!-- end of results -->\n"
TITLES = {
    "published": "Published settings",
    "full": "Published network, better training",
    "compact": "The models that come with the package",
}


def main() -> None:
    """Write the tables, or compare them with what is there."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if a table is out of date"
    )
    parser.add_argument("--pages", action="store_true", help="write the pages of docs/results")
    arguments = parser.parse_args()
    stale = []
    for path, text in (pages() if arguments.pages else summaries()).items():
        if not path.exists() or path.read_text() != text:
            stale.append(str(path.relative_to(ROOT)))
            if not arguments.check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
    print(*stale or ["everything is up to date"], sep="\n")
    sys.exit(1 if arguments.check and stale else 0)


def pages() -> dict[Path, str]:
    """Return the pages of docs/results, one per preset."""
    return {ROOT / "docs" / "results" / f"{preset}.md": tables(preset) for preset in SCORES}


def summaries() -> dict[Path, str]:
    """Return README.md and docs/results.md with their tables between the marks."""
    found = {preset: means(folders) for preset, folders in SCORES.items()}
    files = {}
    for path, content in ((ROOT / "docs" / "results.md", summary(found)), (ROOT / "README.md", short(found))):
        before, _, rest = path.read_text().partition(BEGIN)
        files[path] = before + BEGIN + content + END + rest.partition(END)[2]
    return files


def means(folders: list[Path]) -> dict[tuple[str, str], dict[str, Any]]:
    """By task and sampling method, means over seeds of the means over test sets; with the floor, and how many seeds."""
    several: dict[tuple[str, str], list[Scores]] = {}
    for path in sorted(p for f in folders for p in (*f.glob("*.json"), *f.glob("*/scores*.json"))):
        scores = Scores.read(path)
        several.setdefault((scores.run.task, scores.settings.method), []).append(scores)
    found = {}
    for key, all_ in several.items():
        metrics = {m: sum(s.mean.metrics[m] for s in all_) / len(all_) for m in METRICS}
        floor = next((s.mean.floor for s in all_ if s.mean.floor), {})
        found[key] = {
            "metrics": metrics,
            "floor": floor,
            "seeds": len(all_),
            "steps": all_[0].run.steps,
        }
    return found


def tables(preset: str) -> str:
    """What `sapc report` says of one preset."""
    with tempfile.TemporaryDirectory() as out:
        make_report(SCORES[preset], out)
        text = (Path(out) / "tables.md").read_text()
    where = " ".join(str(folder.relative_to(ROOT)) for folder in SCORES[preset])
    head = (
        f"# {TITLES[preset]}\n\nMade by `sapc report {where}`; [what it means](../results.md). Several runs shared "
        "the GPU while these were made, so the times of sampling and training below are not those of a run alone.\n"
    )
    return head + text.removeprefix("# Tables\n")


def summary(found: dict[str, dict[tuple[str, str], dict[str, Any]]]) -> str:
    """SAPC and FFM on every task by all metrics."""
    lines = [
        "| task | metric | "
        + " | ".join(
            f"{m}: {c}" for m in ("SAPC", "FFM") for c in ("paper", "`published`", "`full`", "`compact`")
        )
        + " | floor |",
        "|---|---|" + "---:|" * 9,
    ]
    for task in paper.TASKS:
        for metric in METRICS:
            cells = [c for method in ("sapc", "ffm") for c in _row(found, task, method, metric)]
            lines.append(
                f"| {paper.TASK_LABELS[task]} | {paper.METRIC_LABELS[metric]} | {' | '.join(cells)} | {_floor(found, task, metric)} |"
            )
    return (
        "\n".join(
            [*lines, "", "W2 of every method, in the paper's order, the paper's first:", "", *order(found)]
        )
        + "\n"
    )


def order(found: dict[str, dict[tuple[str, str], dict[str, Any]]]) -> list[str]:
    """W2 of every method on every task, the paper's beside ours by preset compact, and how far the orders agree."""
    told = {task: {m: v for m in ORDER if (v := _printed(task, m)) is not None} for task in paper.TASKS}
    own = {
        task: {m: found["compact"][task, m]["metrics"]["w2"] for m in ORDER if (task, m) in found["compact"]}
        for task in paper.TASKS
    }
    lines = [
        "| | " + " | ".join(paper.TASK_LABELS[task] for task in paper.TASKS) + " |",
        "|---|" + "---:|" * len(paper.TASKS),
    ]
    for m in sorted(ORDER, key=lambda m: fmean(log(told[task][m]) for task in paper.TASKS)):
        cells = (f"{_short(told[t][m])}, {_short(own[t][m]) if m in own[t] else '–'}" for t in paper.TASKS)
        lines.append(f"| {paper.METHOD_LABELS[m]} | {' | '.join(cells)} |")
    cells = (_agreement([(told[t][m], own[t][m]) for m in own[t]]) for t in paper.TASKS)
    return [*lines, f"| Spearman's rank correlation | {' | '.join(cells)} |"]


def _printed(task: str, method: str) -> float | None:
    for table in ("generation", "ablation"):
        if (cell := paper.printed_mean(table, task, "w2", method)) is not None:
            return cell.mean
    return None


def _agreement(pairs: list[tuple[float, float]]) -> str:
    return f"{fpd.agreement(*(list(x) for x in zip(*pairs, strict=True)))['spearman']:.2f} of {len(pairs)}"


def short(found: dict[str, dict[tuple[str, str], dict[str, Any]]]) -> str:
    """W2 and CE_G on every task, for the README."""
    lines = [
        "| W2 | FFM: paper | SAPC: paper | `compact` | `full` | floor | law: paper | `full` |",
        "|---|" + "---:|" * 7,
    ]
    for task in paper.TASKS:
        sapc, law = _row(found, task, "sapc", "w2"), _row(found, task, "sapc", "ce_global")
        ffm = _row(found, task, "ffm", "w2")
        cells = (
            ffm[0],
            sapc[0],
            sapc[3],
            sapc[2],
            _floor(found, task, "w2"),
            law[0].partition(" ±")[0],
            law[2],
        )
        lines.append(f"| {paper.TASK_LABELS[task]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _row(found: dict[str, Any], task: str, method: str, metric: str) -> list[str]:
    """The printed value with its error, then ours by each preset: of SAPC bold if at most one standard error above it."""
    told = paper.printed_mean("generation", task, metric, method)
    assert told is not None
    bound = told.mean + (told.error or 0)
    cells = [f"{_short(told.mean)} ± {_short(told.error, 1)}" if told.error else _short(told.mean)]
    for preset in SCORES:
        own = found[preset].get((task, method))
        value = None if own is None else own["metrics"][metric]
        text = "" if value is None else _short(value)
        cells.append(f"**{text}**" if value is not None and value <= bound and method == "sapc" else text)
    return cells


def _short(value: float, digits: int = 2) -> str:
    """0.23, 4.7, 12, 8.2e-6."""
    if value == 0 or 0.01 <= value < 100:
        return f"{value:.{digits}g}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _floor(found: dict[str, Any], task: str, metric: str) -> str:
    values = [
        own["floor"][metric]
        for scores in found.values()
        for (name, _), own in scores.items()
        if name == task and metric in own["floor"]
    ]
    return _short(values[-1]) if values else ""


if __name__ == "__main__":
    main()
