"""Constraints, the manifolds they define, and how fields are projected onto them.

terms         Pin, Balance, Affine, Constraint: residuals; `a & b` stacks them
acceleration  gradients and kernels that a law may bring
manifold      a constraint bound to the conditions of a batch
projection/   closed form, factorised, banded or dense Gauss-Newton, chosen by declared structure
"""

from .._old_names import find_renamed
from .acceleration import LawKernel, WithGradient
from .manifold import Algorithm, Manifold, ProjectionInfo
from .projection.closed_form import GramSolver
from .projection.solvers import Execution, FeasiblePoint, GaussNewton, NearestPoint, Solver
from .terms import Affine, Balance, Constraint, ConstraintTerm, Pin, Stack

__all__ = [
    "Affine",
    "Algorithm",
    "Balance",
    "Constraint",
    "ConstraintTerm",
    "Execution",
    "FeasiblePoint",
    "GaussNewton",
    "GramSolver",
    "LawKernel",
    "Manifold",
    "NearestPoint",
    "Pin",
    "ProjectionInfo",
    "Solver",
    "Stack",
    "WithGradient",
]

__getattr__ = find_renamed(__name__)
