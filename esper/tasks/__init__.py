"""Tasks: data to train hosts on.

To add one, write a module and add one line to :data:`TASKS`, or call :func:`register_task` from your own module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from esper.runtime.registry import Registry
from esper.runtime.user_code import UsersCodeError, is_ours, named, of_the_user
from esper.tasks import cifar10, digits, fashion_mnist, synthetic, textbook, tinystories
from esper.tasks.data import IGNORED, Kind, Split, TaskData
from esper.tasks.datasets import torch_dataset_task
from esper.tasks.options import TaskOptions
from esper.tasks.order import epoch_indices

Loader = Callable[[TaskOptions], TaskData]

TASKS: Registry[Loader] = Registry(
    "task",
    {
        "digits": digits.load,
        "fashion_mnist": fashion_mnist.load,
        "cifar10": cifar10.load,
        "textbook": textbook.load,
        "tinystories": tinystories.load,
        "synthetic_images": synthetic.load_images,
        "synthetic_text": synthetic.load_text,
    },
)

_loaded: dict[tuple[Loader, TaskOptions, torch.device], TaskData] = {}


def register_task(name: str, load: Loader) -> None:
    """Register a task, to be selected by ``task.name``.

    Args:
        name: name of the task.
        load: function that makes its data from the options in the section ``task``.

    Raises:
        ValueError: a name that is not an identifier or belongs to another task, or a loader that is not a function.
    """
    TASKS.register(name, load)


def load_task(name: str, device: torch.device | str = "cpu", **options: Any) -> TaskData:
    """Load a task's data to a device: all splits, one copy per device and process, shared by all hosts there.

    Args:
        name: a key of :data:`TASKS`.
        device: device of the tensors.
        options: fields of :class:`TaskOptions`.

    Raises:
        ValueError: unknown name, or a user's loader that fails or does not return a :class:`TaskData`.
    """
    load = TASKS.find(name)
    # An empty tensor resolves "cuda" to the current device, so that "cuda" and "cuda:0" share a copy.
    key = (load, TaskOptions(**options), torch.empty(0, device=device).device)
    if key not in _loaded:
        task = _load(name, load, key[1])
        limit = key[1].max_samples
        _loaded[key] = (task if limit is None else task.first(limit)).to(key[2])
    return _loaded[key]


def _load(name: str, load: Loader, options: TaskOptions) -> TaskData:
    if is_ours(load):
        return load(options)
    with of_the_user(f"task.name={name}: {named(load)}"):
        task = load(options)
    if not isinstance(task, TaskData):
        raise UsersCodeError(f"task.name={name}: {named(load)} returns a {type(task).__name__}, not a TaskData")
    return task


__all__ = [
    "IGNORED",
    "TASKS",
    "Kind",
    "Split",
    "TaskData",
    "TaskOptions",
    "epoch_indices",
    "load_task",
    "register_task",
    "torch_dataset_task",
]
