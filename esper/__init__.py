"""Esper grows neural networks while they train, under a controller learned by reinforcement learning."""

from __future__ import annotations

import typing as _typing

if _typing.TYPE_CHECKING:
    from esper.config import Config, compose
    from esper.envs.growth import GrowthEnv
    from esper.evaluate import run_evaluation
    from esper.experiment.environment import build_env
    from esper.experiment.shipped import load_controller
    from esper.exporting import export_network
    from esper.grower import Grower, GrowthReport, GrowthView, Score, classification_score, language_score, usual_rules
    from esper.growth import GrowthRules
    from esper.growth.actions import FactoredAction
    from esper.tasks import torch_dataset_task
    from esper.train import run_training

__version__ = "0.1.0"

_HOMES = {
    "Config": "esper.config",
    "FactoredAction": "esper.growth.actions",
    "Grower": "esper.grower",
    "GrowthEnv": "esper.envs.growth",
    "GrowthReport": "esper.grower",
    "GrowthRules": "esper.growth",
    "GrowthView": "esper.grower",
    "Score": "esper.grower",
    "build_env": "esper.experiment.environment",
    "classification_score": "esper.grower",
    "compose": "esper.config",
    "export_network": "esper.exporting",
    "language_score": "esper.grower",
    "load_controller": "esper.experiment.shipped",
    "run_evaluation": "esper.evaluate",
    "run_training": "esper.train",
    "torch_dataset_task": "esper.tasks",
    "usual_rules": "esper.grower",
}
"""Modules of the names that are imported on first use, because importing torch takes seconds."""

__all__ = [
    "Config",
    "FactoredAction",
    "Grower",
    "GrowthEnv",
    "GrowthReport",
    "GrowthRules",
    "GrowthView",
    "Score",
    "build_env",
    "classification_score",
    "compose",
    "export_network",
    "language_score",
    "load_controller",
    "run_evaluation",
    "run_training",
    "torch_dataset_task",
    "usual_rules",
]


def __getattr__(name: str) -> _typing.Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'esper' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return sorted([*__all__, "__version__"])
