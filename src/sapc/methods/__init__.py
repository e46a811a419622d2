"""Methods by name; see `registry` for how one's own become known."""

from .base import Loss, Method, Penalty, Sampler
from .registry import METHODS, SOURCES, find_method, get_method, is_own, method_names, register_method, use

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
