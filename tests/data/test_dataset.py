"""Dataset files: bit-exact, self-explaining, atomic; the cache that can only save time."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch

from sapc._files import atomic_write, ensure_folder
from sapc.data import read_fields
from sapc.data.cache import cache_folder
from sapc.data.dataset import checksum
from sapc.errors import SapcError, SapcWarning
from sapc.grid import Axis, Grid
from sapc.tasks import get_task, load_dataset

pytest.importorskip("h5py")
import h5py


@pytest.fixture
def data():
    return get_task("heat", grid=(12, 7)).dataset("test1", size=5, seed=3)


def test_a_dataset_is_shown_by_what_it_holds_without_its_values(data):
    assert repr(data) == "Dataset(heat, test1, 5 solutions, 12 x 7, seed 3)"


@pytest.fixture
def task(tmp_path, monkeypatch):
    """A task that is cached, with a cache of its own."""
    monkeypatch.setenv("SAPC_CACHE", str(tmp_path / "cache"))
    return get_task("burgers", grid=brief(4), initial_range=(0.0, 1.0))


def brief(frames: int) -> Grid:
    """A grid of burgers that is solved in a moment."""
    return Grid((Axis("x", 12, kind="periodic"), Axis("t", frames, 0.0, 0.01)))


def same(a, b) -> bool:
    return (
        torch.equal(a.fields, b.fields)
        and a.parameters.keys() == b.parameters.keys()
        and all(torch.equal(a.parameters[k], b.parameters[k]) for k in a.parameters)
        and (a.task, a.split, a.seed, a.grid, dict(a.options))
        == (b.task, b.split, b.seed, b.grid, dict(b.options))
    )


def test_saving_and_loading_gives_the_same_bits(data, tmp_path):
    path = data.save(tmp_path / "heat.h5")
    assert os.listdir(tmp_path) == ["heat.h5"]
    read = load_dataset(path)
    assert same(read, data)
    assert read.fields.dtype == torch.float32
    assert dict(read.provenance) == dict(data.provenance)
    assert {"package", "torch", "created", "solver", "device"} <= set(read.provenance)


def test_options_survive_a_file(task, tmp_path):
    data = task.dataset("train", size=2)
    read = load_dataset(data.save(tmp_path / "burgers.h5"))
    assert same(read, data)
    again = get_task(read.task, grid=read.grid, **read.options).dataset(
        read.split, size=len(read), seed=read.seed
    )
    assert same(again, data)


def test_a_file_explains_itself(data, tmp_path):
    with h5py.File(data.save(tmp_path / "heat.h5")) as file:
        assert file["fields"].shape == (5, 12, 7)
        assert set(file["parameters"]) == {"diffusivity", "phase"}
        assert [a["name"] for a in json.loads(file.attrs["grid"])["axes"]] == ["x", "t"]
        assert json.loads(file.attrs["header"])["task"] == "heat"


def test_a_file_is_as_readable_as_others(data, tmp_path):
    mask = os.umask(0o022)
    try:
        path = data.save(tmp_path / "heat.h5")
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o644


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path):
    with h5py.File(path, "r+") as file:
        file["fields"][0, 0, 0] += 1e-6


def drop_a_parameter(path):
    with h5py.File(path, "r+") as file:
        del file["parameters/phase"]


def edit_the_header(path):
    with h5py.File(path, "r+") as file:
        file.attrs["header"] = file.attrs["header"].replace('"seed": 3', '"seed": 4')


def end_no_heap(path):
    """HDF5 itself would never come back: after the last text there is free space of size zero."""
    content = bytearray(path.read_bytes())
    place = content.index(b"GCOL") + 16
    while int.from_bytes(content[place : place + 2], "little"):
        place += 16 + -(-int.from_bytes(content[place + 8 : place + 16], "little") // 8) * 8
    content[place + 8 : place + 16] = bytes(8)
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


def other_text(path):
    path.write_text("x, y\n1, 2\n")


def other_hdf5(path):
    path.unlink()
    with h5py.File(path, "w") as file:
        file["fields"] = [1.0]


def header(**entries):
    """Damage to a file: other entries of the header, under a checksum that fits."""

    def damage(path):
        with h5py.File(path, "r+") as file:
            about = json.dumps({**json.loads(file.attrs["header"]), **entries}, sort_keys=True)
            arrays = {name: item[()] for name, item in file["parameters"].items()}
            file.attrs["header"] = about
            file.attrs["sha256"] = checksum(about, file["fields"][()], arrays)

    damage.__name__ = f"header_{'_'.join(entries)}"
    return damage


def attribute(name, value):
    """Damage to a file: another attribute, or none."""

    def damage(path):
        with h5py.File(path, "r+") as file:
            del file.attrs[name]
            if value is not None:
                file.attrs[name] = value

    damage.__name__ = f"attribute_{name}"
    return damage


AXES = [{"name": "x", "n": 12}, {"name": "t", "n": 8}]
HEADERS = [
    header(grid=5),
    header(grid={}),
    header(grid={"axes": [5]}),
    header(grid={"axes": AXES}),
    header(parameters=5),
    header(parameters=[["phase"]]),
    header(parameters=["speed"]),
    header(options=[]),
    header(seed="0"),
    header(task=None),
    header(provenance=""),
    attribute("header", "[" * 100_000),
    attribute("header", "5"),
    attribute("header", 5),
    attribute("header", None),
    attribute("sha256", None),
]


@pytest.mark.parametrize("damage", HEADERS, ids=lambda f: f.__name__)
def test_headers_of_another_kind_are_refused_in_one_sentence(data, tmp_path, damage):
    path = data.save(tmp_path / "heat.h5")
    damage(path)
    for read in (load_dataset, read_fields):
        with pytest.raises(SapcError, match=r"heat\.h5") as caught:
            read(path)
        assert "\n" not in str(caught.value)


DAMAGE = [truncate, flip_a_bit, drop_a_parameter, edit_the_header, end_no_heap, empty, other_text, other_hdf5]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_a_damaged_file_is_refused_in_one_sentence(data, tmp_path, damage):
    path = data.save(tmp_path / "heat.h5")
    damage(path)
    with pytest.raises(SapcError, match=r"heat\.h5") as caught:
        load_dataset(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", [flip_a_bit, drop_a_parameter, edit_the_header], ids=lambda f: f.__name__)
def test_fields_of_a_damaged_dataset_are_not_read(data, tmp_path, damage):
    """One flipped bit would be values off by 3e37."""
    path = data.save(tmp_path / "heat.h5")
    assert torch.equal(read_fields(path).values, data.fields)
    damage(path)
    with pytest.raises(SapcError, match=r"heat\.h5"):
        read_fields(path)


@pytest.mark.parametrize("name", ["nothing.h5", "."])
def test_a_missing_file_is_refused(tmp_path, name):
    with pytest.raises(SapcError, match="there is no dataset file"):
        load_dataset(tmp_path / name)


def test_a_dataset_must_fit_together(data):
    with pytest.raises(SapcError, match="one row per field"):
        replace(data, parameters={"phase": torch.zeros(4)})
    with pytest.raises(SapcError, match="this grid needs"):
        replace(data, fields=torch.zeros(5, 7, 12))


# -- interrupted and impossible writes --


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, MemoryError])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "file.h5"
    path.write_text("old")

    def write() -> None:
        with atomic_write(path) as partial:
            partial.write_text("half of the n")
            raise error("stop")

    with pytest.raises(SapcError if error is OSError else error):
        write()
    assert os.listdir(tmp_path) == ["file.h5"]
    assert path.read_text() == "old"


def test_a_full_disk_is_one_sentence_and_leaves_nothing(data, tmp_path):
    """A limit on the size of files stands in for the full disk."""
    large = replace(data, fields=data.fields.repeat(4000, 1, 1), parameters={})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(SapcError, match="cannot write") as caught:
            large.save(tmp_path / "heat.h5")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_paths_that_cannot_be_written_are_refused(data, tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "no" / "such" / "heat.h5", tmp_path / "file" / "heat.h5", tmp_path):
        with pytest.raises(SapcError, match="cannot write"):
            data.save(path)
    assert os.listdir(tmp_path) == ["file"]


def test_folders_made_for_a_failed_write_disappear(tmp_path):
    def write(error: BaseException | None) -> None:
        with ensure_folder(tmp_path / "a" / "b") as folder:
            assert folder.is_dir()
            if error is not None:
                raise error

    (tmp_path / "a").mkdir()
    for error in (KeyboardInterrupt(), SapcError("no")):
        with pytest.raises(type(error)):
            write(error)
        assert os.listdir(tmp_path / "a") == []
    write(None)
    assert os.listdir(tmp_path / "a") == ["b"]
    with pytest.raises(SapcError):
        write(SapcError("no"))
    # It was there before.
    assert os.listdir(tmp_path / "a") == ["b"]
    (tmp_path / "file").write_text("")
    with pytest.raises(SapcError, match="cannot create the folder"), ensure_folder(tmp_path / "file" / "x"):
        pass


FULL = """
import resource, signal, sys
from sapc.errors import SapcError
from sapc.tasks import get_task
data = get_task("heat", grid=(16, 50)).dataset("train", size=20)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
failed = 0
for _ in range(2):
    try:
        data.save(sys.argv[1])
    except SapcError:
        failed += 1
