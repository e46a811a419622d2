"""Methods by name; see `registry` for how one's own become known."""

from .._old_names import find_renamed
from .base import Loss, Method, SampleFunction, SecondObjective
from .registry import (
    EXTENSION_LABELS,
    METHODS,
    SOURCES,
    find_method,
    get_method,
    is_extension,
    is_user_defined,
    load_plugin,
    method_names,
    register_method,
)

__all__ = [
    "EXTENSION_LABELS",
    "METHODS",
    "SOURCES",
    "Loss",
    "Method",
    "SampleFunction",
    "SecondObjective",
    "find_method",
    "get_method",
    "is_extension",
    "is_user_defined",
    "load_plugin",
    "method_names",
    "register_method",
]

__getattr__ = find_renamed(__name__)
