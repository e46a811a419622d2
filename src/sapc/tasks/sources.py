"""Sources of data: where the fields of a task come from.

`Solver` computes them; `FieldsSource` has them from a file.

    draw(split, size, seed) -> parameters -> solve(parameters) -> fields

A solved dataset is a pure function of (task, options, split, size, seed, grid). Fields are solved in float64,
block by block, and stored in float32. A task that integrates in time always solves full blocks (the last one
is filled up with copies), because the rounding of a batched transform or product depends on its batch; and
the block of a sample follows from its index alone. So a smaller dataset is a prefix of a larger one to the
last bit, on one device. Between devices it is the same to rounding.

Where a device takes large blocks they grow, lest a small dataset be mostly copies: the first is a sixteenth
of the largest, and each is as large as all before it, up to the largest. On grids finer than the published
one, blocks hold as many points as there, but at least one sample.

**Random streams.** A parameter is a pure function of (task, split, parameter, seed, index): every named
parameter of every split has its own counter-based stream, and its values are drawn in the order of their
index, the same count for each. So a smaller draw is a prefix of a larger one, no split shares numbers with
another, and drawing one parameter never moves another. A sample is a pair (i, j): condition i, which a task
pins, with free parameters j.

    independent   (0, 0), (1, 1), (2, 2), ...                   every sample its own condition
    product       (0, 0), (0, 1), (1, 1), (1, 0), (0, 2), ...   the first m^2 samples are all pairs of m and m
    test sets     (0, 0), (0, 1), (0, 2), ...                   one condition

The condition of a test set does not depend on the seed: two seeds are two independent draws of one
conditional distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import prod
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._old_names import rename_method
from .._version import __version__
from ..data import Fields
from ..data.cache import CacheChoice, load_or_make
from ..data.dataset import Dataset
from ..data.fields import SPLITS as FILE_SPLITS
from ..errors import SapcError, explain_memory_errors, require_memory
from . import user_solver
from .description import DataDescription

if TYPE_CHECKING:
    from .base import Task

TEST_SETS = ("test0", "test1", "test2", "test3")
SPLITS = ("train", "validation", *TEST_SETS)

Indices = Int[Tensor, " n"]


@dataclass(frozen=True)
class Streams:
    """The random streams of one split of one task."""

    task: str
    split: str
    seed: int

    @property
    def test_set(self) -> int | None:
        """The number of the test set, or None for the other splits."""
        return int(self.split.removeprefix("test")) if self.split.startswith("test") else None

    @property
    def condition(self) -> Streams:
        """The streams of the pinned condition: of a test set they are the same for every seed."""
        return self if self.test_set is None else Streams(self.task, self.split, seed=0)

    def generator(self, parameter: str) -> np.random.Generator:
        """Start the random numbers of one parameter."""
        key = (crc32(self.task.encode()), SPLITS.index(self.split), crc32(parameter.encode()))
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy=self.seed, spawn_key=key)))

    def uniform(self, parameter: str, low: float, high: float, n: int) -> Float[Tensor, " n"]:
        """Draw numbers uniform on [low, high).

        Args:
            parameter: Name of the parameter, which has a stream of its own.
            low: Lowest number.
            high: Highest number, not reached.
            n: How many.

        Returns:
            `n` numbers.
        """
        return low + (high - low) * self.uniforms(parameter, n, 1)[:, 0]

    def uniforms(self, parameter: str, n: int, width: int) -> Float[Tensor, "n width"]:
        """Draw rows of numbers uniform on [0, 1).

        Args:
            parameter: Name of the parameter, which has a stream of its own.
            n: Number of rows.
            width: Numbers in a row.

        Returns:
            `n` rows.
        """
        return torch.from_numpy(self.generator(parameter).random((n, width)))

    def normals(self, parameter: str, n: int, width: int) -> Float[Tensor, "n width"]:
        """Draw rows of standard normal numbers.

        Args:
            parameter: Name of the parameter, which has a stream of its own.
            n: Number of rows.
            width: Numbers in a row.

        Returns:
            `n` rows.
        """
        return torch.from_numpy(self.generator(parameter).standard_normal((n, width)))

    def uniform_condition(
        self, parameter: str, low: float, high: float, tests: Sequence[float], n: int
    ) -> Float[Tensor, " n"]:
        """Draw a parameter of the condition: uniform numbers, or in a test set its value for all samples.

        Args:
            parameter: Name of the parameter.
            low: Lowest number.
            high: Highest number, not reached.
            tests: Values of the test sets.
            n: Number of samples.

        Returns:
            `n` numbers.

        Raises:
            SapcError: There are fewer values than test sets.
        """
        if self.test_set is None:
            return self.uniform(parameter, low, high, n)
        if self.test_set >= len(tests):
            raise SapcError(
                f"{parameter!r} has {len(tests)} values for test sets, and there is a test{self.test_set}; give "
                "uniform_condition one value for each test set"
            )
        return torch.full((n,), tests[self.test_set], dtype=torch.float64)

    def independent_pairs(self, n: int) -> tuple[Indices, Indices]:
        """Return condition and free index of each sample, where every sample has its own condition.

        Args:
            n: Number of samples.

        Returns:
            Both indices; in a test set the condition is always the first.
        """
        j = torch.arange(n)
        return (j if self.test_set is None else torch.zeros_like(j)), j

    def product_pairs(self, n: int) -> tuple[Indices, Indices]:
        """Return condition and free index of each sample, where both are combined in full.

        Args:
            n: Number of samples.

        Returns:
            Both indices; in a test set the condition is always the first.
        """
        return square_shells(n) if self.test_set is None else self.independent_pairs(n)

    independent = rename_method("Streams.independent", "Streams.independent_pairs")
    product = rename_method("Streams.product", "Streams.product_pairs")


def square_shells(n: int) -> tuple[Indices, Indices]:
    """List the first `n` pairs in the Rosenberg-Strong order: shell m has the pairs whose larger entry is m."""
    z = np.arange(n)
    m = np.floor(np.sqrt(z)).astype(np.int64)
    excess = z - m * m
    i = np.where(excess < m, excess, m)
    j = np.where(excess < m, m, 2 * m - excess)
    return torch.from_numpy(i), torch.from_numpy(j)


Progress = Callable[[int, int], None]
"""Called with (samples done, samples in all)."""

Parameters = Mapping[str, Tensor]


class Solver:
    """Solutions of a PDE, as many as are asked for: `task._draw` draws, `task._solve` solves a block."""

    description = DataDescription()
    fields = None

    def dataset(
        self,
        task: Task,
        split: str,
        size: int,
        seed: int,
        device: torch.device,
        cache: CacheChoice,
        progress: Progress | None,
    ) -> Dataset:
        """Draw and solve, or find the result in the cache if solving takes time."""
        identity: dict[str, Any] = {"task": task.name, "options": task.options, "split": split, "seed": seed}

        def make() -> Dataset:
            parameters = task.draw(split, size, seed)
            fields = task.solve(parameters, device, progress, torch.float32)
            provenance = {
                "package": f"sapc {__version__}",
                "torch": torch.__version__,
                "device": str(device),
                "solver": f"{task.solver}, version {task.solver_version}",
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            return Dataset(
                grid=task.grid, fields=fields, parameters=parameters, provenance=provenance, **identity
            )

        # Without a file there is no text by which a changed class could be told from what was cached.
        if not task.integrates or (is_user_solver(task) and not task.class_file):
            return make()
        key = {**identity, "size": size, "grid": task.grid.to_dict(), "solver": task.solver_version}
        if task.class_file:
            key["text"] = task.class_file["sha256"]
        return load_or_make(cache, key, make)


@dataclass(frozen=True, eq=False)
class FieldsSource:
    """Fields of a file, each with its own condition; none where only the physics was given."""

    description: DataDescription
    fields: Fields | None = None

    def dataset(self, task: Task, split: str, size: int, *_: Any) -> Dataset:
        """Return samples as they are in the file."""
        name, origin = task.name, self.description.data
        if self.fields is None:
            raise SapcError(
                f"the data of {name} are not loaded; give their file "
                f"({origin.get('path') or 'of the training'}) "
                "as --data FILE, or in Python as load(..., data=FILE)"
            )
        if self.fields.grid != task.grid:
            file_points, task_points = (
                " x ".join(map(str, grid.points_per_axis)) for grid in (self.fields.grid, task.grid)
            )
            raise SapcError(
                f"the data of {name} are on {file_points} points, not on {task_points}; take conditions on "
                "these from a file: "
                "--condition FILE, in Python condition=fields"
            )
        rows = self.fields.split_rows(**self.description.split)[FILE_SPLITS.index(split)][:size]
        provenance = {key: str(value) for key, value in origin.items()}
        return Dataset(name, split, 0, task.grid, self.fields.values[rows].float(), {}, {}, provenance)


def is_user_solver(task: Task) -> bool:
    """Whether a task is a user's class with a solver."""
    return task.physics is None and type(task).__module__.partition(".")[0] != "sapc"


