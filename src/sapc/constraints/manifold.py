"""The manifold H of a batch of conditions, and its projection P.

    P(u) = argmin |u' - u|  over  u' in H = {u' : R(u') = 0}                              (Eq. manifold)

Pins are eliminated: their values are written into u, and what remains is solved at the free points, which
gives the same nearest point. What is declared picks the algorithm; on the right its cost, of a step where it
iterates:

    closed form          pins, and at most one `Balance` of an unchanging frame integral   O(grid)
    factorised           pins with `Affine` constraints (and frame integrals)              one cached factor
    banded Gauss-Newton  pins with one `Balance`, with or without rate and coefficient     O(grid)
    dense Gauss-Newton   anything else                                                     O(rows^2 points)

The projection can be differentiated in the fields and in the pinned values, with every solver: exactly at a
nearest point, along the path taken at a feasible one (see `adjoint`), step by step for `GaussNewton`. What a
constraint measured on its condition is a constant. Arithmetic is float64 throughout; fields come back in the
dtype they came in.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Hashable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, SupportsIndex, cast, get_args, overload
from weakref import ref

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from .._old_names import old_attribute, rename_arguments, rename_method
from ..errors import SapcError, SapcWarning, explain_misuse
from ..flow.path import expand_like
from ..grid import FrameIntegral
from ._bound import Binding, check_pins, check_range
from .projection.adjoint import FeasibleFunction
from .projection.banded import BandedProblem
from .projection.closed_form import FrameShift, GramSolver
from .projection.feasible import choose
from .projection.gauss_newton import PinRows, project_gauss_newton
from .projection.linearisation import DenseProblem, Problem, norm
from .projection.nearest import NearestFunction, project_by_restoration
from .projection.solvers import FeasiblePoint, GaussNewton, NearestPoint, Solver
from .projection.tolerance import excess, row_tolerance, sup
from .terms import Affine, Balance, ConstraintTerm

Algorithm = Literal["closed form", "factorised", "banded Gauss-Newton", "dense Gauss-Newton"]
# Dense Jacobians of so many bytes are built at a time: small portions are fastest.
JACOBIAN_BYTES = 2**27
# And one sample may need this much at most.
MAX_BYTES = 2**33
# Factors of a law that are kept, for the latest sets of pinned points.
MAX_FACTORS = 16
# So much of fields is projected at a time, on the CPU.
CACHE_BYTES = 2**21
APPROXIMATE_PASSES = (
    # Passes; from white noise, the farthest start there is, the laws of the tasks need 3 to 6.
    6
)
# Steps of an affine projection, at most, after the first one.
EXTRA_STEPS = 2
# A correction with a smaller share along the manifold counts as shortest.
NEAREST_FRACTION = 1e-6


@dataclass(frozen=True)
class ProjectionInfo:
    """Result of a projection, one entry per sample.

    Attributes:
        algorithm: The algorithm that projected.
        residual: |R|_inf of the float64 result.
        distance: |P(u) - u|.
        tangential_fraction: Share of the correction that lies along the manifold; zero at the nearest point.
        iterations: Linearisations used.
        converged: Whether every row is met, measured at the result in the row's own units (see
            `projection.tolerance`).
    """

    algorithm: Algorithm
    residual: Tensor
    distance: Tensor
    tangential_fraction: Tensor
    iterations: Tensor
    converged: Tensor

    @property
    def nearest(self) -> Tensor:
        """Whether the point found is the nearest one, to six digits of the correction's direction."""
        return self.tangential_fraction <= NEAREST_FRACTION

    moved = old_attribute("ProjectionInfo.moved", "ProjectionInfo.distance")
    tangential = old_attribute("ProjectionInfo.tangential", "ProjectionInfo.tangential_fraction")


