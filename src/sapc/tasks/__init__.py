"""Tasks by name, `get_task("heat")`.

Users add theirs as a class (`register_task`) or from data (`Task.from_data`).
"""

from .._old_names import find_renamed
from ..data.dataset import Dataset, load_dataset
from .base import Task
from .description import DataDescription, check_options
from .from_data import read_like
from .physics import Physics, load_physics
from .registry import attach_task, get_task, register_task, task_names
from .sources import SPLITS, TEST_SETS

__all__ = [
    "SPLITS",
    "TEST_SETS",
    "DataDescription",
    "Dataset",
    "Physics",
    "Task",
    "attach_task",
    "check_options",
    "get_task",
    "load_dataset",
    "load_physics",
    "read_like",
    "register_task",
    "task_names",
]

__getattr__ = find_renamed(__name__)
