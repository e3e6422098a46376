"""Handwritten digits: 1,797 real 8x8 grayscale images that ship with scikit-learn (UCI Optical Recognition)."""

from __future__ import annotations

import gzip
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from esper.runtime.rng import derive_seed
from esper.tasks.data import TaskData, split_and_standardise
from esper.tasks.downloads import DataError
from esper.tasks.options import TaskOptions
from esper.tasks.published import digest, require_equal

VERSION = 1
NUM_CLASSES = 10
NUM_VAL = 400
NUM_TEST = 397

CONTENT = "sha256:f6d9e39f37dc45d327f6db33428ee58970ccceabb2535a5c179de35886b70443"
"""Hashes of the images in ``float64`` and of the labels in ``int64``, both little-endian."""

FILE = "sklearn/datasets/data/digits.csv.gz"
"""The digits in scikit-learn's distribution: a row for each image, its 64 pixels and its label."""

REMEDY = "install another version of scikit-learn"


def read() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Read images ``[1797, 8, 8]`` and labels ``[1797]``, without importing scikit-learn, which takes as long as torch.

    Raises:
        DataError: there is no scikit-learn, or it has no such file.
    """
    try:
        with gzip.open(Path(str(distribution("scikit-learn").locate_file(FILE)))) as file:
            table = np.loadtxt(file, delimiter=",")
    except (OSError, ImportError) as error:
        raise DataError(f"task digits: no {FILE} of scikit-learn here ({error}): {REMEDY}") from error
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)


def load(options: TaskOptions) -> TaskData:
    """Load the digits in a fixed random order: the split does not depend on a run's seed.

    Raises:
        DataError: the installed scikit-learn has no digits, or other ones than expected.
        ValueError: ``num_val`` leaves nothing to train on.
    """
    pixels, classes = read()
    found = digest(pixels.astype("<f8").tobytes(), classes.astype("<i8").tobytes())
    require_equal("digits", options, f"{FILE} of scikit-learn", found, CONTENT, REMEDY)
    images = torch.from_numpy(pixels).unsqueeze(1)  # float64 [1797, 1, 8, 8], 0 to 16
    labels = torch.from_numpy(classes)
    # Sorted by hash, not by a library's shuffle, so that no library's version can move a test image into train.
    order = sorted(range(len(labels)), key=lambda sample: derive_seed("digits", VERSION, sample))
    num_val = options.num_val or NUM_VAL
    num_train = len(labels) - num_val - NUM_TEST
    if num_train < 1:
        most = len(labels) - NUM_TEST - 1
        raise ValueError(f"task.num_val must be from 1 to {most}, of {most + 1} images of digits; got {num_val}")
    sizes = (num_train, num_val, NUM_TEST)
    return split_and_standardise("digits", VERSION, images, labels, NUM_CLASSES, order, sizes)
