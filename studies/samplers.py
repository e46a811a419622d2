"""How good samples of few steps are: Euler on uniform times, and second order on measured or shifted times.

    python studies/samplers.py                             # score what is missing, then print the tables
    python studies/samplers.py --tasks heat --minutes 9
    python studies/samplers.py --only-print

SAPC as it comes with the package, all four test sets, as many samples as in the paper. Rows land in OUT one by
one, so the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import sapc
from sapc.flow import Curve, Shift
from sapc.methods import paper
from sapc.tasks import TEST_SETS

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "results" / "samplers-h200.json"
METRICS = ("w2", "mmse", "smse", "ce_local", "ce_global")
STEPS = (5, 10, 20, 50, 100)
EULER, MEASURED = "euler", "measured"
SHIFTS = {f"shift {a:g}": Shift(a) for a in (1.0, 4.0, 16.0, 64.0)}
# Those that are published first; of the shifts the two numbers of steps that count.
PLAN = [(name, steps) for name in (EULER, MEASURED) for steps in reversed(STEPS)] + [
    (name, steps) for name in SHIFTS for steps in (10, 20)
]
Row = dict[str, Any]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", nargs="+", default=sapc.task_names())
    parser.add_argument("--sets", nargs="+", default=list(TEST_SETS))
    parser.add_argument("--samples", type=int, help="fields per set [as in the paper]")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing later")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only-print", action="store_true")
    options = parser.parse_args()
    rows = read_rows(options.out)
    if not options.only_print:
        score(options, rows)
    for line in (*tables(rows), "", *conclusions(rows)):
        print(line)


def read_rows(path: Path = OUT) -> list[Row]:
    """Return the rows of a file; none if there is no file."""
    return json.loads(path.read_text()) if path.exists() else []


def score(options: argparse.Namespace, rows: list[Row]) -> None:
    """Score what has no row yet, as long as there is time."""
    end = time.monotonic() + 60 * options.minutes
    for task in options.tasks:
        done = {(row["sampler"], row["steps"]) for row in rows if row["task"] == task}
        model = sapc.load(f"{task}-sapc", options.device)
        measured_times = model.times
        assert isinstance(measured_times, Curve), "the model has no measured times"
        for name, steps in PLAN:
            if (name, steps) in done or time.monotonic() > end:
                continue
            model.times = SHIFTS.get(name, measured_times)
            scores = sapc.evaluate(
                model,
                options.sets,
                samples=options.samples,
                steps=steps,
                sampler=EULER if name == EULER else "multistep",
                floor_repeats=0,
            )
            mean, environment = scores.mean, scores.environment
            rows.append(
                {
                    "task": task,
                    "sampler": name,
                    "steps": steps,
                    "samples": scores.settings.samples,
                    "sets": list(scores.sets),
                    **{metric: mean.metrics[metric] for metric in METRICS},
                    "device": environment["device"],
                    "torch": environment["torch"],
                    "command": f"python studies/samplers.py --tasks {task}",
                }
            )
            options.out.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
            print(f"{task} {name} {steps}: W2 {mean.metrics['w2']:.3e}", flush=True)


def tables(rows: list[Row]) -> list[str]:
    """Return a table of W2, MMSE and SMSE in those of 100 Euler steps, and one of the shifts."""
    lines = []
    for metric in ("w2", "mmse", "smse"):
        lines += [
            f"{paper.METRIC_LABELS[metric]}, in that of 100 Euler steps: Euler, then second order at measured times",
            "",
            "| task | 100 Euler steps | " + " | ".join(f"N = {n}" for n in STEPS) + " |",
            "|---|" + "---:|" * (len(STEPS) + 1),
        ]
        for task in _tasks(rows):
            unit = _value(rows, task, EULER, 100, metric)
            pairs = (
                ", ".join(_ratio(_value(rows, task, name, n, metric), unit) for name in (EULER, MEASURED))
                for n in STEPS
            )
            lines.append(f"| {paper.TASK_LABELS[task]} | {unit:.2e} | {' | '.join(pairs)} |")
        lines.append("")
    names = (MEASURED, *SHIFTS)
    lines += [
        "W2 of second order by times, in that of 100 Euler steps, at 10 and at 20 steps",
        "",
        "| task | " + " | ".join(names) + " |",
        "|---|" + "---:|" * len(names),
    ]
    for task in _tasks(rows):
        unit = _value(rows, task, EULER, 100, "w2")
        pairs = (
            ", ".join(_ratio(_value(rows, task, name, n, "w2"), unit) for n in (10, 20)) for name in names
        )
        lines.append(f"| {paper.TASK_LABELS[task]} | {' | '.join(pairs)} |")
    return lines


def conclusions(rows: list[Row]) -> list[str]:
    """Return a line per task: what the new sampler is worth, and whether the constraints hold."""
    lines = []
    for task in _tasks(rows):
        unit = _value(rows, task, EULER, 100, "w2")
        best = [
            _value(rows, task, MEASURED, n, "w2")
            / min(unit, *(_value(rows, task, name, n, "w2") for name in SHIFTS))
            for n in (10, 20)
        ]
        own = [row for row in rows if row["task"] == task]
        lines.append(
            f"{task}: measured over the best of the shifts and 100 Euler steps "
            f"{best[0]:.3f}, {best[1]:.3f}; SMSE at 20 over 100 Euler "
            f"{_value(rows, task, MEASURED, 20, 'smse') / _value(rows, task, EULER, 100, 'smse'):.3f}; "
            f"CE_L at most {max(row['ce_local'] for row in own):.1e}, "
            f"CE_G at most {max(row['ce_global'] for row in own):.1e}"
        )
    return lines


def page(rows: list[Row]) -> str:
    """Return the page of the docs."""
    devices = sorted({f"{row['device']}, torch {row['torch'].partition('+')[0]}" for row in rows})
    head = [
        "# Few sampling steps",
        "",
        "SAPC as it comes with the package, one seed, means over four test sets of 1,225 samples (Navier-Stokes "
        "100) against 1,225 solutions; made by `studies/samplers.py` on "
        + "; ".join(devices)
        + ". Second order "
        "at measured times is what `model.sample()` does, with N = 20; the paper's sampler is Euler's, with "
        "N = 100. This goes beyond the paper; no table beside its numbers is made with it.",
        "",
        "![W2 against the number of steps](samplers.png)",
        "",
    ]
    if missing := [paper.TASK_LABELS[task] for task in paper.TASKS if task not in _tasks(rows)]:
        head += [f"Not scored yet: {', '.join(missing)}.", ""]
    return "\n".join([*head, *tables(rows), "", *(f"- {line}" for line in conclusions(rows))]) + "\n"


def draw(rows: list[Row], path: Path) -> None:
    """Draw W2, in that of 100 Euler steps, against the number of steps, a panel per task."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    panels = figure.subplots(2, 3, sharex=True, sharey=True).flat
    tasks = _tasks(rows)
    for task, axes in zip(tasks, panels, strict=False):
        unit = _value(rows, task, EULER, 100, "w2")
        for name, label, marker in (
            (EULER, "Euler, uniform", "o"),
            (MEASURED, "second order, measured", "s"),
        ):
            values = [_value(rows, task, name, n, "w2") / unit for n in STEPS]
            axes.loglog(STEPS, values, marker=marker, label=label)
        axes.axhline(1, color="grey", linewidth=0.8, linestyle=":")
        axes.set_title(paper.TASK_LABELS[task])
        axes.set_xticks(STEPS, labels=map(str, STEPS))
        axes.set_yticks((0.8, 1, 1.5, 2, 3, 5), labels=("0.8", "1", "1.5", "2", "3", "5"))
        axes.minorticks_off()
    for axes in panels:
        axes.set_visible(False)
    figure.axes[0].legend()
    figure.supxlabel("network evaluations")
    figure.supylabel("W2, in that of 100 Euler steps")
    figure.savefig(path, dpi=120)


def _tasks(rows: list[Row]) -> list[str]:
    """Return the tasks all of whose rows are there."""
    done = {(row["task"], row["sampler"], row["steps"]) for row in rows}
    return [task for task in paper.TASKS if all((task, *cell) in done for cell in PLAN)]


def _value(rows: list[Row], task: str, sampler: str, steps: int, metric: str) -> float:
    key = (task, sampler, steps)
    return float(next(r[metric] for r in rows if (r["task"], r["sampler"], r["steps"]) == key))


def _ratio(value: float, unit: float) -> str:
    return f"{value / unit:.2f}"


if __name__ == "__main__":
    main()
