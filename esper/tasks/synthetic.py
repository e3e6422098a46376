"""Generated data for tests and benchmarks; never a substitute for a missing data set."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.runtime.rng import generator
from esper.tasks.data import Split, TaskData
from esper.tasks.options import TaskOptions
from esper.tasks.pixels import split_pixels
from esper.tasks.text import windows

VERSION = 1

NUM_CLASSES = 10
IMAGE_SIZE = 16
NUM_IMAGES, NUM_VAL, NUM_TEST = 2560, 512, 512
NOISE = 64
"""Standard deviation of a pixel around its class's pattern, in units of 1/256."""

VOCAB_SIZE = 32
TRAIN_TOKENS, TEST_TOKENS = 65536, 8192
CONTEXT_LENGTH = 64
NUM_VAL_WINDOWS = 128
SURE = 0.8
"""Probability of the likely successor; the rest is spread over all tokens."""


def load_images(options: TaskOptions) -> TaskData:
    """Generate small colour images: a smooth pattern for each class, shifted and noisy.

    Raises:
        ValueError: ``num_val`` leaves nothing to train on.
    """
    coarse = torch.rand(NUM_CLASSES, 3, 4, 4, generator=generator("synthetic images", VERSION))
    patterns = 255 * F.interpolate(coarse, size=IMAGE_SIZE, mode="bilinear", align_corners=False)
    published, test = _images(patterns, NUM_IMAGES, "train"), _images(patterns, NUM_TEST, "test")
    return split_pixels("synthetic_images", VERSION, published, test, NUM_CLASSES, options.num_val or NUM_VAL)


def _images(patterns: Tensor, count: int, split: str) -> Split:
    """Generate the images of one split, with equally many of each class."""
    stream = generator("synthetic images", VERSION, split)
    labels = torch.arange(count) % NUM_CLASSES
    shifts = torch.randint(-2, 3, (count, 2), generator=stream).tolist()
    moved = [patterns[label].roll(shift, (1, 2)) for label, shift in zip(labels.tolist(), shifts, strict=True)]
    noise = NOISE * torch.randn(count, 3, IMAGE_SIZE, IMAGE_SIZE, generator=stream)
    return Split((torch.stack(moved) + noise).clamp(0, 255).to(torch.uint8), labels)


def load_text(options: TaskOptions) -> TaskData:
    """Generate a text in which a token's likely successor depends on the two tokens before it, with noise.

    The best possible accuracy is 80.6 %; a host that reads only one token is far worse.

    Raises:
        ValueError: a byte-pair encoding is requested.
    """
    if options.vocab_size is not None:
        raise ValueError(f"task.vocab_size={options.vocab_size} is for real text; synthetic_text has tokens already")
    length = options.context_length or CONTEXT_LENGTH
    rule = torch.randint(VOCAB_SIZE, (VOCAB_SIZE, VOCAB_SIZE), generator=generator("synthetic text", VERSION))
    sizes = {"train": TRAIN_TOKENS, "val": (options.num_val or NUM_VAL_WINDOWS) * length, "test": TEST_TOKENS}
    train, val, test = (windows(_text(rule, count, split), length) for split, count in sizes.items())
    return TaskData(name="synthetic_text", version=VERSION, train=train, val=val, test=test, num_classes=VOCAB_SIZE)


def _text(rule: Tensor, count: int, split: str) -> Tensor:
    """Generate the tokens ``[count]`` of one split."""
    stream = generator("synthetic text", VERSION, split)
    noise = torch.randint(VOCAB_SIZE, (count,), generator=stream).tolist()
    sure, table = (torch.rand(count, generator=stream) < SURE).tolist(), rule.tolist()
    tokens = noise[:2]
    for position in range(2, count):
        likely = table[tokens[-2]][tokens[-1]]
        tokens.append(likely if sure[position] else noise[position])
    return torch.tensor(tokens[:count])
