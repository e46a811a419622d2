"""Uniform registers that a kernel reads although nothing can have written them: a fault of the assembler, seen in ptxas 12.8.

    python3 benchmarks/unset_registers.py ~/.triton/cache        # every kernel below this folder; one line for each that is at fault

Descriptors of the factors that a warp group multiplies lie in these registers. One that is made from an unset register points anywhere:
the product is wrong, or the read ends beyond the shared memory of the program. A register counts as unset where no way from the kernel's
beginning to the read passes a write to it, so what is reported is certain. Needs the disassembler that comes with Triton, no GPU.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z0-9_.]+)\s*(.*?)\s*;")
LABEL = re.compile(r"\s*(\.L_\w+):")
WRITERS = ("U", "S2UR", "R2UR", "VOTEU", "REDUX", "CREDUX", "LDCU")  # of uniform registers
NO_WRITERS = ("UTMA", "UBLKCP", "UCGABAR", "USETMAXREG")


class Instruction(NamedTuple):
    """What it does to uniform registers, and where it leads."""

    text: str
    writes: frozenset[int]
    reads: frozenset[int]
    target: str | None
    goes_on: bool


def unset(listing: str) -> list[str]:
    """The instructions of one disassembled kernel that read a register which nothing wrote."""
    program, labels = _parse(listing)
    written: list[frozenset[int] | None] = [None] * (len(program) + 1)
    written[0] = frozenset()
    todo = [0]
    while todo:
        i = todo.pop()
        if i == len(program):
            continue
        here, before = program[i], written[i]
        assert before is not None
        after = before | here.writes
        ways = ([i + 1] if here.goes_on else []) + ([labels[here.target]] if here.target in labels else [])
        for way in ways:
            known = written[way]
            if known is None or not after <= known:
                written[way] = after if known is None else known | after
                todo.append(way)
    return [
        p.text for p, known in zip(program, written, strict=False) if known is not None and p.reads - known
    ]


def disassemble(cubin: Path) -> str:
    """A kernel as a listing."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    return subprocess.run([tool, "-c", cubin], capture_output=True, text=True, check=True).stdout


def _parse(listing: str) -> tuple[list[Instruction], dict[str, int]]:
    program: list[Instruction] = []
    labels = {}
    for line in listing.splitlines():
        if found := LABEL.match(line):
            labels[found[1]] = len(program)
        elif found := INSTRUCTION.search(line):
            program.append(_instruction(bool(found[1]), found[2], found[3]))
    return program, labels


def _instruction(conditional: bool, name: str, arguments: str) -> Instruction:
    parts = [part.strip() for part in arguments.split(",")]
    writes: set[int] = set()
    if (
        name.startswith(WRITERS)
        and not name.startswith(NO_WRITERS)
        and (to := re.fullmatch(r"UR(\d+)", parts[0]))
    ):
        width = 4 if ".128" in name else 2 if ".64" in name or ".WIDE" in name else 1
        writes = set(range(int(to[1]), int(to[1]) + width))
        parts = parts[1:]
    jump = name.startswith(("BRA", "CALL", "JMP"))
    target = re.search(r"\.L_\w+", arguments) if jump else None
    ends = name.startswith(("EXIT", "RET")) or (target is not None and not name.startswith("CALL"))
    text = f"{name} {arguments}"
    return Instruction(
        text, frozenset(writes), _reads(name, parts), target and target[0], conditional or not ends
    )


def _reads(name: str, parts: list[str]) -> frozenset[int]:
    found: set[int] = set()
    for i, part in enumerate(parts):
        if product := re.search(
            r"gdesc\[UR(\d+)\]", part
        ):  # two descriptors; one if the first factor is in registers
            first = int(product[1])
            alone = i > 1 and re.match(r"R\d", parts[i - 1]) is not None
            found |= set(range(first + 2 * alone, first + 4))
        elif register := re.search(r"(desc\[)?UR(\d+)(\.64)?", part):
            double = register[1] or register[3] or name.startswith("UIADD3.64")
            found |= {int(register[2]), int(register[2]) + bool(double)}
    return frozenset(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    cubins = sorted(parser.parse_args().folder.rglob("*.cubin"))
    faults = {cubin: found for cubin in cubins if (found := unset(disassemble(cubin)))}
    for cubin, found in faults.items():
        print(f"{cubin.parent.name[:8]}/{cubin.name}: {'; '.join(found)}")
    print(f"{len(cubins)} kernels, {len(faults)} with unset registers")
    sys.exit(1 if faults or not cubins else 0)


if __name__ == "__main__":
    main()
