"""The plots of a report: fidelity against constraints, and what happens along sampling runs.

Fidelity against constraints is W2 over CE, both logarithmic, coloured by the time a sample takes. SAPC and
its ablations are squares, every other method has its own marker, and all have their names beside them. The
paper's values are hollow and grey, joined to ours by a thin line. Words are placed where they cover least, in
boxes whose places are in points.

Along sampling runs there are residuals and deviation against flow time, and the excess of kinetic energy.
Time runs as sampling does, from the source at t = 1 to the sample at t = 0. Zero has no place on a
logarithmic axis: residuals are drawn at a floor then, deviations (zero at both ends, by definition) not at
all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import short_label
from . import style
from .style import GREY, INK, LINE_STYLES, Drawing, line_style

FLOOR = 1e-18
# Along a curve.
MARKERS = 8

Trajectory = Mapping[str, Any]
"""As `Trajectory.to_dict` of `sapc.evaluation.trajectory` makes it: None stands for what is not finite."""

PANELS = (
    ("endpoint_residual", "residual of the estimate $|R(\\hat v_0)|$"),
    ("state_residual", "residual of the state  $|R(v_t)|$"),
    ("deviation", "deviation from the straight line"),
)

Box = tuple[float, float, float, float]
Place = tuple[float, float]


@dataclass(frozen=True)
class Point:
    """A method on the panel.

    Attributes:
        ce: Constraint error, relative to FFM.
        w2: Wasserstein-2 distance.
        ce_error: Standard error of CE, None of a single value.
        w2_error: Standard error of W2, None of a single value.
        seconds: Seconds per sample, None where they are not known.
    """

    ce: float
    w2: float
    ce_error: float | None = None
    w2_error: float | None = None
    seconds: float | None = None


def draw_tradeoff(
    ours: Mapping[str, Point], paper_points: Mapping[str, Point], floor: float | None = None
) -> Drawing:
    """Draw one panel; `floor` is W2 between two draws of the solutions."""
    figure = style.new_figure(5.6, 4.7)
    axes = figure.add_axes((0.125, 0.12, 0.68, 0.86))
    zero = zero_at([*ours.values(), *paper_points.values()])
    our_places, paper_places = (
        {name: (p.ce or zero, p.w2) for name, p in points.items()} for points in (ours, paper_points)
    )
    places = [*our_places.values(), *paper_places.values()]
    _set_scale(axes.set_xscale, axes.set_xlim, [x for x, _ in places])
    _set_scale(axes.set_yscale, axes.set_ylim, [y for _, y in places] + ([floor] if floor else []))
    axes.set(xlabel="constraint error CE, relative to FFM", ylabel="$W_2$")
    axes.grid(True, which="major")
    axes.set_axisbelow(True)
    if floor:
        axes.axhline(floor, color=GREY, linestyle="--", linewidth=1.0, zorder=1)
    for name, (x, y) in paper_places.items():
        if name in our_places:
            axes.plot(
                [our_places[name][0], x],
                [our_places[name][1], y],
                color=GREY,
                linewidth=0.5,
                alpha=0.45,
                zorder=1,
            )
        axes.plot([x], [y], linestyle="", marker=_marker(name), markersize=7, markerfacecolor="none",
                  markeredgecolor=GREY, markeredgewidth=1.0, zorder=2)  # fmt: skip
    norm = _norm(ours)
    for name, point in ours.items():
        _draw_point(axes, name, point, our_places[name], norm)
    _Words(axes).write(our_places, paper_places, floor)
    _draw_bar(figure, norm)
    return figure


def zero_at(points: Iterable[Point]) -> float:
    """Return where a CE of zero is drawn: a tenth of the smallest other one."""
    return min((p.ce for p in points if p.ce > 0), default=1.0) / 10


def _set_scale(scale: Any, limit: Any, values: list[float]) -> None:
    """Make an axis logarithmic, with room for names around the values."""
    low, high = math.log10(min(values)), math.log10(max(values))
    room = max(0.12 * (high - low), 0.3)
    scale("log")
    limit(10 ** (low - room), 10 ** (high + 1.2 * room))


def _norm(ours: Mapping[str, Point]) -> Any:
    from matplotlib.colors import LogNorm

    seconds = [p.seconds for p in ours.values() if p.seconds]
    return LogNorm(min(seconds, default=1.0) / 1.2, max(seconds, default=1.0) * 1.2)


def _marker(name: str) -> str:
    return "s" if name.startswith("sapc") and name in LINE_STYLES else line_style(name).marker


def _draw_point(axes: Any, name: str, point: Point, place: Place, norm: Any) -> None:
    import matplotlib

    x, y = place
    across, up = (
        [[min(error, 0.999 * value)], [error]] if error else None
        for error, value in ((point.ce and point.ce_error, x), (point.w2_error, y))
    )
    axes.errorbar([x], [y], xerr=across, yerr=up, color=INK, linewidth=0.8, capsize=2, fmt="none", zorder=3)
    colour = matplotlib.colormaps[style.STATISTIC](norm(point.seconds)) if point.seconds else "white"
    size, edge = (11, 1.6) if name == "sapc" else (8.5, 0.8)
    axes.plot([x], [y], linestyle="", marker=_marker(name), markersize=size, color=colour,
              markeredgecolor=INK, markeredgewidth=edge, zorder=4)  # fmt: skip


def _draw_bar(figure: Any, norm: Any) -> None:
    from matplotlib.cm import ScalarMappable

    place = figure.add_axes((0.835, 0.12, 0.03, 0.86))
    bar = figure.colorbar(ScalarMappable(norm, style.STATISTIC), cax=place, label="seconds per sample")
    bar.ax.yaxis.set_major_formatter("{x:g}")
    is_narrow = norm.vmax / norm.vmin < 100
    bar.ax.yaxis.set_minor_formatter(lambda x, _: f"{x:g}" if is_narrow and f"{x:e}"[0] in "25" else "")


@dataclass
class _Words:
    """Names and notes on a panel; each takes the place that covers least.

    Attributes:
        axes: The panel.
        boxes: Boxes that are taken, in points.
    """

    axes: Any
    boxes: list[Box] = field(default_factory=list)

    def write(
        self, our_places: Mapping[str, Place], paper_places: Mapping[str, Place], floor: float | None
    ) -> None:
        """Name the floor, the better corner, and every method near its marker."""
        inch, frame = self.axes.figure.dpi / 72, self.axes.get_window_extent()
        self.inside: Box = tuple(v / inch for v in (frame.x0, frame.y0, frame.x1, frame.y1))
        to_points: Callable[[Place], Any] = lambda xy: self.axes.transData.transform(xy) / inch
        for places, r in ((our_places, 6.0), (paper_places, 4.0)):
            self.boxes += [(x - r, y - r, x + r, y + r) for x, y in map(to_points, places.values())]
        if floor:
            self._name_floor(to_points((1, floor))[1])
        self._point_to_better()
        other_places = {name: xy for name, xy in paper_places.items() if name not in our_places}
        for names, colour, size in ((our_places, INK, 9.0), (other_places, GREY, 7.0)):
            for name, xy in names.items():
                self._name_method(short_label(name), xy, to_points(xy), colour, size)

    def _name_method(self, text: str, at: Place, point: Any, colour: str, size: float) -> None:
        """Try places around a marker, nearer ones first; a name that is far has a line to it."""
        half_width, half_height = 0.35 * size * len(text) + 1, 0.62 * size + 1
        tries = {}
        for gap, angle in itertools.product((8, 14, 22, 32, 44, 58), range(0, 360, 30)):
            dx = math.cos(math.radians(angle)) * (gap + half_width)
            dy = math.sin(math.radians(angle)) * (gap + half_height)
            x, y = point[0] + dx, point[1] + dy
            tries[x - half_width, y - half_height, x + half_width, y + half_height] = (gap, dx, dy)
        gap, dx, dy = tries[self._take({box: gap for box, (gap, _, _) in tries.items()})]
        line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
        self.axes.annotate(text, at, (dx, dy), "data", "offset points", ha="center", va="center",
                           fontsize=size, color=colour, zorder=6,
                           arrowprops=line if gap > 14 else None)  # fmt: skip

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
        self.boxes.append((left, y - 1, right, y + 1))
        self.axes.annotate("sampling floor", ((x0 + x1) / 2, (y0 + y1) / 2), xycoords="figure points",
                           ha="center", va="center", fontsize=8, color=GREY)  # fmt: skip

    def _take(self, boxes: Mapping[Box, float]) -> Box:
        """Take the box that covers least and lies least outside; its number counts against it."""

        def cost(box: Box) -> float:
            outside = (box[2] - box[0]) * (box[3] - box[1]) - _overlap(box, self.inside)
            return 4 * sum(_overlap(box, other) for other in self.boxes) + 12 * outside + boxes[box]

        best = min(boxes, key=lambda box: round(cost(box), 6))
        self.boxes.append(best)
        return best


def _overlap(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


# -- along sampling runs --


def draw_trajectories(trajectories: Mapping[str, Trajectory]) -> Drawing:
    """Draw three panels over flow time and one with the excess energies, by method."""
    figure = style.new_figure(8.0, 6.8, layout="constrained")
    grid = figure.subplots(2, 2)
    for ax, (name, title) in zip(grid.flat, PANELS, strict=False):
        for i, (method, trajectory) in enumerate(trajectories.items()):
            _draw_curve(ax, method, trajectory, name, i)
        ax.set(yscale="log", xlim=(1.02, -0.02), xlabel="flow time t, source to sample")
        ax.set_title(title, loc="left")
        ax.grid(True, which="major")
    _draw_energies(grid[1, 1], trajectories)
    handles, names = grid[0, 0].get_legend_handles_labels()
    columns = min(6, len(names)) or 1
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.4)
    return figure


def _draw_curve(axes: Any, method: str, trajectory: Trajectory, name: str, shift: int) -> None:
    times, values = curve(trajectory, name)
    look = line_style(method)
    interval = max(1, len(times) // MARKERS)
    axes.plot(
        times, values, label=short_label(method), color=look.colour, linestyle=look.line,
        linewidth=look.width, marker=look.marker, markersize=5.5, markevery=(shift % interval, interval),
        markeredgewidth=0.8, zorder=3 if method == "sapc" else 2,
    )  # fmt: skip


def curve(trajectory: Trajectory, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return times and values as they are drawn; NaN leaves a gap."""
    values = np.array([np.nan if v is None else float(v) for v in trajectory[name]])
    times = np.array(trajectory["times"][: len(values)], dtype=float)
    if name == "deviation":
        values[[0, -1]] = np.nan
        return times, np.where(values > 0, values, np.nan)
    return times, np.where(np.isnan(values), np.nan, np.maximum(values, FLOOR))


