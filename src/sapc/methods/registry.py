"""Which methods there are: the published ones, and a user's own.

A user's method is a `Method` like any other. It is made known in one of three ways:

    use("my_method.py")          a file that defines it; files in the environment variable SAPC_PLUGINS are used as if by this
    register_method(method)      an object, in this process
    an entry point               group `sapc.methods`, of an installed package; it names a `Method`

`use` adds its file to SAPC_PLUGINS, so processes that are started later (workers of a study, one process per device) know the method too.
What SAPC_PLUGINS and entry points name is loaded when it may matter: when a name is not known, or when all names are asked for. A plug-in
that cannot be loaded then is a warning, so that a broken one harms nobody who does not want it; `use` itself raises.

A method is one's own if its name is not published. Where it came from is kept: the same source may give its name a new method, so that a
file or a notebook's cell can be changed and run again, but no other may.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, get_args

from ..errors import SapcError, explain_misuse, whole
from .ablations import S1, S2, S3
from .base import Exactness, Method
from .cafm import CAFM
from .cond_ffm import COND_FFM
from .dflow import DFLOW
from .eci import ECI, ECI_STOKES_BC, ECI_STOKES_IC
from .ffm import FFM
from .pbfm import PBFM
from .pcfm import PCFM, PCFM_PINS_FIRST, PCFM_RELAXED
from .references import Reference
from .sapc import SAPC

PUBLISHED: Mapping[str, Method] = {
    method.name: method
    for method in (
        SAPC,
        S1,
        S2,
        S3,
        FFM,
        COND_FFM,
        ECI,
        ECI_STOKES_IC,
        ECI_STOKES_BC,
        PCFM,
        PCFM_PINS_FIRST,
        PCFM_RELAXED,
        CAFM,
        PBFM,
        DFLOW,
    )
}
METHODS: dict[str, Method] = dict(PUBLISHED)
"""All that are known so far, the published ones first; see `get_method` for those that are only installed."""

SOURCES: dict[str, str] = {}
"""Where every method of one's own came from: a file, a package, or a module without a file."""

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")  # it is part of file names
RESERVED = frozenset(("floor", "part"))  # a line of tables, and the ending of files of scores
LONGEST = 80
INSIDE = ("sapc", "jaxtyping", "beartype")


@explain_misuse
def register_method(method: Method) -> Method:
    """Make a method known in this process, by its name; returns it.

    Processes that are started later do not know it, unless they run the same lines: for studies, put it in a file and `use` that.
    """
    here = caller()
    file = here.f_globals.get("__file__")
    add([method], str(Path(file).resolve()) if file else str(here.f_globals.get("__name__")))
    return method


def caller() -> FrameType:
    """Who calls this package: the next frame outside of it, and of what may check types around its functions."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in INSIDE:
        frame = frame.f_back
    return frame or sys._getframe(1)


def add(methods: Iterable[Any], source: str) -> None:
    """Make methods from one source known, all of them or, if one is not fine, none."""
    new: dict[str, Method] = {}
    for method in methods:
        _check(method)
        if new.setdefault(method.name, method) is not method:
            raise SapcError(f"there are two methods of the name {method.name!r}; give one another name")
    for method in new.values():
        _check_source(method, source)
        _check_others(method, METHODS | new)
    METHODS.update(new)
    for name in new:
        SOURCES.setdefault(name, source)


def forget(names: Iterable[str]) -> None:
    """Take methods of one's own out again."""
    for name in names:
        if SOURCES.pop(name, None):
            del METHODS[name]


def is_own(name: str) -> bool:
    """Whether a method is a user's."""
    return name not in PUBLISHED


def _check(method: Any) -> None:
    """Refuse a record that could not be used; the message says which part, and what it should be."""
    if not isinstance(method, Method):
        raise SapcError(
            f"a method must be a sapc.Method, got {_short(method)}; make one with sapc.Method(name=..., ...)"
        )
    if not isinstance(method.name, str) or not NAME.fullmatch(method.name) or method.name in RESERVED:
        raise SapcError(
            f"a method's name is at most 40 small letters, digits and _, a letter first (and not {' or '.join(sorted(RESERVED))}), "
            f"got {_short(method.name)}; choose such a name"
        )
    kinds = ", ".join(get_args(Exactness))
    for part, fine, wanted in (
        ("title", _is_title(method.title), f"one line of at most {LONGEST} characters without $"),
        ("exact", method.exact in get_args(Exactness), f"one of {kinds}"),
        ("reference", isinstance(method.reference, Reference | None), "a sapc.methods.references.Reference, or None"),
        ("loss", _takes(method.loss, 5), "a function of (v, v0, v1, t, H)"),
        ("sample", _takes(method.sample, 4 + method.redraws), f"a function of (v, v1, H, steps{', redraw' * method.redraws})"),
    ):  # fmt: skip
        if not fine:
            raise SapcError(
                f"`{part}` of the method {method.name!r} must be {wanted}, got {_short(getattr(method, part))}"
            )
    whole(method.nfe, f"nfe of the method {method.name!r}", 1)
    whole(method.steps, f"number of steps of the method {method.name!r}", 1)


def _is_title(title: Any) -> bool:
    """It is a label in tables and figures, where $ would begin a formula."""
    return (
        isinstance(title, str)
        and title.isprintable()
        and 0 < len(title.strip()) <= LONGEST
        and "$" not in title
    )


def _takes(function: Any, number: int) -> bool:
    """Whether something can be called with so many arguments, as far as it tells."""
    try:
        inspect.signature(function).bind(*range(number))
    except ValueError:  # it does not tell
        return True
    except TypeError:
        return False
    return True


def _check_source(method: Method, source: str) -> None:
    name, known = method.name, METHODS.get(method.name)
    if not is_own(name):
        raise SapcError(f"the name {name!r} is that of a published method; give your own another name")
    if known is not None and known is not method and SOURCES[name] != source:
        raise SapcError(
            f"there is a method {name!r} already, from {SOURCES[name]}; give the one from {source} another name"
        )


def _check_others(method: Method, known: Mapping[str, Method]) -> None:
    """What it says of other methods."""
    of = known.get(method.weights) if isinstance(method.weights, str) else None
    if of is None:
        raise SapcError(
            f"the weights of the method {method.name!r} are those of {_short(method.weights)}, which is not known; "
            f"write weights={method.name!r} if it trains its own, else the name of the method that does"
        )
    if not of.trains:
        raise SapcError(
            f"the weights of the method {method.name!r} are those of {of.name!r}, which uses those of {of.weights!r} itself; "
            f"write weights={of.weights!r}"
        )
    if method.variant_of and method.variant_of not in known:
        raise SapcError(
            f"the method {method.name!r} is a variant of {_short(method.variant_of)}, which is not known"
        )


def _short(value: Any) -> str:
    return f"{value!r:.60}"
