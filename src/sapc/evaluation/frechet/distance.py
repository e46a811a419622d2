"""FPD and FRD: Fréchet distances between the features of two ensembles.

    fpd     features of Poseidon-B, by weights from a file, and of nothing else
    frd     features of three encoders of random weights (`sapc.poseidon.random`), one distance each, and their mean; no FPD

A field over one space axis and time is one image; of a field over two space axes and time every frame is one, and the distances of the
frames are averaged. Like FID these are squared distances, biased upwards by few samples; a value says little without the one between two
independent draws of solutions at the same sizes, the sampling floor.

Features of solutions are kept in the cache (`sapc.tasks.cache`), in files named by a digest of the weights and of the fields themselves, so
that none serves others. Whether FRD can stand in for FPD is a question of how the two order the same ensembles; `agreement` answers it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..._files import atomic_write, ensure_folder
from ..._old_names import rename_arguments, rename_method
from ...data.cache import cache_folder
from ...errors import SapcError, SapcWarning, explain_misuse
from .. import metrics
from . import DOWNLOAD_HINT, SEEDS, Encoder, features, load_encoder, random_encoder
from .features import Progress

FORMAT = "sapc-features-1"
SIZE = "B"  # the model whose features the distance is defined with

Fields = Float[Tensor, "n *grid"]


@dataclass(frozen=True)
class Distance:
    """A Fréchet distance between ensembles; with several encoders the mean of theirs."""

    name: str
    encoders: tuple[Encoder, ...]

    def __post_init__(self) -> None:
        if self.name == "fpd" and not all(e.size == SIZE and "file" in e.provenance for e in self.encoders):
            raise SapcError(
                f"only weights of Poseidon-{SIZE} from a file make an FPD; give this distance another name"
            )

    @property
    def bytes(self) -> int:
        """What the encoders occupy."""
        return sum(p.numel() * p.element_size() for e in self.encoders for p in e.parameters())

    @rename_arguments(keep="use_cache")
    def per_encoder(
        self,
        generated: Float[Tensor, "n *grid"],
        reference: Float[Tensor, "m *other_grid"],
        progress: Progress | None = None,
        use_cache: tuple[bool, bool] = (False, True),
    ) -> list[float]:
        """The distance by every encoder; `use_cache`: which features are worth a place in the cache, those of solutions."""
        if generated.shape[3:] != reference.shape[3:]:
            raise SapcError(
                f"distances of frames need as many in both ensembles, got fields of shape {tuple(generated.shape)} and "
                f"{tuple(reference.shape)}"
            )
        sizes = [len(fields) * math.prod(fields.shape[3:]) for fields in (generated, reference)]
        work = _Work(len(self.encoders) * sum(sizes), progress)
        values = []
        for encoder in self.encoders:
            x, y = (
                _features(encoder, fields, work, is_kept)
                for fields, is_kept in zip((generated, reference), use_cache, strict=True)
            )
            frames = [metrics.frechet(a, b) for a, b in zip(x, y, strict=True)]
            values.append(fmean(frames))
        return values

    def between_solutions(
        self,
        x: Float[Tensor, "n *grid"],
        y: Float[Tensor, "m *other_grid"],
        progress: Progress | None = None,
    ) -> float:
        """The distance of two ensembles of solutions, whose features are kept."""
        return fmean(self.per_encoder(x, y, progress, use_cache=(True, True)))

    def describe(self) -> list[dict[str, str]]:
        """Which weights these are."""
        return [encoder.provenance for encoder in self.encoders]

    def matches(self, settings: Mapping[str, Any]) -> bool:
        """Whether scores with these settings are by the same weights."""
        weights = settings.get(f"{self.name}_weights") or ()
        return [w.get("sha256") for w in weights] == [w.get("sha256") for w in self.describe()]

    each = rename_method("Distance.each", "Distance.per_encoder")
    about = rename_method("Distance.about", "Distance.describe")
    made = rename_method("Distance.made", "Distance.matches")


@explain_misuse
def poseidon_distance(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> Distance:
    """FPD, with the weights of Poseidon-B at `path`; those of another size are refused."""
    encoder = load_encoder(path, device)
    if encoder.size != SIZE:
        raise SapcError(
            f"FPD is defined with Poseidon-{SIZE}, and {path} holds Poseidon-{encoder.size}; {DOWNLOAD_HINT}"
        )
    return Distance("fpd", (encoder,))


@explain_misuse
def random_distance(device: str | torch.device = "cpu") -> Distance:
    """FRD, the stand-in with random weights."""
    return Distance("frd", tuple(random_encoder(seed, device) for seed in SEEDS))


@explain_misuse
def distances(
    poseidon: str | os.PathLike[str] | None = None, frd: bool = False, device: str | torch.device = "cpu"
) -> tuple[Distance, ...]:
    """FPD if there are weights, FRD if it is wanted."""
    real = () if poseidon is None else (poseidon_distance(poseidon, device),)
    return (*real, *((random_distance(device),) if frd else ()))


@explain_misuse
def agreement(a: Sequence[float], b: Sequence[float]) -> dict[str, float]:
    """How alike two scores order the same ensembles: Kendall's tau-b and Spearman's rho, 1 for the same order, -1 for the reverse."""
    if len(a) != len(b) or len(a) < 2:
        raise SapcError(f"an order takes two scores each of at least 2 ensembles, got {len(a)} and {len(b)}")
    x, y = (torch.tensor(list(values), dtype=torch.float64) for values in (a, b))
    signs = [torch.sign(v[:, None] - v) for v in (x, y)]
    ranks = [s.sum(1) for s in signs]  # twice the centred average ranks
    return {"kendall": _cosine(*signs), "spearman": _cosine(*ranks)}


def _cosine(a: Tensor, b: Tensor) -> float:
    norm = float(a.norm() * b.norm())
    return max(-1.0, min(1.0, float((a * b).sum()) / norm)) if norm else 0.0


# -- features, and their cache --


@dataclass
class _Work:
    """Counts images over several calls."""

    total: int
    progress: Progress | None
    done: int = 0

    def step(self, images: int) -> None:
        self.done += images
        if self.progress is not None:
            self.progress(self.done, self.total)


def _features(encoder: Encoder, fields: Fields, work: _Work, keep: bool) -> Float[Tensor, "frames n dim"]:
    """Of every frame; read back if they are kept and there."""
    if fields.ndim not in (3, 4):
        raise SapcError(f"features are of fields with two or three axes, got shape {tuple(fields.shape)}")
    images = len(fields) * math.prod(fields.shape[3:])
    folder = cache_folder() if keep and "sha256" in encoder.provenance else None
    if folder is None:
        return _compute(encoder, fields, work)
    path, labels = _entry(folder, encoder, fields)
    shape = (math.prod(fields.shape[3:]), len(fields), encoder.dim)
    if (found := _read(path, labels, shape)) is not None:
        work.step(images)
        return found.to(encoder.device)
    found = _compute(encoder, fields, work)
    _write(path, labels, found)
    return found


def _compute(encoder: Encoder, fields: Fields, work: _Work) -> Tensor:
    frames = fields.unbind(-1) if fields.ndim == 4 else (fields,)
    found = []
    for frame in frames:
        before = work.done
        step = lambda done, total, before=before: work.step(before + done - work.done)
        found.append(features(encoder, frame, progress=step))
    return torch.stack(found)


def _entry(folder: Path, encoder: Encoder, fields: Fields) -> tuple[Path, dict[str, str]]:
    """Where the features are kept, and the labels in the file."""
    digest = hashlib.sha256(f"{fields.dtype} {tuple(fields.shape)}".encode())
    for part in torch.split(fields.detach(), 64):
        digest.update(part.cpu().contiguous().numpy().tobytes())
    labels = {"format": FORMAT, "weights": encoder.provenance["sha256"], "fields": digest.hexdigest()}
    name = hashlib.sha256(json.dumps(labels, sort_keys=True).encode()).hexdigest()[:24]
    return folder / f"features-{name}.safetensors", labels


def _read(path: Path, labels: dict[str, str], shape: tuple[int, ...]) -> Tensor | None:
    if not os.path.isfile(path):
        return None
    try:
        with safe_open(path, framework="pt") as content:
            found: Tensor = content.get_tensor("features")
            if content.metadata() == labels | {"features": _digest(found)} and found.shape == shape:
                return found
        why = "it is not what its name says"
    except (SafetensorError, OSError, ValueError) as error:
        why = str(error)
    warnings.warn(
        SapcWarning(f"cached features are damaged and are made again: {path} ({why})"), stacklevel=2
    )
    return None


def _digest(found: Tensor) -> str:
    return hashlib.sha256(found.numpy().tobytes()).hexdigest()


def _write(path: Path, labels: dict[str, str], found: Tensor) -> None:
    try:
        with ensure_folder(path.parent), atomic_write(path) as partial:
            found = found.cpu().contiguous()
            partial.write_bytes(save({"features": found}, metadata=labels | {"features": _digest(found)}))
    except SapcError as error:
        warnings.warn(
            SapcWarning(f"features are not cached: {error}; set SAPC_CACHE to another folder or to off"),
            stacklevel=2,
        )
