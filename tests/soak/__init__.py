"""A fuzzer of the whole package: `make soak`, or `python -m soak --minutes 10` in this folder's parent.

    files         damaged files and folders, opened by the public readers
    commands      command lines made of declared options, with good and odd values
    projections   random constraints on random grids, checked by residuals that are computed here, in numpy
    signals       commands that are killed at a random moment and then run again
    misuse        calls of the Python interface with wrong arguments

A case is a kind and a seed, which decide all of it: `python -m soak --case files:1234` runs that one again.
Each runs in a process of its own, so that a crash, a hang or a gigabyte is a finding and not the end. A case
is bad when something other than a `SapcError` was raised, a result was wrong without a word, a traceback was
shown, something half-written was left behind, or time or memory ran away.
"""
