"""Manifolds and how they project: closed form, factorised, banded or dense Gauss-Newton, chosen by declared structure."""

from .affine import GramSolver
from .gauss_newton import Globalised, Plain, Solver
from .manifold import Algorithm, Manifold, Report

__all__ = ["Algorithm", "Globalised", "GramSolver", "Manifold", "Plain", "Report", "Solver"]
