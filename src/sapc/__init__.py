"""Flow matching over PDE solutions with conditions and conservation laws satisfied exactly.

A task is a PDE system with its data and its constraints; a manifold H is those constraints bound to a batch
of conditions; `H.project` puts any field on it.

    task = sapc.get_task("heat")
    data = task.dataset("train", size=64, seed=0)
    H = task.manifold(data.fields)
    noise = sapc.source.sample(task.grid, 64)
    H.residual(H.project(noise))   # zero

A run is a task, a method and everything else that decides a training; a model is what the training leaves
behind.

    model = sapc.train("heat", method="sapc", preset="small", out="runs/heat-sapc")
    model = sapc.load("runs/heat-sapc")
    model.sample(n=64, condition=data.fields[:1])    # on the manifold of that condition
    sapc.evaluate(model, samples=100)
"""

from . import _startup  # noqa: F401 (first, as the others take seconds)

# isort: split
from . import _old_names as _old_names
from . import flow
from ._version import __version__
from .constraints import (
    Affine,
    Balance,
    Constraint,
    Execution,
    FeasiblePoint,
    GaussNewton,
    Manifold,
    NearestPoint,
    Pin,
)
from .data import Fields, read_fields, read_sensors, to_xarray
from .errors import SapcError, SapcWarning
from .evaluation import evaluate as _evaluation
from .evaluation import frechet as poseidon
from .evaluation import metrics
from .evaluation.frechet import distance as fpd
from .flow import source
from .grid import Axis, Grid
from .methods import Method, get_method, load_plugin, method_names, register_method
from .methods.registry import load_all_plugins as _load_all_plugins
from .methods.registry import task_hooks as _task_hooks
from .models.model import Model, load
from .models.train import train
from .nn.fno import FNO
from .tasks import (
    Dataset,
    Task,
    get_task,
    load_dataset,
    register_task,
    task_names,
)
from .tasks.check import check
from .tasks.registry import lookup_hooks as _lookup_hooks
from .training import loop as _loop
from .training.config import TrainingConfig, training_config

__all__ = [
    "FNO", "Affine", "Axis", "Balance", "Constraint", "Dataset", "Execution", "FeasiblePoint", "Fields",
    "GaussNewton", "Grid", "Manifold", "Method", "Model", "NearestPoint", "Pin", "SapcError",
    "SapcWarning", "Task", "TrainingConfig", "__version__", "check", "evaluate", "flow", "fpd",
    "get_method", "get_task", "load", "load_dataset", "load_plugin", "method_names", "metrics",
    "poseidon", "read_fields", "read_sensors", "register_method", "register_task", "source",
    "task_names", "to_xarray", "train", "training_config",
]  # fmt: skip

evaluate = _old_names.replace_module("evaluate", _evaluation.evaluate, _evaluation)
_old_names.replace_module("train", train, _loop)

# Tasks and methods do not know each other: here they meet.
_lookup_hooks.append(_load_all_plugins)
_task_hooks.append(register_task)

__getattr__ = _old_names.find_renamed(__name__)
