"""What a method is: how a velocity is trained, and how a source draw is moved to a solution.

A method is a record. `loss(v, v0, v1, t, H)` is the training objective of one batch, `sample(v, v1, H, steps)` moves draws of the source to
fields; both see the velocity only as a callable and the physics only as a manifold H. `weights` names the method whose training it uses.
Everything else (drawing, optimising, devices, files) is common to all methods and lives elsewhere.

What a method promises is declared here and held against every method by one test suite: how often it evaluates the network, what of its
samples' residuals vanishes, whether a sample depends on its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from ..constraints import Manifold
from ..errors import explain_misuse
from ..flow import Velocity
from .references import Reference

Exactness = Literal["none", "affine", "all"]


@runtime_checkable
class Loss(Protocol):
    """The objective of a batch: data v0, source v1, flow times t, the manifolds H of the data."""

    def __call__(self, v: Velocity, v0: Tensor, v1: Tensor, t: Tensor, H: Manifold) -> Float[Tensor, ""]:
        """One number to minimise."""


@runtime_checkable
class Sampler(Protocol):
    """From draws of the source to fields, in `steps` steps; the result has the dtype of `v1`."""

    def __call__(self, v: Velocity, v1: Tensor, H: Manifold, steps: int = 100) -> Tensor:
        """Return fields, one per draw. A method that `redraws` takes one argument more, see `Method.bind_source`."""


@dataclass(frozen=True)
class Penalty:
    """A second objective, and how its gradient is combined with that of the loss.

    loss      as a method's loss, with the share of the training that is done, in [0, 1), as a further argument
    combine   (gradient of the loss, gradient of this) -> the update, both as one vector over all parameters
    """

    loss: Callable[[Velocity, Tensor, Tensor, Tensor, Manifold, float], Tensor]
    combine: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Method:
    """A method; see the module docstring.

    name         small letters, digits and _
    title        what it is in a few words: of one's own methods also the label in reports
    weights      the method whose training this one uses, its own name if it trains itself
    exact        where its samples' residuals vanish by construction: nowhere, on affine manifolds, on all
    reference    where it was published, if it was; also: what else it rests on
    nfe          network evaluations per sampling step, those that are repeated for a gradient not counted
    steps        of its sampler, unless told
    constrained  whether its loss looks at H
    conditioned  whether its sampler or its network does: then a condition has to be given
    shows        what its network sees of H besides the state: one more input channel
    penalty      a second objective of its training
    t_min        the smallest flow time it is trained at
    bounded      whether a model cuts its estimates off at the range of the training data: joined to the initial draw again and again,
                 errors of a network beyond its data would grow from step to step
    joint        whether the samples of a batch depend on each other
    redraws      whether its sampler asks for fresh draws of the source
    variant_of   the method whose settings these are other ones of
    """

    name: str
    title: str
    loss: Loss
    sample: Sampler
    weights: str
    exact: Exactness
    reference: Reference | None = None
    also: tuple[Reference, ...] = ()
    nfe: int = 1
    steps: int = 100
    constrained: bool = False
    conditioned: bool = False
    shows: Callable[[Manifold], Tensor] | None = None
    penalty: Penalty | None = None
    t_min: float = 0.0
    bounded: bool = False
    joint: bool = False
    redraws: bool = False
    variant_of: str = ""

    def bind_source(self, redraw: Callable[[], Tensor]) -> Sampler:
        """Return the sampler `(v, v1, H, steps)`, given a function that draws the source afresh, which some methods ask for."""
        if not self.redraws:
            return self.sample
        sample: Callable[..., Tensor] = self.sample
        return lambda v, v1, H, steps=self.steps: sample(v, v1, H, steps, redraw)

    @property
    def trains(self) -> bool:
        """Whether it has weights of its own; if not, it samples zero-shot with those of another."""
        return self.weights == self.name

    @explain_misuse
    def evaluations(self, steps: int | None = None) -> int:
        """Network evaluations per sample."""
        return self.nfe * (self.steps if steps is None else steps)

    def velocity(self, network: Callable[..., Tensor], H: Manifold) -> Velocity:
        """The network as this method sees it: with the condition, where it is shown to it."""
        if self.shows is None:
            return network
        shown = self.shows(H)
        return lambda vt, t: network(vt, t, shown.to(vt).expand_as(vt))
