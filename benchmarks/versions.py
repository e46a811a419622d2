"""Compare the speed of two versions of the package in one run: import, projection, sampling, training.

    python benchmarks/versions.py OLD/src NEW/src [--repeats 7]

Each measurement is a process of its own, the versions take turns, and the least time of each counts: what
else the machine does adds time, never takes it away. Printed are seconds and the ratio new / old; above 1 the
new version is slower.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

IMPORT = """
import time
start = time.perf_counter()
import sapc
print(time.perf_counter() - start)
"""
PROJECTION = """
import time, torch, sapc
task = sapc.get_task("{task}")
fields = task.dataset("test0", size=8, cache=False).fields.double()
noise = torch.randn(8, *task.grid.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
H = task.manifold(fields)
best = float("inf")
for _ in range(5):
    start = time.perf_counter()
    H.project(noise)
    best = min(best, time.perf_counter() - start)
print(best)
"""
SAMPLE = """
import inspect, time, sapc
model = sapc.load("{model}", device="cpu")
condition = model.task.dataset("test1", size=1).fields
# Euler's steps in every version.
options = {{"sampler": "euler"}} if "sampler" in inspect.signature(model.sample).parameters else {{}}
model.sample(n=2, condition=condition, steps=1, **options)
best = float("inf")
for _ in range(2):
    start = time.perf_counter()
    model.sample(n=8, condition=condition, steps=5, **options)
    best = min(best, time.perf_counter() - start)
print(best)
"""
TRAINING = """
import json, sys
from pathlib import Path
from sapc.cli import main
try:
    main("train heat --preset small --steps 60 --device cpu --out {out}/run".split())
except SystemExit:
    pass
lines = [json.loads(line) for line in Path("{out}/run/log.jsonl").read_text().splitlines()]
print(max(line["seconds"] for line in lines))
"""
PROGRAMS = {
    "import": IMPORT,
    "project heat, 8 fields": PROJECTION.format(task="heat"),
    "project reaction_diffusion, 8 fields": PROJECTION.format(task="reaction_diffusion"),
    "project stokes_ic, 8 fields": PROJECTION.format(task="stokes_ic"),
    "sample heat-sapc, 8 fields, 5 steps": SAMPLE.format(model="heat-sapc"),
    "sample stokes_bc-sapc, 8 fields, 5 steps": SAMPLE.format(model="stokes_bc-sapc"),
    "train heat, small, 60 steps": TRAINING,
}


def measure(source: str, program: str) -> float:
    """Run a program with one version; it prints seconds last."""
    with tempfile.TemporaryDirectory() as out:
        process = subprocess.run(
            [sys.executable, "-c", program.replace("{out}", out)],
            env=os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
    return float(process.stdout.split()[-1])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="measurements whose name has this in it")
    options = parser.parse_args()
    print(f"{'':44s}{'old':>10s}{'new':>10s}  new / old")
    for name, program in PROGRAMS.items():
        if options.only not in name:
            continue
        times = {source: [] for source in (options.old, options.new)}
        for _ in range(options.repeats):
            for source, seconds in times.items():
                seconds.append(measure(source, program))
        old_time, new_time = min(times[options.old]), min(times[options.new])
        print(f"{name:44s}{old_time:10.4f}{new_time:10.4f}{new_time / old_time:11.3f}", flush=True)


if __name__ == "__main__":
    main()
