"""`sapc tasks` and `sapc methods`: what there is."""

from __future__ import annotations

import json

from rich import box
from rich.markup import escape
from rich.table import Table

from ..methods import get_method, method_names
from ..tasks import get_task, task_names
from .app import app, out
from .arguments import AsJson


@app.command()
def tasks(as_json: AsJson = False) -> None:
    """List the tasks: equation, grid, what is pinned, the balance law, parameters.

    Example: [bold]sapc tasks --json | python -m json.tool[/bold]
    """
    rows = [get_task(name) for name in task_names()]
    if as_json:
        described = [
            {
                "name": t.name,
                "title": t.title,
                "equation": t.equation,
                "grid": t.grid.to_dict(),
                "pinned": t.pinned,
                "law": t.law,
                "parameters": dict(t.parameters),
                "sizes": t.sizes,
                "solver": t.solver,
            }
            for t in rows
        ]
        print(json.dumps(described, ensure_ascii=False))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for column in ("task", "", ""):
        table.add_column(column, overflow="fold")
    for t in rows:
        grid = " x ".join(map(str, t.grid.shape)) + f" ({', '.join(t.grid.names)})"
        parameters = "\n".join(t.parameters.values())
        labels = (
            ("equation", t.equation),
            ("grid", grid),
            ("pin", t.pinned),
            ("balance law", t.law),
            ("parameters", parameters),
        )
        for i, (label, text) in enumerate(labels):
            table.add_row(
                "" if i else f"[bold]{t.name}[/bold]", label, escape(text), end_section=label == "parameters"
            )
    out.print(table)


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the methods: whose weights they use, evaluations of the network per sample, what they satisfy exactly.

    Example: [bold]sapc methods[/bold]
    """
    rows = [get_method(name) for name in method_names()]
    if as_json:
        described = [
            {
                "name": m.name,
                "title": m.title,
                "trains": m.weights == m.name,
                "weights": m.weights,
                "evaluations": m.evaluations(100),
                "exact": m.exact,
                "reference": m.reference,
            }
            for m in rows
        ]
        print(json.dumps(described, ensure_ascii=False))
        return
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption="NFE: evaluations of the network per sample in 100 steps",
    )
    for column in ("method", "weights", "NFE", "exact", "reference"):
        table.add_column(column, justify="right" if column == "NFE" else "left", overflow="fold")
    for m in rows:
        weights = "own" if m.weights == m.name else f"of {m.weights}"
        exact = {"all": "yes", "none": "no"}.get(m.exact, m.exact)
        table.add_row(
            f"[bold]{m.name}[/bold]",
            weights,
            str(m.evaluations(100)),
            exact,
            escape(f"{m.title}. {m.reference}"),
        )
    out.print(table)
