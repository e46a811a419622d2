"""The README is short, its links lead somewhere, and what it shows runs as it is printed."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
# What is made smaller before the blocks are run.
SMALLER = {'"small"': '"tiny"', "range(1000)": "range(3)", "size=512": "size=64", "steps=50": "steps=4"}


class MyNetwork(torch.nn.Module):
    """The network that the README leaves to the reader."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, fields, times):
        return self.layer(torch.stack((fields, times.view(-1, 1, 1).expand_as(fields)), 1))[:, 0]


def test_the_readme_is_short():
    lines = TEXT.splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 110


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "results/NOTES.md"]
)
def test_links_lead_to_files(name):
    page = ROOT / name
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.slow
def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, time = np.arange(24) / 24, np.linspace(0, 0.5, 16)
    shift = np.random.default_rng(0).uniform(size=(64, 1, 1))
    heights = {"dims": ("sample", "x", "time"), "data": 1 + np.sin(2 * np.pi * (x[:, None] - time + shift))}
    coordinates = {"x": {"dims": "x", "data": x}, "time": {"dims": "time", "data": time}}
    file = {"data_vars": {"h": heights}, "coords": coordinates}
    pytest.importorskip("xarray").Dataset.from_dict(file).to_netcdf("waves.nc", engine="h5netcdf")

    code = "\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
    for printed, smaller in SMALLER.items():
        assert printed in code
        code = code.replace(printed, smaller)
    names = {"MyNetwork": MyNetwork}
    exec(compile(code, "README.md", "exec"), names)

    assert names["fields"].shape == (8, 100, 100)
    assert names["model"].task.name == "waves"
    assert names["H"].residual(names["u"]).abs().max() < 1e-12
