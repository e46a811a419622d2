"""Tasks: a PDE system with its grid, the laws its solutions keep, its random parameters and its solver.

    draw(split, size, seed) -> parameters -> solve(parameters) -> fields
    dataset(split, size, seed)   both, cached where solving takes time

A dataset is a pure function of (task, options, split, size, seed, grid). Fields are solved in float64, block
by block, and stored in float32. A task that integrates in time always solves full blocks (the last one is
filled up with copies), because the rounding of a batched transform or product depends on its batch; and the
block of a sample follows from its index alone. So a smaller dataset is a prefix of a larger one to the last
bit, on one device. Between devices it is the same to rounding.

Where a device takes large blocks they grow, lest a small dataset be mostly copies: the first is a sixteenth of
the largest, and each is as large as all before it, up to the largest. On grids finer than the published one,
blocks hold as many points as there, but at least one sample.
"""

from __future__ import annotations

import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._memory import allocating, require
from .._version import __version__
from ..constraints import Manifold, Plain
from ..constraints.terms import Stackable
from ..data.cache import CacheChoice, cached
from ..data.dataset import Dataset
from ..errors import SapcError, explain_misuse, whole
from ..grid import Grid
from .random_parameters import SPLITS, Streams

Progress = Callable[[int, int], None]
"""Called with (samples done, samples in all)."""

Parameters = Mapping[str, Tensor]


