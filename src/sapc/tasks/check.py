"""What is worth knowing of physics and data before a training.

Do they fit? Does the projection converge, which algorithm is it, and how fast?

    report = sapc.check(task)        # a task of your own
    print(report.text())

The residual of the data themselves is what a law's discretisation leaves; samples will have none of it. If
projecting the data moves them by more than a conditions per cent, law and data disagree: a wrong sign, unit,
axis kind (periodic, closed, cells) or time.

A residual is judged beside the size of the terms that a law adds up, sum_i |dq/du_i| |u_i|, not beside their
sum q, which is zero for a divergence or a net flux. Where all terms have one sign, as in a mass, both are the
same.

Images of the data under a declared symmetry satisfy the laws as well as the data do, to rounding, have the
prescribed values, and have the same moments (see `invariance`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._old_names import find_renamed, rename_fields
from .._plugins import run_file
from ..constraints import FeasiblePoint, Manifold
from ..constraints.terms import Affine, Balance, Constraint, Pin
from ..errors import SapcError, check_int, explain_misuse
from ..flow import source
from .base import Task
from .invariance import SymmetryCheck, check_symmetry, law_residual
from .physics import explain_failure, pins_of
from .sources import find_device, is_user_solver
from .user_solver import describe_conditions

EXPLANATIONS = {
    "closed form": "only pins, or pins and one integral that does not change: one pass, no iteration",
    "factorised": "all laws are linear: one Cholesky factor, computed once",
    "banded Gauss-Newton": (
        "one balance law with a rate or a curved quantity: every row reads one frame, so a pass costs O(grid)"
    ),
    "dense Gauss-Newton": "",
}
# As a share of a law's terms: what a discretisation leaves is mostly less.
MAX_LAW_RESIDUAL = 0.01
# How many rows of a law, and fields, are looked at to see how large its terms are.
MAX_ROWS, MAX_FIELDS = 64, 8
# In deviations of a field: if projecting the data moves them by more, law and data disagree.
MAX_DATA_DISTANCE = 0.05


_FILE_KEYS = {"minimum": "least", "maximum": "largest", "explanation": "why", "data_distance": "data_moved"}
"""Fields that `sapc check --json` writes under the names of version 0.1.0."""


@rename_fields(least="minimum", largest="maximum")
@dataclass(frozen=True)
class Channel:
    """A channel of the data."""

    name: str
    unit: str
    minimum: float
    maximum: float
    mean: float
    deviation: float


@dataclass(frozen=True)
class Law:
    """A law, by how much the data miss it, and how large the terms are that it adds up."""

    name: str
    rows: int
    residual: float
    typical: float

    @property
    def share(self) -> float:
        """The residual as a share of the terms."""
        return self.residual / self.typical if self.typical else float(self.residual > 0)


@rename_fields(why="explanation", data_moved="data_distance")
@dataclass(frozen=True)
class DataCheck:
    """What `check` found; `data_distance` is a root mean square in units of the channels' deviations."""

    task: str
    samples: int
    grid: str
    channels: tuple[Channel, ...]
    pins: tuple[tuple[str, int], ...]
    points: int
    laws: tuple[Law, ...]
    algorithm: str
    explanation: str
    noise: int
    converged: int
    iterations: int
    residual: float
    data_distance: float
    seconds: float
    test_set_problems: tuple[str, ...] = ()
    symmetries: tuple[SymmetryCheck, ...] = ()

    @property
    def problems(self) -> list[str]:
        """What should be looked into before training."""
        problems = list(self.test_set_problems)
        if self.converged < self.noise:
            problems.append(
                f"{self.noise - self.converged} of {self.noise} draws of noise did not reach the manifold "
                f"(|R| up to {self.residual:.1e}): "
                "look for laws that contradict each other or the pins, or that hold for no field"
            )
        if self.data_distance > MAX_DATA_DISTANCE:
            problems.append(
                f"projecting the data moves them by {self.data_distance:.0%} of their deviation: law and "
                "data disagree; look at signs, "
                "units, the kinds of axes (periodic, closed, cells) and times"
            )
        problems += [
            f"the data break the {law.name} by up to {law.share:.1%} of its terms: is an axis periodic, or "
            "centres of "
            "cells (--periodic, --cells)? Is there a rate that the law leaves out?"
            for law in self.laws
            if law.name != "constraint" and law.share > MAX_LAW_RESIDUAL
        ]
        problems += [problem for symmetry in self.symmetries for problem in symmetry.problems]
        if not self.pins and not self.laws:
            problems.append("there is neither a pin nor a law: samples will be unconstrained")
        return problems

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        entries = {_FILE_KEYS.get(name, name): value for name, value in asdict(self).items()}
        entries["channels"] = [
            {_FILE_KEYS.get(name, name): value for name, value in channel.items()}
            for channel in entries["channels"]
        ]
        return {**entries, "problems": self.problems}

    def text(self) -> str:
        """Format it as text."""
        lines = [f"{self.task}: {self.samples} samples on {self.grid}"]
        lines += [
            f"  channel {c.name}{f' [{c.unit}]' if c.unit else ''}: {c.minimum:.4g} to {c.maximum:.4g}, "
            f"mean {c.mean:.4g}, "
            f"deviation {c.deviation:.4g}"
            for c in self.channels
        ]
        lines += [f"  pinned: {label}, {n} of {self.points} values" for label, n in self.pins]
        lines += [
            f"  {law.name}: {law.rows} rows; of the data themselves |R| is up to {law.residual:.2g} "
            f"(its terms add up to {law.typical:.2g} without their signs)"
            for law in self.laws
        ]
        lines += [
            f"  projection: {self.algorithm} ({self.explanation})",
            f"  from noise: {self.converged} of {self.noise} on the manifold, |R| at most "
            f"{self.residual:.1e}, "
            f"up to {self.iterations} passes, {1000 * self.seconds:.3g} ms a sample",
            f"  the data themselves are moved by {self.data_distance:.2%} of their deviation",
            *(symmetry.line() for symmetry in self.symmetries),
        ]
        lines += [f"  problem: {p}" for p in self.problems] or ["  no problem found"]
        return "\n".join(lines)


