"""The projectors of curved manifolds by name, and, apart from their mathematics, how they run on a device.

    NearestPoint     the nearest point: feasible first, then along the manifold    the default
    FeasiblePoint    the first point found on the manifold, close to the start     cheaper; what sampling uses
    GaussNewton      the paper's damped iteration                                  need not arrive

`gauss_newton` has the paper's iteration, `feasible` restoration, `nearest` what follows it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import SapcError, explain_misuse


@explain_misuse
@dataclass(frozen=True)
class GaussNewton:
    """The paper's damped Gauss-Newton iteration.

    A sample stops at `|R|_inf < tol`; where a row adds up less than one, `tol` is relative to that (see
    `tolerance`).

    Attributes:
        n_iter: Largest number of steps.
        mu: Damping.
        tol: Tolerance of a row.
        pin_rows: Whether pinned values are rows of the residual that is linearised, or written into the field
            before.
    """

    n_iter: int = 10
    mu: float = 1e-8
    tol: float = 1e-6
    pin_rows: bool = False

    def __post_init__(self) -> None:
        if self.n_iter < 1 or self.mu < 0 or self.tol <= 0:
            raise SapcError(f"GaussNewton needs n_iter >= 1, mu >= 0 and tol > 0, got {self}")


@dataclass(frozen=True)
class Execution:
    """How restoration runs on a device; results are the same up to rounding.

    Attributes:
        ahead: Whether it takes all its passes, needed or not, and no retry, so that it never waits for the
            device.
        compiled: Whether it runs as a compiled program; None: on a GPU, where the compiler is installed.
        fused: Whether it is one kernel, for laws that have one (`LawKernel`); None: on a GPU, unless
            `compiled` is given.
    """

    ahead: bool = False
    compiled: bool | None = None
    fused: bool | None = None


@explain_misuse
@dataclass(frozen=True)
class FeasiblePoint:
    """The first point that restoration finds on the manifold.

    Attributes:
        tol: Tolerance of a row: absolute where it adds up more than one, relative where less; or what
            rounding allows (see `tolerance`).
        passes: Trial points per restoration attempt.
        kappa: How closely a restoration step must follow its linear prediction.
        retry: Whether samples that miss the manifold try once more, accepting any decrease.
        patience: Trial points for samples that missed it both times for want of passes; 0: they are left
            where they are.
        execution: How it runs on a device.
    """

    tol: float = 1e-12
    passes: int = 80
    kappa: float = 0.5
    retry: bool = True
    patience: int = 1000
    execution: Execution = Execution()

    def __post_init__(self) -> None:
        if self.tol <= 0 or self.passes < 1 or self.patience < 0 or not 0 < self.kappa <= 1:
            needs = "tol > 0, passes >= 1, patience >= 0 and 0 < kappa <= 1"
            raise SapcError(f"{type(self).__name__} needs {needs}, got {self}")


@explain_misuse
@dataclass(frozen=True)
class NearestPoint(FeasiblePoint):
    """The nearest point: Newton steps along the manifold, from the first point found.

    Attributes:
        tol, passes, kappa, retry, patience, execution: As in `FeasiblePoint`.
        newton_steps: Largest number of steps along the manifold.
        cg_steps: Largest number of conjugate gradient steps in each of them.
        rtol: A point is the nearest when |tau| <= rtol |u - u_0|.
    """

    newton_steps: int = 120
    cg_steps: int = 60
    rtol: float = 1e-9

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.newton_steps < 1 or self.cg_steps < 1 or not self.rtol >= 0:
            raise SapcError(f"NearestPoint needs newton_steps >= 1, cg_steps >= 1 and rtol >= 0, got {self}")


Solver = GaussNewton | FeasiblePoint
"""A `NearestPoint` is a `FeasiblePoint` that goes on."""