class Task(ABC):
    """One PDE system; a subclass is final and says all of it in one file."""

    name: ClassVar[str]
    title: ClassVar[str]
    equation: ClassVar[str]
    pinned: ClassVar[str]
    law: ClassVar[str]
    parameters: ClassVar[Mapping[str, str]]
    paper_grid: ClassVar[Grid]
    train_size: ClassVar[int] = 6400
    plain: ClassVar[Plain | None] = None
    """The published Gauss-Newton settings, where the law is not affine."""
    solver: ClassVar[str] = "closed form"
    solver_version: ClassVar[int] = 1
    """Part of the cache key: a solver that changes its numbers takes the next one."""
    integrates: ClassVar[bool] = False
    block: ClassVar[Mapping[str, int]] = {"cpu": 256, "cuda": 4096}
    """Samples solved at once on the published grid, at most, by kind of device."""

    def __init__(self, grid: Grid | Sequence[int] | None = None) -> None:
        self.grid = self._check_grid(grid)

    @property
    def options(self) -> dict[str, Any]:
        """The options that were chosen, as `get_task` takes them."""
        return {}

    @property
    def sizes(self) -> dict[str, int]:
        """The published size of every split."""
        return {split: self.train_size if split == "train" else 1225 for split in SPLITS}

    @property
    @abstractmethod
    def constraint(self) -> Stackable:
        """What every solution satisfies: the pinned condition and the balance law."""

    @abstractmethod
    def _draw(self, streams: Streams, size: int) -> dict[str, Tensor]:
        """The parameters of the first `size` samples, float64."""

    @abstractmethod
    def _solve(self, parameters: Parameters) -> Tensor:
        """The float64 fields of one block of parameters, on their device."""

    def _workspace(self, block: int) -> int:
        """Numbers in float64 that solving `block` samples holds besides the fields, about."""
        return 0

    @explain_misuse
    def check(
        self, split: str, size: int | None = None, seed: int = 0, device: str | torch.device = "cpu"
    ) -> tuple[int, int, torch.device]:
        """Size, seed and device as `dataset` will use them; refuse now what it would refuse."""
        size = self._check_size(split, size)
        self._check_memory(size, torch.float32)
        return size, whole(seed, "seed", 0), device_of(device)

    @explain_misuse
    def draw(self, split: str, size: int | None = None, seed: int = 0) -> dict[str, Tensor]:
        """The parameters of a split's first `size` samples, `{name: (size, ...)}` in float64."""
        size = self._check_size(split, size)
        streams = Streams(self.name, split, whole(seed, "seed", 0))
        with allocating(self._described(size)):
            return self._draw(streams, size)

    @explain_misuse
    def solve(
        self,
        parameters: Parameters,
        device: str | torch.device = "cpu",
        progress: Progress | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """The solution for every row of `parameters`: solved on `device` in float64, returned on the CPU."""
        n = self._check_parameters(parameters)
        device = device_of(device)
        self._check_memory(n, dtype)
        with allocating(self._described(n)):
            fields = torch.empty(n, *self.grid.shape, dtype=dtype)
            for start, end in self._blocks(n, device.type):
                stop = min(end, n)
                rows = torch.arange(start, end if self.integrates else stop).clamp(max=n - 1)
                u = self._solve({name: p[rows].to(device, torch.float64) for name, p in parameters.items()})
                u = u[: stop - start]
                self._check_solution(u, parameters, start)
                fields[start:stop] = u.to(dtype).contiguous().cpu()
                if progress is not None:
                    progress(stop, n)
        return fields

    def _blocks(self, n: int, device: str) -> Iterator[tuple[int, int]]:
        """Start and end of the blocks that hold the first `n` samples; the last may end later."""
        least, most = (self._fit(self.block.get(kind, self.block["cpu"])) for kind in ("cpu", device))
        start = 0
        while start < n:
            end = start + min(most, max(least, most // 16, start))
            yield start, end
            start = end

    def _fit(self, block: int) -> int:
        """A block of the published grid, as many samples of this one as have the same points."""
        return max(1, min(block, block * prod(self.paper_grid.shape) // prod(self.grid.shape)))

    @explain_misuse
    def dataset(
        self,
        split: str,
        size: int | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
        cache: CacheChoice = None,
        progress: Progress | None = None,
    ) -> Dataset:
        """The first `size` solutions of a split (all of the published size unless given).

        `cache` is a folder, False for none, or None for what `SAPC_CACHE` says; closed forms never use it.
        """
        size, seed, device = self.check(split, size, seed, device)
        identity: dict[str, Any] = {"task": self.name, "options": self.options, "split": split, "seed": seed}

        def make() -> Dataset:
            parameters = self.draw(split, size, seed)
            fields = self.solve(parameters, device, progress, torch.float32)
            provenance = {
                "package": f"sapc {__version__}",
                "torch": torch.__version__,
                "device": str(device),
                "solver": f"{self.solver}, version {self.solver_version}",
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            return Dataset(
                grid=self.grid, fields=fields, parameters=parameters, provenance=provenance, **identity
            )

        if not self.integrates:
            return make()
        key = {**identity, "size": size, "grid": self.grid.to_dict(), "solver": self.solver_version}
        return cached(cache, key, make)

    # -- what the network sees: the fields themselves, unless a task scales them --

    def enter(self, fields: Tensor) -> Tensor:
        """Fields as the network sees them."""
        return fields

    def leave(self, fields: Tensor) -> Tensor:
        """Back from `enter`."""
        return fields

    @explain_misuse
    def inner(self, fields: Tensor, also: Stackable | None = None, **options: Any) -> Manifold:
        """Manifolds of fields as the network sees them, with a further constraint if there is one."""
        return self.manifold(fields, also, **options)

    @explain_misuse
    def manifold(self, fields: Tensor, also: Stackable | None = None, **options: Any) -> Manifold:
        """The manifold of every sample of `fields`, pinned to that sample's own values; `also` is a constraint besides the task's."""
        self.grid.check(fields)
        if not bool(torch.isfinite(fields).all()):
            bad = int((~torch.isfinite(fields)).sum())
            raise SapcError(
                f"{bad} of {fields.numel()} field values are NaN or infinite; a manifold needs finite fields"
            )
        constraint = self.constraint if also is None else self.constraint & also
        return constraint.with_times_of(self.grid).on(fields, **options)

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"get_task({self.name!r}, grid={self.grid.shape}{options})"

    # -- bad input: what was wrong, what was expected, what to do --

    def _check_grid(self, grid: Grid | Sequence[int] | None) -> Grid:
        paper = self.paper_grid
        if grid is None:
            return paper
        if not isinstance(grid, Grid):
            try:
                return paper.resize(*(operator.index(n) for n in grid))
            except TypeError as error:
                raise SapcError(
                    f"a grid is given as a Grid or as {len(paper.axes)} whole numbers, got {grid!r}"
                ) from error
        same_space = [(a.name, a.kind, a.start, a.stop) for a in grid.space] == [
            (a.name, a.kind, a.start, a.stop) for a in paper.space
        ]
        time = grid.time
        if not same_space or (time.name, time.kind, time.start) != (
            paper.time.name,
            paper.time.kind,
            paper.time.start,
        ):
            raise SapcError(
                f"{self.name} is posed on axes {_axes(paper)}, got {_axes(grid)}; "
                "change the numbers of points or the final time only, as in task.paper_grid.resize(...)"
            )
        return grid

    def _check_size(self, split: str, size: int | None) -> int:
        if split not in SPLITS:
            raise SapcError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
        return self.sizes[split] if size is None else whole(size, "size", 1)

    def _described(self, n: int) -> str:
        return f"{n} solutions of {self.name} on {' x '.join(map(str, self.grid.shape))} points"

    def _check_memory(self, n: int, dtype: torch.dtype) -> None:
        """The fields, and for one block its solution and a temporary in float64."""
        points, block = prod(self.grid.shape), min(n, self._fit(self.block["cpu"]))
        working = 8 * (2 * block * points + self._workspace(block))
        require(n * points * dtype.itemsize + working, self._described(n))

    def _check_parameters(self, parameters: Parameters) -> int:
        if set(parameters) != set(self.parameters):
            raise SapcError(
                f"{self.name} is solved for the parameters {', '.join(self.parameters)}; "
                f"got {', '.join(parameters) or 'none'}"
            )
        lengths = {name: p.shape[0] if p.ndim else 0 for name, p in parameters.items()}
        n = min(lengths.values())
        if n < 1 or len(set(lengths.values())) > 1:
            raise SapcError(
                f"every parameter of {self.name} needs the same number of rows, at least one; got {lengths}"
            )
        for name, p in parameters.items():
            shape = self.grid.shape[:-1] if name == "initial" else ()
            if tuple(p.shape[1:]) != shape:
                raise SapcError(
                    f"the parameter {name!r} of {self.name} has shape {tuple(p.shape)}; "
                    f"expected {(n, *shape)}, one {'profile' if shape else 'number'} per sample"
                )
        bad = [name for name, p in parameters.items() if not bool(torch.isfinite(p).all())]
        if bad:
            raise SapcError(
                f"the parameter {bad[0]!r} of {self.name} holds NaN or infinite values; give finite ones"
            )
        return n

    def _check_solution(self, u: Tensor, parameters: Parameters, start: int) -> None:
        finite = torch.isfinite(u.flatten(1)).all(1)
        if bool(finite.all()):
            return
        row = start + int((~finite).nonzero()[0])
        values = ", ".join(
            f"{name} = {float(p[row]):.6g}" for name, p in parameters.items() if p[row].ndim == 0
        )
        ranges = "; ".join(f"{name} {text}" for name, text in self.parameters.items())
        raise SapcError(
            f"the {self.name} solver found no finite solution for sample {row} ({values}); "
            f"give parameters in the task's own ranges ({ranges})"
        )


def make_task(kind: type[Task], grid: Grid | Sequence[int] | None, options: Mapping[str, Any]) -> Task:
    """A task with its options, which are the further arguments of its constructor."""
    known = list(inspect.signature(kind.__init__).parameters)[2:]
    if unknown := sorted(set(options) - set(known)):
        accepts = f"takes {', '.join(known)}" if known else "has no options"
        raise SapcError(f"unknown option {unknown[0]!r}: the task {kind.name!r} {accepts}")
    return kind(grid, **options)


def device_of(device: str | torch.device) -> torch.device:
    """A device that can be used, or an error that names it."""
    try:
        found = torch.device(device)
        if found.type not in ("cpu", "cuda"):
            raise RuntimeError("the solvers know cpu and cuda only")
        torch.empty(0, dtype=torch.float64, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise SapcError(
            f"the device {str(device)!r} cannot be used ({reason}); use 'cpu', or 'cuda' where there is one"
        ) from error
    return found


def _axes(grid: Grid) -> str:
    return ", ".join(f"{a.name} ({a.kind}, [{a.start:g}, {a.stop:g}])" for a in grid.axes)
