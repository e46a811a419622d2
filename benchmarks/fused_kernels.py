"""The kernels of the fused backbone one by one: milliseconds, and how near to what the memory needs for the bytes they must move.

    PYTHONPATH=src python3 benchmarks/fused_kernels.py                     every kernel of the published networks, as launched
    PYTHONPATH=src python3 benchmarks/fused_kernels.py --sweep             the fastest launches of each
    TRITON_INTERPRET=1 PYTHONPATH=src python3 benchmarks/fused_kernels.py --tiny --device cpu        smoke check

A copy of a large tensor, in the same run, gives the bandwidth that the bytes are divided by. Median of 20 calls after 3.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
from _measure import milliseconds
from torch import Tensor

from sapc.nn.dft import make_transforms
from sapc.nn.kernels import network
from sapc.nn.kernels.network import BlockParameters, Ends
from sapc.nn.kernels.plan import Launch, Plan, make_plan

COMPILERS = 12
SIZES = {2: ((100, 100), (32, 17), 64, 256, 256), 3: ((64, 64, 50), (16, 16, 9), 32, 128, 32)}
TINY = {2: ((4, 20), (4, 3), 16, 16, 2), 3: ((3, 4, 20), (2, 2, 3), 16, 16, 2)}


@dataclass
class Case:
    """A network's plan and something to run its kernels on."""

    p: Plan
    batch: int

    def __post_init__(self) -> None:
        g = torch.Generator(self.p.device).manual_seed(0)
        draw = lambda *shape, scale=1.0: scale * torch.randn(*shape, generator=g, device=self.p.device)
        p, H, C, T = self.p, self.p.projection, self.p.hidden, self.p.transforms.grid[-1]
        modes = [k.stop - k.start for k in p.transforms.mode_slices]
        self.u, self.gv = (
            draw(self.batch, *p.transforms.grid[:-1], 1, T),
            draw(self.batch, *p.transforms.grid, scale=64 / 5),
        )
        self.tau, self.line = draw(self.batch, H), draw(p.lines, H)
        self.e = Ends(
            draw(2, H), draw(C, H, scale=H**-0.5), draw(C), draw(H, C, scale=C**-0.5), draw(H), draw(1, H), draw(1)
        )  # fmt: skip
        self.layer = BlockParameters(draw(2, *modes, C, C, scale=0.088), draw(C), draw(C, C, scale=C**-0.5))
        self.x, self.z, self.m = (a.copy_(draw(*a.shape)) for a in (*p.empty_rows(self.batch), self._modes()))

    def _modes(self) -> Tensor:
        p, modes = self.p, [k.stop - k.start for k in self.p.transforms.mode_slices]
        return torch.empty(self.batch, 2, *modes, p.hidden, dtype=p.dtype, device=p.device)

    def stages(self) -> dict[str, tuple[Callable[[Plan], object], int]]:
        """Every kernel with the bytes that it must read and write."""
        x, z, m, v, w = (a.nbytes for a in (self.x, self.z, self.m, self.gv, self.layer.modes))
        state = network.ForwardState(self.u, self.tau, self.line, self.x, [], [])
        base = 4 * self.batch * self.p.lines * self.p.projection
        h = lambda p: self.e.round_factors(p.dtype)
        return {
            "lift": (lambda p: network._lift(p, self.u, self.tau, self.line, h(p)), v + x + z),
            "block": (lambda p: network._block(p, self.x, self.z, self.layer, False, False), 2 * x + 2 * z),
            "block, training": (
                lambda p: network._block(p, self.x, self.z, self.layer, True, True),
                2 * x + 2 * z,
            ),
            "project": (
                lambda p: network._project(p, self.x, self.z, self.layer, h(p), False, False),
                x + z + v,
            ),
            "project, training": (
                lambda p: network._project(p, self.x, self.z, self.layer, h(p), True, True),
                2 * x + z + v,
            ),
            "to modes": (lambda p: p.transforms.to_modes(self.z), z + m),
            "mix": (lambda p: network._mix(p, self.m, self.layer.modes), 2 * m + w),
            "from modes": (lambda p: p.transforms.from_modes(self.m), z + m),
            "project, back": (lambda p: network._project_back(p, self.gv, self.x, h(p)), v + 2 * x + z),
            "project, weights": (lambda p: network._project_weights(p, self.gv, self.x, h(p)), v + x),
            "mix, back": (
                lambda p: network._mix_back(p, self.m, self.m, self.layer.modes, p.unit),
                3 * m + 2 * w,
            ),
            "block, back": (
                lambda p: network._block_back(p, self.x, self.z, self.x, self.layer, False),
                3 * x + 2 * z,
            ),
            "lift, back": (lambda p: network._lift_back(p, self.x, state, h(p), False), x + v + base),
        }


FIELDS = {
    "lift": "lift", "block": "block", "block, training": "block_training", "project": "project", "project, back": "project_back",
    "project, weights": "project_weights", "block, back": "block_back", "lift, back": "lift_back",
}  # fmt: skip


