"""Restoration as one kernel: where it is available, and its launch.

A law that brings functions for a kernel (`LawKernel`) is restored by one launch, one program per sample (see
`kernel`), where nobody asks for the path. The host neither waits nor decides anything, so the same call
serves between two network passes, at the end of a sampling run, and inside a captured graph. What a kernel
cannot do, for whatever reason, is done by the passes of `feasible`, after one warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from ...._triton import is_capturing, triton_unavailable_reason
from ....errors import SapcWarning
from ....grid import cached_like
from ..banded import BandedProblem
from ..feasible import attempts, choose
from ..linearisation import Problem
from ..solvers import FeasiblePoint
from .compiled import LawCache


@dataclass(frozen=True)
class KernelTuning:
    """How a program works: its warps, and how many entries of a block each of their threads has.

    Compiled for Hopper (Triton 3.6, `benchmarks/compile_kernels.py`), a thread with these numbers needs at
    most 255 registers for the laws of the tasks and 16 bytes beyond, so at least two programs share a
    processor: a batch of 256 runs at once, and while one program exchanges numbers over frames, another goes
    through its field.
    """

    warps: int = 4
    entries: int = 4

    def block(self, points: int, frames: int) -> int:
        """Return the points of space in a block with so many frames; no more than there are."""
        return min(_power(points), max(1, 32 * self.warps * self.entries // frames))


def _power(n: int) -> int:
    """Return the power of two that is n or next above."""
    return 1 << (n - 1).bit_length()


@contextmanager
def use_tuning(**changes: int) -> Iterator[None]:
    """Launch kernels with other numbers in this context; for measurements."""
    usual_tuning = _kernels.tuning
    _kernels.tuning = replace(usual_tuning, **changes)
    try:
        yield
    finally:
        _kernels.tuning = usual_tuning


def kernel_of(problem: Problem, solver: FeasiblePoint) -> Kernel | None:
    """Return the kernel for a problem, None where there is none.

    There is one if the solver asks for it or, unless it says how passes are made, on a GPU.

    Args:
        problem: The law.
        solver: Settings.

    Returns:
        The kernel, or None.
    """
    if not isinstance(problem, BandedProblem) or problem.balance.kernel is None or problem.is_traced:
        return None
    execution = solver.execution
    is_wanted = (
        problem.free.is_cuda and execution.compiled is None if execution.fused is None else execution.fused
    )
    if not is_wanted or triton_unavailable_reason():
        return None
    # A kernel is not made while a graph is captured: its constants would have to be copied to the device.
    return _kernels.find(problem, solver, may_make=not is_capturing(problem.free))


class Kernel:
    """Restoration for one law on one grid, with what it reads from the device's memory at hand.

    Args:
        problem: The law, which has a kernel.
        solver: Tolerance and kappa.
    """

    def __init__(self, problem: BandedProblem, solver: FeasiblePoint) -> None:
        law, free = problem.balance, problem.free
        assert law.kernel is not None
        self.load, self.rate, self.has_coefficient = (
            law.kernel.load,
            law.rate is not None,
            law.coefficient is not None,
        )
        with torch.inference_mode(False), torch.no_grad():
            self.data = cached_like(law.kernel, "data", free).contiguous()
            self.free = (free != 0).to(torch.int8).contiguous()
            self.c = torch.cat((free.new_zeros(1), law.steps(free.shape[-1], free) / 2))
            self.settings = free.new_tensor((solver.tol, solver.kappa, problem.jitter))
        self.points, self.frames = prod(free.shape[:-1]), free.shape[-1]
        self.has_failed = False
        # What has been compiled.
        self.ready: set[object] = set()

    def restore(self, u: Tensor, solver: FeasiblePoint) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Restore as `feasible.restore` does.

        Args:
            u: Start, with the pins already set.
            solver: Settings.

        Returns:
            The fields, |R|_inf, its excess and passes; None if this cannot be had.
        """
        (strict, limit), *later_attempts = attempts(solver)
        first = self._launch(u, limit, strict)
        if first is None:
            return None
        end, size, excess, passes = first
        # Of each kind of attempt, who ran out of passes.
        ran_out = {strict: passes >= limit}
        for strict, limit in later_attempts:
            is_off = excess > 1
            candidates = is_off & ran_out.get(strict, is_off)
            retry = self._launch(u, limit, strict, subset=candidates)
            if retry is None:
                return None
            ran_out[strict] = retry[3] >= limit
            is_better = candidates & (retry[2] < excess)
            end = choose(is_better, retry[0], end)
            size, excess = (
                torch.where(is_better, new, old) for new, old in ((retry[1], size), (retry[2], excess))
            )
            passes = passes + torch.where(candidates, retry[3], 0)
        return end, size, excess, passes

    def _launch(
        self, u: Tensor, limit: int, strict: bool, subset: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Run one attempt of all samples, or of some; the others come back as they are."""
        variant = (_kernels.tuning, subset is None)
        if self.has_failed or (is_capturing(u) and variant not in self.ready):
            return None
        u, n = u.contiguous(), u.shape[0]
        # Separate tensors: the result is kept, the rest of the memory is not.
        out, size, excess = torch.empty_like(u), u.new_empty(n), u.new_empty(n)
        passes = torch.empty(n, dtype=torch.long, device=u.device)
        try:
            self._run(u, (out, size, excess, passes), limit, strict, subset)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            self.has_failed = True
            warnings.warn(
                "the projection as one kernel failed and runs in passes, more slowly "
                f"({type(error).__name__}: "
                f"{str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}); "
                "sapc.Execution(fused=False) avoids the attempt",
                SapcWarning,
                stacklevel=2,
            )
            return None
        self.ready.add(variant)
        if is_capturing(u):
            _kernels.in_graphs.add(self)
        return out, size, excess, passes

    def _run(
        self, u: Tensor, results: tuple[Tensor, ...], limit: int, strict: bool, subset: Tensor | None
    ) -> None:
        """Launch on the device of `u`."""
        # Needs Triton.
        from .kernel import restore
        from .kernel_fields import SLOTS

        n, frames = u.shape[0], _power(self.frames)
        workspace = u.new_empty(3 if self.has_coefficient else 1, *u.shape)
        small = u.new_empty(n, SLOTS, frames)
        out, size, excess, passes = results
        functions: tuple[Any, ...] = (*self.load(), None, None)[:3]
        tuning = _kernels.tuning
        constants = {
            "X": self.points, "T": self.frames, "XB": tuning.block(self.points, frames), "TB": frames,
            "SLOTS": SLOTS, "SWEEPS": (self.frames - 2).bit_length(), "RATE": self.rate,
            "WITH_FIT": self.has_coefficient, "HAS_SUBSET": subset is not None,
        } | dict(zip(("LOCAL", "FIT", "SLOPE"), functions, strict=True))  # fmt: skip
        # Why no fusion: see `kernel`.
        options = {"num_warps": tuning.warps, "num_stages": 1, "enable_fp_fusion": False}
        with torch.cuda.device_of(u):  # type: ignore[no-untyped-call]
            restore[(n,)](
                u, out, workspace[0], workspace[-1 - self.has_coefficient], workspace[-1], small, size,
                excess, passes, self.settings if subset is None else subset.to(torch.int8), self.free, self.c,
                self.data, self.settings, limit, int(strict), **constants, **options,
            )  # fmt: skip


class KernelCache(LawCache[Kernel]):
    """The kernels, and how they are launched.

    Attributes:
        tuning: Numbers of their launches.
        in_graphs: Kernels whose memory a captured graph reads as long as it lives: they never go.
    """

    def __init__(self) -> None:
        super().__init__(Kernel)
        self.tuning = KernelTuning()
        self.in_graphs: set[Kernel] = set()


_kernels = KernelCache()
