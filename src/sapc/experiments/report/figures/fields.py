"""Figures of fields: pointwise moments of samples and solutions, and examples of every test set.

Fields over x and t are images, space upwards and time to the right; with two spatial axes some frames stand
side by side, in time from left to right. The colours span the range of the solutions: samples beyond it have
the colour of its end, and the bar a pointed one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....evaluation.moments import Moments
from . import style
from .style import GREY, MAP, STATISTIC, Drawing

# Panels beside each other.
COLUMNS = 6
# Between frames, in widths of a frame.
GAP = 0.06
EMPTY = "#f1f1f1"
MOMENTS = (("mean", "mean", "both"), ("std", "standard deviation", "max"))
"""Of each moment its name, its words, and the pointed ends of its bar."""


@dataclass(frozen=True)
class Space:
    """Where fields live.

    Attributes:
        extent: First time, last time, first x, last x; of fields with two axes.
        times: Times of the frames, of fields with three axes.
    """

    extent: tuple[float, float, float, float] | None = None
    times: tuple[float, ...] = ()


@dataclass(frozen=True)
class Panel:
    """A panel of a figure.

    Attributes:
        title: Heading.
        moments: What is drawn, None where it is missing.
    """

    title: str
    moments: Moments | None

    def draw(self, axes: Any, moment: str, colours: _Colours, space: Space) -> None:
        """Draw one of the moments, or an empty panel that says `missing`."""
        if self.moments is not None:
            colours.draw(axes, getattr(self.moments, moment), space)
            return
        axes.set_facecolor(EMPTY)
        axes.text(0.5, 0.5, "missing", transform=axes.transAxes, ha="center", va="center", color=GREY)
        axes.set(xticks=[], yticks=[], aspect="auto")
        axes.spines[:].set_visible(False)


@dataclass(frozen=True)
class _Colours:
    """A map and its limits."""

    map: str
    low: float
    high: float

    @classmethod
    def for_field(cls, u: Tensor) -> _Colours:
        """Span the range of a field: around zero where it has both signs."""
        low, high = _range(u)
        limit = max(-low, high)
        return cls(MAP, -limit, limit) if low < 0 < high else cls(STATISTIC, low, high)

    def draw(self, axes: Any, u: Tensor, space: Space) -> None:
        """Draw a field: an image, or its frames from left to right, x to the right and y up within each."""
        import matplotlib

        colours = matplotlib.colormaps[self.map].with_extremes(bad="white")
        options = {"cmap": colours, "vmin": self.low, "vmax": self.high, "origin": "lower"}
        if u.ndim == 2:
            axes.imshow(u.numpy(), aspect="auto", extent=space.extent, **options)
            return
        # One unit is a frame's width.
        for i, frame in enumerate(np.moveaxis(u.numpy(), -1, 0)):
            start = i * (1 + GAP)
            axes.imshow(frame.T, extent=(start, start + 1, 0, 1), **options)
        axes.set(xlim=(0, u.shape[-1] * (1 + GAP) - GAP), ylim=(0, 1), xticks=[], yticks=[])
        axes.spines[:].set_visible(False)


def draw_ensembles(panels: Sequence[Panel], solutions: Moments, space: Space) -> Drawing:
    """Draw mean and standard deviation of every panel, coloured by the range of the solutions."""
    scales = (_Colours.for_field(solutions.mean), _Colours(STATISTIC, 0.0, _range(solutions.std)[1]))
    return (_draw_strips if solutions.mean.ndim == 3 else _draw_blocks)(panels, scales, space)


def draw_examples(sets: Mapping[str, tuple[Moments, Moments]], method: str, space: Space) -> Drawing:
    """Draw a solution per test set, and below it a sample of a method; `sets` holds (samples, solutions)."""
    solutions = [solution.example for _, solution in sets.values()]
    colours = _Colours.for_field(torch.cat([u.flatten() for u in solutions]))
    return (_draw_strip_pairs if solutions[0].ndim == 3 else _draw_pairs)(sets, method, space, colours)


def _range(u: Tensor) -> tuple[float, float]:
    """Return the least and the largest finite value, never the same."""
    finite = u[u.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 1.0)
    return low, high if high > low else low + max(abs(low), 1.0) * 1e-6


def _draw_bar(figure: Drawing, axes: Any, **options: Any) -> None:
    """Draw the scale of the images on these axes, if there are any."""
    image = next((ax.images[0] for ax in axes if ax.images), None)
    if image is not None:
        figure.colorbar(image, ax=list(axes), pad=0.01, **options)


# -- two axes --


def _draw_blocks(panels: Sequence[Panel], scales: tuple[_Colours, _Colours], space: Space) -> Drawing:
    """Draw blocks of two rows, mean and standard deviation, with as many columns as stay legible."""
    blocks = math.ceil(len(panels) / COLUMNS)
    columns = math.ceil(len(panels) / blocks)
    figure = style.new_figure(0.9 + 1.9 * columns, 3.7 * blocks, layout="constrained")
    grid = figure.subplots(2 * blocks, columns, squeeze=False)
    for k, axes in enumerate(grid):
        part = panels[k // 2 * columns : (k // 2 + 1) * columns]
        moment, words, extend = MOMENTS[k % 2]
        for ax, panel in zip(axes, part, strict=False):
            panel.draw(ax, moment, scales[k % 2], space)
            ax.set_title(panel.title if k % 2 == 0 else "")
        for ax in axes[len(part) :]:
            ax.set_axis_off()
        _label(axes[: len(part)], words, k % 2 == 1)
        _draw_bar(figure, axes, extend=extend, aspect=16)
    return figure


def _label(axes: Any, row: str, is_last: bool) -> None:
    for i, ax in enumerate(axes):
        ax.tick_params(labelleft=i == 0, labelbottom=is_last, length=2)
        ax.locator_params(nbins=3)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter("{x:.3g}")
        ax.set_xlabel("t" if is_last else "", labelpad=1)
    axes[0].set_ylabel(f"{row}\nx")


def _draw_pairs(
    sets: Mapping[str, tuple[Moments, Moments]], method: str, space: Space, colours: _Colours
) -> Drawing:
    """Draw a column per test set: a solution, and a sample below it."""
    figure = style.new_figure(1.3 + 2.3 * len(sets), 4.2, layout="constrained")
    grid = figure.subplots(2, len(sets), squeeze=False)
    for column, (name, (samples, solutions)) in zip(grid.T, sets.items(), strict=True):
        for ax, moments in zip(column, (solutions, samples), strict=True):
            colours.draw(ax, moments.example, space)
        column[0].set_title(name)
    _draw_bar(figure, grid.flat, extend="both", extendfrac=0.03, aspect=30)
    _label(grid[0], "a solution", False)
    _label(grid[1], f"a sample of {method}", True)
    return figure


# -- three axes --


def _draw_strips(panels: Sequence[Panel], scales: tuple[_Colours, _Colours], space: Space) -> Drawing:
    """Draw a row per method: the frames of the mean, then those of the standard deviation."""
    tile = 0.56
    size = (1.2 + 2 * len(space.times) * tile, 1.0 + 1.12 * tile * len(panels))
    figure = style.new_figure(*size, layout="constrained")
    grid = figure.subplots(len(panels), 2, squeeze=False)
    for axes, panel in zip(grid, panels, strict=True):
        axes[0].set_ylabel(panel.title, rotation=0, ha="right", va="center")
    for axes, (moment, words, extend), colours in zip(grid.T, MOMENTS, scales, strict=True):
        for ax, panel in zip(axes, panels, strict=True):
            panel.draw(ax, moment, colours, space)
        axes[0].set_title(words)
        _time_ticks(axes[-1], space.times)
        _draw_bar(figure, axes, orientation="horizontal", extend=extend, extendfrac=0.03, aspect=60)
    return figure


def _draw_strip_pairs(
    sets: Mapping[str, tuple[Moments, Moments]], method: str, space: Space, colours: _Colours
) -> Drawing:
    """Draw two rows per test set: a solution's frames, and a sample's."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    tile, gap, count = 1.1, 0.12, len(space.times)
    heights = [1.0, 1.0, gap] * len(sets)
    layout = ConstrainedLayoutEngine(h_pad=0.02, hspace=0.01)
    figure = style.new_figure(1.5 + count * tile, 0.6 + 1.08 * tile * sum(heights), layout=layout)
    rows = figure.subplots(len(heights) - 1, 1, gridspec_kw={"height_ratios": heights[:-1]})
    for ax in rows[2::3]:
        ax.set_axis_off()
    for j, (name, (samples, solutions)) in enumerate(sets.items()):
        pair = ((f"{name}\na solution", solutions), (f"a sample of\n{method}", samples))
        for ax, (words, moments) in zip(rows[3 * j :], pair, strict=False):
            colours.draw(ax, moments.example, space)
            ax.set_ylabel(words, rotation=0, ha="right", va="center")
    _draw_bar(figure, rows, extend="both", extendfrac=0.02, aspect=40)
    _time_ticks(rows[-1], space.times)
    return figure


def _time_ticks(axes: Any, times: Sequence[float]) -> None:
    if axes.images:
        axes.set_xticks([i * (1 + GAP) + 0.5 for i in range(len(times))], [f"{t:.3g}" for t in times])
        axes.tick_params(length=0)
        axes.set_xlabel("t")
