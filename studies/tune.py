"""Measure the times of the sampler for models that come with the package, and write them beside their weights.

python studies/tune.py                  all of them
python studies/tune.py heat-sapc ...    some
"""

import sys
import time

import sapc
from sapc.models.times import tune
from sapc.training.run_folder import model_names

for name in sys.argv[1:] or model_names():
    model, start = sapc.load(name), time.perf_counter()
    measurement = tune(model)
    distances = ", ".join(f"{label} {distance:.2e}" for label, distance in measurement.distances.items())
    print(
        f"{name}: {measurement.name} ({time.perf_counter() - start:.0f} s on {model.device}; {distances})",
        flush=True,
    )
