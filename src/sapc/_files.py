"""Write files so that nothing half-written ever bears its final name, and read JSON that may be anything.

What is written goes into a `.partial` file or folder beside its target and is renamed at the end. Its name
says who writes:

    .NAME.MACHINE-PID-RANDOM.partial

`MACHINE` is a digest of the host, its boot and the namespace of its process numbers. So the remains of a
process that was killed can be told from what another one is writing at this moment: they are removed at the
next write into the same folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from .errors import SapcError

PARTIAL = re.compile(r"\..*\.(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-\w+\.partial", re.DOTALL)
STALE_SECONDS = 24 * 3600.0
"""Seconds after which what another machine was writing is taken for remains."""
MAX_DEPTH = 64
"""Depth of nested lists and records in JSON."""
NAME_CHARACTERS = 40
"""Characters of a target's name in that of its partial file: a long name must not become too long."""


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary file that takes the place of `path` when the block ends well, else disappears."""
    path = Path(path)
    partial = None
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        remove_remains(path.parent)
        # Its name is known before it exists: an interrupt while it is created must not leave it.
        partial = _partial_path(path)
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        yield partial
        _flush(partial)
        os.chmod(partial, 0o666 & ~_umask())
        os.replace(partial, path)
        partial = None
        _flush(path.parent)
    # h5py turns a full disk into an OSError or a RuntimeError.
    except (OSError, RuntimeError, UnicodeEncodeError) as error:
        raise _write_error(path, error) from error
    finally:
        if partial is not None:
            # The folder may be none, or be gone.
            with suppress(OSError):
                partial.unlink()


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary folder, which takes the place of `path` if that does not exist or is empty."""
    path = Path(os.path.abspath(path))
    with ensure_folder(path.parent):
        partial = None
        try:
            remove_remains(path.parent)
            partial = _partial_path(path)
            partial.mkdir(mode=0o700)
            yield partial
            os.chmod(partial, 0o777 & ~_umask())
            _flush(partial)
            os.rename(partial, path)
            partial = None
            _flush(path.parent)
        except OSError as error:
            raise _write_error(path, error) from error
        finally:
            if partial is not None:
                shutil.rmtree(partial, ignore_errors=True)


def remove_remains(folder: str | os.PathLike[str], is_locked: bool = False) -> None:
    """Remove from a folder what killed processes have left half-written; what is being written stays.

    Args:
        folder: The folder.
        is_locked: The caller has locked it, so what does not say who writes it, as in version 0.1.0, goes
            as well.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in list(entries):
            if not (entry.name.startswith(".") and entry.name.endswith(".partial")):
                continue
            match = PARTIAL.fullmatch(entry.name)
            if _is_stale(entry, match) if match else is_locked:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path)
                    else:
                        os.unlink(entry.path)


def _is_stale(entry: os.DirEntry[str], match: re.Match[str]) -> bool:
    """Tell whether its writer has ended; of another machine's processes only time can tell."""
    if match["machine"] != _machine() or os.name != "posix":
        with suppress(OSError):
            return time.time() - entry.stat(follow_symlinks=False).st_mtime > STALE_SECONDS
        return False
    try:
        os.kill(int(match["process"]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        # It lives, and is somebody else's.
        return False
    return False


def _partial_path(path: Path) -> Path:
    """Return a new name beside `path` that says who writes."""
    return path.parent / (
        f".{path.name[:NAME_CHARACTERS]}.{_machine()}-{os.getpid()}-{secrets.token_hex(8)}.partial"
    )


@cache
def _machine() -> str:
    """Return a digest of where a process number means one process."""
    parts = [socket.gethostname()]
    # Where there is no /proc, the host alone has to do.
    with suppress(OSError):
        parts += [os.readlink("/proc/self/ns/pid"), Path("/proc/sys/kernel/random/boot_id").read_text()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


@contextmanager
def ensure_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Create a folder for the block; what was created disappears if the block fails and left it empty."""
    folder = Path(folder)
    new_folders = [f for f in (folder, *folder.parents) if not os.path.exists(f)]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SapcError(
                f"cannot create the folder {folder} ({error.strerror}); choose one that can be written"
            ) from error
        yield folder
    except BaseException:
        for new in new_folders:
            with suppress(OSError):
                new.rmdir()
        raise


# -- JSON --


def parse_json(text: str | bytes) -> Any:
    """Return what a JSON text holds.

    Raises:
        SapcError: It cannot be read; the message goes on after the name of its file.
    """
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        content = json.loads(text)
        _check_depth(content)
        # Half of a pair of surrogates is no character: nobody could write it again.
        if "\\ud" in text.lower():
            json.dumps(content, ensure_ascii=False).encode()
    except RecursionError as error:
        raise SapcError(f"cannot be read as JSON (nested more than {MAX_DEPTH} deep)") from error
    # No JSON, no UTF-8, or a number of thousands of digits.
    except ValueError as error:
        raise SapcError(f"cannot be read as JSON ({first_line(error)})") from error
    return content


def _check_depth(content: Any) -> None:
    """Refuse what can just be read, but not be copied or written again."""
    level = [content]
    for _ in range(MAX_DEPTH):
        parts = (list(x.values()) if isinstance(x, dict) else x for x in level if isinstance(x, dict | list))
        if not (level := [value for part in parts for value in part]):
            return
    raise RecursionError


def read_json(path: Path, label: str = "a JSON record") -> dict[str, Any]:
    """Return the record in a JSON file, which messages call `label`.

    Raises:
        SapcError: The file cannot be read, or holds something else.
    """
    try:
        content = parse_json(path.read_bytes())
    except OSError as error:
        raise SapcError(f"{path} cannot be read ({first_line(error)})") from error
    except SapcError as error:
        raise SapcError(f"{path} {error}; it is damaged or of another kind") from error
    if not isinstance(content, dict):
        raise SapcError(f"{path}: this is not {label}, but {content!r:.40}; it is damaged or of another kind")
    return content


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, atomically."""
    with atomic_write(path) as partial:
        partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


# -- helpers --


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return a path without links; one that leads in a circle stays as it is, and is no file."""
    return Path(os.path.realpath(path))


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the digest of a file."""
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _write_error(path: Path, error: BaseException) -> SapcError:
    return SapcError(
        f"cannot write {path} ({first_line(error)}); choose a folder that exists, is writable and has room"
    )


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
    """Return what an error says, on one line that is not too long."""
    text = getattr(error, "strerror", None) or str(error).strip()
    return (text or type(error).__name__).splitlines()[0][:300]


def line_of(error: BaseException, file: str | os.PathLike[str]) -> int | None:
    """Return the line of a Python file at which it failed, if the error came from there."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == str(file)), None)
