"""Data of a task from any map-style datasets: torchvision's, Hugging Face's, or a user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from esper.runtime.user_code import of_the_user
from esper.tasks.data import IGNORED, TOKEN_DTYPES, Split, TaskData

COLUMNS = ("image", "label")
MOST_CHANNELS = 4
"""Largest number of channels of an image; more on the last axis of an array is its width."""

UNREADABLE = " cannot be read (mend it or leave it out)"
"""Message about an item, between its name and the cause."""


class MapStyle(Protocol):
    """A dataset with a length and items by number, as ``torch.utils.data.Dataset`` describes it."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def torch_dataset_task(
    train: MapStyle,
    val: MapStyle,
    test: MapStyle,
    *,
    name: str = "dataset",
    version: int = 1,
    num_classes: int | None = None,
    columns: Sequence[str] = COLUMNS,
) -> TaskData:
    """Read three datasets into memory: ``register_task("mine", lambda options: torch_dataset_task(a, b, c))``.

    An item is a pair of input and target, or a mapping that holds both. Inputs are images of one square size: PIL
    images, arrays ``[H, W]`` or ``[H, W, C]``, or tensors ``[C, H, W]``, with a class as target; or windows of tokens
    ``[T]``, with the next tokens as target. Images of bytes stay bytes, and hosts see them standardised by the training
    images; others are taken as ``float32`` as they are. Items are read once, so they must not be augmented at random:
    ``task.crop``, ``task.flip`` and ``task.cutout`` do that.

    Args:
        train, val, test: datasets for training, for reward and observations, and for final scores. They should share no
            sample.
        name, version: name of the task, and a number that changes whenever the same name would mean other data.
        num_classes: number of classes; ``None`` for one more than the largest target.
        columns: names of input and target where items are mappings.

    Raises:
        ValueError: an item that cannot be read, or data that no task can have; names the dataset and the item.
    """
    given = {"train": train, "val": val, "test": test}
    reader = _Reader(columns, num_classes)
    splits = {split: reader.read(dataset, split) for split, dataset in given.items()}
    targets = [split.targets[split.targets != IGNORED] for split in splits.values()]
    mean = std = None
    if splits["train"].kind == "images" and splits["train"].inputs.dtype == torch.uint8:
        channels = splits["train"].inputs.double().transpose(0, 1).flatten(1)
        mean, std = (number.float()[:, None, None] for number in (channels.mean(dim=1), channels.std(dim=1)))
    return TaskData(
        name=name,
        version=version,
        num_classes=num_classes or 1 + max(int(each.max()) for each in targets),
        mean=mean,
        std=std,
        **splits,
    )


class _Reader:
    """Reader of the splits of one task, whose inputs must all be like the first.

    Args:
        columns: names of input and target where items are mappings.
        num_classes: number of classes, ``None`` if it follows from the targets.
    """

    def __init__(self, columns: Sequence[str], num_classes: int | None) -> None:
        self._columns, self._num_classes = columns, num_classes
        self._first: tuple[str, Tensor, str] | None = None

    def read(self, dataset: MapStyle, split: str) -> Split:
        """Read all items of a dataset."""
        inputs: list[Tensor] = []
        targets: list[Tensor] = []
        for index in range(_length(dataset, split)):
            where = f"{split}[{index}]"
            with of_the_user(where + UNREADABLE):
                item = dataset[index]
            value, target = _pair(item, self._columns, where)
            inputs.append(self._input(value, where))
            targets.append(_target(target, inputs[-1], self._num_classes, where))
        if not inputs:
            raise ValueError(f"{split} is empty: give a dataset with at least one item")
        return Split(torch.stack(inputs).contiguous(), torch.stack(targets))

    def _input(self, value: Any, where: str) -> Tensor:
        tensor, held = _tensor(value, where)
        if self._first is None:
            _check_input(tensor, where)
            self._first = where, tensor, held
        first, like, held_first = self._first
        if tensor.shape != like.shape:
            raise ValueError(
                f"{where} has the shape {list(tensor.shape)}, {first} {list(like.shape)}: all must have one, so resize "
                "or crop them"
            )
        if tensor.dtype != like.dtype:
            raise ValueError(
                f"{where} holds {held}, {first} {held_first}: convert them to one dtype, in all three datasets"
            )
        return tensor


