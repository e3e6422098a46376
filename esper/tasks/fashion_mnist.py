"""Fashion-MNIST: 70,000 real 28x28 grayscale images of clothes (Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from esper.tasks.data import Split, TaskData
from esper.tasks.downloads import DataError, Source, fetch
from esper.tasks.folders import data_folders, find, read_gzip
from esper.tasks.options import TaskOptions
from esper.tasks.pixels import split_pixels
from esper.tasks.published import digest, require_equal

NAME = "fashion_mnist"
VERSION = 1
NUM_CLASSES = 10
NUM_VAL = 5000

SYSTEM_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Folder of Debian's package ``dataset-fashion-mnist``."""

_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
SOURCES = tuple(
    Source(name=f"{name}-ubyte.gz", url=_URL, size=size, hash=f"md5:{md5}", content=f"sha256:{content}")
    for name, size, md5, content in (
        (
            *("train-images-idx3", 26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        (
            *("train-labels-idx1", 29515, "25c81989df183df01b3e8a0aad5dffbe"),
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        (
            *("t10k-images-idx3", 4422102, "bef4ecab320f06d8554ea6380940ec79"),
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        (
            *("t10k-labels-idx1", 5148, "bb300cfdad3c16e7a12a480ee83cd310"),
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    )
)
"""Images and labels of the training split, then of the test split. Debian compresses the same content differently."""

IDX_UBYTE = 8
"""Type code of unsigned bytes in an idx file."""


def load(options: TaskOptions) -> TaskData:
    """Load Fashion-MNIST from the user's folder or Debian's, otherwise download it; files may be compressed.

    Raises:
        DataError: a file is damaged, cannot be obtained, or holds something else, such as MNIST's digits.
    """
    arrays = [_array(source, options) for source in SOURCES]
    published, test = (_split(*pair) for pair in (arrays[:2], arrays[2:]))
    return split_pixels(NAME, VERSION, published, test, NUM_CLASSES, options.num_val or NUM_VAL)


def _array(source: Source, options: TaskOptions) -> Tensor:
    folders = data_folders(NAME, options)
    places = (*folders, SYSTEM_FOLDER)
    path = find(places, source.name, source.name.removesuffix(".gz"))
    path = path or fetch(NAME, source, folders[0], options.url)
    content = read_gzip(path)
    array = parse_idx(content, path)
    require_equal(NAME, options, path, digest(content), source.content)
    return array


def _split(images: Tensor, labels: Tensor) -> Split:
    if images.dim() != 3 or labels.dim() != 1 or len(images) != len(labels):
        raise DataError(
            f"task {NAME}: images {list(images.shape)} and labels {list(labels.shape)} do not belong together"
        )
    return Split(images.unsqueeze(1), labels.long())


def parse_idx(content: bytes, path: Path) -> Tensor:
    """Parse the ``uint8`` numbers of an idx file: two zeros, a type, the number of axes, each axis' length, then the
    bytes.

    Raises:
        DataError: the file has another format, or is incomplete.
    """
    num_axes = content[3] if len(content) > 3 else 0
    begin = 4 + 4 * num_axes
    if content[:3] != bytes((0, 0, IDX_UBYTE)) or len(content) < begin:
        raise DataError(f"{path} is not an idx file of bytes: remove it, to look for it elsewhere")
    shape = tuple(np.frombuffer(content, ">u4", num_axes, offset=4).tolist())
    size = int(np.prod(shape, dtype=np.int64))
    if len(content) != begin + size:
        raise DataError(
            f"{path} must hold {'x'.join(map(str, shape))} bytes and holds {len(content) - begin}: remove it, so that "
            "it is looked for elsewhere"
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, size, offset=begin).reshape(shape).copy())
