"""Byte-pair encodings, trained on a text and stored in the user's cache."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from esper.runtime.cache import cache_dir
from esper.runtime.files import write_atomic

if TYPE_CHECKING:
    from tokenizers import Tokenizer

START_TOKEN = "<|start|>"
"""First token of the vocabulary, placed before a text and never part of one."""

PIECE = 1 << 20
"""Number of characters to encode at once."""


def trained_encoding(name: str, text: bytes, vocab_size: int) -> Tokenizer:
    """Return an encoding of bytes and the most frequent pairs in a text, from the cache or newly trained; it encodes
    any text.

    Args:
        name: name of the task, for the file in the cache.
        text: training text.
        vocab_size: largest number of tokens: 256 bytes, the start token, and pairs.

    Raises:
        ValueError: the library is not installed, or the cache cannot be written.
    """
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise ValueError(
            f"task.vocab_size={vocab_size} needs the package tokenizers: pip install '.[text]', or leave it null "
            "for bytes"
        ) from None
    path = cache_dir() / "encodings" / f"{name}-{vocab_size}-{zlib.crc32(text):08x}.json"
    if path.exists():
        return Tokenizer.from_file(str(path))
    encoding = Tokenizer(models.BPE())
    encoding.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoding.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[START_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    encoding.train_from_iterator(_pieces(text), trainer)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, encoding.to_str())
    except OSError as error:
        raise ValueError(
            f"task.vocab_size={vocab_size}: cannot keep the encoding in {path.parent} ({error.strerror}): name another "
            "folder with ESPER_CACHE_DIR=<folder>"
        ) from None
    return encoding


def encode(encoding: Tokenizer, text: bytes) -> Tensor:
    """Encode a text as tokens ``int64 [L]``."""
    found = encoding.encode_batch(_pieces(text), add_special_tokens=False)
    return torch.tensor([token for piece in found for token in piece.ids])


def _pieces(text: bytes) -> list[str]:
    """Divide the text at line ends into pieces small enough to encode."""
    lines = re.split(r"(?<=\n)", text.decode(errors="replace"))
    pieces, size = [[""]], 0
    for line in lines:
        if size > PIECE:
            pieces.append([])
            size = 0
        pieces[-1].append(line)
        size += len(line)
    return ["".join(piece) for piece in pieces]
