"""Handwritten digits: 1,797 real 8x8 grayscale images that ship with scikit-learn (UCI Optical Recognition)."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from esper.rng import derive_seed
from esper.tasks.data import TaskData, split_and_standardise
from esper.tasks.options import TaskOptions

VERSION = 1
NUM_CLASSES = 10
NUM_VAL = 400
NUM_TEST = 397


def load(options: TaskOptions) -> TaskData:
    """The digits, shuffled once and for all: the split depends on no run's seed."""
    bunch = load_digits()
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
