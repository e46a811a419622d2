"""The straight path between data and source, and the source itself.

path      the time convention, once: data at t = 0, source at t = 1
source    draws of the Gaussian process
"""

from .path import Velocity, at, endpoint, interpolate, mix, per_field, times, toward, within

__all__ = ["Velocity", "at", "endpoint", "interpolate", "mix", "per_field", "times", "toward", "within"]