def draw(task: Task, split: str, size: int, seed: int) -> dict[str, Tensor]:
    """Draw parameters from the streams of a split."""
    with explain_memory_errors(describe(task, size)):
        return task._draw(Streams(task.name, split, seed), size)


def solve(
    task: Task, parameters: Parameters, device: torch.device, progress: Progress | None, dtype: torch.dtype
) -> Tensor:
    """Solve block by block on `device` in float64; the fields arrive on the CPU."""
    n = _check_parameters(task, parameters)
    check_memory(task, n, dtype)
    with explain_memory_errors(describe(task, n)):
        fields = torch.empty(n, *task.grid.shape, dtype=dtype)
        for start, end in blocks(task, n, device.type):
            stop = min(end, n)
            rows = torch.arange(start, end if task.integrates else stop).clamp(max=n - 1)
            block = {name: p[rows].to(device, torch.float64) for name, p in parameters.items()}
            u = task._solve(block)
            if not isinstance(u, Tensor) or tuple(u.shape) != (len(rows), *task.grid.shape):
                user_solver.refuse_solution(task, u, len(rows))
            if start == 0 and is_user_solver(task) and not task.grid.steady:
                user_solver.check_time_axis(task, block, u)
            u = u[: stop - start]
            _check_solution(task, u, parameters, start)
            fields[start:stop] = u.to(dtype).contiguous().cpu()
            if progress is not None:
                progress(stop, n)
    return fields


