"""The straight path between data and source, the source itself, and the sampling loop.

path        the time convention, once, and the straight path
time_grids  the times of a sampling run
samplers    steppers, and the loop over times that all methods share
source      draws of the Gaussian process
"""

from .._old_names import find_renamed
from .path import (
    Velocity,
    clip_endpoint,
    evaluate_velocity,
    expand_like,
    interpolate,
    mix,
    predict_data,
    step_toward,
)
from .samplers import EULER, STEPPERS, Sampler, Step, Stepper, euler_step, integrate, time_pairs
from .time_grids import UNIFORM, Curve, Shift, TimeGrid

__all__ = [
    "EULER",
    "STEPPERS",
    "UNIFORM",
    "Curve",
    "Sampler",
    "Shift",
    "Step",
    "Stepper",
    "TimeGrid",
    "Velocity",
    "clip_endpoint",
    "euler_step",
    "evaluate_velocity",
    "expand_like",
    "integrate",
    "interpolate",
    "mix",
    "predict_data",
    "step_toward",
    "time_pairs",
]

__getattr__ = find_renamed(__name__)
