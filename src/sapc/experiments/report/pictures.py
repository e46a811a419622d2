"""The pictures of `sapc demo`: solutions, noise, and noise on the manifold of every task; ensembles.

Signed fields have a diverging map, statistics a perceptually uniform one, differences one that is light at
zero, as paper is; colour-blind readers can tell all of them apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..._files import atomic_write, ensure_folder
from ...evaluation import metrics
from ...flow import source
from ...tasks import Task, get_task, task_names
from .figures.style import BLUE, MAP, STATISTIC, VERMILION, pyplot

DIFFERENCE = "magma_r"
# Standard deviations that the colours of noise span.
NOISE = 3.0
# A residual of exactly zero has no place on a logarithmic axis.
ZERO = 1e-18


# -- the projection at work --


@dataclass(frozen=True)
class Example:
    """Solutions of a task, and noise before and after projection onto their manifolds.

    Attributes:
        task: The task.
        solutions: Solutions `(n, *grid)`.
        noise: Draws of the source `(n, *grid)`.
        projected_noise: The same draws on the manifolds.
        residual_before: Mean |R_T| of the balance law over noise, per frame.
        residual_after: The same over projected noise.
    """

    task: Task
    solutions: Tensor
    noise: Tensor
    projected_noise: Tensor
    residual_before: Tensor
    residual_after: Tensor

    @property
    def limit(self) -> float:
        """Largest value of the colours of solutions."""
        return float(self.solutions.abs().max())


def run_projection(
    out: Path, size: int = 4, seed: int = 0, on_task: Callable[[str], None] = lambda name: None
) -> Iterator[dict[str, Any]]:
    """Project noise on every task, and write `out/<task>.png` and `out/overview.png`.

    Args:
        out: Folder of the pictures.
        size: Draws per task.
        seed: Seed of solutions and noise.
        on_task: Called with the name of a task before its work.

    Yields:
        One row per task as it is done: mean l2 norms of the residual, the distance moved, the time.
    """
    tasks = [get_task(name) for name in task_names()]
    for task in tasks:
        task.check("test0", size, seed)
    # Fail early if matplotlib is missing.
    pyplot()
    with ensure_folder(out):
        examples = []
        for task in tasks:
            on_task(task.name)
            example, row = _project(task, size, seed)
            draw_task(example, out / f"{task.name}.png")
            examples.append(example)
            yield row | {"picture": str(out / f"{task.name}.png")}
        draw_overview(examples, out / "overview.png")


def _project(task: Task, size: int, seed: int) -> tuple[Example, dict[str, Any]]:
    """Return the fields of one task before and after projection, and their numbers."""
    solutions = task.dataset("test0", size=size, seed=seed).fields.double()
    generator = torch.Generator().manual_seed(seed % 2**64)
    noise = source.sample(task.grid, size, generator=generator, dtype=torch.float64)
    H = task.manifold(solutions)
    start = time.perf_counter()
    projected_noise, report = H.solve(noise)
    seconds = time.perf_counter() - start
    row = {
        "task": task.name,
        "algorithm": report.algorithm,
        "grid": task.grid.shape,
        "local_before": metrics.ce_local(H, noise),
        "local_after": metrics.ce_local(H, projected_noise),
        "balance_before": metrics.ce_global(H, noise),
        "balance_after": metrics.ce_global(H, projected_noise),
        "moved": float(report.distance.mean()),
        "milliseconds": 1e3 * seconds / size,
    }
    residuals = (H.balance(u).abs().mean(0) for u in (noise, projected_noise))
    return Example(task, solutions, noise, projected_noise, *residuals), row


def draw_task(example: Example, path: Path) -> None:
    """Draw two solutions, noise, the same noise on the manifold, and the balance residual per frame."""
    task = example.task
    figure, axes = pyplot().subplots(1, 5, figsize=(18, 3.4), layout="constrained")
    panels = (
        ("a solution", example.solutions[0], example.limit),
        ("another, same condition", example.solutions[:2][-1], example.limit),
        ("noise from the source", example.noise[0], NOISE),
        ("the same noise on the manifold", example.projected_noise[0], NOISE),
    )
    for ax, (title, u, scale) in zip(axes, panels, strict=False):
        figure.colorbar(_draw_signed(ax, u, task, scale, title), ax=ax, shrink=0.85)
    times = task.grid.time.points[1:].numpy()
    curves = (
        (example.residual_before, VERMILION, "--", "noise"),
        (example.residual_after, BLUE, "-", "projected"),
    )
    for residual, colour, line, label in curves:
        axes[4].semilogy(times, residual.clamp(min=ZERO).numpy(), color=colour, linestyle=line, label=label)
    axes[4].set(xlabel="t", ylim=(ZERO / 2, None))
    axes[4].set_title("balance law: mean |residual|", fontsize=10)
    axes[4].legend(loc="center right")
    figure.suptitle(f"{task.title}:   {task.equation}", fontsize=12)
    _save(figure, path)


def draw_overview(examples: Sequence[Example], path: Path) -> None:
    """Draw all tasks in one picture: a column each, solution, noise, noise on the manifold."""
    size = (2.9 * len(examples), 7.6)
    figure, axes = pyplot().subplots(3, len(examples), figsize=size, layout="constrained", squeeze=False)
    for column, example in zip(axes.T, examples, strict=True):
        panels = (
            (example.solutions, example.limit, example.task.name),
            (example.noise, NOISE, ""),
            (example.projected_noise, NOISE, ""),
        )
        for ax, (u, scale, title) in zip(column, panels, strict=True):
            _draw_signed(ax, u[0], example.task, scale, title)
            ax.set(xlabel="", ylabel="", xticks=[], yticks=[])
        before, after = (
            float(residual.max()) for residual in (example.residual_before, example.residual_after)
        )
        column[2].set_xlabel(f"balance residual {before:.1g} → {after:.0e}", fontsize=9)
    for ax, label in zip(axes[:, 0], ("solution", "noise", "noise on the manifold"), strict=True):
        ax.set_ylabel(label, fontsize=11)
    _save(figure, path)


# -- ensembles --


def draw_ensembles(
    task: Task,
    truth: Tensor,
    generated: Mapping[str, Tensor],
    w2: Mapping[str, float],
    title: str,
    path: Path,
) -> None:
    """Draw pointwise mean (top) and standard deviation (bottom) of solutions and methods, and differences.

    Within a row the statistics share one colour scale, and the differences another.

    Args:
        task: The task.
        truth: Solutions `(n, *grid)`.
        generated: Samples of every method, by its name.
        w2: W2 of every method for the titles, and the sampling floor as `solutions`.
        title: Title of the picture.
        path: The file, a PNG.
    """
    count = 1 + len(generated)
    size = (2.2 * (2 * count - 1), 4.7)
    figure, axes = pyplot().subplots(2, 2 * count - 1, figsize=size, layout="constrained")
    for row, label in zip(axes, ("mean", "standard deviation"), strict=True):
        fields = (u.double() for u in (truth, *generated.values()))
        statistics = [u.mean(0) if label == "mean" else u.std(0) for u in fields]
        differences = [(u - statistics[0]).abs() for u in statistics[1:]]
        _draw_row(figure, row[:count], statistics, task, STATISTIC, float(torch.stack(statistics).min()))
        _draw_row(figure, row[count:], differences, task, DIFFERENCE, 0.0)
        row[0].set_ylabel(f"{label}\nx")
    titles = ["solutions\n" + (f"floor of $W_2$: {w2['solutions']:.2g}" if "solutions" in w2 else "")]
    titles += [f"{name}\n$W_2$: {w2[name]:.2g}" for name in generated]
    titles += [f"|{name} − solutions|" for name in generated]
    for ax, heading in zip(axes[0], titles, strict=True):
        ax.set_title(heading, fontsize=11)
        ax.set_xlabel("")
    figure.suptitle(title, fontsize=12)
    _save(figure, path)


def _draw_row(figure: Any, axes: Any, fields: list[Tensor], task: Task, colours: str, low: float) -> None:
    """Draw fields beside each other on one scale, with its bar at the end."""
    high = max(float(torch.stack(fields).max()), low + 1e-12)
    for ax, u in zip(axes, fields, strict=True):
        image = _draw_field(ax, u, task, cmap=colours, vmin=low, vmax=high)
        ax.set_ylabel("")
        ax.tick_params(labelleft=ax is axes[0] and colours == STATISTIC)
    figure.colorbar(image, ax=list(axes), aspect=25, pad=0.02)


# -- fields --


def _draw_signed(axes: Any, u: Tensor, task: Task, limit: float, title: str) -> Any:
    axes.set_title(title, fontsize=10)
    return _draw_field(axes, u, task, cmap=MAP, vmin=-limit, vmax=limit)


def _draw_field(axes: Any, u: Tensor, task: Task, **colours: Any) -> Any:
    """Draw one field as an image: space against time, or with two spatial axes the frames at four times."""
    if u.ndim == 2:
        x, t = task.grid.axes
        axes.set(xlabel="t", ylabel="x")
        extent = (t.start, t.stop, x.start, x.stop)
        return axes.imshow(u.numpy(), origin="lower", aspect="auto", extent=extent, **colours)
    frames = torch.linspace(0, u.shape[-1] - 1, 4).round().long()
    # Read like text: first frame top left, last one bottom right; x to the right and y up within each.
    first, second, third, last = (u[..., i].T.flip(0) for i in frames)
    tiles = torch.cat((torch.cat((first, second), 1), torch.cat((third, last), 1)))
    image = axes.imshow(tiles.numpy(), aspect="equal", **colours)
    axes.axhline(u.shape[1] - 0.5, color="black", linewidth=0.8)
    axes.axvline(u.shape[0] - 0.5, color="black", linewidth=0.8)
    times = ", ".join(f"t={float(task.grid.time.points[i]):.3g}" for i in frames)
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(f"frames {times}", fontsize=8)
    return image


def _save(figure: Any, path: Path) -> None:
    """Write the picture whole or not at all."""
    try:
        with atomic_write(path) as partial:
            figure.savefig(partial, dpi=110, format="png")
    finally:
        pyplot().close(figure)
