"""The figure of fidelity against constraints: W2 over CE, both logarithmic, coloured by the time a sample takes.

SAPC and its ablations are squares, every other method has a marker of its own, and all have their names beside them. What the paper prints
is hollow and grey, joined to ours by a thin line. Names are placed where they cover least: for each, places around its marker are tried in
a fixed order, nearer ones first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import drawing
from .drawing import GREY, INK, LOOKS, label, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

MAP = "viridis"
TEXT = 9.0
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Point:
    """A method: errors are standard errors, None where there is one value only; seconds are per sample, None where not known."""

    ce: float
    w2: float
    ce_error: float | None = None
    w2_error: float | None = None
    seconds: float | None = None


def tradeoff(ours: Mapping[str, Point], printed: Mapping[str, Point], floor: float | None = None) -> Drawing:
    """One panel. `printed` are the paper's, `floor` is W2 between two draws of the solutions."""
    figure = drawing.new(5.6, 4.7)
    axes = figure.add_axes((0.125, 0.12, 0.68, 0.86))
    zero = zero_at([*ours.values(), *printed.values()])
    _limits(axes, ours, printed, floor, zero)
    axes.set(xlabel="constraint error CE, relative to FFM", ylabel="$W_2$")
    axes.grid(True, which="major")
    axes.set_axisbelow(True)
    if floor:
        axes.axhline(floor, color=GREY, linestyle="--", linewidth=1.0, zorder=1)
    for name, point in printed.items():
        _printed(axes, name, point, ours.get(name), zero)
    norm = _norm(ours)
    for name, point in ours.items():
        _ours(axes, name, point, norm, zero)
    _names(axes, ours, printed, floor, zero)
    _bar(figure, norm)
    return figure


def zero_at(points: Sequence[Point]) -> float:
    """Where a CE of zero is drawn: a tenth of the least that is not."""
    return min((p.ce for p in points if p.ce > 0), default=1.0) / 10


def _place(point: Point, zero: float) -> tuple[float, float]:
    return point.ce or zero, point.w2


def _limits(
    axes: Any, ours: Mapping[str, Point], printed: Mapping[str, Point], floor: float | None, zero: float
) -> None:
    """Log axes with room for names around what there is."""
    places = [_place(p, zero) for p in (*ours.values(), *printed.values())]
    across, up = ([p[i] for p in places] for i in (0, 1))
    up += [floor] if floor else []
    for values, scale, limit in (
        (across, axes.set_xscale, axes.set_xlim),
        (up, axes.set_yscale, axes.set_ylim),
    ):
        low, high = math.log10(min(values)), math.log10(max(values))
        room = max(0.12 * (high - low), 0.3)
        scale("log")
        limit(10 ** (low - room), 10 ** (high + 1.2 * room))


def _norm(ours: Mapping[str, Point]) -> Any:
    from matplotlib.colors import LogNorm

    seconds = [p.seconds for p in ours.values() if p.seconds]
    low, high = min(seconds, default=1.0), max(seconds, default=1.0)
    return LogNorm(low / 1.2, high * 1.2)


def _marker(name: str) -> str:
    return "s" if name.startswith("sapc") and name in LOOKS else look(name).marker


def _printed(axes: Any, name: str, point: Point, own: Point | None, zero: float) -> None:
    x, y = _place(point, zero)
    if own is not None:
        u, v = _place(own, zero)
        axes.plot([u, x], [v, y], color=GREY, linewidth=0.5, alpha=0.45, zorder=1)
    axes.plot([x], [y], linestyle="", marker=_marker(name), markersize=7, markerfacecolor="none",
              markeredgecolor=GREY, markeredgewidth=1.0, zorder=2)  # fmt: skip


def _ours(axes: Any, name: str, point: Point, norm: Any, zero: float) -> None:
    import matplotlib

    x, y = _place(point, zero)
    across = (
        None if not (point.ce and point.ce_error) else [[min(point.ce_error, 0.999 * x)], [point.ce_error]]
    )
    up = None if not point.w2_error else [[min(point.w2_error, 0.999 * y)], [point.w2_error]]
    axes.errorbar([x], [y], xerr=across, yerr=up, color=INK, linewidth=0.8, capsize=2, fmt="none", zorder=3)
    colour = matplotlib.colormaps[MAP](norm(point.seconds)) if point.seconds else "white"
    size = 11 if name == "sapc" else 8.5
    axes.plot([x], [y], linestyle="", marker=_marker(name), markersize=size, color=colour,
              markeredgecolor=INK, markeredgewidth=1.6 if name == "sapc" else 0.8, zorder=4)  # fmt: skip


