"""Shared by all tests: solved data is cached once per run, in a folder of the run's own; and commands run in a folder of their own."""

import os
import signal
import warnings
from contextlib import contextmanager

import pytest
import torch

if not torch.cuda.is_available():  # kernels are interpreted; Triton asks when it is first imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

NEIGHBOURS = 10

# A shell starts what runs in the background deaf to Ctrl-C, and so would be the programs that the tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--part", default="1/1", help="2/3 runs the second third of the tests")


def pytest_collection_modifyitems(config, items):
    part, parts = (int(number) for number in config.getoption("--part").split("/"))
    # Neighbours share what is costly to make.
    items[:] = [item for i, item in enumerate(items) if i // NEIGHBOURS % parts == part - 1]
    for item in items:
        # Compilers warn of themselves, each version of something else; ours are still errors.
        if item.path.name.startswith("test_cuda"):
            item.add_marker(pytest.mark.filterwarnings(r"ignore:::(torch|triton)\b"))


@pytest.fixture(autouse=True, scope="session")
def _data_cache(tmp_path_factory):
    root = tmp_path_factory.getbasetemp()
    # pytest-xdist gives every worker a folder inside one of the run; the cache is written atomically, so they can share it.
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAPC_CACHE", str(folder))
        yield


@pytest.fixture
def forbid_waiting():
    """A context in which whatever torch counts as a wait for the GPU is an error; the mode before is set again whatever happens."""

    def choose(mode):
        # After the mode is set torch gives notice that it is a prototype.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)
            torch.cuda.set_sync_debug_mode(mode)

    @contextmanager
    def context():
        before = torch.cuda.get_sync_debug_mode()
        try:
            choose("error")
            yield
        finally:
            choose(before)

    return context


@pytest.fixture(scope="session")
def finished_study(tmp_path_factory):
    """A small study that is done, one thread per process; nobody writes to it."""
    from sapc.experiments import Local, load_study, run_study
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
