"""The figure of fidelity against constraints: W2 over CE, both logarithmic, coloured by the time a sample takes.

SAPC and its ablations are squares, every other method has a marker of its own, and all have their names beside them. What the paper prints
is hollow and grey, joined to ours by a thin line. Words are placed where they cover least, in boxes whose places are in points.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..data import short_label
from . import style
from .style import GREY, INK, LOOKS, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

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
    """Draw one panel. `printed` are the paper's, `floor` is W2 between two draws of the solutions."""
    figure = style.new(5.6, 4.7)
    axes = figure.add_axes((0.125, 0.12, 0.68, 0.86))
    zero = zero_at([*ours.values(), *printed.values()])
    own, theirs = ({name: (p.ce or zero, p.w2) for name, p in points.items()} for points in (ours, printed))
    places = [*own.values(), *theirs.values()]
    _set_scale(axes.set_xscale, axes.set_xlim, [x for x, _ in places])
    _set_scale(axes.set_yscale, axes.set_ylim, [y for _, y in places] + ([floor] if floor else []))
    axes.set(xlabel="constraint error CE, relative to FFM", ylabel="$W_2$")
    axes.grid(True, which="major")
    axes.set_axisbelow(True)
    if floor:
        axes.axhline(floor, color=GREY, linestyle="--", linewidth=1.0, zorder=1)
    for name, (x, y) in theirs.items():
        if name in own:
            axes.plot([own[name][0], x], [own[name][1], y], color=GREY, linewidth=0.5, alpha=0.45, zorder=1)
        axes.plot([x], [y], linestyle="", marker=_marker(name), markersize=7, markerfacecolor="none",
                  markeredgecolor=GREY, markeredgewidth=1.0, zorder=2)  # fmt: skip
    norm = _norm(ours)
    for name, point in ours.items():
        _draw_point(axes, name, point, own[name], norm)
    _Words(axes).write(own, theirs, floor)
    _draw_bar(figure, norm)
    return figure


def zero_at(points: Iterable[Point]) -> float:
    """Return where a CE of zero is drawn: a tenth of the least that is not."""
    return min((p.ce for p in points if p.ce > 0), default=1.0) / 10


def _set_scale(scale: Any, limit: Any, values: list[float]) -> None:
    """Make an axis logarithmic, with room for names around what there is."""
    low, high = math.log10(min(values)), math.log10(max(values))
    room = max(0.12 * (high - low), 0.3)
    scale("log")
    limit(10 ** (low - room), 10 ** (high + 1.2 * room))


def _norm(ours: Mapping[str, Point]) -> Any:
    from matplotlib.colors import LogNorm

    seconds = [p.seconds for p in ours.values() if p.seconds]
    return LogNorm(min(seconds, default=1.0) / 1.2, max(seconds, default=1.0) * 1.2)


def _marker(name: str) -> str:
    return "s" if name.startswith("sapc") and name in LOOKS else look(name).marker


def _draw_point(axes: Any, name: str, point: Point, place: tuple[float, float], norm: Any) -> None:
    import matplotlib

    x, y = place
    across, up = (
        [[min(error, 0.999 * value)], [error]] if error else None
        for error, value in ((point.ce and point.ce_error, x), (point.w2_error, y))
    )
    axes.errorbar([x], [y], xerr=across, yerr=up, color=INK, linewidth=0.8, capsize=2, fmt="none", zorder=3)
    colour = matplotlib.colormaps[style.STATISTIC](norm(point.seconds)) if point.seconds else "white"
    size, edge = (11, 1.6) if name == "sapc" else (8.5, 0.8)
    axes.plot([x], [y], linestyle="", marker=_marker(name), markersize=size, color=colour, markeredgecolor=INK,
              markeredgewidth=edge, zorder=4)  # fmt: skip


def _draw_bar(figure: Any, norm: Any) -> None:
    from matplotlib.cm import ScalarMappable

    place = figure.add_axes((0.835, 0.12, 0.03, 0.86))
    bar = figure.colorbar(ScalarMappable(norm, style.STATISTIC), cax=place, label="seconds per sample")
    bar.ax.yaxis.set_major_formatter("{x:g}")
    narrow = norm.vmax / norm.vmin < 100
    bar.ax.yaxis.set_minor_formatter(lambda x, _: f"{x:g}" if narrow and f"{x:e}"[0] in "25" else "")


