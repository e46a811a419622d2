"""Whether kernels of Triton can run, and how."""

from __future__ import annotations

import importlib.util
import os
from functools import cache

import torch
from torch import Tensor

# Earlier versions take no functions as arguments of kernels.
OLDEST = (3, 4)


@cache
def has_triton() -> bool:
    """Check for any version of Triton, which is enough for torch's own compiler."""
    return importlib.util.find_spec("triton") is not None


@cache
def triton_unavailable_reason() -> str:
    """Return why Triton cannot compile kernels of our own, or an empty text."""
    if not has_triton():
        return "Triton is not installed"
    try:
        # Not before somebody asks: it takes its time.
        import triton
    # Installed, but not for this machine.
    except Exception as error:
        return f"Triton cannot be imported ({error})"
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return (
        "" if version >= OLDEST else f"Triton {triton.__version__} is older than {'.'.join(map(str, OLDEST))}"
    )


def is_interpreted() -> bool:
    """Check whether kernels run in Triton's interpreter, on any device: for tests."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


def is_capturing(x: Tensor) -> bool:
    """Check whether launches on the device of `x` are being recorded instead of run."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()
