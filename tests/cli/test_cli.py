"""The command line: what it prints and writes, and one sentence with exit code 2 for every bad call."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from commands import is_one_sentence, list_files, run_command
from sapc import __version__
from sapc.tasks import get_task, load_dataset, task_names

pytest.importorskip("rich")
from rich.cells import cell_len

BURGERS = ("data", "burgers", "--size", "3", "--grid", "12x3")


# -- what it says of itself --


@pytest.mark.slow
def test_version():
    process = run_command("--version")
    assert (process.returncode, process.stdout, process.stderr) == (0, f"sapc {__version__}\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "chosen", "found"),
    [
        (["-m", "sapc", "--plugin", "show.py", "cite", "--help"], {}, "passive 1000"),
        (
            ["-m", "sapc", "--plugin", "show.py", "cite", "--help"],
            {"OMP_WAIT_POLICY": "active"},
            "active None",
        ),
        (["-m", "sapc", "--plugin", "show.py", "cite", "--help"], {"GOMP_SPINCOUNT": "7"}, "None 7"),
        (["-c", "import sapc, runpy; runpy.run_path('show.py')"], {}, "None None"),
    ],
)
def test_waiting_threads_sleep_in_commands_alone_and_unless_the_user_has_chosen(folder, line, chosen, found):
    names = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
    Path("show.py").write_text(f"import os\nprint('policy', *map(os.environ.get, {names}))\n")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    line = [sys.executable, *line]
    # The command then says that this is no plug-in.
    process = subprocess.run(line, env=inherited | chosen, capture_output=True, text=True, timeout=60)
    assert process.stdout.splitlines()[:1] == [f"policy {found}"], process.stderr


@pytest.mark.parametrize("name", ["tasks", "methods", "data", "train", "sample", "evaluate", "demo"])
def test_help_shows_an_example(call, name):
    code, out, _ = call(name, "--help")
    assert code == 0
    assert f"Example: sapc {name}" in " ".join(out.split())


def test_an_option_may_be_a_word(call, folder):
    line = "data", "reaction_diffusion", "--size", "2", "--grid", "16x8", "--out", "u.h5", "--option"
    code, _, _ = call(*line, "wave_span=centres")
    assert code == 0
    assert load_dataset("u.h5").options == {"wave_span": "centres"}
    code, _, err = call(*line, "wave_span=ends", "--force")
    assert (code, err) == (2, "sapc: unknown wave_span 'ends'; choose one of domain, centres\n")


def test_no_arguments_are_a_call_for_help(call):
    code, out, _ = call()
    assert code == 0
    assert "sapc demo" in out
    assert "tasks" in out


def test_tasks_fit_80_columns(call):
    code, out, err = call("tasks")
    assert (code, err) == (0, "")
    assert max(map(cell_len, out.splitlines())) <= 80
    assert "…" not in out
    assert all(name in out for name in task_names())


def test_tasks_as_json(call):
    code, out, _ = call("tasks", "--json")
    descriptions = json.loads(out)
    assert code == 0
    assert [t["name"] for t in descriptions] == list(task_names())
    assert descriptions[0]["sizes"]["train"] == 6400


@pytest.mark.slow
def test_a_terminal_without_symbols(folder):
    process = run_command("tasks", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error(folder):
    shell = subprocess.run(
        f"{sys.executable} -m sapc tasks | head -c 1", shell=True, capture_output=True, timeout=60
    )
    assert shell.stderr == b""


# -- data --


def test_data_round_trip(call, folder):
    code, out, err = call(*BURGERS, "--split", "test1", "--seed", "4", "--out", "new/folder/u.h5")
    assert (code, err) == (0, "")
    assert out.startswith("wrote new/folder/u.h5: 3 solutions of burgers")
    assert list_files(folder) == ["new", "new/folder", "new/folder/u.h5"]
    want = get_task("burgers", grid=(12, 3)).dataset("test1", size=3, seed=4, cache=False)
    assert torch.equal(load_dataset("new/folder/u.h5").fields, want.fields)


def test_data_options_and_json(call):
    code, out, _ = call(*BURGERS, "--option", "initial_range=0,1", "--json", "--out", "u.h5")
    assert code == 0
    assert json.loads(out) == {
        "path": "u.h5", "task": "burgers", "split": "train", "size": 3, "seed": 0, "grid": [12, 3]
    }  # fmt: skip
    assert load_dataset("u.h5").options == {"initial_range": (0.0, 1.0)}


def test_an_existing_file_is_kept_unless_forced(call, folder):
    Path("u.h5").write_text("mine")
    code, _, err = call(*BURGERS, "--out", "u.h5")
    assert code == 2
    assert "exists already" in err
    assert Path("u.h5").read_text() == "mine"
    assert call(*BURGERS, "--out", "u.h5", "--force")[0] == 0
    assert len(load_dataset("u.h5")) == 3
    assert list_files(folder) == ["u.h5"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["[/x].h5", "[bold]:smile:.h5", "{x}.h5", "%s.h5", "ü \\[.h5"])
def test_names_are_printed_as_they_are(call, name):
    code, out, _ = call(*BURGERS, "--out", name)
    assert code == 0
    assert out.startswith(f"wrote {Path(name)}: ")
    assert len(load_dataset(name)) == 3


BAD = {
    "plugin after": (["train", "heat", "--plugin", "a.py"], "--plugin goes before the command"),
    "unknown task": (["data", "haet", "--out", "n/u.h5"], "unknown task 'haet'"),
    "unknown split": ([*BURGERS, "--split", "tset", "--out", "n/u.h5"], "unknown split 'tset'"),
    "unknown option": ([*BURGERS, "--option", "range=1", "--out", "n/u.h5"], "unknown option 'range'"),
    "option without value": ([*BURGERS, "--option", "x", "--out", "n/u.h5"], "name=value"),
    "option without number": (
        [*BURGERS, "--option", "x=[/b]", "--out", "n/u.h5"],
        "must be a word, a number",
    ),
    "nan": ([*BURGERS, "--option", "initial_range=0,nan", "--out", "n/u.h5"], "low < high"),
    "too steep": ([*BURGERS, "--option", "initial_range=0,1e308", "--out", "n/u.h5"], "too steep"),
    "zero size": (["data", "heat", "--size", "0", "--out", "n/u.h5"], "at least 1, got 0"),
    "negative size": (["data", "heat", "--size", "-3", "--out", "n/u.h5"], "at least 1, got -3"),
    "fractional size": (["data", "heat", "--size", "1.5", "--out", "n/u.h5"], "see sapc data --help"),
    "large size": (["data", "heat", "--size", "99999999999", "--out", "n/u.h5"], "GiB available"),
    "huge size": (["data", "heat", "--size", "9" * 20, "--out", "n/u.h5"], "GiB available"),
    "large grid": (["data", "heat", "--grid", "100000x100000", "--out", "n/u.h5"], "GiB available"),
    "large basis": (
        ["data", "reaction_diffusion", "--size", "1", "--grid", "9000000x3", "--out", "n/u.h5"],
        "GiB available",
    ),
    "negative seed": (["data", "heat", "--seed", "-1", "--out", "n/u.h5"], "at least 0, got -1"),
    "grid of words": (["data", "heat", "--grid", "axb", "--out", "n/u.h5"], "--grid takes whole numbers"),
    "grid of three": (["data", "heat", "--grid", "4x4x4", "--out", "n/u.h5"], "sapc: "),
    "grid of zero": (["data", "heat", "--grid", "0x4", "--out", "n/u.h5"], "sapc: "),
    "grid too coarse": (["data", "burgers", "--grid", "4x4", "--out", "n/u.h5"], "at least 9 points"),
    "device": ([*BURGERS, "--device", "meta", "--out", "n/u.h5"], "device 'meta' cannot be used"),
    "no device": ([*BURGERS, "--device", "[/b]", "--out", "n/u.h5"], "device '[/b]' cannot be used"),
    "folder as file": ([*BURGERS, "--out", "."], "is a folder"),
    "not a file": ([*BURGERS, "--force", "--out", os.devnull], "not a regular file"),
    "below a file": ([*BURGERS, "--out", f"{__file__}/n/u.h5"], "is not a folder"),
    "long name": ([*BURGERS, "--out", "n" * 300], "name too long"),
    "no out": ([*BURGERS], "Missing option '--out'; see sapc data --help"),
    "unknown flag": ([*BURGERS, "--size-of", "3"], "see sapc data --help"),
    "unknown command": (["frob"], "No such command 'frob'; see sapc --help"),
    "demo of nothing": (["demo", "--size", "0", "--out", "n"], "at least 1, got 0"),
    "demo with a bad seed": (["demo", "--seed", "-1", "--out", "n"], "at least 0, got -1"),
    "demo below a file": (["demo", "--size", "1", "--out", f"{__file__}/n"], "cannot create the folder"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_is_one_sentence_and_creates_nothing(call, folder, name):
    arguments, message = BAD[name]
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert is_one_sentence(err), err
    assert message in err
    assert list_files(folder) == []


@pytest.mark.slow
def test_the_real_command_refuses_in_the_same_way(folder):
    process = run_command(*BURGERS, "--option", "initial_range=1", "--out", "n/u.h5")
    assert "two numbers" in process.stderr
    assert (process.returncode, process.stdout) == (2, "")
    assert is_one_sentence(process.stderr)
    assert list_files(folder) == []


def test_debug_shows_the_traceback(call):
    code, _, err = call("--debug", "data", "heat", "--size", "0", "--out", "u.h5")
    assert code == 2
    assert err.startswith("Traceback")
    assert err.splitlines()[-1].startswith("sapc: the size must be")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(call, folder):
    folder.chmod(0o500)
    try:
        code, _, err = call(*BURGERS, "--out", "n/u.h5")
    finally:
        folder.chmod(0o700)
    assert code == 2
    assert is_one_sentence(err)
    assert "cannot be written to" in err


# -- the cache --


def test_a_cache_of_nobody(call, folder, monkeypatch):
    monkeypatch.setenv("SAPC_CACHE", "~nobody-of-this-name/x")
    code, _, err = call(*BURGERS, "--out", "n/u.h5")
    assert code == 2
    assert is_one_sentence(err)
    assert "set SAPC_CACHE" in err
    assert list_files(folder) == []


@pytest.mark.slow
def test_a_half_written_cache_entry_is_made_again_with_a_warning(folder, tmp_path):
    assert run_command(*BURGERS, "--out", "a.h5").returncode == 0
    (entry,) = (tmp_path / "cache").iterdir()
    entry.write_bytes(entry.read_bytes()[:1000])
    process = run_command(*BURGERS, "--out", "b.h5")
    assert process.returncode == 0
    assert process.stderr.startswith("sapc: warning: a cached dataset is damaged and is made again")
    assert process.stderr.count("\n") == 1
    assert torch.equal(load_dataset("a.h5").fields, load_dataset("b.h5").fields)


# -- full disks and interrupts --


def _limit_file_size(size: int):
    """A limit on the size of files stands in for the full disk."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


