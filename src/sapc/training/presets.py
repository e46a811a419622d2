"""Presets: the settings of a training by one word.

They start from a task, because its grid decides how large a model is useful:

    published   the published settings
    full        the published network with a better training: a third of the steps, twenty times the rate,
                which falls along a cosine
    best        full, with what goes beyond the paper: trained solutions are moved by the symmetries of the
                task, and the method is cond_sapc unless another is named
    compact     the sizes and the training of the models that come with the package
    small       a narrower network and fewer steps: a meaningful model in 2 to 3 minutes on two CPU cores
    tiny        seconds, for trying out commands; its samples mean nothing
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from .._old_names import current_preset as current_preset
from .._old_names import preset_name as preset_name
from ..nn.network import Backbone

# Terms in the validation loss of own data, of which there are few: as many draws of each as this needs.
VALIDATION_TERMS = 320
# Learning rate of small networks on own data: of 3, 6, 12, 24 and 48e-3 the best on three problems, by skill per
# condition.
DATA_RATE = 2.4e-2

Preset = Literal["published", "full", "best", "compact", "small", "tiny"]


def settings_for_data(name: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return a preset's settings for a grid and numbers of samples that are not the paper's."""
    settings = published_settings(name, shape, sizes)
    backbone = settings["backbone"]
    modes = tuple(min(backbone.modes[0], 8 if len(shape) == 4 else n, n) for n in shape)
    settings |= {"backbone": replace(backbone, modes=modes), "grid": shape}
    settings |= {split: min(n, settings[split]) if name == "tiny" else n for split, n in sizes.items()}
    settings["batch"] = min(settings["batch"], sizes["train"])
    if name not in ("published", "tiny"):
        settings["validation_draws"] = math.ceil(VALIDATION_TERMS / settings["validation"])
    if name in ("small", "tiny"):
        settings |= {"schedule": "cosine", "lr": DATA_RATE, "min_lr": 1e-6, "max_grad_norm": 1.0}
    return settings


def published_settings(name: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the settings of a preset for a published grid: those of fields on up to two axes, or on more."""
    is_flat = len(shape) <= 2
    if name in ("small", "tiny"):
        return _small_settings(shape, is_flat) | (_tiny_settings(shape, is_flat) if name == "tiny" else {})
    published = {
        "backbone": Backbone((32, 32), 64, 256, 32) if is_flat else Backbone((16, 16, 16), 32, 128, 16),
        "grid": shape,
        "steps": 20_000,
        "batch": 256 if is_flat else 32,
        "train": sizes["train"],
        "validation": sizes["validation"],
    }
    full = {
        "steps": 6000 if is_flat else 8000,
        "lr": 6e-3 if is_flat else 3e-3,
        "min_lr": 1e-6,
        "schedule": "cosine",
        "max_grad_norm": 1.0,
    }
    compact = {
        "backbone": Backbone((16, 12), 32, 64, 16) if is_flat else Backbone((8, 8, 8), 32, 64, 16),
        "steps": 8000,
    }
    if name in ("full", "best"):
        return published | full
    return published if name == "published" else published | full | compact


def _small_settings(shape: tuple[int, ...], is_flat: bool) -> dict[str, Any]:
    """Return the settings of the preset small."""
    return {
        "backbone": Backbone((12, 12), 16, 32, 16) if is_flat else Backbone((8, 8, 8), 12, 24, 16),
        "grid": tuple(n // 2 for n in shape) if is_flat else (32, 32, 20),
        "steps": 1500 if is_flat else 600,
        "batch": 32 if is_flat else 8,
        "train": 1600 if is_flat else 100,
        "validation": 256 if is_flat else 16,
        "lr": 3e-3,
        "min_lr": 1e-4,
        "validation_interval": 100,
        "plateau_patience": 2,
        "precision": "float32",
    }


def _tiny_settings(shape: tuple[int, ...], is_flat: bool) -> dict[str, Any]:
    """Return what the preset tiny changes in small."""
    return {
        "backbone": Backbone((4,) * len(shape), 4, 8, 4, blocks=2),
        "grid": (16,) * len(shape) if is_flat else (12, 12, 6),
        "steps": 20,
        "batch": 4,
        "train": 16,
        "validation": 8,
        "validation_interval": 10,
    }
