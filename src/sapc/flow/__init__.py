"""The straight path between data and source, the source itself, and the sampling loop.

path      the time convention, once: data at t = 0, source at t = 1
samplers  the loop over times that all methods share, and Euler's step
source    draws of the Gaussian process
"""

from .._old_names import find_renamed
from .path import Velocity, at, endpoint, interpolate, mix, per_field, toward, within
from .samplers import Step, euler_step, integrate, time_pairs

__all__ = [
    "Step",
    "Velocity",
    "at",
    "endpoint",
    "euler_step",
    "integrate",
    "interpolate",
    "mix",
    "per_field",
    "time_pairs",
    "toward",
    "within",
]

__getattr__ = find_renamed(__name__)
