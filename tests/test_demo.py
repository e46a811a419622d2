"""The demonstration: seven pictures, and residuals that vanish."""

from __future__ import annotations

import io
import json

import pytest

from sapc import cli
from sapc.tasks import task_names


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "pictures"


def test_pictures_and_residuals(pictures, capfd):
    with pytest.raises(SystemExit) as done:
        cli.main(["demo", "--size", "1", "--json", "--out", str(pictures)])
    assert not done.value.code
    out, err = capfd.readouterr()
    assert err == ""
    rows = json.loads(out)
    assert [row["task"] for row in rows] == list(task_names())
    for row in rows:
        assert row["local_after"] < 1e-10 < row["local_before"]
        assert row["balance_after"] < 1e-10 < row["balance_before"]
    files = sorted(path.name for path in pictures.iterdir())
    assert files == sorted([*(f"{name}.png" for name in task_names()), "overview.png"])
    assert all((pictures / name).read_bytes().startswith(b"\x89PNG") for name in files)


def test_the_table_is_whole_at_80_columns():
    from rich.console import Console

    from sapc.report.demo import Row

    row = Row("reaction_diffusion", "dense Gauss-Newton", (1, 1), 1e-10, 1e-10, 1e10, 1e-16, 1.0, 12345.6, "")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(cli.demo.residual_table([row]))
    text = console.export_text()
    assert "…" not in text
    assert "reaction_diffusion" in text
    assert "1.0e-10 → 1e-10" in text
    assert "1.0e+10 → 1e-16" in text
    assert "12346" in text
