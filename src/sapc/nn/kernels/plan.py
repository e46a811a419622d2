"""What depends on grid, sizes and precision alone: block shapes, launches, padded transforms."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import triton
from torch import Tensor

from ..._triton import is_interpreted
from ..dft import Transforms


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched.

    Attributes:
        points: Points of a row at a time.
        warps: Warps per program.
        stages: Rows in flight.
        programs: Programs per multiprocessor.
        hidden: Channels of a hidden layer at a time.
        registers: Registers per thread at most; None leaves that to the compiler.
    """

    points: int = 128
    warps: int = 4
    stages: int = 1
    programs: int = 2
    hidden: int = 64
    registers: int | None = None


@dataclass(frozen=True)
class Tuning:
    """Launches of all kernels, measured on an H200 by `benchmarks/fused_kernels.py --sweep`.

    `block_training` is where h is kept for the way back; the mixing takes `batch` samples at a time.
    """

    lift: Launch
    block: Launch
    block_training: Launch
    project: Launch
    project_back: Launch
    project_weights: Launch
    block_back: Launch
    lift_back: Launch
    batch: int = 64
    mix_warps: int = 4


# Multiplications with additions; the default depends on the version of Triton.
FP_FUSION = {"enable_fp_fusion": True}
# By the size of a number: in float32 twice as much has to fit on the chip. By channels: 64, 128, 32, 16.
HALF_WIDE = Tuning(
    lift=Launch(programs=3, registers=168),
    block=Launch(programs=3),
    block_training=Launch(stages=3),
    project=Launch(),
    project_back=Launch(programs=3, registers=168),
    project_weights=Launch(64, programs=3, registers=168),
    block_back=Launch(stages=2),
    lift_back=Launch(64),
)
# What is in flight fits on the chip.
HALF_BROAD = replace(HALF_WIDE, block_back=Launch(stages=1))
HALF_NARROW = Tuning(
    lift=Launch(64, programs=4, hidden=128, registers=128),
    block=Launch(64, stages=3, programs=4),
    block_training=Launch(64, stages=3, programs=4),
    project=Launch(64, programs=4, hidden=128),
    project_back=Launch(64, programs=4, registers=128),
    project_weights=Launch(64, programs=3),
    block_back=Launch(64, stages=3, programs=3),
    lift_back=Launch(64, programs=3),
)
# With 16 channels: two warps, which are no warp group, so that no product needs a descriptor (see
# `lift_chunk`).
HALF_SLIM = Tuning(
    lift=Launch(64, warps=2, programs=6, hidden=32),
    block=Launch(64, warps=2, stages=2, programs=6),
    block_training=Launch(64, warps=2, stages=2, programs=6),
    project=Launch(64, warps=2, programs=6, hidden=32),
    project_back=Launch(64, warps=2, programs=6, hidden=32),
    project_weights=Launch(64, warps=2, programs=6, hidden=32),
    block_back=Launch(64, warps=2, stages=2, programs=6),
    lift_back=Launch(64, warps=2, programs=6, hidden=32),
    mix_warps=2,
)
_SMALL = Launch(64)
FULL = Tuning(_SMALL, _SMALL, _SMALL, _SMALL, Launch(32), _SMALL, _SMALL, _SMALL, batch=32)
# Without matrix units a thread multiplies one by one, in a program that grows with its share: with many
# threads it compiles in a tenth of the time.
_WIDE = Launch(64, warps=16, programs=1)
EXACT = Tuning(_WIDE, _WIDE, _WIDE, _WIDE, _WIDE, _WIDE, _WIDE, _WIDE, batch=32, mix_warps=16)

# Rows of a product that four warps make together.
WARP_GROUP = 64


