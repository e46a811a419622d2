"""Statistics of ensembles for pictures: pointwise mean, standard deviation and one field.

A file holds them for every test set that was evaluated, in float32:

    <set>/samples/mean    <set>/samples/std    <set>/samples/example        and the same of    <set>/solutions

on the grid of the task. Fields of three axes are reduced to ten frames, evenly spaced from the first to the
last.
The file lies beside the scores of the same samples: `fields.safetensors` beside `scores.json`,
`fields-eci.safetensors` beside `scores-eci.json`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from .._old_names import find_renamed
from ..errors import SapcError
from ..training.run_folder import load_tensors, save_tensors

FORMAT = "sapc-fields-1"
FRAMES = 10
ENSEMBLES = ("samples", "solutions")
PARTS = ("mean", "std", "example")


@dataclass(frozen=True)
class Moments:
    """Moments of one ensemble, float32 `(*space, time)`; of three axes with some of the frames only.

    Attributes:
        mean: Pointwise mean.
        std: Pointwise standard deviation, with n - 1.
        example: The first field.
    """

    mean: Tensor
    std: Tensor
    example: Tensor


@dataclass
class EnsembleStatistics:
    """Moments of both ensembles of every test set.

    Attributes:
        sets: Moments of the samples and of the solutions, by name of the test set.
        frames: Numbers of the frames in them; None for fields of two axes, which have all.
    """

    sets: dict[str, tuple[Moments, Moments]] = field(default_factory=dict)
    frames: tuple[int, ...] | None = None

    def add(self, name: str, samples: Tensor, solutions: Tensor) -> None:
        """Measure the ensembles of a test set.

        Args:
            name: Name of the test set.
            samples: Samples `(n, *grid)`.
            solutions: Solutions `(m, *grid)`.
        """
        self.frames = frames_of(samples)
        self.sets[name] = (_moments(samples, self.frames), _moments(solutions, self.frames))

    @classmethod
    def load(cls, path: Path) -> EnsembleStatistics:
        """Read a file back.

        Args:
            path: A file that `save` wrote.

        Returns:
            The statistics.

        Raises:
            SapcError: The file is damaged, or holds something else.
        """
        tensors, metadata = load_tensors(path)
        if metadata.get("format") != FORMAT:
            raise SapcError(f"{path} holds no fields for pictures ({FORMAT}), but {metadata.get('format')!r}")
        try:
            sets = {
                name: tuple(
                    Moments(*(tensors[f"{name}/{ensemble}/{part}"] for part in PARTS))
                    for ensemble in ENSEMBLES
                )
                for name in metadata["sets"]
            }
            frames = metadata["frames"]
        except (KeyError, TypeError) as error:
            raise SapcError(f"{path} lacks {error}; evaluate the run again") from error
        return cls({name: (a, b) for name, (a, b) in sets.items()}, None if frames is None else tuple(frames))

    def save(self, path: Path) -> None:
        """Write the statistics to a file, atomically.

        Args:
            path: The file.
        """
        tensors = {
            f"{name}/{ensemble}/{part}": getattr(moments, part)
            for name, pair in self.sets.items()
            for ensemble, moments in zip(ENSEMBLES, pair, strict=True)
            for part in PARTS
        }
        save_tensors(path, tensors, {"format": FORMAT, "sets": list(self.sets), "frames": self.frames})


def frames_of(fields: Tensor) -> tuple[int, ...] | None:
    """Choose the frames that pictures show.

    Args:
        fields: Fields `(n, *grid)`.

    Returns:
        Numbers of ten frames of fields of three axes; None for fields of two axes, which are shown whole.
    """
    if fields.ndim <= 3:
        return None
    last = fields.shape[-1] - 1
    return tuple(dict.fromkeys(torch.linspace(0, last, FRAMES).round().int().tolist()))


def _moments(fields: Tensor, frames: tuple[int, ...] | None) -> Moments:
    u = (fields if frames is None else fields[..., list(frames)]).double()
    return Moments(*(x.float().cpu().contiguous() for x in (u.mean(0), u.std(0), u[0])))


__getattr__ = find_renamed(__name__)
