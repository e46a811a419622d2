"""The paper's tables: six tasks, eleven methods, three seeds, four test sets of 1,225 fields (Navier-Stokes 100, D-Flow 64).

In the order that says most soonest: SAPC and FFM from the first seed, what samples with FFM's weights, the
other trainings; then the same from the other seeds.
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
