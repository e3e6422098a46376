"""Generated data, for tests and benchmarks: never a stand-in for a data set that is not there."""

from __future__ import annotations

import torch
from torch import Tensor

from esper.rng import generator
from esper.tasks.data import TaskData
from esper.tasks.options import TaskOptions
from esper.tasks.text import windows

VERSION = 1

VOCAB_SIZE = 32
NUM_TOKENS = (65536, 8192, 8192)
CONTEXT_LENGTH = 64
SURE = 0.8
"""Probability of the likely successor; what is left is spread over all tokens."""


def load_text(options: TaskOptions) -> TaskData:
    """A text in which a token's likely successor depends on the two before it: a rule to learn, and noise.

    Nobody does better than 80.6 % right; a host that looks at one token only does far worse.
    """
    length = options.context_length or CONTEXT_LENGTH
    rule = torch.randint(VOCAB_SIZE, (VOCAB_SIZE, VOCAB_SIZE), generator=generator("synthetic text", VERSION))
    train, val, test = (windows(_text(rule, count, number), length) for number, count in enumerate(NUM_TOKENS))
    return TaskData(name="synthetic_text", version=VERSION, train=train, val=val, test=test, num_classes=VOCAB_SIZE)


def _text(rule: Tensor, count: int, number: int) -> Tensor:
    """Tokens ``[count]`` of one split."""
    stream = generator("synthetic text", VERSION, number)
    noise = torch.randint(VOCAB_SIZE, (count,), generator=stream).tolist()
    sure, table = (torch.rand(count, generator=stream) < SURE).tolist(), rule.tolist()
    tokens = noise[:2]
    for position in range(2, count):
        likely = table[tokens[-2]][tokens[-1]]
        tokens.append(likely if sure[position] else noise[position])
    return torch.tensor(tokens)
