"""Any map-style dataset is the data of a task: pairs and mappings, images of all forms, and windows of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset

from esper.config import compose
from esper.experiment.build import build_task_host
from esper.tasks import TASKS, load_task, register_task, torch_dataset_task

PIXELS = np.arange(6 * 8 * 8 * 3, dtype=np.uint8).reshape(6, 8, 8, 3)
LABELS = [0, 1, 2, 0, 1, 2]


class Items(Dataset[Any]):
    """Items by number, as a user's own dataset has."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


FORMS: dict[str, Callable[[int], Any]] = {
    "arrays": lambda i: (PIXELS[i], LABELS[i]),
    "pictures": lambda i: (Image.fromarray(PIXELS[i]), np.int64(LABELS[i])),
    "tensors": lambda i: (torch.from_numpy(PIXELS[i]).permute(2, 0, 1), torch.tensor(LABELS[i])),
    "mappings": lambda i: {"image": Image.fromarray(PIXELS[i]), "label": LABELS[i], "id": "x"},
}


@pytest.mark.parametrize("form", FORMS)
def test_images_are_the_same_whatever_their_form(form: str) -> None:
    data = Items(FORMS[form])
    task = torch_dataset_task(Subset(data, range(4)), Subset(data, [4]), Subset(data, [5]), name="mine")
    assert (task.name, task.num_classes, task.kind) == ("mine", 3, "images")
    expected = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
    assert task.train.inputs.equal(expected[:4])
    assert [split.targets.tolist() for split in task.splits().values()] == [[0, 1, 2, 0], [1], [2]]
    seen = task.prepare(task.train.inputs).double()
    torch.testing.assert_close(seen.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen.transpose(0, 1).flatten(1).std(1), torch.ones(3).double(), atol=1e-5, rtol=0)


def test_images_of_numbers_are_taken_as_they_are() -> None:
    inputs = torch.randn(6, 1, 8, 8, dtype=torch.float64)
    data = TensorDataset(inputs, torch.tensor(LABELS))
    task = torch_dataset_task(data, data, data, num_classes=10)
    assert task.prepare(task.val.inputs).equal(inputs.float())
    assert task.num_classes == 10


def test_windows_of_tokens_are_text() -> None:
    windows = torch.arange(6 * 5).reshape(6, 5) % 7
    data = TensorDataset(windows[:, :-1], windows[:, 1:])
    task = torch_dataset_task(data, data, data)
    assert (task.kind, task.context_length, task.num_classes) == ("tokens", 4, 7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda i: (PIXELS[i][: 7 + i % 2, : 7 + i % 2], 0),
            r"^train\[1\] has the shape \[3, 8, 8\], .* resize or crop",
        ),
        (lambda i: (PIXELS[i][:, :4], 0), r"^train: inputs must be images .*\[6, 3, 8, 4\]"),
        (lambda i: PIXELS[i], r"^train\[0\] must be a pair .*, got ndarray"),
        (lambda i: ("text", 0), r"^train\[0\]: the input must be an image.*, got str"),
        (lambda i: {"img": PIXELS[i], "label": 0}, r"^train\[0\] has no 'image': .* columns=; there are img, label"),
        (lambda i: (PIXELS[i], 0), r"task dataset has num_classes=1"),
    ],
)
def test_what_no_task_can_have_is_refused_by_the_item(make: Callable[[int], Any], message: str) -> None:
    data = Items(make)
    with pytest.raises(ValueError, match=message):
        torch_dataset_task(data, data, data)


def test_hosts_read_it_once_it_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TASKS, "_entries", dict(TASKS))
    data = Items(FORMS["pictures"])
    register_task("pictures", lambda options: torch_dataset_task(data, data, data))
    config = compose("+preset=smoke", "task.name=pictures")
    task = load_task(config.task.name)
    host = build_task_host(config, task)
    assert host(task.prepare(task.train.inputs)).shape == (6, 3)