class Manifold:
    """Constraints bound to the conditions of a batch: one per sample, or a single one for any batch.

    Attributes:
        fields: The conditions, float64, with the values of pins that have their own.
        shape: Shape of one field.
        pinned: Mask of the pinned points.
        solver: The projector of a curved manifold.
        algorithm: The algorithm that projects.

    Args:
        parts: The constraints.
        fields: Conditions `(batch, *grid)`.
        solver: Projector of a curved manifold; None: `NearestPoint()`.
        algorithm: The algorithm; None: chosen by what the constraints declare.
        targets: Values that the rows of the laws must take; None: those of the constraints.
    """

    # Whether `project` measures its result unless told.
    _checks = True
    # Whether `finish` projects where it would wait for the device.
    _finishes = True

    @rename_arguments(wanted="targets")
    @explain_misuse
    def __init__(
        self,
        parts: tuple[ConstraintTerm, ...],
        fields: Tensor,
        *,
        solver: Solver | None = None,
        algorithm: str | None = None,
        targets: Tensor | None = None,
    ) -> None:
        self._bound = Binding(parts, fields, targets)
        self.fields, self.shape, self.pinned = self._bound.fields, self._bound.shape, self._bound.pinned
        self.solver = NearestPoint() if solver is None else _check_solver(solver)
        if algorithm not in (None, *get_args(Algorithm)):
            raise SapcError(
                f"unknown algorithm {algorithm!r}; choose one of {', '.join(get_args(Algorithm))}"
            )
        self.algorithm = cast(Algorithm, algorithm or self._choose())

    @classmethod
    def bind(cls, parts: tuple[ConstraintTerm, ...], fields: Tensor, **options: Any) -> Manifold:
        """Bind constraints to fields in their units, once their pins are known to agree.

        Args:
            parts: The constraints.
            fields: Conditions `(batch, *grid)`.
            **options: `solver` and `algorithm`.

        Returns:
            The manifolds, one per sample.
        """
        manifold = cls(parts, fields, **options)
        check_range(parts, fields)
        check_pins(parts, fields)
        return manifold

    def _choose(self) -> Algorithm:
        laws = self._bound.laws
        if len(laws) == 1 and isinstance(laws[0], Balance) and not laws[0].is_linear:
            return "banded Gauss-Newton"
        if not self._bound.affine:
            return "dense Gauss-Newton"
        needs_matrix = len(laws) > 1 or any(isinstance(law, Affine) for law in laws)
        return "factorised" if needs_matrix else "closed form"

    @property
    def affine(self) -> bool:
        """Whether the projection is affine: a closed form or a factor, no iteration."""
        return self.algorithm in ("closed form", "factorised")

    # -- batches of conditions --

    def __len__(self) -> int:
        """Return the number of conditions."""
        return len(self.fields)

    @explain_misuse
    def __getitem__(self, index: SupportsIndex | slice | Tensor) -> Manifold:
        """Return the manifolds of some of the samples.

        Args:
            index: A number, a slice, a mask or a tensor of numbers.

        Returns:
            Their manifolds.

        Raises:
            SapcError: The index is none of these.
            IndexError: There is no such condition.
        """
        if isinstance(index, slice):
            rows = torch.arange(len(self))[list(range(len(self))[index])]
        elif isinstance(index, Tensor) and index.ndim == 1:
            rows = index.nonzero()[:, 0] if index.dtype == torch.bool else index
            if rows.is_floating_point() or rows.is_complex():
                raise SapcError(f"conditions are counted by whole numbers, got {index.dtype}")
        else:
            try:
                number = operator.index(index)
            except TypeError as error:
                raise SapcError(
                    "conditions are chosen by a number, a slice or a tensor of numbers, got "
                    f"{type(index).__name__}"
                ) from error
            if not -len(self) <= number < len(self):
                raise IndexError(f"condition {number} of {len(self)}")
            rows = torch.tensor([number % len(self)])
        rows, targets = rows.to(self.fields.device), self._bound.targets
        return self._replace_binding(
            self._bound.rebind(self.fields[rows], targets if len(targets) == 1 else targets[rows])
        )

    def __iter__(self) -> Iterator[Manifold]:
        """Go through the manifolds, one condition at a time."""
        return (self[i] for i in range(len(self)))

    @explain_misuse
    def rebind(self, fields: Shaped[Tensor, "other *grid"]) -> Manifold:
        """Bind the same constraints to other conditions on the same grid and device.

        Masks, indices and factors are shared and nothing waits for the device, so it costs nothing to call in
        a loop. The caller has to know that the fields are finite and do not contradict a pin that has a value
        of its own: that value counts.

        Args:
            fields: Conditions `(batch, *grid)`.

        Returns:
            Manifolds with the same solver and algorithm.
        """
        return self._replace_binding(self._bound.rebind(fields))

    on = rename_method("Manifold.on", "rebind")

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """The numbers that differ between conditions: the fields, and the values that the rows must take."""
        return self.fields, self._bound.targets

    def with_tensors(self, fields: Tensor, targets: Tensor) -> Manifold:
        """Return manifolds of the same constraints with the `tensors` of others, unchecked, for one sampling run.

        Nothing of such a run may wait for the device or copy to it: `finish` is left to the caller, unless it
        `finishes_ahead`.

        Args:
            fields: Their fields.
            targets: The values that their rows must take.

        Returns:
            Manifolds with the same solver and algorithm.
        """
        bound = copy(self._bound)
        bound.fields, bound.targets = fields, targets
        # What is kept with the law may be forgotten there; a recorded run goes on to read it.
        if self.algorithm == "factorised":
            self._gram  # noqa: B018
        manifold = self._replace_binding(bound)
        manifold._finishes = self.finishes_ahead
        return manifold

    @property
    def finishes_ahead(self) -> bool:
        """Whether `finish` is the same kernels of ours each time; see `is_recordable`."""
        return self.algorithm == "closed form"

    @property
    def identity(self) -> Hashable:
        """What else tells manifolds apart: those of equal identity and `tensors` are the same."""
        bound = self._bound
        return bound.parts, bound.key, self.shape, self.solver, self.algorithm

    @property
    def is_recordable(self) -> bool:
        """Whether projections of estimates within a sampling run are the same kernels of ours each time.

        Then they neither wait for the device nor run functions of a user's own.
        """
        if self.affine:
            return True
        solver, laws = self.approximate().solver, self._bound.laws
        has_kernel = all(isinstance(law, Balance) and law.kernel is not None for law in laws)
        return has_kernel and isinstance(solver, FeasiblePoint) and solver.execution.ahead

    def _replace_binding(self, bound: Binding) -> Manifold:
        manifold = copy(self)
        manifold._bound, manifold.fields, manifold._finishes = bound, bound.fields, True
        return manifold

    def __and__(self, other: ConstraintTerm) -> Manifold:
        """Add constraints, as in `H & Pin(sensors)`; pinned values are those of `H.fields`."""
        if not isinstance(other, ConstraintTerm):
            return NotImplemented
        return Manifold.bind((*self._bound.parts, *other.parts), self.fields, solver=self.solver)

    @explain_misuse
    def to(self, device: torch.device | str) -> Manifold:
        """Move the manifolds to another device.

        Args:
            device: The device.

        Returns:
            The same manifolds there.

        Raises:
            SapcError: The device cannot be used.
        """
        try:
            fields, targets = self.fields.to(device), self._bound.targets.to(device)
        except (RuntimeError, AssertionError) as error:
            raise SapcError(
                f"the device {str(device)!r} cannot be used; use 'cpu', or 'cuda' where there is one"
            ) from error
        parts, solver = self._bound.parts, self.solver
        return Manifold(parts, fields, solver=solver, algorithm=self.algorithm, targets=targets)

    @explain_misuse
    def with_solver(self, solver: Solver) -> Manifold:
        """Project with another solver.

        Args:
            solver: `NearestPoint`, `FeasiblePoint` or `GaussNewton`, with its settings.

        Returns:
            The same manifolds with this solver.
        """
        manifold = copy(self)
        manifold.solver = _check_solver(solver)
        return manifold

    def approximate(self, ahead: bool | None = None) -> Manifold:
        """Return the same manifolds for estimates within a sampling run: a few passes only.

        A feasible point is sought, and nearly every sample needs no more passes. The few that would need
        dozens, and would hold up their batch, are left near the manifold. `project` does not check its
        result, unless asked to.

        Args:
            ahead: Whether all passes are queued, needed or not, so that the host never waits and can prepare
                the network instead. None: on a GPU, for banded laws, where a few kernels too many are cheaper
                than waiting.

        Returns:
            The manifolds with such a solver.
        """
        manifold, solver = copy(self), self.solver
        manifold._checks = False
        if not self.affine and isinstance(solver, FeasiblePoint) and not isinstance(solver, NearestPoint):
            if ahead is None:
                # Not the dense passes, which cost more than waiting.
                ahead = self.fields.is_cuda and self.algorithm == "banded Gauss-Newton"
            execution = replace(solver.execution, ahead=ahead)
            manifold.solver = replace(
                solver, passes=min(APPROXIMATE_PASSES, solver.passes), retry=False, execution=execution
            )
        return manifold

    quick = rename_method("Manifold.quick", "approximate")

    def dense(self) -> Manifold:
        """Return the same manifolds through dense automatic differentiation: the oracle of the fast paths.

        Returns:
            Manifolds whose algorithm is dense Gauss-Newton.
        """
        bound, targets = self._bound, self._bound.targets
        return Manifold(
            bound.parts, self.fields, solver=self.solver, algorithm="dense Gauss-Newton", targets=targets
        )

    # -- residuals --

    @explain_misuse
    def local(self, u: Shaped[Tensor, "batch *grid"]) -> Float[Tensor, "batch pinned"]:
        """Return the part of the residual that belongs to the pins: the deviation from the prescribed values.

        Args:
            u: Fields `(batch, *grid)`.

        Returns:
            Deviations at the pinned points, `(batch, pinned)`.
        """
        return (self._bound.validate(u) - self.fields).flatten(1)[:, self._bound.index].to(u.dtype)

    @explain_misuse
    def balance(self, u: Shaped[Tensor, "batch *grid"]) -> Float[Tensor, "batch rows"]:
        """Return the part of the residual that belongs to the laws: balance laws and other constraints.

        Args:
            u: Fields `(batch, *grid)`.

        Returns:
            Their rows, `(batch, rows)`.
        """
        return (self._bound.measure(self._bound.validate(u)) - self._bound.targets).to(u.dtype)

    @explain_misuse
    def residual(self, u: Shaped[Tensor, "batch *grid"]) -> Float[Tensor, "batch rows"]:
        """Return the stacked residual R(u): pins first, then laws.

        Args:
            u: Fields `(batch, *grid)`.

        Returns:
            The residual, `(batch, rows)`; zero on the manifold.
        """
        return torch.cat((self.local(u), self.balance(u)), 1)

    # -- projection --

    @overload
    def project(
        self,
        u: Shaped[Tensor, "batch *grid"],
        *,
        check: bool | None = None,
        return_info: Literal[False] = False,
    ) -> Float[Tensor, "batch *grid"]: ...

    @overload
    def project(
        self, u: Shaped[Tensor, "batch *grid"], *, check: bool | None = None, return_info: Literal[True]
    ) -> tuple[Float[Tensor, "batch *grid"], ProjectionInfo]: ...

    @explain_misuse
    def project(
        self, u: Shaped[Tensor, "batch *grid"], *, check: bool | None = None, return_info: bool = False
    ) -> Float[Tensor, "batch *grid"] | tuple[Float[Tensor, "batch *grid"], ProjectionInfo]:
        """Project fields onto the manifold.

        With `check`, a result that the dtype of `u` cannot hold is an error. Projections can be
        differentiated.

        Args:
            u: Fields `(batch, *grid)`.
            check: Warn about samples that missed the manifold or its nearest point, by their numbers. None:
                yes, unless the manifold is `approximate()` or `return_info` is set.
            return_info: Also return what the projection did.

        Returns:
            P(u), in the dtype of `u`; with `return_info`, also a `ProjectionInfo`.
        """
        if check is None:
            check = self._checks and not return_info
        may_wait = check or (return_info and not (isinstance(u, Tensor) and u.is_cuda))
        result, info = self._project_and_measure(u, check or return_info, may_wait, return_info)
        if check:
            _warn_about(~info.converged, "did not reach the manifold", "|R|", info.residual)
            if isinstance(self.solver, NearestPoint):
                is_far = info.converged & ~info.nearest
                message = "are on the manifold, but not yet at its nearest point"
                _warn_about(is_far, message, "share along it", info.tangential_fraction)
        return (result, info) if return_info else result

    def finish(self, v0: Shaped[Tensor, "batch *grid"]) -> Float[Tensor, "batch *grid"]:
        """Project the end of a sampling run; fields that lie on an affine manifold already keep their bits.

        Args:
            v0: Fields `(batch, *grid)`.

        Returns:
            Fields on the manifold.
        """
        if not self._finishes:
            return v0
        if not self.affine:
            return self.project(v0)
        pin_residual = self.local(v0).flatten(1)
        is_there = self.is_met(v0) & (pin_residual == 0).all(1)
        return torch.where(expand_like(is_there, v0), v0, self.project(v0, check=False))

    @explain_misuse
    def solve(self, u: Shaped[Tensor, "batch *grid"]) -> tuple[Float[Tensor, "batch *grid"], ProjectionInfo]:
        """Project fields, and report on every sample: `project(u, return_info=True)`.

        Args:
            u: Fields `(batch, *grid)`.

        Returns:
            P(u), in the dtype of `u`, and a `ProjectionInfo`.
        """
        return self.project(u, return_info=True)

    def _project_and_measure(
        self, u: Tensor, measure: bool, may_wait: bool, is_full: bool = True
    ) -> tuple[Tensor, ProjectionInfo]:
        """Project, and measure the result.

        Args:
            u: Fields of the caller.
            measure: Fill in the parts of the record that cost something beyond the projection; they are zero
                otherwise.
            may_wait: Whether the device may be asked; a result that the caller's dtype cannot hold is then an
                error, and else only not converged.
            is_full: Whether all of the record is wanted, or only which samples converged, which a feasible
                point knows without a further linearisation.

        Returns:
            P(u) and its record.
        """
        # Asked first: leaving inference mode turns gradients on.
        graph = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(graph):
            start = self._bound.validate(u)
            if self.affine or not self._has_pin_rows:
                start = torch.where(self.pinned, self.fields, start)
            measure_end = measure and (is_full or self.affine or type(self.solver) is not FeasiblePoint)
            end, info = (self._project_affine if self.affine else self._project_curved)(start, measure_end)
            out = end.to(u.dtype)
            if measure:
                with torch.no_grad():
                    info = replace(info, distance=norm(end - u))
                    if out.dtype != end.dtype:
                        is_representable = (out.isfinite() | ~end.isfinite()).flatten(1).all(1)
                        if may_wait and not bool(is_representable.all()):
                            _refuse_overflow(end[~is_representable], u.dtype)
                        info = replace(info, converged=info.converged & is_representable)
            return out, info

    def _project_affine(self, u: Tensor, measure: bool) -> tuple[Tensor, ProjectionInfo]:
        """Take one step and, with `measure`, further ones for samples that rounding left off the manifold.

        A start much larger than the result costs digits, which the next step brings back. A GPU takes all
        steps instead of being asked.

        Args:
            u: Fields that may be written into.
            measure: Whether the result is measured.

        Returns:
            P(u) and its record.
        """
        end = self._step_affine(u)
        zero = u.new_zeros(len(u))
        size, is_on_manifold = self._measure_affine(end.detach()) if measure else (zero, zero == 0)
        for _ in range(EXTRA_STEPS if measure and self._bound.laws else 0):
            if not u.is_cuda and bool(is_on_manifold.all()):
                break
            end = choose(is_on_manifold, end, self._step_affine(end.clone()))
            size, is_on_manifold = self._measure_affine(end.detach())
        return end, ProjectionInfo(self.algorithm, size, zero, zero, zero.long() + 1, is_on_manifold)

    def _step_affine(self, u: Tensor) -> Tensor:
        """Project fields that may be written into."""
        bound = self._bound
        if self.algorithm == "factorised":
            return self._gram.project(u, bound.targets)
        if not bound.laws:
            return u
        if "shift" not in bound.cache:
            bound.cache["shift"] = FrameShift(self._frame_integral, bound.free)
        for part in (u,) if u.is_cuda or u.requires_grad else torch.split(u, self._chunk_size()):
            bound.cache["shift"](part)
        return u

    def _chunk_size(self) -> int:
        """Return how many fields a CPU works on at a time, so that they stay in its cache."""
        return max(1, CACHE_BYTES // (8 * self._bound.free.numel()))

    @property
    def _frame_integral(self) -> FrameIntegral:
        quantity = self._bound.laws[0].stored  # type: ignore[union-attr]
        # What makes a law closed form.
        assert isinstance(quantity, FrameIntegral)
        return quantity

    def is_met(self, u: Shaped[Tensor, "batch *grid"], slack: float = 1.0) -> Bool[Tensor, " batch"]:
        """Tell of every field on an affine manifold whether each row is met.

        Args:
            u: Fields `(batch, *grid)`.
            slack: How many tolerances a row may be off (see `tolerance`).

        Returns:
            One answer per sample, `(batch,)`.
        """
        return self._measure_affine(self._bound.validate(u), slack)[1]

    def _measure_affine(self, end: Tensor, slack: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return |R|_inf after an affine projection, and whether every row is met; see `tolerance`."""
        bound = self._bound
        # Nothing can be missed, but a field that is not finite is on no manifold.
        if not bound.laws:
            is_on_manifold = end.flatten(1).isfinite().all(1)
            return torch.where(is_on_manifold, 0.0, torch.inf).to(end), is_on_manifold
        with torch.no_grad():
            rows = bound.measure(end) - bound.targets
            if self.algorithm == "factorised":
                sizes = end.flatten(1).abs() @ self._gram.full.abs().T
                terms = sizes + bound.magnitude(end) + bound.targets.abs()
            else:
                parts = (self._frame_integral.weights_like(end)[..., None] * end).flatten(1, -2)
                terms = Balance.add_up(parts.abs().sum(1) + parts.sum(1).abs())
            return sup(rows), excess(rows, row_tolerance(terms)) <= slack

    @cached_property
    def _gram(self) -> GramSolver:
        bound = self._bound
        _check_memory(bound.targets.shape[1], bound.free.numel(), "factorised")
        anchor = next((law for law in bound.laws if isinstance(law, Affine)), bound.laws[0])
        # Kept with that law, as long as it lives; see `ConstraintTerm.__getstate__`.
        solvers: dict[tuple[Any, ...], GramSolver] = anchor.__dict__.setdefault("_gram_solvers", {})
        laws = tuple(ref(law) for law in bound.laws)
        key = (laws, self.shape, bound.key, self.fields.device)
        if key not in solvers:
            for stale_key in [k for k in solvers if any(law() is None for law in k[0])]:
                del solvers[stale_key]
            # A training with sensors has another mask in each step.
            while len(solvers) >= MAX_FACTORS:
                del solvers[next(iter(solvers))]
            solvers[key] = GramSolver(self._matrix(), bound.free)
        return solvers[key]

    def _matrix(self) -> Tensor:
        """Build A of all laws, row by row from their transposes."""
        with torch.enable_grad():
            rows, pullback = torch.func.vjp(self._bound.measure, torch.zeros_like(self.fields[:1]))  # type: ignore[misc]
        unit = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)[:, None]
        matrix = torch.cat([pullback(row)[0].detach().flatten(1) for row in unit])
        if not bool(matrix.isfinite().all()):
            raise SapcError("the matrix of an Affine constraint contains NaN or infinity")
        return matrix

    def _problem(self) -> BandedProblem | DenseProblem:
        bound = self._bound
        if self.algorithm == "banded Gauss-Newton":
            # Between two frames without free points the rows of a law can depend on each other.
            jitter = 1e-12 if bound.full_frames > 1 else 0.0
            return BandedProblem(bound.laws[0], bound.free, bound.index, jitter, bound.key)  # type: ignore[arg-type]
        return DenseProblem(bound.measure, bound.targets, bound.free, bound.magnitude)

    @property
    def _has_pin_rows(self) -> bool:
        return isinstance(self.solver, GaussNewton) and self.solver.pin_rows

    def _pin_rows(self) -> PinRows:
        """Return the pins as rows beside laws that move all points."""
        problem, bound = self._problem(), self._bound
        all_points = torch.ones_like(bound.free)
        if isinstance(problem, BandedProblem):
            problem = replace(problem, free=all_points, pin_index=bound.index[:0])
        else:
            problem = replace(problem, free=all_points)
        return PinRows(problem, self.pinned, self.fields)

    def _project_curved(self, u: Tensor, measure: bool) -> tuple[Tensor, ProjectionInfo]:
        problem = self._problem()
        if isinstance(problem, DenseProblem):
            rows, points = self._bound.targets.shape[1], self._bound.free.numel()
            chunk = max(1, JACOBIAN_BYTES // _check_memory(rows, points, "dense"))
        else:
            chunk = len(u) if u.is_cuda else self._chunk_size()
        portions = range(0, len(u), chunk)
        results = [self._run_solver(problem, u, i, min(i + chunk, len(u)), measure) for i in portions]
        end, residual, tangential, iterations, converged = (
            column[0] if len(results) == 1 else torch.cat(column) for column in zip(*results, strict=True)
        )
        zero = torch.zeros_like(residual)
        return end, ProjectionInfo(self.algorithm, residual, zero, tangential, iterations, converged)

    def _run_solver(
        self, problem: Problem, u: Tensor, first: int, last: int, measure: bool
    ) -> tuple[Tensor, ...]:
        pins = self._pin_rows() if self._has_pin_rows else None
        if (first, last) != (0, len(u)):
            problem, u = problem.select(torch.arange(first, last, device=u.device)), u[first:last]
            pins = None if pins is None else pins.select(first, last)
        if isinstance(self.solver, GaussNewton):
            out = project_gauss_newton(problem, u, self.solver, pins, measure)
        elif isinstance(self.solver, NearestPoint):
            return NearestFunction.apply(u, problem, self.solver, self.fields.requires_grad)  # type: ignore[no-untyped-call, no-any-return]
        elif u.requires_grad:
            return FeasibleFunction.apply(u, problem, self.solver, measure)  # type: ignore[no-untyped-call, no-any-return]
        # Nobody wants a derivative, so nothing is kept for one.
        else:
            out = project_by_restoration(problem, u, self.solver, measure)
        return out.field, out.residual, out.tangential_fraction, out.iterations, out.converged


def _check_solver(solver: Solver) -> Solver:
    if not isinstance(solver, Solver):
        raise SapcError(
            "the solver must be sapc.NearestPoint(), sapc.FeasiblePoint() or sapc.GaussNewton(), got "
            f"{solver!r}"
        )
    return solver


def _check_memory(rows: int, points: int, path: str) -> int:
    """Return the bytes of one Jacobian with its copies; refuse too many before they are asked for."""
    n_bytes = 3 * 8 * rows * points
    if n_bytes > MAX_BYTES:
        raise SapcError(
            f"the {path} projection needs a matrix of {rows} x {points} ({n_bytes / 2**30:.0f} GiB with its "
            "copies); declare the structure (Pin, Balance with a FrameIntegral) or use a smaller grid"
        )
    return n_bytes


def _refuse_overflow(end: Tensor, dtype: torch.dtype) -> None:
    """Refuse results that a dtype cannot hold."""
    largest = float(end[end.isfinite()].abs().max())
    raise SapcError(
        f"the projection of {len(end)} fields has values up to {largest:.3g}, and {dtype} holds up to "
        f"{torch.finfo(dtype).max:.3g}; give the fields in a wider dtype"
    )


def _warn_about(samples: Tensor, message: str, name: str, sizes: Tensor) -> None:
    if not bool(samples.any()):
        return
    worst = f"{name} {float(sizes.max()):.1e}"
    rows = samples.nonzero()[:, 0].tolist()
    names = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
    warnings.warn(
        f"{len(rows)} of {len(samples)} fields {message} (largest {worst}; samples {names}); Manifold.solve "
        "reports each",
        SapcWarning,
        stacklevel=3,
    )
