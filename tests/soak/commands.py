"""Command lines of every command, made of its declared options with good and odd values, run in this process.

A line begins as one that works. Then a few of its words are changed, dropped, doubled or added. Whatever
comes of it ends with exit code 0, 1 or 2, without a traceback; with exit code 2 there is one sentence, and
every file is as it was.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import typer

from sapc.cli.app import app

from .case import BadCase
from .examples import copy_example
from .program import call, contents, leftovers

# Lines that work, and how often they are drawn; a word that names an example stands for a copy of it.
LINES = {
    "tasks": 1, "methods": 1, "models": 1, "cite run": 1, "cite --method eci": 1,
    "data heat --grid 12x12 --size 2 --split test1 --out out.h5": 3,
    "check physics.py --data waves.npz --noise 2": 3,
    "train heat --preset tiny --steps 2 --out new": 3,
    "train burgers --preset tiny --steps 2 --method ffm --out new": 1,
    "train --data waves.npz --physics physics.py --preset tiny --steps 2 --out new": 3,
    "train --resume unfinished": 2,
    "sample run --n 2 --steps 2 --out out.h5": 3,
    "sample run --n 2 --steps 2 --condition samples.npz --out out.nc": 2,
    "sample run --n 2 --steps 2 --sensors sensors.csv --set test1 --out out.npz": 2,
    "sample own --physics physics.py --data waves.npz --n 2 --steps 2 --out out.nc": 3,
    "evaluate run --set test0 --samples 2 --reference 4 --steps 2 --floor-repeats 1": 3,
    "compare heat --preset tiny --method ffm --samples 2 --reference 4 --steps 2 --floor-repeats 1 "
    "--out new": 1,
    "export run new": 3,
    "study status study": 1,
    "study status study.py": 1,
    "report run --out new": 1,
    "study run study.py --out new --device cpu": 1,
    "bench --task heat --preset tiny --part projection --steps 1": 1,
    "demo --preset tiny --samples 2 --steps 2 --out new": 1,
}  # fmt: skip

# Values that make sense for an option, all of them cheap.
GOOD = {
    "--method": ("sapc", "ffm", "eci", "pcfm", "cafm", "pbfm", "cond_ffm"),
    "--preset": ("tiny",),
    "--set": ("test0", "test1", "test2", "test3", "train", "validation"),
    "--split": ("train", "validation", "test0", "test3"),
    "--precision": ("float32", "tf32", "fp16", "bf16"),
    "--projector": ("feasible", "nearest", "paper"),
    "--grid": ("12x12", "16x16", "9x17", "12×12", "6x6", "12x12x6", "16"),
    "--option": ("initial_range=0,1", "initial_range=-1,1", "viscosity=0.1"),
    "--channels": ("u", "u,v", "x"),
    "--periodic": ("x", "t", "x,t", "y"),
    "--cells": ("x", "t", "y"),
    "--time": ("t", "x", "first", "last"),
    "--samples-dim": ("sample", "x"),
    "--validation-share": ("0.25", "0.5"),
    "--quantiles": ("0.5", "0.05,0.95"),
    "--condition": ("samples.h5", "samples.npz", "samples.nc", "heat.h5", "waves.npz"),
    "--sensors": ("sensors.csv",),
    "--data": ("waves.npz", "waves.h5", "waves.nc", "waves.cdf", "heat.h5", "waves.npy"),
    "--physics": ("physics.py",),
    "--resume": ("unfinished", "run", "own", "study"),
    "--from": ("run", "own"),
    "--device": ("cpu", "auto"),
    "--devices": ("1",),
    "--workers": ("1",),
    "--engine": ("local",),
    "--out": ("new", "out.h5", "out.npz", "out.nc", "a/b/out.nc", "run", "out"),
    "--seed": ("0", "1", "7"),
    "--name": ("waves", "owner/name"),
    "--title": ("A title",),
}
ODD = (
    "", " ", "-1", "0", "1", "2.5", "nan", "inf", "-inf", "1e400", "x", "None", "true", "[bold]x", "{}",
    "%s", "é", "３", "𝟛", "🐍", "../x", "/", ".",
    "~", "/dev/null", "/proc/self/mem", "nowhere/at/all", "x" * 300, "x" * 5000, "9" * 30, "9" * 5000,
    "0x10", "1_0", "1,2", ",", "x=", "=1",
    "x=nan", "0x0", "-1x5", "3x3", "1x1", "100000x100000", "a\nb", "--", "-", "run", "heat.h5", "meta",
    "cuda", "mps", "cpu:7",
)  # fmt: skip
ODD_NUMBERS = {
    "int": ("-1", "0", "1", "17", "20000", "1000000", "9999999999999", str(2**63), "9" * 30, "-" + "9" * 30),
    "float": ("-1", "0", "1", "-0.0", "1e-320", "1e300", "nan", "inf", "-inf", "1e999"),
}  # fmt: skip
# Their work, or the processes they start, would be as large as asked for.
WORK = {
    "--steps", "--devices", "--workers", "--floor-repeats", "--blocks", "--noise", "--size", "--reference",
    "--train", "--validation",
}  # fmt: skip
# So many that no machine has room for them, which has to be noticed before the work.
COUNTS, EXCESS_COUNTS = (
    ("--n", "--members", "--samples"),
    ("-1", "0", "1", "9999999999999", str(2**63), "9" * 30),
)
# Options left alone: they compile, need weights from elsewhere, or show tracebacks on purpose.
LEFT_OUT = {
    "--compile", "--poseidon", "--calibrate", "--debug", "--frd", "--tensorboard", "--address", "--slurm",
    "--projection",
}  # fmt: skip


def check(rng: random.Random, seed: int, examples: Path) -> None:
    """Make a line and run it."""
    line = rng.choices(list(LINES), list(LINES.values()))[0].split()
    options = _options(line)
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        line = _change(rng, line, options)
    _copy_examples(line, examples)
    print("sapc " + " ".join(ascii(word)[:60] for word in line), flush=True)
    before = contents(Path.cwd())
    outcome = call(*line).judge()
    after = contents(Path.cwd())
    if remains := leftovers(Path.cwd()):
        raise BadCase(f"left behind: {remains[0]}")
    if outcome.code == 2 and after != before:
        different = sorted(set(before.items()) ^ set(after.items()))
        raise BadCase(f"refused, but files are not as before: {different[0][0]}; {outcome.err.strip()}")
    if outcome.code == 0 and "--json" in line and "--help" not in line and "-h" not in line:
        try:
            json.loads(outcome.out)
        except ValueError as error:
            raise BadCase(f"--json printed something else: {outcome.out[:60]!r}") from error


def _options(line: list[str]) -> dict[str, str]:
    """The options that the command of a line declares, with the type of their value; a flag has none."""
    command = typer.main.get_command(app)
    for word in line:
        further = getattr(command, "commands", {})
        if word not in further:
            break
        command = further[word]
    return {
        name: "" if getattr(option, "is_flag", False) else _type(option)
        for option in command.params
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("--") and name not in LEFT_OUT
    }


def _type(option: Any) -> str:
    """The name of the type of an option's value, in typer's newer words or in click's."""
    descriptor = getattr(option, "type_descriptor", None)
    name = getattr(descriptor.annotation, "__name__", "") if descriptor else option.type.name
    return "int" if name == "integer" else name


