"""The manifold H of a batch of conditions, and its projection P.

    P(u) = argmin |u' - u|  over  u' in H = {u' : R(u') = 0}                                        (Eq. manifold)

Pins are eliminated: their values are written into u, and what remains is solved at the free points, which gives the same nearest point.
What is declared picks the algorithm:

    closed form            pins, and at most one `Balance` of an unchanging frame integral        O(grid), no iteration
    factorised             pins with `Affine` constraints (and frame integrals)                    one cached Cholesky factor
    banded Gauss-Newton    pins with one `Balance`, with or without rate and coefficient           O(grid) per iteration
    dense Gauss-Newton     anything else                                                           O(rows^2 points) per iteration

Arithmetic is float64 throughout; fields come back in the dtype they came in.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal
from weakref import WeakKeyDictionary, ref

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ..constraints import Affine, Balance, Constraint, Pin, Stackable
from ..errors import SapcError, SapcWarning
from ..grid import FrameIntegral
from .affine import GramSolver, project_conserved
from .gauss_newton import Globalised, Nearest, Plain, Solver, project_plain
from .problem import Banded, Dense, Problem, norm

Algorithm = Literal["closed form", "factorised", "banded Gauss-Newton", "dense Gauss-Newton"]
JACOBIAN_BYTES = (
    2**27
)  # dense Jacobians are built for as many samples at a time as fit in this: small portions are fastest
MOST_BYTES = 2**33  # and one sample may need this much at most
CACHE_BYTES = 2**21  # banded problems are solved for as many fields at a time, on the CPU

_grams: WeakKeyDictionary[Stackable, dict[tuple[object, ...], GramSolver]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Report:
    """What a projection did, one entry per sample.

    residual    |R|_inf afterwards
    moved       |P(u) - u|
    tangential  share of the correction that lies along the manifold; zero at the nearest point
    iterations  linearisations used
    converged   whether the residual is within the solver's tolerance
    """

    algorithm: Algorithm
    residual: Tensor
    moved: Tensor
    tangential: Tensor
    iterations: Tensor
    converged: Tensor


class Manifold:
    """Constraints bound to the conditions of a batch, one condition per sample (a single one serves any batch)."""

    def __init__(
        self,
        parts: tuple[Stackable, ...],
        fields: Tensor,
        *,
        solver: Solver | None = None,
        algorithm: Algorithm | None = None,
    ) -> None:
        if fields.ndim < 3 or not fields.is_floating_point() or len(fields) == 0:
            raise SapcError(
                f"conditions must be floating-point fields (batch, *space, time), got {fields.dtype} {tuple(fields.shape)}"
            )
        if bad := int((~fields.detach().flatten(1).isfinite().all(1)).sum()):
            raise SapcError(
                f"{bad} of {len(fields)} conditioning fields contain NaN or infinity; remove them first"
            )
        if unknown := [p for p in parts if not isinstance(p, Pin | Balance | Constraint)]:
            raise SapcError(
                f"a manifold is made of Pin, Balance, Affine and Constraint, got {type(unknown[0]).__name__}"
            )
        self.parts, self.solver = parts, solver or Globalised()
        self.fields = fields.double()
        self.shape = tuple(fields.shape[1:])
        pinned = torch.zeros(self.shape, dtype=torch.bool)
        for pin in parts:
            if isinstance(pin, Pin):
                pinned |= pin.mask(self.shape)
        self._index = pinned.flatten().nonzero()[:, 0].to(fields.device)
        self.pinned = pinned.to(fields.device)
        self.free = (~self.pinned).to(self.fields)
        self.laws = tuple(p for p in parts if not isinstance(p, Pin))
        self._targets = {law: self._target(law) for law in self.laws if isinstance(law, Constraint)}
        self.algorithm: Algorithm = algorithm or self._choose()

    def _target(self, law: Constraint) -> Tensor:
        if isinstance(law.value, str):
            if law.value != "field":
                raise SapcError(
                    f'a constraint\'s value must be a number, a tensor or "field", got {law.value!r}'
                )
            return law.measure(self.fields).detach()
        rows = law.measure(self.fields[:1]).shape[1]
        value = torch.as_tensor(law.value, dtype=torch.float64, device=self.fields.device)
        try:
            return value.broadcast_to((len(value) if value.ndim == 2 else 1, rows))
        except RuntimeError as error:
            raise SapcError(
                f"a constraint of {rows} rows was given a value of shape {tuple(value.shape)}"
            ) from error

    def _choose(self) -> Algorithm:
        if not self.laws:
            return "closed form"
        if len(self.laws) == 1 and isinstance(self.laws[0], Balance):
            return "closed form" if self.laws[0].is_linear else "banded Gauss-Newton"
        if all(isinstance(law, Affine) or (isinstance(law, Balance) and law.is_linear) for law in self.laws):
            return "factorised"
        return "dense Gauss-Newton"

    def __len__(self) -> int:
        return len(self.fields)

    def __getitem__(self, index: int | slice | Tensor) -> Manifold:
        """The manifolds of some of the samples."""
        index = slice(index, index + 1 or None) if isinstance(index, int) else index
        return self._like(self.fields[index], index)

    def _like(self, fields: Tensor, index: slice | Tensor | None = None) -> Manifold:
        parts = tuple(
            replace(p, value=self._targets[p][index])
            if index is not None and isinstance(p, Constraint) and len(self._targets[p]) > 1
            else p
            for p in self.parts
        )
        return Manifold(parts, fields, solver=self.solver, algorithm=self.algorithm)

    def to(self, device: torch.device | str) -> Manifold:
        """The same manifolds on another device."""
        return self._like(self.fields.to(device))

    def dense(self) -> Manifold:
        """The same manifolds through dense automatic differentiation: the oracle of the fast paths."""
        return Manifold(self.parts, self.fields, solver=self.solver, algorithm="dense Gauss-Newton")

    def with_solver(self, solver: Solver) -> Manifold:
        """The same manifolds with other Gauss-Newton settings."""
        return Manifold(self.parts, self.fields, solver=solver, algorithm=self.algorithm)

    def _enter(self, u: Tensor) -> Tensor:
        if tuple(u.shape[1:]) != self.shape or u.ndim != len(self.shape) + 1 or not u.is_floating_point():
            raise SapcError(
                f"expected floating-point fields (batch, {', '.join(map(str, self.shape))}), got {u.dtype} {tuple(u.shape)}"
            )
        if len(u) != len(self) and len(self) != 1:
            raise SapcError(
                f"{len(u)} fields for {len(self)} conditions; give one condition per field, or a single one for all"
            )
        if u.device != self.fields.device:
            raise SapcError(
                f"the fields are on {u.device}, the conditions on {self.fields.device}; move one with .to(device)"
            )
        return u.double()

    def local(self, u: Shaped[Tensor, "batch *grid"]) -> Float[Tensor, "batch pinned"]:
        """The pin part of the residual: deviation from the prescribed values."""
        return (self._enter(u) - self.fields).flatten(1)[:, self._index].to(u.dtype)

    def balance(self, u: Shaped[Tensor, "batch *grid"]) -> Float[Tensor, "batch rows"]:
        """The rest of the residual: balance laws and other constraints."""
        return self._laws(self._enter(u)).to(u.dtype)

    def residual(self, u: Shaped[Tensor, "batch *grid"]) -> Float[Tensor, "batch rows"]:
        """The stacked residual R(u)."""
        return torch.cat((self.local(u), self.balance(u)), 1)

    def _measure(self, u: Tensor) -> Tensor:
        rows = [law.residual(u) if isinstance(law, Balance) else law.measure(u) for law in self.laws]  # type: ignore[attr-defined]
        return torch.cat(rows, 1) if rows else u.new_zeros(len(u), 0)

    def _wanted(self) -> Tensor:
        """What `_measure` must equal, `(batch or 1, rows)`."""
        targets = [
            self.fields.new_zeros(1, self.shape[-1] - 1) if isinstance(law, Balance) else self._targets[law]  # type: ignore[index]
            for law in self.laws
        ]
        most = max((len(t) for t in targets), default=1)
        return torch.cat([t.expand(most, -1) for t in targets], 1) if targets else self.fields.new_zeros(1, 0)

    def _laws(self, u: Tensor) -> Tensor:
        return self._measure(u) - self._wanted()

    def project(
        self, u: Shaped[Tensor, "batch *grid"], *, check: bool = True
    ) -> Float[Tensor, "batch *grid"]:
        """P(u), differentiable in u. With `check`, samples that did not reach the manifold are named in a warning."""
        projected, report = self.solve(u)
        if check and not bool(report.converged.all()):
            failed = (~report.converged).nonzero()[:, 0].tolist()
            warnings.warn(
                f"{len(failed)} of {len(u)} fields did not reach the manifold (largest |R| {float(report.residual.max()):.1e}; "
                f"samples {', '.join(map(str, failed[:8]))}{', ...' if len(failed) > 8 else ''}); Manifold.solve reports each",
                SapcWarning,
                stacklevel=2,
            )
        return projected

    def solve(self, u: Shaped[Tensor, "batch *grid"]) -> tuple[Float[Tensor, "batch *grid"], Report]:
        """P(u) and what was reached, per sample."""
        with torch.inference_mode(False), torch.set_grad_enabled(torch.is_grad_enabled()):
            return self._solve(u)

    def _solve(self, u: Tensor) -> tuple[Tensor, Report]:
        start = torch.where(self.pinned, self.fields, self._enter(u))
        if self.algorithm in ("closed form", "factorised"):
            end = self._project_affine(start)
            report = self._affine_report(end)
        else:
            end, report = self._project_curved(start)
        with torch.no_grad():
            report = replace(report, moved=norm(end - u))
        return end.to(u.dtype), report

    def _project_affine(self, u: Tensor) -> Tensor:
        if self.algorithm == "factorised":
            return self._gram.project(u, self._wanted())
        if not self.laws:
            return u
        stored = self.laws[0].stored  # type: ignore[attr-defined]
        assert isinstance(stored, FrameIntegral)
        return project_conserved(u, stored.weights_like(u), self.free)

    def _affine_report(self, end: Tensor) -> Report:
        with torch.no_grad():
            rows = self._laws(end)
            size = rows.abs().amax(1) if rows.shape[1] else end.new_zeros(len(end))
            scale = end.abs().flatten(1).sum(1) * torch.finfo(end.dtype).eps
        zero = torch.zeros_like(size)
        return Report(self.algorithm, size, zero, zero, zero.long() + 1, size <= scale.clamp(min=1e-10))

    @cached_property
    def _gram(self) -> GramSolver:
        anchor = next(law for law in self.laws if isinstance(law, Affine))
        pinned = self.pinned.cpu().numpy().tobytes()
        key = (tuple(ref(law) for law in self.laws), self.shape, pinned, self.fields.device)
        known = _grams.setdefault(anchor, {})
        if key not in known:
            rows = [_matrix(law, self.shape).to(self.fields) for law in self.laws]
            known[key] = GramSolver(torch.cat(rows), self.free)
        return known[key]

    def _problem(self) -> Problem:
        if self.algorithm == "banded Gauss-Newton":
            return Banded(self.laws[0], self.free, self._index)  # type: ignore[arg-type]
        return Dense(self._measure, self._wanted(), self.free)

    def _project_curved(self, u: Tensor) -> tuple[Tensor, Report]:
        problem = self._problem()
        if isinstance(problem, Dense):
            chunk = self._dense_chunk(problem)
        else:  # on the CPU in portions that stay in its cache
            chunk = len(u) if u.is_cuda else max(1, CACHE_BYTES // (8 * self.free.numel()))
        ends, reports = zip(
            *(self._run(problem, u, i, min(i + chunk, len(u))) for i in range(0, len(u), chunk)), strict=True
        )
        joined = [torch.cat(column) for column in zip(*reports, strict=True)]
        return torch.cat(ends), Report(self.algorithm, joined[0], joined[0], *joined[1:])

    def _run(self, problem: Problem, u: Tensor, first: int, last: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        if (first, last) != (0, len(u)):
            problem, u = problem.select(torch.arange(first, last, device=u.device)), u[first:last]
        if isinstance(self.solver, Plain):
            out = project_plain(problem, u, self.solver)
            return out.field, (out.residual, out.tangential, out.iterations, out.converged)
        end, *report = Nearest.apply(u, problem, self.solver)  # type: ignore[no-untyped-call]
        return end, tuple(report)

    def _dense_chunk(self, problem: Dense) -> int:
        rows, points = problem.target.shape[1], self.free.numel()
        bytes_each = 3 * 8 * rows * points
        if bytes_each > MOST_BYTES:
            raise SapcError(
                f"the dense projection needs a Jacobian of {rows} x {points} per field ({bytes_each / 2**30:.0f} GiB with its copies); "
                "declare the structure (Pin, Balance with a FrameIntegral) or use a smaller grid"
            )
        return max(1, JACOBIAN_BYTES // bytes_each)


def _matrix(law: Stackable, shape: tuple[int, ...]) -> Tensor:
    if isinstance(law, Affine):
        return law.matrix(shape)
    assert isinstance(law, Balance)
    points = int(torch.Size(shape).numel())
    unit: Callable[[Tensor], Tensor] = law.residual
    return unit(torch.eye(points, dtype=torch.float64).reshape(points, *shape)).T
