"""Tasks: the data that hosts are trained on. Adding one is one module and one line in :data:`TASKS`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from esper.tasks import digits
from esper.tasks.data import Split, TaskData
from esper.tasks.order import epoch_indices

TASKS: dict[str, Callable[[], TaskData]] = {"digits": digits.load}

_loaded: dict[tuple[str, torch.device], TaskData] = {}


def load_task(name: str, device: torch.device | str = "cpu") -> TaskData:
    """A task's data on a device: all splits, one copy per device and process, shared by all hosts there.

    Raises:
        ValueError: unknown name.
    """
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; known: {', '.join(sorted(TASKS))}")
    # An empty tensor resolves "cuda" to the current device, so that "cuda" and "cuda:0" share a copy.
    key = (name, torch.empty(0, device=device).device)
    if key not in _loaded:
        _loaded[key] = TASKS[name]().to(key[1])
    return _loaded[key]


__all__ = ["TASKS", "Split", "TaskData", "epoch_indices", "load_task"]
