"""Restoration passes as compiled programs: a few dozen kernels a pass instead of several hundred.

A pass is traced once with a symbolic batch size into a graph of tensor operations; the gradients of the law
are part of it, so any law can be compiled that can be differentiated. The graph is then compiled, for all
batch sizes at once. A traced graph knows nothing of the Python around it, so nothing needs to be checked from
call to call but the shapes.

Programs are kept, found again by their law. What cannot be traced or compiled runs step by step, after one
warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ...._stencils import fusible_differences
from ...._triton import has_triton, is_capturing
from ....errors import SapcWarning
from ..banded import BandedProblem
from ..feasible import EagerPasses, Passes, State
from ..linearisation import Problem
from ..solvers import FeasiblePoint

Program = Callable[..., tuple[Tensor, ...]]

Entry = TypeVar("Entry")


class LawCache(Generic[Entry]):
    """Keep what was made for a law on a grid, the latest few: it holds on to its law, so cannot go with it.

    Args:
        make: Makes an entry of a law and the settings of restoration.
        size: Number of entries.
    """

    def __init__(self, make: Callable[[BandedProblem, FeasiblePoint], Entry], size: int = 16) -> None:
        self.make, self.size = make, size
        self.entries: dict[tuple[object, ...], Entry] = {}

    def find(self, problem: BandedProblem, solver: FeasiblePoint, may_make: bool = True) -> Entry | None:
        """Find an entry, or make it.

        Args:
            problem: The law.
            solver: Settings.
            may_make: Whether it may be made.

        Returns:
            The entry; None if there is none and it may not be made.
        """
        law, free = problem.balance, problem.free
        key = (
            law.label or law,
            problem.key,
            problem.jitter,
            free.shape,
            free.device,
            solver.tol,
            solver.kappa,
        )
        if key not in self.entries and may_make:
            self.entries[key] = self.make(problem, solver)
            while len(self.entries) > self.size:
                del self.entries[next(iter(self.entries))]
        return self.entries.get(key)


def passes_of(problem: Problem, solver: FeasiblePoint) -> Passes:
    """Return the passes for a problem: compiled if the solver asks for it or, by default, where it pays."""
    if not isinstance(problem, BandedProblem) or solver.execution.compiled is False:
        return EagerPasses(problem, solver)
    if solver.execution.compiled is None and not (problem.free.is_cuda and has_triton()):
        return EagerPasses(problem, solver)
    return _programs.find(problem, solver) or EagerPasses(problem, solver)


class CompiledPasses:
    """`begin`, `advance` and `pullback` of one law on one grid, compiled when first called.

    Args:
        problem: The law.
        solver: Tolerance and kappa.
    """

    def __init__(self, problem: BandedProblem, solver: FeasiblePoint) -> None:
        self.eager = EagerPasses(problem, solver)
        # Not the problem itself: that one writes gradients in place.
        self.pure = EagerPasses(replace(problem, is_traced=True), solver)
        self.programs: dict[str, Program] = {}
        # Names of the programs that there will not be.
        self.failures: set[str] = set()
        self.expected_counts = 0

    def begin(self, u: Tensor) -> tuple[State, Tensor]:
        """Do what `EagerPasses.begin` does."""

        def pure(u: Tensor) -> tuple[Tensor, ...]:
            state, counts = self.pure.begin(u)
            return (*state, counts)

        out = self._call("begin", pure, (u,))
        return self.eager.begin(u) if out is None else (State(*out[:-1]), out[-1])

    def advance(self, state: State, strict: Tensor) -> tuple[State, Tensor]:
        """Do what `EagerPasses.advance` does."""

        def pure(strict: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            end, counts = self.pure.advance(State(*state), strict)
            return (*end, counts)

        out = self._call("advance", pure, (strict, *state))
        return self.eager.advance(state, strict) if out is None else (State(*out[:-1]), out[-1])

    def prepare(self, u: Tensor) -> None:
        """Compile `pullback` here.

        On a GPU gradients are computed by another thread, where a trace is not at home.
        """
        if "pullback" not in {*self.programs, *self.failures} and not is_capturing(u):
            # Copies: a program is made for the inputs it sees, and one that is given twice would be part of
            # it.
            self.pullback(u.clone(), torch.ones_like(u.flatten(1)[:, 0]), u.clone())

    def pullback(self, u: Tensor, alpha: Tensor, w: Tensor) -> Tensor:
        """Do what `EagerPasses.pullback` does."""

        def pure(alpha: Tensor, u: Tensor, w: Tensor) -> tuple[Tensor, ...]:
            w = self.pure.pullback(u, alpha, w)
            return w, (alpha > 0).sum()

        out = self._call("pullback", pure, (alpha, u, w.contiguous()))
        return self.eager.pullback(u, alpha, w) if out is None else out[0]

    def select(self, index: Tensor) -> CompiledPasses:
        """Return the same program: a balance law is the same for every sample."""
        return self

    def _call(self, name: str, function: Program, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Return the program's outputs, the last of them counts, or None where there is no program."""
        if name in self.failures or (name not in self.programs and is_capturing(inputs[-1])):
            return None
        # A size of one would be compiled apart; two share the program of many.
        if inputs[-1].shape[0] == 1:
            out = self._call(name, function, tuple(x if x.ndim == 0 else torch.cat((x, x)) for x in inputs))
            return None if out is None else (*(x[:1] for x in out[:-1]), out[-1] // 2)
        try:
            if name not in self.programs:
                self.programs[name] = _compile(function, inputs)
            return self.programs[name](*inputs)
        except Exception as error:
            # A law whose derivative cannot be compiled still has its projection compiled; not the other way
            # round.
            self.failures |= {"pullback"} if name == "pullback" else {"begin", "advance", "pullback"}
            program_name = "derivative of the projection" if name == "pullback" else "projection"
            warnings.warn(
                f"the {program_name} could not be compiled and runs step by step, more slowly "
                f"({type(error).__name__}: "
                f"{str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}); "
                "sapc.Execution(compiled=False) avoids the attempt",
                SapcWarning,
                stacklevel=2,
            )
            return None


_programs = LawCache(CompiledPasses)


def _compile(function: Program, inputs: tuple[Tensor, ...]) -> Program:
    """Trace, check the trace with another batch size, and compile with the first dimension left open."""
    # On a GPU gradients are computed by another thread, which a trace does not follow; here by this one.
    with warnings.catch_warnings(), fusible_differences(), torch.autograd.set_multithreading_enabled(False):
        # Of the compiler about itself.
        warnings.simplefilter("ignore")
        graph = _trace(function, inputs)
        program: Program = torch.compile(graph, fullgraph=True)
        for x in inputs:
            if x.ndim > 0:
                torch._dynamo.mark_dynamic(x, 0)
        program(*inputs)
    return program


def _trace(function: Program, inputs: tuple[Tensor, ...]) -> Program:
    """Return the operations of a function, with the batch size as an unknown."""
    # Slow to import, and few need it.
    from torch._dispatch.python import enable_python_dispatcher
    from torch.fx.experimental.proxy_tensor import make_fx

    sizes = {n for x in inputs for n in x.shape[1:]}
    # Sizes that no other dimension has, so that only what depends on the batch size has it.
    n_example, n_other = [n for n in range(3, 99) if n not in sizes][:2]
    example, other_inputs = (
        tuple(x if x.ndim == 0 else _repeat_to(x, n) for x in inputs) for n in (n_example, n_other)
    )
    # First: it also fills caches of weights, which a trace must not.
    want = function(*other_inputs)
    mode, symbolic = _symbolic(example)
    # Operations written in Python accept an unknown size.
    with mode, enable_python_dispatcher():
        graph: Any = make_fx(function)(*symbolic)
    for a, b in zip(want, graph(*other_inputs), strict=True):
        if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-6, atol=1e-9, equal_nan=True):
            raise RuntimeError("its trace depends on the batch size")
    return graph  # type: ignore[no-any-return]


def _symbolic(inputs: tuple[Tensor, ...]) -> tuple[Any, list[Tensor]]:
    """Make stand-ins for the inputs whose first dimension is one common symbol."""
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    out: list[Tensor] = []
    for i, x in enumerate(inputs):
        sizes = [DimDynamic.DUCK if k == 0 else DimDynamic.STATIC for k in range(x.ndim)]
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        out.append(mode.from_tensor(x, symbolic_context=context, source=ConstantSource(f"input_{i}")))
    return mode, out


def _repeat_to(x: Tensor, n: int) -> Tensor:
    """Return `n` samples: the given ones, over and over."""
    return x[torch.arange(n, device=x.device) % x.shape[0]]
