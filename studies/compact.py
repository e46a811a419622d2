"""The models that come with the package: SAPC and FFM on every task, and what samples with FFM's weights."""

from sapc.experiments import cells

runs = cells(methods=("sapc", "ffm", "sapc_s1", "sapc_s3", "eci", "pcfm"), preset="compact", watch=256)
