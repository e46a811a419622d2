"""Misuse of the Python interface: every public callable, with each of its arguments replaced in turn.

A call with one odd argument may work, if the value makes sense after all, or raise `SapcError`; anything else
is a mistake of ours.

    for name, thunk in cases():
        if (error := problem(thunk)) is not None:
            print(name, error)

Run as a program it prints the bad cases: `python -m soak.misuse`, in the folder of the tests.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

import sapc
from sapc._files import write_json
from sapc.training.config import Backbone
from sapc.training.run_folder import RunFolder, save_tensors

GRID = (16, 16)
Thunk = Callable[[], Any]


class Target(NamedTuple):
    """A callable with arguments that it takes."""

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any]
    # Arguments that are not replaced.
    left_out: tuple[str, ...] = ()


class Strange:
    """Of a class that nobody expects."""


def odd_values() -> dict[str, Any]:
    """What may be given by mistake."""
    return {
        "None": None, "True": True, "-1": -1, "0": 0, "1.5": 1.5, "nan": math.nan, "inf": math.inf,
        "2^70": 2**70,
        "''": "", "'x'": "x", "'a/../b'": "a/../b", "NUL": "\0", "bytes": b"x", "[]": [], "()": (), "{}": {},
        "['x']": ["x"],
        "[None]": [None], "{'x': 1}": {"x": 1}, "set": {1}, "object": object(), "strange": Strange(),
        "class": int,
        "function": lambda *_: None, "complex": 1j, "range": range(3), "module": math,
        "device": torch.device("meta"), "dtype": torch.float16,
        "no numbers": torch.zeros(0), "scalar": torch.tensor(1.0), "vector": torch.zeros(3),
        "no rows": torch.zeros(0, *GRID),
        "other grid": torch.zeros(2, 5, 7), "more axes": torch.zeros(2, *GRID, 3),
        "nan field": torch.full((2, *GRID), math.nan),
        "inf field": torch.full((2, *GRID), math.inf),
        "whole field": torch.zeros(2, *GRID, dtype=torch.int64),
        "bool field": torch.zeros(2, *GRID, dtype=torch.bool),
        "complex field": torch.zeros(2, *GRID, dtype=torch.complex64),
        "half field": torch.zeros(2, *GRID, dtype=torch.float16),
        "meta field": torch.zeros(2, *GRID, device="meta"),
        "sparse field": torch.zeros(2, *GRID).to_sparse(), "array": torch.zeros(2, *GRID).numpy(),
    }  # fmt: skip


@cache
def home() -> Path:
    """A folder for what is written, which lives as long as the process."""
    home.folder = tempfile.TemporaryDirectory(prefix="sapc-misuse-")  # type: ignore[attr-defined]
    return Path(home.folder.name)  # type: ignore[attr-defined]


@cache
def model_folder() -> Path:
    """A run folder with weights that were never trained."""
    run = sapc.training_config("heat", "ffm", "tiny")
    folder = RunFolder(home() / "run")
    folder.path.mkdir()
    write_json(folder.config, run.to_dict())
    save_tensors(folder.weights, run.make_network().state_dict(), {"step": run.steps, "range": [-1.0, 1.0]})
    return folder.path


def targets() -> Iterator[Target]:
    """Every public callable, with arguments that work."""
    yield from _tasks()
    yield from _constraints()
    yield from _models()
    yield from _numbers()
    yield from _data()


def _tasks() -> Iterator[Target]:
    heat = sapc.get_task("heat", grid=GRID)
    burgers = sapc.get_task("burgers", grid=(16, 8))
    data = heat.dataset("train", size=2)
    draws = heat.draw("train", 2)
    of_split = {"split": "train", "size": 2, "seed": 0}
    yield Target("get_task", sapc.get_task, {"name": "heat", "grid": GRID})
    yield Target("get_task(option)", lambda option: sapc.get_task("heat", some=option), {"option": 1})
    yield Target("register_task", sapc.register_task, {"kind": type(heat)})
    yield Target("Task.check", heat.check, {**of_split, "device": "cpu"})
    yield Target("Task.draw", heat.draw, of_split)
    yield Target(
        "Task.solve",
        heat.solve,
        {"parameters": draws, "device": "cpu", "progress": None, "dtype": torch.float64},
    )
    yield Target(
        "Task.solve(parameter)",
        lambda parameter: heat.solve({**draws, next(iter(draws)): parameter}),
        {"parameter": next(iter(draws.values()))},
    )
    yield Target(
        "Task.dataset", heat.dataset, {**of_split, "device": "cpu", "cache": False, "progress": None}
    )
    yield Target("Burgers.dataset", burgers.dataset, {**of_split, "cache": home() / "cache"}, ("size",))
    yield Target(
        "Task.manifold",
        heat.manifold,
        {"fields": data.fields, "extra_constraints": None, "solver": None, "algorithm": None},
    )
    yield Target(
        "Task.normalized_manifold",
        heat.normalized_manifold,
        {"fields": data.fields, "extra_constraints": None},
    )
    yield Target("load_dataset", sapc.load_dataset, {"path": data.save(home() / "heat.h5")})
    yield Target("Dataset.save", data.save, {"path": home() / "saved.h5"})
    about = {
        "task": "heat",
        "split": "train",
        "seed": 0,
        "grid": heat.grid,
        "fields": data.fields,
        "parameters": {},
        "options": {},
    }
    yield Target("Dataset", sapc.Dataset, {**about, "provenance": {}})
    yield Target(
        "Dataset().save", lambda **a: sapc.Dataset(**a).save(home() / "made.h5"), {**about, "provenance": {}}
    )


def _constraints() -> Iterator[Target]:
    grid = sapc.get_task("heat", grid=GRID).grid
    u = torch.randn(2, *GRID, generator=torch.Generator().manual_seed(0))
    mass = grid.integral()
    square = lambda u: (u**2).flatten(1).sum(1, keepdim=True)
    yield Target("Axis", sapc.Axis, {"name": "x", "n": 8, "start": 0.0, "stop": 1.0, "kind": "closed"})
    yield Target("Axis.derivative", grid.axes[0].derivative, {"u": u, "dim": 1})
    yield Target("Grid", sapc.Grid, {"axes": grid.axes, "channels": ("h",), "steady": False})
    yield Target("Grid.resize", lambda n: grid.resize(n, 8), {"n": 8})
    yield Target("Grid.channel", grid.channel, {"name": "h"})
    yield Target("Grid[]", lambda name: grid[name], {"name": "x"})
    yield Target("Grid.integral", grid.integral, {"channel": None})
    yield Target("Grid.total", grid.total, {"channel": None})
    yield Target("Grid.derivative", grid.derivative, {"u": u, "name": "x"})
    yield Target("Grid.nearest", lambda at: grid.nearest(x=at), {"at": 0.5})
    yield Target("Grid.check", grid.check, {"u": u, "name": "field"})
    yield Target("Grid.from_dict", sapc.Grid.from_dict, {"description": grid.to_dict()})
    yield Target("FrameIntegral()", mass, {"u": u})
    yield Target(
        "Pin",
        lambda u=u, **a: sapc.Pin(**a).on(u).project(u),
        {"where": u[0] > 0, "label": "pin", "value": 1.0},
    )
    yield Target(
        "Pin.frame",
        lambda **a: sapc.Pin.frame(**a).on(u).project(u),
        {"index": 0, "grid": grid, "channel": None, "value": None},
    )
    yield Target(
        "Pin.at",
        lambda x, value, channel: sapc.Pin.at(x=x, value=value, channel=channel).on(u).project(u),
        {"x": 0, "value": 1.0, "channel": None},
    )
    yield Target(
        "Pin.at(grid)",
        lambda grid, x, channel: sapc.Pin.at(grid, x=x, channel=channel).on(u).project(u),
        {"grid": grid, "x": 0, "channel": None},
    )
    yield Target(
        "Pin.near",
        lambda grid, x, value: sapc.Pin.near(grid, x=x, value=value).on(u).project(u),
        {"grid": grid, "x": 0.5, "value": None},
    )
    yield Target("Pin.mask", sapc.Pin.frame(0).mask, {"shape": GRID})
    yield Target("Pin.with_names_of", sapc.Pin.frame(0).with_names_of, {"grid": grid})
    yield Target("Pin.prescribe", sapc.Pin.frame(0, value=1.0).prescribe, {"fields": u})
    yield Target(
        "Balance",
        lambda **a: sapc.Balance(**a).on(u).project(u),
        {
            "stored": mass,
            "rate": mass,
            "coefficient": None,
            "times": torch.linspace(0, 1, GRID[1]),
            "label": None,
            "kernel": None,
        },
    )
    yield Target("Affine", lambda **a: sapc.Affine(**a).on(u).project(u), {"function": mass, "value": 1.0})
    yield Target(
        "Affine(matrix)",
        lambda **a: sapc.Affine(**a).on(u).project(u),
        {"function": torch.ones(1, math.prod(GRID)), "value": "field"},
    )
    yield Target(
        "Constraint", lambda **a: sapc.Constraint(**a).on(u).project(u), {"function": square, "value": 1.0}
    )
    yield Target("&", lambda term: sapc.Pin.frame(0) & term, {"term": sapc.Balance(mass)})
    law = sapc.Pin.frame(0) & sapc.Balance(mass)
    yield Target(".on", law.on, {"fields": u, "solver": None, "algorithm": None})
    yield Target(
        "Manifold",
        sapc.Manifold,
        {"parts": law.parts, "fields": u, "solver": sapc.NearestPoint(), "algorithm": None, "targets": None},
        ("targets",),
    )
    for name, constraint in (("", law), ("curved ", sapc.Constraint(square, value="field"))):
        H = constraint.on(u)
        for method_name in ("project", "residual", "local", "balance", "solve", "rebind"):
            yield Target(
                f"{name}Manifold.{method_name}",
                getattr(H, method_name),
                {"fields" if method_name == "rebind" else "u": u},
            )
        yield Target(f"{name}Manifold.project(check)", H.project, {"u": u, "check": True})
    H = law.on(u)
    yield Target("Manifold.to", H.to, {"device": "cpu"})
    yield Target("Manifold.with_solver", H.with_solver, {"solver": sapc.GaussNewton()})
    yield Target("Manifold[]", lambda index: H[index], {"index": 0})
    yield Target(
        "NearestPoint",
        sapc.NearestPoint,
        {
            "tol": 1e-12,
            "passes": 80,
            "kappa": 0.5,
            "patience": 10,
            "newton_steps": 120,
            "cg_steps": 60,
            "rtol": 1e-9,
        },
    )
    yield Target("GaussNewton", sapc.GaussNewton, {"n_iter": 10, "mu": 1e-8, "tol": 1e-6})


def _models() -> Iterator[Target]:
    path = model_folder()
    model = sapc.load(path, "cpu")
    fields = model.task.dataset("train", size=2).fields
    yield Target("get_method", sapc.get_method, {"name": "sapc"})
    yield Target(
        "method_names", sapc.method_names, {"variants": False, "user_defined": True, "extensions": True}
    )
    yield Target("load_plugin", lambda file: sapc.load_plugin(file), {"file": "none.py"})
    yield Target("register_method", lambda method: sapc.register_method(method), {"method": "none"})
    yield Target(
        "training_config",
        sapc.training_config,
        {"task": "heat", "method": "ffm", "preset": "tiny", "grid": GRID},
    )
    changes = {"steps": 2, "lr": 1e-3, "modes": 4, "hidden": 4, "backbone": Backbone((4, 4), 4, 8, 4),
               "options": {}, "seed": 0,
               "precision": "fp16", "schedule": "cosine", "batch": 2}  # fmt: skip
    yield Target(
        "training_config(more)", lambda **a: sapc.training_config("heat", "ffm", "tiny", **a), changes
    )
    run = model.run
    yield Target("TrainingConfig", sapc.TrainingConfig, dict(vars(run)))
    yield Target("TrainingConfig.from_dict", sapc.TrainingConfig.from_dict, {"data": run.to_dict()})
    yield Target("TrainingConfig.make_task", run.make_task, {"grid": GRID})
    yield Target("Backbone", Backbone, dict(vars(run.backbone)))
    yield Target(
        "load",
        sapc.load,
        {
            "path": path,
            "device": "cpu",
            "compiled": False,
            "physics": None,
            "data": None,
            "reading": None,
            "revision": None,
        },
        ("compiled",),
    )
    yield Target(
        "Model",
        sapc.Model,
        {
            "run": run,
            "network": model.network,
            "device": torch.device("cpu"),
            "step": 1,
            "data_range": (0.0, 1.0),
            "metadata": {},
        },
    )
    arguments = {
        "n": 2,
        "condition": fields,
        "steps": 1,
        "seed": 0,
        "extra_constraints": None,
        "method": None,
        "grid": None,
        "batch": 2,
        "progress": None,
        "callback": None,
        "generator": None,
        "return_info": False,
    }
    yield Target("Model.sample", model.sample, arguments)
    yield Target(
        "Model.sample(eci)",
        lambda **a: model.sample(**{**arguments, "method": "eci", **a}),
        {"condition": fields, "n": 2, "grid": None, "extra_constraints": None},
    )
    yield Target(
        "Model.manifold", model.manifold, {"condition": fields, "grid": None, "extra_constraints": None}
    )
    yield Target("Model.sampling_method", model.sampling_method, {"method": None})
    yield Target("Model.task_at", model.task_at, {"grid": GRID})
    yield Target(
        "Model.save_pretrained",
        lambda path, **a: _save(model, path, **a),
        {"path": home() / "exported", "half": False, "scores": None, "name": None, "license": None},
    )
    yield Target(
        "Model.from_pretrained",
        sapc.Model.from_pretrained,
        {"where": path, "device": "cpu", "revision": None},
    )
    yield Target(
        "evaluate",
        sapc.evaluate,
        {
            "model": model,
            "splits": ("test0",),
            "samples": 2,
            "reference": 2,
            "steps": 1,
            "seed": 0,
            "floor_repeats": 0,
            "method": None,
            "device": "cpu",
            "batch": None,
            "trajectory": False,
            "distances": (),
            "progress": None,
            "on_fields": None,
            "statistics": None,
        },
    )
    yield Target(
        "train",
        sapc.training.loop.train,
        {
            "run": run,
            "path": path,
            "device": "cpu",
            "compiled": False,
            "tensorboard": False,
            "save_seconds": 1.0,
            "progress": None,
            "data_progress": None,
        },
        ("compiled", "tensorboard"),
    )
    sizes = {
        "grid_dims": 2,
        "modes": 4,
        "hidden": 4,
        "projection": 8,
        "time_channels": 4,
        "blocks": 1,
        "channels": 1,
        "conditions": 0,
        "precision": "float32",
        "transform": "auto",
    }
    yield Target("FNO", sapc.FNO, sizes)
    net = sapc.FNO(**sizes)
    yield Target("FNO()", net, {"u": fields, "t": torch.zeros(2), "condition": None})
    method = sapc.get_method("sapc")
    H = model.task.manifold(fields)
    v = lambda vt, t: torch.zeros_like(vt)
    yield Target(
        "Method.sample",
        lambda v, v1, H, steps: method.sample(v, v1, H, steps),
        {"v": v, "v1": fields.double(), "H": H, "steps": 2},
        ("v", "H", "v1"),
    )
    yield Target("Method.evaluations", method.evaluations, {"steps": 2})


def _save(model: sapc.Model, path: Any, **arguments: Any) -> None:
    shutil.rmtree(home() / "exported", ignore_errors=True)
    model.save_pretrained(path, **arguments)


def _numbers() -> Iterator[Target]:
    a, b = torch.randn(4, *GRID, generator=torch.Generator().manual_seed(1)).chunk(2)
    for name in ("mmse", "smse", "w2", "crps", "energy_score"):
        yield Target(f"metrics.{name}", getattr(sapc.metrics, name), {"generated": a, "reference": b})
    features = torch.randn(6, 3)
    yield Target(
        "metrics.frechet", sapc.metrics.frechet, {"features_a": features, "features_b": features + 1}
    )
    yield Target("metrics.constraint_error", sapc.metrics.constraint_error, {"rows": torch.ones(2, 3)})
    yield Target(
        "metrics.ce", sapc.metrics.ce, {"local": 1.0, "global_": 1.0, "ffm_local": 1.0, "ffm_global": 1.0}
    )
    task = sapc.get_task("heat", grid=GRID)
    H = task.manifold(task.dataset("train", size=2).fields)
    for name in ("ce_local", "ce_global"):
        yield Target(f"metrics.{name}", getattr(sapc.metrics, name), {"H": H, "fields": a})
    draw = lambda seed, n: torch.randn(n, *GRID, generator=torch.Generator().manual_seed(seed))
    yield Target(
        "metrics.sampling_floor",
        sapc.metrics.sampling_floor,
        {"draw": draw, "n": 2, "m": 2, "metrics": {"mmse": sapc.metrics.mmse}, "repeats": 1},
    )
    yield Target(
        "source.sample",
        sapc.source.sample,
        {"grid": task.grid, "n": 2, "generator": torch.Generator(), "length": 1e-3, "dtype": torch.float32},
    )
    yield Target("flow.interpolate", sapc.flow.interpolate, {"v0": a, "v1": b, "t": torch.rand(2)})
    yield Target("flow.mix", sapc.flow.mix, {"v0": a, "v1": b, "t": 0.5})
    yield Target("flow.time_pairs", lambda steps: list(sapc.flow.time_pairs(steps)), {"steps": 3})
    yield Target("fpd.agreement", sapc.fpd.agreement, {"a": [1.0, 2.0], "b": [2.0, 3.0]})
    yield Target("fpd.distances", sapc.fpd.distances, {"poseidon": None, "frd": False, "device": "cpu"})
    yield Target("fpd.poseidon_distance", sapc.fpd.poseidon_distance, {"path": "none", "device": "cpu"})
    yield Target("poseidon.load_encoder", sapc.poseidon.load_encoder, {"path": "none", "device": "cpu"})


def _data() -> Iterator[Target]:
    task = sapc.get_task("heat", grid=GRID)
    data = task.dataset("train", size=4)
    grid = sapc.Grid(task.grid.axes, ("h",))
    fields = sapc.Fields(data.fields, grid)
    law = sapc.Pin.frame(0) & sapc.Balance(grid.integral())
    yield Target(
        "Fields",
        sapc.Fields,
        {"values": data.fields, "grid": grid, "units": {}, "labels": {}, "origin": {}, "split": None},
    )
    yield Target("Fields.split_rows", fields.split_rows, {"share": 0.25, "seed": 0})
    yield Target(
        "Task.from_data",
        sapc.Task.from_data,
        {"data": fields, "physics": law, "name": "mine", "share": 0.25, "seed": 0},
    )
    mine = sapc.Task.from_data(fields, law, "mine")
    yield Target("check", sapc.check, {"task": mine, "noise": 1, "seed": 0, "device": "cpu"})
    yield Target("Task.dataset of data", mine.dataset, {"split": "train", "size": 1})
    yield Target("Task.normalize", mine.normalize, {"fields": data.fields})
    yield Target("Task.denormalize", mine.denormalize, {"fields": data.fields})
    yield Target("Task.manifold of data", mine.manifold, {"fields": data.fields, "extra_constraints": None})
    file = home() / "fields.npz"
    if not file.exists():
        import numpy as np

        np.savez(file, fields=data.fields.numpy())
    yield Target("read_fields", sapc.read_fields, {"path": file, "time": "last"})
    yield Target(
        "read_fields(more)",
        lambda **a: sapc.read_fields(file, **{"time": "last", **a}),
        {"channels": None, "samples": None, "periodic": (), "cells": (), "steady": False},
    )
    yield Target("read_sensors", sapc.read_sensors, {"path": file, "grid": grid})
    try:
        xarray_dataset = sapc.to_xarray(data.fields, grid)
    except sapc.SapcError:
        # xarray is not installed.
        return
    yield Target(
        "to_xarray",
        sapc.to_xarray,
        {
            "fields": data.fields,
            "grid": grid,
            "units": {},
            "labels": {},
            "quantiles": (0.5,),
            "attributes": {},
        },
    )
    yield Target("write_netcdf", sapc.data.write_netcdf, {"path": home() / "a.nc", "dataset": xarray_dataset})


def cases() -> Iterator[tuple[str, Thunk]]:
    """Every target with every argument replaced by every odd value: what is called, and the call."""
    values = odd_values()
    for target in targets():
        for argument in target.arguments:
            for label, value in values.items() if argument not in target.left_out else ():
                # It would be done, in its time.
                if label == "2^70" and argument in ("steps", "repeats", "floor_repeats"):
                    continue
                name = f"{target.name}({argument}={label})"
                yield name, lambda t=target, a=argument, v=value: t.function(**{**t.arguments, a: v})


def sound() -> Iterator[tuple[str, Thunk]]:
    """Every target with arguments that work: what fails here is a mistake of this file."""
    for target in targets():
        yield target.name, lambda t=target: t.function(**t.arguments)


def problem(thunk: Thunk) -> str | None:
    """What is wrong with the way a call ends, if anything is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            thunk()
    except sapc.SapcError as error:
        text = str(error)
        return None if text and "\n" not in text else f"SapcError, but not one line: {text!r:.80}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]
    return None


if __name__ == "__main__":
    import sys
    import time

    bad = count = 0
    for name, thunk in (*sound(), *cases()) if "--sound" not in sys.argv else sound():
        count += 1
        began = time.monotonic()
        if (error := problem(thunk)) is not None:
            bad += 1
            print(name, "->", error)
        if time.monotonic() - began > 1:
            print(name, "took", round(time.monotonic() - began, 1), "s")
    print(f"{bad} bad of {count}")
