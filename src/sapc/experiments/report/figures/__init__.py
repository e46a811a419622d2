"""The figures of a report: fidelity against constraints, ensembles, trajectories and examples."""

from __future__ import annotations

from .data import FigureData, task_figures
from .style import Figure, pyplot

__all__ = ["Figure", "FigureData", "pyplot", "task_figures"]