print(failed)
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 800, 64_000, 71_000])
def test_the_process_outlives_a_full_disk(tmp_path, size):
    """HDF5 would crash while the interpreter exits if it had seen the failure; the file has 71728 bytes."""
    line = [sys.executable, "-c", FULL, str(tmp_path / "u.h5"), str(size)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
    assert os.listdir(tmp_path) == []


# -- the cache --


def test_the_cache_gives_identical_bits(task, tmp_path):
    made = task.dataset("train", size=3, seed=1)
    (entry,) = (tmp_path / "cache").iterdir()
    stamp = entry.stat().st_mtime_ns
    read = task.dataset("train", size=3, seed=1)
    assert same(read, made)
    assert read.provenance == made.provenance
    assert entry.stat().st_mtime_ns == stamp
    assert same(task.dataset("train", size=3, seed=1, cache=False), made)


def test_everything_that_defines_the_data_is_in_the_key(task, tmp_path, monkeypatch):
    task.dataset("train", size=3)
    task.dataset("train", size=4)
    task.dataset("train", size=3, seed=1)
    task.dataset("test0", size=3)
    get_task("burgers", grid=brief(5), initial_range=(0.0, 1.0)).dataset("train", size=3)
    get_task("burgers", grid=brief(4)).dataset("train", size=3)
    monkeypatch.setattr(type(task), "solver_version", task.solver_version + 1)
    task.dataset("train", size=3)
    assert len(list((tmp_path / "cache").iterdir())) == 7


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, empty, other_hdf5], ids=lambda f: f.__name__)
def test_a_damaged_entry_is_made_again_with_a_warning(task, tmp_path, damage):
    made = task.dataset("train", size=3)
    (entry,) = (tmp_path / "cache").iterdir()
    damage(entry)
    with pytest.warns(SapcWarning, match="damaged and is made again"):
        assert same(task.dataset("train", size=3), made)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(task.dataset("train", size=3), made)