def _length(dataset: Any, split: str) -> int:
    """Return the number of items of a dataset, and refuse what has no items by number."""
    if isinstance(dataset, Mapping) and 0 not in dataset:
        names = ", ".join(map(repr, dataset))
        raise ValueError(f"{split} must be one dataset, got a mapping of {names or 'nothing'}: give one of its values")
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or isinstance(dataset, type):
        raise ValueError(
            f"{split} must be a dataset with a length and items by number, got {_kind(dataset)}: read one that can "
            "only be iterated into a list"
        )
    with of_the_user(f"{split} has no length"):
        return len(dataset)


def _kind(value: object) -> str:
    """Describe what something is in a few words."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | int | float):
        return f"{value!r:.40}"
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else type(value).__name__


def _pair(item: Any, columns: Sequence[str], where: str) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        missing = [column for column in columns if column not in item]
        if missing:
            raise ValueError(
                f"{where} has no {missing[0]!r}: name input and target with columns=; there are "
                f"{', '.join(map(str, item))}"
            )
        return item[columns[0]], item[columns[1]]
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    raise ValueError(
        f"{where} must be a pair of input and target, or a mapping that holds both, got {_kind(item)}: let the dataset "
        "return (input, target)"
    )


def _tensor(value: Any, where: str) -> tuple[Tensor, str]:
    """Convert an image to ``[C, H, W]`` of bytes or ``float32``, tokens to integers ``[T]``.

    Returns:
        The tensor, and the name of the dtype that the input had.
    """
    rows_first = not isinstance(value, Tensor)
    tensor: Any = value
    if rows_first:
        with of_the_user(where + UNREADABLE):
            array = np.array(value)  # a PIL image is read as an array of bytes
            tensor = torch.from_numpy(array) if array.dtype.kind in "uifb" else None
    if tensor is None or tensor.is_complex():
        raise ValueError(
            f"{where}: the input must be an image, an array or a tensor of numbers, got {_kind(value)}: convert it"
        )
    held = str(tensor.dtype).removeprefix("torch.")
    if tensor.dim() == 1:
        return tensor, held
    if rows_first and tensor.dim() == 3 and tensor.shape[2] <= MOST_CHANNELS:
        tensor = tensor.permute(2, 0, 1)
    if tensor.dim() == 2:
        tensor = tensor[None]
    return tensor if tensor.dtype == torch.uint8 else tensor.float(), held


def _check_input(tensor: Tensor, where: str) -> None:
    """Refuse what is neither a square image nor a window of tokens."""
    shape = list(tensor.shape)
    if tensor.dim() == 1 and tensor.dtype not in TOKEN_DTYPES:
        held = str(tensor.dtype).removeprefix("torch.")
        raise ValueError(
            f"{where} has the shape {shape}, as tokens have, and holds {held}: make it an image [C, H, H], or tokens "
            "of int64"
        )
    if tensor.dim() not in (1, 3) or not tensor.numel():
        raise ValueError(f"{where} has the shape {shape}: make it an image [C, H, H] or a window of tokens [T]")
    if tensor.dim() == 3 and shape[1] != shape[2]:
        raise ValueError(
            f"{where} has the shape {shape}, and images must be square [C, H, H]: resize, crop or pad them"
        )


def _target(value: Any, tensor: Tensor, num_classes: int | None, where: str) -> Tensor:
    """Convert a class to ``int64 []``, the next tokens to ``int64 [T]``."""
    text = tensor.dim() == 1
    wanted = f"the next tokens, {len(tensor)} whole numbers" if text else "a class, a whole number"
    try:
        target = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"{where}: the target must be {wanted}, got {_kind(value)}: number the classes from 0"
        ) from None
    if list(target.shape) != list(tensor.shape if text else []):
        raise ValueError(
            f"{where}: the target must be {wanted}, got the shape {list(target.shape)}: "
            + ("shift the window by one token" if text else "of one number per class take the argmax")
        )
    whole = target.real.long()
    if not (whole == target).all():
        raise ValueError(
            f"{where}: the target must be {wanted}, got {target.flatten()[(whole != target).flatten()][0].item():g}: "
            "number the classes from 0; numbers to regress make no task"
        )
    counted = whole[whole != IGNORED] if text else whole.flatten()
    if not len(counted):
        raise ValueError(f"{where}: every window of text must have a target that counts: leave this one out")
    low, high = int(counted.min()), int(counted.max())
    if low < 0 or high >= (num_classes or high + 1):
        told = f"below {num_classes} (num_classes)" if num_classes else "at least 0"
        raise ValueError(f"{where}: a target must be {told}, got {low if low < 0 else high}: number the classes from 0")
    return whole
