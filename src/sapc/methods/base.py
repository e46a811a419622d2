"""What a method is: how a velocity is trained, and how a source draw is moved to a solution.

A method is a record. `loss(v, v0, v1, t, H)` is the training objective of one batch, `sample(v, v1, H, steps)` moves draws of the source to
fields; both see the velocity only as a callable and the physics only as a manifold H. `weights` names the method whose training it uses.
Everything else (drawing, optimising, devices, files) is common to all methods and lives elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from ..flow import Velocity
from ..projection import Manifold


@runtime_checkable
class Loss(Protocol):
    """The objective of a batch: data v0, source v1, flow times t, the manifolds H of the data."""

    def __call__(self, v: Velocity, v0: Tensor, v1: Tensor, t: Tensor, H: Manifold) -> Float[Tensor, ""]:
        """One number to minimise."""


@runtime_checkable
class Sampler(Protocol):
    """From draws of the source to fields, in `steps` steps; the result has the dtype of `v1`."""

    def __call__(self, v: Velocity, v1: Tensor, H: Manifold, steps: int = 100) -> Tensor:
        """Fields, one per draw."""


@dataclass(frozen=True)
class Method:
    """A published method; see the module docstring.

    weights      the method whose training this one uses, its own name if it trains itself
    exact        what of its samples' residuals vanishes by construction: nothing, or all of H
    nfe          network evaluations per sampling step
    constrained  whether its loss looks at H
    conditioned  whether its sampler does: then a condition has to be given
    """

    name: str
    title: str
    reference: str
    loss: Loss
    sample: Sampler
    weights: str
    exact: Literal["none", "all"]
    nfe: int = 1
    constrained: bool = False
    conditioned: bool = False

    def evaluations(self, steps: int) -> int:
        """Network evaluations per sample."""
        return self.nfe * steps
