"""Processes that are killed, interrupted or started in a stranger's folder: what they leave behind, what they say, what they import."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import sapc
from sapc._files import PARTIAL, STALE_SECONDS, atomic_folder, atomic_write, remove_remains
from sapc.data.cache import load_or_make
from sapc.experiments import Local, load_study, worker
from sapc.experiments.engines import Job
from studying import study_file


def killed(work) -> None:
    """Do some work in a process that kills itself in the middle of it."""
    if (child := os.fork()) == 0:
        with suppress(BaseException):
            # A fork has none of its parent's threads, and would wait for them for ever.
            torch.set_num_threads(1)
            work()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def half_written(path: Path) -> None:
    with atomic_write(path) as partial:
        partial.write_text("half")
        die()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- remains --


def test_the_next_write_into_a_folder_takes_away_what_dead_writers_left(tmp_path):
    killed(lambda: half_written(tmp_path / ("a" * 250)))
    (left,) = names(tmp_path)
    assert PARTIAL.fullmatch(left)
    with atomic_write(tmp_path / "c") as partial:
        partial.write_text("whole")
    assert names(tmp_path) == ["c"]


def test_what_is_being_written_stays(tmp_path):
    """By this process, by another one, and on another machine; there only time tells."""
    with atomic_write(tmp_path / "mine") as mine:
        elsewhere = re.sub(r"\.[0-9a-f]{8}-", ".00000000-", mine.name)
        alive = re.sub(r"-\d+-", f"-{os.getppid()}-", mine.name)
        foreign = ".somebody.partial"
        for name in (elsewhere, alive, foreign):
            (tmp_path / name).write_text("live")
        remove_remains(tmp_path)
        assert names(tmp_path) == sorted({mine.name, elsewhere, alive, foreign})
        past = time.time() - STALE_SECONDS - 1
        for name in (elsewhere, alive, foreign):
            os.utime(tmp_path / name, (past, past))
        remove_remains(tmp_path)
        assert names(tmp_path) == sorted({mine.name, alive, foreign})


def test_using_the_cache_takes_away_what_was_left_there(tmp_path):
    killed(lambda: half_written(tmp_path / "entry.h5"))
    assert names(tmp_path)
    data = sapc.get_task("heat", grid=(8, 8)).dataset("train", size=2)
    about = {"task": "heat", "split": "train"}
    for _ in range(2):
        load_or_make(tmp_path, about, lambda: data)
        assert [name for name in names(tmp_path) if not name.startswith("heat-train")] == []


def test_an_export_that_was_killed_leaves_no_folder_and_can_be_repeated(tmp_path, monkeypatch):
    model, home = sapc.load("heat-ffm", "cpu"), tmp_path / "out"

    def export() -> None:
        import sapc.models.hub

        sapc.models.hub.write_json = lambda *_: die()  # the last of the files
        model.save_pretrained(home)

    killed(export)
    assert not home.exists()
    (left,) = names(tmp_path)
    assert PARTIAL.fullmatch(left)
    home.mkdir()  # an empty folder is as good as none
    model.save_pretrained(home)
    assert names(tmp_path) == ["out"]
    assert names(home) == ["README.md", "config.json", "model.safetensors", "scores.json", "times.json"]
    assert sapc.load(home, "cpu").step == model.step
    with pytest.raises(sapc.SapcError, match="exists and is not an empty folder"):
        model.save_pretrained(home)


@pytest.mark.parametrize("moment", ["mkdir", "replace"])
def test_a_study_that_was_killed_while_it_began_can_be_begun_again(tmp_path, monkeypatch, moment):
    """After its folder was made, and while its description was written: neither is somebody else's folder."""
    study = load_study(study_file(tmp_path), tmp_path / "out")
    made = Path.mkdir

    def begin() -> None:
        if moment == "replace":
            os.replace = lambda *_: die()
        else:  # when the second folder inside the study's is made
            Path.mkdir = lambda path, *a, **k: die() if path.name == "logs" else made(path, *a, **k)
        study.write()

    killed(begin)
    assert names(study.out)
    study.write()
    assert names(study.out) == ["logs", "states", "study.json"]


