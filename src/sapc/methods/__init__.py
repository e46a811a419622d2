"""Methods by name; see `registry` for how one's own become known."""

from __future__ import annotations

from ..errors import SapcError, explain_misuse
from .base import Loss, Method, Penalty, Sampler
from .plugins import load_plugins, use
from .registry import METHODS, SOURCES, is_own, register_method

__all__ = [
    "METHODS",
    "SOURCES",
    "Loss",
    "Method",
    "Penalty",
    "Sampler",
    "find_method",
    "get_method",
    "is_own",
    "method_names",
    "register_method",
    "use",
]


@explain_misuse
def method_names(variants: bool = False, own: bool = True) -> list[str]:
    """Names of all methods; with `variants`, also of those that are another one's with other settings; without `own`, published ones."""
    if own:
        load_plugins()
    return [
        name
        for name, method in METHODS.items()
        if (variants or not method.variant_of) and (own or not is_own(name))
    ]


def find_method(name: str) -> Method | None:
    """The method of that name, if there is one."""
    if name not in METHODS:
        load_plugins()
    return METHODS.get(name)


@explain_misuse
def get_method(name: str) -> Method:
    """The method of that name."""
    found = find_method(name)
    if found is None:
        raise SapcError(
            f"unknown method {name!r:.60}; choose one of {', '.join(METHODS)}, or name the file that defines it: "
            "sapc --plugin FILE, in Python sapc.use(FILE)"
        )
    return found
