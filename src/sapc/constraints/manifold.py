"""The manifold H of a batch of conditions, and its projection P.

    P(u) = argmin |u' - u|  over  u' in H = {u' : R(u') = 0}                                        (Eq. manifold)

Pins are eliminated: their values are written into u, and what remains is solved at the free points, which gives the same nearest point.
What is declared picks the algorithm:

    closed form            pins, and at most one `Balance` of an unchanging frame integral        O(grid), no iteration
    factorised             pins with `Affine` constraints (and frame integrals)                    one cached Cholesky factor
    banded Gauss-Newton    pins with one `Balance`, with or without rate and coefficient           O(grid) per iteration
    dense Gauss-Newton     anything else                                                           O(rows^2 points) per iteration

The projection can be differentiated in the fields and in the pinned values, with every solver: exactly at a nearest point, along the path
taken at a feasible one (see `feasible`), step by step for `GaussNewton`. What a constraint measured on its condition is a constant.
Arithmetic is float64 throughout; fields come back in the dtype they came in.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, SupportsIndex, cast, get_args
from weakref import WeakKeyDictionary, ref

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
from .projection.feasible import choose, sup
from .projection.gauss_newton import PinRows, project_gauss_newton
from .projection.linearisation import DenseProblem, Problem, norm
from .projection.nearest import NearestFunction, project_by_restoration
from .projection.solvers import FeasiblePoint, GaussNewton, NearestPoint, Solver
from .projection.tolerance import excess, row_tolerance
from .terms import Affine, Balance, ConstraintTerm

Algorithm = Literal["closed form", "factorised", "banded Gauss-Newton", "dense Gauss-Newton"]
JACOBIAN_BYTES = 2**27  # dense Jacobians of so many bytes are built at a time: small portions are fastest
MAX_BYTES = 2**33  # and one sample may need this much at most
CACHE_BYTES = 2**21  # so much of fields is projected at a time, on the CPU
APPROXIMATE_PASSES = (
    6  # passes; from white noise, the farthest start there is, the laws of the tasks need 3 to 6
)
EXTRA_STEPS = 2  # steps of an affine projection, at most, after the first one
NEAREST_FRACTION = 1e-6  # a correction with a smaller share along the manifold counts as shortest

_gram_cache: WeakKeyDictionary[ConstraintTerm, dict[tuple[object, ...], GramSolver]] = WeakKeyDictionary()


@dataclass(frozen=True)
class ProjectionInfo:
    """What a projection did, one entry per sample.

    residual    |R|_inf of the float64 result
    distance    |P(u) - u|
    tangential_fraction  share of the correction that lies along the manifold; zero at the nearest point
    iterations  linearisations used
    converged   whether every row is met, measured at the result in the row's own units (see `projection.tolerance`)
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
    """Constraints bound to the conditions of a batch, one condition per sample (a single one serves any batch)."""

    _checks = True  # whether `project` measures its result unless told

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
        """Bind constraints to fields in their units, once their pins are known to agree; see `check_pins`."""
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
        return len(self.fields)

    @explain_misuse
    def __getitem__(self, index: SupportsIndex | slice | Tensor) -> Manifold:
        """The manifolds of some of the samples."""
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
                    f"conditions are chosen by a number, a slice or a tensor of numbers, got {type(index).__name__}"
                ) from error
            if not -len(self) <= number < len(self):
                raise IndexError(f"condition {number} of {len(self)}")
            rows = torch.tensor([number % len(self)])
        rows, targets = rows.to(self.fields.device), self._bound.targets
        return self._replace_binding(
            self._bound.rebind(self.fields[rows], targets if len(targets) == 1 else targets[rows])
        )

    def __iter__(self) -> Iterator[Manifold]:
        return (self[i] for i in range(len(self)))

    @explain_misuse
    def rebind(self, fields: Shaped[Tensor, "other *grid"]) -> Manifold:
        """The same constraints, solver and algorithm for other conditions, on the same grid and device.

        Masks, indices and factors are shared and nothing waits for the device, so it costs nothing to call in a loop. That the fields
        are finite, and do not contradict a pin that has a value of its own, is the caller's to know: that value counts.
        """
        return self._replace_binding(self._bound.rebind(fields))

    on = rename_method("Manifold.on", "rebind")

    def _replace_binding(self, bound: Binding) -> Manifold:
        other = copy(self)
        other._bound, other.fields = bound, bound.fields
        return other

    def __and__(self, other: ConstraintTerm) -> Manifold:
        """These constraints and further ones, as `H & Pin(sensors)`; pinned values are those of `H.fields`."""
        if not isinstance(other, ConstraintTerm):
            return NotImplemented
        return Manifold.bind((*self._bound.parts, *other.parts), self.fields, solver=self.solver)

    @explain_misuse
    def to(self, device: torch.device | str) -> Manifold:
        """The same manifolds on another device."""
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
        """The same manifolds with other Gauss-Newton settings."""
        other = copy(self)
        other.solver = _check_solver(solver)
        return other

    def approximate(self, ahead: bool | None = None) -> Manifold:
        """Return the same manifolds for estimates within a sampling run: a feasible point is sought for a few passes only.

        Nearly every sample needs no more. The few that would need dozens, and would hold up their batch, are left near the manifold.
        `project` does not check its result, unless told to.

        Args:
            ahead: Whether all passes are queued, needed or not, so that the host never waits and can prepare the network instead.
                None: on a GPU, for banded laws, where a few kernels too many are cheaper than waiting.
        """
        other, solver = copy(self), self.solver
        other._checks = False
        if not self.affine and isinstance(solver, FeasiblePoint) and not isinstance(solver, NearestPoint):
            if ahead is None:
                # Not the dense passes, which cost more than waiting.
                ahead = self.fields.is_cuda and self.algorithm == "banded Gauss-Newton"
            how = replace(solver.execution, ahead=ahead)
            other.solver = replace(
                solver, passes=min(APPROXIMATE_PASSES, solver.passes), retry=False, execution=how
            )
        return other

    quick = rename_method("Manifold.quick", "approximate")

    def dense(self) -> Manifold:
        """The same manifolds through dense automatic differentiation: the oracle of the fast paths."""
        bound, targets = self._bound, self._bound.targets
        return Manifold(
            bound.parts, self.fields, solver=self.solver, algorithm="dense Gauss-Newton", targets=targets
        )

    # -- residuals --

    @explain_misuse
    def local(self, u: Shaped[Tensor, "batch *grid"]) -> Float[Tensor, "batch pinned"]:
        """The pin part of the residual: deviation from the prescribed values."""
        return (self._bound.validate(u) - self.fields).flatten(1)[:, self._bound.index].to(u.dtype)

    @explain_misuse
    def balance(self, u: Shaped[Tensor, "batch *grid"]) -> Float[Tensor, "batch rows"]:
        """The rest of the residual: balance laws and other constraints."""
        return (self._bound.measure(self._bound.validate(u)) - self._bound.targets).to(u.dtype)

    @explain_misuse
    def residual(self, u: Shaped[Tensor, "batch *grid"]) -> Float[Tensor, "batch rows"]:
        """The stacked residual R(u)."""
        return torch.cat((self.local(u), self.balance(u)), 1)

    # -- projection --

    @explain_misuse
    def project(
        self, u: Shaped[Tensor, "batch *grid"], *, check: bool | None = None
    ) -> Float[Tensor, "batch *grid"]:
        """P(u). With `check`, samples that missed the manifold or its nearest point are named in a warning.

        Checked unless told otherwise, but on manifolds that are `approximate`.

        Raises:
            SapcError: With `check`, the result has values that the dtype of `u` cannot hold.
        """
        check = self._checks if check is None else check
        projected, report = self._solve(u, report=check, ask=check)
        if check:
            _warn_about(
                ~report.converged, "did not reach the manifold", f"|R| {float(report.residual.max()):.1e}"
            )
            if isinstance(self.solver, NearestPoint):
                away = report.converged & ~report.nearest
                share = f"share along it {float(report.tangential_fraction.max()):.1e}"
                _warn_about(away, "are on the manifold, but not yet at its nearest point", share)
        return projected

    def finish(self, v0: Shaped[Tensor, "batch *grid"]) -> Float[Tensor, "batch *grid"]:
        """Project the end of a sampling run; fields that lie on an affine manifold already keep their bits."""
        if not self.affine:
            return self.project(v0)
        pinned = self.local(v0).flatten(1)
        is_there = self.is_met(v0) & (pinned == 0).all(1)
        return torch.where(expand_like(is_there, v0), v0, self.project(v0, check=False))

    @explain_misuse
    def solve(self, u: Shaped[Tensor, "batch *grid"]) -> tuple[Float[Tensor, "batch *grid"], ProjectionInfo]:
        """P(u) and what was reached, per sample."""
        return self._solve(u, report=True, ask=not (isinstance(u, Tensor) and u.is_cuda))

    def _solve(self, u: Tensor, report: bool, ask: bool) -> tuple[Tensor, ProjectionInfo]:
        """P(u); without `report` the parts of it that cost something beyond the projection are left at zero.

        A result that the caller's dtype cannot hold is not converged, and an error if the device may be asked (`ask`).
        """
        graph = torch.is_grad_enabled()  # asked first: leaving inference mode turns gradients on
        with torch.inference_mode(False), torch.set_grad_enabled(graph):
            start = self._bound.validate(u)
            if self.affine or not self._has_pin_rows:
                start = torch.where(self.pinned, self.fields, start)
            end, reached = (self._project_affine if self.affine else self._project_curved)(start, report)
            out = end.to(u.dtype)
            if report:
                with torch.no_grad():
                    reached = replace(reached, distance=norm(end - u))
                    if out.dtype != end.dtype:
                        held = (out.isfinite() | ~end.isfinite()).flatten(1).all(1)
                        if ask and not bool(held.all()):
                            raise _overflow(end[~held], u.dtype)
                        reached = replace(reached, converged=reached.converged & held)
            return out, reached

    def _project_affine(self, u: Tensor, report: bool) -> tuple[Tensor, ProjectionInfo]:
        """One step, and where the result is measured (`report`) further ones for the samples that rounding left off the manifold.

        A start much larger than the result costs digits, which the next step brings back. A GPU takes all steps instead of being asked.
        """
        end = self._step_affine(u)
        zero = u.new_zeros(len(u))
        size, fine = self._measure_affine(end.detach()) if report else (zero, zero == 0)
        for _ in range(EXTRA_STEPS if report and self._bound.laws else 0):
            if not u.is_cuda and bool(fine.all()):
                break
            end = choose(fine, end, self._step_affine(end.clone()))
            size, fine = self._measure_affine(end.detach())
        return end, ProjectionInfo(self.algorithm, size, zero, zero, zero.long() + 1, fine)

    def _step_affine(self, u: Tensor) -> Tensor:
        """Project fields that are the caller's to write into."""
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
        """How many fields a CPU works on at a time, so that they stay in its cache."""
        return max(1, CACHE_BYTES // (8 * self._bound.free.numel()))

    @property
    def _frame_integral(self) -> FrameIntegral:
        stored = self._bound.laws[0].stored  # type: ignore[union-attr]
        assert isinstance(stored, FrameIntegral)  # what makes a law closed form
        return stored

    def is_met(self, u: Shaped[Tensor, "batch *grid"], slack: float = 1.0) -> Bool[Tensor, " batch"]:
        """Tell of every field on an affine manifold whether each row is met, within `slack` times its tolerance (see `tolerance`)."""
        return self._measure_affine(self._bound.validate(u), slack)[1]

    def _measure_affine(self, end: Tensor, slack: float = 1.0) -> tuple[Tensor, Tensor]:
        """|R|_inf after an affine projection, and whether every row is met; see `tolerance`."""
        bound = self._bound
        if not bound.laws:  # nothing can be missed, but a field that is not finite is on no manifold
            fine = end.flatten(1).isfinite().all(1)
            return torch.where(fine, 0.0, torch.inf).to(end), fine
        with torch.no_grad():
            rows = bound.measure(end) - bound.targets
            if self.algorithm == "factorised":
                moved = end.flatten(1).abs() @ self._gram.full.abs().T
                terms = moved + bound.magnitude(end) + bound.targets.abs()
            else:
                parts = (self._frame_integral.weights_like(end)[..., None] * end).flatten(1, -2)
                terms = Balance.add_up(parts.abs().sum(1) + parts.sum(1).abs())
            return sup(rows), excess(rows, row_tolerance(terms)) <= slack

    @cached_property
    def _gram(self) -> GramSolver:
        bound = self._bound
        _check_memory(bound.targets.shape[1], bound.free.numel(), "factorised")
        anchor = next((law for law in bound.laws if isinstance(law, Affine)), bound.laws[0])
        known = _gram_cache.setdefault(anchor, {})
        laws = tuple(ref(law) for law in bound.laws)
        key = (laws, self.shape, bound.key, self.fields.device)
        if key not in known:
            for old in [k for k in known if any(law() is None for law in k[0])]:  # type: ignore[attr-defined]
                del known[old]
            known[key] = GramSolver(self._matrix(), bound.free)
        return known[key]

    def _matrix(self) -> Tensor:
        """A of all laws, row by row from their transposes."""
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
        """The pins as rows beside laws that move all points."""
        problem, bound = self._problem(), self._bound
        everywhere = torch.ones_like(bound.free)
        if isinstance(problem, BandedProblem):
            problem = replace(problem, free=everywhere, pin_index=bound.index[:0])
        else:
            problem = replace(problem, free=everywhere)
        return PinRows(problem, self.pinned, self.fields)

    def _project_curved(self, u: Tensor, report: bool) -> tuple[Tensor, ProjectionInfo]:
        problem = self._problem()
        if isinstance(problem, DenseProblem):
            rows, points = self._bound.targets.shape[1], self._bound.free.numel()
            chunk = max(1, JACOBIAN_BYTES // _check_memory(rows, points, "dense"))
        else:
            chunk = len(u) if u.is_cuda else self._chunk_size()
        portions = range(0, len(u), chunk)
        done = [self._run_solver(problem, u, i, min(i + chunk, len(u)), report) for i in portions]
        end, residual, tangential, iterations, converged = (
            column[0] if len(done) == 1 else torch.cat(column) for column in zip(*done, strict=True)
        )
        zero = torch.zeros_like(residual)
        return end, ProjectionInfo(self.algorithm, residual, zero, tangential, iterations, converged)

    def _run_solver(
        self, problem: Problem, u: Tensor, first: int, last: int, report: bool
    ) -> tuple[Tensor, ...]:
        pins = self._pin_rows() if self._has_pin_rows else None
        if (first, last) != (0, len(u)):
            problem, u = problem.select(torch.arange(first, last, device=u.device)), u[first:last]
            pins = None if pins is None else pins.select(first, last)
        if isinstance(self.solver, GaussNewton):
            out = project_gauss_newton(problem, u, self.solver, pins, report)
        elif isinstance(self.solver, NearestPoint):
            return NearestFunction.apply(u, problem, self.solver, self.fields.requires_grad)  # type: ignore[no-untyped-call, no-any-return]
        elif u.requires_grad:
            return FeasibleFunction.apply(u, problem, self.solver, report)  # type: ignore[no-untyped-call, no-any-return]
        else:  # nobody wants a derivative, so nothing is kept for one
            out = project_by_restoration(problem, u, self.solver, report)
        return out.field, out.residual, out.tangential_fraction, out.iterations, out.converged


def _check_solver(solver: Solver) -> Solver:
    if not isinstance(solver, Solver):
        raise SapcError(
            f"the solver must be sapc.NearestPoint(), sapc.FeasiblePoint() or sapc.GaussNewton(), got {solver!r}"
        )
    return solver


def _check_memory(rows: int, points: int, path: str) -> int:
    """Bytes of one Jacobian with its copies; too many are refused before they are asked for."""
    needed = 3 * 8 * rows * points
    if needed > MAX_BYTES:
        raise SapcError(
            f"the {path} projection needs a matrix of {rows} x {points} ({needed / 2**30:.0f} GiB with its copies); "
            "declare the structure (Pin, Balance with a FrameIntegral) or use a smaller grid"
        )
    return needed


def _overflow(end: Tensor, dtype: torch.dtype) -> SapcError:
    """The error for results that a dtype cannot hold."""
    largest = float(end[end.isfinite()].abs().max())
    return SapcError(
        f"the projection of {len(end)} fields has values up to {largest:.3g}, and {dtype} holds up to {torch.finfo(dtype).max:.3g}; "
        "give the fields in a wider dtype"
    )


def _warn_about(which: Tensor, what: str, worst: str) -> None:
    if not bool(which.any()):
        return
    rows = which.nonzero()[:, 0].tolist()
    names = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
    warnings.warn(
        f"{len(rows)} of {len(which)} fields {what} (largest {worst}; samples {names}); Manifold.solve reports each",
        SapcWarning,
        stacklevel=3,
    )
