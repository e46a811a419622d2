"""Write scores into a run folder. The record itself is in `sapc.models.scores`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._files import sha256
from ..errors import SapcError
from ..models.scores import MeanScores, Scores, SetScores, fields_path, part_path, scores_path
from ..training.run_folder import RunFolder
from .moments import EnsembleStatistics

__all__ = ["MeanScores", "Scores", "SetScores", "write_scores"]


def write_scores(
    folder: str | os.PathLike[str],
    scores: Scores | Mapping[str, Any],
    statistics: EnsembleStatistics | None = None,
) -> Path:
    """Write scores into their run folder.

    The file is `scores.json`, or `scores-<method>.json` if another method sampled.

    Existing scores are replaced by scores that contain all of them. Scores of fewer sets, samples, steps or
    metrics go beside them, into `scores-part.json`. Where only metrics are missing, the existing ones are
    taken over, as the samples were the same.

    Args:
        folder: The run folder.
        scores: What `evaluate` returned, or the content of its file.
        statistics: Statistics of the samples, written beside the scores before them.

    Returns:
        The path of the scores.

    Raises:
        SapcError: The training is not finished.
    """
    scores = scores if isinstance(scores, Scores) else Scores.from_dict(scores)
    run, home = scores.run, RunFolder(folder)
    if run.trained < run.steps:
        raise SapcError(
            f"the scores of an unfinished training (step {run.trained} of {run.steps}) are not kept in its "
            f"folder; finish it with `sapc train --resume {folder}`"
        )
    if home.weights.is_file():
        scores = replace(scores, weights=sha256(home.weights))
    path = scores_path(home.path, scores.settings.method, run.method)
    for place in (path, part_path(path)):
        if (result := _merge(place, scores)) is not None:
            break
    if statistics is not None:
        statistics.save(fields_path(place))
    (result or scores).write(place)
    return place


def _merge(path: Path, scores: Scores) -> Scores | None:
    """Return the scores to write at `path`; None if existing scores would be lost."""
    try:
        previous = Scores.read(path)
    except SapcError:
        # There is no file, or it holds no scores: nothing is lost.
        return scores
    return scores.merge(previous)
