"""Run folders: everything needed to repeat a run, to continue it and to use it.

    config.json             settings of the run
    environment.json        on what it ran: versions, device, command, plug-ins; one entry per start
    log.jsonl               one line per logged step and per validation
    checkpoint.safetensors  weights, optimiser and schedule of an unfinished training
    weights.safetensors     the trained weights; with this file training is done
    optimiser.safetensors   the optimiser and schedule of a finished training, for one that goes on
    scores.json             the evaluation; with this file the run is done
    physics.py              the file of laws that was given with one's own data, to be read; it is never run
                            because it lies there

A model to be passed on (`save_pretrained`) has its weights in model.safetensors instead, as the Hugging Face
hub wants it, and a README.md. Such are the models that come with the package, a small SAPC and a small FFM
network for every task; SHA256SUMS beside them lists the digests of their weights, as `sha256sum --check`
reads them, and weights that differ are not loaded.

Every file but the log is replaced atomically, so at any moment a folder holds the last complete state. The
log is cut back to the checkpoint when training continues. One process at a time trains in a folder; the lock
ends with the process, however that ends. Files of tensors hold a description and a digest of all of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .._files import (
    atomic_write,
    ensure_folder,
    first_line,
    parse_json,
    read_json,
    real_path,
    remove_remains,
    write_json,
)
from .._files import sha256 as file_digest
from .._old_names import find_renamed, old_attribute, rename_method
from .._version import __version__
from ..errors import INT_LIMIT, SapcError, SapcWarning, check_number, check_path
from ..nn.network import NetworkSource, weights_of
from .config import FILE_KEYS, FORMAT, TrainingConfig

BEST_METHODS = ("cond_sapc", "sapc")
"""Methods of the models of the package, the best one first."""
HOME = Path(__file__).parent.parent / "models" / "pretrained"
"""Folder of the models that come with the package."""

Tensors = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]
KINDS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# In a checkpoint, the names of all tensors that are not the weights reached begin with it.
OPTIMISER = "adam."
# Weights of the best validation, and beside these the weights reached.
BEST, LAST = f"{OPTIMISER}best.", f"{OPTIMISER}last."
# What the description says of the best weights: their step and their validation loss.
BEST_VALIDATION = "best_validation"


class RunFolder:
    """The files of one run.

    Args:
        path: The folder, which need not exist yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.environment = self.path / "environment.json"
        self.log = self.path / "log.jsonl"
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.weights = self.path / "weights.safetensors"
        self.optimiser = self.path / "optimiser.safetensors"
        self.card = self.path / "README.md"
        if not self.weights.exists() and (hub_file := self.path / "model.safetensors").is_file():
            self.weights = hub_file
        self.scores = self.path / "scores.json"
        self.physics = self.path / "physics.py"

    @property
    def is_trained(self) -> bool:
        """Whether training is done."""
        return self.weights.is_file()

    trained = old_attribute("RunFolder.trained", "RunFolder.is_trained")

    def known_digest(self) -> str | None:
        """Look up the SHA-256 of the trained weights, in the package's list or in measured scores.

        Returns:
            The digest, or None if neither knows it.
        """
        if (digest := shipped_digest(self.path)) is not None:
            return digest
        try:
            digest = read_json(self.scores).get("weights")
        # Weights do without scores.
        except SapcError:
            return None
        return digest if isinstance(digest, str) else None

    def load_weights(self) -> tuple[Tensors, dict[str, Any]]:
        """Load the trained weights.

        Returns:
            The tensors and their description.
        """
        return load_tensors(self.weights, sha256=self.known_digest())

    def run(self) -> TrainingConfig:
        """Read the settings of the run.

        Returns:
            The settings.

        Raises:
            SapcError: The folder holds no run, or its config.json is damaged.
        """
        if not self.config.is_file():
            raise SapcError(
                f"{self.path} is not a run folder: it has no config.json; train one with `sapc train`, "
                "or name a model that comes with the package (`sapc models` lists them)"
            )
        content = read_json(self.config, f"the configuration of a run ({FORMAT})")
        try:
            return TrainingConfig.from_dict(content)
        except SapcError as error:
            raise SapcError(f"{self.config}: {error}") from error

    @property
    def has_state(self) -> bool:
        """Whether there is anything that another configuration would contradict."""
        return self.is_trained or self.checkpoint.exists() or bool(self.entries())

    begun = old_attribute("RunFolder.begun", "RunFolder.has_state")

    def begin(self, run: TrainingConfig) -> None:
        """Make this the folder of a run; the caller has locked it.

        Args:
            run: Settings of the run.
        """
        self.check(run)
        remove_remains(self.path, is_locked=True)
        if self.is_trained:
            self.checkpoint.unlink(missing_ok=True)
        if not self.has_state:
            write_json(self.config, run.to_dict())

    def check(self, run: TrainingConfig) -> None:
        """Refuse a folder that holds something else than this very run.

        Args:
            run: Settings of the run.

        Raises:
            SapcError: The folder holds another run, or files that are none.
        """
        if not self.config.exists():
            if self.path.exists() and any(not p.name.startswith(".") for p in self.path.iterdir()):
                raise SapcError(
                    f"{self.path} exists, is not empty and is not a run folder; choose another one"
                )
            return
        if not self.has_state:
            return
        existing_run = self.run()
        existing, new = existing_run.identity(), run.identity()
        changed_keys = [key for key in {**new, **existing} if existing.get(key) != new.get(key)]
        is_longer = self.is_trained and run.steps > existing_run.steps
        is_longer &= set(changed_keys) <= {"steps", "stages"}
        if not changed_keys or (is_longer and new == existing_run.extend_to(run.steps).identity()):
            return
        key = min(changed_keys, key=lambda key: key in ("steps", "stages"))
        name, old_value, new_value = _difference(FILE_KEYS.get(key, key), existing.get(key), new.get(key))
        advice = "choose another folder, or the same settings to continue it"
        if is_longer:
            advice = f"`sapc train --resume {self.path} --steps {run.steps}` goes on from there"
        raise SapcError(
            f"{self.path} holds another run: its {name} is {old_value!r:.80}, not {new_value!r:.80}; {advice}"
        )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from training in this folder inside the block."""
        with ensure_folder(self.path), open(self.path / ".lock", "w") as file:
            try:
                lock_file(file)
            except BlockingIOError as error:
                raise SapcError(
                    f"another process is training in {self.path}; wait for it or choose another folder"
                ) from error
            yield

    def record_start(self, run: TrainingConfig | None = None, **details: Any) -> None:
        """Add to environment.json what this start runs on.

        Args:
            run: Settings of the run.
            details: Further entries, as the step it starts from.
        """
        try:
            starts = list(read_json(self.environment)["starts"]) if self.environment.exists() else []
        except (SapcError, TypeError, KeyError) as error:
            # An unreadable record of earlier starts is no reason not to start.
            warnings.warn(SapcWarning(f"{self.environment} begins anew: {first_line(error)}"), stacklevel=2)
            starts = []
        write_json(self.environment, {"starts": [*starts, {**environment(run), **details}]})

    def warn_of_changed_plugins(self, run: TrainingConfig) -> None:
        """Warn if a plug-in has another text than when the run was last trained; old runs do not know it.

        Args:
            run: Settings of the run.
        """
        try:
            starts = read_json(self.environment)["starts"] if self.environment.exists() else []
            starts = [start for start in starts if isinstance(start, dict)]
            records = [start["plugins"] for start in starts if isinstance(start.get("plugins"), dict)]
        # An unreadable record is no reason not to load.
        except (SapcError, TypeError, KeyError):
            return
        for kind, file in run.describe_plugins().items() if records else ():
            earlier = records[-1].get(kind)
            if isinstance(earlier, dict) and earlier.get("sha256") != file["sha256"]:
                warnings.warn(
                    f"{file['file']}, which defines the {kind} {getattr(run, kind)}, has another text "
                    f"than when {self.path} was trained: the weights are those of the earlier text; "
                    "train again with a new --out if it matters",
                    SapcWarning,
                    stacklevel=4,
                )

    locked = rename_method("RunFolder.locked", "RunFolder.lock")
    note_start = rename_method("RunFolder.note_start", "RunFolder.record_start")

    # -- the log --

    def append(self, **entry: Any) -> None:
        """Append one JSON line to the log.

        Args:
            entry: Its values by name.
        """
        with open(self.log, "a") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")

    def entries(self) -> list[dict[str, Any]]:
        """Read the log; a last line cut short by a crash is left out.

        Returns:
            Its lines.
        """
        entries = []
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        for line in text.splitlines():
            try:
                entry = parse_json(line)
            except SapcError:
                break
            if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
                break
            entries.append(entry)
        return entries

    def cut_log(self, step: int) -> None:
        """Remove from the log what will be done again.

        Args:
            step: The last step to keep.
        """
        lines = [json.dumps(entry) + "\n" for entry in self.entries() if entry["step"] <= step]
        with atomic_write(self.log) as partial:
            partial.write_text("".join(lines))


def default_folder(run: TrainingConfig) -> Path:
    """Choose a run's usual folder, named after task, method, preset and seed."""
    parts = [run.task, run.method]
    parts += [run.preset] if run.preset != "published" else []
    parts += [f"seed{run.seed}"] if run.seed else []
    parts += [f"from-{run.parent['name']}"] if run.parent else []
    return Path("runs") / "-".join(parts)