def test_an_interrupt_while_a_file_is_created_leaves_nothing(tmp_path, monkeypatch):
    close = os.close

    def interrupt(handle: int) -> None:
        close(handle)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "close", interrupt)
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "file"):
        pytest.fail("the file was to be interrupted before it is written")
    assert names(tmp_path) == []


def test_a_worker_that_is_asked_to_end_in_the_middle_of_a_note_leaves_nothing(tmp_path, monkeypatch):
    """Its standard input is closed: it hears SIGTERM as Ctrl-C, and what it writes at that moment disappears."""

    def write(*_: object) -> list[str]:
        with atomic_write(tmp_path / "note.json"):
            time.sleep(60)
        return []

    monkeypatch.setattr(worker, "work", write)
    monkeypatch.setattr(sys, "argv", ["sapc.experiments.worker", "out", "folder"])
    if (child := os.fork()) == 0:
        os.close(0)
        os.open(os.devnull, os.O_RDONLY)
        os._exit(worker.main())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == worker.EXIT_INTERRUPTED
    assert names(tmp_path) == []


def test_a_folder_that_failed_leaves_nothing(tmp_path):
    def fail() -> None:
        with atomic_folder(tmp_path / "new" / "out") as folder:
            (folder / "file").write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert names(tmp_path) == []


def test_the_current_folder_is_not_exchanged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(sapc.SapcError, match="is the folder you are in"):
        sapc.load("heat-ffm", "cpu").save_pretrained(".")


# -- interrupts --


@pytest.mark.parametrize("how", [["-m", "sapc"], ["sapc"]])
def test_an_interrupt_while_importing_is_one_line(tmp_path, how):
    """A stand-in for torch, which takes seconds to import, sends it."""
    (tmp_path / "torch.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)\n"
    )
    if how == ["sapc"]:
        script = tmp_path / "bin" / "sapc"
        script.parent.mkdir()
        script.write_text("import sys\nfrom sapc.cli import main\nsys.exit(main())\n")
        how = [str(script)]
    done = subprocess.run(
        [sys.executable, *how, "tasks"], capture_output=True, text=True, timeout=60, env=beside(tmp_path)
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "sapc: interrupted; nothing was begun\n"


@pytest.mark.slow
def test_an_interrupt_through_the_text_of_an_exec_is_an_exit_code(tmp_path):
    """Python would remember it, and end by a signal."""
    (tmp_path / "stop.py").write_text('exec("raise KeyboardInterrupt")\n')
    line = [sys.executable, "-m", "sapc", "--plugin", str(tmp_path / "stop.py"), "tasks"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "sapc: interrupted; nothing half-written was left behind\n"


def test_a_program_that_imports_the_package_is_interrupted_as_always(tmp_path):
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    code = "try:\n    import sapc\nexcept KeyboardInterrupt:\n    print('heard')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=beside(tmp_path))
    assert done.stdout == "heard\n"


def beside(folder: Path) -> dict[str, str]:
    """The environment in which modules of a folder come first."""
    home = str(Path(sapc.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), home))}


# -- the current folder --


def test_a_worker_imports_nothing_from_the_current_folder(folder, monkeypatch):
    """Where torch would be imported, this package was; a stand-in for it ends the process there."""
    study = load_study(study_file(folder), folder / "study")
    study.write()
    (folder / "sapc.py").write_text("raise SystemExit(7)")
    (folder.parent / "other").mkdir()
    (folder.parent / "other" / "torch.py").write_text("raise SystemExit(5)")
    monkeypatch.setenv("PYTHONPATH", beside(folder.parent / "other")["PYTHONPATH"])
    job = Job(str(study.out), study.cells[0].folder, ())
    assert Local("cpu", workers=1)._run_process(study, job, [], ("cpu", {})) == 5
