"""Times of a sampling run: t_0 = 1 > t_1 > ... > t_N = 0 for any number of steps N.

What a state tells of its solution depends on the ratio of noise to data in it, so that distances between times
are measured in

    lambda(t) = log((1 - t) / t),     from -inf at t = 1, the source, to inf at t = 0, the data.

`Shift(a)` puts uniform times s through t = a s / (1 + (a - 1) s), which adds -log(a) to lambda: with a > 1 more
of them lie near the source. a = 1 are the uniform times of the paper.

`Curve` has the times where equal shares of a sampling run end, as `measure_curve` finds them for a network.
N steps take every (1/N)-th share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..errors import SapcError, check_int, check_number

TimeGrid = Callable[[int], tuple[float, ...]]
"""The N + 1 times of a run of N steps, from 1 down to 0."""


def log_ratio(t: float) -> float:
    """Evaluate lambda(t) = log((1 - t) / t).

    Args:
        t: A flow time in [0, 1].

    Returns:
        The logarithm of the ratio of data to noise; infinite at both ends.
    """
    if t in (0.0, 1.0):
        return math.inf if t == 0.0 else -math.inf
    return math.log1p(-t) - math.log(t)


def time_at(log_ratio: float) -> float:
    """Evaluate the inverse of `log_ratio`.

    Args:
        log_ratio: lambda, which may be infinite.

    Returns:
        The time t = 1 / (1 + exp(lambda)).
    """
    # exp of a large number overflows, of a small one it does not.
    ratio = math.exp(-abs(log_ratio))
    return (ratio if log_ratio > 0 else 1.0) / (1.0 + ratio)


@dataclass(frozen=True)
class Shift:
    """Uniform times, shifted towards the source.

    Attributes:
        a: How far: lambda is smaller by log(a). 1 for uniform times.

    Raises:
        SapcError: `a` is not a positive number.
    """

    a: float = 1.0

    def __post_init__(self) -> None:
        if not check_number(self.a, "shift of times") > 0:
            raise SapcError(f"the shift of times must be positive, got {self.a!r}")

    def __call__(self, steps: int) -> tuple[float, ...]:
        """Return the times of a run.

        Args:
            steps: Number of steps.

        Returns:
            The times, from 1 down to 0.
        """
        check_int(steps, "number of sampling steps", 1)
        uniform = (i / steps for i in range(steps - 1, 0, -1))
        return (1.0, *(self.a * s / (1.0 + (self.a - 1.0) * s) for s in uniform), 0.0)


UNIFORM = Shift(1.0)
"""The times of the paper."""


@dataclass(frozen=True)
class Curve:
    """Times where equal shares of a sampling run end, for one network.

    Attributes:
        times: Times that fall from 1 to 0; between two of them lies the same share of the run.

    Raises:
        SapcError: The times do not fall from 1 to 0.
    """

    times: Sequence[float]

    def __post_init__(self) -> None:
        times = tuple(check_number(t, "time of a curve") for t in self.times)
        if len(times) < 2 or (times[0], times[-1]) != (1.0, 0.0):
            raise SapcError("a curve of times runs from 1 to 0")
        if any(t <= s for t, s in pairwise(times)):
            raise SapcError("the times of a curve must fall, each below the one before")
        object.__setattr__(self, "times", times)

    def __call__(self, steps: int) -> tuple[float, ...]:
        """Return the times of a run.

        Args:
            steps: Number of steps.

        Returns:
            The times, from 1 down to 0.
        """
        check_int(steps, "number of sampling steps", 1)
        parts = len(self.times) - 1
        return (1.0, *(self._time(parts * i / steps) for i in range(1, steps)), 0.0)

    def _time(self, position: float) -> float:
        """Interpolate in lambda; in the two outer parts, where that is infinite, in t."""
        k = min(int(position), len(self.times) - 2)
        t, s, x = self.times[k], self.times[k + 1], position - k
        if t == 1.0 or s == 0.0:
            return (1.0 - x) * t + x * s
        return time_at((1.0 - x) * log_ratio(t) + x * log_ratio(s))