def launches(kernel: str, dims: int) -> Iterator[Launch]:
    """What is tried for a kernel."""
    rows = "block" in kernel
    points = (64, 128) if dims == 2 else (64,)
    stages = (1, 2, 3) if rows else (1,)
    hidden = (64,) if rows else (64, 128) if dims == 2 else (32, 64, 128)
    registers = (None, 168, 128) if dims == 2 else (None, 128)
    for some in product(points, (4,), stages, (2, 3, 4) if dims == 2 else (3, 4, 6), hidden, registers):
        launch = Launch(*some)
        if launch.registers is None or launch.programs * launch.warps * 32 * launch.registers <= 65536:
            yield launch


def case(dims: int, precision: str, device: torch.device, batch: int | None, tiny: bool) -> Case:
    grid, modes, hidden, projection, usual = (TINY if tiny else SIZES)[dims]
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32}[precision]
    transforms = make_transforms(grid, modes, kind, device, unitary=True)
    return Case(make_plan(transforms, hidden, projection, 1, True), batch or usual)


def bandwidth(device: torch.device) -> float:
    """Bytes a second of a large copy, read and written."""
    if device.type != "cuda":
        return 1e10
    a = torch.randn(2**30, device=device)
    b = torch.empty_like(a)
    return 2 * a.nbytes / (1e-3 * milliseconds(lambda: b.copy_(a), device))


def table(which: Case, rate: float, label: str) -> list[dict[str, object]]:
    rows = []
    print(f"\n{label:18s} {'ms':>8s} {'at least':>9s} {'ratio':>6s}")
    for name, (call, size) in which.stages().items():
        try:
            ms = milliseconds(partial(call, which.p), which.p.device)
        except Exception as error:
            print(f"{name:18s} {type(error).__name__}: {str(error)[:90]}")
            continue
        least = 1e3 * size / rate
        rows.append({"network": label, "kernel": name, "ms": ms, "bytes": size, "least_ms": least})
        print(f"{name:18s} {ms:8.4f} {least:9.4f} {ms / least:6.2f}", flush=True)
    return rows


def with_launch(p: Plan, field: str, launch: Launch) -> Plan:
    return replace(p, tuning=replace(p.tuning, **{field: launch}), matrix_cache={}, size_cache={})


def tries(which: Case, dims: int) -> Iterator[tuple[str, Launch]]:
    for kernel in which.stages():
        if kernel in FIELDS:
            for launch in launches(kernel, dims):
                yield kernel, launch


def compile_some(arguments: argparse.Namespace, part: int, device: torch.device) -> None:
    """The part-th share of all variants on two samples: kernels end up in Triton's cache."""
    seen = set()
    for dims in arguments.dims:
        which = case(dims, arguments.precision, device, 2, arguments.tiny)
        stages = which.stages()
        for kernel, launch in tries(which, dims):
            key = (dims, kernel, replace(launch, programs=1))
            if key in seen:
                continue
            seen.add(key)
            if len(seen) % COMPILERS == part:
                try:
                    stages[kernel][0](with_launch(which.p, FIELDS[kernel], launch))
                except Exception as error:
                    print(kernel, launch, type(error).__name__, str(error)[:80], flush=True)


def sweep(arguments: argparse.Namespace, device: torch.device) -> list[dict[str, object]]:
    began = time.perf_counter()
    command = [
        sys.executable,
        __file__,
        "--precision",
        arguments.precision,
        "--dims",
        *map(str, arguments.dims),
    ]
    jobs = [subprocess.Popen([*command, "--compile", str(i)]) for i in range(COMPILERS)]
    for job in jobs:
        job.wait()
    print(f"compiled in {time.perf_counter() - began:.0f} s", flush=True)
    rows: list[dict[str, object]] = []
    for dims in arguments.dims:
        which = case(dims, arguments.precision, device, arguments.batch, arguments.tiny)
        stages, found = which.stages(), {}
        for kernel, launch in tries(which, dims):
            p = with_launch(which.p, FIELDS[kernel], launch)
            try:
                ms = milliseconds(partial(stages[kernel][0], p), device, 9, 2)
            except Exception:
                continue
            found.setdefault(kernel, []).append((ms, launch))
        for kernel, results in found.items():
            for ms, launch in sorted(results, key=lambda r: r[0])[:4]:
                rows.append({"dims": dims, "kernel": kernel, "ms": ms, **asdict(launch)})
                numbers = " ".join(f"{k} {v}" for k, v in asdict(launch).items())
                print(f"{dims}d {kernel:18s} {ms:8.4f}  {numbers}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="fp16", choices=("fp16", "bf16", "tf32"))
    parser.add_argument("--dims", type=int, nargs="*", default=[2, 3])
    parser.add_argument("--batch", type=int)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--compile", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.backends.cuda.matmul.allow_tf32 = True
    if arguments.compile is not None:
        compile_some(arguments, arguments.compile, device)
        return
    rate = bandwidth(device)
    print(f"copy: {rate / 1e12:.2f} TB/s", flush=True)
    result: dict[str, object] = {"bandwidth": rate, "torch": torch.__version__}
    rows = []
    for dims in arguments.dims:
        which = case(dims, arguments.precision, device, arguments.batch, arguments.tiny)
        rows += table(which, rate, f"{dims}d, {arguments.precision}")
    result["kernels"] = rows
    if arguments.sweep:
        result["launches"] = sweep(arguments, device)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + os.linesep)


if __name__ == "__main__":
    main()
