"""Tasks: disjoint, complete, standardised splits that no run's seed can change."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.datasets import load_digits

from esper.tasks import TASKS, Split, TaskData, TaskOptions, load_task
from esper.tasks.data import split_and_standardise


def tiny(**changes: object) -> TaskData:
    split = Split(torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 0, 1]))
    fields = {"name": "tiny", "version": 1, "train": split, "val": split, "test": split, "num_classes": 2}
    return TaskData(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_pixels_that_are_not_finite_are_refused_by_task_split_and_place(split: str, value: float) -> None:
    images = torch.zeros(5, 1, 2, 2)
    images[2, 0, 1, 1] = images[4, 0, 0, 0] = images[4, 0, 0, 1] = value
    message = f"task tiny: 2 of 5 {split} images have pixels that are not finite, the first is number 2: leave them out"
    with pytest.raises(ValueError, match=message):
        tiny(**{split: Split(images, torch.tensor([0, 1, 0, 1, 0]))})


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.0), (float("nan"), 1.0), (0.0, float("inf"))])
def test_pixels_that_would_not_be_finite_once_standardised_are_refused(mean: float, std: float) -> None:
    split = Split(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    numbers = {"mean": torch.full((1, 1, 1), mean), "std": torch.full((1, 1, 1), std)}
    with pytest.raises(ValueError, match="task tiny: mean and std must be finite and std above 0 in every"):
        tiny(train=split, val=split, test=split, **numbers)


EMBEDDED = ("digits", "textbook", "synthetic_images", "synthetic_text")
"""Tasks that need no files; the others are read from small ones in test_published.py and test_text.py."""


def test_every_task_is_tested_here_or_on_small_files() -> None:
    assert set(TASKS) == {*EMBEDDED, "fashion_mnist", "cifar10", "tinystories"}


@pytest.mark.parametrize("name", EMBEDDED)
def test_every_task_loads_and_is_standardised_by_its_training_images(name: str) -> None:
    task = load_task(name)
    assert task.name == name
    if task.kind == "images":
        images = task.prepare(task.train.inputs)
        torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(task.in_channels), atol=1e-5, rtol=0)
        torch.testing.assert_close(images.std((0, 2, 3)), torch.ones(task.in_channels))
        assert task.train.targets.unique().tolist() == list(range(task.num_classes))
    assert task.chance_accuracy == pytest.approx(1 / task.num_classes)
    targets = task.val.targets.flatten().long()
    assert task.random_loss == pytest.approx(
        float(torch.nn.functional.cross_entropy(torch.zeros(len(targets), task.num_classes), targets))
    )


def test_digits_splits_are_disjoint_and_use_every_image_once() -> None:
    task = load_task("digits")
    assert (len(task.train), len(task.val), len(task.test)) == (1000, 400, 397)
    assert (task.in_channels, task.image_size, task.num_classes) == (1, 8, 10)
    raw = torch.from_numpy(load_digits().images).flatten(1)
    pooled = torch.cat([split.inputs.flatten(1) for split in (task.train, task.val, task.test)])
    # Undo the standardisation by its two known ends: blank pixels are 0 and the brightest are 16.
    pixels = ((pooled - pooled.min()) / (pooled.max() - pooled.min()) * 16).round().double()
    assert sorted(map(tuple, pixels.tolist())) == sorted(map(tuple, raw.tolist()))


def test_digits_images_keep_their_labels() -> None:
    bunch = load_digits()
    by_image = {tuple(image.ravel()): int(label) for image, label in zip(bunch.images, bunch.target, strict=True)}
    split = load_task("digits").test
    low, high = split.inputs.min(), split.inputs.max()
    pixels = ((split.inputs - low) / (high - low) * 16).round().double().flatten(1)
    assert [by_image[tuple(image)] for image in pixels.tolist()] == split.targets.tolist()


def test_the_split_does_not_depend_on_any_seed() -> None:
    torch.manual_seed(1)
    first = TASKS["digits"](TaskOptions())
    torch.manual_seed(2)
    second = TASKS["digits"](TaskOptions())
    assert torch.equal(first.test.inputs, second.test.inputs)
    assert first.test.targets[:8].tolist() == second.test.targets[:8].tolist()


def test_every_class_is_well_represented_in_every_split() -> None:
    task = load_task("digits")
    for split in (task.train, task.val, task.test):
        shares = split.targets.bincount(minlength=10) / len(split)
        assert shares.min() > 0.06
        assert shares.max() < 0.14


def test_hosts_on_one_device_share_one_copy() -> None:
    assert load_task("digits", "cpu") is load_task("digits", torch.device("cpu"))


def test_moving_a_task_keeps_its_numbers() -> None:
    task = load_task("digits")
    moved = task.to("cpu")
    assert moved.device == torch.device("cpu")
    assert torch.equal(moved.val.inputs, task.val.inputs)
    assert torch.equal(moved.test.targets, task.test.targets)


def test_unknown_task_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"task: unknown 'mnist'; choose from digits"):
        load_task("mnist")


def test_standardising_uses_training_images_only() -> None:
    images = torch.tensor([0.0, 2.0, 100.0, 200.0]).view(4, 1, 1, 1)
    task = split_and_standardise("toy", 1, images, torch.tensor([0, 1, 0, 1]), 2, [1, 0, 2, 3], (2, 1, 1))
    root2 = math.sqrt(2)  # training values 0 and 2: mean 1, standard deviation √2
    torch.testing.assert_close(task.train.inputs.flatten(), torch.tensor([1 / root2, -1 / root2]))
    assert task.val.inputs.item() == pytest.approx(99 / root2)
    assert task.train.targets.tolist() == [1, 0]


@pytest.mark.parametrize(("order", "sizes"), [([0, 1, 1, 3], (2, 1, 1)), ([0, 1, 2, 3], (1, 1, 1))])
def test_a_split_that_repeats_or_drops_samples_is_refused(order: list[int], sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must use each of 4 samples of toy once"):
        split_and_standardise("toy", 1, torch.rand(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64), 2, order, sizes)


def test_malformed_data_is_refused() -> None:
    with pytest.raises(ValueError, match=r"inputs must be images.*float64 \[4, 1, 2, 2\]"):
        Split(torch.zeros(4, 1, 2, 2, dtype=torch.float64), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"targets of images must be int64 \[4\]"):
        Split(torch.zeros(4, 1, 2, 2), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="tiny val targets run from 0 to 3; there are 2 classes"):
        tiny(val=Split(torch.zeros(2, 1, 2, 2), torch.tensor([0, 3])))
    with pytest.raises(ValueError, match=r"tiny test inputs are torch.float32 \[1, 3, 3\]"):
        tiny(test=Split(torch.zeros(2, 1, 3, 3), torch.tensor([0, 1])))