def environment(run: TrainingConfig | None = None) -> dict[str, Any]:
    """Describe versions and hardware, and the plug-ins of a run, so that a figure can be repeated."""
    plugins = {} if run is None else run.describe_plugins()
    cuda = torch.cuda.is_available()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "sapc": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        **({"plugins": plugins} if plugins else {}),
    }


def _command() -> str:
    """Return the command line of this process; paths are relative to the program and the working folder."""
    name = Path(sys.argv[0] if sys.argv else "").name
    program = "sapc" if name in ("sapc", "__main__.py") else f"python {name}".strip()
    return " ".join((program, *(word.removeprefix(f"{Path.cwd()}{os.sep}") for word in sys.argv[1:])))


def lock_file(file: IO[str]) -> None:
    """Lock an open file against other processes, until it is closed.

    Args:
        file: The file.

    Raises:
        BlockingIOError: Another process has locked it.
    """
    try:
        import fcntl
    # Not a POSIX system: nobody keeps a second process out.
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        message = (
            f"this file system knows no locks ({first_line(error)}); "
            "let one process at a time train in a folder"
        )
        warnings.warn(SapcWarning(message), stacklevel=4)


def _difference(name: str, a: Any, b: Any) -> tuple[str, Any, Any]:
    """Find where two settings differ first, as deep as both are records or lists."""
    if isinstance(a, dict) and isinstance(b, dict):
        key = next(key for key in {**a, **b} if a.get(key) != b.get(key))
        return _difference(f"{name}.{key}", a.get(key), b.get(key))
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        i = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
        return _difference(f"{name}[{i}]", a[i], b[i])
    return name, a, b


