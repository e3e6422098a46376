"""Data of a task from any map-style datasets: torchvision's, Hugging Face's, or a user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from esper.tasks.data import IGNORED, Split, TaskData

COLUMNS = ("image", "label")
MOST_CHANNELS = 4
"""Largest number of channels of an image; more on the last axis of an array is its width."""


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
    splits = {
        split: _read(dataset, split, columns) for split, dataset in (("train", train), ("val", val), ("test", test))
    }
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


def _read(dataset: MapStyle, split: str, columns: Sequence[str]) -> Split:
    inputs: list[Tensor] = []
    targets: list[Tensor] = []
    for index in range(len(dataset)):
        where = f"{split}[{index}]"
        value, target = _pair(dataset[index], columns, where)
        inputs.append(_tensor(value, where))
        targets.append(torch.as_tensor(target))
        if inputs[-1].shape != inputs[0].shape:
            raise ValueError(
                f"{where} has the shape {list(inputs[-1].shape)}, {split}[0] {list(inputs[0].shape)}: all must have "
                "one, so resize or crop them"
            )
    if not inputs:
        raise ValueError(f"{split} is empty")
    try:
        return Split(torch.stack(inputs).contiguous(), torch.stack(targets).long())
    except ValueError as error:
        raise ValueError(f"{split}: {error}") from error


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
        f"{where} must be a pair of input and target, or a mapping that holds both, got {type(item).__name__}"
    )


def _tensor(value: Any, where: str) -> Tensor:
    """Convert an image to ``[C, H, W]`` of bytes or ``float32``, tokens to integers ``[T]``."""
    if isinstance(value, Tensor):
        tensor = value
    else:
        array = np.array(value)  # a PIL image is read as an array of bytes
        if array.dtype.kind not in "uif":
            raise ValueError(f"{where}: the input must be an image, an array or a tensor, got {type(value).__name__}")
        tensor = torch.from_numpy(array)
        if tensor.dim() == 3 and tensor.shape[2] <= MOST_CHANNELS:
            tensor = tensor.permute(2, 0, 1)
    if tensor.dim() == 1:
        return tensor
    if tensor.dim() == 2:
        tensor = tensor[None]
    return tensor if tensor.dtype == torch.uint8 else tensor.float()
