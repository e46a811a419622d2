"""Whether Triton's kernels can run, and how; asked by everything that has some."""

from __future__ import annotations

import importlib.util
import os
from functools import cache

import torch
from torch import Tensor

OLDEST = (3, 4)  # earlier ones take no functions as arguments of kernels


@cache
def has_triton() -> bool:
    """Whether there is any version of Triton, which is enough for torch's own compiler."""
    return importlib.util.find_spec("triton") is not None


@cache
def triton_unavailable_reason() -> str:
    """What stands against kernels of our own, as far as Triton goes; empty if nothing does."""
    if not has_triton():
        return "Triton is not installed"
    try:
        import triton  # not before somebody asks: it takes its time
    except Exception as error:  # installed, but not for this machine
        return f"Triton cannot be imported ({error})"
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return (
        "" if version >= OLDEST else f"Triton {triton.__version__} is older than {'.'.join(map(str, OLDEST))}"
    )


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on any device: for tests."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


def is_capturing(x: Tensor) -> bool:
    """Whether what is launched on the device of `x` is being recorded instead of run."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()
