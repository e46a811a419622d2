"""What tasks and methods are called in a report, and in what order they stand."""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterable

from ...methods import find_method, is_own, method_names, paper

WIDEST = 28  # characters of a short label


def task_label(task: str) -> str:
    """Return the paper's name of a task, or its own."""
    return paper.TASK_LABELS.get(task, task)


def method_label(method: str) -> str:
    """Return the paper's name of a method; of a user's own its title, or its name where its file is not loaded."""
    known = find_method(method) if is_own(method) else None
    return paper.METHOD_LABELS.get(method) or (known.title if known else method)


def short_label(method: str) -> str:
    """Return a method's name where room is short."""
    if method in paper.METHOD_LABELS:
        return method.removeprefix("sapc_").upper() if method.startswith("sapc_") else method_label(method)
    return textwrap.shorten(method_label(method), WIDEST, placeholder=" …")


def order_tasks(tasks: Iterable[str]) -> list[str]:
    """Sort tasks as the paper has them; others come last."""
    known = paper.TASKS
    return sorted(dict.fromkeys(tasks), key=lambda name: known.index(name) if name in known else len(known))


def order_methods(methods: Iterable[str]) -> list[str]:
    """Sort methods: SAPC, its ablations, the others, the user's own; what is not known comes last."""
    known = method_names(variants=True)
    return sorted(set(methods), key=lambda name: (known.index(name) if name in known else len(known), name))


def file_name(task: str) -> str:
    """Return a task's name in those of its files: itself, or, where that is no safe name, letters of it and a digest."""
    plain = re.sub(r"[^a-z0-9_]+", "_", task.lower())[:40]
    return task if plain == task else f"{plain}_{hashlib.sha256(task.encode()).hexdigest()[:8]}"
