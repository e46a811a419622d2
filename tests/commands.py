"""Helpers of tests of the command line; its fixtures are in conftest.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run_command(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    """Run the real command."""
    line = [sys.executable, "-m", "sapc", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, **options)


def is_one_sentence(err: str) -> bool:
    return err.startswith("sapc: ") and err.count("\n") == 1 and "Traceback" not in err


def list_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
