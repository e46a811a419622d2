"""Read Poseidon's weights from disk: no download, no code in a file is run, all weights must be there.

A path may be the file, a folder with it, or a Hugging Face cache: one snapshot, one repository
(`models--camlab-ethz--Poseidon-B`), or the whole cache or its `hub`, in which Poseidon-B is looked for.
`model.safetensors` is preferred to `pytorch_model.bin`.

The size is read off the weights. The decoder and what belongs to it are left out; everything else must be
there with the right name and shape. `provenance` of the encoder then says which weights these are, by the
sha256 of the file, which is what the Hugging Face site shows.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..._files import first_line, read_json, sha256
from ...errors import SapcError, explain_misuse
from .encoder import CHANNELS, EPS, HEADS, IMAGE, PATCH, SIZES, WINDOW, Encoder

REPOSITORY = "camlab-ethz/Poseidon-B"
DOWNLOAD_HINT = (
    f"get Poseidon-B with `hf download {REPOSITORY} --local-dir Poseidon-B` "
    "(licence CC BY-NC 4.0: non-commercial use only) and name that folder by --poseidon or SAPC_POSEIDON"
)
FILES = ("model.safetensors", "pytorch_model.bin")
UNUSED_PREFIXES = ("decoder.", "residual_blocks.", "patch_recovery.")
PATCH_WEIGHT = "embeddings.patch_embeddings.projection.weight"
POINTER = b"version https://git-lfs"
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CONFIG: dict[str, tuple[object, ...]] = {
    "image_size": (IMAGE, [IMAGE, IMAGE]),
    "window_size": (WINDOW, [WINDOW, WINDOW]),
    "num_heads": (list(HEADS),),
    "layer_norm_eps": (EPS,),
    "hidden_act": ("gelu",),
    "pretrained_window_sizes": (None, [0, 0, 0, 0]),
}
"""Values that a config.json beside the weights may have; the weights do not show them."""


@explain_misuse
def load_encoder(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> Encoder:
    """Load an encoder, frozen, in float32.

    Args:
        path: A file of weights, a folder with it, or a Hugging Face cache.
        device: Where the encoder works.

    Returns:
        The encoder.

    Raises:
        SapcError: There are no weights of Poseidon at this path.
    """
    file = find_weights(path)
    file_state = file.stat()
    tensors, digest = _read(file), sha256(file)
    _check_config(file.parent / "config.json")
    if (file.stat().st_mtime_ns, file.stat().st_size) != (file_state.st_mtime_ns, file_state.st_size):
        raise SapcError(f"{file} was written to while it was read; try again when that is done")
    with torch.device("meta"):
        encoder = Encoder(_size(tensors, file))
    _check(tensors, encoder, file)
    encoder.load_state_dict(tensors, assign=True)
    encoder.provenance = {"size": encoder.size, "file": file.name, "sha256": digest}
    return encoder.requires_grad_(False).to(device).eval()


def find_weights(path: str | os.PathLike[str]) -> Path:
    """Find the file with the weights.

    Args:
        path: A file, a folder with it, or a Hugging Face cache.

    Returns:
        The file.

    Raises:
        SapcError: There is no file of weights.
    """
    place = Path(os.path.expanduser(path))
    if os.path.isfile(place):
        return place
    if not os.path.isdir(place):
        raise SapcError(f"there are no weights at {path}: no such file or folder; {DOWNLOAD_HINT}")
    folder = _snapshot(place)
    for name in FILES:
        if (folder / name).is_file():
            return folder / name
    for name in FILES:
        if (folder / f"{name}.index.json").is_file():
            raise SapcError(f"the weights in {folder} are split over several files; save them as one {name}")
    if any((folder / name).is_symlink() for name in FILES):
        raise SapcError(
            f"{folder} names weights that are not there: the download is not complete; {DOWNLOAD_HINT}"
        )
    raise SapcError(
        f"there are no weights in {folder}: it has neither {' nor '.join(FILES)}; {DOWNLOAD_HINT}"
    )


def _snapshot(folder: Path) -> Path:
    """Return the folder of files in a Hugging Face cache; any other folder is returned as it is."""
    name = f"models--{REPOSITORY.replace('/', '--')}"
    levels = (folder / name, folder / "hub" / name, *([folder.parent] if folder.name == "snapshots" else []))
    folder = next((f for f in levels if f.is_dir()), folder)
    if not (folder / "snapshots").is_dir():
        return folder
    snapshots = sorted(path for path in (folder / "snapshots").iterdir() if path.is_dir())
    reference = folder / "refs" / "main"
    if reference.is_file():
        main = folder / "snapshots" / reference.read_text(errors="replace").strip()
        if main in snapshots:
            return main
    if len(snapshots) != 1:
        content = f"{len(snapshots)} snapshots and no main one" if snapshots else "no snapshot"
        raise SapcError(f"{folder} holds {content}; give the folder with the weights itself")
    return snapshots[0]


def _check_config(path: Path) -> None:
    if not path.is_file():
        return
    try:
        config = read_json(path)
    except SapcError as error:
        raise SapcError(f"{error}; get it anew, or remove it: the weights do without") from error
    for name, choices in CONFIG.items():
        if config.get(name, choices[0]) not in choices:
            usual = next(value for value in choices if value is not None)
            raise SapcError(
                f"{path} has {name} = {config[name]!r}, Poseidon {usual!r}: "
                "these are weights of another model"
            )


def _read(file: Path) -> dict[str, Tensor]:
    """Read the tensors of embeddings and encoder, as float32 copies in memory: the file may change later."""
    try:
        with open(file, "rb") as start:
            if start.read(len(POINTER)) == POINTER:
                raise SapcError(f"{file} is a pointer of Git LFS, not the weights; run `git lfs pull` there")
        content = _from_safetensors(file) if file.suffix == ".safetensors" else _from_pickle(file)
    except SapcError:
        raise
    except OSError as error:
        raise SapcError(f"{file} cannot be read ({first_line(error)})") from error
    # A damaged pickle or archive raises anything.
    except Exception as error:
        raise SapcError(f"{file} is damaged or not a file of weights; get it anew") from error
    tensors = {name: t for name, t in content.items() if not str(name).startswith(UNUSED_PREFIXES)}
    for name, t in tensors.items():
        if not isinstance(name, str) or not isinstance(t, Tensor) or not _is_plain(t):
            raise SapcError(
                f"{file} holds something other than weights under the name {name!r}; {DOWNLOAD_HINT}"
            )
    return {name: t.to(torch.float32, copy=True) for name, t in tensors.items()}


def _is_plain(t: Tensor) -> bool:
    return t.dtype in DTYPES and t.layout == torch.strided and t.device.type == "cpu"


def _from_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as content:
            # This is no dictionary, but has `keys`.
            names = [name for name in content.keys() if not name.startswith(UNUSED_PREFIXES)]  # noqa: SIM118
            return {name: content.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise SapcError(f"{file} is cut short or damaged ({first_line(error)}); get it anew") from error


def _from_pickle(file: Path) -> Mapping[Any, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise SapcError(
            f"{file} holds more than tensors, or is damaged: it was not loaded, and no code in it was run; "
            "use model.safetensors, or the file as published"
        ) from error
    if not isinstance(content, Mapping):
        raise SapcError(f"{file} holds a {type(content).__name__}, not weights by name; {DOWNLOAD_HINT}")
    return content


def _size(tensors: Mapping[str, Tensor], file: Path) -> str:
    if PATCH_WEIGHT not in tensors:
        raise SapcError(
            f"{file} has no {PATCH_WEIGHT}: these are not weights of Poseidon, or they were renamed; "
            f"{DOWNLOAD_HINT}"
        )
    shape = tuple(tensors[PATCH_WEIGHT].shape)
    for name, size in SIZES.items():
        if shape == (size.embed, CHANNELS, PATCH, PATCH):
            return name
    sizes = ", ".join(f"{name} {(size.embed, CHANNELS, PATCH, PATCH)}" for name, size in SIZES.items())
    raise SapcError(f"{file}: {PATCH_WEIGHT} has shape {shape}, which is no size of Poseidon ({sizes})")


def _check(tensors: Mapping[str, Tensor], encoder: Encoder, file: Path) -> None:
    """Check names, shapes and values; a model that was never trained has zero gains, and so zero features."""
    targets, problem = encoder.state_dict(), f"{file} is not Poseidon-{encoder.size}"
    for verb, names in (
        ("lacks", targets.keys() - tensors.keys()),
        ("also has", tensors.keys() - targets.keys()),
    ):
        if names:
            suffix = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise SapcError(f"{problem}: it {verb} {min(names)}{suffix}; {DOWNLOAD_HINT}")
    for name, tensor in tensors.items():
        if tensor.shape != targets[name].shape:
            raise SapcError(
                f"{problem}: {name} has shape {tuple(tensor.shape)}, expected {tuple(targets[name].shape)}; "
                f"{DOWNLOAD_HINT}"
            )
        if not tensor.isfinite().all():
            raise SapcError(f"{file}: {name} contains NaN or infinity; get it anew")
    gains = (t for name, t in tensors.items() if name.endswith(".weight.bias"))
    if not any(bool(t.any()) for t in gains):
        raise SapcError(
            f"{file}: all gains are zero, as in a model that was never trained, so all features would be; "
            f"{DOWNLOAD_HINT}"
        )
