"""Shared by all tests: solved data is cached once per run, in a folder of the run's own; and commands run in a folder of their own."""

import os

import pytest
import torch

if not torch.cuda.is_available():  # kernels are interpreted; Triton asks when it is first imported
    os.environ.setdefault("TRITON_INTERPRET", "1")


# Further cases of what a shorter one of the same test shows already, minutes in all: `make test-long` has them, too.
LONG = (
    "test_stokes_converges_for_400_draws[stokes_ic-0.1]",
    "test_stokes_converges_for_400_draws[stokes_ic-0.01]",
    "test_stokes_converges_for_400_draws[stokes_bc-0.1]",
    "test_stokes_converges_for_400_draws[stokes_bc-0.01]",
    "test_gradient_with_respect_to_the_condition[stokes_ic]",
    "test_gradient_with_respect_to_the_condition[stokes_bc]",
    "test_gradient_with_respect_to_the_condition[navier_stokes]",
    "test_gradient_of_the_projection[stokes_bc]",
    "test_nearest_point_on_the_published_grids[stokes_ic-0.1]",
    "test_nearest_point_on_the_published_grids[stokes_bc-0.1]",
    "test_compiled_equals_step_by_step[stokes_bc]",
    "test_two_processes_equal_one_with_the_joint_batch[stokes_bc-sapc]",
    "test_two_processes_equal_one_with_the_joint_batch[reaction_diffusion-cafm]",
    "test_samples_are_the_same_to_the_bit[eci_stokes_ic-reaction_diffusion]",
    "test_samples_are_the_same_to_the_bit[eci_stokes_bc-reaction_diffusion]",
    "test_reaction_diffusion_leaves_the_published_residual[test1]",
    "test_reaction_diffusion_leaves_the_published_residual[test2]",
    "test_reaction_diffusion_leaves_the_published_residual[test3]",
    "test_published_grids_from_noise_and_near_the_truth[navier_stokes-0.01]",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.name in LONG:
            item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True, scope="session")
def _data_cache(tmp_path_factory):
    root = tmp_path_factory.getbasetemp()
    # pytest-xdist gives every worker a folder inside one of the run; the cache is written atomically, so they can share it.
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAPC_CACHE", str(folder))
        yield


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A small study that is done, one thread per process; nobody writes to it."""
    from sapc.study import Local, load_study, run_study
    from studying import study_file

    place = tmp_path_factory.mktemp("study")
    study = load_study(study_file(place), place / "mini")
    found = run_study(study, Local("cpu", workers=2, threads=1))
    assert [s.state for s in found] == ["done"] * 3, [s.error for s in found]
    return study


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to work in, with a cache elsewhere and 80 columns."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("SAPC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SAPC_POSEIDON", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path / "work"


@pytest.fixture
def call(folder, capfd):
    """Run a command in this process: exit code, standard output, standard error."""

    from sapc import cli

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as done:
            cli.main(list(arguments))
        captured = capfd.readouterr()
        return int(done.value.code or 0), captured.out, captured.err

    return run
