"""The kernels compile: the interpreter, in which they are tested, accepts more than the compiler, which needs no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", minversion="3.4")


def test_the_kernels_compile_for_a_gpu(tmp_path):
    """In a program of its own, because this one may have started to interpret."""
    script = Path(__file__).parents[1] / "benchmarks" / "compile_kernels.py"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, script, "--entries", "1", "--networks", "solid"],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("restore ") == 4  # two laws, each for all samples and for some
    for kernel, variants in {
        "lift_forward": 1,
        "block_forward": 2,
        "block_backward": 2,
        "project_weights": 1,
    }.items():
        assert done.stdout.count(kernel) == variants
