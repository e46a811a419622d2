"""The texts of the plug-ins that a run relies on.

A run keeps their digests, and whoever loads it is told when a text has changed.
"""

from __future__ import annotations

import warnings
from typing import Any

from .._files import read_json
from ..errors import SapcError, SapcWarning
from ..methods.registry import describe_method_file
from .config import TrainingConfig
from .run_folder import RunFolder

KEY = "plugins"
"""Entry of a start in environment.json and of the environment of scores; absent if nothing is a plug-in."""


def describe_plugins(run: TrainingConfig) -> dict[str, dict[str, dict[str, str]]]:
    """Return name and SHA-256 of the files that define the method and the task of a run.

    Args:
        run: The settings of the run.

    Returns:
        `{"plugins": {"method": {...}, "task": {...}}}` with what is from a file; empty if nothing is.
    """
    files = {"method": describe_method_file(run.method)}
    if run.description.can_draw:
        files["task"] = dict(run.make_task().class_file)
    records = {kind: record for kind, record in files.items() if record}
    return {KEY: records} if records else {}


def warn_of_changed_plugins(folder: RunFolder, run: TrainingConfig) -> None:
    """Warn if a plug-in has another text than when the run was last trained.

    Runs that say nothing of it are believed.
    """
    known = _last_record(folder)
    for kind, record in describe_plugins(run).get(KEY, {}).items():
        earlier = known.get(kind)
        if isinstance(earlier, dict) and earlier.get("sha256") != record["sha256"]:
            warnings.warn(
                f"{record['file']}, which defines the {kind} {getattr(run, kind)}, has another text "
                f"than when {folder.path} was trained: the weights are those of the earlier text; "
                "train again with a new --out if it matters",
                SapcWarning,
                stacklevel=4,
            )


def _last_record(folder: RunFolder) -> dict[str, Any]:
    """Return the digests of the last start that has some.

    There are none if the file cannot be read, as that is no reason not to load.

    Returns:
        The digests by kind, method or task.
    """
    try:
        starts = read_json(folder.environment)["starts"] if folder.environment.exists() else []
        records = [
            start[KEY] for start in starts if isinstance(start, dict) and isinstance(start.get(KEY), dict)
        ]
    except (SapcError, TypeError, KeyError):
        return {}
    return records[-1] if records else {}
