"""Whether Triton's kernels can run, and how; asked by everything that has some. Triton itself is not imported here."""

from __future__ import annotations

import importlib.util
import os
from functools import cache

import torch
from torch import Tensor


@cache
def has_triton() -> bool:
    """Whether the compiler of the kernels is installed."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on any device: for tests."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


def capturing(x: Tensor) -> bool:
    """Whether what is launched on the device of `x` is being recorded instead of run."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()
