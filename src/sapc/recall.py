"""What the run of own data does not hold: its physics, which is code, and its data; given anew by whoever uses the run."""

from __future__ import annotations

import os
import warnings
from typing import Any

from .config import Run
from .errors import SapcError, SapcWarning
from .fields import Fields, read_fields
from .grid import Grid
from .tasks import load_physics, reading, remember


def recall(run: Run, physics: Any, data: Fields | str | os.PathLike[str] | None) -> None:
    """Let a run of own data find its physics and its data, and tell where they are not those of its training."""
    about = run.options.get("own")
    if about is None:
        if physics is not None or data is not None:
            raise SapcError(
                f"{run.task} is a task of this package; physics and data are for models of your own"
            )
        return
    if physics is not None:
        known = load_physics(physics)
        if known.sha256 and known.sha256 != about["physics"]["sha256"]:
            message = f"the physics is not what {run.task} was trained with: its text has changed since"
            warnings.warn(message, SapcWarning, stacklevel=3)
        remember(run.task, known)
    if data is not None:
        fields = data if isinstance(data, Fields) else read_fields(data, **reading(about))
        if fields.grid != Grid.from_dict(about["grid"]):
            raise SapcError(
                f"the data are on another grid than {run.task} was trained on; read them with the same periodic=, cells= and channels="
            )
        if fields.origin.get("sha256") != about["data"].get("sha256"):
            raise SapcError(f"the data are not the file that {run.task} was trained on; give that one")
        remember(run.task, data=fields)
