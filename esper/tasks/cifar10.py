"""CIFAR-10: 60,000 real 32x32 colour images of ten classes (Krizhevsky 2009), in either of its published layouts."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from esper.tasks.data import Split, TaskData
from esper.tasks.downloads import DataError, Source, fetch, unpack
from esper.tasks.folders import data_folders, find
from esper.tasks.options import TaskOptions
from esper.tasks.pixels import split_pixels
from esper.tasks.published import Census, require_equal

NAME = "cifar10"
VERSION = 1
NUM_CLASSES = 10
NUM_VAL = 5000
IMAGE_SHAPE = (3, 32, 32)
IMAGE_BYTES = 3 * 32 * 32

_URL = "https://www.cs.toronto.edu/~kriz"


DAMAGED = (
    *(OSError, EOFError, pickle.UnpicklingError, ValueError, KeyError, TypeError, IndexError),
    *(AttributeError, MemoryError),
)
"""Exceptions from reading a damaged pickle, such as an object of another kind or an excessive length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Layout of one of the two published archives, Python or binary, which hold the same images.

    Attributes:
        source: published archive.
        folder: folder in the archive that holds its files.
        train, test: names of the files with training and test images.
        censuses: statistics that identify the training and the test images.
    """

    source: Source
    folder: str
    train: tuple[str, ...]
    test: str
    censuses: tuple[Census, Census]


CENSUSES = (
    Census(count=50_000, per_class=(5_000,) * NUM_CLASSES, sums=(6_415_714_204, 6_295_060_180, 5_829_907_619)),
    Census(count=10_000, per_class=(1_000,) * NUM_CLASSES, sums=(1_290_492_328, 1_266_775_083, 1_176_108_223)),
)
"""Published statistics of the training and test images; pixel sums follow exactly from the known channel means."""


PYTHON = Layout(
    source=Source(name="cifar-10-python.tar.gz", url=_URL, size=170498071, hash="md5:c58f30108f718f92721af3b95e74349a"),
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    censuses=CENSUSES,
)
BINARY = Layout(
    source=Source(name="cifar-10-binary.tar.gz", url=_URL, size=170052171, hash="md5:c32a1d4ab5d03f1284b67883e8d87530"),
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    censuses=CENSUSES,
)


def load(options: TaskOptions) -> TaskData:
    """Load CIFAR-10 from an unpacked folder or an archive, of either layout; otherwise download the python archive.

    Raises:
        DataError: a file is damaged, cannot be obtained, or holds other images.
    """
    layout, folder = _find(options)
    parts = [_read(folder / name) for name in layout.train]
    images, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    published = Split(images, labels)
    test = Split(*_read(folder / layout.test))
    for split, census in zip((published, test), layout.censuses, strict=True):
        require_equal(NAME, options, folder, Census.of(split, NUM_CLASSES), census)
    return split_pixels(NAME, VERSION, published, test, NUM_CLASSES, options.num_val or NUM_VAL)


def _find(options: TaskOptions) -> tuple[Layout, Path]:
    folders = data_folders(NAME, options)
    for layout in (PYTHON, BINARY):
        unpacked = find(folders, layout.folder)
        if unpacked is not None:
            return layout, unpacked
    for layout in (PYTHON, BINARY):
        archive = find(folders, layout.source.name)
        if archive is not None:
            return layout, _unpack(layout, archive, options)
    return PYTHON, _unpack(PYTHON, fetch(NAME, PYTHON.source, folders[0], options.url), options)


def _unpack(layout: Layout, archive: Path, options: TaskOptions) -> Path:
    files = (*layout.train, layout.test)
    return unpack(NAME, layout.source, archive, layout.folder, files, verify=options.verify)


def _read(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Read images ``uint8 [N, 3, 32, 32]`` and labels ``int64 [N]`` from one file."""
    try:
        rows, labels = _read_binary(path) if path.suffix == ".bin" else _read_python(path)
        images = torch.from_numpy(np.asarray(rows, dtype=np.uint8).reshape(len(labels), *IMAGE_SHAPE).copy())
        return images, torch.as_tensor(np.asarray(labels, dtype=np.int64).copy())
    except DAMAGED as error:
        raise DataError(
            f"task {NAME}: cannot read {path} ({str(error) or type(error).__name__}): remove the folder, so that it is "
            "unpacked again"
        ) from None


def _read_binary(path: Path) -> tuple[Any, Any]:
    """Read a binary file, whose rows are a label and an image."""
    content = np.fromfile(path, np.uint8)
    if not len(content) or len(content) % (1 + IMAGE_BYTES):
        raise ValueError(f"{len(content)} bytes are not a whole number of images")
    rows = content.reshape(-1, 1 + IMAGE_BYTES)
    return rows[:, 1:], rows[:, 0]


def _read_python(path: Path) -> tuple[Any, Any]:
    """Read a dictionary pickled by Python 2, whose keys are bytes."""
    with path.open("rb") as file:
        batch = ArrayUnpickler(file, encoding="bytes").load()
    return batch[b"data"], batch[b"labels"]


ALLOWED = {
    "ndarray": np.ndarray,
    "dtype": np.dtype,
    "_reconstruct": np.zeros(0).__reduce__()[0],
}
ALLOWED_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")


class ArrayUnpickler(pickle.Unpickler):
    """Unpickler for plain values and NumPy arrays only, because a pickle could otherwise run any code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the classes and functions needed for arrays.

        Raises:
            UnpicklingError: for anything else.
        """
        if module not in ALLOWED_MODULES or name not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of the format")
        return ALLOWED[name]
