"""Shared by all tests: solved data is cached once per run, in a folder of the run's own."""

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def _data_cache(tmp_path_factory):
    root = tmp_path_factory.getbasetemp()
    # pytest-xdist gives every worker a folder inside one of the run; the cache is written atomically, so they can share it.
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAPC_CACHE", str(folder))
        yield
