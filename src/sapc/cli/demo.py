"""`sapc demo`: FFM and SAPC side by side, from samples to a picture; or the projection alone on every task."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from ..errors import SapcError
from .app import Stopped, app, err, out
from .arguments import AsJson, Device
from .bars import TrainingBar, stages_bar

if TYPE_CHECKING:
    from ..experiments.report.demo import Demo
    from ..experiments.report.projected import Row


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for run folders and pictures.")] = Path(
        "demo"
    ),
    task: Annotated[str | None, typer.Option(help="A task name. \\[heat]")] = None,
    split: Annotated[str | None, typer.Option("--set", help="The test set. \\[test1]")] = None,
    samples: Annotated[int | None, typer.Option(help="Fields to sample with each method. \\[64]")] = None,
    steps: Annotated[int | None, typer.Option(help="Sampling steps. \\[25]")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Train both first, by preset small or tiny, instead of taking the models that come with the package."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise, and with --preset of data and weights.")] = 0,
    device: Device = "auto",
    projection: Annotated[
        bool,
        typer.Option(
            "--projection", help="Train nothing: put noise on the manifolds of every task and draw it."
        ),
    ] = False,
    size: Annotated[
        int | None, typer.Option(help="With --projection, which it implies: draws per task. \\[4]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sample a test set of Heat with FFM and with SAPC, score both and draw them beside the solutions.

    The models come with the package, unless --preset says to train them: then what is trained already is used, and after an
    interruption the same command continues.

    Example: [bold]sapc demo --out demo[/bold], [bold]sapc demo --preset small[/bold], or [bold]sapc demo --projection --out pictures[/bold]
    """
    wanted = {"task": task, "split": split, "samples": samples, "steps": steps, "preset": preset}
    given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if projection or size is not None:
        if given:
            option = "set" if "split" in given else next(iter(given))
            raise SapcError(f"--{option} has no meaning with --projection or --size; leave one of them out")
        _projection(folder, 4 if size is None else size, seed, as_json)
        return
    from ..experiments.report.demo import Demo

    _compare(Demo(out=folder, seed=seed, device=device, **given), as_json)


# -- two methods --


def _compare(plan: Demo, as_json: bool) -> None:
    from ..experiments.report.demo import METHODS

    plan.check()
    try:
        for method in METHODS if plan.preset is not None else ():
            _train(plan, method, as_json)
        with stages_bar("starting") as bar:
            result = plan.compare(bar)
    except KeyboardInterrupt as interrupt:
        again = "stopped; what is trained is kept, and the same command continues from there"
        raise Stopped(str(interrupt) or again) from interrupt
    if as_json:
        print(json.dumps(result))
        return
    out.print(comparison_table(result))
    _print_rest(result)


def _train(plan: Demo, method: str, as_json: bool) -> None:
    run, folder = plan.run(method), plan.folder(method)
    grid = " x ".join(map(str, run.grid))
    verb = "continuing" if folder.checkpoint.is_file() else "training"
    text = f"{verb} {method} on {run.task}, {grid} points, {run.steps} steps in {folder.path}"
    if folder.trained and not as_json:
        print(f"already trained: {folder.path}", flush=True)
    with TrainingBar(f"{run.task} {method}", "" if as_json else text) as bar:
        plan.train(method, progress=bar, solving=bar.solving)


def comparison_table(result: dict[str, Any]) -> Table:
    """Metrics by method, with the sampling floor and how many times smaller SAPC's are."""
    ffm, sapc = (result["methods"][m]["metrics"] for m in ("ffm", "sapc"))
    table = Table(
        title=f"{result['task']}, {result['set']}: {result['samples']} samples in {result['steps']} steps",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 2, 0, 0),
    )
    table.add_column("metric", no_wrap=True)
    for column in ("sampling floor", "FFM", "SAPC", "FFM / SAPC"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, factor in result["factor"].items():
        floor = result["floor"].get(name)
        table.add_row(
            name,
            "" if floor is None else f"{floor:.2e}",
            f"{ffm[name]:.2e}",
            f"{sapc[name]:.2e}" if sapc[name] else "0",
            "" if factor is None else f"{factor:.3g}" if factor < 1e4 else f"{factor:.0e}",
        )
    return table


def _print_rest(result: dict[str, Any]) -> None:
    methods = {m.upper(): about for m, about in result["methods"].items()}
    if result["preset"] is None:
        print(
            f"models: {', '.join(about['folder'] for about in methods.values())}, which come with the package"
        )
    for what in ("training", "sampling") if result["preset"] is not None else ("sampling",):
        times = ", ".join(f"{name} {about[f'{what}_seconds']:.3g} s" for name, about in methods.items())
        print(f"{what}: {times}")
    print(f"picture: {result['picture']}")
    print(f"next: sapc sample {result['methods']['sapc']['folder']} --set {result['set']}")


# -- the projection alone --


def _projection(folder: Path, size: int, seed: int, as_json: bool) -> None:
    from ..experiments.report.projected import run_projection

    with err.status("starting") as status:
        show = lambda name: status.update(f"{name}: solving, projecting, drawing")
        rows = list(run_projection(folder, size, seed, show))
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    out.print(residual_table(rows))
    print(f"pictures: {folder / 'overview.png'} and one per task")


def residual_table(rows: list[Row]) -> Table:
    """The table of the projection; every cell is whole at 80 columns."""
    table = Table(
        title="Noise before → after projection: mean l2 norm of the residual",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("task", no_wrap=True)
    table.add_column("projection", overflow="fold")
    table.add_column("pinned\ncondition", justify="right", no_wrap=True)
    table.add_column("balance\nlaw", justify="right", no_wrap=True)
    table.add_column("ms\neach", justify="right", no_wrap=True)
    for r in rows:
        table.add_row(
            r.task,
            r.algorithm.replace("Gauss-Newton", "GN"),
            f"{r.local_before:.1e} → {r.local_after:.0e}",
            f"{r.balance_before:.1e} → {r.balance_after:.0e}",
            f"{r.milliseconds:.0f}",
        )
    return table
