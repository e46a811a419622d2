"""The first that is imported: while the command line imports what takes seconds, Ctrl-C ends it with one line instead of a traceback.

Nothing has been begun then, so the process ends at once: an exception could be caught by whatever is being imported.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

INTERRUPTED = 130  # exit code


def is_command_line() -> bool:
    """Whether this process was started as `sapc` or as `python -m sapc`, and not by another program that imports the package."""
    started = sys.orig_argv[
        -len(sys.argv) :
    ]  # the last ones are the arguments, the first of them the program
    return bool(started) and Path(started[0]).stem in ("sapc", "-msapc")


def _end(number: int, frame: Any) -> None:
    os.write(2, b"sapc: interrupted; nothing was begun\n")
    os._exit(INTERRUPTED)


def end_quietly() -> None:
    """From now on Ctrl-C ends this process with one line, unless someone has chosen already what it does."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def listen_again() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_interrupts() -> None:
    """From now on the command line does not hear Ctrl-C: its command has ended, and only the interpreter is still at work."""
    if is_command_line():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if is_command_line():
    end_quietly()
