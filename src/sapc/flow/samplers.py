"""Samplers: how a run from t = 1 to t = 0 is cut into steps, shared by all methods.

Let D be the estimate of the data along a run, v = (v_t - D) / t. With lambda = log((1 - t) / t), so that
1 / t = 1 + e^lambda, the flow is d(v_t / t) = D d(e^lambda): a step from t to s is

    v_s = (s/t) v_t + (1 - s/t) E,     E the average of D over e^lambda between t and s.

A stepper is a way to find E.

    Euler        E = D_n                                                        order 1, one evaluation a step
    Multistep    E = D_n + (h / (2 h')) (D_n - D_n'),  h = lambda(s) - lambda(t)       order 2, one evaluation
    Heun         the mean of the velocities at t and where Euler's step ends          order 2, two evaluations

with D_n', h' those of the step before. `Multistep` is of first order where lambda is infinite: in the first
two steps and the last. A method that keeps its estimates on a manifold projects E, which at s = 0 is the
sample: on an affine manifold all states stay on it.

A `Sampler` is a stepper with a grid of times. Methods that write their own steps share the loop `integrate`,
on uniform times:

    def step(vt, t, s):                            # a state at time t to the one at the earlier time s
        v0 = predict_data(vt, t, evaluate_velocity(v, vt, t))
        return step_toward(vt, H.project(v0), t, s)

    v0 = integrate(step, v1, steps=100)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from ..errors import SapcError, explain_misuse
from .path import Velocity, evaluate_velocity, predict_data, step_toward
from .time_grids import UNIFORM, TimeGrid, log_ratio

Step = Callable[[Tensor, float, float], Tensor]
"""`step(vt, t, s)`: states at time t to states at the earlier time s."""
Projection = Callable[[Tensor], Tensor]
"""Fields to fields on a manifold."""


# -- steppers --


@runtime_checkable
class Stepper(Protocol):
    """One step of a sampling run.

    Attributes:
        name: What commands and files call it.
        order: Order of convergence in the number of steps.
        evaluations: Evaluations of the network in a step, at most.
    """

    @property
    def name(self) -> str:
        """What commands and files call it."""

    @property
    def order(self) -> int:
        """Order of convergence in the number of steps."""

    @property
    def evaluations(self) -> int:
        """Evaluations of the network in a step that does not end at t = 0; one in that which does."""

    def step(
        self, v: Velocity, project: Projection, vt: Tensor, t: float, s: float, memory: Any
    ) -> tuple[Tensor, Any]:
        """Take states from time t to time s.

        Args:
            v: Velocity.
            project: Projection of estimates, the identity for methods without one.
            vt: States.
            t: Their time.
            s: The earlier time to reach.
            memory: What the step before returned, None in the first.

        Returns:
            States at time s, and what the next step needs to know.
        """


@dataclass(frozen=True)
class Euler:
    """The estimate stays what it is at the start of the step."""

    name: str = "euler"
    order: int = 1
    evaluations: int = 1

    def step(
        self, v: Velocity, project: Projection, vt: Tensor, t: float, s: float, memory: Any
    ) -> tuple[Tensor, Any]:
        """Take states from time t to time s; see `Stepper`."""
        estimate = predict_data(vt, t, evaluate_velocity(v, vt, t))
        return step_toward(vt, project(estimate), t, s), None


@dataclass(frozen=True)
class Multistep:
    """The estimate is extrapolated to the middle of the step, along the one before."""

    name: str = "multistep"
    order: int = 2
    evaluations: int = 1

    def step(
        self, v: Velocity, project: Projection, vt: Tensor, t: float, s: float, memory: Any
    ) -> tuple[Tensor, Any]:
        """Take states from time t to time s; the memory are the estimate of the step before and its length."""
        estimate = average = predict_data(vt, t, evaluate_velocity(v, vt, t))
        length = log_ratio(s) - log_ratio(t)
        if memory is not None and math.isfinite(length) and math.isfinite(memory[1]):
            last_estimate, last_length = memory
            average = estimate + (length / (2 * last_length)) * (estimate - last_estimate)
        return step_toward(vt, project(average), t, s), (estimate, length)


@dataclass(frozen=True)
class Heun:
    """The mean of two velocities: at the start of the step, and where Euler's step ends."""

    name: str = "heun"
    order: int = 2
    evaluations: int = 2

    def step(
        self, v: Velocity, project: Projection, vt: Tensor, t: float, s: float, memory: Any
    ) -> tuple[Tensor, Any]:
        """Take states from time t to time s; see `Stepper`."""
        estimate = project(predict_data(vt, t, evaluate_velocity(v, vt, t)))
        vs = step_toward(vt, estimate, t, s)
        if s == 0:
            return vs, None
        end_estimate = project(predict_data(vs, s, evaluate_velocity(v, vs, s)))
        slope = (vt - estimate) / t + (vs - end_estimate) / s
        return vt - (t - s) / 2 * slope, None


STEPPERS: dict[str, Stepper] = {stepper.name: stepper for stepper in (Euler(), Multistep(), Heun())}
"""Steppers by name."""


# -- the loop --


@dataclass(frozen=True)
class Sampler:
    """A stepper and its times.

    Attributes:
        stepper: How a step is taken.
        times: The times of a run, for any number of steps.

    Raises:
        SapcError: One of them is something else, as the name of a stepper.
    """

    stepper: Stepper
    times: TimeGrid = UNIFORM

    def __post_init__(self) -> None:
        if not isinstance(self.stepper, Stepper) or not callable(self.times):
            raise SapcError(
                "a sampler is made of a stepper, as STEPPERS['multistep'], and times, as Shift(4.0), all from "
                f"sapc.flow, got {self.stepper!r:.60} and {self.times!r:.60}"
            )

    @property
    def name(self) -> str:
        """Name of the stepper."""
        return self.stepper.name

    def evaluations(self, steps: int) -> int:
        """Count the evaluations of the network in a run.

        Args:
            steps: Number of steps.

        Returns:
            The number of evaluations; the last step, which ends at t = 0, has one.
        """
        return self.stepper.evaluations * (steps - 1) + 1

    def run(
        self, v: Velocity, v1: Tensor, steps: int, project: Projection = lambda estimate: estimate
    ) -> Tensor:
        """Take states from t = 1 to t = 0.

        Args:
            v: Velocity.
            v1: States at t = 1.
            steps: Number of steps.
            project: Projection of estimates.

        Returns:
            The states at t = 0.
        """
        vt, memory = v1, None
        for t, s in pairwise(self.times(steps)):
            vt, memory = self.stepper.step(v, project, vt, t, s, memory)
        return vt


EULER = Sampler(STEPPERS["euler"])
"""Euler's steps on uniform times, the sampler of the paper."""


@explain_misuse
def time_pairs(steps: int) -> Iterator[tuple[float, float]]:
    """Return the pairs (t, s) of a run on uniform times: t = 1, 1 - 1/N, ..., 1/N and s = t - 1/N.

    Args:
        steps: N, the number of steps.

    Returns:
        An iterator over the pairs. N that is not a whole number of at least 1 is a `SapcError`.
    """
    return pairwise(UNIFORM(steps))


def integrate(step: Step, v1: Tensor, steps: int) -> Tensor:
    """Take states from t = 1 to t = 0 on uniform times, one step after the other.

    Args:
        step: One step of a method.
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
