"""Sphinx settings."""

import re

import sapc

project = "sapc"
author = "The sapc developers"
copyright = "2026, The sapc developers"
version = release = sapc.__version__

# myst_nb brings myst_parser along.
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]

# Notebooks are stored without outputs and run whenever the pages are built, by the Python that builds them.
nb_execution_mode = "force"
# Seconds for a cell.
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True

html_theme = "furo"
html_title = f"sapc {release}"
html_static_path = ["_static"]
html_css_files = ["sapc.css"]

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 60
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# The signature of a class has the types of its fields.
napoleon_attr_annotations = False
# Several modules have a type `Progress`; a signature that names it is not a link.
suppress_warnings = ["ref.python"]
# `Pin` in a docstring is code, and a link where the name is documented in the same module.
default_role = "py:obj"

_SECTIONS = {
    "Args",
    "Attributes",
    "Returns",
    "Raises",
    "Yields",
    "Example",
    "Examples",
    "Note",
    "Notes",
}
_TABLE_ROW = re.compile(r"\S+(?: \S+)* {2,}\S")


def _escape_docstring(app, what, name, obj, options, lines):
    """Prepare a docstring for napoleon: prose may hold any sign, formulas and aligned rows stay as they are."""
    out, is_literal, in_section = [], False, False
    for line in lines:
        if line.removesuffix(":") in _SECTIONS and line.endswith(":"):
            out.append(line)
            is_literal, in_section = False, True
            continue
        if line and not line.startswith("    "):
            in_section = False
        is_formula = not in_section and (
            line.startswith("    ") or bool(_TABLE_ROW.match(line))
        )
        if is_formula and not is_literal and (not out or not out[-1]):
            out += ["::", ""]
            is_literal = True
        elif line and not is_formula:
            if is_literal and out[-1]:
                out.append("")
            is_literal = False
        out.append(f"    {line}" if is_literal and line else _escape(line))
    lines[:] = out


def _escape(line):
    """Escape what reStructuredText would read as markup, outside of backticks."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"([|_\\*])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _skip(app, what, name, obj, skip, options):
    """Leave out old names and, on the page of modules, what is documented as `sapc.NAME`."""
    is_public = any(obj is getattr(sapc, public, None) for public in sapc.__all__)
    is_old = isinstance(obj, property) and (obj.__doc__ or "").startswith("Old name of")
    return True if is_old or (what == "module" and is_public) else None


def _shorten_signature(app, what, name, obj, options, signature, annotation):
    """Write the default of a field that is made anew as three dots, which can be parsed."""
    return (signature or "").replace("<factory>", "...") or None, annotation


def _mark_options(app, pagename, templatename, context, doctree):
    """Mark the options of commands, which the style sheet does not break at their hyphens."""
    command = re.compile(r'<div class="highlight-sh notranslate">.*?</div>', re.DOTALL)
    marked = r'<span class="option">\1</span>'
    mark = lambda match: re.sub(r"(?<=\s)(--?[a-z][\w-]*)", marked, match[0])
    body = command.sub(mark, context.get("body", ""))
    context["body"] = re.sub(r'(?<=<span class="pre)(">--?[a-z])', r" option\1", body)


def setup(app):
    """Connect the hooks; Sphinx calls this."""
    # Before napoleon, whose priority is 500.
    app.connect("autodoc-process-docstring", _escape_docstring, priority=400)
    app.connect("autodoc-process-signature", _shorten_signature)
    app.connect("autodoc-skip-member", _skip)
    app.connect("html-page-context", _mark_options)
