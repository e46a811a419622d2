"""The command line: parse, call, print.

A bad call ends with exit code 2 and one sentence; `--debug` shows the traceback. There is one file per
command; the help lists the commands in the order of the imports here.

The docstring of a command is its help text, so it has no sections on arguments and errors.
"""

# ruff: isort: off
from . import (
    lists,
    models,
    data,
    check,
    train,
    tune,
    sample,
    evaluate,
    compare,
    study,
    report,
    demo,
    bench,
    cite,
)
from .app import main

__all__ = [
    "bench",
    "check",
    "cite",
    "compare",
    "data",
    "demo",
    "evaluate",
    "lists",
    "main",
    "models",
    "report",
    "sample",
    "study",
    "train",
    "tune",
]
