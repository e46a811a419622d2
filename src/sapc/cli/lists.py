"""`sapc tasks` and `sapc methods`: lists of both."""

from __future__ import annotations

import json
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from ..methods import SOURCES, Method, get_method, is_extension, is_user_defined, method_names
from ..models.model import DEFAULT_STEPS
from ..tasks import get_task, task_names
from .app import app, out
from .options import AsJson

CAPTION = """kind: trains its own weights, or samples zero-shot with those of another
NFE: evaluations of the network per sample, as published; {steps} by sapc sample for {names}
exact: where the residual vanishes by construction
titles and BibTeX: sapc cite --method NAME"""
EXACT = {"all": "everywhere", "affine": "affine laws", "none": "nowhere"}


@app.command()
def tasks(as_json: AsJson = False) -> None:
    """List the tasks: equation, grid, what is pinned, the balance law, parameters.

    Example: [bold]sapc tasks --json | python -m json.tool[/bold]
    """
    rows = [get_task(name) for name in task_names()]
    if as_json:
        names = ("name", "title", "equation", "grid", "pinned", "law", "parameters", "sizes", "solver")
        descriptions = [
            {name: getattr(t, name) for name in names}
            | {"grid": t.grid.to_dict(), "parameters": dict(t.parameters)}
            | {"symmetries": [symmetry.text for symmetry in t.find_symmetries()]}
            for t in rows
        ]
        print(json.dumps(descriptions, ensure_ascii=False))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for column in ("task", "", ""):
        table.add_column(column, overflow="fold")
    for t in rows:
        about = {
            "equation": t.equation,
            "grid": " x ".join(map(str, t.grid.shape)) + f" ({', '.join(t.grid.names)})",
            "pin": t.pinned,
            "balance law": t.law,
            "symmetries": "\n".join(symmetry.text for symmetry in t.find_symmetries()) or "none",
            "parameters": "\n".join(t.parameters.values()),
        }
        for label, text in about.items():
            name = f"[bold]{t.name}[/bold]" if label == "equation" else ""
            table.add_row(name, label, escape(text), end_section=label == "parameters")
    out.print(table)


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the methods: what they train, evaluations per sample, what they satisfy exactly, references.

    Example: [bold]sapc methods[/bold], with one of your own [bold]sapc --plugin my_method.py methods[/bold]
    """
    rows = [get_method(name) for name in method_names(variants=True)]
    if as_json:
        print(json.dumps([_describe(m) for m in rows], ensure_ascii=False))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=_caption(rows), caption_justify="left")
    for column in ("method", "kind", "NFE", "exact", "what, and where from"):
        table.add_column(column, justify="right" if column == "NFE" else "left", overflow="fold")
    for m in rows:
        kind = "training" if m.trains else f"zero-shot ({m.weights})"
        references = [m.reference.short] if m.reference else []
        origins = [f"Own method, from {SOURCES[m.name]}"] if is_user_defined(m.name) else []
        origins += ["Beyond the paper."] if is_extension(m.name) else []
        origin = " ".join((f"{m.title}.", *references, *origins))
        table.add_row(f"[bold]{m.name}[/bold]", kind, str(m.evaluations()), EXACT[m.exact], escape(origin))
    out.print(table)


def _caption(rows: list[Method]) -> str:
    """Explain the columns."""
    names = [m.name for m in rows if m.accepts_sampler]
    return CAPTION.format(steps=DEFAULT_STEPS, names=" and ".join((", ".join(names[:-1]), names[-1])))


def _describe(m: Method) -> dict[str, Any]:
    return {
        "name": m.name,
        "title": m.title,
        "kind": "training" if m.trains else "zero-shot",
        "weights": m.weights,
        "steps": m.steps,
        "evaluations": m.evaluations(),
        "accepts_sampler": m.accepts_sampler,
        "exact": m.exact,
        "batch_independent": not m.couples_batch,
        "variant_of": m.variant_of or None,
        "beyond_paper": is_extension(m.name),
        "reference": m.reference and m.reference.text,
        "citation": m.reference and m.reference.key,
        "source": SOURCES.get(m.name),
    }
