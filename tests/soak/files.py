"""Damaged files and folders, opened by the public readers.

What is damaged has to be refused by a `SapcError` of one sentence, or to be read as if nothing had happened.
What the file itself can vouch for, by a checksum, must not come out changed; and nothing may come out of a
file that another file only points to.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import sapc

from .arrays import SECRET, write_secrets
from .case import BadCase
from .damage import damage
from .examples import copy_example
from .program import LONGEST_SENTENCE, call, contents, leftovers


@dataclass(frozen=True)
class Format:
    """An example, the files of it to damage, and the doors by which it is opened."""

    example: str
    files: tuple[str, ...]
    doors: tuple[Callable[[Path, Path], None], ...]


def check(rng: random.Random, seed: int, examples: Path) -> None:
    """Damage one file of an example and open it by one door."""
    file_format = rng.choice(FORMATS)
    path = copy_example(examples, file_format.example)
    write_secrets(Path.cwd())
    file = path / rng.choice(file_format.files) if path.is_dir() else path
    door = rng.choice(file_format.doors)
    description = damage(rng, file)
    print(ascii(f"{file.relative_to(Path.cwd())}: {description}; opened by {door.__name__}"), flush=True)
    before = contents(Path.cwd())
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            door(path, examples)
    except sapc.SapcError as error:
        if len(str(error)) > LONGEST_SENTENCE or "\n" in str(error):
            raise BadCase(f"a sentence of {len(str(error))} characters: {str(error)[:60]!r}") from error
        if contents(Path.cwd()) != before:
            raise BadCase("a reader that failed has changed files") from error
    except ChangedValues as changed:
        has_warned = any(issubclass(w.category, sapc.SapcWarning) for w in caught)
        if not has_warned:
            raise BadCase(str(changed)) from changed
    if remains := leftovers(Path.cwd()):
        raise BadCase(f"left behind: {remains[0]}")


class ChangedValues(Exception):
    """What was read is not what was written; a warning may have said so."""


# -- doors --


def load_model(folder: Path, examples: Path) -> None:
    """`sapc.load`, and a sample."""
    model = sapc.load(folder, "cpu")
    data = model.task.dataset("test0", size=1)
    fields = model.sample(2, data.fields, 2)
    if not bool(fields.isfinite().all()) or fields.shape[1:] != data.fields.shape[1:]:
        raise BadCase(f"samples of shape {tuple(fields.shape)}, or not finite")
    truth = sapc.load(examples / "run", "cpu").network.state_dict()
    weights = model.network.state_dict()
    is_same = (
        all(torch.equal(weights[k], truth[k]) for k in truth) if weights.keys() == truth.keys() else False
    )
    if (folder / "scores.json").is_file() and not is_same:
        raise ChangedValues("weights that are not those of the scores were loaded without a word")


def load_own_model(folder: Path, examples: Path) -> None:
    """`sapc.load` of a model of one's own data, and a sample."""
    model = sapc.load(folder, "cpu", physics=examples / "physics.py", data=examples / "waves.npz")
    fields = model.sample(2, model.task.dataset("validation").fields[:1], 2)
    if not bool(fields.isfinite().all()):
        raise BadCase("samples that are not finite")


def resume(folder: Path, examples: Path) -> None:
    """`sapc train --resume`."""
    _judge_command("train", "--resume", folder)


def export(folder: Path, examples: Path) -> None:
    """`sapc export`."""
    _judge_command("export", folder, "exported")


def cite(folder: Path, examples: Path) -> None:
    """`sapc cite`."""
    _judge_command("cite", folder)


def report(folder: Path, examples: Path) -> None:
    """`sapc report`."""
    _judge_command("report", folder, "--out", "report")


def study_status(folder: Path, examples: Path) -> None:
    """`sapc study status`."""
    _judge_command("study", "status", folder)


def load_data(path: Path, examples: Path) -> None:
    """`sapc.load_dataset`: what it returns is what was written."""
    data, truth = sapc.load_dataset(path), sapc.load_dataset(examples / path.name)
    is_same = torch.equal(data.fields, truth.fields) and data.grid == truth.grid
    if not is_same or data.parameters.keys() != truth.parameters.keys():
        raise ChangedValues("load_dataset returned other values than were written")


def read_user_file(path: Path, examples: Path) -> None:
    """`sapc.read_fields`, which knows checksums of this package's files and of npz."""
    fields = sapc.read_fields(path)
    _check_values(fields.values.numpy())


def read_with_checksum(path: Path, examples: Path) -> None:
    """The same of a file with a checksum: what it returns is what was written."""
    fields, truth = sapc.read_fields(path), sapc.read_fields(examples / path.name)
    if not torch.equal(fields.values, truth.values) or fields.grid != truth.grid:
        raise ChangedValues("read_fields returned other values than were written")


def read_sensors(path: Path, examples: Path) -> None:
    """`sapc.read_sensors`."""
    sensors = sapc.read_sensors(path, sapc.get_task("heat", grid=(16, 16)).grid)
    if not bool(sensors.values[:, sensors.mask].isfinite().all()):
        raise BadCase("sensors that are not finite")


def use_condition(path: Path, examples: Path) -> None:
    """`sapc sample --condition`."""
    _judge_command(
        "sample", examples / "run", "--condition", path, "--n", 2, "--steps", 2, "--out", "out.npz"
    )
    if Path("out.npz").exists():
        with np.load("out.npz") as archive:
            _check_values(np.nan_to_num(archive["fields"]))


def use_physics(path: Path, examples: Path) -> None:
    """`sapc check`."""
    _judge_command("check", path, "--data", examples / "waves.npz", "--noise", 2)


def _check_values(values: np.ndarray) -> None:
    if np.isin(np.abs(values), SECRET).any():
        raise BadCase("values of another file were read")
    if not np.isfinite(values).all():
        raise BadCase("values that are not finite were read without a word")


def _judge_command(*line: object) -> None:
    """A command that may refuse, as readers do."""
    outcome = call(*line).judge()
    if str(SECRET) in outcome.out + outcome.err:
        raise BadCase("values of another file were shown")
    if outcome.code == 2:
        raise sapc.SapcError(outcome.err.strip())


RUN = (
    "config.json",
    "environment.json",
    "log.jsonl",
    "scores.json",
    "weights.safetensors",
    "fields.safetensors",
)
FORMATS = (
    Format("run", RUN, (load_model, load_model, resume, export, cite, report)),
    Format(
        "unfinished",
        ("config.json", "log.jsonl", "checkpoint.safetensors", "environment.json"),
        (resume, resume, export),
    ),
    Format(
        "model", ("config.json", "model.safetensors", "scores.json"), (load_model, load_model, export, cite)
    ),
    Format("own", ("config.json", "weights.safetensors"), (load_own_model,)),
    Format(
        "study",
        ("study.json", "states/heat-sapc-seed0.json", *(f"heat-sapc-seed0/{name}" for name in RUN)),
        (study_status, study_status, report),
    ),
    Format("heat.h5", (), (load_data, read_with_checksum)),
    *(Format(f"waves.{suffix}", (), (read_user_file,)) for suffix in ("npz", "npy", "h5", "h5", "nc", "cdf")),
    *(Format(f"samples.{suffix}", (), (use_condition,)) for suffix in ("h5", "npz", "nc")),
    Format("sensors.csv", (), (read_sensors,)),
    Format("physics.py", (), (use_physics,)),
)
