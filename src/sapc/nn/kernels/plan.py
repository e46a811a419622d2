"""What the kernels are told that depends on grid, sizes and precision alone: block shapes, launches, padded transforms."""

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

    points      of a row at a time          hidden      channels of a hidden layer at a time
    warps       per program                 programs    per multiprocessor
    stages      rows in flight              registers   per thread at most, if not as many as the compiler likes
    """

    points: int = 128
    warps: int = 4
    stages: int = 1
    programs: int = 2
    hidden: int = 64
    registers: int | None = None


@dataclass(frozen=True)
class Tuning:
    """Launches of all kernels, found on an H200 by `benchmarks/fused_kernels.py --sweep`."""

    lift: Launch
    block: Launch
    block_training: Launch  # where h is kept for the way back
    project: Launch
    project_back: Launch
    project_weights: Launch
    block_back: Launch
    lift_back: Launch
    batch: int = 64  # samples at a time in the mixing
    mix_warps: int = 4


# Multiplications with additions; the default depends on the version of Triton.
FUSED = {"enable_fp_fusion": True}
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
HALF_BROAD = replace(HALF_WIDE, block_back=Launch(stages=1))  # what is in flight fits on the chip
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
# With 16 channels: two warps, which are no warp group, so that no product needs a descriptor (see `lift_chunk`).
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
_TWO = Launch(64)
FULL = Tuning(_TWO, _TWO, _TWO, _TWO, Launch(32), _TWO, _TWO, _TWO, batch=32)
# Without matrix units a thread multiplies one by one, in a program that grows with its share: with many threads it compiles in a tenth
# of the time.
_MANY = Launch(64, warps=16, programs=1)
EXACT = Tuning(_MANY, _MANY, _MANY, _MANY, _MANY, _MANY, _MANY, _MANY, batch=32, mix_warps=16)


WARP_GROUP = 64  # rows of a product that four warps make together


@dataclass(frozen=True, eq=False)
class Plan:
    """The kernels' view of a grid and a network."""

    how: Transforms  # unitary
    hidden: int
    projection: int
    inputs: int
    precision: str  # of products: tf32 or ieee for float32 numbers
    tuning: Tuning
    place: Tensor  # the last coordinate (T,)
    lead: Tensor  # the others, (lines, axes - 1)
    one: Tensor  # the number
    multiprocessors: int
    padded: dict[tuple[int, bool], tuple[Tensor, Tensor]] = field(default_factory=dict)  # see `matrices`
    checked_backward: set[bool] = field(default_factory=set)  # see `network.check_backward`
    known: dict[Launch, dict[str, Any]] = field(default_factory=dict)  # see `sizes`

    @property
    def dtype(self) -> torch.dtype:
        """Of the activations."""
        return self.how.analyse[-1].dtype

    @property
    def device(self) -> torch.device:
        """Where it all happens."""
        return self.place.device

    @property
    def lines(self) -> int:
        """Rows of a sample."""
        return math.prod(self.how.grid[:-1])

    @property
    def gelu(self) -> str:
        """See `pieces`."""
        if self.dtype == torch.float32 and self.precision == "ieee":
            return "exact"
        return "plain" if is_interpreted() else "unit"

    def sizes(self, launch: Launch) -> dict[str, Any]:
        """What every row kernel is told."""
        if launch not in self.known:
            T, M = self.how.grid[-1], self.how.mode_slices[-1].stop
            TB = min(launch.points, max(16, triton.next_power_of_2(T)))
            MP = max(8, triton.next_power_of_2(M - 1))
            self.known[launch] = {
                "T": T, "C": self.hidden, "M": M, "MP": MP, "R": triton.next_power_of_2(2 * MP + 2), "TB": TB, "NT": -(-T // TB),
                "GELU": self.gelu, "PRECISION": self.precision, "STAGES": launch.stages, "num_warps": launch.warps, **FUSED,
            } | ({} if launch.registers is None else {"maxnreg": launch.registers})  # fmt: skip
        return self.known[launch]

    def chunk(self, launch: Launch) -> dict[str, int]:
        """What a kernel with a hidden layer is told of it."""
        return {"H": self.projection, "HB": min(launch.hidden, self.projection)}

    def lift_chunk(self, launch: Launch) -> dict[str, int]:
        """The same for the lifting, whose hidden layer is read in rows of at most as many numbers as its output has.

        Both are factors of products, one after the other in the same memory. Where a warp group makes both products and the rows differ,
        the assembler of Triton 3.6 (ptxas 12.8) adds to a descriptor in a register that nothing has written, so a factor is read from
        anywhere, beyond the shared memory of a program, too. `benchmarks/unset_registers.py` finds such kernels.
        """
        group = self.sizes(launch)["R"] >= WARP_GROUP and launch.warps >= 4
        sizes = self.chunk(launch)
        return sizes | ({"HB": min(sizes["HB"], self.hidden)} if group else {})

    def matrices(self, launch: Launch, back: bool = False) -> tuple[Tensor, Tensor]:
        """OUT `(T, 2 MP)` and IN `(R, T)`, zero in the padding, the mean in IN alone; `back`: IN^T and OUT^T in their places."""
        s = self.sizes(launch)
        T, M, MP, length = s["T"], s["M"], s["MP"], s["NT"] * s["TB"]
        if (length, back) not in self.padded:
            with torch.inference_mode(False), torch.no_grad():
                waves = [a.reshape(2, M, T) for a in (self.how.synthesise[-1].T, self.how.analyse[-1])]
                out, into = waves[::-1] if back else waves
                O, I = out.new_zeros(2, MP, length), out.new_zeros(s["R"], length)
                O[:, : M - 1, :T] = out[:, 1:]
                I[: 2 * MP].view(2, MP, -1)[:, : M - 1, :T] = into[:, 1:]
                I[2 * MP, :T] = into[0, 0]
                self.padded[length, back] = O.reshape(2 * MP, length).T.contiguous(), I
        return self.padded[length, back]

    def programs(self, launch: Launch, rows: int) -> int:
        """As many as run at the same time."""
        return min(rows, launch.programs * self.multiprocessors)

    def samples(self, batch: int) -> int:
        """How many the mixing takes at a time."""
        return min(self.tuning.batch, max(16, int(triton.next_power_of_2(batch))))

    def empty_rows(self, batch: int) -> tuple[Tensor, Tensor]:
        """An activation and the spectrum of its rows, unwritten."""
        lead, T, M = self.how.grid[:-1], self.how.grid[-1], self.how.mode_slices[-1].stop
        x = torch.empty(batch, *lead, T, self.hidden, dtype=self.dtype, device=self.device)
        return x, torch.empty(batch, *lead, 2, M, self.hidden, dtype=self.dtype, device=self.device)

    def empty(self, *shape: int) -> Tensor:
        """Float32 numbers, unwritten."""
        return torch.empty(*shape, dtype=torch.float32, device=self.device)


def make_plan(
    how: Transforms, hidden: int, projection: int, inputs: int, tf32: bool, tuning: Tuning | None = None
) -> Plan:
    """The plan of a grid and a network; `tf32`: whether products of float32 numbers may be rounded to it."""
    kind, axes = how.analyse[-1].dtype, len(how.grid)
    precision = "tf32" if tf32 else "ieee"
    if is_interpreted() and kind != torch.float32:
        precision = "widened"
    with torch.inference_mode(False), torch.no_grad():
        place = how.place.reshape(-1, how.grid[-1], axes + 1)
        last, lead = place[0, :, axes - 1].contiguous(), place[:, 0, : axes - 1].contiguous()
        half = {16: HALF_SLIM, 32: HALF_NARROW, 64: HALF_WIDE}.get(hidden, HALF_BROAD)
        full = FULL if tf32 else EXACT
        tuning = tuning or (full if kind == torch.float32 else half)
        one, device = torch.ones_like(last[:1]), last.device
    count = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return Plan(how, hidden, projection, inputs, precision, tuning, last, lead, one, count)
