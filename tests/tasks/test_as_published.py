"""Data of other content is refused by name, whatever its files are called, unless the configuration accepts it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from esper.tasks import TASKS, TaskOptions, cifar10, digits, fashion_mnist, load_task, tinystories
from esper.tasks.downloads import DataError, Source
from esper.tasks.fashion_mnist import SYSTEM_FOLDER
from tests.tasks.archives import cifar_archive, cifar_batch, idx, old_pickle, published, source


def clothes(seed: int) -> list[NDArray[np.uint8]]:
    """Images and labels of 40 to train on and 20 to test on."""
    draw = np.random.default_rng(seed)
    return [
        array
        for count in (40, 20)
        for array in (
            draw.integers(0, 256, (count, 28, 28), dtype=np.uint8),
            (np.arange(count) % 10).astype(np.uint8),
        )
    ]


def write_clothes(folder: Path, arrays: list[NDArray[np.uint8]], *, compressed: bool = True) -> None:
    for file, array in zip(fashion_mnist.SOURCES, arrays, strict=True):
        name = file.name if compressed else file.name.removesuffix(".gz")
        (folder / name).write_bytes(idx(array, compressed=compressed))


@pytest.fixture
def few_clothes(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.uint8]]:
    """Few images count as the published ones."""
    arrays = clothes(0)
    files = tuple(source(file.name, idx(array)) for file, array in zip(fashion_mnist.SOURCES, arrays, strict=True))
    monkeypatch.setattr(fashion_mnist, "SOURCES", files)
    return arrays


def refused(task: str, root: Path, *parts: str) -> None:
    """One line names the place, what is there, what should be, and both ways on; ``task.verify=false`` takes it."""
    with pytest.raises(DataError) as caught:
        TASKS[task](TaskOptions(root=root, num_val=8, context_length=16))
    message = str(caught.value)
    assert "\n" not in message
    for part in (f"task {task}: {root}", "expected ", "found ", "task.root=", "task.verify=false", *parts):
        assert part in message
    TASKS[task](TaskOptions(root=root, num_val=8, context_length=16, verify=False))


def one_pixel(arrays: list[NDArray[np.uint8]]) -> None:
    arrays[0][3, 4, 5] ^= 1


def two_labels_changed_places(arrays: list[NDArray[np.uint8]]) -> None:
    arrays[3][[0, 1]] = arrays[3][[1, 0]]


def fewer(arrays: list[NDArray[np.uint8]]) -> None:
    arrays[:2] = [array[:30] for array in arrays[:2]]


def smaller_images(arrays: list[NDArray[np.uint8]]) -> None:
    arrays[0], arrays[2] = arrays[0][:, :20, :20], arrays[2][:, :20, :20]


def digits_of_the_same_names(arrays: list[NDArray[np.uint8]]) -> None:
    arrays[:] = clothes(1)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize(
    "change", [one_pixel, two_labels_changed_places, fewer, smaller_images, digits_of_the_same_names]
)
def test_idx_files_of_other_content_are_refused(
    change: Callable[[list[NDArray[np.uint8]]], None],
    compressed: bool,
    few_clothes: list[NDArray[np.uint8]],
    tmp_path: Path,
) -> None:
    write_clothes(tmp_path, few_clothes, compressed=compressed)
    fashion_mnist.load(TaskOptions(root=tmp_path, num_val=8))
    arrays = [array.copy() for array in few_clothes]
    change(arrays)
    write_clothes(tmp_path, arrays, compressed=compressed)
    refused("fashion_mnist", tmp_path, "sha256:")


@pytest.mark.slow
@pytest.mark.skipif(not SYSTEM_FOLDER.is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_the_real_fashion_mnist_is_whole() -> None:
    task = load_task("fashion_mnist")
    assert (len(task.train), len(task.val), len(task.test)) == (55000, 5000, 10000)
    assert (task.train.targets.bincount() + task.val.targets.bincount()).tolist() == [6000] * 10
    assert task.test.targets.bincount().tolist() == [1000] * 10
    assert float(task.mean) == pytest.approx(72.9, abs=0.3)  # type: ignore[arg-type]
    everything = torch.cat([split.inputs.flatten(1) for split in (task.train, task.val, task.test)])
    assert len({row.numpy().tobytes() for row in everything}) > 69_900, "splits share no image but published duplicates"


@pytest.mark.skipif(not SYSTEM_FOLDER.is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_digits_in_place_of_the_real_fashion_mnist_are_refused(tmp_path: Path) -> None:
    write_clothes(tmp_path, clothes(0))
    refused("fashion_mnist", tmp_path, fashion_mnist.SOURCES[0].content)


def cifar_folder(layout: cifar10.Layout, root: Path, batches: list[tuple[NDArray[np.uint8], list[int]]]) -> None:
    (root / layout.folder).mkdir()
    for name, (pixels, labels) in zip((*layout.train, layout.test), batches, strict=True):
        rows = zip(pixels, labels, strict=True)
        binary = b"".join(bytes((label,)) + row.tobytes() for row, label in rows)
        content = binary if name.endswith(".bin") else old_pickle({"data": pixels, "labels": labels})
        (root / layout.folder / name).write_bytes(content)


Batches = list[tuple[NDArray[np.uint8], list[int]]]


def other_pixel(batches: Batches) -> None:
    batches[5][0][2, 2000] ^= 1


def other_label(batches: Batches) -> None:
    batches[1][1][0] = (batches[1][1][0] + 1) % 10


def one_image_less(batches: Batches) -> None:
    batches[0] = batches[0][0][1:], batches[0][1][1:]


@pytest.mark.parametrize("layout", ["PYTHON", "BINARY"])
@pytest.mark.parametrize("change", [other_pixel, other_label, one_image_less])
def test_an_unpacked_folder_of_other_images_is_refused(
    change: Callable[[Batches], None], layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = published(getattr(cifar10, layout), b"")
    monkeypatch.setattr(cifar10, layout, chosen)
    for name, changed in (("same", False), ("other", True)):
        batches = [cifar_batch(number) for number in range(6)]
        if changed:
            change(batches)
        (tmp_path / name).mkdir()
        cifar_folder(chosen, tmp_path / name, batches)
    assert len(cifar10.load(TaskOptions(root=tmp_path / "same", num_val=8)).test) == len(cifar_batch(5)[1])
    refused("cifar10", tmp_path / "other", f"{tmp_path}/other/{chosen.folder}", "channels that add up to")


def test_the_published_sums_are_those_of_the_published_means() -> None:
    train, test = ([total / census.count / 1024 for total in census.sums] for census in cifar10.CENSUSES)
    assert train == [125.306918046875, 122.950394140625, 113.86538318359375]
    assert [mean / 255 for mean in test] == pytest.approx(
        [0.4942142800245098, 0.4851313890165441, 0.4504090927542892], rel=1e-15
    )


def test_another_archive_of_the_published_name_is_taken_only_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = cifar_archive(cifar10.PYTHON)
    monkeypatch.setattr(cifar10, "PYTHON", published(cifar10.PYTHON, b"another"))
    (tmp_path / cifar10.PYTHON.source.name).write_bytes(archive)
    with pytest.raises(DataError, match=r"is not the published file: its hash differs \(task.verify=false takes it\)"):
        cifar10.load(TaskOptions(root=tmp_path, num_val=8))
    assert len(cifar10.load(TaskOptions(root=tmp_path, num_val=8, verify=False)).test) == len(cifar_batch(5)[1])


STORY = "Once upon a time there was a cat.\nIt sat on a mat.\n<|endoftext|>\n"


@pytest.fixture
def few_stories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Source]:
    """Few stories count as the published ones, and are there."""
    monkeypatch.setenv("ESPER_CACHE_DIR", str(tmp_path / "cache"))
    files = []
    for name, count in (("TRAIN", 20), ("VALID", 10)):
        content = (STORY * count).encode()
        file = source(getattr(tinystories, name).name, content)
        monkeypatch.setattr(tinystories, name, file)
        (tmp_path / file.name).write_bytes(content)
        files.append(file)
    return files


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("change", ["shorter", "longer", "other letters"])
def test_other_stories_are_refused_and_the_published_ones_read_through_once(
    which: int, change: str, few_stories: list[Source], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = TaskOptions(root=tmp_path, num_val=8, context_length=16)
    tinystories.load(options)
    assert capfd.readouterr().err.count("against its published hash, once") == 2
    tinystories.load(options)
    assert capfd.readouterr().err == ""
    path = tmp_path / few_stories[which].name
    content = path.read_bytes()
    path.write_bytes({"shorter": content[:-9], "longer": content + b"more", "other letters": content.upper()}[change])
    state = path.stat()
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))  # some clocks tick more slowly than this test
    refused("tinystories", tmp_path, few_stories[which].hash if change == "other letters" else "bytes")


def test_stories_in_a_cache_that_cannot_be_written_are_read_through_again(
    few_stories: list[Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ESPER_CACHE_DIR", "/dev/null")
    for _ in range(2):
        tinystories.load(TaskOptions(root=tmp_path, num_val=8, context_length=16))
    assert capfd.readouterr().err.count("against its published hash, once") == 4


def test_other_digits_than_ever_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real, (images, labels) = load_task("digits"), digits.read()
    images[7, 3, 3] += 1
    monkeypatch.setattr(digits, "read", lambda: (images, labels))
    with pytest.raises(DataError, match=r"^task digits: .*digits.csv.gz of scikit-learn is not .*task.verify=false$"):
        TASKS["digits"](TaskOptions())
    changed = TASKS["digits"](TaskOptions(verify=False))
    assert not torch.equal(changed.train.inputs, real.train.inputs)


def test_a_scikit_learn_without_its_digits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "FILE", "sklearn/datasets/data/absent.csv.gz")
    with pytest.raises(DataError, match=r"^task digits: no .*absent.csv.gz of scikit-learn here .*: install another"):
        TASKS["digits"](TaskOptions())
