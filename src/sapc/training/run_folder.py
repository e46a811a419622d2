"""Run folders: everything needed to repeat a run, to continue it and to use it.

    config.json             what the run is
    environment.json        on what it ran: versions, device, command; one entry per start
    log.jsonl               one line per logged step and per validation
    checkpoint.safetensors  weights, optimiser and schedule of an unfinished training
    weights.safetensors     the trained weights; with this file training is done
    optimiser.safetensors   the optimiser and schedule of a finished training, for one that goes on
    scores.json             the evaluation; with this file the run is done
    physics.py              of own data: the file that was given, to be read; it is never run because it lies there

A model to be passed on (`save_pretrained`) has its weights in model.safetensors instead, as the Hugging Face hub wants it, and a README.md.
Such are the models that come with the package, a small SAPC and a small FFM network for every task; SHA256SUMS beside them lists the
digests of their weights, as `sha256sum --check` reads them, and weights that differ are not loaded.

Every file but the log is replaced atomically, so at any moment a folder holds the last complete state. The log is cut back to the
checkpoint when training continues. One process at a time trains in a folder; the lock ends with the process, however that ends.
Files of tensors hold a description and a digest of all of it.
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

HOME = Path(__file__).parent.parent / "models" / "pretrained"
"""Where the models lie that come with the package."""

Tensors = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]
KINDS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Begins the names of what the optimiser keeps, in a checkpoint.
OPTIMISER = "adam."


class RunFolder:
    """The files of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.environment = self.path / "environment.json"
        self.log = self.path / "log.jsonl"
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.weights = self.path / "weights.safetensors"
        self.optimiser = self.path / "optimiser.safetensors"
        self.card = self.path / "README.md"
        if not self.weights.exists() and (passed_on := self.path / "model.safetensors").is_file():
            self.weights = passed_on
        self.scores = self.path / "scores.json"
        self.physics = self.path / "physics.py"

    @property
    def is_trained(self) -> bool:
        """Whether training is done."""
        return self.weights.is_file()

    trained = old_attribute("RunFolder.trained", "RunFolder.is_trained")

    def known_digest(self) -> str | None:
        """The SHA-256 of the trained weights that is known from elsewhere: the list of the package's own, or scores that were measured."""
        if (listed := shipped_digest(self.path)) is not None:
            return listed
        try:
            digest = read_json(self.scores).get("weights")
        except SapcError:  # weights do without scores
            return None
        return digest if isinstance(digest, str) else None

    def load_weights(self) -> tuple[Tensors, dict[str, Any]]:
        """The trained weights and what was noted of them."""
        return load_tensors(self.weights, sha256=self.known_digest())

    def run(self) -> TrainingConfig:
        """What the run is."""
        if not self.config.is_file():
            raise SapcError(
                f"{self.path} is not a run folder: it has no config.json; train one with `sapc train`, or name a model that comes "
                "with the package (`sapc models` lists them)"
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
        """Make this the folder of a run; the caller has locked it."""
        self.check(run)
        remove_remains(self.path, unnamed=True)
        if self.is_trained:
            self.checkpoint.unlink(missing_ok=True)
        if not self.has_state:
            write_json(self.config, run.to_dict())

    def check(self, run: TrainingConfig) -> None:
        """Refuse a folder that holds something else than this very run."""
        if not self.config.exists():
            if self.path.exists() and any(not p.name.startswith(".") for p in self.path.iterdir()):
                raise SapcError(
                    f"{self.path} exists, is not empty and is not a run folder; choose another one"
                )
            return
        if not self.has_state:
            return
        there = self.run()
        own, wanted = there.identity(), run.identity()
        changed = [name for name in {**wanted, **own} if own.get(name) != wanted.get(name)]
        is_longer = self.is_trained and run.steps > there.steps and set(changed) <= {"steps", "stages"}
        if not changed or (is_longer and wanted == there.extend_to(run.steps).identity()):
            return
        name = min(changed, key=lambda name: name in ("steps", "stages"))
        place, one, other = _difference(FILE_KEYS.get(name, name), own.get(name), wanted.get(name))
        advice = "choose another folder, or the same settings to continue it"
        if is_longer:
            advice = f"`sapc train --resume {self.path} --steps {run.steps}` goes on from there"
        raise SapcError(
            f"{self.path} holds another run: its {place} is {one!r:.80}, not {other!r:.80}; {advice}"
        )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Inside the block no other process trains in this folder."""
        with ensure_folder(self.path), open(self.path / ".lock", "w") as file:
            try:
                lock_file(file)
            except BlockingIOError as error:
                raise SapcError(
                    f"another process is training in {self.path}; wait for it or choose another folder"
                ) from error
            yield

    def record_start(self, **more: Any) -> None:
        """Add to environment.json what this start runs on."""
        try:
            starts = list(read_json(self.environment)["starts"]) if self.environment.exists() else []
        except (SapcError, TypeError, KeyError) as error:  # where it ran is no reason not to run
            warnings.warn(SapcWarning(f"{self.environment} begins anew: {first_line(error)}"), stacklevel=2)
            starts = []
        write_json(self.environment, {"starts": [*starts, {**environment(), **more}]})

    locked = rename_method("RunFolder.locked", "RunFolder.lock")
    note_start = rename_method("RunFolder.note_start", "RunFolder.record_start")

    # -- the log --

    def append(self, **entry: Any) -> None:
        """One line more."""
        with open(self.log, "a") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")

    def entries(self) -> list[dict[str, Any]]:
        """The log's lines; a last line cut short by a crash is left out."""
        found = []
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        for line in text.splitlines():
            try:
                entry = parse_json(line)
            except SapcError:
                break
            if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
                break
            found.append(entry)
        return found

    def cut_log(self, step: int) -> None:
        """Forget what was logged after `step`: it will be done again."""
        kept = [json.dumps(entry) + "\n" for entry in self.entries() if entry["step"] <= step]
        with atomic_write(self.log) as partial:
            partial.write_text("".join(kept))


def default_folder(run: TrainingConfig) -> Path:
    """Where a run goes unless told: named after task, method, preset and seed."""
    parts = [run.task, run.method]
    parts += [run.preset] if run.preset != "published" else []
    parts += [f"seed{run.seed}"] if run.seed else []
    parts += [f"from-{run.parent['name']}"] if run.parent else []
    return Path("runs") / "-".join(parts)


def environment() -> dict[str, Any]:
    """Versions and hardware, for whoever wants to repeat a figure."""
    cuda = torch.cuda.is_available()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join((_program(), *sys.argv[1:])),
        "sapc": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def _program() -> str:
    """How this process was started, without its folder."""
    name = Path(sys.argv[0] if sys.argv else "").name
    return "sapc" if name in ("sapc", "__main__.py") else f"python {name}".strip()


def lock_file(file: IO[str]) -> None:
    """Lock an open file against other processes, until it is closed; raises BlockingIOError where one has it."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: nobody keeps a second process out
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        what = f"this file system knows no locks ({first_line(error)}); let one process at a time train in a folder"
        warnings.warn(SapcWarning(what), stacklevel=4)


def _difference(place: str, one: Any, other: Any) -> tuple[str, Any, Any]:
    """Find where two settings differ first, as deep as they are records or lists alike."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
        return _difference(f"{place}.{names[0]}", one.get(names[0]), other.get(names[0]))
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        i = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
        return _difference(f"{place}[{i}]", one[i], other[i])
    return place, one, other


# -- models that come with the package --


def model_names() -> tuple[str, ...]:
    """The models that come with the package."""
    return tuple(sorted(path.parent.name for path in HOME.glob("*/config.json")))


def is_shipped(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is one of these, which nobody writes to."""
    return real_path(path).parent == real_path(HOME)


def shipped_digest(path: str | os.PathLike[str]) -> str | None:
    """The SHA-256 of the weights in one of these folders, as it was when they were published."""
    lines = (HOME / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    listed = {file: digest for digest, file in (line.split(maxsplit=1) for line in lines)}
    return listed.get(f"{real_path(path).name}/model.safetensors") if is_shipped(path) else None


def resolve_model_path(where: str | os.PathLike[str]) -> Path:
    """The run folder of that path; if there is none, the model of that name."""
    path = check_path(where, "a model")
    return path if (path / "config.json").is_file() or str(where) not in model_names() else HOME / path


# -- files of tensors --


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors with a JSON description and a digest of all of it, atomically.

    The digest is a part of the description, because safetensors writes several entries of metadata in an order that varies.
    """
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = save(ready, {"about": json.dumps({**about, "sha256": _digest(ready, about)})})
    with atomic_write(path) as partial:
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


def read_description(path: Path) -> dict[str, Any]:
    """The description alone, without reading the tensors."""
    with _opened(path) as file:
        return _about(file)[0]


def read_step(about: Mapping[str, Any], path: Path) -> int:
    """The training steps that the description of weights names."""
    step = about.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < INT_LIMIT:
        raise SapcError(
            f"{path} does not say after how many steps its weights were: its step is {step!r:.40}"
        )
    return step


def read_range(about: Mapping[str, Any], path: Path) -> tuple[float, float] | None:
    """The smallest and largest value of the training data that the description of weights names, if it does."""
    if (span := about.get("range")) is None:
        return None
    try:
        low, high = (check_number(value, "range") for value in span)
    except (TypeError, ValueError) as error:
        raise SapcError(
            f"{path} has no usable range of the training data, two numbers, but {span!r:.40}"
        ) from error
    return low, high


def check_shapes(run: TrainingConfig, path: Path, network: NetworkSource | None = None) -> None:
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


def different_shapes(own: Shapes, there: Shapes) -> list[str]:
    """Return the names of tensors that only one side has, or else of those that have another shape there."""
    return sorted(set(own) ^ set(there)) or sorted(name for name in own if own[name] != there[name])


def _compare_shapes(own: Shapes, there: Shapes, path: Path, origin: str) -> None:
    if wrong := different_shapes(own, there):
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


__getattr__ = find_renamed(__name__)
