"""The kernels compile.

The interpreter, in which they are tested, accepts more than the compiler, which needs no GPU.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from variants import variant

pytest.importorskip("triton", minversion="3.4")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def compiled(folder, *options):
    """What the script says, in a program of its own, because this one may have started to interpret."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "compile_kernels.py", *options],
        env=environment | {"TRITON_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_projections_compile_for_a_gpu(tmp_path):
    said = compiled(tmp_path, "--entries", "1", "--networks")
    # Two laws, each for all samples and for some.
    assert said.count("restore ") == 4


NETWORKS = ("solid", "slim", "flat", "narrow", "broad")


@pytest.mark.slow
@pytest.mark.parametrize("conditions", [0, 2])
@pytest.mark.parametrize("network", [variant(name, long=name not in ("solid", "slim")) for name in NETWORKS])
def test_the_networks_compile_for_a_gpu(tmp_path, network, conditions):
    """With the assembler that is here, they fit on the chip and read no register that nothing wrote.

    The slimmest needs no descriptors.
    """
    said = compiled(tmp_path, "--entries", "--networks", network, "--conditions", str(conditions))
    variants = {"lift_forward": 1, "block_forward": 2, "block_backward": 2, "project_weights": 1}
    assert {kernel: said.count(kernel) for kernel in variants} == variants
    without = said.count("products   0")
    assert without == 12 if network == "slim" else without < 12


READS = """
        /*00b0*/                   UMOV UR6, 0x400 ;
        /*00d0*/                   UIADD3 {0}, UP0, {0}, 0x20, URZ ;
.L_x_0:
        /*01a0*/              @!P3 BRA `(.L_x_0) ;
        /*02a0*/                   EXIT ;
"""


def test_a_register_that_nothing_wrote_is_found(monkeypatch):
    """As it was in the lifting at width 16 by ptxas 12.8; one that was written is none."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    from unset_registers import unset

    assert unset(READS.format("UR10")) == ["UIADD3 UR10, UP0, UR10, 0x20, URZ"]
    assert unset(READS.format("UR6")) == []
    product = READS.replace(
        "UIADD3 {0}, UP0, {0}, 0x20, URZ", "HGMMA.64x16x16.F32 R32, {0}gdesc[UR4], RZ, !UPT"
    )
    assert len(unset(product.format(""))) == 1
    # The second descriptor alone is set.
    both = product.replace("UMOV UR6, 0x400", "ULDC.64 UR6, c[0x0][0x208]")
    assert len(unset(both.format(""))) == 1
    assert unset(both.format("R24, ")) == []
