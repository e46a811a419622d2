"""Figures of what happens along sampling runs: residuals and deviation against flow time, and the excess of kinetic energy.

Time runs as sampling does, from the source at t = 1 to the sample at t = 0. What is zero has no place on a logarithmic axis: residuals are
drawn at a floor then, deviations (zero at both ends, by definition) not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..data import short_label
from . import style
from .style import GREY, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

FLOOR = 1e-18
MARKERS = 8  # along a curve

Trajectory = Mapping[str, Any]
"""As `Trajectory.to_dict` of `sapc.evaluation.trajectory` makes it: None stands for what is not finite."""

PANELS = (
    ("endpoint_residual", "residual of the estimate $|R(\\hat v_0)|$"),
    ("state_residual", "residual of the state  $|R(v_t)|$"),
    ("deviation", "deviation from the straight line"),
)


def trajectories(found: Mapping[str, Trajectory]) -> Drawing:
    """Three panels over flow time and one with the excess energies, by method."""
    figure = style.new(8.0, 6.8, layout="constrained")
    grid = figure.subplots(2, 2)
    for ax, (name, title) in zip(grid.flat, PANELS, strict=False):
        for i, (method, trajectory) in enumerate(found.items()):
            _curve(ax, method, trajectory, name, i)
        ax.set(yscale="log", xlim=(1.02, -0.02), xlabel="flow time t, source to sample")
        ax.set_title(title, loc="left")
        ax.grid(True, which="major")
    _energies(grid[1, 1], found)
    handles, names = grid[0, 0].get_legend_handles_labels()
    columns = min(6, len(names)) or 1
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.4)
    return figure


def _curve(axes: Any, method: str, trajectory: Trajectory, name: str, shift: int) -> None:
    times, values = curve(trajectory, name)
    like = look(method)
    every = max(1, len(times) // MARKERS)
    axes.plot(
        times, values, label=short_label(method), color=like.colour, linestyle=like.line, linewidth=like.width,
        marker=like.marker, markersize=5.5, markevery=(shift % every, every), markeredgewidth=0.8,
        zorder=3 if method == "sapc" else 2,
    )  # fmt: skip


def curve(trajectory: Trajectory, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Times and values as they are drawn; NaN leaves a gap."""
    values = np.array([np.nan if v is None else float(v) for v in trajectory[name]])
    times = np.array(trajectory["times"][: len(values)], dtype=float)
    if name == "deviation":
        values[[0, -1]] = np.nan
        return times, np.where(values > 0, values, np.nan)
    return times, np.where(np.isnan(values), np.nan, np.maximum(values, FLOOR))


def _energies(axes: Any, found: Mapping[str, Trajectory]) -> None:
    """A row per method, the first one at the top."""
    names = list(found)
    values = [found[name].get("excess_energy") for name in names]
    positive = [v for v in values if v]
    least = min(positive, default=1.0) / 3
    for row, (name, value) in enumerate(zip(names, values, strict=True)):
        like = look(name)
        if not value:
            words = "not finite" if value is None else "0"
            axes.annotate(
                words, (0, row), (4, 0), ("axes fraction", "data"), "offset points", va="center", color=GREY
            )
            continue
        axes.plot([least, value], [row, row], color=like.colour, linewidth=like.width, linestyle=like.line)
        axes.plot([value], [row], color=like.colour, marker=like.marker, markersize=7)
    axes.set(xscale="log", xlim=(least, 4 * max(positive, default=1.0)), ylim=(len(names) - 0.5, -0.5))
    axes.set_yticks(range(len(names)), [short_label(name) for name in names])
    axes.tick_params(axis="y", length=0)
    axes.grid(True, axis="x")
    axes.set_title("excess kinetic energy of the path", loc="left")


def has_zero(found: Sequence[Trajectory]) -> bool:
    """Whether a residual is drawn at the floor."""
    parts = ("endpoint_residual", "state_residual")
    return any(v is not None and v < FLOOR for one in found for part in parts for v in one[part])
