"""What the suite promises of itself: it is collected on a bare machine, leaves out no GPU case, and resets what it sets."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parent
# Whatever is not needed to import sapc, train and sample.
ABSENT = {
    *(
        "beartype",
        "conflictfree",
        "h5netcdf",
        "h5py",
        "huggingface_hub",
        "hypothesis",
        "jinja2",
        "matplotlib",
        "pyarrow",
        "ray",
    ),
    *("rich", "scipy", "submitit", "tensorboard", "transformers", "triton", "typer", "xarray"),
}
BARE = """
from importlib.machinery import PathFinder

find_spec, absent = PathFinder.find_spec, {absent}
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in absent else find_spec(name, *rest)
"""


@pytest.mark.slow
def test_a_bare_machine_collects_every_module_and_every_gpu_case(tmp_path):
    """Also the GPU's namesake of a long case, which marks by name once left out."""
    (tmp_path / "bare.py").write_text(BARE.format(absent=ABSENT))
    paths = [str(tmp_path), str(TESTS.parent / "src")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "bare", "-p", "no:xdist", "-p", "no:hypothesispytest", "--collect-only", TESTS],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "tests/gpu/test_cuda.py::test_compiled_equals_step_by_step[stokes_bc]" in done.stdout
    assert (
        "tests/constraints/test_projection_compiled.py::test_compiled_equals_step_by_step[stokes_bc]"
        not in done.stdout
    )


@pytest.mark.parametrize("before", [0, 1])
def test_waits_are_forbidden_inside_the_context_alone(forbid_waiting, monkeypatch, before):
    """With torch's two functions as they are on a GPU, where the notice comes after the mode is set."""
    mode = [before]

    def choose(new):
        mode[0] = new
        warnings.warn("Synchronization debug mode is a prototype feature", UserWarning, stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", choose)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[0])
    seen = []

    def fail():
        with forbid_waiting():
            seen.append(mode[0])
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert seen == ["error"]
    assert mode == [before]
