"""Handwritten digits: 1,797 real 8x8 grayscale images that ship with scikit-learn (UCI Optical Recognition)."""

from __future__ import annotations

import torch

from esper.runtime.rng import derive_seed
from esper.tasks.data import TaskData, split_and_standardise
from esper.tasks.options import TaskOptions
from esper.tasks.published import digest, require_equal

VERSION = 1
NUM_CLASSES = 10
NUM_VAL = 400
NUM_TEST = 397

CONTENT = "sha256:f6d9e39f37dc45d327f6db33428ee58970ccceabb2535a5c179de35886b70443"
"""Of the images in ``float64``, then of the labels in ``int64``, both with the low byte first."""


def load(options: TaskOptions) -> TaskData:
    """The digits, shuffled once and for all: the split depends on no run's seed.

    Raises:
        DataError: scikit-learn has other digits than it had.
        ValueError: ``num_val`` leaves nothing to train on.
    """
    from sklearn.datasets import load_digits  # takes as long to import as torch, and other tasks have no use for it

    bunch = load_digits()
    found = digest(bunch.images.astype("<f8").tobytes(), bunch.target.astype("<i8").tobytes())
    what, remedy = "load_digits() of scikit-learn", "install another version of scikit-learn"
    require_equal("digits", options, what, found, CONTENT, remedy)
    images = torch.from_numpy(bunch.images).unsqueeze(1)  # float64 [1797, 1, 8, 8], 0 to 16
    labels = torch.from_numpy(bunch.target).long()
    # Sorted by hash, not by a library's shuffle, so that no library's version can move a test image into train.
    order = sorted(range(len(labels)), key=lambda sample: derive_seed("digits", VERSION, sample))
    num_val = options.num_val or NUM_VAL
    num_train = len(labels) - num_val - NUM_TEST
    if num_train < 1:
        most = len(labels) - NUM_TEST - 1
        raise ValueError(f"task.num_val must be from 1 to {most}, of {most + 1} images of digits; got {num_val}")
    sizes = (num_train, num_val, NUM_TEST)
    return split_and_standardise("digits", VERSION, images, labels, NUM_CLASSES, order, sizes)
