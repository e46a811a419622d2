"""One small valid example of everything that the package reads, made as a user would make it.

run/          trained and evaluated          own/       trained on data of one's own
unfinished/   stopped after two steps        study/     a study that has run, and study.py
model/        exported
heat.h5       from `sapc data`               samples.*  from `sapc sample`: conditions
waves.*       fields of one's own: npz, h5, nc (NetCDF-4), cdf (NetCDF-3)
sensors.csv, physics.py
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import h5py
import numpy as np
import torch

import sapc
from sapc.training.run_folder import load_tensors, save_tensors

from .case import available_kinds
from .program import call

PHYSICS = """import sapc


def physics(grid):
    mass = sapc.Balance(grid.integral("u"), times=grid.time.points)
    return sapc.Pin.frame(0) & mass
"""
STUDY = """from sapc.experiments import cells

scoring = dict(sets=("test0",), samples=2, sampling_steps=2, reference=4, floor_repeats=1)
runs = cells(["heat"], ["sapc"], preset="tiny", **scoring)
"""
SENSORS = "x,t,value\n0.25,0.4,0.5\n0.5,0.8,-0.25\n"
TIMINGS = {"seconds": 1.0, "seconds_per_sample": 1.0, "peak_memory": 1, "time": "2026-01-01T00:00:00+00:00"}


def make_examples(place: Path) -> Path:
    """Make the examples in a process of its own, so that this one stays fit to fork; returns their folder."""
    folder = place / "examples"
    folder.mkdir()
    os.environ["SAPC_CACHE"] = str(place / "cache")
    os.environ["COLUMNS"] = "80"
    os.environ.pop("SAPC_POSEIDON", None)
    process = multiprocessing.get_context("fork").Process(target=_make, args=(folder,))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit("the examples cannot be made: something is broken that the tests will tell")
    return folder


def prepare() -> None:
    """Import what cases need, once, without doing anything."""
    # torch.func imports torch._dynamo when it is first used, which takes longer than most cases.
    packages = (
        "torch._dynamo",
        "matplotlib.pyplot",
        "scipy.io",
        "xarray",
        "h5netcdf",
        "sapc.cli",
        "sapc.experiments.report",
    )
    for name in (*packages, *(f"soak.{kind}" for kind in available_kinds())):
        import_module(name)


def waves() -> np.ndarray:
    """Eight travelling waves on 12 points and 6 frames, whose mean does not change."""
    x, t = np.arange(12) / 12, np.linspace(0, 1, 6)
    size, mean = np.linspace(0.5, 2, 8), np.linspace(-1, 1, 8)
    wave = np.sin(2 * np.pi * (x[:, None] - t) + size[:, None, None])
    return (mean[:, None, None] + size[:, None, None] * wave).astype(np.float32)


def _make(folder: Path) -> None:
    os.chdir(folder)
    torch.set_num_threads(1)
    Path("physics.py").write_text(PHYSICS)
    Path("study.py").write_text(STUDY)
    Path("sensors.csv").write_text(SENSORS)
    _write_waves()
    _sapc("train", "heat", "--preset", "tiny", "--steps", "4", "--out", "run")
    own_options = ("--data", "waves.npz", "--physics", "physics.py", "--periodic", "x")
    _sapc("train", *own_options, "--preset", "tiny", "--steps", "4", "--out", "own")
    _stop_halfway("unfinished")
    for run in ("run", "own", "unfinished"):
        _settle(Path(run))
    _sapc(
        "evaluate",
        "run",
        "--set",
        "test0",
        "--samples",
        2,
        "--reference",
        4,
        "--steps",
        2,
        "--floor-repeats",
        1,
    )
    _settle(Path("run"))
    _sapc("export", "run", "model")
    _sapc("data", "heat", "--grid", "12x12", "--size", 3, "--split", "test0", "--out", "heat.h5")
    for suffix in ("h5", "npz", "nc"):
        _sapc("sample", "run", "--n", 2, "--steps", 2, "--out", f"samples.{suffix}")
    _sapc("study", "run", "study.py", "--out", "study", "--device", "cpu")
    _settle(Path("study"))
    for lock in Path().rglob(".lock"):
        lock.unlink()


def _sapc(*line: object) -> None:
    outcome = call(*line)
    if outcome.code:
        raise SystemExit(f"{outcome} failed: {outcome.err}")


def _stop_halfway(folder: str) -> None:
    run = sapc.training_config("heat", "sapc", "tiny", steps=4, validation_interval=1)
    with suppress(KeyboardInterrupt):
        sapc.training.loop.train(
            run, folder, progress=lambda step, *_: os.kill(os.getpid(), signal.SIGINT) if step == 2 else None
        )
    assert (Path(folder) / "checkpoint.safetensors").is_file()


def _write_waves() -> None:
    fields, x, t = waves(), np.arange(12) / 12, np.linspace(0, 1, 6)
    np.savez("waves.npz", u=fields, x=x, t=t)
    np.save("waves.npy", fields)
    with h5py.File("waves.h5", "w") as file:
        file["u"], file["x"], file["t"] = fields, x, t
        for i, name in enumerate(("sample", "x", "t")):
            file["u"].dims[i].label = name
    grid = sapc.Grid((sapc.Axis("x", 12, kind="periodic"), sapc.Axis("t", 6)), ("u",))
    dataset = sapc.to_xarray(torch.from_numpy(fields), grid, attributes={"history": "made", "source": "soak"})
    sapc.data.write_netcdf("waves.nc", dataset)
    dataset[["u"]].to_netcdf("waves.cdf", engine="scipy", format="NETCDF3_CLASSIC")


def _settle(folder: Path) -> None:
    """Write one time for all times, so that the files are the same on every machine and every day."""
    for path in folder.rglob("*.json"):
        path.write_text(json.dumps(_settle_value(json.loads(path.read_text())), indent=1) + "\n")
    for path in folder.rglob("*.jsonl"):
        lines = [json.dumps(_settle_value(json.loads(line))) + "\n" for line in path.read_text().splitlines()]
        path.write_text("".join(lines))
    # Scores know the digest of the weights.
    if not (folder / "scores.json").exists():
        for path in folder.glob("*.safetensors"):
            tensors, about = load_tensors(path)
            save_tensors(path, tensors, _settle_value(about))


def _settle_value(value):
    if isinstance(value, dict):
        return {k: TIMINGS.get(k, _settle_value(v)) for k, v in value.items()}
    return [_settle_value(v) for v in value] if isinstance(value, list) else value


def copy_example(examples: Path, name: str) -> Path:
    """Copy an example into the working folder."""
    source, target = examples / name, Path.cwd() / name
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
    return target
