"""Writing files so that nothing half-written ever bears its final name, and telling files apart."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import SapcError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside `path`: it takes its place when the block ends well, else it disappears."""
    path = Path(path)
    partial = None
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
        os.close(handle)
        partial = Path(name)
        yield partial
        _flush(partial)
        os.chmod(partial, 0o666 & ~_umask())
        os.replace(partial, path)
        partial = None
        _flush(path.parent)
    except (OSError, RuntimeError) as error:  # h5py turns a full disk into either
        raise SapcError(
            f"cannot write {path} ({first_line(error)}); "
            "choose a folder that exists, is writable and has room"
        ) from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


@contextmanager
def folder_for(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder that exists inside the block; what had to be created disappears if the block fails and left it empty."""
    folder = Path(folder)
    missing = [f for f in (folder, *folder.parents) if not os.path.exists(f)]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SapcError(
                f"cannot create the folder {folder} ({error.strerror}); choose one that can be written"
            ) from error
        yield folder
    except BaseException:
        for made in missing:
            with suppress(OSError):
                made.rmdir()
        raise


def sha256(path: str | os.PathLike[str]) -> str:
    """The digest of a file."""
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def first_line(error: BaseException) -> str:
    """What an error says, on one line that is not too long."""
    text = getattr(error, "strerror", None) or str(error)
    return (text or type(error).__name__).splitlines()[0][:300]