# -- models that come with the package --


def model_names() -> tuple[str, ...]:
    """List the models that come with the package."""
    return tuple(sorted(path.parent.name for path in HOME.glob("*/config.json")))


def is_shipped(path: str | os.PathLike[str]) -> bool:
    """Check whether a folder is that of a model of the package, which nobody writes to."""
    return real_path(path).parent == real_path(HOME)


def shipped_digest(path: str | os.PathLike[str]) -> str | None:
    """Look up the published SHA-256 of the weights of a model of the package; None for other folders."""
    lines = (HOME / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    digests = {file: digest for digest, file in (line.split(maxsplit=1) for line in lines)}
    return digests.get(f"{real_path(path).name}/model.safetensors") if is_shipped(path) else None


def resolve_model_path(model: str | os.PathLike[str]) -> Path:
    """Find a run folder by its path, or a model of the package by its name, or the best one of a task."""
    path, names = check_path(model, "a model"), model_names()
    if (path / "config.json").is_file():
        return path
    if str(model) in names:
        return HOME / path
    best = (f"{model}-{method}" for method in BEST_METHODS if not path.exists())
    return next((HOME / name for name in best if name in names), path)


# -- files of tensors --


def save_tensors(path: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Write tensors with a JSON description and a digest of all of it, atomically.

    The digest is a part of the description, because safetensors writes several entries of metadata in an
    order that varies.

    Args:
        path: The file.
        tensors: Tensors by name.
        description: Their description, which JSON can hold.
    """
    cpu_tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = save(
        cpu_tensors, {"about": json.dumps({**description, "sha256": _digest(cpu_tensors, description)})}
    )
    with atomic_write(path) as partial:
        partial.write_bytes(content)


def _digest(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(dict(description)).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_tensors(
    path: Path, device: str | torch.device = "cpu", sha256: str | None = None
) -> tuple[Tensors, dict[str, Any]]:
    """Read what `save_tensors` wrote; nothing in the file is executed.

    Files hold a digest of their contents. Those of version 0.1.0 do not: there the `sha256` of the whole file
    is compared, where it is known from elsewhere.

    Args:
        path: The file.
        device: Device of the tensors.
        sha256: Digest of the whole file, if it is known.

    Returns:
        The tensors and their description.

    Raises:
        SapcError: There is no such file, or it is damaged.
    """
    if not path.is_file():
        raise SapcError(f"there is no file {path}")
    with _open_tensors(path) as file:
        # The file is no mapping, so its keys are asked for.
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        description, digest = _read_about(file)
    if digest is not None and digest != _digest(tensors, description):
        raise SapcError(
            f"the contents of {path} do not match their SHA-256: it is damaged; restore it, or train again"
        )
    if digest is None and sha256 is not None and sha256 != file_digest(path):
        raise SapcError(
            f"the contents of {path} do not match their SHA-256, which the scores beside it or the package "
            "know: it is damaged, or the scores are of other weights; restore it, or remove those scores"
        )
    if names := [name for name, tensor in tensors.items() if tensor.dtype not in KINDS]:
        raise SapcError(
            f"{path} holds {names[0]!r} as {tensors[names[0]].dtype}; "
            "numbers of this package are floating-point: restore it"
        )
    return {name: tensor.to(device) for name, tensor in tensors.items()}, description


def read_description(path: Path) -> dict[str, Any]:
    """Read the description of a file of tensors, without the tensors."""
    with _open_tensors(path) as file:
        return _read_about(file)[0]


def read_step(description: Mapping[str, Any], path: Path) -> int:
    """Read the number of training steps from a description of weights."""
    step = description.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < INT_LIMIT:
        raise SapcError(
            f"{path} does not say after how many steps its weights were: its step is {step!r:.40}"
        )
    return step


def read_range(description: Mapping[str, Any], path: Path) -> tuple[float, float] | None:
    """Read the range of the training data from a description of weights; None if it has none."""
    if (values := description.get("range")) is None:
        return None
    try:
        low, high = (check_number(value, "range") for value in values)
    except (TypeError, ValueError) as error:
        raise SapcError(
            f"{path} has no usable range of the training data, two numbers, but {values!r:.40}"
        ) from error
    return low, high


def check_shapes(run: TrainingConfig, path: Path, network: NetworkSource | None = None) -> None:
    """Refuse weights of another network than a run's.

    Only the names and shapes at the file's beginning are read, and no network is made.
    """
    with _open_tensors(path) as file:
        names = [name for name in file.keys() if not name.startswith(OPTIMISER)]  # noqa: SIM118
        file_shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
    _compare_shapes(run.network_shapes(network), file_shapes, path, run.backbone.origin)


def load_weights(network: torch.nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Put weights into a network; any difference in names or shapes is refused by name."""
    states = weights_of(network), tensors
    shapes, file_shapes = ({name: tuple(x.shape) for name, x in state.items()} for state in states)
    _compare_shapes(shapes, file_shapes, path, "in the network; restore the one or the other")
    # Counters and tables of whole numbers are not in the file.
    network.load_state_dict(dict(tensors), strict=False)


def different_shapes(a: Shapes, b: Shapes) -> list[str]:
    """Name the tensors that only one side has, or else those that have different shapes."""
    return sorted(set(a) ^ set(b)) or sorted(name for name in a if a[name] != b[name])


def _compare_shapes(shapes: Shapes, file_shapes: Shapes, path: Path, origin: str) -> None:
    if names := different_shapes(shapes, file_shapes):
        name = names[0]
        file_shape, shape = (list(s[name]) if name in s else "missing" for s in (file_shapes, shapes))
        raise SapcError(
            f"the weights in {path} are of another network: {len(names)} tensors differ, first {name!r}, "
            f"whose shape is {file_shape} there and {shape} {origin}"
        )


@contextmanager
def _open_tensors(path: Path) -> Iterator[Any]:
    """Open a file of tensors; whatever is wrong with it ends in one sentence."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, KeyError, OSError, SapcError) as error:
        raise SapcError(
            f"{path} is damaged or not a file of this package ({first_line(error)}); "
            "restore it, or train again"
        ) from error


def _read_about(file: Any) -> tuple[dict[str, Any], Any]:
    """Read the description in a file of tensors, and the digest in it, if there is one."""
    description = parse_json((file.metadata() or {})["about"])
    if not isinstance(description, dict):
        raise SapcError(f"it describes itself as {description!r:.40}")
    return description, description.pop("sha256", None)


__getattr__ = find_renamed(__name__)
