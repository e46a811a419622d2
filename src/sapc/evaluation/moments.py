"""What is kept of ensembles for pictures: pointwise mean, standard deviation and one field, of the samples and of the solutions.

A file holds this for every test set that was evaluated, in float32:

    <set>/samples/mean    <set>/samples/std    <set>/samples/example        and the same of    <set>/solutions

on the task's grid; of three axes only ten frames, evenly spaced from the first to the last, are kept. It lies beside the scores of the
same samples: `fields.safetensors` beside `scores.json`, `fields-eci.safetensors` beside `scores-eci.json`.
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
    """Of one ensemble: float32 `(*space, time)`, of three axes with the kept frames only; `example` is its first field."""

    mean: Tensor
    std: Tensor
    example: Tensor


@dataclass
class EnsembleStatistics:
    """Both ensembles of every test set; `frames` are the kept ones' numbers, of a field with two axes None.

    sets    by name: (of the samples, of the solutions)
    """

    sets: dict[str, tuple[Moments, Moments]] = field(default_factory=dict)
    frames: tuple[int, ...] | None = None

    def add(self, name: str, samples: Tensor, solutions: Tensor) -> None:
        """Keep what a test set's pictures need; fields are `(n, *grid)`."""
        self.frames = frames_of(samples)
        self.sets[name] = (_moments(samples, self.frames), _moments(solutions, self.frames))

    @classmethod
    def load(cls, path: Path) -> EnsembleStatistics:
        """Read a file back; a damaged or foreign one is refused by name."""
        tensors, metadata = load_tensors(path)
        if metadata.get("format") != FORMAT:
            raise SapcError(f"{path} holds no fields for pictures ({FORMAT}), but {metadata.get('format')!r}")
        try:
            sets = {
                name: tuple(
                    Moments(*(tensors[f"{name}/{whose}/{part}"] for part in PARTS)) for whose in ENSEMBLES
                )
                for name in metadata["sets"]
            }
            frames = metadata["frames"]
        except (KeyError, TypeError) as error:
            raise SapcError(f"{path} lacks {error}; evaluate the run again") from error
        return cls({name: (a, b) for name, (a, b) in sets.items()}, None if frames is None else tuple(frames))

    def save(self, path: Path) -> None:
        """Write all of it, atomically."""
        tensors = {
            f"{name}/{whose}/{part}": getattr(moments, part)
            for name, pair in self.sets.items()
            for whose, moments in zip(ENSEMBLES, pair, strict=True)
            for part in PARTS
        }
        save_tensors(path, tensors, {"format": FORMAT, "sets": list(self.sets), "frames": self.frames})


def frames_of(fields: Tensor) -> tuple[int, ...] | None:
    """The frames that are kept of fields `(n, *grid)`: all of two axes, ten of three."""
    if fields.ndim <= 3:
        return None
    last = fields.shape[-1] - 1
    return tuple(dict.fromkeys(torch.linspace(0, last, FRAMES).round().int().tolist()))


def _moments(fields: Tensor, frames: tuple[int, ...] | None) -> Moments:
    u = (fields if frames is None else fields[..., list(frames)]).double()
    return Moments(*(x.float().cpu().contiguous() for x in (u.mean(0), u.std(0), u[0])))


__getattr__ = find_renamed(__name__)
