"""Reading one file: JSON that may be anything, scores that may lack something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..._files import first_line, parse_json
from ...errors import SapcError
from ...models.score_record import FORMAT, check_scores


class Foreign(SapcError):
    """A file of another kind."""


def read_any(path: Path) -> Any:
    """What a JSON file holds; whatever is wrong with it is said in one line."""
    if not path.is_file():
        raise SapcError("is not a file")
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise SapcError(f"cannot be read ({first_line(error)})") from error


def read_scores(path: Path) -> dict[str, Any]:
    """The scores in a file; `Foreign` if it holds something else, SapcError if something is wrong with them."""
    content = read_any(path)
    form = content.get("format") if isinstance(content, dict) else None
    if form != FORMAT:
        told = f"of format {form!r}" if form is not None else "without a format"
        raise Foreign(f"is not a file of scores ({FORMAT}), but JSON {told[:60]}")
    check_scores(content)
    found: dict[str, Any] = content
    return found