@explain_misuse
def check(task: Task, noise: int = 16, seed: int = 0, device: str | torch.device = "cpu") -> DataCheck:
    """Look at a task of your own: its data, its laws, and how noise is projected.

    Args:
        task: A task of data, or of a class with a solver, of which a few samples are solved.
        noise: Number of draws of noise to project.
        seed: Seed of the noise.
        device: Device of the projection.

    Returns:
        What was found; `report.text()` is for people.

    Raises:
        SapcError: It is not a task of a user.
    """
    if not isinstance(task, Task) or (task.can_draw and not is_user_solver(task)):
        raise SapcError(
            "check looks at a task of your own, as sapc.check(sapc.Task.from_data(data, physics)) or "
            "sapc.check(MyTask()), "
            f"got {type(task).__name__}"
        )
    noise = check_int(noise, "number of draws", 1)
    fields = task.dataset("train", noise if task.can_draw else None, cache=False).fields
    device = find_device(device)
    conditions = task.normalize(fields[:: max(1, len(fields) // noise)][:noise].double().to(device))
    H = task.normalized_manifold(conditions, solver=FeasiblePoint())
    u, parts = fields[:256].double(), task.constraint.parts
    g = torch.Generator().manual_seed(seed)
    v1 = source.sample(task.grid, len(conditions), g, dtype=torch.float64).to(device)
    # What happens once only is not part of the time.
    H.project(v1, check=False)
    start = time.perf_counter()
    _, info = H.solve(v1)
    seconds = time.perf_counter() - start
    distance = (H.project(conditions, check=False) - conditions).square().mean().sqrt()
    if task.normalizer.is_identity:
        distance = distance / conditions.std()
    laws = tuple(_law(part, u) for part in parts if isinstance(part, Balance | Constraint))
    return DataCheck(
        task=task.name, samples=noise if task.can_draw else sum(task.sizes.values()), grid=_grid(task),
        channels=_channels(task, fields), points=fields[0].numel(), algorithm=H.algorithm,
        pins=tuple((_label(pin), int(pin.mask(task.grid.shape).sum())) for pin in pins_of(task.constraint)),
        laws=laws, symmetries=tuple(
            check_symmetry(task, symmetry, fields, [law.typical for law in laws], seed)
            for symmetry in task.find_symmetries()
            if not symmetry.parameter
        ),
        explanation=EXPLANATIONS[H.algorithm] or _why_dense(task, H), noise=len(conditions),
        converged=int(info.converged.sum()), iterations=int(info.iterations.max()),
        residual=float(info.residual.max()), data_distance=float(distance),
        seconds=seconds / len(conditions), test_set_problems=_check_test_sets(task),
    )  # fmt: skip


def _check_test_sets(task: Task) -> tuple[str, ...]:
    """Return what is wrong with the test sets of a solver, one sentence for each, on a few solutions."""
    if not task.can_draw:
        return ()
    datasets = {
        split: task.source.dataset(task, split, 3, 0, torch.device("cpu"), False, None)
        for split in task.test_sets
    }
    sentences = (describe_conditions(task, split, data.fields) for split, data in datasets.items())
    return tuple(filter(None, sentences))


def read_tasks(path: Path) -> list[Task]:
    """Run a Python file and return the tasks that it defines.

    Args:
        path: The file.

    Returns:
        Its `TASK`, or else its own subclasses of `Task` on their published grids; none if it defines none.

    Raises:
        SapcError: The file cannot be run.
    """
    try:
        module = run_file(path)
        values = [module.TASK] if hasattr(module, "TASK") else list(vars(module).values())
        kinds = [
            v
            for v in values
            if isinstance(v, type) and issubclass(v, Task) and v.__module__ == module.__name__
        ]
        return [v for v in values if isinstance(v, Task)] or [
            kind() for kind in kinds if hasattr(kind, "name")
        ]
    except (Exception, SystemExit) as error:
        raise SapcError(f"{path} cannot be run as Python: {explain_failure(error, str(path))}") from error


def _grid(task: Task) -> str:
    units = {name: f" {unit}" for name, unit in task.units.items() if unit}
    axes = (
        f"{a.name} {a.n} points of [{a.start:g}, {a.stop:g}]{units.get(a.name, '')} ({a.kind})"
        for a in task.grid.axes
    )
    return ", ".join(axes) + "; steady" * task.grid.steady


def _channels(task: Task, fields: Tensor) -> tuple[Channel, ...]:
    rows = fields.reshape(len(fields), task.grid.n_channels, -1).transpose(0, 1).flatten(1).double()
    names = task.grid.channels or ("field",)
    measures = (torch.min, torch.max, torch.mean, torch.std)
    return tuple(
        Channel(name, task.units.get(name, ""), *(float(measure(row)) for measure in measures))
        for name, row in zip(names, rows, strict=True)
    )


def _label(pin: Pin) -> str:
    if pin.value is None:
        return pin.label
    return f"{pin.label} = {pin.value if isinstance(pin.value, float | int) else 'given'}"


def _law(part: Balance | Constraint, u: Tensor) -> Law:
    residual = law_residual(part, u)
    if isinstance(part, Balance):
        name = (
            f"balance{' with a rate' if part.rate else ''}{' and a coefficient' if part.coefficient else ''}"
        )
        size = _size_of_terms(part.stored, u) or _size_of_terms(part.residual, u)
    else:
        name = "linear constraint" if isinstance(part, Affine) else "constraint"
        value = float((part.measure(u) - residual).abs().max())
        size = max(_size_of_terms(part.measure, u), value)
    return Law(name, residual.shape[1], float(residual.abs().max()), size)


def _size_of_terms(function: Callable[[Tensor], Tensor], u: Tensor) -> float:
    """Measure how large the terms of a function are: the largest sum_i |dq/du_i| |u_i| of some rows."""
    u = u[:MAX_FIELDS].detach().requires_grad_()
    with torch.enable_grad():
        rows = function(u)
    # A law that cuts off its gradient says no more of its terms than their sum.
    if not rows.requires_grad:
        return float(rows.abs().max())
    g = torch.Generator().manual_seed(0)
    largest = 0.0
    for r in torch.randperm(rows.shape[1], generator=g)[:MAX_ROWS].tolist():
        # Fields do not depend on each other: the gradient of the sum over the batch holds that of each.
        (gradient,) = torch.autograd.grad(rows[:, r].sum(), u, retain_graph=True, materialize_grads=True)
        largest = max(largest, float((gradient * u).detach().abs().flatten(1).sum(1).max()))
    return largest


def _why_dense(task: Task, H: Manifold) -> str:
    laws = [part for part in task.constraint.parts if not isinstance(part, Pin)]
    free = [law for law in laws if isinstance(law, Constraint) and not isinstance(law, Affine)]
    reason = "a Constraint declares no structure" if free else f"{len(laws)} laws have no common structure"
    rows = H.balance(H.fields).shape[1]
    megabytes = 8 * rows * H.fields[0].numel() / 2**20
    return f"{reason}: the Jacobian is {rows} x {H.fields[0].numel()}, {megabytes:.3g} MB a sample"


__getattr__ = find_renamed(__name__)
