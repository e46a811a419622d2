"""FPD and FRD: Fréchet distances between the features of two ensembles.

    fpd     features of Poseidon-B, only by weights from a file
    frd     features of three encoders of random weights (`sapc.poseidon.random`): the mean of three distances

A field over one space axis and time is one image. Of a field over two space axes and time every frame is one,
and the distances of the frames are averaged. Like FID these are squared distances, biased upwards by few
samples. A value says little without the sampling floor, the value between two independent draws of solutions
at the same sizes. FRD is no FPD.

Features of solutions are stored in the cache (`sapc.data.cache`), in files named by a digest of the weights
and of the fields themselves, so that no file serves other fields. Whether FRD can stand in for FPD is a
question of how the two order the same ensembles; `agreement` answers it.
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
SIZE = "B"
"""Size of the model whose features FPD is defined with."""

Fields = Float[Tensor, "n *grid"]


@dataclass(frozen=True)
class Distance:
    """A Fréchet distance between ensembles; with several encoders the mean of theirs.

    Attributes:
        name: Name of the metric, "fpd" or "frd".
        encoders: The encoders.

    Raises:
        SapcError: It is called "fpd" without the weights that define FPD.
    """

    name: str
    encoders: tuple[Encoder, ...]

    def __post_init__(self) -> None:
        if self.name == "fpd" and not all(e.size == SIZE and "file" in e.provenance for e in self.encoders):
            raise SapcError(
                f"only weights of Poseidon-{SIZE} from a file make an FPD; give this distance another name"
            )

    @property
    def bytes(self) -> int:
        """Bytes of the encoders' weights."""
        return sum(p.numel() * p.element_size() for e in self.encoders for p in e.parameters())

    @rename_arguments(keep="use_cache")
    def per_encoder(
        self,
        generated: Float[Tensor, "n *grid"],
        reference: Float[Tensor, "m *other_grid"],
        progress: Progress | None = None,
        use_cache: tuple[bool, bool] = (False, True),
    ) -> list[float]:
        """Compute the distance by every encoder.

        Args:
            generated: Generated samples `(n, *grid)`.
            reference: Solutions `(m, *grid)`; another resolution is fine.
            progress: Called with images done, images in all.
            use_cache: Whether to store features of the first and of the second ensemble; those of solutions
                are worth it.

        Returns:
            One distance per encoder.

        Raises:
            SapcError: The ensembles have different numbers of frames.
        """
        if generated.shape[3:] != reference.shape[3:]:
            raise SapcError(
                "distances of frames need as many in both ensembles, got fields of shape "
                f"{tuple(generated.shape)} and {tuple(reference.shape)}"
            )
        sizes = [len(fields) * math.prod(fields.shape[3:]) for fields in (generated, reference)]
        counter = _ProgressCounter(len(self.encoders) * sum(sizes), progress)
        values = []
        for encoder in self.encoders:
            x, y = (
                _features(encoder, fields, counter, is_stored)
                for fields, is_stored in zip((generated, reference), use_cache, strict=True)
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
        """Compute the distance of two ensembles of solutions, whose features go into the cache.

        Args:
            x: Solutions `(n, *grid)`.
            y: Solutions `(m, *grid)`.
            progress: Called with images done, images in all.

        Returns:
            The mean of the distances by every encoder.
        """
        return fmean(self.per_encoder(x, y, progress, use_cache=(True, True)))

    def describe(self) -> list[dict[str, str]]:
        """Return where the weights of every encoder come from."""
        return [encoder.provenance for encoder in self.encoders]

    def matches(self, settings: Mapping[str, Any]) -> bool:
        """Tell whether scores are by the same weights.

        Args:
            settings: Settings of the scores, with `fpd_weights` or `frd_weights`.

        Returns:
            True if every encoder has the same SHA-256.
        """
        weights = settings.get(f"{self.name}_weights") or ()
        return [w.get("sha256") for w in weights] == [w.get("sha256") for w in self.describe()]

    each = rename_method("Distance.each", "Distance.per_encoder")
    about = rename_method("Distance.about", "Distance.describe")
    made = rename_method("Distance.made", "Distance.matches")


@explain_misuse
def poseidon_distance(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> Distance:
    """Make FPD.

    Args:
        path: Weights of Poseidon-B: a file, a folder with it, or a Hugging Face cache.
        device: Where the encoder works.

    Returns:
        The distance.

    Raises:
        SapcError: The weights are of another size.
    """
    encoder = load_encoder(path, device)
    if encoder.size != SIZE:
        raise SapcError(
            f"FPD is defined with Poseidon-{SIZE}, and {path} holds Poseidon-{encoder.size}; {DOWNLOAD_HINT}"
        )
    return Distance("fpd", (encoder,))


@explain_misuse
def random_distance(device: str | torch.device = "cpu") -> Distance:
    """Make FRD, the stand-in with random weights.

    Args:
        device: Where the encoders work.

    Returns:
        The distance.
    """
    return Distance("frd", tuple(random_encoder(seed, device) for seed in SEEDS))


@explain_misuse
def distances(
    poseidon: str | os.PathLike[str] | None = None, frd: bool = False, device: str | torch.device = "cpu"
) -> tuple[Distance, ...]:
    """Make the distances of an evaluation.

    Args:
        poseidon: Weights for FPD; none without them.
        frd: Whether to make FRD.
        device: Where the encoders work.

    Returns:
        FPD and FRD, as far as asked for.
    """
    real = () if poseidon is None else (poseidon_distance(poseidon, device),)
    return (*real, *((random_distance(device),) if frd else ()))


@explain_misuse
def agreement(a: Sequence[float], b: Sequence[float]) -> dict[str, float]:
    """Measure how well two scores agree in the order of the same ensembles.

    Args:
        a: The first score of every ensemble.
        b: The second.

    Returns:
        Kendall's tau-b and Spearman's rho: 1 for the same order, -1 for the reverse.

    Raises:
        SapcError: There are fewer than two ensembles, or not as many of both scores.
    """
    if len(a) != len(b) or len(a) < 2:
        raise SapcError(f"an order takes two scores each of at least 2 ensembles, got {len(a)} and {len(b)}")
    x, y = (torch.tensor(list(values), dtype=torch.float64) for values in (a, b))
    signs = [torch.sign(v[:, None] - v) for v in (x, y)]
    # Twice the centred average ranks.
    ranks = [s.sum(1) for s in signs]
    return {"kendall": _cosine(*signs), "spearman": _cosine(*ranks)}


def _cosine(a: Tensor, b: Tensor) -> float:
    norm = float(a.norm() * b.norm())
    return max(-1.0, min(1.0, float((a * b).sum()) / norm)) if norm else 0.0


# -- features, and their cache --


@dataclass
class _ProgressCounter:
    """Count images over several calls."""

    total: int
    progress: Progress | None
    count: int = 0

    def step(self, images: int) -> None:
        self.count += images
        if self.progress is not None:
            self.progress(self.count, self.total)


def _features(
    encoder: Encoder, fields: Fields, counter: _ProgressCounter, use_cache: bool
) -> Float[Tensor, "frames n dim"]:
    """Return the features of every frame, from the cache if they are there."""
    if fields.ndim not in (3, 4):
        raise SapcError(f"features are of fields with two or three axes, got shape {tuple(fields.shape)}")
    images = len(fields) * math.prod(fields.shape[3:])
    folder = cache_folder() if use_cache and "sha256" in encoder.provenance else None
    if folder is None:
        return _compute(encoder, fields, counter)
    path, labels = _entry(folder, encoder, fields)
    shape = (math.prod(fields.shape[3:]), len(fields), encoder.dim)
    if (tensor := _read(path, labels, shape)) is not None:
        counter.step(images)
        return tensor.to(encoder.device)
    tensor = _compute(encoder, fields, counter)
    _write(path, labels, tensor)
    return tensor


def _compute(encoder: Encoder, fields: Fields, counter: _ProgressCounter) -> Tensor:
    frames = fields.unbind(-1) if fields.ndim == 4 else (fields,)
    tensors = []
    for frame in frames:
        n_earlier = counter.count
        report = lambda done, total, n_earlier=n_earlier: counter.step(n_earlier + done - counter.count)
        tensors.append(features(encoder, frame, progress=report))
    return torch.stack(tensors)


def _entry(folder: Path, encoder: Encoder, fields: Fields) -> tuple[Path, dict[str, str]]:
    """Return the file of the features, and the labels in it."""
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
            tensor: Tensor = content.get_tensor("features")
            if content.metadata() == labels | {"features": _digest(tensor)} and tensor.shape == shape:
                return tensor
        reason = "it is not what its name says"
    except (SafetensorError, OSError, ValueError) as error:
        reason = str(error)
    warnings.warn(
        SapcWarning(f"cached features are damaged and are made again: {path} ({reason})"), stacklevel=2
    )
    return None


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


def _write(path: Path, labels: dict[str, str], tensor: Tensor) -> None:
    try:
        with ensure_folder(path.parent), atomic_write(path) as partial:
            tensor = tensor.cpu().contiguous()
            partial.write_bytes(save({"features": tensor}, metadata=labels | {"features": _digest(tensor)}))
    except SapcError as error:
        warnings.warn(
            SapcWarning(f"features are not cached: {error}; set SAPC_CACHE to another folder or to off"),
            stacklevel=2,
        )
