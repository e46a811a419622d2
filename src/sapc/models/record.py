"""Records that are JSON objects: known entries are fields, and nothing of a file is lost."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, field, fields
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ..errors import SapcError

R = TypeVar("R", bound="Record")


@dataclass(frozen=True, kw_only=True)
class Record:
    """A JSON object whose known entries are fields; `more` has all others, None stands for no entry."""

    more: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls: type[R], data: Any, label: str) -> R:
        """Check and take over a JSON object.

        Args:
            data: The object.
            label: What messages call it.

        Returns:
            The record.

        Raises:
            SapcError: An entry is missing or not as declared.
        """
        if not isinstance(data, dict):
            raise SapcError(f"has no {label}")
        hints, entries = get_type_hints(cls), {}
        for entry in (entry for entry in fields(cls) if entry.name != "more"):
            name = entry.name
            is_required = entry.default is MISSING and entry.default_factory is MISSING
            if is_required and name not in data:
                raise SapcError(f"has no {name} in its {label}")
            if is_required or data.get(name) is not None:
                entries[name] = data[name]
                _check(entries[name], hints[name], f"{name} in its {label}")
        return cls(**entries, more={name: value for name, value in data.items() if name not in entries})

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object, in the order of the file."""
        content: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value is not None and entry.name not in ("more", "trajectory"):
                content[entry.name] = value
        return content | self.more


def _check(value: Any, hint: Any, label: str) -> None:
    """Refuse a JSON value that is not as declared; numbers that are measured must be finite."""
    if isinstance(hint, UnionType):
        hint = get_args(hint)[0]
    kind = get_origin(hint) or hint
    if kind is Any:
        return
    is_fine = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
    if not is_fine or (kind is float and not _is_finite(value)):
        raise SapcError(f"has {value!r:.40} for {label}")
    if kind is dict:
        for name, entry in value.items():
            _check(entry, get_args(hint)[1], f"{name!s:.40} of {label}")
    elif kind is list:
        for entry in value:
            _check(entry, get_args(hint)[0], label)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        # A whole number beyond floats.
        return False