# The file has 72 KiB: before, in and after the fields.
LIMITS = (0, 1024, 20 * 1024, 66 * 1024, 70 * 1024)


@pytest.mark.slow
@pytest.mark.parametrize("size", LIMITS)
def test_a_full_disk_is_one_sentence_and_leaves_nothing(folder, monkeypatch, size):
    monkeypatch.setenv("SAPC_CACHE", "off")
    arguments = ("data", "heat", "--size", "20", "--grid", "16x50", "--out", "n/u.h5")
    process = run_command(*arguments, preexec_fn=_limit_file_size(size))
    assert (process.returncode, process.stdout) == (2, "")
    assert is_one_sentence(process.stderr)
    assert "cannot write n/u.h5 (File too large)" in process.stderr
    assert list_files(folder) == []


def test_a_full_disk_under_the_cache_only_warns(folder, tmp_path):
    script = (
        "import resource, signal; from sapc.tasks import get_task;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000));"
        "get_task('burgers', grid=(12, 3)).dataset('train', size=3)"
    )
    line = [sys.executable, "-W", "ignore", "-c", script]
    process = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stderr) == (0, "")
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_an_interrupted_run_leaves_nothing(folder, tmp_path):
    line = [sys.executable, "-m", "sapc", "data", "navier_stokes", "--size", "4000", "--out", "n/u.h5"]
    # A run in the background may have inherited that interrupts are ignored; what is started here must not.
    take_interrupts = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(line, preexec_fn=take_interrupts, **pipes) as process:
        try:
            deadline = time.monotonic() + 30
            # Importing takes less.
            while time.monotonic() < deadline and _cpu_seconds(process.pid) < 4:
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert err == "sapc: interrupted; nothing half-written was left behind\n"
    assert list_files(tmp_path) == ["work"]


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
