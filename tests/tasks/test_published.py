"""Published image sets: every layout read, byte for byte, and cut into disjoint splits that use every image."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.tasks import cifar10, fashion_mnist, load_task
from esper.tasks.cifar10 import BINARY, PYTHON, ArrayUnpickler
from esper.tasks.data import Split, TaskData
from esper.tasks.downloads import DataError
from esper.tasks.fashion_mnist import parse_idx
from esper.tasks.folders import read_gzip
from esper.tasks.options import TaskOptions
from tests.tasks.archives import BATCH, cifar_archive, cifar_batch, idx, left_in, old_pickle, published, serving, source


@pytest.fixture(autouse=True)
def small_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Archives of few images count as the published ones."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("PYTHON", "BINARY"):
        layout = getattr(cifar10, name)
        monkeypatch.setattr(cifar10, name, published(layout, cifar_archive(layout)))
    files = zip(fashion_mnist.SOURCES, (*clothes(0, 40), *clothes(1, 20)), strict=True)
    monkeypatch.setattr(fashion_mnist, "SOURCES", tuple(source(file.name, idx(array)) for file, array in files))


def expected(numbers: range) -> list[tuple[bytes, int]]:
    pairs = []
    for number in numbers:
        pixels, labels = cifar_batch(number)
        pairs += [(row.tobytes(), label) for row, label in zip(pixels, labels, strict=True)]
    return sorted(pairs)


def found(*splits: Split) -> list[tuple[bytes, int]]:
    return sorted(
        (image.contiguous().numpy().tobytes(), int(label))
        for split in splits
        for image, label in zip(split.inputs, split.targets, strict=True)
    )


def check_cifar(task: TaskData, num_val: int) -> None:
    assert (task.in_channels, task.image_size, task.num_classes, task.kind) == (3, 32, 10, "images")
    assert (len(task.train), len(task.val), len(task.test)) == (5 * BATCH - num_val, num_val, BATCH)
    assert found(task.train, task.val) == expected(range(5))
    assert found(task.test) == expected(range(5, 6))


@pytest.mark.parametrize("layout", ["PYTHON", "BINARY"])
@pytest.mark.parametrize("subfolder", ["", "cifar10"])
def test_cifar10_is_read_from_an_archive_of_either_layout_and_then_from_its_folder(
    layout: str, subfolder: str, tmp_path: Path
) -> None:
    chosen = getattr(cifar10, layout)
    (tmp_path / subfolder).mkdir(exist_ok=True)
    archive = tmp_path / subfolder / chosen.source.name
    archive.write_bytes(cifar_archive(chosen))
    options = TaskOptions(root=tmp_path, num_val=30)
    first = cifar10.load(options)
    check_cifar(first, 30)
    archive.unlink()
    second = cifar10.load(options)
    for name in ("train", "val", "test"):
        assert torch.equal(getattr(first, name).inputs, getattr(second, name).inputs)


def test_both_layouts_give_the_same_splits(tmp_path: Path) -> None:
    tasks = []
    for name in ("PYTHON", "BINARY"):
        layout = getattr(cifar10, name)
        (tmp_path / name).mkdir()
        (tmp_path / name / layout.source.name).write_bytes(cifar_archive(layout))
        tasks.append(cifar10.load(TaskOptions(root=tmp_path / name, num_val=30)))
    for split in ("train", "val", "test"):
        one, other = (getattr(task, split) for task in tasks)
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)


def test_cifar10_is_downloaded_unpacked_and_found_again_without_a_network(tmp_path: Path) -> None:
    content = cifar_archive(PYTHON)
    options = TaskOptions(root=tmp_path, num_val=30)
    with serving({PYTHON.source.name: content}) as server:
        check_cifar(cifar10.load(TaskOptions(root=tmp_path, num_val=30, url=server.url)), 30)
        assert server.requests == [PYTHON.source.name]
    check_cifar(cifar10.load(options), 30)
    assert not [name for name in left_in(tmp_path) if "partial" in name]


def test_a_longer_val_split_holds_the_shorter_one(tmp_path: Path) -> None:
    (tmp_path / PYTHON.source.name).write_bytes(cifar_archive(PYTHON))
    short, long = (cifar10.load(TaskOptions(root=tmp_path, num_val=number)) for number in (20, 50))
    assert torch.equal(long.val.inputs[:20], short.val.inputs)
    with pytest.raises(ValueError, match=r"task.num_val must be from 1 to 119, of 120 images of cifar10; got 120"):
        cifar10.load(TaskOptions(root=tmp_path, num_val=120))


def test_pixels_are_standardised_by_the_training_images_when_they_are_read(tmp_path: Path) -> None:
    (tmp_path / PYTHON.source.name).write_bytes(cifar_archive(PYTHON))
    task = cifar10.load(TaskOptions(root=tmp_path, num_val=30))
    assert task.train.inputs.dtype == torch.uint8
    images = task.prepare(task.train.inputs)
    assert images.dtype == torch.float32
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(images.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-4, rtol=0)
    raw = task.train.inputs.double()
    by_hand = (task.val.inputs.double() - raw.mean((0, 2, 3), keepdim=True)) / raw.std(
        (0, 2, 3), keepdim=True, correction=0
    )
    torch.testing.assert_close(task.prepare(task.val.inputs).double(), by_hand, atol=1e-5, rtol=1e-5)
    stacked = task.val.inputs[torch.arange(6).view(2, 3)]
    torch.testing.assert_close(task.prepare(stacked), task.prepare(task.val.inputs[:6]).view(2, 3, 3, 32, 32))


class Spell:
    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("cast"),)


def test_a_pickle_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / PYTHON.source.name).write_bytes(cifar_archive(PYTHON))
    cifar10.load(TaskOptions(root=tmp_path, num_val=30))
    batch = tmp_path / PYTHON.folder / "data_batch_2"
    batch.write_bytes(pickle.dumps({b"data": Spell(), b"labels": [0]}, protocol=2))
    with pytest.raises(
        DataError, match=r"cannot read .*data_batch_2 \(.* is not part of the format\): remove the folder"
    ):
        cifar10.load(TaskOptions(root=tmp_path, num_val=30))
    assert not (tmp_path / "cast").exists()


@pytest.mark.parametrize("module", ["os", "builtins", "numpy.ma.core"])
def test_only_arrays_can_be_named_in_a_pickle(module: str) -> None:
    with pytest.raises(pickle.UnpicklingError, match="is not part of the format"):
        ArrayUnpickler(io.BytesIO()).find_class(module, "system")


def test_an_array_written_by_a_newer_numpy_is_read_too() -> None:
    written = pickle.dumps({b"data": np.arange(4, dtype=np.uint8)}, protocol=4)
    assert ArrayUnpickler(io.BytesIO(written), encoding="bytes").load()[b"data"].tolist() == [0, 1, 2, 3]


DAMAGED = [
    *(b"", b"garbage", old_pickle({"labels": [1]}), old_pickle([1]), b"}K\x01a."),
    old_pickle({"data": cifar_batch(0)[0], "labels": cifar_batch(0)[1]})[:-400],
    b"\x80\x04\x95" + b"\x00" * 8 + b"\x8e" + (2**62).to_bytes(8, "little") + b".",
]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_batch_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / PYTHON.source.name).write_bytes(cifar_archive(PYTHON))
    cifar10.load(TaskOptions(root=tmp_path, num_val=30))
    (tmp_path / PYTHON.folder / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match=r"task cifar10: cannot read .*test_batch \(.+\): remove the folder"):
        cifar10.load(TaskOptions(root=tmp_path, num_val=30))


@pytest.mark.parametrize("task", ["cifar10", "fashion_mnist", "tinystories"])
def test_a_root_that_cannot_be_looked_into_is_named(task: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"task.root: cannot look for .*xxx/.* \(File name too long\)$"):
        load_task(task, root=tmp_path / ("x" * 300))


def test_a_binary_batch_of_half_an_image_is_named(tmp_path: Path) -> None:
    (tmp_path / BINARY.folder).mkdir()
    (tmp_path / BINARY.folder / "data_batch_1.bin").write_bytes(b"\0" * 4000)
    with pytest.raises(DataError, match="4000 bytes are not a whole number of images"):
        cifar10.load(TaskOptions(root=tmp_path))


# ---------------------------------------------------------------------------------------------------- Fashion-MNIST


def clothes(number: int, count: int) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    draw = np.random.default_rng(number)
    return draw.integers(0, 256, (count, 28, 28), dtype=np.uint8), (np.arange(count) % 10).astype(np.uint8)


def put_clothes(folder: Path, *, compressed: bool) -> None:
    for file, array in zip(fashion_mnist.SOURCES, (*clothes(0, 40), *clothes(1, 20)), strict=True):
        name = file.name if compressed else file.name.removesuffix(".gz")
        (folder / name).write_bytes(idx(array, compressed=compressed))


@pytest.mark.parametrize("compressed", [True, False])
def test_fashion_mnist_is_read_from_the_users_folder_compressed_or_not(compressed: bool, tmp_path: Path) -> None:
    put_clothes(tmp_path, compressed=compressed)
    task = fashion_mnist.load(TaskOptions(root=tmp_path, num_val=10))
    assert (len(task.train), len(task.val), len(task.test)) == (30, 10, 20)
    assert (task.in_channels, task.image_size, task.num_classes) == (1, 28, 10)
    for splits, (images, labels) in (((task.train, task.val), clothes(0, 40)), ((task.test,), clothes(1, 20))):
        pairs = sorted((image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True))
        assert found(*splits) == pairs


def test_fashion_mnist_is_downloaded_where_no_folder_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = (*clothes(0, 40), *clothes(1, 20))
    files = {file.name: idx(array) for file, array in zip(fashion_mnist.SOURCES, arrays, strict=True)}
    monkeypatch.setattr(fashion_mnist, "SYSTEM_FOLDER", tmp_path / "nothing")
    with serving(files) as server:
        first = fashion_mnist.load(TaskOptions(root=tmp_path, num_val=10, url=server.url))
        assert sorted(server.requests) == sorted(files)
    second = fashion_mnist.load(TaskOptions(root=tmp_path, num_val=10))
    assert torch.equal(first.val.inputs, second.val.inputs)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(np.zeros((2, 3), np.uint8))[:-9], "cannot read .*file.gz"),
        (b"no gzip", "cannot read .*file.gz .*remove it"),
        (idx(np.zeros((2, 3), np.uint8), compressed=False), r"must hold 2x3 bytes and holds 5"),
        (bytes((0, 0, 13, 1, 0, 0, 0, 0)), "is not an idx file of bytes"),
        (b"", "is not an idx file of bytes"),
    ],
    ids=["cut", "foreign", "short", "floats", "empty"],
)
def test_a_damaged_idx_file_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    compressed = "cannot" in message
    path = tmp_path / ("file.gz" if compressed else "file")
    path.write_bytes(content[:-1] if "holds 5" in message else content)
    with pytest.raises(DataError, match=message):
        parse_idx(read_gzip(path), path)


def test_images_and_labels_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    put_clothes(tmp_path, compressed=True)
    (tmp_path / fashion_mnist.SOURCES[3].name).write_bytes(idx(clothes(1, 19)[1]))
    with pytest.raises(DataError, match=r"images \[20, 28, 28\] and labels \[19\] do not belong together"):
        fashion_mnist.load(TaskOptions(root=tmp_path, num_val=10, verify=False))
