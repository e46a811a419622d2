"""Ways to damage a file: its bytes, values of JSON, logs and tables, the header of safetensors, code.

Each takes a random generator and a path, changes the file, and returns what it did; arrays are in `arrays`.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .arrays import spoil_hdf5, spoil_npz
from .odd_values import ODD_CELLS, ODD_JSON, ODD_LINES

Damage = Callable[[random.Random, Path], str]
# -- bytes --


def flip_bits(rng: random.Random, path: Path) -> str:
    """Turn over a few bits."""
    content = bytearray(path.read_bytes())
    places = [rng.randrange(len(content)) for _ in range(rng.choice((1, 1, 1, 4, 32)))] if content else []
    for place in places:
        content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"bits flipped at {places}"


def truncate(rng: random.Random, path: Path) -> str:
    """Cut the end off."""
    content = path.read_bytes()
    size = rng.choice((0, 1, rng.randrange(len(content) + 1), max(0, len(content) - 1)))
    path.write_bytes(content[:size])
    return f"cut to {size} of {len(content)} bytes"


def splice(rng: random.Random, path: Path) -> str:
    """Overwrite, insert or remove a piece."""
    content = path.read_bytes()
    i, j = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    j = min(j, i + 64)
    piece = rng.choice(
        (b"", b"\0" * (j - i), b"\xff" * (j - i), content[: j - i], rng.randbytes(j - i), rng.randbytes(16))
    )
    path.write_bytes(content[:i] + piece + content[j:])
    return f"bytes {i} to {j} replaced by {len(piece)} others"


def exchange(rng: random.Random, path: Path) -> str:
    """Put something else in its place: nothing, noise, or a file of another kind."""
    replacement = rng.choice(
        (
            b"",
            b"\0" * 100,
            rng.randbytes(100),
            b"{}",
            b"[]",
            b"CDF\x01",
            b"\x89HDF\r\n\x1a\n",
            b"PK\x03\x04",
            b"\x93NUMPY",
        )
    )
    path.write_bytes(replacement)
    return f"replaced by {replacement[:8]!r}"


def remove(rng: random.Random, path: Path) -> str:
    """Delete it, or put a folder or a link to nowhere in its place."""
    path.unlink()
    kind = rng.choice(("removed", "a folder", "a link to nowhere", "a link to itself"))
    if kind == "a folder":
        path.mkdir()
    elif kind != "removed":
        path.symlink_to("nowhere" if kind == "a link to nowhere" else path.name)
    return kind


# -- JSON --


def spoil_json(rng: random.Random, path: Path) -> str:
    """Change a value of a JSON file."""
    text, description = spoil_value(rng, json.loads(path.read_text()))
    path.write_text(text)
    return description


def spoil_value(rng: random.Random, content: Any) -> tuple[str, str]:
    """JSON text with a value replaced, removed or added, and what was done."""
    places = list(_places(content))
    place, odd, kind = (
        rng.choice(places),
        rng.choice(ODD_JSON),
        rng.choice(("replace",) * 4 + ("remove", "add")),
    )
    if kind == "remove" and place:
        del _at(content, place[:-1])[place[-1]]
        return json.dumps(content), f"{_name(place)} removed"
    if kind == "add" and isinstance(_at(content, place), dict):
        place = (*place, "extra")
    marker = "@odd@"
    if place:
        _at(content, place[:-1])[place[-1]] = marker
    else:
        content = marker
    return json.dumps(content).replace(f'"{marker}"', odd), f"{_name(place)} = {odd[:40]}"


def _places(value: Any, place: tuple[Any, ...] = ()) -> Any:
    yield place
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield from _places(value[key], (*place, key))


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def _name(place: tuple[Any, ...]) -> str:
    return ".".join(map(str, place)) or "all of it"


def spoil_lines(rng: random.Random, path: Path) -> str:
    """Change a line of a log."""
    lines = path.read_text().splitlines()
    i, odd = rng.randrange(len(lines)), rng.choice(ODD_LINES)
    if rng.random() < 0.5:
        odd, _ = spoil_value(rng, json.loads(lines[i]))
    lines[i] = odd
    path.write_text("\n".join(lines) + "\n")
    return f"line {i} = {odd[:40]}"


def spoil_cells(rng: random.Random, path: Path) -> str:
    """Change an entry of a CSV file."""
    rows = [line.split(",") for line in path.read_text().splitlines()]
    i = rng.randrange(len(rows))
    j, odd = rng.randrange(len(rows[i])), rng.choice(ODD_CELLS)
    rows[i][j] = odd
    path.write_text("\n".join(map(",".join, rows)) + "\n")
    return f"row {i}, column {j} = {odd[:40]!r}"


def spoil_header(rng: random.Random, path: Path) -> str:
    """Change the header of a safetensors file, whose lengths stay right."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    about = json.loads(header["__metadata__"]["about"])
    if rng.random() < 0.7:
        # Files of version 0.1.0 have none, so that their other entries count.
        about.pop("sha256", None)
        header["__metadata__"]["about"] = json.dumps(about)
    if rng.random() < 0.5:
        text, description = spoil_value(rng, about)
        header["__metadata__"]["about"] = text
        new_header = json.dumps(header)
    elif rng.random() < 0.5:
        name = rng.choice([key for key in header if key != "__metadata__"])
        header[name]["dtype"] = rng.choice(
            ("F32", "I32", "U32", "F16", "BF16", "F64", "I64", "BOOL", "C64", "X")
        )
        new_header, description = json.dumps(header), f"{name} as {header[name]['dtype']}"
    else:
        new_header, description = spoil_value(rng, header)
    header_bytes = new_header.encode(errors="surrogatepass")
    path.write_bytes(struct.pack("<Q", len(header_bytes)) + header_bytes + content[8 + size :])
    return f"header: {description}"


def spoil_code(rng: random.Random, path: Path) -> str:
    """Put an odd line into Python code."""
    odd = rng.choice((
        "raise SystemExit", "raise SystemExit(3)", "return None", "1 / 0", "(" * 500, "x = 'é\udc80'",
        "import nothing_here",
        "def physics(grid): return 5", "def physics(): return 5", "physics = 5",
        "def physics(grid): return physics(grid)",
        "def physics(grid): return sapc.Pin.frame(99)", "def physics(grid): return sapc.Balance(lambda u: u)",
        "def physics(grid): return sapc.Constraint(lambda u: u.flatten(1) * float('nan'))",
        "def physics(grid): raise SystemExit",
        "def physics(grid): return sapc.Affine(grid.integral('u'), value='x')",
        "def physics(grid): return grid",
    ))  # fmt: skip
    lines = path.read_text().splitlines()
    at = rng.choice((0, len(lines)))
    lines.insert(at, odd)
    path.write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    return f"line {at}: {odd[:60]}"


BYTES: tuple[Damage, ...] = (flip_bits, flip_bits, truncate, splice, exchange, remove)
BY_SUFFIX: dict[str, tuple[Damage, ...]] = {
    ".json": (spoil_json,) * 8,
    ".jsonl": (spoil_lines,) * 4,
    ".csv": (spoil_cells,) * 6,
    ".safetensors": (spoil_header,) * 6,
    ".h5": (spoil_hdf5,) * 8,
    ".nc": (spoil_hdf5,) * 6,
    ".npz": (spoil_npz,) * 6,
    ".py": (spoil_code,) * 6,
}


def damage(rng: random.Random, path: Path) -> str:
    """Damage a file in one of the ways that fit it."""
    return rng.choice((*BYTES, *BY_SUFFIX.get(path.suffix, ())))(rng, path)
