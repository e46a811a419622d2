"""What the command line decides before it imports what takes seconds; this module is imported first.

**Ctrl-C** ends it with one line instead of a traceback. Nothing has been begun then, so the process ends at
once: an exception could be caught by whatever is being imported.

**Threads** of OpenMP soon sleep while they wait for each other. This is read once, when torch is imported.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

EXIT_INTERRUPTED = 130
SPINS = 1000


def is_command_line() -> bool:
    """Tell whether this process was started as `sapc` or as `python -m sapc`, not by another program."""
    # The last ones are the arguments, the first of them the program.
    arguments = sys.orig_argv[-len(sys.argv) :]
    return bool(arguments) and Path(arguments[0]).stem in ("sapc", "-msapc")


def _end(number: int, frame: Any) -> None:
    os.write(2, b"sapc: interrupted; nothing was begun\n")
    os._exit(EXIT_INTERRUPTED)


def end_on_interrupt() -> None:
    """Let Ctrl-C end this process with one line, unless someone has already chosen what it does."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def restore_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_interrupts() -> None:
    """Let the command line ignore Ctrl-C: its command has ended, only the interpreter still works."""
    if is_command_line():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def let_threads_sleep() -> None:
    """Let waiting threads of OpenMP sleep soon, in this process and those it starts, unless the user has chosen.

    By default they wait in a loop for a millisecond or more. Where other programs want the same cores, a thread
    then waits for one that is not running, in every single operation: a projection of a millisecond took a
    hundred. Threads that sleep at once take half as long again on a machine with nothing else to do. SPINS turns
    of the loop cost little on either.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
        # The policy is for other libraries than GNU's.
        os.environ |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": str(SPINS)}


if is_command_line():
    end_on_interrupt()
    let_threads_sleep()
