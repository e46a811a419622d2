"""What kernels need on a GPU that is not here: compiled as they would be launched, never run. Triton 3.4 or later.

    PYTHONPATH=src python3 benchmarks/compile_kernels.py [--capability 90] [--warps 4 8 16] [--entries 2 4 8] [--conditions 2]

For every kernel of a projection on the published grids and of the published networks in half precision: registers of a thread, bytes on
its stack (what did not fit), shared memory of a program, how many programs fit on a processor by their registers, and the products that
a warp group makes. A kernel that reads a register which nothing wrote (`unset_registers.py`) ends it. Other kernels likewise:
`with absent(90):` around whatever launches them, on the CPU.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from unset_registers import disassemble, unset

import sapc
from sapc.constraints.projection.gpu.launch import use_tuning
from sapc.nn.dft import make_transforms

TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
REGISTERS = 65536  # of a processor
SHARED = {80: 166912, 86: 101376, 89: 101376, 90: 232448}  # bytes for one program, by capability


class Absent:
    """A driver without a device, as far as Triton asks one: what is launched gets compiled, measured and forgotten."""

    def __init__(self, capability: int) -> None:
        target, self.utils = GPUTarget("cuda", capability, 32), self
        self.get_current_target = lambda: target
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda device: 0
        self.get_device_properties = lambda device: {"max_shared_mem": SHARED.get(capability, 2**20)}

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        """What launches a kernel."""
        self.warps = metadata.num_warps
        return lambda *_: None

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[object, ...]:
        """Module, function, registers, spilled ones and the most threads."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(binary)
            file.flush()
            said = subprocess.run([TOOL, "-res-usage", file.name], capture_output=True, text=True, check=True)
            listing = disassemble(Path(file.name))
        registers, stack = (int(re.search(rf"{what}:(\d+)", said.stdout)[1]) for what in ("REG", "STACK"))  # type: ignore[index]
        fit = REGISTERS // (32 * self.warps * -(-registers // 8) * 8)
        print(
            f"  {name:16s} registers {registers:3d}  stack {stack:4d} B  shared {shared:6d} B  programs {fit:2d}  "
            f"warp group products {listing.count('GMMA.'):3d}",
            flush=True,
        )
        if found := unset(listing):
            raise SystemExit(f"{name} reads a register that nothing wrote: {'; '.join(found)}")
        return object(), 0, registers, stack, 1024


@contextmanager
def absent(capability: int) -> Iterator[None]:
    """Inside, launches with tensors of the CPU compile for a GPU of this capability and do nothing; their results are not defined."""
    triton.runtime.driver.set_active(Absent(capability))
    try:
        yield
    finally:
        triton.runtime.driver._active = None


NETWORKS = {
    "flat": (2, 32, 64, 256, 32),
    "solid": (3, 16, 32, 128, 16),
    "narrow": (2, 32, 32, 256, 32),
    "slim": (2, 32, 16, 32, 32),
    "broad": (2, 32, 128, 64, 32),
}


def projections(options: argparse.Namespace) -> None:
    """Of the curved laws."""
    solver = sapc.FeasiblePoint(execution=sapc.Execution(compiled=False, fused=True))
    for name in ("reaction_diffusion", "stokes_ic"):
        fields = torch.zeros(1, *sapc.get_task(name).grid.shape, dtype=torch.float64)
        H = sapc.get_task(name).manifold(fields, solver=solver)
        for warps in options.warps:
            for entries in options.entries:
                print(f"{name}, warps {warps}, entries {entries}", flush=True)
                with absent(options.capability), use_tuning(warps=warps, entries=entries):
                    H.project(fields, check=False)


def network(name: str, capability: int, conditions: int = 0) -> None:
    """A step of one, and an evaluation without a gradient."""
    from sapc.nn.kernels import network as kernels
    from sapc.nn.kernels.plan import make_plan

    dims, *sizes = NETWORKS[name]
    grid = (2,) * (dims - 1) + (100 if dims == 2 else 50,)
    net = sapc.FNO(dims, *sizes, blocks=2)
    transforms = make_transforms(grid, net.modes, torch.float16, torch.device("cpu"), unitary=True)
    p = make_plan(transforms, sizes[1], sizes[2], 1 + conditions, True)
    us, line = torch.zeros(2 + conditions, sizes[2]), torch.zeros(p.lines, sizes[2])
    tau = torch.zeros(1, sizes[2])
    layers = [x for block in net.blocks for x in block.parameters_for(transforms)]  # type: ignore[operator]
    ends = [us, *net.lift_out.parameters(), *net.project_in.parameters(), *net.project_out.parameters()]
    u = torch.zeros(1, *grid[:-1], 1 + conditions, grid[-1])
    print(f"{name} network, {conditions} condition fields", flush=True)
    with absent(capability):
        kernels.velocity(p, u, tau, line, *ends, *layers).sum().backward()
        with torch.no_grad():
            kernels.velocity(p, u, tau, line, *ends, *layers)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--capability", type=int, default=90)
    parser.add_argument("--warps", type=int, nargs="*", default=[4])
    parser.add_argument("--entries", type=int, nargs="*", default=[4])
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--conditions", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("error", sapc.SapcWarning)  # of a kernel that does not compile
    projections(options)
    for name in options.networks:
        network(name, options.capability, options.conditions)


if __name__ == "__main__":
    main()