def _change(rng: random.Random, line: list[str], options: dict[str, str]) -> list[str]:
    """The line with something done to it."""
    line = list(line) or ["--help"]
    i = rng.randrange(len(line))
    edit = rng.choice(("value",) * 5 + ("option",) * 5 + ("drop", "double", "insert", "swap"))
    values = [k for k in range(1, len(line)) if line[k - 1].startswith("--") and options.get(line[k - 1])]
    if edit == "value" and values:
        k = rng.choice(values)
        line[k] = _value(rng, line[k - 1], options[line[k - 1]])
    elif edit == "option" and options:
        name = rng.choice(list(options))
        line += [name, _value(rng, name, options[name])] if options[name] else [name]
    elif edit == "drop":
        # A line without its cheap settings would do the work of the standard ones.
        if not line[i].startswith("--") and line[i - 1] not in (*WORK, "--preset", "--samples", "--n"):
            del line[i]
    elif edit == "double":
        line.insert(i, line[i])
    elif edit == "swap":
        j = rng.randrange(len(line))
        if not any(line[k].startswith("--") for k in (i, j)):
            line[i], line[j] = line[j], line[i]
    else:
        line.insert(i, rng.choice((*ODD[:20], "--nothing", "-x", "--help", "-h", "--json", "--json")))
    return line


def _value(rng: random.Random, option: str, kind: str) -> str:
    """A value for an option: one that makes sense, an odd one of its type, or anything."""
    if rng.random() < 0.4:
        return rng.choice(GOOD.get(option, ("1", "2", "0.5", "3")))
    if (numbers := ODD_NUMBERS.get(kind)) and rng.random() < 0.8:
        return rng.choice(
            ("-1", "0", "1") if option in WORK else EXCESS_COUNTS if option in COUNTS else numbers
        )
    return rng.choice([odd for odd in ODD if not (option in WORK and odd.isdigit())])


def _copy_examples(words: list[str], examples: Path) -> None:
    """Copy the examples that a line names."""
    for word in dict.fromkeys(words):
        plain = "/" not in word and 2 < len(word) < 100
        if plain and (examples / word).exists():
            copy_example(examples, word)
