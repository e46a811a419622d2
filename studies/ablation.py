"""The paper's ablation: SAPC, its three variants, FFM and condFFM on every task, three seeds."""

from sapc.experiments import cells

METHODS = ("sapc", "sapc_s3", "sapc_s2", "sapc_s1", "ffm", "cond_ffm")

runs = cells(methods=METHODS, seeds=(0, 42, 205), preset="published", watch=256)
