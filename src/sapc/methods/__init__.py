"""Methods by name."""

from __future__ import annotations

from ..errors import SapcError
from .ablations import S1, S2, S3
from .base import Loss, Method, Penalty, Sampler
from .cafm import CAFM
from .cond_ffm import COND_FFM
from .dflow import DFLOW
from .eci import ECI, ECI_STOKES_BC, ECI_STOKES_IC
from .ffm import FFM
from .pbfm import PBFM
from .pcfm import PCFM
from .sapc import SAPC

METHODS = {
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
        CAFM,
        PBFM,
        DFLOW,
    )
}

__all__ = ["METHODS", "Loss", "Method", "Penalty", "Sampler", "get_method", "method_names"]


def method_names(variants: bool = False) -> list[str]:
    """Names of all methods; with `variants`, also of those that are another one's with other settings."""
    return [name for name, method in METHODS.items() if variants or not method.variant_of]


def get_method(name: str) -> Method:
    """The method of that name."""
    if name not in METHODS:
        raise SapcError(f"unknown method {name!r}; choose one of {', '.join(METHODS)}")
    return METHODS[name]
