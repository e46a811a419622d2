"""The published network with the better training of preset `full`: what `studies/paper.py` has, in the same order."""

from sapc.study import cells

FIRST = ("sapc", "ffm", "sapc_s1", "sapc_s3", "eci", "pcfm")
THEN = ("cond_ffm", "cafm", "sapc_s2", "pbfm")

runs = [
    cell
    for seed in (0, 42, 205)
    for methods in (FIRST, THEN, ("dflow",))
    for cell in cells(methods=methods, seeds=(seed,), preset="full", watch=256)
]
