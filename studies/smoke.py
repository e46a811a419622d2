"""Every task and every method at a meaningless size, to show that all of it runs, in minutes on two cores.

Solving Navier-Stokes takes most of the time, so it has fewer solutions. The list goes method by method, so
that the solutions of the tasks are computed side by side, and once.
"""

from sapc import method_names, task_names
from sapc.experiments import cells

PLANE_TASKS = [name for name in task_names() if name != "navier_stokes"]
SETTINGS = {"preset": "tiny", "sampling_steps": 10, "floor_repeats": 1, "watch": 4, "coupled_samples": 4}
SMALL = {"train": 8, "validation": 4, "samples": 4, "reference": 8}

runs = [
    cell
    for method in method_names(extensions=False)
    for cell in (
        *cells(PLANE_TASKS, [method], **SETTINGS, samples=8, reference=32),
        *cells(["navier_stokes"], [method], **SETTINGS, **SMALL),
    )
]
