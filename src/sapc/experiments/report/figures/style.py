"""How report figures look: what distinguishes methods, and how a drawing becomes bytes.

Methods differ in colour, line style and marker, for grey prints and colour-blind readers: no two have the
same marker, none of one colour the same line. The colours are those of the Okabe-Ito palette that stand out
from white by 3:1 or more. Signed fields have a diverging map, statistics a perceptually uniform one.

The same data give the same bytes: settings of the user's matplotlib do not count, and no file holds a date.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .... import methods
from ....errors import SapcError

Kind = Literal["svg", "png"]
Drawing = Any
"""A figure of matplotlib, which is imported only where something is drawn."""
DPI = 110
MAP, STATISTIC = "RdBu_r", "viridis"
INK, GREY, RULE = "#1a1a1a", "#6b6b6b", "#d8d8d8"
BLUE, VERMILION, GREEN, PURPLE, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000"
DASH, DOT, DASH_DOT = (0, (5, 2)), (0, (1.2, 1.4)), (0, (6, 1.8, 1.2, 1.8))

SETTINGS = {
    "svg.hashsalt": "sapc",
    # The letters are there, whatever fonts the reader has.
    "svg.fonttype": "path",
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10.0,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.fontsize": 9.0,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "figure.facecolor": "white",
}


@dataclass(frozen=True)
class Figure:
    """A finished figure, and all that a page needs to show it.

    Attributes:
        name: Name of its file, without the suffix.
        title: Title.
        caption: Caption.
        alt: Alternative text.
        data: Content of its file.
        kind: Kind of its file.
        width: Width in pixels.
        height: Height in pixels.
        task: Task that it shows, empty where it shows all.
    """

    name: str
    title: str
    caption: str
    alt: str
    data: bytes
    kind: Kind
    width: int
    height: int
    task: str = ""

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.name}.{self.kind}"


@dataclass(frozen=True)
class LineStyle:
    """The style of a method's curve."""

    colour: str
    line: Any
    marker: str
    width: float = 1.4


LINE_STYLES = {
    "sapc": LineStyle(BLUE, "-", "s", 2.4),
    "sapc_s1": LineStyle(PURPLE, DASH, "<"),
    "sapc_s2": LineStyle(PURPLE, DASH_DOT, ">"),
    "sapc_s3": LineStyle(PURPLE, DOT, "p"),
    "ffm": LineStyle(BLACK, "-", "o"),
    "cond_ffm": LineStyle(BLACK, DASH, "v"),
    "eci": LineStyle(VERMILION, "-", "^"),
    "eci_stokes_ic": LineStyle(VERMILION, DOT, "1"),
    "eci_stokes_bc": LineStyle(VERMILION, DASH_DOT, "2"),
    "pcfm": LineStyle(VERMILION, DASH, "D"),
    "pcfm_pins_first": LineStyle(GREEN, DOT, "3"),
    "pcfm_relaxed": LineStyle(GREEN, DASH_DOT, "4"),
    "cafm": LineStyle(GREEN, "-", "P"),
    "pbfm": LineStyle(GREEN, DASH, "X"),
    "dflow": LineStyle(BLACK, DOT, "*"),
    "cond_sapc": LineStyle(BLUE, DASH, "|", 2.0),
}
OTHER_LINES = (("-", "."), (DASH, "h"), (DASH_DOT, "d"), (DOT, "8"), ("-", "H"), (DASH, "x"), (DASH_DOT, "+"))


def line_style(method: str) -> LineStyle:
    """Return the style of a method's curve; a user's own methods are grey with a line and a marker each."""
    own_methods = [name for name in methods.METHODS if name not in LINE_STYLES]
    # What is not known here has the style that its name gives.
    number = own_methods.index(method) if method in own_methods else zlib.crc32(method.encode())
    line, marker = OTHER_LINES[number % len(OTHER_LINES)]
    return LINE_STYLES.get(method) or LineStyle(GREY, line, marker, 2.0)


def pyplot() -> Any:
    """Return matplotlib's drawing functions, for files and without a screen."""
    try:
        import matplotlib
    except ImportError as error:
        raise SapcError("pictures need matplotlib; install it with: pip install 'sapc[plot]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def new_figure(width: float, height: float, **options: Any) -> Drawing:
    """Return an empty drawing of this size in inches, independent of screens and other drawings."""
    return pyplot().Figure(figsize=(width, height), **options)


def render(draw: Callable[[], Drawing], kind: Kind) -> tuple[bytes, int, int]:
    """Return the bytes of a drawing, its width and its height in pixels."""
    pyplot()
    import matplotlib.style

    with matplotlib.style.context(["default", SETTINGS]):
        drawing = draw()
        stream = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        drawing.savefig(stream, format=kind, dpi=DPI, metadata=metadata)
    width, height = (round(inches * (96 if kind == "svg" else DPI)) for inches in drawing.get_size_inches())
    shrink = _shrink_svg if kind == "svg" else _shrink_png
    return shrink(stream.getvalue()), width, height


def _shrink_svg(data: bytes) -> bytes:
    """Return the same picture without indentation, with places to a hundredth of a point."""
    return re.sub(rb"(\d\d\.\d\d)\d+", rb"\1", re.sub(rb"\n\s+", b"\n", data))


def _shrink_png(data: bytes) -> bytes:
    """Return the same picture in 256 colours, a third of the size: 112 of each map, and 32 greys."""
    import matplotlib
    from PIL import Image

    steps = [i / 111 for i in range(112)]
    maps = (matplotlib.colormaps[name](steps, bytes=True)[:, :3].ravel() for name in (MAP, STATISTIC))
    greys = [round(i / 31 * 255) for i in range(32) for _ in range(3)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([*(part for colours in maps for part in colours.tolist()), *greys])
    stream = io.BytesIO()
    with Image.open(io.BytesIO(data)) as image:
        reduced = image.convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE)
        reduced.save(stream, "PNG", optimize=True)
    return stream.getvalue()
