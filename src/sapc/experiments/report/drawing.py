"""How report figures are drawn: what tells methods apart, and how a drawing becomes bytes.

Methods differ in colour, line style and marker, so that a grey print and a colour-blind reader can tell them apart too: no two have the
same marker, none of one colour the same line. The colours are those of the Okabe-Ito palette that stand out from white by 3:1 or more.

The same data give the same bytes: settings of the user's matplotlib have no part in it, and neither file holds a date.
"""

from __future__ import annotations

import hashlib
import io
import re
import textwrap
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ... import methods
from ...methods import paper
from .pictures import MAP, STATISTIC, pyplot
from .table_parts import method_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

DPI = 110
WIDEST = 28  # characters of a label
INK, GREY, RULE = "#1a1a1a", "#6b6b6b", "#d8d8d8"
BLUE, VERMILION, GREEN, PURPLE, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000"
DASH, DOT, BOTH = (0, (5, 2)), (0, (1.2, 1.4)), (0, (6, 1.8, 1.2, 1.8))

SETTINGS = {
    "svg.hashsalt": "sapc",
    "svg.fonttype": "path",  # the letters are there, whatever fonts the reader has
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
    """A finished figure, and all that a page needs to show it; width and height in pixels, `task` empty where it is of all."""

    name: str
    title: str
    caption: str
    alt: str
    data: bytes
    kind: Literal["svg", "png"]
    width: int
    height: int
    task: str = ""

    @property
    def file(self) -> str:
        """What its file is called."""
        return f"{self.name}.{self.kind}"


@dataclass(frozen=True)
class Look:
    """How the curve of a method looks."""

    colour: str
    line: Any
    marker: str
    width: float = 1.4


LOOKS = {
    "sapc": Look(BLUE, "-", "s", 2.4),
    "sapc_s1": Look(PURPLE, DASH, "<"),
    "sapc_s2": Look(PURPLE, BOTH, ">"),
    "sapc_s3": Look(PURPLE, DOT, "p"),
    "ffm": Look(BLACK, "-", "o"),
    "cond_ffm": Look(BLACK, DASH, "v"),
    "eci": Look(VERMILION, "-", "^"),
    "eci_stokes_ic": Look(VERMILION, DOT, "1"),
    "eci_stokes_bc": Look(VERMILION, BOTH, "2"),
    "pcfm": Look(VERMILION, DASH, "D"),
    "pcfm_pins_first": Look(GREEN, DOT, "3"),
    "pcfm_relaxed": Look(GREEN, BOTH, "4"),
    "cafm": Look(GREEN, "-", "P"),
    "pbfm": Look(GREEN, DASH, "X"),
    "dflow": Look(BLACK, DOT, "*"),
}
# of the user's own
OTHERS = tuple(
    Look(GREY, line, marker, 2.0)
    for line, marker in (
        ("-", "."),
        (DASH, "h"),
        (BOTH, "d"),
        (DOT, "8"),
        ("-", "H"),
        (DASH, "x"),
        (BOTH, "+"),
    )
)


def look(method: str) -> Look:
    """How a method's curve looks; those of the user's own are grey, in turn, and what is not known here is so by its name."""
    own = [name for name in methods.METHODS if name not in LOOKS]
    number = own.index(method) if method in own else zlib.crc32(method.encode())
    return LOOKS.get(method) or OTHERS[number % len(OTHERS)]


def label(method: str) -> str:
    """A method's name where room is short."""
    name = method_label(method)
    if method in paper.METHOD_LABELS:
        return method.removeprefix("sapc_").upper() if method.startswith("sapc_") else name
    return textwrap.shorten(name, WIDEST, placeholder=" …")


def file_name(task: str) -> str:
    """A task's name in those of its files: itself, or, where it could lead elsewhere or not be a name, letters of it and a digest."""
    plain = re.sub(r"[^a-z0-9_]+", "_", task.lower())[:40]
    return task if plain == task else f"{plain}_{hashlib.sha256(task.encode()).hexdigest()[:8]}"


def in_order(names: Iterable[str]) -> list[str]:
    """Names of methods as the figures show them: SAPC, its ablations, the others, the user's own; what is not known comes last."""
    known = methods.method_names(variants=True)
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else len(known), name))


def new(width: float, height: float, **options: Any) -> Drawing:
    """An empty drawing, in inches, that no screen and no other drawing has a part in."""
    pyplot()  # complains where matplotlib is missing
    from matplotlib.figure import Figure as Drawing

    return Drawing(figsize=(width, height), **options)


def rendered(draw: Callable[[], Drawing], kind: Literal["svg", "png"]) -> tuple[bytes, int, int]:
    """The bytes of a drawing, its width and its height in pixels."""
    pyplot()
    import matplotlib.style

    with matplotlib.style.context(["default", SETTINGS]):
        drawing = draw()
        stream = io.BytesIO()
        nothing = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        drawing.savefig(stream, format=kind, dpi=DPI, metadata=nothing)
    width, height = (round(inches * (96 if kind == "svg" else DPI)) for inches in drawing.get_size_inches())
    smaller = _smaller_svg if kind == "svg" else _smaller_png
    return smaller(stream.getvalue()), width, height


def _smaller_svg(data: bytes) -> bytes:
    """The same picture without indentation, and places to a hundredth of a point."""
    return re.sub(rb"(\d\d\.\d\d)\d+", rb"\1", re.sub(rb"\n\s+", b"\n", data))


def _smaller_png(data: bytes) -> bytes:
    """The same picture in 256 colours, a third of the size: 112 steps of either map of fields, and 32 greys for the rest."""
    import matplotlib
    from PIL import Image

    steps = [i / 111 for i in range(112)]
    maps = [
        matplotlib.colormaps[name](steps, bytes=True)[:, :3].ravel().tolist() for name in (MAP, STATISTIC)
    ]
    greys = [round(i / 31 * 255) for i in range(32) for _ in range(3)]
    palette = Image.new("P", (1, 1))
    palette.putpalette(maps[0] + maps[1] + greys)
    stream = io.BytesIO()
    with Image.open(io.BytesIO(data)) as image:
        few = image.convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE)
        few.save(stream, "PNG", optimize=True)
    return stream.getvalue()