def blocks(task: Task, n: int, device: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the blocks that hold the first `n` samples; the last may end later."""
    smallest, largest = (
        _block_size(task, task.block.get(kind, task.block["cpu"])) for kind in ("cpu", device)
    )
    start = 0
    while start < n:
        end = start + min(largest, max(smallest, largest // 16, start))
        yield start, end
        start = end


def _block_size(task: Task, block: int) -> int:
    """Return how many samples have as many points as a block on the published grid."""
    return max(1, min(block, block * prod(task.paper_grid.shape) // prod(task.grid.shape)))


def describe(task: Task, n: int) -> str:
    """Name `n` solutions in messages."""
    return f"{n} solutions of {task.name} on {' x '.join(map(str, task.grid.shape))} points"


def check_memory(task: Task, n: int, dtype: torch.dtype) -> None:
    """Refuse what does not fit: the fields, and for one block its solution and a temporary in float64."""
    points, block = prod(task.grid.shape), min(n, _block_size(task, task.block["cpu"]))
    workspace = 8 * (2 * block * points + task._workspace(block))
    require_memory(n * points * dtype.itemsize + workspace, describe(task, n))


def find_device(device: str | torch.device) -> torch.device:
    """Return a device that can be used, or raise an error that names it."""
    try:
        torch_device = torch.device(device)
        if torch_device.type not in ("cpu", "cuda"):
            raise RuntimeError("the solvers know cpu and cuda only")
        torch.empty(0, dtype=torch.float64, device=torch_device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise SapcError(
            f"the device {str(device)!r} cannot be used ({reason}); use 'cpu', or 'cuda' where there is one"
        ) from error
    return torch_device


def _check_parameters(task: Task, parameters: Parameters) -> int:
    """Return the number of rows, which is the same for all parameters."""
    if set(parameters) != set(task.parameters):
        raise SapcError(
            f"{task.name} is solved for the parameters {', '.join(task.parameters)}; "
            f"got {', '.join(parameters) or 'none'}"
        )
    lengths = {name: p.shape[0] if p.ndim else 0 for name, p in parameters.items()}
    n = min(lengths.values())
    if n < 1 or len(set(lengths.values())) > 1:
        raise SapcError(
            f"parameters of {task.name} need the same number of rows, at least one; got {lengths}"
        )
    for name, p in parameters.items():
        shape = task.grid.shape[:-1] if name == "initial" else ()
        if tuple(p.shape[1:]) != shape:
            raise SapcError(
                f"the parameter {name!r} of {task.name} has shape {tuple(p.shape)}; "
                f"expected {(n, *shape)}, one {'profile' if shape else 'number'} per sample"
            )
        if not bool(torch.isfinite(p).all()):
            raise SapcError(f"the parameter {name!r} of {task.name} holds NaN or infinite values")
    return n


def _check_solution(task: Task, u: Tensor, parameters: Parameters, start: int) -> None:
    finite = torch.isfinite(u.flatten(1)).all(1)
    if bool(finite.all()):
        return
    row = start + int((~finite).nonzero()[0])
    values = ", ".join(f"{name} = {float(p[row]):.6g}" for name, p in parameters.items() if p[row].ndim == 0)
    ranges = "; ".join(f"{name} {text}" for name, text in task.parameters.items())
    raise SapcError(
        f"the {task.name} solver found no finite solution for sample {row} ({values}); "
        f"give parameters in the task's own ranges ({ranges})"
    )
