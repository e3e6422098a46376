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


def broken(number: int) -> Any:
    """Raise for one item, as a damaged file does."""
    if number == 2:
        raise OSError("truncated\nfile")
    return PIXELS[number], LABELS[number]


class Endless:
    """A stream of items without a length."""

    def __iter__(self) -> Any:
        return iter([(PIXELS[0], 0)])


TOKENS = torch.arange(5) % 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda i: (PIXELS[i][: 7 + i % 2, : 7 + i % 2], 0),
            r"^train\[1\] has the shape \[3, 8, 8\], .* resize or crop",
        ),
        (lambda i: (PIXELS[i][:, :4], 0), r"^train\[0\] has the shape \[3, 8, 4\], .* square .*: resize"),
        (lambda i: (np.float32(1), 0), r"^train\[0\] has the shape \[\]: make it an image"),
        (lambda i: (TOKENS.float(), TOKENS), r"^train\[0\] has the shape \[5\], as tokens .* float32: make it"),
        (lambda i: PIXELS[i], r"^train\[0\] must be a pair .*, got ndarray: let"),
        (lambda i: (PIXELS[i], 0, 1), r"^train\[0\] must be a pair .*, got tuple of 3: let"),
        (lambda i: None, r"^train\[0\] must be a pair .*, got None: let"),
        (
            broken,
            r"^train\[2\] cannot be read \(mend it or leave it out\): OSError: truncated \(test_datasets.py:\d+\)$",
        ),
        (lambda i: ("text", 0), r"^train\[0\]: the input must be an image.*, got 'text': convert"),
        (lambda i: (None, 0), r"^train\[0\]: the input must be an image.*, got None: convert"),
        (lambda i: ([[1], [1, 2]], 0), r"^train\[0\] cannot be read .*inhomogeneous"),
        (lambda i: {"img": PIXELS[i], "label": 0}, r"^train\[0\] has no 'image': .* columns=; there are img, label"),
        (lambda i: (PIXELS[i] if i < 2 else PIXELS[i] / 2, 0), r"^train\[2\] holds float64, train\[0\] uint8: convert"),
        (lambda i: (PIXELS[i], "cat"), r"^train\[0\]: the target must be a class.*, got 'cat': number the classes"),
        (lambda i: (PIXELS[i], None), r"^train\[0\]: the target must be a class.*, got None: number the classes"),
        (lambda i: (PIXELS[i], i + 0.9 * (i > 1)), r"^train\[2\]: the target must be a class.*, got 2.9: .* regress"),
        (lambda i: (PIXELS[i], float("nan")), r"^train\[0\]: the target must be a class.*, got nan: "),
        (lambda i: (PIXELS[i], [0, 1]), r"^train\[0\]: the target must be a class.*, got the shape \[2\]: .* argmax"),
        (lambda i: (PIXELS[i], -(i > 3)), r"^train\[4\]: a target must be at least 0, got -1: number the classes"),
        (lambda i: (TOKENS, TOKENS[1:]), r"^train\[0\]: the target must be the next tokens, 5 .* \[4\]: shift"),
        (lambda i: (TOKENS, TOKENS + 0.5), r"^train\[0\]: the target must be the next tokens, .*, got 0.5: "),
        (lambda i: (TOKENS, torch.full((5,), -100)), r"^train\[0\]: every window of text .*: leave"),
        (lambda i: (PIXELS[i], 0), r"task dataset has num_classes=1"),
    ],
)
def test_what_no_task_can_have_is_refused_by_the_item(make: Callable[[int], Any], message: str) -> None:
    data = Items(make)
    with pytest.raises(ValueError, match=message) as caught:
        torch_dataset_task(data, data, data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"^val must be a dataset .*, got None: "),
        (Endless(), r"^val must be a dataset .*, got Endless: .* list"),
        (Items, r"^val must be a dataset .*, got the class Items: "),
        ({"train": [], "test": []}, r"^val must be one dataset, got a mapping of 'train', 'test': give one"),
        ([], r"^val is empty"),
    ],
)
def test_what_is_no_dataset_is_refused_by_the_split(given: Any, message: str) -> None:
    data = Items(FORMS["arrays"])
    with pytest.raises(ValueError, match=message):
        torch_dataset_task(data, given, data)


def test_a_split_unlike_the_first_is_refused_by_both_items() -> None:
    whole, bytes_ = (Items(lambda i, dtype=dtype: (PIXELS[i].astype(dtype), LABELS[i])) for dtype in ("int64", "uint8"))
    with pytest.raises(ValueError, match=r"^val\[0\] holds uint8, train\[0\] int64: convert"):
        torch_dataset_task(whole, bytes_, whole)
    small = Items(lambda i: (PIXELS[i][:4, :4], LABELS[i]))
    with pytest.raises(ValueError, match=r"^test\[0\] has the shape \[3, 4, 4\], train\[0\] \[3, 8, 8\]: "):
        torch_dataset_task(bytes_, bytes_, small)


def test_a_class_above_the_number_of_classes_is_refused_by_the_item() -> None:
    data = Items(FORMS["arrays"])
    with pytest.raises(ValueError, match=r"^train\[2\]: a target must be below 2 \(num_classes\), got 2: "):
        torch_dataset_task(data, data, data, num_classes=2)


def test_whole_numbers_of_any_type_are_classes() -> None:
    data = Items(lambda i: (PIXELS[i], np.float64(LABELS[i])))
    assert torch_dataset_task(data, data, data).train.targets.tolist() == LABELS


def test_hosts_read_it_once_it_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TASKS, "_entries", dict(TASKS))
    data = Items(FORMS["pictures"])
    register_task("pictures", lambda options: torch_dataset_task(data, data, data))
    config = compose("+preset=smoke", "task.name=pictures")
    task = load_task(config.task.name)
    host = build_task_host(config, task)
    assert host(task.prepare(task.train.inputs)).shape == (6, 3)
