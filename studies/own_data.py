"""Skill on data of one's own: three problems of 400 simulations, three methods, preset small.

    python studies/own_data.py                       # train and score what is missing, then print the tables
    python studies/own_data.py --problems waves --methods sapc
    python studies/own_data.py --methods cond_sapc --lr 0.003
    python studies/own_data.py --only-print

kuramoto_sivashinsky  the initial field is given and decides the rest; the mean is kept (examples/)
waves                 displacement u of u_tt = u_xx at the start is given, its velocity v is not; the energy is kept
shallow_water         the height at the start is given, currents are not; the mass is kept (examples/)

A tenth of the simulations is held out: MEMBERS samples are drawn for the condition of each. Rows land in OUT
one by one, so the same command goes on. Runs are in FOLDER.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sapc
from sapc.evaluation.config import EvaluationConfig
from sapc.evaluation.held_out import measure_skill
from sapc.methods import paper
from sapc.methods.registry import EXTENSION_LABELS
from sapc.training.presets import DATA_RATE
from sapc.training.run_folder import environment

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
import kuramoto_sivashinsky  # noqa: E402
import shallow_water  # noqa: E402

OUT = ROOT / "benchmarks" / "results" / "own-data-cpu.json"
SIMULATIONS, CONDITIONS, MEMBERS = 400, 40, 16
METHODS = ("cond_sapc", "sapc", "cond_ffm")
LABELS = paper.METHOD_LABELS | EXTENSION_LABELS
FRAMES = (1, 3, 5, 10, 20, 39)
WAVE_POINTS, WAVE_FRAMES, WAVE_MODES = 48, 32, 6
Row = dict[str, Any]


def make_kuramoto_sivashinsky(folder: Path) -> sapc.Task:
    """Simulate as the example does."""
    axes = {
        "x": kuramoto_sivashinsky.LENGTH
        / kuramoto_sivashinsky.POINTS
        * np.arange(kuramoto_sivashinsky.POINTS),
        "t": kuramoto_sivashinsky.SPACING * np.arange(kuramoto_sivashinsky.FRAMES),
    }
    file = folder / "simulations.npz"
    np.savez(file, u=kuramoto_sivashinsky.simulate(SIMULATIONS).float(), **axes)
    data = sapc.read_fields(file, periodic=["x"])
    return sapc.Task.from_data(data, kuramoto_sivashinsky.physics, "kuramoto_sivashinsky")


def make_waves(folder: Path) -> sapc.Task:
    """Add up standing waves of random size; v = u_t."""
    g = np.random.default_rng(0)
    x, t = np.arange(WAVE_POINTS) / WAVE_POINTS, np.linspace(0, 1, WAVE_FRAMES)
    u, v = (np.zeros((SIMULATIONS, WAVE_POINTS, WAVE_FRAMES)) for _ in range(2))
    for k in range(1, WAVE_MODES + 1):
        w = 2 * math.pi * k
        a, b = (g.normal(0, k**-1.5, (2, SIMULATIONS, 1)) for _ in range(2))
        shape = np.stack((np.cos(w * x), np.sin(w * x)))
        start, slope = (np.einsum("dsi,dx->sx", size, shape)[..., None] for size in (a, b))
        u += start * np.cos(w * t) + slope * np.sin(w * t)
        v += w * (slope * np.cos(w * t) - start * np.sin(w * t))
    file = folder / "simulations.npz"
    np.savez(file, u=u.astype("float32"), v=v.astype("float32"), x=x, t=t)
    data = sapc.read_fields(file, periodic=["x"], channels=["u", "v"])
    q = 2j * math.pi * torch.arange(WAVE_POINTS // 2 + 1, dtype=torch.float64)[:, None]

    def energy(f: torch.Tensor) -> torch.Tensor:
        slope = torch.fft.irfft(q.to(f.device) * torch.fft.rfft(f[:, 0], dim=1), n=WAVE_POINTS, dim=1)
        return (f[:, 1].square() + slope.square()).mean(1) / 2

    pins = sapc.Pin.frame(0, grid=data.grid, channel="u")
    return sapc.Task.from_data(data, pins & sapc.Balance(energy, grid=data.grid), "waves")


def make_shallow_water(folder: Path) -> sapc.Task:
    """Simulate as the example does."""
    shallow_water.save(folder / "simulations.nc", shallow_water.simulate(SIMULATIONS, seed=0))
    data = sapc.read_fields(folder / "simulations.nc", channels=["h", "u", "v"], periodic=["x", "y"])
    return sapc.Task.from_data(data, shallow_water.physics, "shallow_water")


PROBLEMS: dict[str, Callable[[Path], sapc.Task]] = {
    "kuramoto_sivashinsky": make_kuramoto_sivashinsky,
    "waves": make_waves,
    "shallow_water": make_shallow_water,
}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    for name, kind in (("steps", int), ("lr", float), ("hidden", int)):
        parser.add_argument(f"--{name}", type=kind, help="of the training, if not the preset's")
    parser.add_argument("--folder", type=Path, default=Path("runs/own-data"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only-print", action="store_true")
    options = parser.parse_args()
    if not options.only_print:
        for problem in options.problems:
            for method in options.methods:
                score(problem, method, options)
    print("\n".join(tables(read_rows(options.out))))


def read_rows(path: Path = OUT) -> list[Row]:
    """Return the rows of a file; none if there is no file."""
    return json.loads(path.read_text()) if path.exists() else []


def key_of(row: Row) -> tuple[str, str, dict[str, float]]:
    """Return what tells rows apart: problem, method, and what differs from the preset."""
    return row["problem"], row["method"], row.get("changes", {})


def score(problem: str, method: str, options: argparse.Namespace) -> None:
    """Train and score, unless there is a row."""
    names = ("steps", "lr", "hidden")
    changes = {name: value for name in names if (value := getattr(options, name)) is not None}
    if (problem, method, changes) in map(key_of, read_rows(options.out)):
        return
    folder = options.folder / problem
    folder.mkdir(parents=True, exist_ok=True)
    task = PROBLEMS[problem](folder)
    start = time.perf_counter()
    place = "-".join((method, *(f"{name}{value:g}" for name, value in changes.items())))
    model = sapc.train(task, method, "small", out=folder / place, device=options.device, **changes)
    seconds = time.perf_counter() - start
    skill = measure_skill(model, EvaluationConfig(conditions=CONDITIONS, members=MEMBERS))
    truth = task.dataset("validation").fields.double()
    _, info = model.sample(2 * len(truth), truth, return_info=True)
    row = {
        "problem": problem,
        "method": method,
        "changes": changes,
        "training_steps": model.step,
        "training_seconds": seconds,
        "law": info.residuals.balance,
        "pins": info.residuals.local,
        "skill": skill.to_dict(),
        "environment": environment() | {"command": "python studies/own_data.py"},
    }
    # Another process may have written meanwhile.
    rows = [*read_rows(options.out), row]
    options.out.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    print(f"{problem} {method}: {seconds:.0f} s, CRPS {skill.metrics['crps']:.3f}", flush=True)


def explanation(rows: list[Row]) -> list[str]:
    """Return what the page says before its tables."""
    minutes = [row["training_seconds"] / 60 for row in rows if not row.get("changes")]
    environment = rows[0]["environment"]
    return [
        f"Three problems of {SIMULATIONS} simulations, a tenth held out, preset `small` (1,500 steps, "
        f"{min(minutes):.1f} to {max(minutes):.1f} minutes on one core), seed 0, {MEMBERS} samples for each of "
        f"{CONDITIONS} held-out conditions in 20 steps of second order (condFFM, too). Scores are in deviations "
        "of each channel over the training data; pinned points do not count. Made by `studies/own_data.py` "
        f"with torch {environment['torch']}.",
        "",
        "- `kuramoto_sivashinsky`: the initial field is given and decides the rest; the mean is kept.",
        "- `waves`: the displacement at the start is given, its velocity is not; the energy is kept, a curved law.",
        "- `shallow_water`: the height at the start is given, the currents, two more channels in two dimensions, "
        "are not; the mass is kept.",
    ]


def tables(rows: list[Row]) -> list[str]:
    """Return a table per problem, and the error of the mean by frame where the future is decided."""
    lines = []
    for problem in PROBLEMS:
        own = [row for row in rows if row["problem"] == problem and not row.get("changes")]
        if not own:
            continue
        own.sort(key=lambda row: METHODS.index(row["method"]))
        lines += [
            f"**{problem}**",
            "",
            "| | CRPS | RMSE of the mean | spread / skill | inside 50 %, 90 % | law off by | pins off by |",
            "|---|" + "---:|" * 6,
        ]
        for row in own:
            m = row["skill"]["metrics"]
            cells = (
                f"{m['crps']:.3f}",
                f"{m['rmse']:.3f}",
                f"{m['spread_skill']:.2f}",
                f"{m['coverage_50']:.2f}, {m['coverage_90']:.2f}",
                *(f"{row[name]:.0e}" if row[name] else "0" for name in ("law", "pins")),
            )
            lines.append(f"| {LABELS[row['method']]} | {' | '.join(cells)} |")
        m = own[0]["skill"]["metrics"]
        lines.append(f"| climatology | {m['climatology_crps']:.3f} | {m['climatology_rmse']:.3f} | | | | |")
        if "persistence_rmse" in m:
            lines.append(f"| persistence | | {m['persistence_rmse']:.3f} | | | | |")
            lines += ["", *lead_times(own)]
        lines.append("")
    return [*lines, *rates(rows)]


def lead_times(rows: list[Row]) -> list[str]:
    """Return a table of the error of the mean by frame."""
    by_time = rows[0]["skill"]["by_time"]
    lines = [
        "| RMSE of the mean at frame | " + " | ".join(map(str, FRAMES)) + " |",
        "|---|" + "---:|" * len(FRAMES),
    ]
    curves = {LABELS[row["method"]]: row["skill"]["by_time"]["rmse"] for row in rows}
    curves |= {name: by_time[f"{name}_rmse"] for name in ("climatology", "persistence")}
    for label, curve in curves.items():
        # The first frame is pinned.
        lines.append(f"| {label} | " + " | ".join(f"{curve[frame - 1]:.2f}" for frame in FRAMES) + " |")
    return lines


def rates(rows: list[Row]) -> list[str]:
    """Return a table of the CRPS of condSAPC by learning rate."""
    own = [row for row in rows if row["method"] == "cond_sapc" and set(row.get("changes", {})) <= {"lr"}]
    found = {(row["problem"], row.get("changes", {}).get("lr", DATA_RATE)): row for row in own}
    values = sorted({rate for _, rate in found})
    if len(values) < 2:
        return []
    lines = [
        f"CRPS of condSAPC by learning rate; that of the preset is {DATA_RATE:g}:",
        "",
        "| | " + " | ".join(f"{rate:g}" for rate in values) + " |",
        "|---|" + "---:|" * len(values),
    ]
    for problem in PROBLEMS:
        cells = (found.get((problem, rate)) for rate in values)
        texts = ("–" if row is None else f"{row['skill']['metrics']['crps']:.3f}" for row in cells)
        lines.append(f"| {problem} | {' | '.join(texts)} |")
    return lines


if __name__ == "__main__":
    main()
