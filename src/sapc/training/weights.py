"""Files of tensors: weights, checkpoints and optimisers, with a description and a digest of all of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .._files import first_line, parse_json, replacing
from .._files import sha256 as file_digest
from ..errors import BEYOND, SapcError, real
from ..nn.network import NetworkSource, weights_of
from .config import Run

Tensors = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]
KINDS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Begins the names of what the optimiser keeps, in a checkpoint.
OPTIMISER = "adam."


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors with a JSON description and a digest of all of it, atomically.

    The digest is a part of the description, because safetensors writes several entries of metadata in an order that varies.
    """
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = save(ready, {"about": json.dumps({**about, "sha256": _digest(ready, about)})})
    with replacing(path) as partial:
        partial.write_bytes(content)


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(dict(about)).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_tensors(
    path: Path, device: str | torch.device = "cpu", sha256: str | None = None
) -> tuple[Tensors, dict[str, Any]]:
    """Tensors and description back; a damaged file is refused by name, nothing in it is executed.

    Files hold a digest of their contents. Those of version 0.1.0 do not: there the `sha256` of the whole file is compared, where it
    is known from elsewhere.
    """
    if not path.is_file():
        raise SapcError(f"there is no file {path}")
    with _opened(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        about, digest = _about(file)
    if digest is not None and digest != _digest(tensors, about):
        raise SapcError(
            f"the contents of {path} do not match their SHA-256: it is damaged; restore it, or train again"
        )
    if digest is None and sha256 is not None and sha256 != file_digest(path):
        raise SapcError(
            f"the contents of {path} do not match their SHA-256, which the scores beside it or the package know: it is damaged, or the "
            "scores are of other weights; restore it, or remove those scores"
        )
    if odd := [name for name, tensor in tensors.items() if tensor.dtype not in KINDS]:
        raise SapcError(
            f"{path} holds {odd[0]!r} as {tensors[odd[0]].dtype}; numbers of this package are floating-point: restore it"
        )
    return {name: tensor.to(device) for name, tensor in tensors.items()}, about


def about_tensors(path: Path) -> dict[str, Any]:
    """The description alone, without reading the tensors."""
    with _opened(path) as file:
        return _about(file)[0]


def steps_of(about: Mapping[str, Any], path: Path) -> int:
    """The training steps that the description of weights names."""
    step = about.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < BEYOND:
        raise SapcError(
            f"{path} does not say after how many steps its weights were: its step is {step!r:.40}"
        )
    return step


def range_of(about: Mapping[str, Any], path: Path) -> tuple[float, float] | None:
    """The smallest and largest value of the training data that the description of weights names, if it does."""
    if (span := about.get("range")) is None:
        return None
    try:
        low, high = (real(value, "range") for value in span)
    except (TypeError, ValueError) as error:
        raise SapcError(
            f"{path} has no usable range of the training data, two numbers, but {span!r:.40}"
        ) from error
    return low, high


def check_shapes(run: Run, path: Path, network: NetworkSource | None = None) -> None:
    """Refuse weights of another network than a run's, by the names and shapes at the file's beginning: nothing large is read or made."""
    own = run.network_shapes(network)
    with _opened(path) as file:
        there = {
            name: tuple(file.get_slice(name).get_shape())
            for name in file.keys()  # noqa: SIM118 (no mapping)
            if not name.startswith(OPTIMISER)
        }
    _compare_shapes(own, there, path, run.backbone.origin)


def load_weights(network: torch.nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Put weights into a network; any difference in names or shapes is named."""
    own, there = ({n: tuple(t.shape) for n, t in state.items()} for state in (weights_of(network), tensors))
    _compare_shapes(own, there, path, "in the network; restore the one or the other")
    # Counters and tables of whole numbers are not in the file.
    network.load_state_dict(dict(tensors), strict=False)


def _compare_shapes(own: Shapes, there: Shapes, path: Path, origin: str) -> None:
    if wrong := sorted(set(own) ^ set(there)) or sorted(name for name in own if own[name] != there[name]):
        one, other = (list(shapes[wrong[0]]) if wrong[0] in shapes else "missing" for shapes in (there, own))
        raise SapcError(
            f"the weights in {path} are of another network: {len(wrong)} tensors differ, first {wrong[0]!r}, whose shape is "
            f"{one} there and {other} {origin}"
        )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file of tensors; whatever is wrong with it is told in one sentence."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, KeyError, OSError, SapcError) as error:
        raise SapcError(
            f"{path} is damaged or not a file of this package ({first_line(error)}); restore it, or train again"
        ) from error


def _about(file: Any) -> tuple[dict[str, Any], Any]:
    """The description in a file of tensors, and the digest in it, if there is one."""
    about = parse_json((file.metadata() or {})["about"])
    if not isinstance(about, dict):
        raise SapcError(f"it describes itself as {about!r:.40}")
    return about, about.pop("sha256", None)
