"""A textbook of real English: Python's reference manual, which ships with Python for ``help()``."""

from __future__ import annotations

import zlib
from pydoc_data.topics import topics

from esper.runtime.rng import derive_seed
from esper.tasks.data import TaskData
from esper.tasks.options import TaskOptions
from esper.tasks.text import Texts, text_task

NAME = "textbook"
CONTEXT_LENGTH = 128
NUM_VAL = 256
TEST_BYTES = 1 << 15


def load(options: TaskOptions) -> TaskData:
    """Load the manual's sections in a fixed random order, without repeated paragraphs.

    Every Python version has its own manual, so the version of the task is a checksum of the text.

    Raises:
        ValueError: val leaves nothing to train on.
    """
    text = manual().encode()
    length = options.context_length or CONTEXT_LENGTH
    num_val = (options.num_val or NUM_VAL) * length
    begin = len(text) - TEST_BYTES - num_val
    if begin < length:
        most = (len(text) - TEST_BYTES) // length - 1
        raise ValueError(f"task.num_val must be from 1 to {most}, in windows of {length} bytes; got {options.num_val}")
    texts = Texts(train=text[:begin], val=text[begin:-TEST_BYTES], test=text[-TEST_BYTES:])
    return text_task(NAME, zlib.crc32(text), texts, length, options.vocab_size)


def manual() -> str:
    """Return the whole text of the manual."""
    seen: set[str] = set()
    sections = []
    # Sorted by hash, not by a library's shuffle, so that no library's version can move a section.
    for topic in sorted(topics, key=lambda topic: derive_seed(NAME, topic)):
        paragraphs = dict.fromkeys(paragraph.strip("\n") for paragraph in topics[topic].split("\n\n"))
        own = [paragraph for paragraph in paragraphs if paragraph and paragraph not in seen]
        seen.update(own)
        sections.append("\n\n".join(own))
    return "\n\n".join(section for section in sections if section)
