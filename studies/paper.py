"""The paper's tables: six tasks, eleven methods, three seeds, four test sets.

Each test set has 1,225 fields (Navier-Stokes 100, D-Flow 64).

The most informative cells come first: SAPC and FFM from the first seed, methods that sample with FFM's
weights, the other trainings; then the same from the other seeds.
"""

from sapc.experiments import cells

FIRST = ("sapc", "ffm", "sapc_s1", "sapc_s3", "eci", "pcfm")
SECOND = ("cond_ffm", "cafm", "sapc_s2", "pbfm")

runs = [
    cell
    for seed in (0, 42, 205)
    for methods in (FIRST, SECOND, ("dflow",))
    for cell in cells(methods=methods, seeds=(seed,), preset="published", watch=256)
]
