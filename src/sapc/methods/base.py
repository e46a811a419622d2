"""What a method is: how a velocity is trained, and how a source draw is moved to a solution.

A method is a record. `loss(v, v0, v1, t, H)` is the training objective of one batch, `sample(v, v1, H,
steps)` moves draws of the source to fields; both see the velocity only as a callable and the physics only as
a manifold H. `weights` names the method whose training it uses. Everything else (drawing, optimising,
devices, files) is common to all methods and lives elsewhere.

What a method promises is declared here and held against every method by one test suite: how often it
evaluates the network, what of its samples' residuals vanishes, whether a sample depends on its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from .._old_names import rename_fields
from ..constraints import Manifold
from ..errors import SapcError, explain_misuse
from ..flow import EULER, Sampler, Velocity
from .references import Reference

Exactness = Literal["none", "affine", "all"]


@runtime_checkable
class Loss(Protocol):
    """The objective of a batch: data v0, source v1, flow times t, the manifolds H of the data."""

    def __call__(self, v: Velocity, v0: Tensor, v1: Tensor, t: Tensor, H: Manifold) -> Float[Tensor, ""]:
        """One number to minimise."""


@runtime_checkable
class SampleFunction(Protocol):
    """From draws of the source to fields, in `steps` steps; the result has the dtype of `v1`."""

    def __call__(self, v: Velocity, v1: Tensor, H: Manifold, steps: int = 100) -> Tensor:
        """Return fields, one per draw.

        Args:
            v: Velocity.
            v1: Draws of the source `(batch, *grid)`.
            H: Manifolds of the conditions, one for all draws or one for each.
            steps: Number of steps.

        Returns:
            The fields. A method that `redraws_source` takes one argument more, see `Method.bind_source`, and
            so does one that `accepts_sampler`.
        """


@dataclass(frozen=True)
class SecondObjective:
    """A second objective of a training, and how its gradient is combined with that of the loss.

    Attributes:
        loss: As a method's loss, with the share of the training that is done, in [0, 1), as a further
            argument.
        combine: Function of the gradient of the loss and the gradient of this objective, both as one vector
            over all parameters, that returns the update.
    """

    loss: Callable[[Velocity, Tensor, Tensor, Tensor, Manifold, float], Tensor]
    combine: Callable[[Tensor, Tensor], Tensor]


@rename_fields(
    also="further_references", constrained="loss_uses_manifold", conditioned="sampler_uses_manifold",
    shows="conditioning_input", penalty="second_objective", bounded="clips_endpoint", joint="couples_batch",
    redraws="redraws_source",
)  # fmt: skip
@dataclass(frozen=True)
class Method:
    """A method; see the module docstring.

    Attributes:
        name: Small letters, digits and `_`; what commands and files call it.
        title: What it is in a few words: of one's own methods also the label in reports.
        loss: Training objective of one batch.
        sample: Sampling function, from draws of the source to fields.
        weights: Name of the method whose training this one uses; its own name if it trains itself.
        exact: On which manifolds the residuals of its samples vanish by construction: "none", "affine" ones
            or "all".
        reference: Where it was published, if it was.
        further_references: What else it rests on.
        nfe: Network evaluations per sampling step; those that are repeated for a gradient are not counted.
        steps: Default number of sampling steps.
        loss_uses_manifold: Whether its loss looks at H.
        sampler_uses_manifold: Whether its sampler or its network looks at H: then a condition has to be
            given.
        conditioning_input: What its network sees of H besides the state: a field `(condition, *grid)`, or
            `condition_fields` of them `(condition, condition_fields, *grid)`.
        condition_fields: Number of these fields.
        second_objective: A second objective of its training.
        t_min: Smallest flow time it is trained at.
        clips_endpoint: Whether a model clips its endpoint estimates to the range of the training data. Where
            they are joined to the initial draw again and again, errors of a network beyond its data would
            grow from step to step.
        couples_batch: Whether the samples of a batch depend on each other.
        redraws_source: Whether its sampler asks for fresh draws of the source.
        accepts_sampler: Whether it can sample by any `sapc.flow.Sampler`, given as `sampler=`, and not by
            its published steps alone.
        variant_of: Name of the method this one is a preset of.
    """

    name: str
    title: str
    loss: Loss
    sample: SampleFunction
    weights: str
    exact: Exactness
    reference: Reference | None = None
    further_references: tuple[Reference, ...] = ()
    nfe: int = 1
    steps: int = 100
    loss_uses_manifold: bool = False
    sampler_uses_manifold: bool = False
    conditioning_input: Callable[[Manifold], Tensor] | None = None
    condition_fields: int = 1
    second_objective: SecondObjective | None = None
    t_min: float = 0.0
    clips_endpoint: bool = False
    couples_batch: bool = False
    redraws_source: bool = False
    accepts_sampler: bool = False
    variant_of: str = ""

    def bind_source(self, redraw: Callable[[], Tensor], sampler: Sampler = EULER) -> SampleFunction:
        """Return the sampling function `(v, v1, H, steps)`.

        Args:
            redraw: Function that returns fresh draws of the source, for methods that ask for them.
            sampler: Stepper and times, for methods that accept them.

        Returns:
            The sampling function.

        Raises:
            SapcError: The method samples by its own steps, and another sampler is asked for.
        """
        self.check_sampler(sampler)
        sample: Callable[..., Tensor] = self.sample
        if self.redraws_source:
            return lambda v, v1, H, steps=self.steps: sample(v, v1, H, steps, redraw)
        if self.accepts_sampler:
            return partial(sample, sampler=sampler)
        return self.sample

    def check_sampler(self, sampler: Sampler) -> None:
        """Refuse another sampler than the published one, unless the method accepts any.

        Args:
            sampler: Stepper and times.

        Raises:
            SapcError: The method samples by its own steps.
        """
        if sampler != EULER and not self.accepts_sampler:
            raise SapcError(
                f"{self.name} samples by its own steps on uniform times; leave out the sampler, or give 'euler'"
            )

    @property
    def trains(self) -> bool:
        """Whether it has weights of its own; if not, it samples zero-shot with those of another."""
        return self.weights == self.name

    @explain_misuse
    def evaluations(self, steps: int | None = None, sampler: Sampler = EULER) -> int:
        """Count the network evaluations per sample.

        Args:
            steps: Number of sampling steps; the method's own unless given.
            sampler: Stepper and times.

        Returns:
            The number of evaluations.
        """
        steps = self.steps if steps is None else steps
        return sampler.evaluations(steps) if sampler != EULER else self.nfe * steps

    def velocity(self, network: Callable[..., Tensor], H: Manifold) -> Velocity:
        """Return the network as this method sees it: with the condition, if that is an input of the network.

        Args:
            network: Function of fields and times, and of the conditioning input if there is one.
            H: Manifolds of the batch.

        Returns:
            The velocity `(vt, t)`.
        """
        if self.conditioning_input is None:
            return network
        condition = self.conditioning_input(H)
        # One field has no axis for their number.
        lead = (self.condition_fields,) if self.condition_fields > 1 else ()
        if lead and tuple(condition.shape[1:]) != (*lead, *H.shape):
            raise SapcError(
                f"the conditioning input of {self.name} has shape {tuple(condition.shape)}; expected "
                f"(conditions, {', '.join(map(str, (*lead, *H.shape)))}), its {lead[0]} condition fields"
            )
        return lambda vt, t: network(vt, t, condition.to(vt).expand(len(vt), *lead, *vt.shape[1:]))
