"""Tasks: the data that hosts are trained on. Adding one is one module and one line in :data:`TASKS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from esper.runtime.user_code import UsersCodeError, is_ours, named, of_the_user
from esper.tasks import cifar10, digits, fashion_mnist, synthetic, textbook, tinystories
from esper.tasks.data import IGNORED, Kind, Split, TaskData
from esper.tasks.options import TaskOptions
from esper.tasks.order import epoch_indices

TASKS: dict[str, Callable[[TaskOptions], TaskData]] = {
    "digits": digits.load,
    "fashion_mnist": fashion_mnist.load,
    "cifar10": cifar10.load,
    "textbook": textbook.load,
    "tinystories": tinystories.load,
    "synthetic_images": synthetic.load_images,
    "synthetic_text": synthetic.load_text,
}

_loaded: dict[tuple[Callable[[TaskOptions], TaskData], TaskOptions, torch.device], TaskData] = {}


def load_task(name: str, device: torch.device | str = "cpu", **options: Any) -> TaskData:
    """A task's data on a device: all splits, one copy per device and process, shared by all hosts there.

    Args:
        name: of :data:`TASKS`.
        device: where the tensors are to be.
        options: of :class:`TaskOptions`.

    Raises:
        ValueError: unknown name, or a user's loader that fails or returns something else.
    """
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; known: {', '.join(sorted(TASKS))}")
    # An empty tensor resolves "cuda" to the current device, so that "cuda" and "cuda:0" share a copy.
    key = (TASKS[name], TaskOptions(**options), torch.empty(0, device=device).device)
    if key not in _loaded:
        task = _load(name, key[1])
        limit = key[1].max_samples
        _loaded[key] = (task if limit is None else task.first(limit)).to(key[2])
    return _loaded[key]


def _load(name: str, options: TaskOptions) -> TaskData:
    load = TASKS[name]
    if is_ours(load):
        return load(options)
    with of_the_user(f"task.name={name}: {named(load)}"):
        task = load(options)
    if not isinstance(task, TaskData):
        raise UsersCodeError(f"task.name={name}: {named(load)} returns a {type(task).__name__}, not a TaskData")
    return task


__all__ = ["IGNORED", "TASKS", "Kind", "Split", "TaskData", "TaskOptions", "epoch_indices", "load_task"]
