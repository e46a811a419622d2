"""The command line: parse, call, print. A bad call ends with exit code 2 and one sentence; `--debug` shows the traceback.

One file per command; the help lists them in the order of the imports here.
"""

from . import lists  # isort: skip
from . import data  # isort: skip
from . import demo  # isort: skip
from .app import main

__all__ = ["data", "demo", "lists", "main"]
