"""Figures of fields: pointwise moments of every method's samples beside the solutions', and examples of every test set.

Fields over x and t are images, space upwards and time to the right; of two spatial axes the kept frames stand side by side, in time from
left to right. The colours span what the solutions span: samples beyond that have the colour of its end, and the bar a pointed one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....evaluation.moments import Moments
from . import style
from .style import GREY, MAP, STATISTIC

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

WIDE = 6  # panels beside each other
GAP = 0.06  # between frames, of a frame's width
EMPTY = "#f1f1f1"


@dataclass(frozen=True)
class Space:
    """Where fields live: the extents (first time, last time, first x, last x) of two axes, or the times of the kept frames of three."""

    extent: tuple[float, float, float, float] | None = None
    times: tuple[float, ...] = ()


@dataclass(frozen=True)
class Shown:
    """A panel: what stands above it and its moments, None where they are missing."""

    title: str
    moments: Moments | None


@dataclass(frozen=True)
class _Colours:
    """A map and its limits."""

    map: str
    low: float
    high: float

    @classmethod
    def signed(cls, u: Tensor) -> _Colours:
        """Span the range of a field: around zero where it has both signs."""
        low, high = _range(u)
        most = max(-low, high)
        return cls(MAP, -most, most) if low < 0 < high else cls(STATISTIC, low, high)

    def image(self, axes: Any, u: NDArray[Any], **more: Any) -> Any:
        import matplotlib

        colours = matplotlib.colormaps[self.map].with_extremes(bad="white")
        return axes.imshow(u, cmap=colours, vmin=self.low, vmax=self.high, origin="lower", **more)


def ensembles(panels: Sequence[Shown], solutions: Moments, space: Space) -> Drawing:
    """Draw mean (top) and standard deviation (bottom) of every panel, coloured by the range of the solutions."""
    scales = (_Colours.signed(solutions.mean), _Colours(STATISTIC, 0.0, _range(solutions.std)[1]))
    return (_tiled if solutions.mean.ndim == 3 else _blocks)(panels, scales, space)


def examples(sets: Mapping[str, tuple[Moments, Moments]], whose: str, space: Space) -> Drawing:
    """Draw one solution per test set, and below it one sample of the method called `whose`; `sets` holds (samples, solutions)."""
    shown = [solutions.example for _, solutions in sets.values()]
    colours = _Colours.signed(torch.cat([u.flatten() for u in shown]))
    return (_frames_of_sets if shown[0].ndim == 3 else _pairs)(sets, whose, space, colours)


def _range(u: Tensor) -> tuple[float, float]:
    """Return the least and the largest finite value, never the same."""
    finite = u[u.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 1.0)
    return low, high if high > low else low + max(abs(low), 1.0) * 1e-6


def _mark_missing(axes: Any) -> None:
    """Make an empty panel that says so."""
    axes.set_facecolor(EMPTY)
    axes.text(0.5, 0.5, "missing", transform=axes.transAxes, ha="center", va="center", color=GREY)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


# -- two axes --


def _blocks(panels: Sequence[Shown], scales: tuple[_Colours, _Colours], space: Space) -> Drawing:
    """Draw blocks of two rows, as many panels beside each other as stay legible."""
    blocks = math.ceil(len(panels) / WIDE)
    columns = math.ceil(len(panels) / blocks)
    figure = style.new(0.9 + 1.9 * columns, 3.7 * blocks, layout="constrained")
    grid = figure.subplots(2 * blocks, columns, squeeze=False)
    rows = (("mean", "mean", "both"), ("std", "standard deviation", "max"))
    for k, row in itertools.product(range(blocks), range(2)):
        part, axes, (what, words, extend) = (
            panels[k * columns : (k + 1) * columns],
            grid[2 * k + row],
            rows[row],
        )
        images = []
        for ax, one in zip(axes, part, strict=False):
            if one.moments is None:
                _mark_missing(ax)
            else:
                u = getattr(one.moments, what).numpy()
                images.append(scales[row].image(ax, u, aspect="auto", extent=space.extent))
            if row == 0:
                ax.set_title(one.title)
        for ax in axes[len(part) :]:
            ax.set_axis_off()
        _labels(axes[: len(part)], words, row == 1)
        if images:
            figure.colorbar(images[0], ax=list(axes), extend=extend, aspect=16, pad=0.01)
    return figure


def _labels(axes: Any, row: str, last: bool) -> None:
    for i, ax in enumerate(axes):
        ax.tick_params(labelleft=i == 0, labelbottom=last, length=2)
        ax.locator_params(nbins=3)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter("{x:.3g}")
        ax.set_xlabel("t" if last else "", labelpad=1)
    axes[0].set_ylabel(f"{row}\nx")


def _pairs(
    sets: Mapping[str, tuple[Moments, Moments]], whose: str, space: Space, colours: _Colours
) -> Drawing:
    """A column per test set: a solution, and a sample below it."""
    figure = style.new(1.3 + 2.3 * len(sets), 4.2, layout="constrained")
    grid = figure.subplots(2, len(sets), squeeze=False)
    for j, (name, (samples, solutions)) in enumerate(sets.items()):
        for ax, moments in zip(grid[:, j], (solutions, samples), strict=True):
            image = colours.image(ax, moments.example.numpy(), aspect="auto", extent=space.extent)
        grid[0, j].set_title(name)
    figure.colorbar(image, ax=list(grid.flat), extend="both", extendfrac=0.03, aspect=30, pad=0.01)
    for row, words, last in zip(grid, ("a solution", f"a sample of {whose}"), (False, True), strict=True):
        _labels(row, words, last)
    return figure


# -- three axes --


def _tiled(panels: Sequence[Shown], scales: tuple[_Colours, _Colours], space: Space) -> Drawing:
    """A row per method: the frames of the mean, then those of the standard deviation."""
    tile = 0.56
    count = len(space.times)
    figure = style.new(1.2 + 2 * count * tile, 1.0 + 1.12 * tile * len(panels), layout="constrained")
    grid = figure.subplots(len(panels), 2, squeeze=False)
    for axes, one in zip(grid, panels, strict=True):
        for ax, what, colours in zip(axes, ("mean", "std"), scales, strict=True):
            if one.moments is None:
                _mark_missing(ax)
                ax.set_aspect("auto")
            else:
                _strip(ax, getattr(one.moments, what), colours)
        axes[0].set_ylabel(one.title, rotation=0, ha="right", va="center")
    for j, words in enumerate(("mean", "standard deviation")):
        grid[0, j].set_title(words)
        _time_ticks(grid[-1, j], space.times)
        image = next(ax.images[0] for ax in grid[:, j] if ax.images)
        extend = ("both", "max")[j]
        figure.colorbar(image, ax=list(grid[:, j]), orientation="horizontal", extend=extend, extendfrac=0.03, aspect=60,
                        pad=0.01)  # fmt: skip
    return figure


def _frames_of_sets(
    sets: Mapping[str, tuple[Moments, Moments]], whose: str, space: Space, colours: _Colours
) -> Drawing:
    """Two rows per test set: a solution's frames, and a sample's."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    tile, between, count = 1.1, 0.12, len(space.times)
    heights = [1.0, 1.0, between] * len(sets)
    near = ConstrainedLayoutEngine(h_pad=0.02, hspace=0.01)
    figure = style.new(1.5 + count * tile, 0.6 + 1.08 * tile * sum(heights), layout=near)
    rows = figure.subplots(len(heights) - 1, 1, gridspec_kw={"height_ratios": heights[:-1]})
    for ax in rows[2::3]:
        ax.set_axis_off()
    for j, (name, (samples, solutions)) in enumerate(sets.items()):
        words = (f"{name}\na solution", f"a sample of\n{whose}")
        for ax, moments, row in zip(rows[3 * j :], (solutions, samples), words, strict=False):
            image = _strip(ax, moments.example, colours)
            ax.set_ylabel(row, rotation=0, ha="right", va="center")
    figure.colorbar(image, ax=list(rows), extend="both", extendfrac=0.02, aspect=40, pad=0.01)
    _time_ticks(rows[-1], space.times)
    return figure


def _strip(axes: Any, u: Tensor, colours: _Colours) -> Any:
    """Frames from left to right, x to the right and y up within each; one unit is a frame's width."""
    frames = [frame.T for frame in np.moveaxis(u.numpy(), -1, 0)]
    for i, frame in enumerate(frames):
        left = i * (1 + GAP)
        image = colours.image(axes, frame, extent=(left, left + 1, 0, 1))
    axes.set(xlim=(0, len(frames) * (1 + GAP) - GAP), ylim=(0, 1), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return image


def _time_ticks(axes: Any, times: Sequence[float]) -> None:
    if axes.images:
        axes.set_xticks([i * (1 + GAP) + 0.5 for i in range(len(times))], [f"{t:.3g}" for t in times])
        axes.tick_params(length=0)
        axes.set_xlabel("t")