@dataclass(frozen=True, eq=False)
class Plan:
    """The kernels' view of a grid and a network.

    Attributes:
        transforms: Unitary transforms of the grid.
        hidden: Channels of the blocks.
        projection: Channels of the hidden layers.
        inputs: Number of fields that enter: the state, and condition fields if there are any.
        precision: Precision of products: tf32 or ieee for float32 numbers.
        tuning: Launches.
        place: The last coordinate, `(T,)`.
        lead: The other coordinates, `(lines, axes - 1)`.
        unit: The number 1.
        multiprocessors: Their number.
        matrix_cache: See `matrices`.
        checked_backward: See `network.check_backward`.
        size_cache: See `sizes`.
    """

    transforms: Transforms
    hidden: int
    projection: int
    inputs: int
    precision: str
    tuning: Tuning
    place: Tensor
    lead: Tensor
    unit: Tensor
    multiprocessors: int
    matrix_cache: dict[tuple[int, bool], tuple[Tensor, Tensor]] = field(default_factory=dict)
    checked_backward: set[bool] = field(default_factory=set)
    size_cache: dict[Launch, dict[str, Any]] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the activations."""
        return self.transforms.analyse[-1].dtype

    @property
    def device(self) -> torch.device:
        """Device of all tensors."""
        return self.place.device

    @property
    def lines(self) -> int:
        """Number of rows of a sample."""
        return math.prod(self.transforms.grid[:-1])

    @property
    def gelu(self) -> str:
        """Form of the GELU; see `device_functions`."""
        if self.dtype == torch.float32 and self.precision == "ieee":
            return "exact"
        return "plain" if is_interpreted() else "unit"

    def sizes(self, launch: Launch) -> dict[str, Any]:
        """Compile-time sizes of every row kernel."""
        if launch not in self.size_cache:
            T, M = self.transforms.grid[-1], self.transforms.mode_slices[-1].stop
            TB = min(launch.points, max(16, triton.next_power_of_2(T)))
            MP = max(8, triton.next_power_of_2(M - 1))
            self.size_cache[launch] = {
                "T": T, "C": self.hidden, "M": M, "MP": MP, "R": triton.next_power_of_2(2 * MP + 2), "TB": TB,
                "NT": -(-T // TB), "GELU": self.gelu, "PRECISION": self.precision, "STAGES": launch.stages,
                "num_warps": launch.warps, **FP_FUSION,
            } | ({} if launch.registers is None else {"maxnreg": launch.registers})  # fmt: skip
        return self.size_cache[launch]

    def chunk(self, launch: Launch) -> dict[str, int]:
        """Compile-time sizes of the hidden layer."""
        return {"H": self.projection, "HB": min(launch.hidden, self.projection)}

    def lift_chunk(self, launch: Launch) -> dict[str, int]:
        """Return compile-time sizes of the lifting's hidden layer: rows no longer than those of its output.

        Both are factors of products, one after the other in the same memory. Where a warp group makes both
        products and the rows differ, the assembler of Triton 3.6 (ptxas 12.8) adds to a descriptor in a
        register that nothing has written, so a factor is read from anywhere, beyond the shared memory of a
        program, too. `benchmarks/unset_registers.py` finds such kernels.
        """
        group = self.sizes(launch)["R"] >= WARP_GROUP and launch.warps >= 4
        sizes = self.chunk(launch)
        return sizes | ({"HB": min(sizes["HB"], self.hidden)} if group else {})

    def matrices(self, launch: Launch, is_backward: bool = False) -> tuple[Tensor, Tensor]:
        """Make the padded transforms along a row: zero in the padding, the mean in IN alone.

        Args:
            launch: Launch of the kernel.
            is_backward: Return IN^T and OUT^T in their places.

        Returns:
            OUT `(T, 2 MP)` and IN `(R, T)`.
        """
        # Zero in the padding; the mean is in IN alone.
        s = self.sizes(launch)
        T, M, MP, length = s["T"], s["M"], s["MP"], s["NT"] * s["TB"]
        if (length, is_backward) not in self.matrix_cache:
            with torch.inference_mode(False), torch.no_grad():
                waves = [
                    a.reshape(2, M, T)
                    for a in (self.transforms.synthesise[-1].T, self.transforms.analyse[-1])
                ]
                out, into = waves[::-1] if is_backward else waves
                O, I = out.new_zeros(2, MP, length), out.new_zeros(s["R"], length)
                O[:, : M - 1, :T] = out[:, 1:]
                I[: 2 * MP].view(2, MP, -1)[:, : M - 1, :T] = into[:, 1:]
                I[2 * MP, :T] = into[0, 0]
                self.matrix_cache[length, is_backward] = O.reshape(2 * MP, length).T.contiguous(), I
        return self.matrix_cache[length, is_backward]

    def programs(self, launch: Launch, rows: int) -> int:
        """Return how many programs run at the same time."""
        return min(rows, launch.programs * self.multiprocessors)

    def samples(self, batch: int) -> int:
        """Return how many samples the mixing takes at a time."""
        return min(self.tuning.batch, max(16, int(triton.next_power_of_2(batch))))

    def empty_rows(self, batch: int) -> tuple[Tensor, Tensor]:
        """Allocate an activation and the spectrum of its rows."""
        lead, T, M = self.transforms.grid[:-1], self.transforms.grid[-1], self.transforms.mode_slices[-1].stop
        x = torch.empty(batch, *lead, T, self.hidden, dtype=self.dtype, device=self.device)
        return x, torch.empty(batch, *lead, 2, M, self.hidden, dtype=self.dtype, device=self.device)

    def empty(self, *shape: int) -> Tensor:
        """Allocate float32 numbers."""
        return torch.empty(*shape, dtype=torch.float32, device=self.device)


def make_plan(
    transforms: Transforms,
    hidden: int,
    projection: int,
    inputs: int,
    tf32: bool,
    tuning: Tuning | None = None,
) -> Plan:
    """Make the plan of a grid and a network; `tf32`: products of float32 numbers may be rounded to it."""
    kind, axes = transforms.analyse[-1].dtype, len(transforms.grid)
    precision = "tf32" if tf32 else "ieee"
    if is_interpreted() and kind != torch.float32:
        precision = "widened"
    with torch.inference_mode(False), torch.no_grad():
        place = transforms.place.reshape(-1, transforms.grid[-1], axes + 1)
        last, lead = place[0, :, axes - 1].contiguous(), place[:, 0, : axes - 1].contiguous()
        half = {16: HALF_SLIM, 32: HALF_NARROW, 64: HALF_WIDE}.get(hidden, HALF_BROAD)
        full = FULL if tf32 else EXACT
        tuning = tuning or (full if kind == torch.float32 else half)
        unit, device = torch.ones_like(last[:1]), last.device
    count = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return Plan(transforms, hidden, projection, inputs, precision, tuning, last, lead, unit, count)
