"""Our kernels under NVIDIA's compute-sanitizer: reads and writes out of bounds (memcheck), races in shared memory (racecheck), reads of
memory that nothing wrote (initcheck), barriers that not all threads reach (synccheck).

    PYTHONPATH=src python3 benchmarks/sanitize_kernels.py [--widths 16 32 64 128] [--tools memcheck racecheck] [--only solid-fp16]

For every width and tool one process, and in it networks in two and three dimensions and every precision, forward and backward and forward
alone, with more rows than programs, so that all programs go round their loop; `--widths 0` is the projection onto curved laws, and
`--widths -1` a kernel with a fault, which the tool must find: so it is seen that it looks at kernels at all. One line for each; it ends
with status 1 if one is not as it should be. `--together 2` runs two processes side by side.

Under racecheck cuBLAS fails ("the Sanitizer failed to handle a hardware exception"), so there its products are made on the CPU.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode

import sapc
from sapc.nn.fno import matmul_precision

GRIDS = {
    "flat": (60, 100),
    "solid": (24, 10, 50),
}  # rows of 100 in two pieces, of 50 in one; 960 of them with the batch
MODES = {"flat": 32, "solid": 16}
PROJECTIONS = {16: 32, 32: 256, 64: 256, 128: 64}
PRECISIONS = ("fp16", "bf16", "tf32")
CASES = [f"{kind}-{precision}" for kind in GRIDS for precision in PRECISIONS]
LAWS = ("reaction_diffusion", "stokes_ic", "stokes_bc")
KERNELS = ("lift_", "block_", "project_", "mix_", "restore")
FAULTY, CURVED = -1, 0  # in the place of a width
RACE = tl.constexpr(
    "{ .shared .b32 place; st.volatile.shared.b32 [place], $1; ld.volatile.shared.b32 $0, [place]; }"
)
ATEN = torch.ops.aten


@triton.jit
def project_beyond(p):
    """Write one number too many."""
    tl.store(p + tl.arange(0, 128), 1.0, mask=tl.arange(0, 128) < 65)


@triton.jit
def project_race(p):
    """All threads write to one place in shared memory and read it again, in no order."""
    i = tl.arange(0, 128)
    tl.store(p + i, tl.inline_asm_elementwise(RACE, "=r,r", [i], dtype=tl.int32, is_pure=False, pack=1))


@triton.jit
def project_unset(p, q):
    """Read what nothing wrote."""
    tl.store(q + tl.arange(0, 64), tl.load(p + tl.arange(0, 64)))


FAULTS = {
    "memcheck": lambda: project_beyond[(1,)](torch.empty(64, device="cuda")),
    "racecheck": lambda: project_race[(1,)](torch.empty(128, dtype=torch.int32, device="cuda")),
    "initcheck": lambda: project_unset[(1,)](*torch.empty(2, 64, device="cuda")),
}


class OnTheCPU(TorchDispatchMode):
    """Inside, products that cuBLAS would make are made on the CPU, in float32."""

    PRODUCTS = (ATEN.mm, ATEN.bmm, ATEN.addmm, ATEN.baddbmm)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """As torch asks for it."""
        if function.overloadpacket not in self.PRODUCTS or not args[0].is_cuda:
            return function(*args, **(kwargs or {}))
        made = function(*(x.float().cpu() if torch.is_tensor(x) else x for x in args), **(kwargs or {}))
        return made.to(args[0].device, args[0].dtype)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[-1, 16, 32, 64, 128, 0])
    parser.add_argument("--tools", nargs="+", default=["memcheck", "racecheck", "synccheck"])
    parser.add_argument("--only", nargs="+", default=CASES, metavar="CASE", help=f"of {' '.join(CASES)}")
    parser.add_argument("--together", type=int, default=1, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=900, help="for each process at most")
    parser.add_argument("--inside", metavar="TOOL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        products = OnTheCPU() if options.inside == "racecheck" else nullcontext()
        with products, torch.autograd.set_multithreading_enabled(False):  # a mode is one thread's
            for width in options.widths:
                run(width, options.only, options.inside)
        return
    if not shutil.which("compute-sanitizer"):
        raise SystemExit("compute-sanitizer, which comes with CUDA, is not on the PATH")
    began = time.monotonic()
    work = [(t, w) for t in options.tools for w in options.widths if w != FAULTY or t in FAULTS]
    with ThreadPoolExecutor(options.together) as pool:
        bad = sum(pool.map(lambda one: not sanitized(*one, options.only, options.seconds), work))
    print(f"{len(work) - bad} of {len(work)} clean, {time.monotonic() - began:.0f} s")
    sys.exit(1 if bad else 0)


def sanitized(tool: str, width: int, cases: list[str], seconds: float) -> bool:
    """Whether one width is clean under one tool; it says so in a line."""
    # What others wrote is written, too: initcheck looks at all kernels.
    looked_at = KERNELS if tool != "initcheck" else ()
    only = [f for kernel in looked_at for f in ("--kernel-name", f"kernel_substring={kernel}")]
    command = ["compute-sanitizer", "--tool", tool, *only, sys.executable, __file__, "--inside", tool]
    began = time.monotonic()
    name = f"{tool} " + {FAULTY: "a planted fault", CURVED: "projection"}.get(width, f"width {width}")
    wanted = {FAULTY: [], CURVED: list(LAWS)}.get(width, cases)
    try:
        done = subprocess.run(
            [*command, "--widths", str(width), "--only", *cases],
            env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
        said, ended = done.stdout, done.returncode == 0
    except subprocess.TimeoutExpired as stopped:
        said = stopped.stdout or ""
        said, ended = said if isinstance(said, str) else said.decode(errors="replace"), False
    passed = re.findall(r"^ran (\S+)$", said, re.MULTILINE)
    summary = re.search(r"=========\s+(?:ERROR|RACECHECK) SUMMARY: (.*)", said)
    errors = summary[1] if summary else "no summary"
    none = re.match(r"0 (errors|hazards)", errors) is not None
    clean = passed == wanted and (none and ended if width != FAULTY else bool(summary) and not none)
    verdict = ("found" if width == FAULTY else "clean") if clean else "FAILED"
    print(
        f"{name:24s} {verdict}  {time.monotonic() - began:4.0f} s  {errors}  ran {' '.join(passed)}",
        flush=True,
    )
    if not clean:
        print(said[-4000:], flush=True)
    return clean


def run(width: int, cases: list[str], tool: str) -> None:
    """Whatever is asked for, inside the tool."""
    if width == FAULTY:
        FAULTS[tool]()
    elif width == CURVED:
        project()
    else:
        for case in cases:
            network(*case.split("-"), width)
            print(f"ran {case}", flush=True)
    torch.cuda.synchronize()


def network(kind: str, precision: str, width: int) -> None:
    """Forward and backward, without and with condition fields, and forward alone."""
    grid = GRIDS[kind]
    u = torch.randn(16 if kind == "flat" else 4, *grid, device="cuda")
    t = torch.rand(len(u), device="cuda")
    for conditions in (0, 1, 2) if kind == "flat" else (0,):
        net = sapc.FNO(
            len(grid), MODES[kind], width, PROJECTIONS[width], 16, blocks=2,
            conditions=conditions, precision=precision, transform="fused",
        ).cuda()  # fmt: skip
        several = (conditions,) if conditions > 1 else ()
        shown = [torch.randn(len(u), *several, *grid, device="cuda")] * bool(conditions)
        with matmul_precision(precision):
            net(u.clone().requires_grad_(), t, *shown).square().mean().backward()
            with torch.no_grad():
                v = net(u, t, *shown)
        assert v.isfinite().all()
        assert all(p.grad.isfinite().all() for p in net.parameters())


def project() -> None:
    """Onto the curved laws, on small grids."""
    for name in LAWS:
        task = sapc.get_task(name, grid=(33, 20))
        f = task.dataset("train", size=4, seed=0, cache=False).fields.double().cuda()
        u = f + 0.05 * torch.randn_like(f)
        H = task.manifold(f, solver=sapc.FeasiblePoint(execution=sapc.Execution(compiled=False, fused=True)))
        assert H.project(u, check=False).isfinite().all()
        print(f"ran {name}", flush=True)


if __name__ == "__main__":
    main()