def _bar(figure: Any, norm: Any) -> None:
    from matplotlib.cm import ScalarMappable

    place = figure.add_axes((0.835, 0.12, 0.03, 0.86))
    bar = figure.colorbar(ScalarMappable(norm, MAP), cax=place, label="seconds per sample")
    bar.ax.yaxis.set_major_formatter("{x:g}")
    narrow = norm.vmax / norm.vmin < 100
    bar.ax.yaxis.set_minor_formatter(lambda x, _: f"{x:g}" if narrow and f"{x:e}"[0] in "25" else "")


# -- names --


def _names(
    axes: Any, ours: Mapping[str, Point], printed: Mapping[str, Point], floor: float | None, zero: float
) -> None:
    """Every method's name near its marker, where it covers least of what is there."""
    inch = axes.figure.dpi / 72  # places below are in points
    own, theirs = (
        [axes.transData.transform(_place(point, zero)) / inch for point in points.values()]
        for points in (ours, printed)
    )
    taken = [_around(x, y, 6.0) for x, y in own] + [_around(x, y, 4.0) for x, y in theirs]
    frame = axes.get_window_extent()
    inside = tuple(v / inch for v in (frame.x0, frame.y0, frame.x1, frame.y1))
    if floor:
        taken += _name_floor(axes, axes.transData.transform((1, floor))[1] / inch, taken, inside)
    taken.append(_arrow(axes, taken, inside))
    words = [(label(name), xy, INK, TEXT) for name, xy in zip(ours, own, strict=True)]
    words += [(label(n), xy, GREY, 7.0) for n, xy in zip(printed, theirs, strict=True) if n not in ours]
    for text, (x, y), colour, size in words:
        far, dx, dy, box = _best(text, x, y, size, taken, inside)
        taken.append(box)
        line = (
            {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4} if far else None
        )
        place = axes.transData.inverted().transform((x * inch, y * inch))
        axes.annotate(text, place, (dx, dy), "data", "offset points", ha="center", va="center", fontsize=size,
                      color=colour, arrowprops=line, zorder=6)  # fmt: skip


def _arrow(axes: Any, taken: Sequence[Box], inside: Box) -> Box:
    """Towards what is better, as near to that corner as there is room; the box it takes."""
    wide, tall = 62.0, 40.0
    places = [(inside[0] + 4 + 20 * i, inside[1] + 4 + 16 * j) for i in range(10) for j in range(14)]
    boxes = [(x, y, x + wide, y + tall) for x, y in places if x + wide < inside[2] and y + tall < inside[3]]
    box = min(boxes, key=lambda b: 4 * sum(_overlap(b, other) for other in taken) + 0.2 * (b[0] + b[1]))
    line = {"arrowstyle": "-|>", "color": GREY, "linewidth": 1.4, "mutation_scale": 14}
    tail = (box[0] + 26, box[1] + 27)
    axes.annotate("", box[:2], tail, "figure points", "figure points", arrowprops=line)
    axes.annotate("better", (tail[0] + 2, tail[1] + 1), xycoords="figure points", fontsize=8, color=GREY)
    return box


def _name_floor(axes: Any, y: float, taken: Sequence[Box], inside: Box) -> list[Box]:
    """Name the dashed line, above or below it; the boxes of the name and of the line."""
    wide, tall = 66.0, 11.0
    rights = [inside[2] - 3 - 22 * k for k in range(int((inside[2] - inside[0] - wide) // 22))]
    boxes = [(x - wide, bottom, x, bottom + tall) for x in rights for bottom in (y - tall - 2, y + 2)]
    box = min(boxes, key=lambda b: sum(_overlap(b, other) for other in taken) + 3 * _outside(b, inside))
    centre = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    axes.annotate(
        "sampling floor", centre, xycoords="figure points", ha="center", va="center", fontsize=8, color=GREY
    )
    return [box, (inside[0], y - 1, inside[2], y + 1)]


def _best(
    text: str, x: float, y: float, size: float, taken: Sequence[Box], inside: Box
) -> tuple[bool, float, float, Box]:
    """Whether a name needs a line to its marker, the offset of its centre, and the box it takes."""
    half, tall = 0.35 * size * len(text) + 1, 0.62 * size + 1
    best: tuple[float, tuple[bool, float, float, Box]] | None = None
    for gap, angle in itertools.product((8, 14, 22, 32, 44, 58), range(0, 360, 30)):
        c, s = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        dx, dy = c * (gap + half), s * (gap + tall)
        box = (x + dx - half, y + dy - tall, x + dx + half, y + dy + tall)
        cost = 4 * sum(_overlap(box, other) for other in taken) + 12 * _outside(box, inside) + gap
        if best is None or cost < best[0] - 1e-9:
            best = (cost, (gap > 14, dx, dy, box))
    assert best is not None
    return best[1]


def _around(x: float, y: float, r: float) -> Box:
    return x - r, y - r, x + r, y + r


def _overlap(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def _outside(box: Box, inside: Box) -> float:
    """The area of a box beyond the frame."""
    return (box[2] - box[0]) * (box[3] - box[1]) - _overlap(box, inside)
