"""Sphinx settings."""

import re

import sapc

project = "sapc"
author = "The sapc developers"
copyright = "2026, The sapc developers"
version = release = sapc.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]  # myst_nb brings myst_parser along
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]

# Notebooks are stored without outputs and run whenever the pages are built, by the Python that builds them; an error ends the build.
nb_execution_mode = "force"
nb_execution_timeout = 300  # seconds a cell
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True

html_theme = "furo"
html_title = f"sapc {release}"

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # shapes are named in the docstrings
autodoc_default_options = {"members": True}

_SECTIONS = {"Args:": "Arguments", "Returns:": "Returns", "Raises:": "Raises"}
_TABLE_ROW = re.compile(r"\S+(?: \S+)* {2,}\S")


def _docstring(app, what, name, obj, options, lines):
    """Docstrings are plain text: indented blocks and aligned rows stay as they are, backticks are code.

    What follows Args:, Returns: or Raises: is a list.
    """
    out, literal, section = [], False, False
    for line in lines:
        if line in _SECTIONS:
            out += ["", f"**{_SECTIONS[line]}**", ""]
            literal, section = False, True
            continue
        if section and (line.startswith("    ") or not line):
            # A line that is indented further goes on with the entry above it.
            entry = line.strip()
            out.append(
                "  " + _prose(entry) if line.startswith("        ") else f"- {_prose(entry)}" if entry else ""
            )
            continue
        section = False
        indented = line.startswith("    ") or bool(_TABLE_ROW.match(line))
        if indented and not literal and (not out or not out[-1]):
            out += ["::", ""]
            literal = True
        elif line and not indented:
            literal = False
        out.append(f"    {line}" if literal and line else _prose(line))
    lines[:] = out


def _prose(line):
    parts = line.split("`")
    parts[::2] = [re.sub(r"([|_\\])", r"\\\1", part) for part in parts[::2]]
    return "``".join(parts)


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _docstring)
