"""What a release holds: the wheel and the source archive are built here, and the wheel is used apart from the repository."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import sapc

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "sapc"
pytest.importorskip("hatchling")
pytestmark = pytest.mark.slow

TRIAL = """
import sapc, sys
from importlib.resources import files
assert sapc.__file__.startswith(sys.argv[1]), sapc.__file__
model = sapc.load("heat-sapc", device="cpu")
condition = model.task.dataset("test1", size=1)
u = model.sample(n=1, condition=condition, steps=2, seed=0)
print(float(model.manifold(condition).residual(u).abs().max()))
from sapc.experiments.report import make_report
sys.exit(not files("sapc").joinpath("py.typed").is_file())
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The two archives, built from the files of the repository, without a network."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, source


def package_files() -> set[str]:
    return {
        str(path.relative_to(SOURCES.parent))
        for path in SOURCES.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_package_and_its_licence_alone(archives):
    with zipfile.ZipFile(archives[0]) as wheel:
        names = set(wheel.namelist())
    meta = f"sapc-{sapc.__version__}.dist-info/"
    assert {n for n in names if not n.startswith(meta)} == package_files()
    assert f"{meta}licenses/LICENSE" in names


def test_the_source_archive_holds_what_builds_and_tests_the_package(archives):
    with tarfile.open(archives[1]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert {f"src/{name}" for name in package_files()} <= names
    assert {"pyproject.toml", "constraints.txt", "Makefile", "README.md", "CHANGELOG.md", ".ci/run"} <= names
    assert {str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("*.py")} <= names


def test_the_wheel_works_away_from_the_repository(archives, tmp_path):
    """Only the wheel's own files are on the path before the libraries; a shipped model samples on its manifold."""
    place = tmp_path / "site"
    with zipfile.ZipFile(archives[0]) as wheel:
        wheel.extractall(place)
    env = os.environ | {
        "PYTHONPATH": str(place),
        "SAPC_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", TRIAL, str(place)]
    used = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert used.returncode == 0, used.stderr
    assert float(used.stdout) < 1e-12


def test_the_version_is_the_same_everywhere():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {sapc.__version__}\n" in text
    assert f"\n## [{sapc.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
