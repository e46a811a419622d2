"""Messages in the words of the command line: `time='last'` in Python is `--time last` here."""

from __future__ import annotations

import re

# Options by the arguments of the library that mean the same; those with a value come before the bare names.
OPTIONS = (
    (r"\btime='(\w+)'", r"--time \1"),
    (r"\bsamples='(\w+)'", r"--samples-dim \1"),
    (r"\bchannels=\('(\w+)',\)", r"--channels \1"),
    (r"\bsteady=True\b", "--steady"),
    (r"\bsteady=False\b", "--unsteady"),
    (r"\bsamples=(?=\W|$)", "--samples-dim"),
    (r"\b(time|channels|periodic|cells)=(?=\W|$)", r"--\1"),
    (r"\bgive grid= as well", "give --grid as well"),
    (r"\bleave out grid and options", "leave out --grid and --option"),
    (r"; read with dtype=torch\.float64", "; write them in larger units"),
    (r", whose name is known after sapc\.register_task\(task\)", ""),
    (r",( or)? in Python (as )?(condition=fields|\w[\w.]*\([^()]*\))", ""),
)


def as_options(text: str) -> str:
    """Replace the library's arguments in a message by the options that say the same.

    Args:
        text: A message of the library.

    Returns:
        The message for the command line.
    """
    for argument, option in OPTIONS:
        text = re.sub(argument, option, text)
    return text