def test_an_entry_of_other_data_is_made_again(task, tmp_path):
    """A file that was renamed has a checksum that fits, and is still not what its name says."""
    data = task.dataset("train", size=2)
    (entry,) = (tmp_path / "cache").iterdir()
    task.dataset("train", size=2, seed=1, cache=tmp_path / "other").save(entry)
    with pytest.warns(SapcWarning, match="other data than its name says"):
        assert same(task.dataset("train", size=2), data)
    assert same(task.dataset("train", size=2), data)


def test_a_cache_that_cannot_be_written_only_warns(task, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SAPC_CACHE", str(tmp_path / "file"))
    with pytest.warns(SapcWarning, match="not cached"):
        data = task.dataset("train", size=3)
    assert same(data, task.dataset("train", size=3, cache=False))


def test_closed_forms_are_not_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("SAPC_CACHE", str(tmp_path))
    get_task("heat", grid=(12, 4)).dataset("train", size=3)
    assert os.listdir(tmp_path) == []


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("SAPC_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    assert cache_folder(tmp_path / "given") == tmp_path / "given"
    assert cache_folder(False) is None
    monkeypatch.setenv("SAPC_CACHE", "off")
    assert cache_folder() is None
    monkeypatch.delenv("SAPC_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "sapc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "sapc"


@pytest.mark.slow
def test_two_processes_may_fill_the_cache_at_once(task, tmp_path):
    call = "get_task('reaction_diffusion', grid=(12, 4)).dataset('train', size=3)"
    script = f"from sapc.tasks import get_task; {call}"
    running = [subprocess.Popen([sys.executable, "-W", "error", "-c", script]) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    assert len(list((tmp_path / "cache").iterdir())) == 1
