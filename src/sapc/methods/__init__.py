"""Methods by name."""

from __future__ import annotations

from ..errors import SapcError
from .base import Loss, Method, Sampler
from .ffm import FFM
from .sapc import SAPC

METHODS = {method.name: method for method in (SAPC, FFM)}

__all__ = ["METHODS", "Loss", "Method", "Sampler", "get_method", "method_names"]


def method_names() -> list[str]:
    """Names of all methods."""
    return list(METHODS)


def get_method(name: str) -> Method:
    """The method of that name."""
    if name not in METHODS:
        raise SapcError(f"unknown method {name!r}; choose one of {', '.join(METHODS)}")
    return METHODS[name]
