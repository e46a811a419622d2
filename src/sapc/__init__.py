"""Flow matching over PDE solutions with conditions and conservation laws satisfied exactly.

A task is a PDE system with its data and its constraints; a manifold H is those constraints bound to a batch of conditions; `H.project` puts
any field on it.

    task = sapc.get_task("heat")
    data = task.dataset("train", size=64, seed=0)
    H = task.manifold(data.fields)
    noise = sapc.source.sample(task.grid, 64)
    H.residual(H.project(noise))   # zero
"""

__version__ = "0.1.0"

from . import metrics, source
from .constraints import Affine, Balance, Constraint, Pin, WithGradient
from .errors import SapcError, SapcWarning
from .grid import Axis, FrameIntegral, Grid
from .projection import Globalised, Manifold, Plain
from .tasks import Dataset, get_task, load_dataset, task_names

__all__ = [
    "Affine",
    "Axis",
    "Balance",
    "Constraint",
    "Dataset",
    "FrameIntegral",
    "Globalised",
    "Grid",
    "Manifold",
    "Pin",
    "Plain",
    "SapcError",
    "SapcWarning",
    "WithGradient",
    "__version__",
    "get_task",
    "load_dataset",
    "metrics",
    "source",
    "task_names",
]
