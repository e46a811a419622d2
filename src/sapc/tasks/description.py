"""What a run keeps of a task of own data, by entry and kind: `own_task` writes it, and a configuration may hold anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import SapcError, fits, whole
from ..grid import Grid
from .scaling import Scale

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


def check_description(about: Any) -> None:
    """Refuse a description of own data that lacks an entry, or holds something else in its place."""
    what = "the description of own data in a run's options cannot be read"
    if not isinstance(about, Mapping):
        raise SapcError(f"{what}: it is {about!r:.60}")
    for name, kind in KINDS.items():
        entry = about.get(name, {} if name in OPTIONAL else None)
        has_keys = fits(entry, kind) and set(entry) == KEYS.get(name, set(entry))
        if not has_keys or (name == "reading" and not set(entry) <= READING):
            raise SapcError(f"{what}: its {name} is {entry!r:.60}")
    whole(about["split"]["seed"], "seed of the split of own data", 0)
    Scale.from_dict(about["scale"], Grid.from_dict(about["grid"]))
