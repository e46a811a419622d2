"""The tidy table as a file, CSV or Parquet, and back; numbers come back as they were."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from ..._files import first_line, replacing
from ...errors import SapcError
from .kinds import Row

COLUMNS = tuple(f.name for f in fields(Row))
SUFFIXES = (".csv", ".parquet")


def write_rows(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Write the table, atomically; the kind of file is that of its suffix."""
    path = _known(path)
    if path.suffix == ".parquet":
        pyarrow, parquet = _pyarrow()
        table = pyarrow.table(
            {name: [getattr(row, name) for row in rows] for name in COLUMNS}, schema=_schema(pyarrow)
        )
        with replacing(path) as partial:
            parquet.write_table(table, partial)
        return
    with replacing(path) as partial, open(partial, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(astuple(row) for row in rows)


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """The table that `write_rows` wrote."""
    path = _known(path)
    if not path.is_file():
        raise SapcError(f"there is no file {path}; write one with `write_rows`")
    read = _read_parquet if path.suffix == ".parquet" else _read_csv
    try:
        return [
            Row(str(task), str(method), int(seed), str(split), str(metric), float(value))
            for task, method, seed, split, metric, value in read(path)
        ]
    except SapcError:
        raise
    except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
        raise SapcError(
            f"{path} is not a table of results ({first_line(error)}); write one with `write_rows`"
        ) from error


def _read_csv(path: Path) -> list[Any]:
    with open(path, newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    if not lines or tuple(lines[0]) != COLUMNS:
        raise ValueError(f"its columns are not {', '.join(COLUMNS)}")
    return lines[1:]


def _read_parquet(path: Path) -> list[Any]:
    _, parquet = _pyarrow()
    columns = parquet.read_table(path, columns=list(COLUMNS)).to_pydict()
    return list(zip(*(columns[name] for name in COLUMNS), strict=True))


def _known(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise SapcError(
            f"{path} is neither CSV nor Parquet; give a name that ends in {' or '.join(SUFFIXES)}"
        )
    return path


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise SapcError(
            "Parquet needs pyarrow; install it with: pip install 'sapc[report]', or use a name that ends in .csv"
        ) from error
    return pyarrow, pyarrow.parquet


def _schema(pyarrow: Any) -> Any:
    kinds = {"seed": pyarrow.int64(), "value": pyarrow.float64()}
    return pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in COLUMNS])