def _draw_energies(axes: Any, trajectories: Mapping[str, Trajectory]) -> None:
    """Draw a row per method, the first one at the top."""
    names = list(trajectories)
    values = [trajectories[name].get("excess_energy") for name in names]
    positive = [v for v in values if v]
    start = min(positive, default=1.0) / 3
    for row, (name, value) in enumerate(zip(names, values, strict=True)):
        look = line_style(name)
        if not value:
            words = "not finite" if value is None else "0"
            axes.annotate(
                words, (0, row), (4, 0), ("axes fraction", "data"), "offset points", va="center", color=GREY
            )
            continue
        axes.plot([start, value], [row, row], color=look.colour, linewidth=look.width, linestyle=look.line)
        axes.plot([value], [row], color=look.colour, marker=look.marker, markersize=7)
    axes.set(xscale="log", xlim=(start, 4 * max(positive, default=1.0)), ylim=(len(names) - 0.5, -0.5))
    axes.set_yticks(range(len(names)), [short_label(name) for name in names])
    axes.tick_params(axis="y", length=0)
    axes.grid(True, axis="x")
    axes.set_title("excess kinetic energy of the path", loc="left")


def has_zero(trajectories: Sequence[Trajectory]) -> bool:
    """Return whether a residual is drawn at the floor."""
    parts = ("endpoint_residual", "state_residual")
    return any(v is not None and v < FLOOR for t in trajectories for part in parts for v in t[part])
