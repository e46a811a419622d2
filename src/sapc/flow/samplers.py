"""The sampling loop that all methods share: a method writes a step, `integrate` walks the times of `path`.

def step(vt, t, s):                            # a state at time t to the one at the earlier time s
    v0 = predict_data(vt, t, evaluate_velocity(v, vt, t))
    return step_toward(vt, H.project(v0), t, s)

v0 = integrate(step, v1, steps=100)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from ..errors import SapcError, explain_misuse
from .path import Velocity, evaluate_velocity, predict_data, step_toward

Step = Callable[[Tensor, float, float], Tensor]
"""`step(vt, t, s)`: states at time t to states at the earlier time s."""


@explain_misuse
def time_pairs(steps: int) -> Iterator[tuple[float, float]]:
    """Return the pairs (t, s) of a sampling run: t = 1, 1 - 1/N, ..., 1/N and s = t - 1/N.

    Args:
        steps: N, the number of steps.

    Returns:
        An iterator over the pairs.

    Raises:
        SapcError: N is not a whole number of at least 1.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise SapcError(f"the number of sampling steps must be a whole number of at least 1, got {steps!r}")
    return ((i / steps, (i - 1) / steps) for i in range(steps, 0, -1))


def integrate(step: Step, v1: Tensor, steps: int) -> Tensor:
    """Take states from t = 1 to t = 0, one step after the other.

    Args:
        step: One step of a sampler.
        v1: Source draws.
        steps: Number of steps.

    Returns:
        Samples.
    """
    vt = v1
    for t, s in time_pairs(steps):
        vt = step(vt, t, s)
    return vt


def euler_step(v: Velocity, vt: Tensor, t: float, s: float) -> Tensor:
    """Move along the velocity.

    Args:
        v: The velocity.
        vt: States at time `t`.
        t: Their time.
        s: The time to reach, earlier than `t`.

    Returns:
        States at time `s`.
    """
    return step_toward(vt, predict_data(vt, t, evaluate_velocity(v, vt, t)), t, s)
