"""What a run's settings say of the data and the physics of its task, as JSON can hold it.

The option `own` of a run holds it: `Task.from_data` writes it, and a configuration may hold anything. Neither
the data nor the code of the physics are part of it, so a description answers what can be known without them.
The description of a task with a solver is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..data.normalizer import Normalizer
from ..errors import SapcError, check_int, has_type
from ..grid import Grid

OPTION = "own"
KINDS: Mapping[str, Any] = {
    "grid": Mapping[str, Any],
    "scale": Mapping[str, Sequence[float]],
    "data": Mapping[str, str | None],
    "physics": Mapping[str, str],
    "split": Mapping[str, float],
    "sizes": Mapping[str, int],
    "units": Mapping[str, str],
    "labels": Mapping[str, str],
    "reading": Mapping[str, str | bool],
}
OPTIONAL = ("units", "labels", "reading")
KEYS = {"physics": {"file", "sha256"}, "split": {"share", "seed"}, "sizes": {"train", "validation"}}
READING = {"samples", "time", "steady"}


def _entry(name: str, doc: str) -> Any:
    """Make a property that copies an entry; empty where there is none."""
    return property(lambda self: dict(self.entries.get(name, {})), doc=doc)


@dataclass(frozen=True)
class DataDescription:
    """The entries of KINDS; none where a solver makes the data."""

    entries: Mapping[str, Any] = field(default_factory=dict)
    sizes = _entry("sizes", "Number of samples of each split.")
    units = _entry("units", "Units of channels and axes, as the file has them.")
    labels = _entry("labels", "Long names of channels and axes.")
    data = _entry("data", "Where the data came from: path, digest, dimension of the samples.")
    split = _entry("split", "Share and seed of the validation split.")
    reading = _entry("reading", "What was said to read the file, as arguments of `read_fields`.")
    physics = _entry("physics", "File and digest of the physics.")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> DataDescription:
        """Find the description in the options of a task."""
        return cls(options.get(OPTION, {}))

    @property
    def options(self) -> dict[str, Any]:
        """The options of a task that hold this description."""
        return {OPTION: dict(self.entries)} if self.entries else {}

    @property
    def can_draw(self) -> bool:
        """Whether there can be further independent samples: a solver makes them, a file has what it has."""
        return not self.entries

    @property
    def n_channels(self) -> int:
        """Channels of the fields."""
        return max(1, len(self.entries.get("grid", {}).get("channels", ())))

    @property
    def grid(self) -> Grid:
        """The grid of the data."""
        return Grid.from_dict(self.entries["grid"])

    @property
    def physics_file(self) -> str:
        """Name of the file of the physics, if it has one."""
        return str(self.physics.get("file") or "")

    @property
    def physics_sha256(self) -> str:
        """Digest of the text of the physics, if it has one."""
        return str(self.physics.get("sha256") or "")

    def normalizer(self, grid: Grid) -> Normalizer:
        """Mean and deviation of the training data, for fields on a grid."""
        return Normalizer.from_dict(self.entries["scale"], grid)

    def with_reading(self, reading: Mapping[str, Any] | None) -> DataDescription:
        """Return the description of the same data, read in another way."""
        if not reading:
            return self
        return DataDescription({**self.entries, "reading": {**self.reading, **reading}})

    def identity(self) -> dict[str, Any]:
        """Return the options that tell two tasks apart, without the place of the file and how it was read."""
        entries = {name: value for name, value in self.entries.items() if name != "reading"}
        if self.data.get("sha256"):
            entries["data"] = {name: value for name, value in self.data.items() if name != "path"}
        return DataDescription(entries).options

    def check(self) -> None:
        """Refuse a description that lacks an entry, or holds something else in its place."""
        problem = "the description of own data in a run's options cannot be read"
        if not isinstance(self.entries, Mapping):
            raise SapcError(f"{problem}: it is {self.entries!r:.60}")
        for name, kind in KINDS.items():
            entry = self.entries.get(name, {} if name in OPTIONAL else None)
            has_keys = has_type(entry, kind) and set(entry) == KEYS.get(name, set(entry))
            if not has_keys or (name == "reading" and not set(entry) <= READING):
                raise SapcError(f"{problem}: its {name} is {entry!r:.60}")
        check_int(self.entries["split"]["seed"], "seed of the split of own data", 0)
        self.normalizer(self.grid)


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options of a task whose description of data cannot be read."""
    if OPTION in options:
        DataDescription(options[OPTION]).check()