@dataclass
class _Words:
    """Names and notes on a panel; each takes the place that covers least of what is there."""

    axes: Any
    taken: list[Box] = field(default_factory=list)

    def write(
        self,
        own: Mapping[str, tuple[float, float]],
        theirs: Mapping[str, tuple[float, float]],
        floor: float | None,
    ) -> None:
        """Name the floor, the better corner, and every method near its marker."""
        self.inch = self.axes.figure.dpi / 72
        frame = self.axes.get_window_extent()
        self.inside: Box = tuple(v / self.inch for v in (frame.x0, frame.y0, frame.x1, frame.y1))
        points = {
            xy: self.axes.transData.transform(xy) / self.inch for xy in (*own.values(), *theirs.values())
        }
        for places, r in ((own, 6.0), (theirs, 4.0)):
            self.taken += [(x - r, y - r, x + r, y + r) for x, y in (points[xy] for xy in places.values())]
        if floor:
            self._name_floor(self.axes.transData.transform((1, floor))[1] / self.inch)
        self._point_to_better()
        for name, xy in own.items():
            self._name_method(short_label(name), xy, points[xy], INK, 9.0)
        for name, xy in theirs.items():
            if name not in own:
                self._name_method(short_label(name), xy, points[xy], GREY, 7.0)

    def _name_method(self, text: str, at: tuple[float, float], point: Any, colour: str, size: float) -> None:
        """Try places around a marker, nearer ones first; a name that is far has a line to it."""
        half, tall = 0.35 * size * len(text) + 1, 0.62 * size + 1
        tries = {}
        for gap, angle in itertools.product((8, 14, 22, 32, 44, 58), range(0, 360, 30)):
            dx = math.cos(math.radians(angle)) * (gap + half)
            dy = math.sin(math.radians(angle)) * (gap + tall)
            x, y = point[0] + dx, point[1] + dy
            tries[x - half, y - tall, x + half, y + tall] = (gap, dx, dy)
        gap, dx, dy = tries[self._take({box: gap for box, (gap, _, _) in tries.items()})]
        line = (
            {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
            if gap > 14
            else None
        )
        self.axes.annotate(text, at, (dx, dy), "data", "offset points", ha="center", va="center", fontsize=size,
                           color=colour, arrowprops=line, zorder=6)  # fmt: skip

    def _point_to_better(self) -> None:
        """Draw an arrow towards what is better, as near to that corner as there is room."""
        left, bottom, right, top = self.inside
        corners = [(left + 4 + 20 * i, bottom + 4 + 16 * j) for i in range(10) for j in range(14)]
        boxes = [(x, y, x + 62, y + 40) for x, y in corners if x + 62 < right and y + 40 < top]
        x, y, *_ = self._take({box: 0.2 * (box[0] + box[1]) for box in boxes})
        line = {"arrowstyle": "-|>", "color": GREY, "linewidth": 1.4, "mutation_scale": 14}
        self.axes.annotate("", (x, y), (x + 26, y + 27), "figure points", "figure points", arrowprops=line)
        self.axes.annotate("better", (x + 28, y + 28), xycoords="figure points", fontsize=8, color=GREY)

    def _name_floor(self, y: float) -> None:
        """Name the dashed line, above or below it."""
        left, _, right, _ = self.inside
        ends = [right - 3 - 22 * k for k in range(int((right - left - 66) // 22))]
        boxes = [(x - 66, bottom, x, bottom + 11) for x in ends for bottom in (y - 13, y + 2)]
        x0, y0, x1, y1 = self._take(dict.fromkeys(boxes, 0.0))
        self.taken.append((left, y - 1, right, y + 1))
        self.axes.annotate("sampling floor", ((x0 + x1) / 2, (y0 + y1) / 2), xycoords="figure points", ha="center",
                           va="center", fontsize=8, color=GREY)  # fmt: skip

    def _take(self, boxes: Mapping[Box, float]) -> Box:
        """Take the box that covers least and lies least outside; its number is what else counts against it."""

        def cost(box: Box) -> float:
            outside = (box[2] - box[0]) * (box[3] - box[1]) - _overlap(box, self.inside)
            return 4 * sum(_overlap(box, other) for other in self.taken) + 12 * outside + boxes[box]

        best = min(boxes, key=lambda box: round(cost(box), 6))
        self.taken.append(best)
        return best


def _overlap(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
